"""Locks that can be taken: `with`, `async with`, `acquire`."""

from __future__ import annotations

import itertools
import threading
import weakref
from collections.abc import Callable
from os import getpid
from types import TracebackType
from typing import TYPE_CHECKING, Any, overload

from ._aio import current_task, running_task
from ._call import NOTHING, Call
from ._entered import Entered
from ._errors import InvalidRequest, LockHeld, NotHolder, SessionNotFound, WaitTimeout
from ._held import AsyncHeld, Held
from ._model import Detached, Mode, Once, Seconds, Wanted, given_handle, given_limit, given_mode, given_once, given_seconds, given_text

if TYPE_CHECKING:
    from ._client import Client
    from ._session import Session


class Lock:
    """A lock that can be taken, again and again, by `with`, `async with`, or acquire.

    Each acquire stands alone, unless it is reentrant: a thread or task that asks for
    what it has waits for itself.

    At the end of a block that has lost its lock, LockLost is raised (unless the
    block itself raises something): its work may not have been alone.

    A hold belongs to its block, and not to the thread or task that entered: the block may
    be left in another. Where blocks of one Lock overlap, in one thread or after a change of
    threads, the innermost is left first; `with lock.acquire():` has no such rule.

    A Lock can be pickled: the copy asks the same sidecar for the same lock, and holds nothing.
    """

    def __init__(
        self,
        client: Client,
        resource: str | tuple[str, ...],
        *,
        mode: Mode | str = Mode.EXCLUSIVE,
        wait: Seconds | None = None,
        owner: str | None = None,
        reentrant: bool = False,
        max_hold: Seconds | None = None,
        min_hold: Seconds | None = None,
        once: Once | None = None,
        limit: int | None = None,
        detachable: bool = False,
        handle: Detached | str | None = None,
        cancel_on_lost: bool = False,
    ) -> None:
        self._client = client
        self._resources = (resource,) if isinstance(resource, str) else tuple(resource)
        for name in self._resources:
            given_text("resource", name)
        self.resource = ", ".join(self._resources)
        self.limit = given_limit(limit)
        self.mode = given_mode(mode, self.limit)
        self.wait = given_seconds("wait", wait)
        self.owner = owner if owner is None else given_text("owner", owner)
        self.reentrant = reentrant
        self.max_hold = given_seconds("max_hold", max_hold)
        self.min_hold = given_seconds("min_hold", min_hold)
        self.once = once if once is None else given_once(once)
        self.detachable = detachable
        self._handle = "" if handle is None else given_handle(handle)
        self.cancel_on_lost = cancel_on_lost
        self._taken: Entered[Held] = Entered(forgets=True)  # by acquire
        self._blocks: Entered[Held] = Entered()
        self._blocks_async: Entered[AsyncHeld] = Entered()
        self._asked: tuple[weakref.ref[object], tuple[object, ...], Wanted] | None = None  # who has asked last, and how

    def __reduce__(self) -> tuple[Any, ...]:
        options = dict(
            mode=self.mode,
            wait=self.wait,
            owner=self.owner,
            reentrant=self.reentrant,
            max_hold=self.max_hold,
            min_hold=self.min_hold,
            once=self.once,
            limit=self.limit,
            detachable=self.detachable,
            handle=self._handle or None,
            cancel_on_lost=self.cancel_on_lost,
        )
        return _restore, (self._client, self._resources, options)

    def __repr__(self) -> str:
        return f"<Lock {self.mode.value} {self.resource!r}>" if not self._handle else "<Lock of a handle>"

    @overload
    def acquire(self) -> Held: ...

    @overload
    def acquire(self, blocking: bool, timeout: Seconds | None = None) -> Held | None: ...

    @overload
    def acquire(self, blocking: bool = True, *, timeout: Seconds | None) -> Held | None: ...

    def acquire(self, blocking: bool | None = None, timeout: Seconds | None = None) -> Held | None:
        """Take it. What this returns is released by its own release, by `with`, or by `release` here.

        LockHeld: wait=0, and not free. WaitTimeout. NoSidecar, SidecarGone,
        SidecarSilent, StoreUnavailable, UpgradeRefused, LimitExceeded, InvalidRequest.
        With an error, an interrupt too, nothing is taken and nothing is left behind.

        With blocking or timeout it is as in threading: None where it is not free in time.
        """
        if blocking is None and timeout is None:
            return self._acquire(self.wait, self._taken)
        if timeout == -1:
            timeout = None
        if blocking is False and timeout is not None:
            raise InvalidRequest("a try has no timeout", metadata={"field": "timeout"})
        try:
            wait = 0.0 if blocking is False else given_seconds("timeout", timeout)
            return self._acquire(wait, self._taken)
        except (LockHeld, WaitTimeout):
            return None

    def _acquire(self, wait: float | None, noted: Entered[Held], got: list[Held] | None = None) -> Held:
        # An interrupt can strike between any two steps, also when the lock is ours and nobody has it yet.
        session: Session | None = None
        call: Call | None = None
        again, client = False, self._client
        try:
            thread = threading.current_thread()
            while True:
                session = client._session
                if session is None or session.core.error is not None or session.pid != getpid():
                    session = client.session()
                call = Call("acquire", NOTHING, self._wanted(wait, "thread", thread))
                try:
                    session.send(call)
                    held = Held(session, call, thread)  # while the sidecar answers
                    session.read_own(call)
                    if not call.done or call.error is not None:
                        session.take(call)
                    assert call.hold is not None
                    held._hold = call.hold
                    if noted is self._taken:
                        held._noted = noted
                    if noted:
                        noted.push(held)
                    else:
                        noted.append(held)
                    if got is not None:
                        got.append(held)
                    return held
                except SessionNotFound:  # it had ended, and we had not heard of that yet
                    if again and not call.unsent:
                        raise
                    again = True
                    wait = call.wait_left(wait)
        except BaseException:
            if session is not None and call is not None:
                session.abandon(call)
            raise

    async def acquire_async(self) -> AsyncHeld:
        """The same for a task. Cancelling it ends the wait."""
        return await self._acquire_async(None)

    async def _acquire_async(self, noted: Entered[AsyncHeld] | None) -> AsyncHeld:
        session: Session | None = None
        call: Call | None = None
        again, wait, client, task = False, self.wait, self._client, current_task()
        try:
            while True:
                session = client._session
                if session is None or session.core.error is not None or session.pid != getpid():
                    session = await client.session_async()
                call = Call("acquire", NOTHING, self._wanted(wait, "task", task))
                try:
                    session.send(call)
                    held = AsyncHeld(session, call, task)  # while the sidecar answers
                    if not session.read_at_once(call, held._home) or call.error is not None:
                        await session.take_async(call)
                    assert call.hold is not None
                    held._hold = call.hold
                    if noted is not None:
                        if self.cancel_on_lost:
                            held._cancel_on_lost()
                        noted.push(held)
                    return held
                except SessionNotFound:
                    if again and not call.unsent:
                        raise
                    again = True
                    wait = call.wait_left(wait)
        except BaseException:
            if session is not None and call is not None:
                session.abandon(call)
            raise

    def release(self) -> None:
        """Release what acquire has taken last, here or in another thread. NotHolder: there is nothing."""
        self._taken.forget_released()
        held = self._taken.innermost(threading.current_thread())
        if held is None:
            raise NotHolder(f"the lock on {self.resource!r} is not held by this Lock")
        held.release()

    def locked(self) -> bool:
        """Whether somebody holds it, here or anywhere else. Not of a handle: who attaches it learns what it locks."""
        if self._handle:
            raise InvalidRequest("what the handle locks is not known before it is attached", metadata={"field": "handle"})
        return any(self._client.held(name) for name in self._resources)

    def _wanted(self, wait: float | None, kind: str, who: object) -> Wanted:
        how = self.mode, wait, self.owner, self.reentrant, self.max_hold, self.once, self.limit, self.min_hold, self.detachable
        asked = self._asked
        if asked is not None and asked[0]() is who and asked[1] == how:
            return asked[2]
        wanted = Wanted(
            self._resources,
            self.mode,
            wait,
            self.owner if self.owner is not None else _label(kind, who),
            self.reentrant,
            self.max_hold,
            self.once,
            self.limit,
            self.min_hold,
            self.detachable,
            self._handle,
        )
        self._asked = weakref.ref(who), how, wanted
        return wanted

    def __enter__(self) -> Held:
        got: list[Held] = []
        try:
            return self._acquire(self.wait, self._blocks, got)
        except BaseException:  # an interrupt: in Python 3.10 also just after the return
            for held in got:
                held._session.abandon(held._entry)
                self._blocks.drop(held)
            raise

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        held: Held | None = None
        try:
            held = self._blocks.innermost(threading.current_thread())
            if held is not None:
                held.__exit__(kind, error, traceback)
        except BaseException:  # an interrupt, at any step, must not leave it held
            held = held or self._blocks.innermost(threading.current_thread())
            if held is not None:
                held._session.abandon(held._entry)
            raise
        finally:
            self._blocks.drop(held)

    async def __aenter__(self) -> AsyncHeld:
        return await self._acquire_async(self._blocks_async)

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        held: AsyncHeld | None = None
        try:
            held = self._blocks_async.innermost(running_task())
            self._blocks_async.drop(held)  # now: another may leave one while this one waits
            if held is not None:
                await held.__aexit__(kind, error, traceback)
        except BaseException:  # an interrupt, as in __exit__
            held = held or self._blocks_async.innermost(running_task())
            if held is not None:
                held._session.abandon(held._entry)
            raise
        finally:
            self._blocks_async.drop(held)


def _restore(client: Client, resources: tuple[str, ...], options: dict[str, Any]) -> Lock:
    return Lock(client, resources, **options)


class RWLock:
    """Two locks on one resource: many may read, one may write."""

    def __init__(self, make: Callable[[Mode], Lock]) -> None:
        self._make = make

    def read(self) -> Lock:
        """Beside other readers."""
        return self._make(Mode.SHARED)

    def write(self) -> Lock:
        """Alone. Who reads cannot have it too: it waits for itself, or, if reentrant, UpgradeRefused."""
        return self._make(Mode.EXCLUSIVE)


# Labels are numbers that no other thread or task of the process ever has: what the
# system calls them is given to the next when one ends.
_numbers = itertools.count(1)
_labels: weakref.WeakKeyDictionary[object, str] = weakref.WeakKeyDictionary()


def _label(kind: str, who: object) -> str:
    label = _labels.get(who)
    if label is None:
        label = _labels.setdefault(who, f"{kind}:{next(_numbers)}")
    return label
