"""One app session: a connection with lines of JSON, and the thread that reads it.

The rules are in _core.py. Here bytes move, callers wait, and forks and signals are met:

* What is sent never blocks. What the sidecar does not take yet stays in the outbox.
* One thread reads, or leaves that to callers, see _reading.py. Where no thread can be started
  any more, as in atexit, callers read everything.
* An interrupt can strike between any two steps of a caller, so each step leaves a state
  that the next caller can go on from.
* A child after a fork has nothing of a session, and touches nothing of it: it closes its
  copies of the sockets, and that is all.
"""

from __future__ import annotations

import asyncio
import os
import select
import socket
import threading
import time
import weakref
from collections.abc import Callable, Mapping

from ._clock import boot_time
from ._core import MAX_LOOK, PING_AFTER, Call, Core, release_of
from ._errors import (
    LockLost,
    LockSidecarError,
    SessionClosed,
    SessionNotFound,
    SidecarGone,
    SidecarSilent,
    WaitTimeout,
)
from ._hold import Bell
from ._model import Detached, Wanted, duration
from ._reading import PAUSE, Reading, readable, ready
from ._socket import connect

# A try waits 2 s for the store, a release too; the rest is for a busy machine.
_STORE_LIMIT = 2.0
_PATIENCE = 3.0
_OPEN_TIMEOUT = 5.0


class Session:
    """Any thread and any task may use it."""

    def __init__(self, path: str, name: str, metadata: Mapping[str, str]) -> None:
        self.pid = os.getpid()
        # Reentrant, as a signal handler may look at a hold while this very thread does.
        self.mutex = threading.RLock()
        self.core = Core(self.mutex)
        self._retired = False
        self._sending = False  # in a thread, what the sidecar did not take at once
        self._untold: list[Callable[[], object]] = []
        self._thread: threading.Thread | None = None
        self._loop: asyncio.AbstractEventLoop | None = None  # which reads at this moment
        self._in = connect(path)
        self._reading = Reading(self._in)
        try:
            if self._reading.shared:
                self._in.setblocking(False)
            self._out = self._in.dup()  # for who sends, and never waits
            self._out.setblocking(False)
            _sessions.add(self)
            self._open(name, metadata)
        except BaseException:  # an interrupt, too
            self._hang_up()
            self._close_sockets()
            raise

    def _open(self, name: str, metadata: Mapping[str, str]) -> None:
        call = Call("open", {"name": name, "metadata": dict(metadata)})
        self._post(call)
        end = time.monotonic() + _OPEN_TIMEOUT
        while not call.done:
            left = end - time.monotonic()
            if left <= 0:
                raise SidecarSilent(_silence(_OPEN_TIMEOUT))
            self._pump(left)
        if call.error is not None:
            raise call.error
        thread = threading.Thread(target=self._run, name="locksidecar", daemon=True)
        try:
            thread.start()
        except RuntimeError:  # the interpreter ends: who waits reads
            return
        self._thread = thread

    @property
    def error(self) -> LockSidecarError | None:
        """Why it has ended."""
        return self.core.error

    # Bytes.

    def _run(self) -> None:
        try:
            self._read()
        except Exception as e:  # as MemoryError: whoever waits, or holds something, is told
            error = SidecarGone(f"this client cannot read what the sidecar says: {e!r}")
            with self.mutex:
                self.core.end(error, "SIDECAR_GONE", error.message)
            raise
        finally:
            if self.pid == os.getpid():
                self._hang_up()
                self._close_sockets()
                for callback in self._untold:  # there is no thread for them but this one
                    callback()

    def _read(self) -> None:
        while self.core.error is None and self.pid == os.getpid():
            if self._reading.left:
                self._reading.wait()
            with self.mutex:
                timeout = self.core.look()
                if self._reading.left and self.core.error is None:
                    self._reading.come_back()
                    continue
                if self._retired:
                    self.retire()
            if self._untold:
                for _ in range(len(self._untold)):
                    self.tell(self._untold.pop(0))
                timeout = MAX_LOOK if timeout is None else min(timeout, MAX_LOOK)
            self._pump(timeout)
        if self.pid == os.getpid() and isinstance(self.core.error, SessionClosed):
            self._read_on(_STORE_LIMIT + _PATIENCE)

    def tell(self, callback: Callable[[], object]) -> None:
        """Call back in a thread of its own, as soon as one can be started."""
        try:
            threading.Thread(target=callback, name="locksidecar-lost", daemon=True).start()
        except RuntimeError:  # there are too many at this moment
            self._untold.append(callback)

    def _read_on(self, timeout: float) -> None:
        """After the end, until the sidecar has released everything."""
        while self._receive(timeout):
            self.core.inbox.clear()

    def _receive(self, timeout: float | None) -> bytes | None:
        """Read once, into the inbox. Empty: the connection ended; None: nothing came in time."""
        try:
            if self._reading.shared:
                if not readable(self._in, timeout):
                    return None
            else:
                self._in.settimeout(timeout)
                data = self._in.recv(65536)
                self.core.inbox.append(data)
                return data
            with self.mutex:
                return self._receive_now()
        except (TimeoutError, BlockingIOError):
            return None
        except (OSError, EOFError):  # the latter from eventlet, in a child that has closed it
            return b""

    def _receive_now(self) -> bytes:
        """Read what is there into the inbox, in one step for signals. The mutex is held."""
        inbox = self.core.inbox
        inbox.extend(map(self._in.recv, (65536,)))
        return inbox[-1]

    def _pump(self, timeout: float | None) -> None:
        """Read once, and give what came to the core."""
        data = self._receive(0.0 if self.core.inbox else timeout)
        if self.pid != os.getpid():  # a greenlet goes on in a child
            return
        core = self.core
        with self.mutex:
            answers, others = core.answers, core.others
            try:
                if core.inbox:
                    core.take()
                    self._flush()
                if data == b"":
                    raise SidecarGone("the connection to the sidecar ended")
            except SidecarGone as e:
                core.end(e, "SIDECAR_GONE", e.message)
            if self._retired:
                self.retire()
            if core.error is None:
                self._reading.leave(core.answers - answers, core.others - others, core.due)

    def _read_for(self, call: Call) -> None:
        """Read the answer to a call, if it comes soon and the thread leaves that to callers."""
        reading = self._reading
        if not reading.left or len(self.core.calls) != 1:
            reading.call()
            return
        reading.turns += 1
        while not call.done and readable(self._in, PAUSE) and self._take_own(call):
            pass
        if not call.done or self.core.due:
            reading.call()

    def _take_own(self, home: object) -> bool:
        """Read answers to this call, or to tasks of this loop, if it is the turn of callers. False: the thread is to read."""
        with self.mutex:
            if not self._reading.left or self.pid != os.getpid():
                return False
            self._reading.turns += 1
            try:
                self._receive_now()
            except BlockingIOError:  # another has read it
                return True
            except OSError:
                return False
            taken = self.core.take_own(home)
            if taken and self.core.due:
                self._flush()
            return taken

    def _read_in(self, loop: asyncio.AbstractEventLoop) -> None:
        """Let a loop read the answers to its tasks, if the thread leaves that to callers."""
        reading = self._reading
        if not reading.left:
            return
        with self.mutex:
            if reading.left and self.core.error is None and loop not in reading.loops:
                try:
                    reading.add_loop(loop, self._take_own_in)
                except NotImplementedError:  # not every loop can
                    reading.call()

    def _take_own_in(self, loop: asyncio.AbstractEventLoop) -> bool:
        with self.mutex:
            self._loop = loop
            try:
                taken = self._take_own(loop)
            finally:
                self._loop = None
        if not taken:
            self._reading.call()
        return taken

    def _flush(self) -> bool:
        """Send what the sidecar takes now; whether the rest has to wait until it reads. The mutex is held."""
        while True:
            data, written, _ = self.core.outbox
            left = memoryview(data)[sum(written) :]
            if not left:
                return False
            try:
                # In one step for signals: what was sent is noted, whatever interrupts.
                written.extend(map(self._out.send, (left,)))
            except BlockingIOError:
                self._send_later()
                return True
            except OSError:  # it is gone, which who reads sees
                return False

    def _send_later(self) -> None:
        """Let a thread send the rest when the sidecar has read: nobody may ask for anything meanwhile. The mutex is held."""
        if self._sending:
            return
        self._sending = True
        try:
            threading.Thread(target=self._send_rest, name="locksidecar-send", daemon=True).start()
        except BaseException as e:
            self._sending = False
            if not isinstance(e, RuntimeError):  # an interrupt; else there is none: who waits tries again now and then
                raise

    def _send_rest(self) -> None:
        waits = True
        while waits:
            ready(self._out, select.POLLOUT, None)
            with self.mutex:
                waits = self.core.error is None and self.pid == os.getpid() and self._flush()
                self._sending = waits

    def _post(self, call: Call) -> None:
        with self.mutex:
            self.core.post(call)
            self._flush()

    # Requests. Each has a form for threads and one for tasks.

    def _do(self, call: Call, timeout: float | None) -> None:
        if self._interrupted():
            raise RuntimeError("this signal handler has interrupted a request of its own thread: ask in another thread")
        self._post(call)
        self._wait(call, timeout)

    async def _do_async(self, call: Call, timeout: float | None) -> None:
        self._post(call)
        await self._wait_async(call, timeout)

    def _wait(self, call: Call, timeout: float | None) -> None:
        """Wait for the answer to what was sent."""
        if self._thread is not None:
            self._read_for(call)
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
        loop = asyncio.get_running_loop()
        answered = loop.create_future()
        timer: asyncio.TimerHandle | None = None

        def done() -> None:
            if not answered.done():
                answered.set_result(None)

        def wake() -> None:
            if self._loop is loop:
                done()
                return
            try:
                loop.call_soon_threadsafe(done)
            except RuntimeError:
                pass  # the loop is closed: nobody waits

        def pause() -> float:
            step = self._step(call, end)
            return step if self._thread is not None else min(step, PAUSE)

        def tick() -> None:
            nonlocal timer
            if self._thread is None:  # nobody else reads
                self._pump(0.0)
            self._tick()
            try:
                timer = loop.call_later(pause(), tick)
            except LockSidecarError as e:
                if not answered.done():
                    answered.set_exception(e)

        call.wake, call.home = wake, loop
        self._read_in(loop)
        end = None if timeout is None else time.monotonic() + timeout
        timer = loop.call_later(pause(), tick)
        try:
            if not call.done:
                await answered
        finally:
            if timer is not None:
                timer.cancel()
        if call.error is not None:
            raise call.error

    def _step(self, call: Call, end: float | None) -> float:
        """For how long to wait at a time. SidecarSilent, WaitTimeout: long enough."""
        step = PING_AFTER
        if call.deadline is not None and not call.id:
            with self.mutex:
                if self.core.waits_here(call):
                    if (left := call.deadline - boot_time()) <= 0:
                        raise WaitTimeout("the wait is over: too many of this process wait before this one")
                    step = min(step, left)
        if end is not None:
            left = end - time.monotonic()
            if left <= 0:
                raise SidecarSilent("the sidecar did not answer in time; it may be frozen")
            step = min(step, left)
        return step

    def _tick(self) -> None:
        with self.mutex:
            if self.pid == os.getpid():
                self.core.waited()
                self._flush()

    def prepare(self, wanted: Wanted) -> Call:
        """An acquire that has not started."""
        return Call("acquire", {}, wanted=wanted)

    def _begin(self, call: Call) -> float | None:
        """How long the answer may take."""
        assert call.wanted is not None
        if isinstance(self.core.error, SessionClosed):
            raise self.core.error.again()
        if self.core.error is not None:  # since the caller got it: another will do
            raise SessionNotFound(self.core.error.message)
        wait = call.wanted.wait
        if wait is None:
            return None
        if wait > 0:
            call.deadline = boot_time() + wait
        return (wait or _STORE_LIMIT) + _PATIENCE

    def _interrupted(self) -> bool:
        """Whether a signal handler runs here while this very thread is in the middle of a request.

        It holds the mutex: who reads has to wait for it, and so would the handler, for ever.
        """
        owned: bool = self.mutex._is_owned()  # type: ignore[attr-defined] # as threading.Condition asks
        return owned

    def acquire(self, call: Call) -> None:
        """SessionNotFound: it had ended before anything was sent. Another session will do."""
        try:
            self._do(call, self._begin(call))
        except BaseException as e:
            self._given_up(call, e)
            raise

    async def acquire_async(self, call: Call) -> None:
        try:
            await self._do_async(call, self._begin(call))
        except BaseException as e:
            self._given_up(call, e)
            raise

    def _given_up(self, call: Call, e: BaseException) -> None:
        if isinstance(e, SidecarGone) and call.unsent:
            raise SessionNotFound(e.message) from None
        self.abandon(call)

    def abandon(self, call: Call) -> None:
        """Nobody wants what an acquire gets or has got: in the background, once."""
        with self.mutex:
            if self.pid == os.getpid() and self.core.error is None:
                self.core.abandon(call)
                self._flush()

    def _begin_release(self, entry: Call) -> Call:
        """Send the release: from now on nobody relies on the hold, whatever becomes of the call."""
        hold = entry.hold
        assert hold is not None
        with self.mutex:
            problem = hold.look()
            entered = entry in hold.entered
            if problem is None and not entered:
                raise hold.not_held()
            call = release_of(entry)
            if entered and self.pid == os.getpid():
                self.core.release(call, entry)  # also of what is lost: that ends its grace
                self._flush()
            if problem is not None:
                raise problem.again()
            return call

    def release(self, entry: Call) -> int:
        """Release once what an acquire has got; how many times its owner must still do so.

        LockLost, NotHolder. The sidecar carries it out in any case, be it late.
        """
        if self._interrupted():
            return self._release_elsewhere(entry)
        call = self._begin_release(entry)
        self._wait(call, _STORE_LIMIT + _PATIENCE)
        return int(call.answer["released"]["count"])

    def _release_elsewhere(self, entry: Call) -> int:
        """In a thread, which has its turn when the request that was interrupted has gone on."""
        hold = entry.hold
        assert hold is not None
        if (problem := hold.look()) is not None:
            raise problem.again()
        if entry not in hold.entered:
            raise hold.not_held()
        threading.Thread(target=self.abandon, args=(entry,), name="locksidecar-release", daemon=True).start()
        return hold.count - 1

    async def release_async(self, entry: Call) -> int:
        call = self._begin_release(entry)
        await self._wait_async(call, _STORE_LIMIT + _PATIENCE)
        return int(call.answer["released"]["count"])

    def conclude(self, entry: Call, outcome: str, note: str) -> None:
        """Release with the outcome of something that is done once."""
        call = self._begin_conclude(entry, outcome, note)
        self._do(call, _STORE_LIMIT + _PATIENCE)
        self._concluded(entry)

    async def conclude_async(self, entry: Call, outcome: str, note: str) -> None:
        call = self._begin_conclude(entry, outcome, note)
        await self._do_async(call, _STORE_LIMIT + _PATIENCE)
        self._concluded(entry)

    def _begin_conclude(self, entry: Call, outcome: str, note: str) -> Call:
        if self.pid != os.getpid():
            assert entry.hold is not None and entry.hold.problem is not None
            raise entry.hold.problem.again()
        return Call("release", {**release_of(entry).body, "requestId": "", "outcome": outcome, "note": note}, about=entry.hold)

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
        self._do(self._begin_change(entry, "downgrade"), _STORE_LIMIT + _PATIENCE)

    async def downgrade_async(self, entry: Call) -> None:
        await self._do_async(self._begin_change(entry, "downgrade"), _STORE_LIMIT + _PATIENCE)

    def extend(self, entry: Call, max_hold: float) -> None:
        self._do(self._begin_change(entry, "extend", maxHold=duration(max_hold)), _STORE_LIMIT + _PATIENCE)

    async def extend_async(self, entry: Call, max_hold: float) -> None:
        await self._do_async(self._begin_change(entry, "extend", maxHold=duration(max_hold)), _STORE_LIMIT + _PATIENCE)

    def detach(self, entry: Call, ttl: float) -> Detached:
        """Take off the session what an acquire has got, see Held.detach."""
        call = self._begin_change(entry, "detach", ttl=duration(ttl))
        try:
            self._do(call, _STORE_LIMIT + _PATIENCE)
            return Detached.read(call.answer["detached"], call.sent)
        except BaseException:
            self._keep_no_handle(call)
            raise

    async def detach_async(self, entry: Call, ttl: float) -> Detached:
        call = self._begin_change(entry, "detach", ttl=duration(ttl))
        try:
            await self._do_async(call, _STORE_LIMIT + _PATIENCE)
            return Detached.read(call.answer["detached"], call.sent)
        except BaseException:
            self._keep_no_handle(call)
            raise

    def _keep_no_handle(self, call: Call) -> None:
        with self.mutex:
            if self.pid == os.getpid() and self.core.error is None:
                self.core.keep_no_handle(call)
                self._flush()

    # Ends.

    def close(self, timeout: float = _STORE_LIMIT + _PATIENCE) -> None:
        """Release everything, and wait until the sidecar has done so."""
        message = "this process has closed its session"
        with self.mutex:
            if not self.core.end(SessionClosed(message), "SESSION_CLOSED", message):
                return
            self._hang_up(socket.SHUT_WR)
        thread = self._thread
        if thread is None:
            self._read_on(timeout)
            self._close_sockets()
        elif thread is not threading.current_thread() and not self._interrupted():
            thread.join(timeout)

    def retire(self) -> None:
        """Nobody can ask for anything any more: end when nothing is held."""
        self._retired = True
        if self.pid == os.getpid() and not self.core.holds and not self.core.calls:
            self._hang_up()

    def _hang_up(self, how: int = socket.SHUT_RDWR) -> None:
        """Tell the sidecar, and wake who reads. To close alone would do neither where a child has a copy."""
        try:
            self._in.shutdown(how)
        except OSError:
            pass  # it has ended

    def _close_sockets(self) -> None:
        self._reading.stop_loops()
        self._in.close()
        if out := getattr(self, "_out", None):
            out.close()

    def __del__(self) -> None:
        if hasattr(self, "_in"):  # without a thread nobody else closes them
            self._close_sockets()

    def forked(self) -> None:
        """In a child: the session is the parent's, and so are its holds.

        Only the thread that forked goes on in a child, and locks of the others stay
        as they were at that moment. So everything is made again.
        """
        self.mutex = self.core.mutex = threading.RLock()
        self._reading.forked()
        self._close_sockets()  # our copies, and no more
        message = "this process is a child of the one that holds it"
        holds, self.core.holds = list(self.core.holds.values()), {}
        self.core.error = SessionClosed(message)
        for hold in holds:
            hold.forked(LockLost(f"the lock on {hold.resource!r} is lost: {message}", lost_reason="FORKED"))
        for call in self.core.calls.values():
            call.finish(SessionClosed(message))  # of greenlets that go on here


def _silence(timeout: float) -> str:
    return f"the sidecar did not answer within {timeout:g} s; it may be frozen"


# A fork forgets sessions, and not clients: what is held may outlive its client.
_sessions: weakref.WeakSet[Session] = weakref.WeakSet()


def _after_fork_in_child() -> None:
    for session in list(_sessions):
        session.forked()


os.register_at_fork(after_in_child=_after_fork_in_child)
