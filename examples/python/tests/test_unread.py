"""What stands unread when a hold, or a wait, seems to be over: it is read first, and puts off no loss.

Here the client's clock jumps, as for a process that was stopped, and its sidecar is not late.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from sidecars import PATIENCE, Relay, Sidecar, eventually
from test_parts import OneSidecar
from test_reading import left_to_callers

from locksidecar import Client, LockLost
from locksidecar._call import Call
from locksidecar._clock import boot_time
from locksidecar._connection import Connection
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


@pytest.mark.parametrize("when", ["before it looks", "after it has looked"])
def test_a_caller_that_waits_stands_still(stopped: Stopped, monkeypatch: pytest.MonkeyPatch, when: str) -> None:
    """The thread reads all the same, and tells no loss."""
    session = left_to_callers(stopped.client)
    reading = session._reading
    held = stopped.client.lock("stopped").acquire()
    comes_soon = reading.comes_soon
    stood = False

    def stop() -> None:
        nonlocal stood
        if not stood:
            stood = True
            with session.mutex:  # as for a thread that is stopped, too
                stopped.past_the_end(held)
            eventually("the news are read", lambda: held._hold.problem is not None or held._hold.until > boot_time() + _STOPPED)

    def stands_still() -> bool:
        if when == "before it looks":
            stop()
        came = comes_soon()
        stop()
        return came

    monkeypatch.setattr(reading, "comes_soon", stands_still)

    def pairs() -> bool:
        for _ in range(10):
            stopped.client.lock("other").acquire().release()
        return stood

    eventually("a caller stood still", pairs)
    assert held._hold.problem is None
    held.check()
    held.release()


@pytest.mark.parametrize("how", ["check", "valid_for", "problem"])
def test_a_signal_handler_hears_what_stands_unread(stopped: Stopped, how: str) -> None:
    """It has interrupted a request of its own thread, so that nobody can read before it returns."""
    held = stopped.client.lock("stopped").acquire()
    session = held._session
    with session.mutex:  # as any request has it for a moment
        stopped.past_the_end(held)
        if how == "check":
            held.check()
        elif how == "valid_for":
            assert held.valid_for() > 0
        else:
            assert held.problem is None
        assert readable(session._in, 0.0), "it has taken what the interrupted request may be about to take"
    eventually("the thread reads", lambda: not readable(session._in, 0.0) and not session.core.inbox)
    held.check()
    held.release()


def test_a_signal_handler_hears_of_a_loss_before_news_that_are_better(stopped: Stopped) -> None:
    held = stopped.client.lock("stopped").acquire()
    told: list[LockLost] = []
    held.on_lost(told.append)
    lost = {"lockId": held.lock_id, "resource": "stopped", "fence": str(held.fence), "reason": "FORCED", "message": "by the test"}
    lost |= {"grace": "0s", "countedAt": f"{held._hold.counted_at:.9f}s"}
    with held._session.mutex:
        stopped._relay.say({"event": {"lost": lost}})
        stopped.past_the_end(held)
        with pytest.raises(LockLost) as e:
            held.check()
        assert e.value.lost_reason == "FORCED"
    eventually("the thread reads", lambda: not readable(held._session._in, 0.0) and not held._session.core.inbox)
    with pytest.raises(LockLost):
        held.release()
    eventually("told", lambda: bool(told))
    assert len(told) == 1


def test_a_glance_at_halves_of_lines() -> None:
    """What is not whole, or no news, is for who takes it."""
    sidecar = OneSidecar()
    now = boot_time()
    hold = sidecar.grant(10, now)
    news = json.dumps({"event": {"lease": {"validFor": "60s", "countedAt": f"{now + 1}s"}}}).encode() + b"\n"
    core = sidecar.core
    for stands in ([], [news[:30]], [news[30:]], [b"\n"], [b'[]\n"x"\n{"event":7}\n{"event":{"lease":{}}}\n'], [b'{"requestId":"7","granted":{}}\n']):
        core.glance(stands)
    assert hold.until < now + 20 and core.error is None and not core.inbox
    core.feed(news[:30])
    core.glance([news[30:50], news[50:] + b'{"event":'])
    assert now + 59 < hold.until < now + 70
    core.feed(news[30:])
    assert now + 59 < hold.until < now + 70


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
