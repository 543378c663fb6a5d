"""One app session: what this process holds, and when that ends."""

from __future__ import annotations

import itertools
import math
import os
import threading
from collections.abc import Mapping
from typing import Any

from ._clock import SidecarClock, boot_time
from ._errors import (
    LockLost,
    LockSidecarError,
    NoSidecar,
    NotHolder,
    SessionClosed,
    SessionNotFound,
    SidecarGone,
    SidecarSilent,
)
from ._hold import Hold
from ._model import Acquire, Call, Downgrade, Grant, Transport, Wanted, seconds

# A clock that goes on in suspend is looked at this often: the timers of threads
# stand still meanwhile.
_MAX_LOOK = 1.0
# How long the sidecar may take at most to say that max_hold is over, see Hold.silent_at.
_MAX_SLACK = 0.25
# A try waits 2 s for the store, a release too; the rest is for a busy machine.
_STORE_LIMIT = 2.0
_PATIENCE = 3.0


class Session:
    """A session and its transport. Any thread and any task may use it."""

    def __init__(self, transport: Transport, name: str, metadata: Mapping[str, str]) -> None:
        self.pid = os.getpid()
        # Reentrant, as a signal handler may look at a hold while this very thread does.
        self.mutex = threading.RLock()
        self.changed = threading.Condition(self.mutex)
        self.error: LockSidecarError | None = None  # why it ended
        self._news = (-math.inf, 0.0)  # of the lease: when it was counted, its end on our clock
        self.slack = 0.0
        self.jeopardy = False
        self.draining = threading.Event()
        self._transport = transport
        self._clock = SidecarClock()
        self._holds: dict[str, Hold] = {}
        self._asking: set[Call] = set()  # acquires on their way
        self._early: dict[str, LockLost] = {}  # losses that came before their grants
        self._looks_at = math.inf
        self._ids = itertools.count(1)

        request: dict[str, Any] = {"name": name, "metadata": dict(metadata)}
        try:
            sent, opened = transport.open(request, self)
            self.id = str(opened["sessionId"])
            self._clock.answered(sent, seconds(opened["countedAt"]))
            self.slack = min(_MAX_SLACK, seconds(opened.get("leaseMargin")) / 2)
            threading.Thread(target=self._watch, name="locksidecar-clock", daemon=True).start()
        except BaseException:  # an interrupt, too
            transport.drop()
            raise

    # Operations. Each has a form for threads and one for tasks; what is not waiting
    # is the same.

    def prepare(self, wanted: Wanted) -> Call:
        """An acquire that has not started."""
        return Call(Acquire(wanted, str(next(self._ids))))

    def acquire(self, call: Call) -> Hold:
        try:
            timeout = self._begin_acquire(call)
            return self._granted(call, self._transport.call(call, timeout))
        except BaseException as e:
            raise self._acquire_failed(call, e) from e.__cause__
        finally:
            self._end_acquire(call)

    async def acquire_async(self, call: Call) -> Hold:
        try:
            timeout = self._begin_acquire(call)
            return self._granted(call, await self._transport.call_async(call, timeout))
        except BaseException as e:
            raise self._acquire_failed(call, e) from e.__cause__
        finally:
            self._end_acquire(call)

    def release(self, entry: Call) -> int:
        """Release what an acquire has got; how many times its owner must still do so.

        LockLost, NotHolder. After an interrupt either nothing has happened, and the
        entry is still in hold.entered, or it is carried out in the background.
        """
        call = _release(entry)
        try:
            self._begin_release(entry)
            self._transport.call(call, _STORE_LIMIT + _PATIENCE)
            return self._released(entry)
        except BaseException as e:
            raise self._release_failed(entry, call, e) from e.__cause__

    async def release_async(self, entry: Call) -> int:
        call = _release(entry)
        try:
            self._begin_release(entry)
            await self._transport.call_async(call, _STORE_LIMIT + _PATIENCE)
            return self._released(entry)
        except BaseException as e:
            raise self._release_failed(entry, call, e) from e.__cause__

    def downgrade(self, entry: Call) -> None:
        call = Call(Downgrade(entry.hold.lock_id))
        try:
            self._begin_change(entry)
            self._downgraded(entry.hold, call, self._transport.call(call, _STORE_LIMIT + _PATIENCE))
        except LockSidecarError as e:
            raise self._explained(entry.hold, e) from e.__cause__

    async def downgrade_async(self, entry: Call) -> None:
        call = Call(Downgrade(entry.hold.lock_id))
        try:
            self._begin_change(entry)
            self._downgraded(entry.hold, call, await self._transport.call_async(call, _STORE_LIMIT + _PATIENCE))
        except LockSidecarError as e:
            raise self._explained(entry.hold, e) from e.__cause__

    def give_up(self, entry: Call) -> None:
        """Release in the background, once, what an interrupt has left behind."""
        if entry.hold is not None and not entry.undone:
            entry.undone = True
            self._released(entry)
            self.let_go(entry)

    def let_go(self, entry: Call) -> None:
        """Release a hold that is lost, or that nobody wants, in the background."""
        if self.error is None:
            self._transport.abandon(_release(entry))

    def close(self, timeout: float = _STORE_LIMIT + _PATIENCE) -> None:
        """Release everything, and wait until the sidecar has done so."""
        if self.end(
            SessionClosed("this process has closed its session"),
            "SESSION_CLOSED",
            "this process has closed its session",
        ):
            self._transport.close(timeout)

    # What the operations have in common.

    def _begin_acquire(self, call: Call) -> float | None:
        """How long the answer may take."""
        assert isinstance(call.operation, Acquire)
        wait = call.operation.wanted.wait
        with self.mutex:
            if isinstance(self.error, SessionClosed):
                raise self.error.again()
            if self.error is not None:  # since the caller got it: another will do
                raise SessionNotFound(self.error.message)
            self._asking.add(call)
        if wait is None:
            return None
        return (wait if wait > 0 else _STORE_LIMIT) + _PATIENCE

    def _end_acquire(self, call: Call) -> None:
        with self.mutex:
            self._asking.discard(call)
            if not self._asking:
                self._early.clear()

    def _granted(self, call: Call, answer: Mapping[str, Any]) -> Hold:
        assert isinstance(call.operation, Acquire)
        grant = Grant.read(answer)
        max_hold = call.operation.wanted.max_hold
        with self.mutex:
            if self.error is not None:
                raise self.error.again()
            self._clock.answered(call.sent, grant.counted_at)
            until = self._clock.until(grant.counted_at, grant.valid_for)
            hold = self._holds.get(grant.lock_id)
            if hold is None:
                hold = self._holds[grant.lock_id] = Hold(self, grant)
            call.hold = hold
            hold.entered.add(call)
            hold.mode = grant.mode
            hold.until = max(hold.until, until)
            self._prolong(hold)  # news may overtake the grant
            if max_hold is not None:
                limit = self._clock.until(grant.counted_at, max_hold)
                hold.limit = limit if hold.limit is None else min(hold.limit, limit)
            if early := self._early.get(grant.lock_id):
                self._lose(hold, early)
            elif hold.silent_at() < self._looks_at:
                self.changed.notify()
            return hold

    def _acquire_failed(self, call: Call, e: BaseException) -> BaseException:
        """See that nothing is left behind, and find the error to tell."""
        if call.hold is not None:  # interrupted after the grant was noted
            self.give_up(call)
        elif self.error is None and (not call.answered or not isinstance(e, LockSidecarError)):
            self._transport.abandon(call)
        return self._ended(e)

    def _begin_change(self, entry: Call) -> None:
        hold: Hold = entry.hold
        if (problem := hold.look()) is not None:
            raise problem.again()
        if entry not in hold.entered:
            raise NotHolder(f"the lock on {hold.resource!r} was released before")
        if self.error is not None:
            raise self.error.again()

    def _begin_release(self, entry: Call) -> None:
        if entry.hold.look() is not None:
            self.let_go(entry)  # ends its grace
        self._begin_change(entry)

    def _release_failed(self, entry: Call, call: Call, e: BaseException) -> BaseException:
        # After an interrupt, or the cancellation of a task, it goes on without us.
        if not isinstance(e, LockSidecarError) and call.sent:
            if not call.answered:  # the sidecar may never read what it was sent
                self._transport.abandon(call)
            self._released(entry)
        return self._explained(entry.hold, e)

    def _explained(self, hold: Hold, e: BaseException) -> BaseException:
        e = self._ended(e)
        with self.mutex:
            if isinstance(e, LockLost):
                self._lose(hold, e)
            if isinstance(e, (LockLost, SessionNotFound, SidecarGone, NoSidecar)) and hold.problem is not None:
                return hold.problem.again()
        return e

    def _ended(self, e: BaseException) -> BaseException:
        """The reason why the session ended, where e is only a sign of that."""
        if isinstance(e, SessionNotFound):
            ours = self.gone("the sidecar has ended the session")
            if not isinstance(self.error, SessionClosed):
                return e  # whoever heard of it first
        elif isinstance(e, SidecarGone):
            ours = self.gone(e.message)
        elif isinstance(e, NoSidecar) and isinstance(e.__cause__, (ConnectionRefusedError, FileNotFoundError)):
            ours = self.gone("the sidecar is gone")
        else:
            ours = not isinstance(e, SidecarSilent)
        if not ours and self.error is not None:
            return self.error.again()
        return e

    def _released(self, entry: Call) -> int:
        hold: Hold = entry.hold
        with self.mutex:
            hold.entered.discard(entry)
            if not hold.entered:
                self._holds.pop(hold.lock_id, None)
            return hold.count

    def _downgraded(self, hold: Hold, call: Call, answer: Mapping[str, Any]) -> None:
        grant = Grant.read(answer)
        with self.mutex:
            self._clock.answered(call.sent, grant.counted_at)
            hold.mode = grant.mode

    # News. The transport calls these.

    def news(self, event: Mapping[str, Any]) -> None:
        with self.mutex:
            if lease := event.get("lease"):
                counted_at = seconds(lease["countedAt"])
                self._news = counted_at, self._clock.until(counted_at, seconds(lease["validFor"]))
                for hold in self._holds.values():
                    self._prolong(hold)
                self.jeopardy = bool(lease.get("jeopardy"))
            elif lost := event.get("lost"):
                problem = LockLost(
                    f"the lock on {lost['resource']!r} is lost: {lost['message']}",
                    lost_reason=str(lost["reason"]),
                    grace_end=self._clock.until(seconds(lost["countedAt"]), seconds(lost["grace"])),
                )
                known = self._holds.get(lost["lockId"])
                if known is not None:
                    self._lose(known, problem)
                elif self._asking:
                    self._early[lost["lockId"]] = problem
            elif "draining" in event:
                self.draining.set()

    def _prolong(self, hold: Hold) -> None:
        """News are for what was held when they were counted: a later hold may be on another lease."""
        counted_at, until = self._news
        if counted_at >= hold.counted_at:
            hold.until = max(hold.until, until)

    def gone(self, why: str) -> bool:
        return self.end(SidecarGone(why), "SIDECAR_GONE", why)

    def end(self, error: LockSidecarError, lost_reason: str, message: str) -> bool:
        """End it, once: everything is lost, and nobody waits any more."""
        with self.mutex:
            if self.error is not None:
                return False
            self.error = error
            for hold in list(self._holds.values()):
                self._lose(
                    hold,
                    LockLost(f"the lock on {hold.resource!r} is lost: {message}", lost_reason=lost_reason),
                )
            self.changed.notify()
        if not isinstance(error, SessionClosed):  # else after the sidecar has been told
            self._transport.drop()
        return True

    def silence(self, hold: Hold) -> None:
        """Its end is there and nothing was heard. mutex is held."""
        if hold.limit is not None and hold.silent_at() >= hold.limit:
            lost_reason, message = "MAX_HOLD", "it was held longer than its max_hold"
        else:
            lost_reason, message = "SIDECAR_SILENT", "the sidecar was not heard of in time"
        self._lose(
            hold,
            LockLost(f"the lock on {hold.resource!r} is lost: {message}", lost_reason=lost_reason),
        )

    def _lose(self, hold: Hold, problem: LockLost) -> None:
        hold.lose(problem)
        self._holds.pop(hold.lock_id, None)

    def _watch(self) -> None:
        """One thread notices the ends of all holds."""
        with self.changed:
            while self.error is None:
                now = boot_time()
                next_end = now + _MAX_LOOK
                for hold in list(self._holds.values()):
                    end = hold.silent_at()
                    if end <= now:
                        self.silence(hold)
                    else:
                        next_end = min(next_end, end)
                # Without holds it sleeps until one is granted. It looks for that only
                # now, so that locks that come and go wake it once a second at most.
                self._looks_at = next_end if self._holds else math.inf
                self.changed.wait(next_end - now if self._holds else None)

    # Fork.

    def forked(self) -> None:
        """In a child: the session is the parent's, and so are its holds.

        Only the thread that forked goes on in a child, and locks of the others stay
        as they were at that moment. So everything is made again.
        """
        self.mutex = threading.RLock()
        self.changed = threading.Condition(self.mutex)
        message = "this process is a child of the one that holds it"
        self.error = SessionClosed(message)
        for hold in list(self._holds.values()):
            hold.forked(LockLost(f"the lock on {hold.resource!r} is lost: {message}", lost_reason="FORKED"))
        self._transport.forget()


def _release(entry: Call) -> Call:
    """The release of what an acquire has got."""
    assert isinstance(entry.operation, Acquire)
    hold: Hold = entry.hold
    return Call(entry.operation.release(hold.lock_id))
