"""The default transport: HTTP/1.1 over the Unix socket, with nothing but the standard library.

The session is the response to the request that opened it, which brings the news and
which a daemon thread reads. It ends with that connection, and with this process, whatever
else has a copy of the socket. Each call has a connection of its own. A call whose connection
ends is sent again on another: the sidecar closes one that has been idle, or has just
come, to make room. It is the same call to the sidecar, however often it comes.
"""

from __future__ import annotations

import asyncio
import json
import math
import queue
import socket
import threading
import time
from collections.abc import Mapping
from typing import Any
from urllib.parse import quote

from ._clock import boot_time
from ._errors import LimitExceeded, LockSidecarError, NoSidecar, SidecarGone, SidecarSilent, from_status
from ._model import Acquire, Call, Cancel, Downgrade, Operation, Release, Sink, duration
from ._socket import connect, explain
from ._wire import BadResponse, Chunks, Lines, Response, parse, parse_head, request

_OPEN_TIMEOUT = 5.0
_LAST_ANSWERS = 2.0
_SHORTEST_PAUSE, _LONGEST_PAUSE = 0.02, 0.5  # before a call is sent again
_IDLE = 16  # connections that are kept open for the next call


class Connection:
    """One connection, for one call at a time; kept open between calls."""

    def __init__(self, sock: socket.socket) -> None:
        self.sock = sock
        self.used = False  # answered a call before
        self._buf = bytearray()

    def send(self, payload: bytes, timeout: float | None) -> None:
        self.sock.settimeout(timeout)
        self.sock.sendall(payload)

    def receive(self) -> Response | None:
        """The response; None: the connection ended. TimeoutError by the time-out of send."""
        while not self._buf or (response := parse(self._buf)) is None:
            data = self.sock.recv(65536)
            if not data:
                return None
            self._buf += data
        self._done()
        return response

    async def send_async(self, loop: asyncio.AbstractEventLoop, payload: bytes) -> None:
        self.sock.setblocking(False)
        await loop.sock_sendall(self.sock, payload)

    async def receive_async(self, loop: asyncio.AbstractEventLoop) -> Response | None:
        while not self._buf or (response := parse(self._buf)) is None:
            data = await loop.sock_recv(self.sock, 65536)
            if not data:
                return None
            self._buf += data
        self._done()
        return response

    def _done(self) -> None:
        self._buf.clear()
        self.used = True

    def hang_up(self, how: int = socket.SHUT_RDWR) -> None:
        """Tell the sidecar, and wake who reads; to close alone would do neither where a child has a copy."""
        try:
            self.sock.shutdown(how)
        except OSError:
            pass  # it has ended


class _Retries:
    """When a call is sent again whose connection has ended."""

    def __init__(self, timeout: float | None) -> None:
        self._end = math.inf if timeout is None else time.monotonic() + timeout
        self._pause = _SHORTEST_PAUSE

    def pause(self, connection: Connection) -> float | None:
        """How long to wait before; None: it has been tried for long enough."""
        if connection.used:  # it was closed, being idle, and others may be too
            return 0.0
        if time.monotonic() + self._pause > self._end:
            return None
        pause, self._pause = self._pause, min(2 * self._pause, _LONGEST_PAUSE)
        return pause


class HTTP:
    """A transport, see _model.Transport."""

    def __init__(self, path: str) -> None:
        self.path = path
        self._session = ""
        self._all: set[Connection] = set()  # all that are open
        self._idle: list[Connection] = []
        self._ended = False
        self._closed = False  # by us
        self._chores: queue.SimpleQueue[Call | None] = queue.SimpleQueue()  # None: it is over
        self._starting = threading.Lock()
        self._cleaner: threading.Thread | None = None

    def open(self, request_: Mapping[str, Any], sink: Sink) -> tuple[float, Mapping[str, Any]]:
        body = json.dumps({**request_, "liveness": "STREAM"}).encode()
        connection = self._connect()
        sent = boot_time()
        events = Events(connection)
        try:
            connection.send(request("POST", "/v1/sessions", body), _OPEN_TIMEOUT)
            opened = next(events)["opened"]
            connection.sock.settimeout(None)
        except BaseException as e:
            self._discard(connection)
            if isinstance(e, TimeoutError):
                raise SidecarSilent(_silence(_OPEN_TIMEOUT)) from e
            if isinstance(e, StopIteration):
                raise self._broken(None) from None
            if isinstance(e, (OSError, BadResponse, KeyError)):
                raise self._broken(e) from e
            raise
        self._session = "/v1/sessions/" + quote(str(opened["sessionId"]), safe="")
        threading.Thread(target=self._listen, args=(events, sink), name="locksidecar-events", daemon=True).start()
        return sent, opened

    def _listen(self, events: Events, sink: Sink) -> None:
        why = events.run(sink)
        self._discard(events.connection)
        sink.gone(why)
        if self._closed:
            return
        # A sidecar that stops may still be writing answers, and one that died has
        # ended all connections by itself.
        end = time.monotonic() + _LAST_ANSWERS
        while self._all and time.monotonic() < end:
            time.sleep(0.05)
        self._hang_up_all()

    # Calls.

    def call(self, call: Call, timeout: float | None) -> Mapping[str, Any]:
        payload = self._encode(call.operation)
        retries = _Retries(timeout)
        while True:
            try:
                connection = self._take()
            except NoSidecar as e:
                if call.sent:  # once, on a connection that broke: it has seen the sidecar go
                    raise self._broken(e) from e
                raise
            call.transport = connection
            error: Exception | None = None
            response: Response | None = None
            call.sent = boot_time()
            try:
                connection.send(payload, timeout)
                response = connection.receive()
            except TimeoutError as e:
                self._left(call, connection)
                raise SidecarSilent(_silence(timeout)) from e
            except (OSError, BadResponse) as e:
                error = e
            except BaseException:
                self._left(call, connection)
                raise
            if response is not None:
                return self._answered(call, connection, response)
            call.transport = None
            self._discard(connection)
            pause = retries.pause(connection)
            if pause is None or self._ended:
                raise self._broken(error) from error
            time.sleep(pause)

    async def call_async(self, call: Call, timeout: float | None) -> Mapping[str, Any]:
        loop = asyncio.get_running_loop()
        payload = self._encode(call.operation)
        retries = _Retries(timeout)
        while True:
            try:
                connection = self._idle_one() or await self._connect_async(loop)
            except NoSidecar as e:
                if call.sent:  # once, on a connection that broke: it has seen the sidecar go
                    raise self._broken(e) from e
                raise
            call.transport = connection
            error: Exception | None = None
            response: Response | None = None
            late = False

            def give_up(connection: Connection = connection) -> None:
                nonlocal late
                late = True
                connection.hang_up(socket.SHUT_RD)

            timer = loop.call_later(timeout, give_up) if timeout is not None else None
            call.sent = boot_time()
            try:
                await connection.send_async(loop, payload)
                response = await connection.receive_async(loop)
            except (OSError, BadResponse) as e:
                error = e
            except BaseException:
                self._left(call, connection)
                raise
            finally:
                if timer is not None:
                    timer.cancel()
            if response is not None:
                return self._answered(call, connection, response)
            if late:
                self._discard(connection)
                call.transport = None
                raise SidecarSilent(_silence(timeout))
            call.transport = None
            self._discard(connection)
            pause = retries.pause(connection)
            if pause is None or self._ended:
                raise self._broken(error) from error
            await asyncio.sleep(pause)

    def _encode(self, operation: Operation) -> bytes:
        if isinstance(operation, Acquire):
            wanted = operation.wanted
            body: dict[str, Any] = {
                "resource": wanted.resource,
                "mode": wanted.mode.value,
                "owner": wanted.owner,
                "reentrant": wanted.reentrant,
                "requestId": operation.request_id,
            }
            if wanted.wait is not None:
                body["wait"] = duration(wanted.wait)
            if wanted.max_hold is not None:
                body["maxHold"] = duration(wanted.max_hold)
            return request("POST", self._session + "/locks", json.dumps(body).encode())
        if isinstance(operation, Cancel):
            return request("DELETE", f"{self._session}/requests/{quote(operation.request_id, safe='')}")
        path = f"{self._session}/locks/{quote(operation.lock_id, safe='')}"
        if isinstance(operation, Downgrade):
            return request("POST", path + ":downgrade")
        # A connection that was idle may be found closed: the request is sent again then.
        return request("DELETE", f"{path}?requestId={quote(operation.request_id)}")

    def _answered(self, call: Call, connection: Connection, response: Response) -> Mapping[str, Any]:
        call.answered = True
        call.transport = None
        self._put_back(connection, response)
        return self._read(response)

    def _read(self, response: Response) -> Mapping[str, Any]:
        try:
            answer = json.loads(response.body)
        except ValueError:
            text = response.body.decode("utf-8", "replace")
            raise LockSidecarError(f"the sidecar answered with status {response.status}: {text}") from None
        if response.status != 200:
            raise from_status(answer)
        assert isinstance(answer, dict)
        return answer

    def _left(self, call: Call, connection: Connection) -> None:
        """A call has left without its answer. That of an acquire is still wanted, by abandon."""
        if not isinstance(call.operation, Acquire):
            call.transport = None
            self._discard(connection)

    def _broken(self, e: Exception | None) -> SidecarGone:
        return SidecarGone(f"the connection to the sidecar at {self.path} broke" + (f": {e}" if e else ""))

    # Connections.

    def _take(self) -> Connection:
        return self._idle_one() or self._connect()

    def _idle_one(self) -> Connection | None:
        try:
            return self._idle.pop()
        except IndexError:
            return None

    def _connect(self) -> Connection:
        connection = Connection(connect(self.path))
        self._all.add(connection)
        return connection

    async def _connect_async(self, loop: asyncio.AbstractEventLoop) -> Connection:
        sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            sock.setblocking(False)
            await loop.sock_connect(sock, self.path)
        except OSError as e:
            sock.close()
            raise explain(self.path, e) from e
        except BaseException:
            sock.close()
            raise
        connection = Connection(sock)
        self._all.add(connection)
        return connection

    def _put_back(self, connection: Connection, response: Response) -> None:
        if response.reusable and len(self._idle) < _IDLE and not self._ended:
            self._idle.append(connection)
        else:
            self._discard(connection)

    def _discard(self, connection: Connection) -> None:
        self._all.discard(connection)
        connection.hang_up()
        connection.sock.close()

    # What goes on when the caller has left.

    def abandon(self, call: Call) -> None:
        if isinstance(call.operation, Acquire) and call.sent == 0:
            return
        if isinstance(call.transport, Connection):
            # The sidecar sees the end of what we send, ends the wait, and says so: or
            # it says that it had granted the lock before.
            call.transport.hang_up(socket.SHUT_WR)
        self._chores.put(call)
        with self._starting:
            if self._cleaner is None:
                self._cleaner = threading.Thread(target=self._clean, name="locksidecar-cleaner", daemon=True)
                try:
                    self._cleaner.start()
                except RuntimeError:  # the interpreter ends, and with it the session
                    self._cleaner = None

    def _clean(self) -> None:
        while not self._ended:
            call = self._chores.get()
            if call is None:
                return
            pause = _SHORTEST_PAUSE
            while not self._cleaned_up(call) and not self._ended:
                time.sleep(pause)
                pause = min(2 * pause, _LONGEST_PAUSE)

    def _cleaned_up(self, call: Call) -> bool:
        """Whether nothing is left of it; else the sidecar has not heard of it, as there was no connection."""
        try:
            self._clean_up(call)
        except (LimitExceeded, NoSidecar):
            return False
        except LockSidecarError:
            pass  # nothing is held, or the session has ended
        return True

    def _clean_up(self, call: Call) -> None:
        operation = call.operation
        if not isinstance(operation, Acquire):
            self.call(Call(operation), None)
            return
        connection = call.transport
        if isinstance(connection, Connection):
            call.transport = None
            response: Response | None = None
            try:
                connection.sock.settimeout(None)
                response = connection.receive()
            except (OSError, BadResponse):
                pass
            self._discard(connection)
            if response is not None:
                self.call(Call(operation.release(str(self._read(response)["lockId"]))), None)
                return
        # Nobody knows what the answer was, or whether the sidecar has read the request.
        self.call(Call(Cancel(operation.request_id)), None)

    # The end.

    def _end_session(self, timeout: float) -> None:
        try:
            connection = self._connect()
        except LockSidecarError:
            return
        try:
            connection.send(request("DELETE", self._session), timeout)
            connection.receive()
        except (OSError, BadResponse):
            pass  # it is gone, or frozen: then it ends the session with this process
        finally:
            self._discard(connection)

    def close(self, timeout: float) -> None:
        self._closed = self._ended = True
        self._end_session(timeout)
        self.drop()
        self._hang_up_all()

    def drop(self) -> None:
        self._ended = True
        while (connection := self._idle_one()) is not None:
            self._discard(connection)
        self._chores.put(None)

    def _hang_up_all(self) -> None:
        for connection in list(self._all):
            connection.hang_up()  # who uses it closes it

    def forget(self) -> None:
        self._ended = True
        self._idle.clear()
        for connection in list(self._all):
            connection.sock.close()  # our copy, and no more
        self._all.clear()
        self._starting = threading.Lock()
        self._chores = queue.SimpleQueue()


class Events:
    """The news, line by line. Iterated over by one thread."""

    def __init__(self, connection: Connection) -> None:
        self.connection = connection
        self._chunks = Chunks()
        self._lines = Lines()
        self._read: list[bytes] = []
        self._begun = False
        self._raw = b""

    def __iter__(self) -> Events:
        return self

    def __next__(self) -> Mapping[str, Any]:
        while not self._read:
            data = b"" if self._chunks.ended else self.connection.sock.recv(65536)
            if not data:
                raise StopIteration
            if not self._begun:
                self._raw += data
                head = parse_head(self._raw)
                if head is None:
                    continue
                if head.status != 200:
                    raise self._refused()
                self._begun = True
                data, self._raw = self._raw[head.size :], b""
            self._read = self._lines.feed(self._chunks.feed(data))
        event = json.loads(self._read.pop(0))
        assert isinstance(event, dict)
        return event

    def _refused(self) -> LockSidecarError:
        while (response := parse(self._raw)) is None:
            data = self.connection.sock.recv(65536)
            if not data:
                return LockSidecarError("the sidecar refused, and did not say why")
            self._raw += data
        return from_status(json.loads(response.body))

    def run(self, sink: Sink) -> str:
        """Bring all news to the sink. Returns why they ended."""
        why = "the connection to the sidecar ended"
        try:
            for event in self:
                if error := event.get("error"):
                    why = str(error.get("message", why))
                else:
                    sink.news(event)
        except (OSError, BadResponse, ValueError, LockSidecarError):
            pass  # which is the end, too
        return why


def _silence(timeout: float | None) -> str:
    return f"the sidecar did not answer within {timeout:g} s; it may be frozen"
