"""Who reads what the sidecar sends: the thread of the session, or who waits for an answer.

To hand an answer from the thread to a caller takes one wake-up more than the trip itself. So
where callers come one at a time, the thread lets them read by themselves. They take only their
own answers, and call the thread for anything else: it alone is never interrupted. It looks
every few milliseconds whether they still come, and reads itself when they do not. What comes
between two calls waits for two pauses at most.

Whoever reads does so with the mutex, and takes what came, or leaves it to the thread, before the
mutex is free again. To wait for something to come needs no mutex: a caller sleeps in poll, for one pause at most,
without taking anything. So nobody is kept from reading by one who waits, however long that one stands still: a
signal handler may run in the middle of a wait. Who waits has the turn, which is a courtesy: the thread, when it wants
to read itself, lets it take its answer first, for two pauses. While a loop reads, callers call the thread, which stops the loop from that.

A task does the same. An answer that comes at once, as from a sidecar that need not ask a store, it
reads itself, while its loop stands still for a moment; else the loop reads it: see Ticks for who
takes turns. It looks again and again meanwhile and gives the processor to the sidecar in between,
if that runs on the same one. To sleep with so short a limit would take longer than the answer:
the kernel sets a timer for it. A thread looks as well before it sleeps, as long as answers come at
once: to be woken takes about as long as the answer.
"""

from __future__ import annotations

import _socket
import asyncio
import os
import select
import socket
import threading
import time
from collections.abc import Callable

from ._hold import Bell

# So long a caller reads by itself, and so long the thread waits for callers.
PAUSE = 0.005
# So long a thread looks for its answer before it sleeps.
_MOMENT = 0.0001
# After an answer that did not come at once, so many are awaited asleep.
PATIENT = 64
# After so many answers in a row, none of them due at the same time as another, callers read.
_FEW_SINGLE = 4


def readable(sock: socket.socket, timeout: float | None) -> bool:
    """Wait until there is something to read, or the connection has ended, or its socket is closed."""
    return ready(sock, select.POLLIN, timeout)


def ready(sock: socket.socket, what: int, timeout: float | None) -> bool:
    poll = select.poll()
    try:
        poll.register(sock, what)
    except ValueError:
        return True
    return bool(poll.poll(None if timeout is None else timeout * 1000))


def _look_at(sock: socket.socket) -> Callable[[int], object]:
    """What tells at once whether there is something to read."""
    poll = select.poll()
    poll.register(sock, select.POLLIN)
    return poll.poll


class Reading:
    """Whose turn it is. The mutex of the session is held, where nothing else is said."""

    def __init__(self, sock: socket.socket, moment: float) -> None:
        # The sockets of gevent and eventlet belong to their loop: there the thread reads.
        self.shared = isinstance(sock, _socket.socket)
        self._sock = sock
        self.moment = moment  # so long a loop may stand still for an answer that comes at once; 0: not at all
        if self.shared:
            sock.settimeout(None)
            self._look = _look_at(sock)
        self.turn = threading.Lock()  # of a caller that waits for its answer. Nobody waits for it with the mutex
        self.left = False  # to the callers
        self.turns = 0  # of callers
        self._patient = 0  # so many answers more do threads wait for asleep
        self._seen = -1  # turns, at the last look
        self._single = 0  # answers
        self.bell = Bell()  # rung: the thread is called, and callers leave it to that
        self.loops: dict[asyncio.AbstractEventLoop, LoopReader] = {}

    def comes_soon(self) -> bool:
        """A thread that has the turn waits for one pause at most, without the mutex. Whether there is something to take."""
        try:
            # Not in recv: signals that come again and again would have it start its time again and again.
            return self.watch() or bool(self._look(int(PAUSE * 1000)))
        except (RuntimeError, OSError):  # the first: a loop looks
            return False

    def watch(self) -> bool:
        """The thread looks for its answer, while most come at once. To be woken would take as long again."""
        if self._patient:
            self._patient -= 1
            return False
        end = time.monotonic() + _MOMENT
        came = self.comes_at_once(_MOMENT)
        # Where others want the GIL, or the processor, each step of the look may wait for them, and it takes longer.
        if not came or time.monotonic() > end:
            self._patient = PATIENT
        return came

    def comes_at_once(self, moment: float) -> bool:
        """The caller looks for an answer for so long, and does nothing else meanwhile. False: it does not come soon."""
        end = time.monotonic() + moment
        try:
            while not (came := self._look(0)) and time.monotonic() < end:
                os.sched_yield()
        except (RuntimeError, OSError):  # the first: another loop looks
            return False
        return bool(came)

    def leave(self, answers: int, others: int, due: bool) -> None:
        """The thread has read so many answers and other lines; due: somebody waits for more."""
        if others or due or answers > 1:
            self._single = 0
        else:
            self._single += answers
        if self.shared and self._single >= _FEW_SINGLE:
            self._single, self._seen = 0, -1
            self.bell = Bell()
            self.left = True

    def add_loop(self, loop: asyncio.AbstractEventLoop, take: Callable[[asyncio.AbstractEventLoop], bool]) -> None:
        """Let a loop read. Those that were closed meanwhile do not any more: nobody else can tell."""
        for closed in [one for one in self.loops if one.is_closed()]:
            self.loops.pop(closed).close()
        self.loops[loop] = LoopReader(loop, self._sock, take)

    def wait(self) -> None:
        """The thread waits until it may have to read again. Without the mutex."""
        self.bell.wait(PAUSE)

    def wanted(self) -> bool:
        """Whether the thread is to read again: it was called, or no caller came since the last look. Without the mutex."""
        seen, self._seen = self._seen, self.turns
        return self.bell.rung or seen == self._seen

    def let_be_first(self) -> None:
        """The thread is about to read. A caller that waits may take its answer first, unless it stands still. Without the mutex."""
        turn = self.turn
        if turn.acquire(timeout=2 * PAUSE):
            turn.release()
        else:
            self.turn = threading.Lock()  # nobody waits for that one again

    def come_back(self) -> None:
        """The thread reads. The mutex is held."""
        self.left = False
        self.stop_loops()

    def stop_loops(self) -> None:
        while self.loops:
            self.loops.popitem()[1].stop()

    def forked(self) -> None:
        """In a child. What a loop waits for is the same for both processes: it is not touched."""
        self.left = False
        self.turn = threading.Lock()
        while self.loops:
            self.loops.popitem()[1].close()

    def call(self) -> None:
        """Call the thread. Needs no mutex."""
        self.bell.ring()


class LoopReader:
    """A loop of asyncio that reads the answers to its tasks."""

    def __init__(
        self, loop: asyncio.AbstractEventLoop, sock: socket.socket, take: Callable[[asyncio.AbstractEventLoop], bool]
    ) -> None:
        self._loop = loop
        self._take = take
        self._sock = sock.dup()  # a loop knows it by its number, which must not be another's meanwhile
        try:
            loop.add_reader(self._sock, self._read)
        except BaseException:
            self._sock.close()
            raise

    def _read(self) -> None:
        if not self._take(self._loop):
            self._remove()  # else the loop would call again and again

    def stop(self) -> None:
        """Any thread may say so. A loop that is closed before it comes to that drops this: see __del__."""
        try:
            self._loop.call_soon_threadsafe(self._remove)
        except RuntimeError:  # the loop is closed
            self.close()

    def _remove(self) -> None:
        if self._sock.fileno() >= 0:
            self._loop.remove_reader(self._sock)
            self.close()

    def close(self) -> None:
        self._sock.close()

    def __del__(self) -> None:
        if hasattr(self, "_sock"):
            self.close()
