"""Locks as an app sees them: `with`, `async with`, and what it gets there."""

from __future__ import annotations

import asyncio
import itertools
import logging
import threading
import weakref
from types import TracebackType
from typing import TYPE_CHECKING, Generic, TypeVar

from ._aio import AsyncLostEvent
from ._errors import LockLost, LockSidecarError, NotHolder, SessionNotFound
from ._hold import Hold, LostEvent
from ._model import Call, Guard, Mode, Wanted

if TYPE_CHECKING:
    from ._client import Client
    from ._session import Session

_log = logging.getLogger("locksidecar")


class _Held:
    """What Held and AsyncHeld have in common: everything that does not wait."""

    def __init__(self, entry: Call) -> None:
        self._entry = entry
        self._hold: Hold = entry.hold

    @property
    def _released(self) -> bool:
        return self._entry not in self._hold.entered

    @property
    def resource(self) -> str:
        return self._hold.resource

    @property
    def mode(self) -> Mode:
        return self._hold.mode

    @property
    def fence(self) -> int:
        """The fencing token: larger than that of every earlier exclusive grant of the resource.

        Send it with every write, and let the receiver refuse a smaller one than it has seen.
        """
        return self._hold.fence

    @property
    def guard(self) -> Guard | None:
        """Where the store is a database: a statement for the app's own transaction there."""
        return self._hold.guard

    @property
    def lock_id(self) -> str:
        return self._hold.lock_id

    @property
    def count(self) -> int:
        """How many times this owner has entered (1, unless reentrant); 0 when it has left."""
        return self._hold.count

    @property
    def jeopardy(self) -> bool:
        """The store does not answer: nothing is lost yet, but begin nothing long."""
        return self._hold.session.jeopardy

    def valid_for(self) -> float:
        """For how many seconds the lock may be relied on without further news.

        Counted on this machine's boot-time clock; never too long. 0 when it is lost.
        """
        return 0.0 if self._released else self._hold.valid_for()

    @property
    def problem(self) -> LockLost | None:
        """Why it is lost, or None."""
        return self._hold.look()

    def check(self) -> None:
        """Raise LockLost if it is lost. Cheap: call it before every write."""
        if (problem := self._hold.check()) is not None:
            raise problem.again()

    def _leave(self, failed: bool) -> bool:
        """At the end of a block: whether it is to be released. LockLost, unless the block failed itself."""
        if self._released:
            return False
        if (problem := self._hold.look()) is not None:
            self._hold.session.give_up(self._entry)  # ends the grace
            if not failed:
                raise problem.again()
            return False
        return True

    def _not_released(self, e: LockSidecarError) -> None:
        """The release at the end of a block has failed. The work was done under the lock."""
        if not isinstance(e, NotHolder):
            self._hold.session.give_up(self._entry)
            _log.warning("the lock on %r is free a little later: %s", self.resource, e)

    def __repr__(self) -> str:
        state = "released" if self._released else "lost" if self._hold.problem else "held"
        return f"<{type(self).__name__} {self.mode.value} {self.resource!r} fence={self.fence} {state}>"


class Held(_Held):
    """A lock that is held."""

    @property
    def lost(self) -> LostEvent:
        """A threading.Event: set when the lock is lost, and not by a release."""
        return self._hold.lost

    def release(self) -> int:
        """Release once, from any thread; how many times this owner must still do so.

        LockLost: it was lost before. NotHolder: it was released before.
        """
        return self._hold.session.release(self._entry)

    def downgrade(self) -> None:
        """Turn writing into reading without letting go."""
        self._hold.session.downgrade(self._entry)

    def _exit(self, failed: bool) -> None:
        try:
            if self._leave(failed):
                self.release()
        except LockLost:
            if not failed:
                raise
        except LockSidecarError as e:
            self._not_released(e)


class AsyncHeld(_Held):
    """A lock that a task holds."""

    def __init__(self, entry: Call) -> None:
        super().__init__(entry)
        self._lost = AsyncLostEvent(self._hold)

    @property
    def lost(self) -> AsyncLostEvent:
        """An asyncio.Event: set when the lock is lost, and not by a release."""
        return self._lost

    async def release(self) -> int:
        """Release once, in any task; how many times this owner must still do so.

        A cancelled release is carried out all the same. Errors as of Held.release.
        """
        try:
            return await self._hold.session.release_async(self._entry)
        finally:
            if self._released:
                self._lost.forget()

    async def downgrade(self) -> None:
        """Turn writing into reading without letting go."""
        await self._hold.session.downgrade_async(self._entry)

    async def _exit(self, failed: bool) -> None:
        try:
            if self._leave(failed):
                await self.release()
        except LockLost:
            if not failed:
                raise
        except LockSidecarError as e:
            self._not_released(e)
        except asyncio.CancelledError:  # before the release started
            if not self._released:
                self._hold.session.give_up(self._entry)
            raise


class Lock:
    """A lock that can be taken, again and again, by `with`, `async with`, or acquire.

    Each acquire stands alone, unless it is reentrant: a thread or task that asks for
    what it has waits for itself.

    At the end of a block that has lost its lock, LockLost is raised (unless the
    block itself raises something): its work may not have been alone.
    """

    def __init__(
        self,
        client: Client,
        resource: str,
        *,
        mode: Mode = Mode.EXCLUSIVE,
        wait: float | None = None,
        owner: str | None = None,
        reentrant: bool = False,
        max_hold: float | None = None,
    ) -> None:
        self._client = client
        self.resource = resource
        self.mode = mode
        self.wait = wait
        self.owner = owner
        self.reentrant = reentrant
        self.max_hold = max_hold
        self._threads: _Entered[threading.Thread, Held] = _Entered()
        self._tasks: _Entered[asyncio.Task[object], AsyncHeld] = _Entered()

    def acquire(self) -> Held:
        """Take it; release what this returns.

        LockHeld: wait=0, and not free. WaitTimeout. NoSidecar, SidecarGone,
        SidecarSilent, StoreUnavailable, UpgradeRefused, LimitExceeded, InvalidRequest.
        With an error, an interrupt too, nothing is taken and nothing is left behind.
        """
        entry = _Entry()
        try:
            return self._acquire(entry)
        except BaseException:
            entry.undo()
            raise

    def _acquire(self, entry: _Entry) -> Held:
        while True:
            session = entry.session = self._client.session()
            call = entry.call = session.prepare(self._wanted("thread", threading.current_thread()))
            try:
                session.acquire(call)
                return Held(call)
            except SessionNotFound:  # it had ended, and we had not heard of that yet
                if entry.again:
                    raise
                entry.again = True

    async def acquire_async(self) -> AsyncHeld:
        """The same for a task. Cancelling it ends the wait."""
        again = False
        while True:
            session = await self._client.session_async()
            call = session.prepare(self._wanted("task", _current_task()))
            try:
                await session.acquire_async(call)
                return AsyncHeld(call)
            except SessionNotFound:
                if again:
                    raise
                again = True

    def _wanted(self, kind: str, who: object) -> Wanted:
        owner = self.owner if self.owner is not None else _label(kind, who)
        return Wanted(self.resource, self.mode, self.wait, owner, self.reentrant, self.max_hold)

    def __enter__(self) -> Held:
        entry = _Entry()
        try:
            held = self._acquire(entry)
            self._threads.push(threading.current_thread(), held)
            return held
        except BaseException:
            entry.undo()
            raise

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        held: Held | None = None
        try:
            held = self._threads.pop(threading.current_thread())
            held._exit(kind is not None)
        except BaseException:
            if held is not None and not held._released:  # an interrupt must not leave it held
                held._hold.session.give_up(held._entry)
            raise

    async def __aenter__(self) -> AsyncHeld:
        held = await self.acquire_async()
        self._tasks.push(_current_task(), held)
        return held

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self._tasks.pop(_current_task())._exit(kind is not None)


class RWLock:
    """Two locks on one resource: many may read, one may write."""

    def __init__(
        self,
        client: Client,
        resource: str,
        *,
        wait: float | None = None,
        owner: str | None = None,
        reentrant: bool = False,
        max_hold: float | None = None,
    ) -> None:
        self._client = client
        self.resource = resource
        self._wait = wait
        self._owner = owner
        self._reentrant = reentrant
        self._max_hold = max_hold

    def read(self) -> Lock:
        """Beside other readers."""
        return self._lock(Mode.SHARED)

    def write(self) -> Lock:
        """Alone. Who reads cannot have it too: it waits for itself, or, if reentrant, UpgradeRefused."""
        return self._lock(Mode.EXCLUSIVE)

    def _lock(self, mode: Mode) -> Lock:
        return Lock(
            self._client,
            self.resource,
            mode=mode,
            wait=self._wait,
            owner=self._owner,
            reentrant=self._reentrant,
            max_hold=self._max_hold,
        )


class _Entry:
    """An acquire on its way to the caller.

    An interrupt (a signal's exception) can strike between any two steps, also when
    the lock is ours and nobody has it yet.
    """

    session: Session | None = None
    call: Call | None = None
    again = False

    def undo(self) -> None:
        if self.session is not None and self.call is not None:
            self.session.give_up(self.call)


H = TypeVar("H", bound=_Held)
O = TypeVar("O")


class _Entered(Generic[O, H]):
    """Which thread or task is in which blocks of one Lock."""

    def __init__(self) -> None:
        self._stacks: weakref.WeakKeyDictionary[O, list[H]] = weakref.WeakKeyDictionary()

    def push(self, who: O, held: H) -> None:
        self._stacks.setdefault(who, []).append(held)

    def pop(self, who: O) -> H:
        stack = self._stacks.get(who)
        if not stack:
            raise RuntimeError("the end of a block in a thread or task that has not entered it")
        return stack.pop()


# Labels are numbers that no other thread or task of the process ever has: what the
# system calls them is given to the next when one ends.
_numbers = itertools.count(1)
_labels: weakref.WeakKeyDictionary[object, str] = weakref.WeakKeyDictionary()


def _label(kind: str, who: object) -> str:
    label = _labels.get(who)
    if label is None:
        label = _labels.setdefault(who, f"{kind}:{next(_numbers)}")
    return label


def _current_task() -> asyncio.Task[object]:
    task = asyncio.current_task()
    if task is None:
        raise RuntimeError("async with a lock needs a task of asyncio")
    return task
