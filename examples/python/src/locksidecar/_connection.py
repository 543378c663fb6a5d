"""The connection of one session: lines of JSON, the thread that reads them, and its end.

The rules are in _core.py, and who asks for what is in _session.py. Here bytes move, and forks
and interrupts are met:

* What is sent never blocks. What the sidecar does not take yet stays in the outbox, and a thread
  sends it when the sidecar has read.
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

from ._call import Call
from ._clock import boot_time
from ._core import AT_ONCE, Core
from ._holds import MAX_LOOK
from ._errors import LockLost, LockSidecarError, SessionClosed, SidecarGone, SidecarSilent
from ._reading import PAUSE, Reading, readable, ready
from ._socket import connect

# A try waits 2 s for the store, a release too; the rest is for a busy machine.
STORE_LIMIT = 2.0
PATIENCE = 3.0
_OPEN_TIMEOUT = 5.0
_MOST = (65536,)


# So often an end is put off in a row, while the thread reads what had come before it: four times are enough for what
# the socket holds. A stream of other news must not put it off for longer.
_MOST_PUT_OFF = 8
# So many steps of its own one who finds an end waits for the thread to come to what stands unread. Mostly that is one
# step. All of them are PATIENCE at least, and more where the processor is short: by the clock, a process that was stopped
# among them would have waited without a chance to read.
_MOST_STEPS = int(PATIENCE / PAUSE)
# More bytes than stand in a socket.
_ALL_THAT_STANDS = 1 << 20
_PEEK = socket.MSG_DONTWAIT | socket.MSG_PEEK

IN_THE_MIDDLE = "this signal handler has interrupted a request of its own thread: ask in another thread"


class Connection:
    """What a session is to those who do not ask for locks: its bytes, its thread and its end."""

    def __init__(self, path: str, name: str, metadata: Mapping[str, str], loop_wait: float) -> None:
        self.pid = os.getpid()
        # Reentrant, as a signal handler may look at a hold while this very thread does.
        self.mutex = threading.RLock()
        self.core = Core(self.mutex)
        self.core.settle = self._settle
        self._retired = False
        self._sending = False  # in a thread, what the sidecar did not take at once
        self._untold: list[Callable[[], object]] = []
        self._thread: threading.Thread | None = None
        self._in = connect(path)
        self._reading = Reading(self._in, loop_wait)
        try:
            self._out = self._in.dup()  # for who sends, and never waits
            if not self._reading.shared:
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
            self._pump(max(0.0, left))  # first: where this process was stopped meanwhile, the answer stands there
            if left <= 0 and not call.done:
                raise SidecarSilent(_silence(_OPEN_TIMEOUT))
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
        reading = self._reading
        put_off = 0  # so often in a row is an end put off, for what stands unread may have come in time
        while self.core.error is None and self.pid == os.getpid():
            if reading.left:
                reading.wait()
            with self.mutex:
                now = boot_time()  # first: what is over by then has had no news, if nothing stands after that
                put_off = put_off + 1 if put_off < _MOST_PUT_OFF and self.core.is_due(now) and self._unread() else 0
                timeout = 0.0 if put_off else self.core.look(now)
            if put_off and reading.left:
                reading.call()
            if reading.left:
                if self.core.error is None and not reading.wanted():
                    continue
                reading.let_be_first()
                with self.mutex:
                    reading.come_back()
                put_off = 0  # only now can it read
                continue
            with self.mutex:
                if self._retired:
                    self.retire()
            if self._untold:
                for _ in range(len(self._untold)):
                    self.tell(self._untold.pop(0))
                timeout = MAX_LOOK if timeout is None else min(timeout, MAX_LOOK)
            self._pump(timeout)
        if self.pid == os.getpid():
            with self.mutex:
                self.core.tell_end()
            if isinstance(self.core.error, SessionClosed):
                self._read_on(STORE_LIMIT + PATIENCE)

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
        inbox.extend(map(self._in.recv, _MOST, AT_ONCE))
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
            if core.error is None and self._thread is not None:
                self._reading.leave(core.answers - answers, core.others - others, core.due)

    def read_own(self, call: Call) -> None:
        """Read the answer to a call, if callers read and it comes soon. What else comes the thread takes."""
        reading, core = self._reading, self.core
        turn = reading.turn
        # An interrupt just after it has the turn leaves it taken: the thread makes another one.
        if not reading.left or reading.loops or reading.bell.rung or len(core.calls) != 1 or not turn.acquire(False):
            reading.call()
            return
        try:
            reading.turns += 1
            if reading.comes_soon():
                self._take_what_is_there(call)
        finally:
            turn.release()
        if not call.done or core.calls:
            reading.call()

    def _take_what_is_there(self, home: object) -> bool:
        """Read the answer to a call, or to tasks of a loop, and do not wait for it. False: the thread is to read."""
        reading = self._reading
        with self.mutex:
            if not reading.left:
                return False
            reading.turns += 1
            try:
                self._receive_now()
            except BlockingIOError:  # another has read it
                return True
            except OSError:
                return False
            taken = self.core.take_own(home)
            if self.core.outbox[0]:
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
                except (NotImplementedError, OSError):  # not every loop can, nor where too many files are open
                    reading.call()

    def _take_own_in(self, loop: asyncio.AbstractEventLoop) -> bool:
        taken = self.pid == os.getpid() and loop in self._reading.loops and self._take_what_is_there(loop)
        if not taken:
            self._reading.call()
        return taken

    def _flush(self) -> bool:
        """Send what the sidecar takes now; whether the rest has to wait until it reads. The mutex is held."""
        core = self.core
        if core.error is not None:  # a signal handler may have ended it while its own thread has put something in
            core.tell_end()
            return False
        while True:
            data, written, queued = core.outbox
            sent = sum(written) if written else 0
            try:
                # In one step for signals: what was sent is noted, whatever interrupts.
                if sent < len(data):
                    written.extend(map(self._out.send, (memoryview(data)[sent:] if sent else data,), AT_ONCE))
                if written == [len(data)] or sent == len(data):
                    core.outbox = b"", [], queued
                    return False
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
        """Send a request. RuntimeError: a signal handler has interrupted another of its own thread."""
        if self._interrupted():
            raise RuntimeError(IN_THE_MIDDLE)
        with self.mutex:
            self.core.post(call)
            self._flush()

    def _unread(self) -> bool:
        """Whether something has come that nobody has taken yet: so long nobody says that the sidecar is silent."""
        with self.mutex:  # who reads has it until the bytes are in the inbox
            return bool(self.core.inbox) or self._reading.shared and readable(self._in, 0.0)

    def _settle(self, step: int) -> bool:
        """An end is found by the clock: let the thread first take what has come. Whether that was still to be read: then look again.

        step: how often that was so in a row.
        """
        most = _MOST_PUT_OFF if self._thread is None else _MOST_STEPS
        if step >= most or self.core.error is not None or self._thread is threading.current_thread():
            return False
        if self._interrupted():
            self._glance()
            return False
        if not self._unread():
            return False
        if self._thread is None:  # callers read
            self._pump(0.0)
        else:
            self._reading.call()
            time.sleep(min(PAUSE, 0.0005 * (step + 1)))
        return True

    def _glance(self) -> None:
        """Hear what stands unread, and take nothing: this thread may be about to take it, and nobody else can. The mutex is held."""
        stands = list(self.core.inbox)
        if self._reading.shared:
            try:
                stands.append(self._in.recv(_ALL_THAT_STANDS, _PEEK))
            except OSError:
                pass
        self.core.glance(stands)

    def _tick(self) -> None:
        if self._unread():
            return
        with self.mutex:
            if self.pid == os.getpid():
                self.core.waited()
                self._flush()

    def _interrupted(self) -> bool:
        """Whether a signal handler runs here while this very thread is in the middle of a request.

        It has the mutex: who reads has to wait for it, and so would the handler, for ever.
        """
        return self.mutex._is_owned()  # type: ignore[attr-defined, no-any-return] # as threading.Condition asks

    # Ends.

    def close(self, timeout: float = STORE_LIMIT + PATIENCE) -> None:
        """Release everything, and wait until the sidecar has done so."""
        message = "this process has closed its session"
        with self.mutex:
            try:
                first = self.core.end(SessionClosed(message), "SESSION_CLOSED", message)
            finally:
                if self.core.error is not None:  # also where it is interrupted: the thread tells the others
                    self._hang_up(socket.SHUT_WR)
        if not first:
            return
        self._reading.call()
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
        self.core.why_lost = "FORKED", message
        self.core.error = SessionClosed(message)
        for hold in holds:
            hold.forked(LockLost(f"the lock on {hold.resource!r} is lost: {message}", lost_reason="FORKED"))
        for call in self.core.calls.values():
            call.finish(SessionClosed(message))  # of greenlets that go on here


def _silence(timeout: float) -> str:
    return f"the sidecar did not answer within {timeout:g} s; it may be frozen"


# A fork forgets sessions, and not clients: what is held may outlive its client.
_sessions: weakref.WeakSet[Connection] = weakref.WeakSet()


def _after_fork_in_child() -> None:
    for session in list(_sessions):
        session.forked()


os.register_at_fork(after_in_child=_after_fork_in_child)
