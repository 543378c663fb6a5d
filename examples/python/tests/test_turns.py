"""The turn to read goes from thread to caller, to loop and back: nobody's answer, and no loss, is left unread."""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import signal
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest
from sidecars import PATIENCE, App, Sidecar, eventually
from test_parts import OneSidecar
from test_reading import left_to_callers

import locksidecar
from locksidecar import Client, LockHeld, LockLost, SessionClosed, WaitTimeout
from locksidecar._call import decode
from locksidecar._reading import Reading

Start = Callable[..., Sidecar]


@pytest.fixture
def changes(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Each time that reading was left to callers, and that the thread took it back."""
    noted: list[str] = []
    leave, come_back = Reading.leave, Reading.come_back

    def left(reading: Reading, answers: int, others: int, due: bool) -> None:
        leave(reading, answers, others, due)
        if reading.left:
            noted.append("left")

    def back(reading: Reading) -> None:
        come_back(reading)
        noted.append("back")

    monkeypatch.setattr(Reading, "leave", left)
    monkeypatch.setattr(Reading, "come_back", back)
    return noted


class Crowd:
    """Threads and tasks of one client that take few locks in all the ways, with pauses in which the turn goes on."""

    def __init__(self, client: Client, sidecar: Sidecar) -> None:
        self._client = client
        self._sidecar = sidecar
        self._stopped = False
        self.busy = threading.Event()  # else they make a pause
        self.busy.set()
        self._inside: dict[str, object] = {}
        self.done = 0
        self.lost = 0
        self.closed = 0
        self.failed: list[BaseException] = []
        self.longest = 0.0
        self._working = [self._thread(seed) for seed in range(5)] + [self._loop(seed) for seed in range(2)]

    def _thread(self, seed: int) -> threading.Thread:
        return threading.Thread(target=self._guarded, args=(self._work, random.Random(seed)), daemon=True)

    def _loop(self, seed: int) -> threading.Thread:
        def run(dice: random.Random) -> None:
            asyncio.run(self._tasks(dice))

        return threading.Thread(target=self._guarded, args=(run, random.Random(100 + seed)), daemon=True)

    def _guarded(self, work: Callable[[random.Random], None], dice: random.Random) -> None:
        try:
            work(dice)
        except SessionClosed:
            self.closed += 1
        except BaseException as e:
            self.failed.append(e)

    def _pause(self, dice: random.Random) -> float:
        """Mostly none; else often just as long as the thread waits before it comes back."""
        return dice.choice((0.0, 0.0, 0.0, 0.0, 0.0, 0.001, 0.004, 0.006, 0.009, 0.012))

    def _enter(self, name: str, who: object) -> None:
        assert self._inside.setdefault(name, who) is who, f"two hold {name}"

    def _leave(self, name: str) -> None:
        del self._inside[name]
        self.done += 1

    def _work(self, dice: random.Random) -> None:
        while not self._stopped:
            assert self.busy.wait(PATIENCE)
            name = f"turns/{dice.randrange(3)}"
            wait = dice.choice((0.0, 0.003, 0.02, PATIENCE, None))
            began = time.monotonic()
            try:
                with self._client.lock(name, wait=wait) as held:
                    self._enter(name, held)
                    try:
                        time.sleep(self._pause(dice) / 4)
                    finally:
                        self._leave(name)
            except (LockHeld, WaitTimeout):
                pass
            except LockLost:
                self.lost += 1
            self.longest = max(self.longest, time.monotonic() - began)
            time.sleep(self._pause(dice))

    async def _tasks(self, dice: random.Random) -> None:
        tasks = (self._task(random.Random(dice.random())) for _ in range(3))
        for ended in await asyncio.gather(*tasks, return_exceptions=True):
            if ended is not None:
                raise ended

    async def _task(self, dice: random.Random) -> None:
        while not self._stopped:
            while not self.busy.is_set():
                await asyncio.sleep(0.001)
            name = f"turns/{dice.randrange(3)}"
            began = time.monotonic()
            one = asyncio.ensure_future(self._block(name, dice))
            if not dice.randrange(4):
                await asyncio.sleep(self._pause(dice))
                one.cancel()
            try:
                await one
            except (LockHeld, WaitTimeout, asyncio.CancelledError):
                pass
            except LockLost:
                self.lost += 1
            self.longest = max(self.longest, time.monotonic() - began)
            await asyncio.sleep(self._pause(dice))

    async def _block(self, name: str, dice: random.Random) -> None:
        async with self._client.lock(name, wait=dice.choice((0.0, 0.003, PATIENCE))) as held:
            self._enter(name, held)
            try:
                await asyncio.sleep(self._pause(dice) / 4)
            finally:
                self._leave(name)

    def force(self) -> None:
        """Losses come at any moment, also while nobody asks. What was forced is free at once, whoever is inside."""
        self._sidecar.http("DELETE", "/v1/locks/lost?grace=0s")

    def start(self) -> None:
        for one in self._working:
            one.start()

    def join(self) -> None:
        self._stopped = True
        for one in self._working:
            one.join(2 * PATIENCE)
            assert not one.is_alive(), "somebody waits for ever"


def test_the_turn_goes_on_all_the_time(own_sidecar: Start, changes: list[str]) -> None:
    sidecar = own_sidecar()
    with Client(sidecar.socket) as client:
        crowd = Crowd(client, sidecar)
        session = client.session()
        crowd.start()
        for _ in range(10):
            crowd.busy.clear()
            left_to_callers(client)
            crowd.busy.set()
            before = changes.count("back")
            eventually("the thread reads again", lambda: changes.count("back") > before)
            held = client.lock("lost", wait=PATIENCE).acquire()
            crowd.force()
            assert held.lost.wait(PATIENCE), "a loss was not told"
            with pytest.raises(LockLost):
                held.release()
            time.sleep(0.3)
        crowd.join()
        assert not crowd.failed and crowd.done > 50 and crowd.longest < PATIENCE
        eventually("all are answered", lambda: not session.core.calls and not session.core.inbox)
        assert session.error is None and client.session() is session and not session.core.holds
        for n in range(3):
            sidecar.expect_queue(f"turns/{n}", 0, 0)


@pytest.mark.parametrize("after", [0.0, 0.05, 0.3])
def test_a_client_that_is_closed_while_the_turn_goes_on(own_sidecar: Start, after: float) -> None:
    sidecar = own_sidecar()
    client = Client(sidecar.socket)
    crowd = Crowd(client, sidecar)
    session = client.session()
    crowd.start()
    time.sleep(after)
    client.close()
    for one in crowd._working:
        one.join(2 * PATIENCE)  # by itself
    assert not crowd.failed and crowd.closed == len(crowd._working)
    assert session._thread is not None and not session._thread.is_alive()
    for n in range(3):
        sidecar.expect_queue(f"turns/{n}", 0, 0)


@pytest.fixture
def asleep(own_sidecar: Start, monkeypatch: pytest.MonkeyPatch) -> Any:
    """A client, and a lock that another has. Who waits for it sleeps for very long, when callers read."""
    monkeypatch.setattr("locksidecar._reading.PAUSE", 10 * PATIENCE)
    sidecar = own_sidecar()
    with Client(sidecar.socket) as client, Client(sidecar.socket) as other:
        held = other.lock("busy").acquire()
        yield client, sidecar, held
        if held.count and not held.lost.is_set():
            with contextlib.suppress(LockLost, locksidecar.SidecarGone, locksidecar.NoSidecar):  # where the test has killed it
                held.release()


class Sleeper:
    """A thread of a client that waits for the lock, asleep."""

    def __init__(self, client: Client) -> None:
        self.got: list[Any] = []
        self._client = client
        self.session = left_to_callers(client)
        self._thread = threading.Thread(target=self._wait, daemon=True)
        self._thread.start()
        eventually("asleep", self._asleep)

    def _wait(self) -> None:
        try:
            self.got.append(self._client.lock("busy", wait=PATIENCE).acquire())
        except locksidecar.LockSidecarError as e:
            self.got.append(e)

    def _asleep(self) -> bool:
        turn = self.session._reading.turn
        if turn.acquire(blocking=False):
            turn.release()
            return False
        return True

    def join(self) -> None:
        self._thread.join(PATIENCE)
        self.got.pop().release()


def test_who_sleeps_keeps_nobody_from_an_answer(asleep: Any) -> None:
    client, _, held = asleep
    sleeper = Sleeper(client)
    client.lock("other", wait=PATIENCE).acquire().release()  # its answer wakes the sleeper, who leaves it to the thread
    assert not sleeper.got and not sleeper.session._reading.left
    held.release()
    sleeper.join()


def test_a_loss_that_wakes_a_caller_is_told(asleep: Any) -> None:
    client, sidecar, held = asleep
    mine = client.lock("mine").acquire()
    sleeper = Sleeper(client)
    sidecar.http("DELETE", "/v1/locks/mine?grace=0s")
    assert mine.lost.wait(PATIENCE) and mine.problem.lost_reason == "FORCED"
    held.release()
    sleeper.join()


def test_a_task_asks_while_a_caller_sleeps(asleep: Any) -> None:
    client, _, held = asleep
    sleeper = Sleeper(client)

    async def main() -> None:
        for _ in range(3):
            async with client.lock("other", wait=PATIENCE):
                pass

    asyncio.run(main())
    held.release()
    sleeper.join()


def test_no_caller_sleeps_in_recv_while_a_loop_reads(asleep: Any) -> None:
    """The loop would have to wait for the turn, which a thread that asks again and again may have nearly always."""
    client, _, held = asleep
    session = left_to_callers(client)
    reading = session._reading
    loop = asyncio.new_event_loop()

    async def pair() -> None:
        async with client.lock("other", wait=PATIENCE):
            pass

    def reads() -> bool:
        if not reading.left:
            client.lock("warm").acquire().release()
        loop.run_until_complete(pair())
        return reading.left and loop in reading.loops

    eventually("the loop reads", reads)
    waiter = threading.Thread(target=lambda: client.lock("busy", wait=PATIENCE).acquire().release())
    waiter.start()
    eventually("it has asked", lambda: any(call.wanted for call in session.core.calls.values()))
    eventually("the thread reads", lambda: not reading.left and not reading.loops)
    assert reading.turn.acquire(blocking=False), "the caller has the turn"
    reading.turn.release()
    loop.run_until_complete(pair())
    loop.close()
    held.release()
    waiter.join(PATIENCE)
    assert not waiter.is_alive()


def test_the_end_of_the_connection_wakes_a_caller(asleep: Any) -> None:
    client, sidecar, _ = asleep
    sleeper = Sleeper(client)
    sidecar.kill()
    eventually("it has ended", lambda: sleeper.session.error is not None)
    sleeper._thread.join(PATIENCE)
    assert isinstance(sleeper.got.pop(), (locksidecar.SidecarGone, locksidecar.NoSidecar))


def test_a_child_reads_though_its_parent_was_asleep_in_recv(asleep: Any) -> None:
    """Whoever had the turn in the parent is not there in a child."""
    client, _, held = asleep
    sleeper = Sleeper(client)
    pid = os.fork()
    if pid == 0:
        try:
            client.lock("child", wait=PATIENCE).acquire().release()
            os._exit(0)
        finally:
            os._exit(1)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    held.release()
    sleeper.join()


STOPPED = """
import sys, threading
import locksidecar, locksidecar._session
locksidecar._session.PATIENCE = 0.5
client = locksidecar.Client()
for _ in range({pairs}):
    client.lock("warm").acquire().release()
print("ready", flush=True)
try:
    print("got", client.lock("stopped", wait=0.5).acquire().count, flush=True)
except locksidecar.LockSidecarError as e:
    print(repr(e), flush=True)
sys.stdin.readline()
"""


@pytest.mark.parametrize("pairs", [0, 50])
def test_an_answer_that_stands_unread_is_no_silence(own_sidecar: Start, pairs: int) -> None:
    """A process that was stopped for longer than it waits finds the answer when it goes on, whoever runs first."""
    sidecar = own_sidecar()
    for _ in range(5):
        with Client(sidecar.socket) as client, App(STOPPED.format(pairs=pairs), sidecar.socket) as app:
            held = client.lock("stopped").acquire()
            app.expect("ready")
            sidecar.expect_queue("stopped", 1, 1)
            app.signal(signal.SIGSTOP)
            held.release()
            time.sleep(1.2)
            app.signal(signal.SIGCONT)
            app.expect("got 1")


@pytest.mark.parametrize("mode", ["EXCLUSIVE", "SHARED"])
def test_the_sidecars_own_words_need_no_json(client: Client, monkeypatch: pytest.MonkeyPatch, mode: str) -> None:
    """Else nobody would see that they have changed: all would work, and take longer."""
    left_to_callers(client)
    read: list[bytes] = []

    def noted(line: bytes) -> Any:
        read.append(line)
        return decode(line)

    monkeypatch.setattr("locksidecar._core.decode", noted)

    def pair() -> bool:
        read.clear()
        held = client.lock("plain", mode=mode).acquire()
        assert held.mode == mode and held.resource == "plain" and held.fence > 0 and held.valid_for() > 0
        held.release()
        return not read

    eventually("a pair without JSON", pair)


GRANT = (
    '{"requestId":"%s","granted":{"lockId":"l1","resource":"r s","mode":"SHARED","fence":"1838960842665501696",'
    '"validFor":"7.066995436s","count":1,"countedAt":"25452.913871594s","parts":[]}}\n'
)


@pytest.mark.parametrize(
    ("was", "now", "plain"),
    [
        ("", "", True),
        ('"SHARED"', '"EXCLUSIVE"', True),
        ('"count":1', '"count":2', True),
        ("r s", "", True),
        ("r s", r"a\"b", False),
        ("r s", r"\u00e4", False),
        ("r s", "ä", False),
        ('"SHARED"', '"PERMIT"', False),
        (',"parts":[]', "", False),
        (',"parts":[]', ',"parts":[],"slot":1', False),
        (',"parts":[]', ',"endsIn":"3s","parts":[]', False),
        ('"l1"', '"l\\u0031"', False),
    ],
)
def test_a_plain_grant_is_read_as_json_reads_it(was: str, now: str, plain: bool) -> None:
    holds = []
    for by_the_caller in (True, False):
        sidecar = OneSidecar()
        call = sidecar.ask("r s")
        line = GRANT.replace(was, now).replace("%s", call.id).encode()
        sidecar.core.inbox.append(line)
        if by_the_caller:
            assert sidecar.core.take_own(call)
            assert (call.hold is not None and not call.hold.grant) == plain
        else:
            sidecar.core.take()
        hold = call.hold
        assert hold is not None and call.done and not sidecar.core.due and sidecar.core.holds == {hold.lock_id: hold}
        holds.append((hold.lock_id, hold.resource, hold.mode, hold.fence, hold.counted_at, hold.until - call.sent))
    assert holds[0][:5] == holds[1][:5]
    assert holds[0][5] == pytest.approx(holds[1][5], abs=1)  # it is counted from when it is read


def test_a_plain_grant_with_numbers_that_are_none() -> None:
    """It is left to the thread, which ends the session."""
    sidecar = OneSidecar()
    call = sidecar.ask()
    sidecar.core.inbox.append(GRANT.replace("7.066", "7.06.6").replace("%s", call.id).encode())
    assert not sidecar.core.take_own(call) and call.hold is None
    with pytest.raises(locksidecar.SidecarGone):
        sidecar.core.take()
