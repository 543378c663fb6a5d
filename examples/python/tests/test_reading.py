"""Who reads: the thread of a session, or who waits for an answer."""

from __future__ import annotations

import asyncio
import json
import linecache
import os
import pickle
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

import pytest
from sidecars import PATIENCE, Sidecar, eventually
from test_parts import OneSidecar

import locksidecar
from locksidecar import Client
from locksidecar._call import Call
from locksidecar._clock import boot_time
from locksidecar._core import Core
from locksidecar._hold import Hold
from locksidecar._reading import readable
from locksidecar._session import Session

PACKAGE = os.path.dirname(locksidecar.__file__)


def left_to_callers(client: Client) -> Session:
    """The session, at a moment at which callers read."""
    session = client.session()

    def pair() -> bool:
        client.lock("warm").acquire().release()
        return session._reading.left

    eventually("left to callers", pair)
    return session


@pytest.fixture
def takers(monkeypatch: pytest.MonkeyPatch) -> list[tuple[threading.Thread, bool]]:
    """Who took answers of its own, and whether that was all there was."""
    noted: list[tuple[threading.Thread, bool]] = []
    take_own = Core.take_own

    def note(core: Core, home: object) -> bool:
        noted.append((threading.current_thread(), take_own(core, home)))
        return noted[-1][1]

    monkeypatch.setattr(Core, "take_own", note)
    return noted


def test_a_caller_alone_reads_its_answers(
    connect: Callable[..., Client], takers: list[tuple[threading.Thread, bool]]
) -> None:
    client = connect()
    left_to_callers(client)

    def read() -> bool:
        client.lock("r").acquire().release()
        return (threading.current_thread(), True) in takers

    eventually("a caller has read", read)
    assert client.session()._thread not in [thread for thread, _ in takers]


def test_a_turn_that_an_interrupt_has_left_taken(
    connect: Callable[..., Client], takers: list[tuple[threading.Thread, bool]]
) -> None:
    """The thread makes another one, when it wants to read."""
    client = connect()
    turn = left_to_callers(client)._reading.turn
    assert turn.acquire(timeout=PATIENCE)
    takers.clear()

    def read() -> bool:
        client.lock("r").acquire().release()
        return (threading.current_thread(), True) in takers

    eventually("a caller has read", read)
    assert turn.locked()


def test_a_loop_reads_the_answers_to_its_tasks(
    connect: Callable[..., Client], takers: list[tuple[threading.Thread, bool]]
) -> None:
    client = connect()
    reading = client.session()._reading

    def sockets() -> int:
        paths = [f"/proc/self/fd/{fd}" for fd in os.listdir("/proc/self/fd")]
        return sum(os.readlink(path).startswith("socket:") for path in paths if os.path.lexists(path))

    async def main() -> None:
        lock = client.lock("r")
        before = sockets()
        end = time.monotonic() + PATIENCE
        while (threading.current_thread(), True) not in takers:
            assert time.monotonic() < end, "the loop reads nothing"
            await (await lock.acquire_async()).release()
        while reading.left or sockets() > before:
            assert time.monotonic() < end, "the loop goes on reading what nobody asks for"
            await asyncio.sleep(0.001)
        held = await lock.acquire_async()  # by the thread
        await held.release()

    asyncio.run(main())


@pytest.mark.parametrize("run", [0.001, PATIENCE])
def test_a_task_that_asks_again_and_again_leaves_turns_to_others(
    connect: Callable[..., Client], monkeypatch: pytest.MonkeyPatch, run: float
) -> None:
    """It reads what comes at once without a turn of its loop, but not for ever."""
    client = connect()
    reading = client.session()._reading
    monkeypatch.setattr("locksidecar._ticks._RUN", run)
    monkeypatch.setattr(reading, "comes_at_once", lambda moment: readable(reading._sock, PATIENCE))
    monkeypatch.setattr(reading, "come_back", lambda: None)  # the thread reads no more
    turns = 0

    async def other() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    async def main() -> None:
        beside = asyncio.create_task(other())
        lock = client.lock("r")
        end = time.monotonic() + PATIENCE
        while not reading.left:
            assert time.monotonic() < end
            await (await lock.acquire_async()).release()
        await (await lock.acquire_async()).release()  # after a turn in any case
        before, until = turns, time.monotonic() + 0.1
        while time.monotonic() < until or turns == before and run < 1 and time.monotonic() < end:
            await (await lock.acquire_async()).release()
        assert (turns > before) == (run < 1)
        beside.cancel()

    asyncio.run(main())


def test_after_an_answer_that_did_not_come_at_once_others_run_meanwhile(
    connect: Callable[..., Client], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The next answers are awaited: a store that is farther away would stop the loop at each."""
    client = connect()
    reading = left_to_callers(client)._reading
    asked = 0

    def comes_late(moment: float) -> bool:
        nonlocal asked
        asked += 1
        return False

    monkeypatch.setattr(reading, "comes_at_once", comes_late)

    async def main() -> None:
        for _ in range(200):
            await (await client.lock("r").acquire_async()).release()

    asyncio.run(main())
    assert asked <= 400 / 64 + 1


def test_a_look_that_takes_long_is_the_last_for_a_while(connect: Callable[..., Client], monkeypatch: pytest.MonkeyPatch) -> None:
    """Where another thread computes, each step of a look waits for it, and a sleep would wait once."""
    reading = connect().session()._reading
    asked = 0

    def comes_after_others(moment: float) -> bool:
        nonlocal asked
        asked += 1
        time.sleep(0.005)
        return True

    monkeypatch.setattr(reading, "comes_at_once", comes_after_others)
    for _ in range(200):
        reading.watch()
    assert asked <= 200 / 64 + 1


@pytest.mark.timeout(60)  # a loop that stands still cannot end the test itself
@pytest.mark.parametrize("loop_wait", [0, 0.0001, 0.01])
def test_a_frozen_sidecar_does_not_stop_a_loop(
    own_sidecar: Callable[..., Sidecar], monkeypatch: pytest.MonkeyPatch, loop_wait: float
) -> None:
    sidecar = own_sidecar(ttl="5m")  # a busy machine may freeze it for long
    with Client(sidecar.socket, loop_wait=loop_wait) as client:
        session = left_to_callers(client)
        reading = session._reading
        looks: list[bool] = []
        comes_at_once = reading.comes_at_once
        monkeypatch.setattr(reading, "come_back", lambda: None)  # the thread reads no more

        def look(moment: float) -> bool:
            looks.append(comes_at_once(moment))
            return looks[-1]

        monkeypatch.setattr(reading, "comes_at_once", look)

        async def main() -> None:
            lock = client.lock("frozen")
            ticks = session._new_ticks(asyncio.get_running_loop())
            ticks._turn = time.monotonic() + PATIENCE  # as just after a turn
            reading.left = True  # whoever has read last
            sidecar.freeze()
            waits = [asyncio.create_task(lock.acquire_async())]
            for _ in range(100):
                await asyncio.sleep(0)
            assert not waits[0].done() and True not in looks
            sidecar.thaw()
            await (await waits[0]).release()

        asyncio.run(main())
        assert bool(looks) == bool(loop_wait)
        monkeypatch.undo()


def test_a_loop_waits_as_long_as_the_client_says(connect: Callable[..., Client]) -> None:
    client = connect(loop_wait=0.005)
    copy = pickle.loads(pickle.dumps(client))
    assert copy.loop_wait == client.loop_wait == client.session()._reading.moment == 0.005
    assert Client().loop_wait == 0.0001
    for wrong in (-1, 0.1, float("nan"), "0"):
        with pytest.raises(locksidecar.InvalidRequest):
            client.loop_wait = wrong  # type: ignore[assignment]
    assert client.loop_wait == 0.005


def test_a_loop_that_ends_while_it_reads(connect: Callable[..., Client]) -> None:
    client = connect()
    reading = client.session()._reading

    async def main() -> bool:
        await (await client.lock("r").acquire_async()).release()
        return bool(reading.loops)

    eventually("a loop has read", lambda: asyncio.run(main()))
    eventually("the thread reads", lambda: not reading.left and not reading.loops)
    client.lock("r").acquire().release()


def test_a_task_that_comes_when_the_session_has_just_ended(own_sidecar: Callable[..., Sidecar]) -> None:
    """Its turn to read was over before it came: another session does."""
    sidecar = own_sidecar()
    with Client(sidecar.socket) as client:
        ended = left_to_callers(client)
        sidecar.kill()
        eventually("it has ended", lambda: ended.error is not None)
        assert ended._thread is not None
        ended._thread.join(PATIENCE)
        ended._reading.left = True  # as where callers read when it ended
        call = Call("acquire", wanted=client.lock("r")._wanted(None, "thread", threading.current_thread()))

        async def main() -> None:
            ended.core.post(call)
            await ended._wait_async(call, None)

        with pytest.raises(locksidecar.SidecarGone):
            asyncio.run(main())


def test_a_loss_is_told_though_nobody_asks(client: Client, sidecar: Sidecar) -> None:
    with pytest.raises(locksidecar.LockLost) as e, client.lock("told") as held:
        told = threading.Event()
        held.on_lost(lambda _: told.set())
        left_to_callers(client)
        sidecar.http("DELETE", "/v1/locks/told?grace=0s")
        assert told.wait(PATIENCE) and held.lost.wait(PATIENCE)
    assert e.value.lost_reason == "FORCED"


def test_the_end_of_the_connection_is_told_though_nobody_asks(own_sidecar: Callable[..., Sidecar]) -> None:
    sidecar = own_sidecar()
    with Client(sidecar.socket) as client:
        held = client.lock("r").acquire()
        left_to_callers(client)
        sidecar.kill()
        assert held.lost.wait(PATIENCE) and held.problem is not None
        assert held.problem.lost_reason == "SIDECAR_GONE"


def test_a_client_that_is_dropped_while_callers_read_ends_its_session(own_sidecar: Callable[..., Sidecar]) -> None:
    sidecar = own_sidecar()
    client = Client(sidecar.socket)
    held = client.lock("r").acquire()
    session = left_to_callers(client)
    del client
    held.release()
    eventually("it has ended", lambda: session.error is not None)
    eventually("no session", lambda: sidecar.http("GET", "/v1/info")[1]["sessions"] == 0)


def test_threads_that_come_and_go(connect: Callable[..., Client]) -> None:
    """Between one caller that reads and many that wait, nobody's answer is left unread."""
    client = connect()
    failed: list[BaseException] = []

    def work(name: str) -> None:
        try:
            for _ in range(20):
                with client.lock(name, wait=PATIENCE):
                    pass
        except BaseException as e:
            failed.append(e)

    for crowd in (1, 2, 30, 1, 3):
        left_to_callers(client)
        began = time.monotonic()
        threads = [threading.Thread(target=work, args=(f"crowd/{n % 5}",)) for n in range(crowd)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(2 * PATIENCE)
        assert not failed and time.monotonic() - began < 2 * PATIENCE


def interrupt() -> None:
    raise KeyboardInterrupt


def _deletes(frame: FrameType | None) -> bool:
    """The garbage collector may come at any moment, with what other rounds have left. Python ignores interrupts there."""
    while frame is not None and frame.f_code.co_name != "__del__":
        frame = frame.f_back
    return frame is not None


class Strike:
    """A signal for this thread, at the n-th line of the client that it comes to. It interrupts it, or has a handler."""

    def __init__(self, n: int, handler: Callable[[], object] = interrupt) -> None:
        self.left = n
        self.where = ""
        self._handler = handler

    def __enter__(self) -> Strike:
        sys.settrace(self._trace)
        return self

    def __exit__(self, *_: object) -> None:
        sys.settrace(None)

    def _trace(self, frame: FrameType, event: str, _: Any) -> Any:
        if os.path.dirname(frame.f_code.co_filename) != PACKAGE:
            return None
        # A signal strikes at calls and loops: not between a block and the end of its `with`, and not at a `try`.
        line = linecache.getline(frame.f_code.co_filename, frame.f_lineno).lstrip()
        if event == "line" and not line.startswith(("with ", "try:")) and not (self.left == 1 and _deletes(frame)):
            self.left -= 1
            if self.left == 0:
                self.where = f"{frame.f_code.co_filename}:{frame.f_lineno}"
                self._handler()
        return self._trace


@pytest.mark.timeout(600)
def test_an_interrupt_at_each_line(own_sidecar: Callable[..., Sidecar]) -> None:
    """Wherever it strikes, what was read is not lost, and the session goes on."""
    sidecar = own_sidecar()
    with Client(sidecar.socket) as client, Client(sidecar.socket) as other:
        lock = client.lock("r")
        n = 0
        struck = True
        while struck:
            n += 1
            session = left_to_callers(client)
            struck, held = False, None
            try:
                with Strike(n) as strike:
                    held = lock.acquire()
                    held.release()
            except KeyboardInterrupt:
                struck = strike.left == 0
            if held is not None and held.count:
                held.release()
            try:
                other.lock("r", wait=PATIENCE).acquire().release()
            except locksidecar.WaitTimeout:
                pytest.fail(f"the lock is left: {strike.where}")
            eventually(f"all are answered: {strike.where}", lambda: not session.core.calls and not session.core.inbox)
            assert not session.core.holds and session.error is None, strike.where
        assert n > 100


def test_what_a_caller_leaves_to_the_thread() -> None:
    """It takes grants and releases of its own, in whole lines, and nothing else."""

    def granted(call_id: str) -> bytes:
        grant = dict(lockId=f"l{call_id}", resource="r", mode="EXCLUSIVE", fence="1", validFor="9s", countedAt=f"{boot_time()}s")
        return json.dumps({"requestId": call_id, "granted": grant}).encode() + b"\n"

    def sidecar_with(rest: Callable[[str, str], bytes]) -> tuple[bool, Core, list[bool]]:
        sidecar = OneSidecar()
        mine, other = sidecar.ask("a"), sidecar.ask("b")
        came = rest(mine.id, other.id)
        sidecar.core.inbox.append(came)
        took = sidecar.core.take_own(mine)
        assert took != bool(sidecar.core.inbox), "what was not taken stays"
        sidecar.core.take()
        return took, sidecar.core, [mine.done, other.done]

    assert sidecar_with(lambda mine, other: granted(mine))[0::2] == (True, [True, False])
    for leaves, done in (
        (lambda mine, other: granted(other), [False, True]),
        (lambda mine, other: granted(mine) + granted(other), [True, True]),
        (lambda mine, other: granted(mine) + granted(other)[:9], [True, False]),
        (lambda mine, other: json.dumps({"requestId": mine, "error": {"message": "m"}}).encode() + b"\n", [True, False]),
        (lambda mine, other: b'{"event":{"draining":{}}}\n' + granted(mine), [True, False]),
    ):
        took, core, are = sidecar_with(leaves)
        assert not took and are == done
        hold = next(iter(core.holds.values()), None)
        assert hold is None or isinstance(hold, Hold)
