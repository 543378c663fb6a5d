"""What an app has while it holds a lock."""

from __future__ import annotations

import asyncio
import logging
import warnings
import weakref
from collections.abc import Callable, Mapping
from types import TracebackType
from typing import TYPE_CHECKING, Any

from ._aio import AsyncLostEvent, Canceller, running_task
from ._call import RELEASED
from ._errors import LockLost, LockSidecarError, NotHolder, SidecarGone
from ._hold import Hold, LostEvent
from ._model import Detached, Guard, Mode, Part, Seconds, given_seconds, given_text, given_ttl

if TYPE_CHECKING:
    from ._call import Call
    from ._entered import Entered
    from ._session import Session

_log = logging.getLogger("locksidecar")


class _Held:
    """What Held and AsyncHeld have in common: everything that does not wait."""

    _hold: Hold  # when the acquire has got it

    def __init__(self, session: Session, entry: Call, who: object) -> None:
        self._session = session
        self._entry = entry
        self._who = weakref.ref(who)  # the thread or the task

    @property
    def _released(self) -> bool:
        return self._entry not in self._hold.entered

    @property
    def resource(self) -> str:
        """What is locked; of several, their names with commas."""
        return self._hold.resource

    @property
    def mode(self) -> Mode:
        return self._hold.mode

    @property
    def fence(self) -> int:
        """The fencing token: larger than that of every earlier exclusive grant of the resource.

        Send it with every write, and let the receiver refuse a smaller one than it has
        seen. Of several resources each has its own: see parts.
        """
        return self._hold.fence

    @property
    def parts(self) -> tuple[Part, ...]:
        """Of several resources: the fence and the guard of each, in byte order; else empty."""
        return self._hold.parts

    @property
    def slot(self) -> int | None:
        """Of a permit: which of them it is, from 0; no other one that is held has it. Else None."""
        return self._hold.grant.get("slot")

    @property
    def guard(self) -> Guard | None:
        """Where the store is a database: a statement for the app's own transaction there."""
        return Guard.read(self._hold.grant.get("guard"))

    @property
    def lock_id(self) -> str:
        return self._hold.lock_id

    @property
    def count(self) -> int:
        """How many times this owner has entered (1, unless reentrant); 0 when it has left."""
        return self._hold.count

    @property
    def attempt(self) -> int:
        """Of something that is done once: which attempt this is; 1 is the first, 0: it is not `once`."""
        return int(self._hold.grant.get("attempt") or 0)

    @property
    def previous(self) -> Mapping[str, Any] | None:
        """Of something that is done once: what became of the attempt before, as in the API; None: none is known.

        Its `state` is `FAILED`, or `UNKNOWN` where nobody said how it ended: then ask first
        whether it was done.
        """
        return self._hold.grant.get("previous")

    @property
    def outcome_guard(self) -> Guard | None:
        """Of something that is done once, on a database: records the success in the app's own transaction."""
        return Guard.read(self._hold.grant.get("outcomeGuard"))

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
        """Raise unless the lock is still ours. Cheap: call it before every write.

        LockLost: it is lost. NotHolder: it was released, or detached.
        """
        if (problem := self._hold.check()) is not None:
            raise problem.again()
        if self._released:
            raise self._hold.not_held()

    def _leave(self, failed: bool) -> bool:
        """At the end of a block: whether it is to be released. LockLost, unless the block failed itself."""
        if self._released:
            return False
        if (problem := self._hold.look()) is not None:
            self._session.abandon(self._entry)  # ends the grace
            if not failed:
                raise problem.again()
            return False
        return True

    def _late(self, e: LockSidecarError) -> None:
        """The release at the end of a block was not answered. The work was done under the lock."""
        if not isinstance(e, (NotHolder, SidecarGone)):
            _log.warning("the lock on %r is free a little later: %s", self.resource, e)

    def __repr__(self) -> str:
        state = "lost" if self._hold.problem else self._hold.left_by if self._released else "held"
        return f"<{type(self).__name__} {self.mode.value} {self.resource!r} fence={self.fence} {state}>"

    def __del__(self) -> None:
        try:
            hold = self._hold
        except AttributeError:  # its acquire has failed
            return
        if hold.problem is None and self._entry in hold.entered:
            warnings.warn(
                f"the lock on {hold.resource!r} was never released, and is held until the process ends",
                ResourceWarning,
                source=self,
            )


class Held(_Held):
    """A lock that is held. `with lock.acquire() as held:` releases it at the end of the block."""

    _noted: Entered[Held] | None = None  # by the Lock it was taken with

    @property
    def lost(self) -> LostEvent:
        """A threading.Event: set when the lock is lost, and not by a release."""
        return self._hold.lost

    def on_lost(self, callback: Callable[[LockLost], object]) -> None:
        """Call back once, in a thread of its own, when the lock is lost, or at once where it is."""

        def run() -> None:
            problem = self._hold.problem
            assert problem is not None
            callback(problem)

        def start() -> None:
            self._session.tell(run)

        self._hold.look()  # with the mutex it could not wait for what has come
        with self._hold.session.mutex:
            if self._hold.problem is None:
                self._hold.listen(start)
                return
        start()

    def release(self) -> int:
        """Release once, from any thread; how many times this owner must still do so.

        LockLost: it was lost before. NotHolder: it was released before. After any other
        error it is released all the same, be it late.
        """
        session, entry = self._session, self._entry
        call = session.send_release(entry)
        if call is None:
            return session.release_elsewhere(entry)
        noted = self._noted
        if noted is not None:
            try:
                noted.remove(self)
            except ValueError:
                pass
        session.read_own(call)
        return 0 if call.answer is RELEASED else session.released(call)

    def downgrade(self) -> None:
        """Turn writing into reading without letting go."""
        self._session.downgrade(self._entry)

    def extend(self, max_hold: Seconds) -> None:
        """Let the hold end so many seconds from now, whatever its max_hold was before."""
        self._session.extend(self._entry, given_seconds("max_hold", max_hold) or 0.0)

    def detach(self, ttl: Seconds) -> Detached:
        """Let it live for so many seconds (1 to 86400) in the store, whatever becomes of this process and its sidecar.

        Of a lock that is `detachable`, or attached. Whoever has the handle of what this returns can
        attach it, with the same fence: see Client.attach. Here it is over then, as after release.

        InvalidRequest, LimitExceeded: it stays. LockLost. NotHolder: it was released, or detached,
        before. After any other error it is lost, and free soon: nobody has its handle.
        """
        return self._session.detach(self._entry, given_ttl(ttl))

    def succeeded(self, note: str = "") -> None:
        """Of something that is done once: record that it is done, and release. It is not done again.

        LockLost: somebody else has started, and nothing is recorded. StoreUnavailable,
        SidecarSilent: it may be recorded or not, and the lock stays: say it again.
        """
        self._session.conclude(self._entry, "SUCCEEDED", given_text("note", note))

    def failed(self, note: str = "") -> None:
        """Of something that is done once: record that nothing was done, and release."""
        self._session.conclude(self._entry, "FAILED", given_text("note", note))

    def __enter__(self) -> Held:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        try:
            if self._leave(kind is not None):
                self.release()
        except LockLost:
            if kind is None:
                raise
        except LockSidecarError as e:
            self._late(e)
        except BaseException:  # an interrupt must not leave it held
            self._session.abandon(self._entry)
            raise


class AsyncHeld(_Held):
    """A lock that a task holds. `async with await lock.acquire_async() as held:` releases it."""

    _lost: AsyncLostEvent | None = None  # made for who asks
    _canceller: Canceller | None = None

    def __init__(self, session: Session, entry: Call, who: asyncio.Task[object]) -> None:
        super().__init__(session, entry, who)
        self._home = who.get_loop()

    def _cancel_on_lost(self) -> None:
        self._canceller = Canceller(self._hold)

    @property
    def lost(self) -> AsyncLostEvent:
        """An asyncio.Event: set when the lock is lost, and not by a release."""
        if self._lost is None:
            self._lost = AsyncLostEvent(self._hold, self._home)
        return self._lost

    def _forget(self) -> None:
        if self._lost is not None:
            self._lost.forget()

    async def release(self) -> int:
        """Release once, in any task; how many times this owner must still do so.

        A cancelled release is carried out all the same. Errors as of Held.release.
        """
        try:
            call = self._session.send_release(self._entry)
            if call is None:
                return self._session.release_elsewhere(self._entry)
            if self._session.read_at_once(call, asyncio.get_running_loop()) and call.answer is RELEASED:
                return 0
            return await self._session.released_async(call)
        finally:
            if self._lost is not None and self._released:
                self._lost.forget()

    async def downgrade(self) -> None:
        """Turn writing into reading without letting go."""
        await self._session.downgrade_async(self._entry)

    async def extend(self, max_hold: Seconds) -> None:
        """See Held.extend."""
        await self._session.extend_async(self._entry, given_seconds("max_hold", max_hold) or 0.0)

    async def detach(self, ttl: Seconds) -> Detached:
        """See Held.detach. Cancelled, it is lost and free soon."""
        try:
            return await self._session.detach_async(self._entry, given_ttl(ttl))
        finally:
            if self._released:
                self._forget()

    async def succeeded(self, note: str = "") -> None:
        """See Held.succeeded."""
        await self._session.conclude_async(self._entry, "SUCCEEDED", given_text("note", note))

    async def failed(self, note: str = "") -> None:
        """See Held.failed."""
        await self._session.conclude_async(self._entry, "FAILED", given_text("note", note))

    async def __aenter__(self) -> AsyncHeld:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        failed = True
        try:
            stopped = self._canceller is not None and self._canceller.leave(error)
            failed = kind is not None and not stopped
            if self._leave(failed):
                if running_task() is None:  # its coroutine was dropped: who closes it cannot wait
                    self._session.abandon(self._entry)
                else:
                    await self.release()
        except LockLost:
            if not failed:
                raise
        except LockSidecarError as e:
            self._late(e)
        except BaseException:  # a cancellation before the release started, or an interrupt
            self._session.abandon(self._entry)
            raise
        finally:
            self._forget()
