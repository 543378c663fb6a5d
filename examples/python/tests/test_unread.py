"""What stands unread when a hold, or a wait, seems to be over: it is read first, and puts off no loss.

Here the client's clock jumps, as for a process that was stopped, and its sidecar is not late.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from sidecars import PATIENCE, Relay, Sidecar, eventually
from test_reading import left_to_callers

from locksidecar import Client, LockLost
from locksidecar._call import Call
from locksidecar._clock import boot_time
from locksidecar._connection import _MOST_PUT_OFF, Connection
from locksidecar._reading import readable
from locksidecar._session import Session

Start = Callable[..., Sidecar]
_STOPPED = 1000.0


class Stopped:
    """A client that is stopped for longer than a lease lives, while its sidecar goes on."""

    def __init__(self, relay: Relay, monkeypatch: pytest.MonkeyPatch) -> None:
        self.client = Client(relay.socket)
        self._relay = relay
        self._ahead = 0.0
        for module in ("_call", "_connection", "_core", "_hold", "_session"):
            monkeypatch.setattr(f"locksidecar.{module}.boot_time", lambda: boot_time() + self._ahead)

    def past_the_end(self, held: Any) -> None:
        """Afterwards there is news that stands unread, and came in time."""
        hold, session = held._hold, held._session
        # Counted while the client was stopped, and so later than all that it has been granted.
        lease = {"validFor": f"{2 * _STOPPED}s", "countedAt": f"{hold.counted_at + _STOPPED / 2:.9f}s"}
        self._relay.say({"event": {"lease": lease}})
        eventually("news", lambda: readable(session._in, 0.0))
        self._ahead += _STOPPED
        assert hold.until < boot_time() + self._ahead


@pytest.fixture
def stopped(own_sidecar: Start, monkeypatch: pytest.MonkeyPatch) -> Iterator[Stopped]:
    with Relay(own_sidecar(ttl="600s")) as relay:
        stopped = Stopped(relay, monkeypatch)
        with stopped.client:
            yield stopped


@contextlib.contextmanager
def nobody_reads(session: Session, monkeypatch: pytest.MonkeyPatch, late: float = 0.3) -> Iterator[None]:
    """The thread that reads comes to it so long after somebody has called it."""
    stands, comes = threading.Event(), threading.Event()
    receive, call = session._receive, session._reading.call
    called: list[float] = []

    def stand_still(timeout: float | None) -> bytes | None:
        stands.set()
        comes.wait(PATIENCE)
        return receive(timeout)

    def called_now() -> None:
        called.append(time.monotonic())
        if called[-1] - called[0] >= late:
            comes.set()
        call()

    with monkeypatch.context() as patch:
        patch.setattr(session, "_receive", stand_still)
        patch.setattr(session._reading, "call", called_now)
        try:
            assert stands.wait(PATIENCE)
            called.clear()
            yield
        finally:
            comes.set()


@pytest.mark.parametrize("how", ["check", "on_lost", "release", "block", "release_async"])
def test_news_that_stand_unread_are_read_before_a_loss_is_told(
    stopped: Stopped, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    session = stopped.client.session()
    told: list[LockLost] = []

    async def in_a_task() -> None:
        held = await stopped.client.lock("stopped").acquire_async()
        with nobody_reads(session, monkeypatch):
            stopped.past_the_end(held)
            await held.release()

    if how == "release_async":
        asyncio.run(in_a_task())
        return
    with contextlib.ExitStack() as stack:
        with stopped.client.lock("stopped") as held:
            stack.enter_context(nobody_reads(session, monkeypatch))
            stopped.past_the_end(held)
            if how == "check":
                held.check()
            elif how == "on_lost":
                held.on_lost(told.append)
            elif how == "release":
                held.release()
        assert held.problem is None and not told


def test_news_that_come_while_the_thread_looks_are_read_first(stopped: Stopped, monkeypatch: pytest.MonkeyPatch) -> None:
    """It has just seen that nothing is over, and the process is stopped."""
    with stopped.client.lock("stopped") as held:
        core = stopped.client.session().core
        is_due = core.is_due
        looks: list[bool] = []

        def stopped_after_that(*args: float) -> bool:
            due = is_due(*args)
            if not due and not looks:
                stopped.past_the_end(held)
            looks.append(due)
            return due

        monkeypatch.setattr(core, "is_due", stopped_after_that)
        eventually("looks", lambda: len(looks) > 2)
        assert held._hold.problem is None
        held.check()


class Slow:
    """A socket from which a caller reads, and then is stopped before it says what."""

    def __init__(self, real: socket.socket, stop: Callable[[], None]) -> None:
        self._real, self._stop = real, stop

    def __getattr__(self, name: str) -> Any:
        return getattr(self._real, name)

    def recv(self, size: int, *flags: int) -> bytes:
        data = self._real.recv(size, *flags)
        if not flags:  # not by the thread
            self._stop()
        return data


@pytest.mark.parametrize("where", ["before recv", "in recv"])
def test_a_caller_whose_turn_it_is_stands_still(stopped: Stopped, monkeypatch: pytest.MonkeyPatch, where: str) -> None:
    """It has read the news, or keeps the thread from that. The thread waits for it, and tells no loss meanwhile."""
    session = left_to_callers(stopped.client)
    core, reading = session.core, session._reading
    held = stopped.client.lock("stopped").acquire()
    is_due, take_own, watch = core.is_due, core.take_own, reading.watch
    looks, stood = 0, False

    def looked(now: float) -> bool:
        nonlocal looks
        due = is_due(now)
        looks += due
        return due

    def stop(taken: Callable[[], object] = lambda: None) -> None:
        nonlocal stood
        if not stood:
            stood = True
            stopped.past_the_end(held)
            taken()
            eventually("the thread waits", lambda: looks > 3 * _MOST_PUT_OFF or held._hold.problem is not None)

    def stopped_before_that() -> None:
        stop()
        watch()

    monkeypatch.setattr(core, "is_due", looked)
    if where == "before recv":
        monkeypatch.setattr(reading, "watch", stopped_before_that)
    else:
        real = session._in
        rest: list[bytes] = []  # of what recv gives

        def with_the_rest(home: object) -> bool:
            while rest:
                core.inbox.append(rest.pop())
            return take_own(home)

        monkeypatch.setattr(session, "_in", Slow(real, lambda: stop(lambda: rest.append(real.recv(65536)))))
        monkeypatch.setattr(core, "take_own", with_the_rest)

    def pairs() -> bool:
        for _ in range(10):
            stopped.client.lock("other").acquire().release()
        return stood

    eventually("a caller stood still", pairs)
    assert looks > 3 * _MOST_PUT_OFF and held._hold.problem is None
    held.check()
    held.release()


class Stops:
    """A mutex before which the process is stopped, once."""

    def __init__(self, mutex: Any, stop: Callable[[], None]) -> None:
        self._mutex, self._stop = mutex, stop

    def __enter__(self) -> None:
        stop, self._stop = self._stop, lambda: None
        stop()
        self._mutex.acquire()

    def __exit__(self, *_: object) -> None:
        self._mutex.release()


def test_who_has_seen_that_it_is_not_over_is_stopped(stopped: Stopped, monkeypatch: pytest.MonkeyPatch) -> None:
    """What it has seen counts, and not the clock after that."""
    held = stopped.client.lock("stopped", max_hold=2 * _STOPPED).acquire()
    core = held._session.core
    with nobody_reads(held._session, monkeypatch):
        with monkeypatch.context() as patch:
            patch.setattr(core, "mutex", Stops(core.mutex, lambda: stopped.past_the_end(held)))
            held.check()
    held.release()


def test_who_releases_is_stopped_before_that_is_sent(stopped: Stopped, monkeypatch: pytest.MonkeyPatch) -> None:
    held = stopped.client.lock("stopped").acquire()
    look, looks = held._hold.look, 0

    def stopped_after_that() -> LockLost | None:
        nonlocal looks
        looks += 1
        lost = look()
        if looks == 1:
            stopped.past_the_end(held)
        return lost

    with nobody_reads(held._session, monkeypatch, late=0):
        monkeypatch.setattr(held._hold, "look", stopped_after_that)
        held.release()


def test_where_no_thread_reads_who_looks_does(stopped: Stopped, monkeypatch: pytest.MonkeyPatch) -> None:
    start = threading.Thread.start

    def none_can_be_started(thread: threading.Thread) -> None:
        if thread.name == "locksidecar":
            raise RuntimeError("can't start new thread")
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", none_can_be_started)
    held = stopped.client.lock("stopped").acquire()
    assert held._session._thread is None
    stopped.past_the_end(held)
    held.check()
    held.release()


def test_who_opens_a_session_is_stopped_before_it_reads(sidecar: Sidecar, monkeypatch: pytest.MonkeyPatch) -> None:
    looks: list[float] = []
    post = Connection._post

    class Clock:
        @staticmethod
        def monotonic() -> float:
            looks.append(time.monotonic() + (_STOPPED if looks else 0.0))
            return looks[-1]

    def answered(self: Connection, call: Call) -> None:
        post(self, call)
        assert readable(self._in, PATIENCE)

    with monkeypatch.context() as patch:
        patch.setattr(Connection, "_post", answered)
        patch.setattr("locksidecar._connection.time", Clock)
        client = Client(sidecar.socket)
        client.open()
    client.close()


def test_who_waits_is_stopped_twice(stopped: Stopped, monkeypatch: pytest.MonkeyPatch) -> None:
    """Until its time is over, and once more before anybody has read the answer."""
    monotonic, ahead = time.monotonic, 0.0

    class Clock:
        @staticmethod
        def monotonic() -> float:
            return monotonic() + ahead

    monkeypatch.setattr("locksidecar._session.time", Clock)
    held = stopped.client.lock("stopped").acquire()
    session = held._session
    with nobody_reads(session, monkeypatch):
        call, end = Call("keepAlive", {}), monotonic() + 1
        session._post(call)
        eventually("an answer", lambda: readable(session._in, 0.0))
        for _ in range(2):
            ahead += _STOPPED
            assert session._step(call, end) > 0
    held.release()


def test_a_stream_of_other_news_does_not_put_off_a_loss(own_sidecar: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    sidecar = own_sidecar(ttl="1s")
    monkeypatch.setattr("locksidecar._connection._MOST_STEPS", 1 << 30)
    with Client(sidecar.socket) as client:
        session = client.session()
        held = client.lock("r").acquire()
        hold = held._hold
        sidecar.freeze()
        news, pieces = b'{"event":{"other":{}}}\n' * 2800, 0  # as much as it reads at a time

        def more(timeout: float | None) -> bytes:
            nonlocal pieces
            pieces += boot_time() > hold.end() and hold.problem is None
            time.sleep(0.001)
            session.core.inbox.append(news)
            return news

        monkeypatch.setattr(session, "_receive", more)
        monkeypatch.setattr(session, "_unread", lambda: True)
        began = time.monotonic()
        with pytest.raises(LockLost):
            while time.monotonic() - began < PATIENCE:
                held.check()
                time.sleep(0.001)
        assert time.monotonic() - began < PATIENCE / 2, "who asks waits for the end of the stream"
        assert pieces <= 10, "more than the socket could hold is read first"
        monkeypatch.undo()
