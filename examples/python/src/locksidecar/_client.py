"""A client: one session of this process, opened when it is needed."""

from __future__ import annotations

import asyncio
import functools
import os
import sys
import threading
import time
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from types import TracebackType
from typing import Any, TypeVar

from . import _look
from ._aio import current_task
from ._clock import boot_time
from ._decorator import Resource, locked
from ._errors import InvalidRequest, LockSidecarError, NoSidecar, SessionClosed, SidecarGone
from ._lock import Lock, RWLock
from ._model import Detached, Mode, Once, Seconds, duration, given_handle, given_seconds, given_ttl
from ._session import Session
from ._socket import default_socket

_LONGEST_LOOP_WAIT = 0.01

F = TypeVar("F", bound=Callable[..., object])


class Client:
    """The sidecar beside this process.

    The session is opened with the first lock, and again when the sidecar was
    restarted and after a fork. All threads and tasks of a process may share one
    client; locks of different clients exclude each other.

    socket: path of the sidecar's socket; else `default_socket()`.
    name, metadata: shown in lists. The name is that of the program, if not given.
    connect_timeout: for so many seconds a sidecar is called again that hangs up before it
        has opened the session, as it does to make room where connections are short. Where
        there is none it is told at once.
    loop_wait: for so many seconds at most (0.01 or less) a task that waits alone holds up its loop
        for an answer, while most come sooner than a turn of the loop takes. 0: it never does.
        An attribute, too, which counts when the session is opened.
    """

    def __init__(
        self,
        socket: str | os.PathLike[str] | None = None,
        *,
        name: str | None = None,
        metadata: Mapping[str, str] | None = None,
        connect_timeout: float = 15.0,
        loop_wait: float = 0.0001,
    ) -> None:
        self._path = os.fspath(socket) if socket is not None else None
        self._name = name
        self._metadata = dict(metadata or {})
        self._connect_timeout = connect_timeout
        self.loop_wait = loop_wait
        self._closed = False
        self._session: Session | None = None
        self._opening = threading.RLock()
        self._failed: tuple[int, LockSidecarError | None] = (0, None)  # how many openings, the last of them
        self._openings: dict[asyncio.AbstractEventLoop, asyncio.Future[Session]] = {}
        _clients.add(self)

    def lock(
        self,
        resource: str | Sequence[str],
        *,
        wait: Seconds | None = None,
        owner: str | None = None,
        reentrant: bool = False,
        max_hold: Seconds | None = None,
        min_hold: Seconds | None = None,
        mode: Mode | str = Mode.EXCLUSIVE,
        once: Once | None = None,
        limit: int | None = None,
        detachable: bool = False,
        cancel_on_lost: bool = False,
    ) -> Lock:
        """A lock, to be used in `with` and `async with`. Nothing is taken yet.

        resource: what is locked; or 2 to 16 different ones, all or none, without deadlock
            between such requests: `held.parts` has the fence of each.
        wait: seconds, or a timedelta; None: for ever; 0: try once.
        owner: who asks, for lists; by default the thread or the task.
        reentrant: the owner may enter again what it has entered so, and releases as often.
            Else each acquire stands alone: who asks twice waits for itself.
        max_hold: the lock is lost after so many seconds (0.1 to 86400).
        min_hold: for so many seconds after the grant (0.1 to 86400, at most max_hold) the store
            keeps others out, also after the release, or the death of this process. Not of several.
        once: it is an attempt at something that is to succeed only once, see `once`.
        limit: at most so many hold it at the same time, each with a `held.slot` of its own from
            0 to limit-1. All who ask give the same number, 1 to 1024.
        detachable: `held.detach` may let it live on without this process. Not of several, nor with
            reentrant, once or min_hold.
        cancel_on_lost: in `async with`, a loss cancels the task, and the block raises LockLost.
        """
        return Lock(
            self,
            resource if isinstance(resource, str) else tuple(resource),
            mode=mode,
            wait=wait,
            owner=owner,
            reentrant=reentrant,
            max_hold=max_hold,
            min_hold=min_hold,
            once=once,
            limit=limit,
            detachable=detachable,
            cancel_on_lost=cancel_on_lost,
        )

    def attach(self, handle: Detached | str, *, owner: str | None = None, cancel_on_lost: bool = False) -> Lock:
        """A lock that was detached, by its handle, to be used in `with` and `async with`: `held.detach` gave it.

        It has the fence that it had. Who has it attached elsewhere loses it, with TAKEN_OVER. Its
        release ends it, and the handle. When this process ends without that, or its sidecar, it
        is detached again. When its time is over it is lost, with MAX_HOLD: see extend_detached.

        NotHolder, when it is taken: it was released, or its time is over.
        """
        return Lock(self, "", owner=owner, handle=given_handle(handle), wait=0, cancel_on_lost=cancel_on_lost)

    def extend_detached(self, handle: Detached | str, ttl: Seconds) -> Detached:
        """Let a lock that was detached end so many seconds from now (1 to 86400), attached or not.

        Who has it attached calls this, and then `held.extend`: it does not know of the new end by itself.
        NotHolder: it was released, or its time is over.
        """
        body = {"handle": given_handle(handle), "ttl": duration(given_ttl(ttl))}
        sent = boot_time()
        return Detached.read(_look.ask(self._socket(), "extendHandle", body, "detached"), sent)

    async def extend_detached_async(self, handle: Detached | str, ttl: Seconds) -> Detached:
        """See extend_detached."""
        current_task()
        return await asyncio.to_thread(self.extend_detached, handle, ttl)

    def release_detached(self, handle: Detached | str) -> None:
        """End a lock that was detached. Who has it attached loses it, with TAKEN_OVER. NotHolder: it has ended before."""
        _look.ask(self._socket(), "releaseHandle", {"handle": given_handle(handle)}, "handleReleased")

    async def release_detached_async(self, handle: Detached | str) -> None:
        """See release_detached."""
        current_task()
        await asyncio.to_thread(self.release_detached, handle)

    def once(
        self,
        resource: str,
        *,
        keep: Seconds | None = None,
        max_attempts: int = 0,
        wait: Seconds | None = None,
        owner: str | None = None,
        max_hold: Seconds | None = None,
        min_hold: Seconds | None = None,
        cancel_on_lost: bool = False,
    ) -> Lock:
        """An attempt at something that is to succeed only once. End it by `held.succeeded()` or `held.failed()`.

        AlreadyDone, when it is taken: it has succeeded before. AttemptsExhausted: it was
        tried max_attempts times. keep: for so many seconds that is remembered (none: 30 days).
        A block that ends without a word leaves the outcome UNKNOWN: the next attempt finds
        that in `held.previous`.
        """
        return self.lock(
            resource,
            wait=wait,
            owner=owner,
            max_hold=max_hold,
            min_hold=min_hold,
            once=Once(given_seconds("keep", keep), max_attempts),
            cancel_on_lost=cancel_on_lost,
        )

    def rwlock(
        self,
        resource: str,
        *,
        wait: Seconds | None = None,
        owner: str | None = None,
        reentrant: bool = False,
        max_hold: Seconds | None = None,
        min_hold: Seconds | None = None,
    ) -> RWLock:
        """A lock that many can hold for reading: `rwlock("x").read()`, `.write()`."""
        return RWLock(
            lambda mode: self.lock(
                resource,
                wait=wait,
                owner=owner,
                reentrant=reentrant,
                max_hold=max_hold,
                min_hold=min_hold,
                mode=mode,
            )
        )

    def locked(
        self,
        resource: Resource,
        *,
        wait: Seconds | None = None,
        owner: str | None = None,
        reentrant: bool = False,
        max_hold: Seconds | None = None,
        min_hold: Seconds | None = None,
        mode: Mode | str = Mode.EXCLUSIVE,
        limit: int | None = None,
    ) -> Callable[[F], F]:
        """Decorates a function, or a coroutine function: it runs under the lock."""
        return locked(
            lambda: self,
            resource,
            wait=wait,
            owner=owner,
            reentrant=reentrant,
            max_hold=max_hold,
            min_hold=min_hold,
            mode=mode,
            limit=limit,
        )

    @property
    def draining(self) -> bool:
        """The sidecar is about to stop: finish, and release."""
        session = self._session
        return session is not None and session.error is None and session.core.draining

    @property
    def loop_wait(self) -> float:
        return self._loop_wait

    @loop_wait.setter
    def loop_wait(self, value: float) -> None:
        wait = given_seconds("loop_wait", value) or 0.0
        if wait > _LONGEST_LOOP_WAIT:  # a frozen sidecar must not stop a loop
            raise InvalidRequest(
                f"loop_wait must be {_LONGEST_LOOP_WAIT} s at most, and not {value!r}", metadata={"field": "loop_wait"}
            )
        self._loop_wait = wait

    def open(self) -> None:
        """Open the session now, and not with the first lock. NoSidecar, Draining, …

        A sidecar that hangs up is called again, see connect_timeout.
        """
        self.session()

    def ready(self) -> Session | None:
        """The session, if it is open."""
        session = self._session
        return None if session is None or session.core.error is not None or session.pid != os.getpid() else session

    def session(self) -> Session:
        """The session, opened if need be."""
        return self.ready() or self._open()

    async def session_async(self) -> Session:
        session = self.ready()
        return session if session is not None else await asyncio.shield(self._open_async())

    def _open_async(self) -> asyncio.Future[Session]:
        """One opening for all tasks of a loop.

        In a thread of its own: those of the loop's executor may all wait for this very lock.
        """
        loop = asyncio.get_running_loop()
        opening = self._openings.get(loop)
        if opening is None:
            opening = self._openings[loop] = loop.create_future()

            def done(opening: asyncio.Future[Session]) -> None:
                self._openings.pop(loop, None)
                if not opening.cancelled():
                    opening.exception()  # nobody may be left to see it

            opening.add_done_callback(done)
            thread = threading.Thread(target=self._open_for, args=(loop, opening), name="locksidecar-open", daemon=True)
            try:
                thread.start()
            except RuntimeError:  # the interpreter ends
                self._open_for(loop, opening)
        return opening

    def _open_for(self, loop: asyncio.AbstractEventLoop, opening: asyncio.Future[Session]) -> None:
        tell: Callable[[], None]
        try:
            tell = functools.partial(opening.set_result, self._open())
        except BaseException as e:
            tell = functools.partial(opening.set_exception, e)
        try:
            loop.call_soon_threadsafe(lambda: None if opening.done() else tell())
        except RuntimeError:
            pass  # the loop is closed: nobody waits

    def _open(self) -> Session:
        failed, _ = self._failed
        with self._opening:
            if self._closed:
                raise SessionClosed("this client is closed")
            session = self._session
            if session is not None and session.pid != os.getpid():  # forked behind Python's back
                session.forked()
                session = None
            if session is None or session.error is not None:
                count, error = self._failed
                if error is not None and count != failed:  # while we waited for our turn
                    raise error.again()
                try:
                    session = self._session = self._open_new()
                except LockSidecarError as e:
                    self._failed = count + 1, e.again()  # without its frames
                    raise
                if self._closed:  # by a signal handler of this thread, meanwhile
                    session.close()
                    raise SessionClosed("this client is closed")
            return session

    def _open_new(self) -> Session:
        name = self._name if self._name is not None else _program()
        end = time.monotonic() + self._connect_timeout
        pause = 0.05
        while True:
            try:
                return Session(self._socket(), name, self._metadata, self.loop_wait)
            except (SidecarGone, NoSidecar) as e:
                if not _passes(e) or time.monotonic() + pause > end:
                    raise
            time.sleep(pause)
            pause = min(2 * pause, 1.0)
            if self._closed:
                raise SessionClosed("this client is closed")

    def _socket(self) -> str:
        return self._path if self._path is not None else default_socket()

    # Looks. Each has a connection of its own, and no session. What they give is the
    # API's JSON: see docs/api.md for its fields.

    def get(self, resource: str) -> dict[str, Any]:
        """Who holds a resource and who waits for it, everywhere: `holders` and `waiters`."""
        return _look.ask(self._socket(), "getLock", {"resource": resource}, "lock")

    def held(self, resource: str) -> bool:
        """Whether some app holds it, here or anywhere else."""
        return any(not holder.get("parked") for holder in self.get(resource)["holders"])

    def list(self, prefix: str = "") -> Iterator[dict[str, Any]]:
        """What `get` tells, of all resources with that prefix that are held or waited for, in byte order.

        ListIncomplete: shards of the store did not answer. It comes after what the others have.
        """
        return _look.pages(self._socket(), "listLocks", {"prefix": prefix}, "locks")

    def watch(self, prefix: str = "", *, interval: Seconds = 1.0) -> Iterator[dict[str, Any]]:
        """What is there, then each change that the sidecar sees when it looks: `kind` and `lock`. It does not end.

        The kind MISSING has no lock: the `missingShards` of the store do not answer, and what they have stays as it was
        seen last. Without any: all answer again.
        """
        body = {"prefix": prefix, "partial": True, "interval": duration(given_seconds("interval", interval) or 0.0)}
        return _look.stream(self._socket(), "watchLocks", body, "watched")

    def force(self, resource: str, *, lock_id: str = "", grace: Seconds = 2.0) -> Sequence[str]:
        """Take a lock from its holders, or a waiter out of the queue, by its lock_id. For admins.

        Returns when it is gone: when the holder has let go, or grace is over.
        """
        seconds = given_seconds("grace", grace) or 0.0
        body = {"resource": resource, "lockId": lock_id, "grace": duration(seconds)}
        return list_(_look.ask(self._socket(), "forceRelease", body, "forceReleased", more=seconds)["lockIds"])

    def info(self) -> dict[str, Any]:
        """The sidecar itself: its version, store, lease, and how much it has to do."""
        return _look.ask(self._socket(), "getInfo", {}, "info")

    def leader(self, resource: str) -> dict[str, Any]:
        """Who leads: `leads`, the `holder`, and the `value` that it publishes as metadata `leader` of its Client."""
        return _look.ask(self._socket(), "getLeader", {"resource": resource}, "leader")

    def watch_leader(self, resource: str, *, interval: Seconds = 1.0) -> Iterator[dict[str, Any]]:
        """Who leads, then each change. It does not end."""
        body = {"resource": resource, "interval": duration(given_seconds("interval", interval) or 0.0)}
        return _look.stream(self._socket(), "watchLeader", body, "leader")

    def outcomes(self, prefix: str = "", *, states: Sequence[str] = ()) -> Iterator[dict[str, Any]]:
        """What became of what is done once: of all, or only `FAILED`, `UNKNOWN`, `SUCCEEDED`. ListIncomplete: as of list."""
        return _look.pages(self._socket(), "listOutcomes", {"prefix": prefix, "states": ",".join(states)}, "outcomes")

    def reset_outcome(self, resource: str) -> dict[str, Any] | None:
        """Forget an outcome: the next attempt is the first again. For admins. What it was, or None."""
        return _look.ask(self._socket(), "resetOutcome", {"resource": resource}, "outcomeReset").get("outcome")

    def close(self) -> None:
        """Release everything and end the session, and wait until the sidecar has done so."""
        self._closed = True  # who opens a session sees it
        with self._opening:
            session = self._session
        if session is not None:
            session.close()
            self._session = None  # last: who is interrupted closes it once more

    def __enter__(self) -> Client:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def __del__(self) -> None:
        session = getattr(self, "_session", None)
        if session is not None:
            session.retire()

    def __reduce__(self) -> tuple[Any, ...]:
        path = self._path if self._path is not None else ""
        return _restore, (path, self._name, tuple(sorted(self._metadata.items())), self._connect_timeout, self.loop_wait)

    def _after_fork(self) -> None:
        self._opening = threading.RLock()
        self._openings = {}
        self._session = None


list_ = list  # the method hides it


def _restore(
    path: str, name: str | None, metadata: tuple[tuple[str, str], ...], connect_timeout: float, loop_wait: float = 0.0001
) -> Client:
    """An unpickled client. All that say the same are one, until it is closed or nobody has it."""
    key = (path, name, metadata, connect_timeout, loop_wait)
    client = _restored.get(key)
    if client is None or client._closed:
        client = Client(
            path or None, name=name, metadata=dict(metadata), connect_timeout=connect_timeout, loop_wait=loop_wait
        )
        _restored[key] = client
    return client


_restored: weakref.WeakValueDictionary[object, Client] = weakref.WeakValueDictionary()


def _passes(e: LockSidecarError) -> bool:
    """Whether it may help to ask again: the sidecar is there, and hung up, or its queue of calls is full.

    Both happen where many connect at a time.
    """
    return isinstance(e, SidecarGone) or isinstance(e.__cause__, BlockingIOError)


_LONGEST_NAME = 128  # bytes


def _program() -> str:
    """The name of the program, as far as the API takes it: any bytes can be the name of a file."""
    name = os.path.basename(sys.argv[0] if sys.argv else "") or "python"
    return name.encode(errors="replace")[:_LONGEST_NAME].decode(errors="ignore")


_clients: weakref.WeakSet[Client] = weakref.WeakSet()


def _after_fork_in_child() -> None:
    for client in list(_clients):
        client._after_fork()


os.register_at_fork(after_in_child=_after_fork_in_child)
