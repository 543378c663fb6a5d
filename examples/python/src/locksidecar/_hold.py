"""One hold, as its session knows it."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from ._clock import boot_time
from ._errors import LockLost, NotHolder
from ._model import Mode, Part

if TYPE_CHECKING:
    from ._call import Call
    from ._holds import Holds


class Bell:
    """Rings once. Who waits may be interrupted at any step, and who rings never blocks.

    threading.Event promises neither: an interrupt in its wait can leave its lock
    locked, and then set() hangs, here in the thread that brings the news.
    """

    def __init__(self) -> None:
        self.rung = False
        self._waiters: list[threading.Lock] = []  # its methods are atomic

    def ring(self) -> None:
        self.rung = True
        while self._waiters:
            try:
                self._waiters.pop().release()
            except (IndexError, RuntimeError):  # another has rung, too
                pass

    def wait(self, timeout: float | None = None) -> bool:
        waiter = threading.Lock()
        waiter.acquire()
        self._waiters.append(waiter)
        try:
            if not self.rung:
                waiter.acquire(timeout=-1 if timeout is None else max(0.0, min(timeout, threading.TIMEOUT_MAX)))
        finally:
            try:
                self._waiters.remove(waiter)
            except ValueError:
                pass
        return self.rung


class LostEvent(threading.Event):
    """Set when the hold is lost; never cleared.

    It looks at the clock itself, so that a process that was stopped for too long
    sees the loss as soon as it asks, and not when a thread has got its turn.
    """

    def __init__(self, hold: Hold) -> None:
        super().__init__()
        self._hold = hold
        self._bell = Bell()

    def is_set(self) -> bool:
        return self._bell.rung or self._hold.look() is not None

    def set(self) -> None:
        self._bell.ring()

    def clear(self) -> None:
        raise RuntimeError("what is lost stays lost")

    def wait(self, timeout: float | None = None) -> bool:
        return self._bell.wait(timeout) or self.is_set()


class Hold:
    """A hold. Everything that changes is guarded by session.mutex."""

    until = 0.0  # as the grants said, and news of the lease that were counted later
    limit: float | None = None  # the end by max_hold
    problem: LockLost | None = None
    left_by = "released"  # or detached: how those who had entered it have left
    parts: tuple[Part, ...] = ()  # where it is several
    listeners: Sequence[Callable[[], None]] = ()  # told of the loss; must not block
    _lost: LostEvent | None = None  # made for who asks: most never do

    def __init__(
        self,
        session: Holds,
        entry: Call,
        lock_id: str,
        resource: str,
        mode: Mode,
        fence: int,
        counted_at: float,
        grant: Mapping[str, Any],
    ) -> None:
        self.session = session
        self.entered = {entry}  # the acquires that are not released yet
        self.lock_id = lock_id
        self.resource = resource
        self.mode = mode
        self.fence = fence
        self.counted_at = counted_at  # of the first grant
        self.grant = grant  # in the API's JSON; what few ask for is read when they do

    @property
    def count(self) -> int:
        return len(self.entered)

    @property
    def lost(self) -> LostEvent:
        with self.session.mutex:
            if self._lost is None:
                self._lost = LostEvent(self)
                if self.problem is not None:
                    self._lost.set()
            return self._lost

    def end(self) -> float:
        """When it is over if nothing is heard any more."""
        return self.until if self.limit is None else min(self.until, self.limit)

    def silent_at(self) -> float:
        """When the sidecar's silence ends it: at its end, or soon after where that is by max_hold.

        There the sidecar may take a moment to say so, half of the margin of its lease at
        most. It keeps others out meanwhile and tells for how much longer, which is better
        news than its silence.
        """
        if self.limit is None:
            return self.until
        end = self.end()
        return end + self.session.slack if end + self.session.slack >= self.limit else end

    def look(self) -> LockLost | None:
        """Whether it is lost, by all that is known, which includes the clock."""
        if self.problem is None and (self.limit is not None or self.until <= boot_time()):
            return self._over(self.silent_at)
        return self.problem

    def check(self) -> LockLost | None:
        """The same for one who is about to rely on it: its end is the end, whatever may be said yet."""
        if self.problem is None and (self.limit is not None or self.until <= boot_time()):
            return self._over(self.end)
        return self.problem

    def _over(self, end: Callable[[], float]) -> LockLost | None:
        session, step = self.session, 0
        while True:
            now = boot_time()  # first: what is over by then has had no news, if nothing stands after that
            if self.problem is not None or not self.entered or end() > now:
                return self.problem
            if not session.settle(step):
                break
            step += 1
        with session.mutex:  # news may come at this moment
            # Not by the clock as it is now: this process may have been stopped since, and its news may stand unread.
            if self.problem is None and self.entered and end() <= now:
                session.silence(self)
            return self.problem

    def valid_for(self) -> float:
        lost = self.look()
        with self.session.mutex:
            if lost is not None or self.problem is not None or not self.entered:
                return 0.0
            return max(0.0, self.end() - boot_time())

    def not_held(self) -> NotHolder:
        """Why one who has left it cannot rely on it."""
        return NotHolder(f"the lock on {self.resource!r} was {self.left_by} before")

    def lose(self, problem: LockLost) -> None:
        """Mark it as lost, once. session.mutex is held."""
        if self.problem is not None:
            return
        problem.lock_id = self.lock_id
        if not self.parts or not problem.resource:  # of several the sidecar names the one
            problem.resource, problem.fence = self.resource, self.fence
        self.problem = problem
        if self._lost is not None:
            self._lost.set()
        for listener in self.listeners:
            listener()

    def listen(self, listener: Callable[[], None]) -> None:
        """Call it when the hold is lost, from any thread. session.mutex is held."""
        self.listeners = [*self.listeners, listener]

    def forget(self, listener: Callable[[], None]) -> None:
        with self.session.mutex:
            self.listeners = [one for one in self.listeners if one != listener]

    def forked(self, problem: LockLost) -> None:
        """In a child: it is the parent's. Whatever lock another thread had here is locked for ever."""
        if self._lost is not None:
            self._lost = LostEvent(self)
        self.listeners = ()
        self.problem = None
        self.lose(problem)
