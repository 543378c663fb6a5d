"""What users of locks do, and what went wrong for some of them."""

from __future__ import annotations

import asyncio
import gc
import importlib.util
import multiprocessing
import os
import pickle
import threading
import warnings
from collections.abc import Callable, Coroutine
from datetime import timedelta
from typing import Any

import pytest
from sidecars import PATIENCE, App, Sidecar, eventually

import locksidecar
from locksidecar import Client, LockHeld, LockLost, NotHolder, SidecarSilent

Start = Callable[..., Sidecar]

GEVENT = """
from gevent import monkey
monkey.patch_all()
from gevent import sleep, spawn
def wait(greenlet):
    greenlet.get()
"""

EVENTLET = """
import warnings
warnings.simplefilter("ignore")  # it is deprecated, warns of forks, and says so
import eventlet
eventlet.monkey_patch()
from eventlet import sleep, spawn
def wait(greenlet):
    greenlet.wait()
"""

GREENLETS = """
import os, threading
import locksidecar
failed = []
threading.excepthook = failed.append
inside = 0
def work():
    global inside
    with locksidecar.lock("green", wait=30):
        inside += 1
        assert inside == 1
        sleep(0)
        inside -= 1
for greenlet in [spawn(work) for _ in range(50)]:
    wait(greenlet)
held = locksidecar.lock("mine").acquire()
busy = spawn(lambda: [work() for _ in range(50)])
sleep(0.01)
pid = os.fork()
if pid == 0:
    sleep(0.3)  # the parent's greenlets go on here
    assert held.lost.is_set() and held.problem.lost_reason == "FORKED"
    try:
        locksidecar.lock("mine", wait=0).acquire()
    except locksidecar.LockHeld as e:
        os._exit(5 if failed else 0 if int(e.metadata["holder_pid"]) == os.getppid() else 4)
    os._exit(3)
print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
held.check()
wait(busy)
held.release()
print("done")
"""


@pytest.mark.parametrize(("library", "patch"), [("gevent", GEVENT), ("eventlet", EVENTLET)])
def test_greenlets(own_sidecar: Start, library: str, patch: str) -> None:
    """Greenlets survive a fork. What they do in the child takes nothing from the parent."""
    if importlib.util.find_spec(library) is None:
        pytest.skip(f"there is no {library}")
    with App(patch + GREENLETS, own_sidecar().socket) as app:
        app.expect("0")
        app.expect("done")
        assert app.wait() == 0


OUTLIVES_ITS_CLIENT = """
import gc, os
import locksidecar
held = locksidecar.Client().lock("r").acquire()
gc.collect()
pid = os.fork()
if pid == 0:
    try:
        held.release()
    except locksidecar.LockLost as e:
        os._exit(0 if e.lost_reason == "FORKED" else 4)
    os._exit(3)
assert os.waitpid(pid, 0)[1] == 0
held.check()
try:
    locksidecar.lock("r", wait=0).acquire()
except locksidecar.LockHeld:
    held.release()
    print("done")
"""


def test_a_hold_that_outlives_its_client_is_not_the_childs(sidecar: Sidecar) -> None:
    with App(OUTLIVES_ITS_CLIENT, sidecar.socket) as app:
        app.expect("done")
        assert app.wait() == 0


def in_thread(work: Callable[[], object]) -> None:
    thread = threading.Thread(target=work)
    thread.start()
    thread.join(PATIENCE)
    assert not thread.is_alive()


def test_a_block_is_left_in_another_thread(client: Client, sidecar: Sidecar) -> None:
    """As a dependency of FastAPI is, or a fixture of pytest."""
    lock = client.lock("other-thread")
    in_thread(lock.__enter__)
    assert sidecar.queue("other-thread") == (1, 0)
    in_thread(lambda: lock.__exit__(None, None, None))
    assert sidecar.queue("other-thread") == (0, 0)


def test_a_block_is_left_in_another_task(client: Client, sidecar: Sidecar) -> None:
    lock = client.lock("other-task")

    async def main() -> None:
        await asyncio.create_task(lock.__aenter__())
        assert sidecar.queue("other-task") == (1, 0)
        await asyncio.create_task(lock.__aexit__(None, None, None))

    asyncio.run(main())
    assert sidecar.queue("other-task") == (0, 0)


def test_a_block_that_released_leaves_the_outer_one_alone(client: Client) -> None:
    lock = client.lock("nested", reentrant=True)
    with lock as outer:
        with lock as inner:
            inner.release()
        outer.check()
        assert outer.count == 1


def test_check_fails_after_the_release(client: Client) -> None:
    held = client.lock("checked").acquire()
    held.check()
    held.release()
    with pytest.raises(NotHolder), client.lock("checked"):
        held.check()
    with pytest.raises(NotHolder):
        held.release()


def test_held_is_a_block(client: Client, sidecar: Sidecar) -> None:
    with client.lock("held").acquire() as held:
        held.check()
        assert sidecar.queue("held") == (1, 0)
    assert sidecar.queue("held") == (0, 0)

    async def main() -> None:
        async with await client.lock("held").acquire_async() as held:
            held.check()
        assert held.count == 0

    asyncio.run(main())
    assert sidecar.queue("held") == (0, 0)


def test_a_hold_that_is_dropped_is_warned_of(connect: Callable[..., Client], sidecar: Sidecar) -> None:
    client = connect()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        client.lock("dropped").acquire()
        gc.collect()
        assert [w.category for w in caught] == [ResourceWarning] and "'dropped'" in str(caught[0].message)
    assert sidecar.queue("dropped") == (1, 0), "it is held on: who dropped it may rely on it"


def test_locked_without_a_name(client: Client) -> None:
    def work() -> str:
        return "never"

    bare: Any = client.locked(work)  # as @client.locked without a call does it
    with pytest.raises(TypeError, match='@locked\\("'):
        bare()
    with pytest.raises(TypeError, match="name of a resource"):
        client.locked(7)  # type: ignore[arg-type]

    async def later() -> int:
        return 7

    @client.locked("coroutine")
    def returns_a_coroutine() -> Coroutine[Any, Any, int]:
        return later()

    with pytest.raises(TypeError, match="async def"):
        asyncio.run(returns_a_coroutine())


def test_a_wait_without_end_at_a_frozen_sidecar(own_sidecar: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("locksidecar._core.PING_AFTER", 0.2)
    monkeypatch.setattr("locksidecar._session.PING_AFTER", 0.2)
    monkeypatch.setattr("locksidecar._core.PING_LIMIT", 0.4)
    sidecar = own_sidecar(ttl="10s")
    with Client(sidecar.socket) as client:
        client.open()
        sidecar.freeze()
        with pytest.raises(SidecarSilent):
            client.lock("r").acquire()

        async def main() -> None:
            with pytest.raises(SidecarSilent):
                await client.lock("r").acquire_async()

        asyncio.run(main())
        sidecar.thaw()
        sidecar.expect_queue("r", 0, 0)
        with client.lock("r", wait=PATIENCE):
            pass


ATEXIT = """
import atexit
import locksidecar
def last():
    with locksidecar.lock("last", wait=5) as held:
        held.check()
    print("done", flush=True)
atexit.register(last)
"""


ATEXIT_ASYNC = """
import asyncio, atexit
import locksidecar
async def main():
    async with locksidecar.lock("last-task", wait=5):
        next = asyncio.create_task(locksidecar.lock("last-task", wait=5).acquire_async())
        await asyncio.sleep(0)
    await (await next).release()
def last():
    asyncio.run(main())
    print("done", flush=True)
atexit.register(last)
"""


@pytest.mark.parametrize("program", [ATEXIT, ATEXIT_ASYNC], ids=["thread", "task"])
def test_the_first_lock_in_atexit(sidecar: Sidecar, program: str) -> None:
    with App(program, sidecar.socket) as app:
        app.expect("done")
        assert app.wait() == 0


@pytest.mark.parametrize(
    ("field", "options"),
    [
        ("wait", {"wait": float("inf")}),
        ("wait", {"wait": -1}),
        ("wait", {"wait": "5s"}),
        ("max_hold", {"max_hold": float("nan")}),
        ("min_hold", {"min_hold": -1}),
        ("min_hold", {"min_hold": "30s"}),
        ("mode", {"mode": "shared"}),
        ("owner", {"owner": 7}),
        ("limit", {"limit": 0}),
        ("limit", {"limit": True}),
        ("limit", {"mode": "PERMIT"}),
        ("mode", {"mode": "SHARED", "limit": 4}),
        ("max_attempts", {"once": locksidecar.Once(max_attempts=float("nan"))}),  # type: ignore[arg-type]
        ("max_attempts", {"once": locksidecar.Once(max_attempts=-1)}),
        ("keep", {"once": locksidecar.Once(keep=float("inf"))}),
    ],
)
def test_bad_arguments(client: Client, field: str, options: dict[str, Any]) -> None:
    with pytest.raises(locksidecar.InvalidRequest) as e:
        client.lock("r", **options)
    assert e.value.metadata["field"] == field


@pytest.mark.parametrize("program", ["/srv/caf\udce9", "/srv/" + "\u00fc" * 100])
def test_a_program_of_any_name(sidecar: Sidecar, monkeypatch: pytest.MonkeyPatch, program: str) -> None:
    monkeypatch.setattr("sys.argv", [program])
    with Client(sidecar.socket) as client, client.lock("any-name"):
        assert sidecar.look("any-name")[0][0]["session"] in ("caf?", "\u00fc" * 64)


def test_good_arguments(client: Client) -> None:
    with client.lock("good", wait=timedelta(seconds=5), max_hold=timedelta(minutes=1), mode="SHARED") as held:
        assert held.mode is locksidecar.Mode.SHARED and held.valid_for() > 0


def test_dropped_clients_leave_no_thread(sidecar: Sidecar) -> None:
    before = threading.active_count()
    for _ in range(5):
        with Client(sidecar.socket).lock("leaks"):
            pass
    gc.collect()
    eventually("all have ended", lambda: threading.active_count() <= before)


def test_many_tasks_of_one_session(own_sidecar: Start) -> None:
    """The sidecar takes a tenth of them at a time; the rest queue in the client."""
    sidecar = own_sidecar(max_waiters="20")

    async def main(client: Client) -> None:
        inside = 0

        async def work() -> None:
            nonlocal inside
            async with client.lock("many", wait=PATIENCE):
                inside += 1
                assert inside == 1
                inside -= 1

        await asyncio.gather(*(work() for _ in range(200)))

    with Client(sidecar.socket) as client:
        asyncio.run(main(client))


def test_a_loss_cancels_the_task(client: Client, sidecar: Sidecar) -> None:
    async def main() -> None:
        with pytest.raises(LockLost) as e:
            async with client.lock("cancels", cancel_on_lost=True):
                forcing = asyncio.create_task(asyncio.to_thread(sidecar.force, "cancels", 5.0))
                await asyncio.sleep(PATIENCE)
        assert e.value.lost_reason == "FORCED"
        await asyncio.wait_for(forcing, PATIENCE)
        await asyncio.sleep(0)  # the task goes on, and is not cancelled
        async with client.lock("cancels", cancel_on_lost=True):
            pass

    asyncio.run(main())


def test_a_callback_at_the_loss(client: Client, sidecar: Sidecar) -> None:
    told: list[LockLost] = []
    called = threading.Event()

    def lost(problem: LockLost) -> None:
        told.append(problem)
        called.set()

    with pytest.raises(LockLost), client.lock("called") as held:
        held.on_lost(lost)
        sidecar.http("DELETE", "/v1/locks/called?grace=0s")
        assert called.wait(PATIENCE)
    assert told[0].lost_reason == "FORCED"


def test_as_in_threading(client: Client) -> None:
    lock, other = client.lock("shape"), client.lock("shape")
    assert not lock.locked()
    assert lock.acquire(blocking=False)
    assert lock.locked() and other.locked()
    assert not other.acquire(blocking=False) and not other.acquire(timeout=0.05)
    lock.release()
    assert not lock.locked() and other.acquire(timeout=-1)
    other.release()
    with pytest.raises(NotHolder):
        other.release()


def hold(lock: locksidecar.Lock) -> int:
    with lock:
        return os.getpid()


def test_a_lock_is_pickled(client: Client, sidecar: Sidecar) -> None:
    lock = client.lock("pickled", wait=0, max_hold=60)
    copy = pickle.loads(pickle.dumps(lock))
    with copy, pytest.raises(LockHeld):
        lock.acquire()
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        assert pool.apply(hold, (lock,)) != os.getpid()
    copy._client.close()


def test_once(client: Client) -> None:
    with client.once("invoice/1") as attempt:
        assert attempt.attempt == 1 and attempt.previous is None
        attempt.failed("no paper")
    with client.once("invoice/1") as attempt:
        assert attempt.previous is not None and attempt.previous["state"] == "FAILED"
        assert attempt.previous["note"] == "no paper" and attempt.attempt == 2
        attempt.succeeded("number 7")
    with pytest.raises(locksidecar.AlreadyDone) as e:
        client.once("invoice/1").acquire()
    assert e.value.metadata["note"] == "number 7"
    assert [o["state"] for o in client.outcomes("invoice/", states=["SUCCEEDED"])] == ["SUCCEEDED"]
    assert client.reset_outcome("invoice/1") is not None

    async def main() -> None:
        async with client.once("invoice/2", max_attempts=1) as attempt:
            await attempt.failed()

    asyncio.run(main())
    with pytest.raises(locksidecar.AttemptsExhausted):
        client.once("invoice/2", max_attempts=1).acquire()


def test_several_at_once(client: Client, sidecar: Sidecar) -> None:
    with client.lock(["accounts/7", "accounts/12"]) as held:
        assert [p.resource for p in held.parts] == ["accounts/12", "accounts/7"]
        assert all(p.fence > 0 for p in held.parts) and held.resource == "accounts/12, accounts/7"
        with pytest.raises(LockHeld) as e:
            client.lock("accounts/7", wait=0).acquire()
        assert e.value.metadata["resource"] == "accounts/7"
    assert sidecar.queue("accounts/12") == (0, 0)


def test_permits(client: Client, connect: Callable[..., Client]) -> None:
    """At most so many, in this process and others, each with a slot that no other one has."""
    exports = client.lock("permits", limit=2, wait=0)
    with exports as first, pickle.loads(pickle.dumps(exports)).acquire() as second:
        assert first.slot == 0 and second.slot == 1 and second.fence > first.fence
        assert first.mode is locksidecar.Mode.PERMIT and first.valid_for() > 0
        assert {h["mode"] for h in client.get("permits")["holders"]} == {"PERMIT"}
        assert [h["slot"] for lock in client.list("permits") for h in lock["holders"]] == [0, 1]
        with pytest.raises(LockHeld):
            connect().lock("permits", limit=2, wait=0).acquire()
        with pytest.raises(locksidecar.InvalidRequest) as e:
            client.lock("permits", limit=3).acquire()
        assert e.value.metadata["field"] == "limit"
    with client.lock("permits", wait=PATIENCE) as alone:
        assert alone.slot is None


def test_permits_of_tasks(client: Client) -> None:
    @client.locked("permits/tasks", limit=4, wait=0)
    async def fourth() -> None:
        assert len(client.get("permits/tasks")["holders"]) == 4

    async def main() -> None:
        permit = client.lock("permits/tasks", limit=4, wait=0)
        taken = await asyncio.gather(*(permit.acquire_async() for _ in range(3)))
        assert {held.slot for held in taken} == {0, 1, 2}
        await fourth()
        async with permit as held:
            assert held.slot == 3
            with pytest.raises(LockHeld):
                await fourth()
            for held in taken:
                await held.release()

    asyncio.run(main())


def test_extend(client: Client) -> None:
    with client.lock("extended", max_hold=PATIENCE / 20) as held:
        held.extend(timedelta(seconds=60))
        assert held.valid_for() > PATIENCE / 20
        assert not held.lost.wait(PATIENCE / 15)


def test_a_forced_release_may_take_its_grace(client: Client, connect: Callable[..., Client], monkeypatch: Any) -> None:
    monkeypatch.setattr("locksidecar._look._TIMEOUT", 3.0)
    held = client.lock("forced slowly").acquire()
    assert connect().force("forced slowly", grace=3.5) == [held.lock_id]
    with pytest.raises(LockLost):
        held.release()


def test_looks(client: Client, connect: Callable[..., Client]) -> None:
    leading = connect(metadata={"leader": "10.0.0.1"})
    with leading.lock("looks/1"), client.lock("looks/2"):
        assert [lock["resource"] for lock in client.list("looks/")] == ["looks/1", "looks/2"]
        assert client.held("looks/1") and not client.held("looks/3")
        assert client.leader("looks/1")["value"] == "10.0.0.1"
        assert next(client.watch_leader("looks/1"))["leads"]
        changes = client.watch("looks/", interval=0.1)
        assert [next(changes)["kind"] for _ in range(3)] == ["CURRENT", "CURRENT", "SYNCED"]
        assert client.info()["version"]
        with pytest.raises(LockLost), leading.lock("looks/4") as held:
            assert client.force("looks/4", grace=0) == [held.lock_id]
            held.lost.wait(PATIENCE)
            changes.close()  # type: ignore[attr-defined]
