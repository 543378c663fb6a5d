"""A client: one session of this process, opened when it is needed."""

from __future__ import annotations

import asyncio
import importlib.util
import os
import sys
import threading
import time
import weakref
from collections.abc import Callable, Mapping
from types import TracebackType
from typing import Literal, TypeVar

from ._decorator import Resource, locked
from ._errors import LockSidecarError, NoSidecar, SessionClosed, SidecarGone
from ._http import HTTP
from ._lock import Lock, RWLock
from ._model import Mode, Transport
from ._session import Session
from ._socket import default_socket

TransportName = Literal["http", "grpc", "auto"]

F = TypeVar("F", bound=Callable[..., object])


class Client:
    """The sidecar beside this process.

    The session is opened with the first lock, and again when the sidecar was
    restarted and after a fork. All threads and tasks of a process may share one
    client; locks of different clients exclude each other.

    socket: path of the sidecar's socket; else `default_socket()`.
    name, metadata: shown in lists. The name is that of the program, if not given.
    transport: `http` needs nothing; `grpc` needs the extra of that name; `auto` is
        `grpc` where that can be had and survives a fork. `$LOCKSIDECAR_TRANSPORT` is the
        default, or http.
    connect_timeout: for so many seconds a sidecar is called again that hangs up before it
        has opened the session, as it does to make room where connections are short. Where
        there is none it is told at once.
    """

    def __init__(
        self,
        socket: str | os.PathLike[str] | None = None,
        *,
        name: str | None = None,
        metadata: Mapping[str, str] | None = None,
        transport: TransportName | None = None,
        connect_timeout: float = 15.0,
    ) -> None:
        self._path = os.fspath(socket) if socket is not None else None
        self._name = name
        self._metadata = dict(metadata or {})
        self._transport = transport
        self._connect_timeout = connect_timeout
        self._forked = False
        self._closed = False
        self._session: Session | None = None
        self._opening = threading.RLock()
        self._openings: dict[asyncio.AbstractEventLoop, asyncio.Future[Session]] = {}
        _clients.add(self)

    def lock(
        self,
        resource: str,
        *,
        wait: float | None = None,
        owner: str | None = None,
        reentrant: bool = False,
        max_hold: float | None = None,
        mode: Mode = Mode.EXCLUSIVE,
    ) -> Lock:
        """A lock, to be used in `with` and `async with`. Nothing is taken yet.

        wait: seconds; None: for ever; 0: try once.
        owner: who asks, for lists; by default the thread or the task.
        reentrant: the owner may enter again what it has entered so, and releases as often.
            Else each acquire stands alone: who asks twice waits for itself.
        max_hold: the lock is lost after so many seconds (0.1 to 86400).
        """
        return Lock(
            self, resource, mode=mode, wait=wait, owner=owner, reentrant=reentrant, max_hold=max_hold
        )

    def rwlock(
        self,
        resource: str,
        *,
        wait: float | None = None,
        owner: str | None = None,
        reentrant: bool = False,
        max_hold: float | None = None,
    ) -> RWLock:
        """A lock that many can hold for reading: `rwlock("x").read()`, `.write()`."""
        return RWLock(self, resource, wait=wait, owner=owner, reentrant=reentrant, max_hold=max_hold)

    def locked(
        self,
        resource: Resource,
        *,
        wait: float | None = None,
        owner: str | None = None,
        reentrant: bool = False,
        max_hold: float | None = None,
        mode: Mode = Mode.EXCLUSIVE,
    ) -> Callable[[F], F]:
        """Decorates a function, or a coroutine function: it runs under the lock."""
        return locked(
            lambda: self, resource, wait=wait, owner=owner, reentrant=reentrant, max_hold=max_hold, mode=mode
        )

    @property
    def draining(self) -> bool:
        """The sidecar is about to stop: finish, and release."""
        session = self._session
        return session is not None and session.error is None and session.draining.is_set()

    def open(self) -> None:
        """Open the session now, and not with the first lock. NoSidecar, Draining, …

        A sidecar that hangs up is called again, see connect_timeout.
        """
        self.session()

    def session(self) -> Session:
        """The session, opened if need be."""
        session = self._session
        if session is None or session.error is not None or session.pid != os.getpid():
            session = self._open()
        return session

    async def session_async(self) -> Session:
        session = self._session
        if session is None or session.error is not None or session.pid != os.getpid():
            session = await asyncio.shield(self._open_async())
        return session

    def _open_async(self) -> asyncio.Future[Session]:
        """One opening for all tasks of a loop: each takes a thread, be it for a moment."""
        loop = asyncio.get_running_loop()
        opening = self._openings.get(loop)
        if opening is None:
            opening = self._openings[loop] = loop.run_in_executor(None, self._open)

            def done(opening: asyncio.Future[Session]) -> None:
                self._openings.pop(loop, None)
                if not opening.cancelled():
                    opening.exception()  # nobody may be left to see it

            opening.add_done_callback(done)
        return opening

    def _open(self) -> Session:
        with self._opening:
            if self._closed:
                raise SessionClosed("this client is closed")
            session = self._session
            if session is not None and session.pid != os.getpid():  # forked behind Python's back
                self._after_fork()
                session = None
            if session is None or session.error is not None:
                session = self._session = self._open_new()
            return session

    def _open_new(self) -> Session:
        name = self._name if self._name is not None else _program()
        end = time.monotonic() + self._connect_timeout
        pause = 0.05
        while True:
            try:
                return Session(self._connect(), name, self._metadata)
            except (SidecarGone, NoSidecar) as e:
                if not _passes(e) or time.monotonic() + pause > end:
                    raise
            time.sleep(pause)
            pause = min(2 * pause, 1.0)
            if self._closed:
                raise SessionClosed("this client is closed")

    def _connect(self) -> Transport:
        path = self._path if self._path is not None else default_socket()
        if self._forked:  # grpcio does not survive it
            return HTTP(path)
        return _transport(self._transport or os.environ.get("LOCKSIDECAR_TRANSPORT") or "http", path)

    def close(self) -> None:
        """Release everything and end the session, and wait until the sidecar has done so."""
        self._closed = True  # who opens a session sees it
        with self._opening:
            session, self._session = self._session, None
        if session is not None:
            session.close()

    def __enter__(self) -> Client:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def _after_fork(self) -> None:
        self._opening = threading.RLock()
        self._openings = {}
        self._forked = True
        session, self._session = self._session, None
        if session is not None:
            session.forked()


def _passes(e: LockSidecarError) -> bool:
    """Whether it may help to ask again: the sidecar is there, and hung up, or its queue of calls is full.

    Both happen where many connect at a time.
    """
    return isinstance(e, SidecarGone) or isinstance(e.__cause__, BlockingIOError)


def _program() -> str:
    return os.path.basename(sys.argv[0] if sys.argv else "") or "python"


def _transport(name: str, path: str) -> Transport:
    if name == "http":
        return HTTP(path)
    if name not in ("grpc", "auto"):
        raise ValueError(f"transport must be http, grpc or auto, and not {name!r}")
    try:
        from ._grpc import GRPC
    except ImportError as e:
        if name == "auto":
            return HTTP(path)
        if importlib.util.find_spec("grpc") is not None:
            raise  # it says itself what is wrong
        raise ImportError("the transport grpc needs grpcio: pip install 'locksidecar[grpc]'") from e
    return GRPC(path)


_clients: weakref.WeakSet[Client] = weakref.WeakSet()


def _after_fork_in_child() -> None:
    for client in list(_clients):
        client._after_fork()


os.register_at_fork(after_in_child=_after_fork_in_child)
