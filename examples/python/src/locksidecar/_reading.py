"""Who reads what the sidecar sends: the thread of the session, or who waits for an answer.

To hand an answer from the thread to a caller takes one wake-up more than the trip itself. So
where callers come one at a time, the thread lets them read by themselves. They take only their
own answers, and call the thread for anything else: it alone is never interrupted. It looks
every few milliseconds whether they still come, and reads itself when they do not. What comes
between two calls waits for two pauses at most.

A task does the same. An answer that comes at once, as from a sidecar that need not ask a store, it
reads itself, while its loop stands still for a moment; else the loop reads it: see Ticks for who
takes turns.
"""

from __future__ import annotations

import _socket
import asyncio
import select
import socket
from collections.abc import Callable

from ._hold import Bell

# So long a caller reads by itself, and so long the thread waits for callers.
PAUSE = 0.005
_PAUSE_MS = 1000 * PAUSE
# So long a loop may stand still for an answer that comes at once: a turn of it takes about as long.
_MOMENT = 0.0002
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


class Reading:
    """Whose turn it is. The mutex of the session is held, where nothing else is said."""

    def __init__(self, sock: socket.socket) -> None:
        # The sockets of gevent and eventlet belong to their loop: there the thread reads.
        self.shared = isinstance(sock, _socket.socket)
        self._sock = sock
        if self.shared:
            self._comes = select.poll()  # for one caller at a time
            self._comes.register(sock, select.POLLIN)
        self.left = False  # to the callers: one reads only while that is so
        self.turns = 0  # of callers
        self._seen = -1  # turns, at the last look
        self._single = 0  # answers
        self._bell = Bell()
        self.loops: dict[asyncio.AbstractEventLoop, LoopReader] = {}

    def comes(self) -> bool:
        """A caller waits until there is something to read. False: not soon, or another caller does."""
        try:
            return bool(self._comes.poll(_PAUSE_MS))
        except RuntimeError:
            return False

    def comes_at_once(self) -> bool:
        """The same for a loop, which does nothing else meanwhile."""
        fd = self._sock.fileno()
        try:
            return bool(select.select((fd,), (), (), _MOMENT)[0])
        except (ValueError, OSError):  # closed, or too large a number for select
            return False

    def leave(self, answers: int, others: int, due: bool) -> None:
        """The thread has read so many answers and other lines; due: somebody waits for more."""
        if others or due or answers > 1:
            self._single = 0
        else:
            self._single += answers
        if self.shared and self._single >= _FEW_SINGLE:
            self._single, self._seen = 0, -1
            self._bell = Bell()
            self.left = True

    def add_loop(self, loop: asyncio.AbstractEventLoop, take: Callable[[asyncio.AbstractEventLoop], bool]) -> None:
        """Let a loop read. Those that were closed meanwhile do not any more: nobody else can tell."""
        for closed in [one for one in self.loops if one.is_closed()]:
            self.loops.pop(closed).close()
        self.loops[loop] = LoopReader(loop, self._sock, take)

    def wait(self) -> None:
        """The thread waits until it may have to read again. Without the mutex."""
        self._bell.wait(PAUSE)

    def come_back(self) -> None:
        """The thread looks whether callers still read."""
        if self._bell.rung or self._seen == self.turns:
            self.left = False
            self.stop_loops()
        self._seen = self.turns

    def stop_loops(self) -> None:
        while self.loops:
            self.loops.popitem()[1].stop()

    def forked(self) -> None:
        """In a child. What a loop waits for is the same for both processes: it is not touched."""
        self.left = False
        while self.loops:
            self.loops.popitem()[1].close()

    def call(self) -> None:
        """Call the thread. Needs no mutex."""
        self._bell.ring()


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
