"""One app session: what threads and tasks ask for, each in its own form, and how they wait for the answer.

The connection is in _connection.py.
"""

from __future__ import annotations

import asyncio
import os
import threading
import time
from collections.abc import Mapping

from ._call import Call, release_of
from ._clock import boot_time
from ._connection import IN_THE_MIDDLE, PATIENCE, STORE_LIMIT, Connection
from ._core import PING_AFTER
from ._errors import LimitExceeded, LockSidecarError, SessionClosed, SessionNotFound, SidecarGone, SidecarSilent, WaitTimeout
from ._hold import Bell
from ._model import Detached, duration
from ._reading import PAUSE
from ._ticks import Ticks

# When it is late, who waits for an answer that stands unread looks for it after each such step, and so many times.
_SOON = 0.01
_MOST_LATE = int(PATIENCE / _SOON)


class Session(Connection):
    """Any thread and any task may use it."""

    def __init__(self, path: str, name: str, metadata: Mapping[str, str], loop_wait: float) -> None:
        self._ticks: dict[asyncio.AbstractEventLoop, Ticks] = {}
        super().__init__(path, name, metadata, loop_wait)

    def _do(self, call: Call, timeout: float | None) -> None:
        self._post(call)
        self._wait(call, timeout)

    async def _do_async(self, call: Call, timeout: float | None) -> None:
        self._post(call)
        await self._wait_async(call, timeout)

    def _wait(self, call: Call, timeout: float | None) -> None:
        """Wait for the answer to what was sent."""
        self.read_own(call)
        if not call.done:
            self._wait_long(call, timeout)
        if call.error is not None:
            raise call.error

    def _wait_long(self, call: Call, timeout: float | None) -> None:
        bell = Bell()
        call.wake = bell.ring
        end = None if timeout is None else time.monotonic() + timeout
        while not call.done:
            step = self._step(call, end)
            if self._thread is None:
                self._pump(step)
            else:
                bell.wait(step)
            if not call.done:
                self._tick()

    async def _wait_async(self, call: Call, timeout: float | None) -> None:
        if not self.read_at_once(call, asyncio.get_running_loop()):
            await self._wait_long_async(call, timeout)
        if call.error is not None:
            raise call.error

    def read_at_once(self, call: Call, loop: asyncio.AbstractEventLoop) -> bool:
        """Read the answer to a task of this loop, if it comes within the time of a turn of that."""
        reading, calls = self._reading, self.core.calls
        if not reading.left or not reading.moment or len(calls) != 1:
            return call.done
        ticks = self._ticks.get(loop) or self._new_ticks(loop)
        if not ticks.hurries():
            return call.done
        if not reading.comes_at_once(reading.moment):
            ticks.missed()
        elif not self._take_what_is_there(call) or calls:
            reading.call()
        return call.done

    async def _wait_long_async(self, call: Call, timeout: float | None) -> None:
        loop = asyncio.get_running_loop()
        ticks = self._ticks.get(loop) or self._new_ticks(loop)
        answered: asyncio.Future[None] = loop.create_future()

        def done() -> None:
            if not answered.done():
                answered.set_result(None)

        def wake() -> None:
            if asyncio._get_running_loop() is loop:  # which has read it itself
                done()
                return
            try:
                loop.call_soon_threadsafe(done)
            except RuntimeError:
                pass  # the loop is closed: nobody waits

        def pause() -> float:
            step = self._step(call, end)
            return step if self._thread is not None else min(step, PAUSE)

        call.wake, call.home = wake, loop
        self._read_in(loop)
        end = None if timeout is None else time.monotonic() + timeout
        try:
            ticks.add(answered, pause)
            if not call.done:
                await answered
        finally:
            ticks.remove(answered)

    def _new_ticks(self, loop: asyncio.AbstractEventLoop) -> Ticks:
        def tick() -> None:
            if self._thread is None:  # nobody else reads
                self._pump(0.0)
            self._tick()

        with self.mutex:
            for closed in [one for one in self._ticks if one.is_closed()]:
                self._ticks.pop(closed)
            ticks = self._ticks[loop] = Ticks(loop, tick)
        return ticks

    def _step(self, call: Call, end: float | None) -> float:
        """For how long to wait at a time. SidecarSilent, WaitTimeout, LimitExceeded: long enough."""
        step = PING_AFTER
        if call.deadline is not None and not call.id:
            with self.mutex:
                if self.core.waits_here(call):
                    if (left := call.deadline - boot_time()) <= 0:
                        raise self._over_here(call)
                    step = min(step, left)
        if end is not None:
            left = end - time.monotonic()
            if left <= 0:
                # Steps, and not time: this process may have been stopped among them, as it may have been until the end.
                if call.late >= _MOST_LATE or not (self._unread() or call.done):  # it may just have been read
                    raise self._too_late(call)
                call.late += 1
                left = _SOON  # who reads has only to come to it
            step = min(step, left)
        return step

    def _over_here(self, call: Call) -> WaitTimeout:
        assert call.wanted is not None
        message = "the wait is over: too many of this process wait before this one"
        return WaitTimeout(message, metadata={"resource": ", ".join(call.wanted.resources)})

    def _too_late(self, call: Call) -> LockSidecarError:
        with self.mutex:
            if not self.core.waits_here(call):
                return SidecarSilent("the sidecar did not answer in time; it may be frozen")
            message = "more of this process wait than the sidecar takes at a time, and none of them was answered"
            return LimitExceeded(message, metadata={"limit": "waiters", "max": str(self.core.limit)})

    def send(self, call: Call) -> None:
        """Send an acquire. SessionNotFound: the session has ended. Another one will do."""
        core, wanted = self.core, call.wanted
        if (error := core.error) is not None:
            raise error.again() if isinstance(error, SessionClosed) else SessionNotFound(error.message)
        assert wanted is not None
        now = boot_time()
        if wanted.wait:
            call.deadline = now + wanted.wait
        mutex = self.mutex
        if mutex._is_owned():  # type: ignore[attr-defined] # see _interrupted
            raise RuntimeError(IN_THE_MIDDLE)
        with mutex:
            if core.calls or core.outbox[0] or core.error is not None:
                core.post(call)
                self._flush()
            elif not core.post_alone(call, wanted.rest, now, self._out.send):
                self._flush()

    def take(self, call: Call) -> None:
        """Wait for what an acquire gets that was sent, and read_own has not read.

        SessionNotFound: the session had ended before. Another one will do.
        """
        try:
            if not call.done:
                self._wait_long(call, _limit(call))
            if call.error is not None:
                raise call.error
        except SidecarGone as e:
            raise _unsent(call, e) from None

    async def take_async(self, call: Call) -> None:
        """Wait for what an acquire gets that was sent, and read_at_once has not read. Errors as of take."""
        try:
            if not call.done:
                await self._wait_long_async(call, _limit(call))
            if call.error is not None:
                raise call.error
        except SidecarGone as e:
            raise _unsent(call, e) from None

    def abandon(self, call: Call) -> None:
        """Nobody wants what an acquire gets or has got: in the background, once."""
        with self.mutex:
            if self.pid == os.getpid() and self.core.error is None:
                self.core.abandon(call)
                self._flush()

    def send_release(self, entry: Call) -> Call | None:
        """Send the release: from now on nobody relies on the hold, whatever becomes of the call. LockLost, NotHolder.

        The sidecar carries it out in any case, be it late. None: not now, see release_elsewhere.
        """
        mutex, hold, core = self.mutex, entry.hold, self.core
        if mutex._is_owned():  # type: ignore[attr-defined] # see _interrupted
            return None
        assert hold is not None
        # With the mutex it could not wait for what has come. The app has done nothing under the lock since.
        hold.look()
        with mutex:
            now = boot_time()
            problem = hold.problem
            entered = entry in hold.entered
            if problem is None and not entered:
                raise hold.not_held()
            call = release_of(entry)
            if entered and self.pid == os.getpid():
                # First, as in Core.release; also of what is lost: that ends its grace.
                if core.calls or core.outbox[0] or core.error is not None:
                    core.post(call)
                    self._flush()
                elif not core.post_alone(call, call.rest, now, self._out.send):
                    self._flush()
                core.left(entry)
            if problem is not None:
                raise problem.again()
            return call

    def release_elsewhere(self, entry: Call) -> int:
        """In a thread, which has its turn when the request that was interrupted has gone on."""
        hold = entry.hold
        assert hold is not None
        if (problem := hold.look()) is not None:
            raise problem.again()
        if entry not in hold.entered:
            raise hold.not_held()
        left = hold.count - 1  # now: the thread may be quick
        threading.Thread(target=self.abandon, args=(entry,), name="locksidecar-release", daemon=True).start()
        return left

    def released(self, call: Call) -> int:
        """Wait until it is released, where read_own has not read that; how many times its owner must still do so."""
        if not call.done:
            self._wait_long(call, STORE_LIMIT + PATIENCE)
        if call.error is not None:
            raise call.error
        return int(call.answer["released"]["count"])

    async def released_async(self, call: Call) -> int:
        if not call.done:
            await self._wait_long_async(call, STORE_LIMIT + PATIENCE)
        if call.error is not None:
            raise call.error
        return int(call.answer["released"]["count"])

    def conclude(self, entry: Call, outcome: str, note: str) -> None:
        """Release with the outcome of something that is done once."""
        call = self._begin_conclude(entry, outcome, note)
        self._do(call, STORE_LIMIT + PATIENCE)
        self._concluded(entry)

    async def conclude_async(self, entry: Call, outcome: str, note: str) -> None:
        call = self._begin_conclude(entry, outcome, note)
        await self._do_async(call, STORE_LIMIT + PATIENCE)
        self._concluded(entry)

    def _begin_conclude(self, entry: Call, outcome: str, note: str) -> Call:
        if self.pid != os.getpid():
            assert entry.hold is not None and entry.hold.problem is not None
            raise entry.hold.problem.again()
        assert entry.hold is not None
        return Call("release", {"lockId": entry.hold.lock_id, "outcome": outcome, "note": note}, about=entry.hold)

    def _concluded(self, entry: Call) -> None:
        with self.mutex:
            self.core.left(entry)

    def _begin_change(self, entry: Call, kind: str, **fields: str) -> Call:
        hold = entry.hold
        assert hold is not None
        if (problem := hold.look()) is not None:
            raise problem.again()
        if entry not in hold.entered:
            raise hold.not_held()
        return Call(kind, {"lockId": hold.lock_id, **fields}, about=hold)

    def downgrade(self, entry: Call) -> None:
        self._do(self._begin_change(entry, "downgrade"), STORE_LIMIT + PATIENCE)

    async def downgrade_async(self, entry: Call) -> None:
        await self._do_async(self._begin_change(entry, "downgrade"), STORE_LIMIT + PATIENCE)

    def extend(self, entry: Call, max_hold: float) -> None:
        self._do(self._begin_change(entry, "extend", maxHold=duration(max_hold)), STORE_LIMIT + PATIENCE)

    async def extend_async(self, entry: Call, max_hold: float) -> None:
        await self._do_async(self._begin_change(entry, "extend", maxHold=duration(max_hold)), STORE_LIMIT + PATIENCE)

    def detach(self, entry: Call, ttl: float) -> Detached:
        """Take off the session what an acquire has got, see Held.detach."""
        call = self._begin_change(entry, "detach", ttl=duration(ttl))
        try:
            self._do(call, STORE_LIMIT + PATIENCE)
            return Detached.read(call.answer["detached"], call.sent)
        except BaseException:
            self._keep_no_handle(call)
            raise

    async def detach_async(self, entry: Call, ttl: float) -> Detached:
        call = self._begin_change(entry, "detach", ttl=duration(ttl))
        try:
            await self._do_async(call, STORE_LIMIT + PATIENCE)
            return Detached.read(call.answer["detached"], call.sent)
        except BaseException:
            self._keep_no_handle(call)
            raise

    def _keep_no_handle(self, call: Call) -> None:
        with self.mutex:
            if self.pid == os.getpid() and self.core.error is None:
                self.core.keep_no_handle(call)
                self._flush()


def _limit(call: Call) -> float | None:
    """How long the answer to an acquire may take."""
    assert call.wanted is not None
    wait = call.wanted.wait
    return None if wait is None else (wait or STORE_LIMIT) + PATIENCE


def _unsent(call: Call, e: SidecarGone) -> LockSidecarError:
    return SessionNotFound(e.message) if call.unsent else e
