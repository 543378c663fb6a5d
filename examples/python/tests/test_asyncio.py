"""Locks in tasks."""

from __future__ import annotations

import asyncio
import gc
import os
import random
import threading
import warnings
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from sidecars import PATIENCE, App, Sidecar, eventually

import locksidecar
from locksidecar import AsyncHeld, Client, LockHeld, LockLost

Connect = Callable[..., Client]


@pytest.fixture
def client(connect: Connect) -> Client:
    return connect()


def test_async_with(client: Client, sidecar: Sidecar) -> None:
    async def main() -> None:
        async with client.lock("a/with", wait=5) as held:
            assert isinstance(held, AsyncHeld) and held.valid_for() > 0 and not held.lost.is_set()
            assert sidecar.queue("a/with") == (1, 0)
        assert held.valid_for() == 0
        assert sidecar.queue("a/with") == (0, 0)
        async with client.rwlock("a/with").read() as reading:
            assert reading.fence >= held.fence

    asyncio.run(main())


def test_not_reentrant_unless_asked(client: Client) -> None:
    async def main() -> None:
        lock = client.lock("a/alone", wait=0)
        async with lock as outer:
            with pytest.raises(LockHeld):
                await lock.acquire_async()
            assert outer.count == 1
            await outer.release()
            async with lock:
                pass

    asyncio.run(main())


def test_reentrant_by_task(client: Client) -> None:
    lock = client.lock("a/again", wait=0, reentrant=True)

    async def other() -> None:
        async with lock:
            pass

    async def main() -> None:
        async with lock, lock as inner:
            assert inner.count == 2
            with pytest.raises(LockHeld):
                await asyncio.create_task(other())
            with pytest.raises(LockHeld):
                lock.acquire()  # the thread is not the task
        await asyncio.create_task(other())

    asyncio.run(main())


def test_many_waiters_need_no_threads(client: Client) -> None:
    inside = 0

    async def work() -> None:
        nonlocal inside
        async with client.lock("a/many"):
            inside += 1
            assert inside == 1
            await asyncio.sleep(0)
            inside -= 1

    async def main() -> None:
        before = threading.active_count()
        tasks = [asyncio.create_task(work()) for _ in range(100)]
        await asyncio.sleep(0.05)
        assert threading.active_count() <= before + 5
        await asyncio.gather(*tasks)

    asyncio.run(main())


def test_cancelled_wait(client: Client, sidecar: Sidecar) -> None:
    async def main() -> None:
        async with client.lock("a/cancel"):
            waiting = asyncio.create_task(client.lock("a/cancel").acquire_async())
            while await asyncio.to_thread(sidecar.queue, "a/cancel") != (1, 1):
                await asyncio.sleep(0.01)
            waiting.cancel()
            with pytest.raises(asyncio.CancelledError):
                await waiting
            await asyncio.to_thread(sidecar.expect_queue, "a/cancel", 1, 0)
            with pytest.raises(asyncio.TimeoutError):
                await asyncio.wait_for(asyncio.create_task(client.lock("a/cancel").acquire_async()), 0.1)
        await asyncio.to_thread(sidecar.expect_queue, "a/cancel", 0, 0)

    asyncio.run(main())


def test_many_cancelled_at_a_frozen_sidecar(own_sidecar: Callable[..., Sidecar]) -> None:
    """More than the socket takes at once. The rest is sent when the sidecar reads again, though nobody waits for it."""
    sidecar = own_sidecar(ttl="5m")  # a busy machine may freeze it for long

    async def main(client: Client) -> None:
        sidecar.freeze()
        tasks = [asyncio.create_task(client.lock("a/frozen").acquire_async()) for _ in range(700)]
        while len(client.session().core.calls) < len(tasks):
            await asyncio.sleep(0.01)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    with Client(sidecar.socket) as client, Client(sidecar.socket) as other, other.lock("a/frozen"):
        client.open()
        asyncio.run(main(client))
        sidecar.thaw()
        sidecar.expect_queue("a/frozen", 1, 0)


def test_a_limit_that_was_learned_is_that_of_one_sidecar(own_sidecar: Callable[..., Sidecar], tmp_path: Path) -> None:
    """What queues in the client when it goes asks the next one, which takes more."""
    small, large = own_sidecar(max_waiters="2"), own_sidecar()
    path = tmp_path / "s"
    path.symlink_to(small.socket)

    async def main(client: Client) -> None:
        tasks = [asyncio.create_task(client.lock("a/limit").acquire_async()) for _ in range(6)]
        session = await client.session_async()
        while session.core.limit != 2:
            await asyncio.sleep(0.01)
        path.unlink()
        path.symlink_to(large.socket)
        await asyncio.to_thread(small.kill)
        await asyncio.to_thread(large.expect_queue, "a/limit", 1, 4)
        gone = [task for task in tasks if task.done()]
        assert [type(task.exception()) for task in gone] == [locksidecar.SidecarGone] * 2
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    with Client(small.socket) as first, Client(large.socket) as second, Client(path) as client:
        held = first.lock("a/limit").acquire()
        with second.lock("a/limit"):
            asyncio.run(main(client))
        assert held.lost.wait(PATIENCE)


def test_a_try_for_which_there_is_no_room(own_sidecar: Callable[..., Sidecar], monkeypatch: pytest.MonkeyPatch) -> None:
    sidecar = own_sidecar(max_waiters="1")

    async def main(client: Client) -> None:
        async with client.lock("a/room"):
            tasks = [asyncio.create_task(client.lock(name).acquire_async()) for name in ("a/room", "a/other")]
            while client.session().core.limit != 1:
                await asyncio.sleep(0.01)
            with monkeypatch.context() as m, pytest.raises(locksidecar.LimitExceeded) as e:
                m.setattr("locksidecar._session.PATIENCE", -1.9)
                await client.lock("a/third", wait=0).acquire_async()
            assert e.value.metadata == {"limit": "waiters", "max": "1"}
        for task in tasks:
            await (await task).release()

    with Client(sidecar.socket) as client:
        asyncio.run(main(client))


def test_tasks_of_a_loop_share_a_timer(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    async def main() -> None:
        loop = asyncio.get_running_loop()
        timers: list[float] = []
        call_at = loop.call_at

        def counted(when: float, *args: Any, **kwargs: Any) -> asyncio.TimerHandle:
            timers.append(when)
            return call_at(when, *args, **kwargs)

        monkeypatch.setattr(loop, "call_at", counted)
        for _ in range(100):
            async with client.lock("a/timer"):
                pass
        assert len(timers) < 50

    asyncio.run(main())


def test_a_short_wait_beside_a_long_one(own_sidecar: Callable[..., Sidecar], monkeypatch: pytest.MonkeyPatch) -> None:
    """The timer that they share is moved for it."""
    monkeypatch.setattr("locksidecar._session.PATIENCE", 0.3)
    monkeypatch.setattr("locksidecar._session.PING_AFTER", 1000.0)  # of the long one
    sidecar = own_sidecar()

    async def main(client: Client) -> None:
        sidecar.freeze()
        long = asyncio.create_task(client.lock("a/long").acquire_async())
        await asyncio.sleep(0)
        with pytest.raises(locksidecar.SidecarSilent):
            await client.lock("a/short", wait=0.1).acquire_async()
        sidecar.thaw()
        await (await long).release()

    with Client(sidecar.socket) as client:
        client.open()
        asyncio.run(main(client))


def test_cancelled_at_any_moment(client: Client, sidecar: Sidecar) -> None:
    """Just when it is granted, too."""
    rng = random.Random(1)

    async def take() -> None:
        async with client.lock("a/race"):
            await asyncio.sleep(0)

    async def main() -> None:
        for _ in range(60):
            async with client.lock("a/race"):
                tasks = [asyncio.create_task(take()) for _ in range(2)]
                await asyncio.sleep(rng.uniform(0, 0.003))
            await asyncio.sleep(rng.uniform(0, 0.002))
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
        await asyncio.to_thread(sidecar.expect_queue, "a/race", 0, 0, 5)
        async with client.lock("a/race", wait=5) as held:
            assert held.count == 1

    asyncio.run(main())


def test_the_loop_ends_with_waits(client: Client, sidecar: Sidecar) -> None:
    async def main() -> None:
        kept.append(await client.lock("a/loop", owner="main", reentrant=True).acquire_async())
        asyncio.create_task(client.lock("a/loop").acquire_async())  # noqa: RUF006
        await asyncio.sleep(0.1)

    kept: list[AsyncHeld] = []
    asyncio.run(main())  # cancels the task
    sidecar.expect_queue("a/loop", 1, 0)
    again = client.lock("a/loop", owner="main", wait=0, reentrant=True).acquire()  # the session is the process's
    assert again.count == 2 and again.release() == 1
    client.close()


def test_lost(client: Client, sidecar: Sidecar) -> None:
    async def main() -> None:
        with pytest.raises(LockLost) as e:
            async with client.lock("a/lost") as held:
                forcing = asyncio.create_task(asyncio.to_thread(sidecar.force, "a/lost", 5.0))
                assert await asyncio.wait_for(held.lost.wait(), 10)
                with pytest.raises(LockLost):
                    held.check()
        assert e.value.lost_reason == "FORCED"
        await asyncio.wait_for(forcing, 2)  # the end of the block has ended the grace

    asyncio.run(main())


def test_two_loops(client: Client) -> None:
    total = 0

    async def work() -> None:
        nonlocal total
        for _ in range(20):
            async with client.lock("a/loops"):
                total += 1

    threads = [threading.Thread(target=lambda: asyncio.run(work())) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20)
    assert total == 60


def test_cancelled_release(client: Client, sidecar: Sidecar) -> None:
    async def main() -> None:
        for _ in range(20):
            held = await client.lock("a/release").acquire_async()
            releasing = asyncio.create_task(held.release())
            await asyncio.sleep(0)
            releasing.cancel()
            await asyncio.gather(releasing, return_exceptions=True)
            if not held._released:  # cancelled before it had begun
                await held.release()
            await asyncio.to_thread(sidecar.expect_queue, "a/release", 0, 0)

    asyncio.run(main())


def test_a_block_that_is_dropped_with_its_loop_is_left(client: Client, sidecar: Sidecar) -> None:
    """As a server does that stops its loop and lets go of its tasks."""
    lock = client.lock("a/dropped", mode="SHARED")

    async def work() -> None:
        async with lock:
            await asyncio.sleep(PATIENCE)

    async def begin(holders: int) -> asyncio.Task[None]:
        task = asyncio.create_task(work())
        while (await asyncio.to_thread(sidecar.queue, "a/dropped"))[0] < holders:
            await asyncio.sleep(0.01)
        return task

    first, second = asyncio.new_event_loop(), asyncio.new_event_loop()
    dropped = first.run_until_complete(begin(1))
    kept = second.run_until_complete(begin(2))
    first.run_until_complete(first.shutdown_default_executor())
    first.close()
    dropped._log_destroy_pending = False  # type: ignore[attr-defined]
    del dropped
    gc.collect()
    sidecar.expect_queue("a/dropped", 1, 0)
    kept.cancel()
    second.run_until_complete(asyncio.gather(kept, return_exceptions=True))
    second.run_until_complete(second.shutdown_default_executor())
    second.close()
    sidecar.expect_queue("a/dropped", 0, 0)


def test_loops_that_are_closed_leave_nothing(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    """As an app leaves many that calls asyncio.run for each piece of work."""
    monkeypatch.setattr("locksidecar._reading.PAUSE", 1.0)  # the thread leaves the reading to them
    lock = client.lock("a/loops-closed")
    for _ in range(8):
        lock.acquire().release()

    async def work() -> None:
        async with lock:
            pass

    asyncio.run(work())
    before = len(os.listdir("/proc/self/fd"))
    for _ in range(50):
        asyncio.run(work())
    assert len(os.listdir("/proc/self/fd")) <= before + 10


def test_a_loop_that_is_closed_before_it_stops_reading(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    """The thread tells the loop to stop, which has run for the last time: its copy of the socket is closed all the same."""
    monkeypatch.setattr("locksidecar._reading.PAUSE", PATIENCE)  # the thread reads again when it is called
    lock = client.lock("a/loop-closed")
    reading = client.session()._reading
    loop = asyncio.new_event_loop()

    async def work() -> None:
        async with lock:
            pass

    def read_by_the_loop() -> bool:  # an event in between ends that
        if not reading.left:
            lock.acquire().release()
        loop.run_until_complete(work())
        return loop in reading.loops

    eventually("the loop reads", read_by_the_loop)
    reading.call()
    eventually("the thread reads", lambda: not reading.left)
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        loop.close()
        del loop
        gc.collect()
    assert not [str(w.message) for w in warned]


def test_the_first_lock_while_the_executor_waits_for_it(connect: Connect) -> None:
    client = connect()

    async def take() -> str:
        async with client.lock("a/executor", wait=PATIENCE):
            return "taken"

    async def main() -> None:
        loop = asyncio.get_running_loop()
        loop.set_default_executor(ThreadPoolExecutor(1))
        waits = lambda: asyncio.run_coroutine_threadsafe(take(), loop).result(PATIENCE)  # noqa: E731
        assert await loop.run_in_executor(None, waits) == "taken"

    asyncio.run(main())


def test_no_sidecar(tmp_path: object) -> None:
    async def main() -> None:
        with pytest.raises(locksidecar.NoSidecar) as e:
            async with Client(f"{tmp_path}/none").lock("r"):
                pass
        assert f"{tmp_path}/none" in str(e.value)

    asyncio.run(main())


FULL = """
import asyncio, resource
import locksidecar

client = locksidecar.Client(loop_wait=0)
reading = client.session()._reading

async def main():
    now, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    for limit in (now, *[3] * 20):  # fewer than it has; not at first, where Python opens files of its own
        while not reading.left or reading.loops:
            client.lock("warm").acquire().release()
        resource.setrlimit(resource.RLIMIT_NOFILE, (limit, most))
        async with client.lock("r"):
            pass
        resource.setrlimit(resource.RLIMIT_NOFILE, (now, most))
    print("done", flush=True)

asyncio.run(main())
"""


def test_a_task_at_the_limit_of_open_files(sidecar: Sidecar) -> None:
    """Its loop cannot read, which takes a descriptor of its own: the thread does."""
    with App(FULL, sidecar.socket) as app:
        app.expect("done")
        assert app.wait() == 0
