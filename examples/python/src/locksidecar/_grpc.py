"""The transport of the extra [grpc]: one Session stream for everything.

The session ends with the stream. One thread reads; nothing of the user's runs in
it. grpcio does not survive a fork, so a child gets the other transport.
"""

from __future__ import annotations

import asyncio
import queue
import threading
from collections.abc import Iterator, Mapping
from typing import Any

from ._clock import boot_time
from ._errors import (
    InvalidRequest,
    LimitExceeded,
    LockSidecarError,
    SidecarGone,
    SidecarSilent,
    from_status,
)
from ._grpcio import grpc
from ._hold import Bell
from ._model import Acquire, Call, Downgrade, Release, Sink
from ._proto import ERROR_INFO, SESSION_REQUEST, SESSION_RESPONSE, STATUS, BadMessage, decode, encode
from ._socket import connect

_METHOD = "/locksidecar.v1.LockSidecar/Session"
_OPEN_TIMEOUT = 5.0
_OPEN_ID = "open"
# Longer strings end the whole stream; what the limits are, the sidecar tells itself.
_MAX_STRING = 4096

_OPTIONS = (
    ("grpc.default_authority", "localhost"),
    ("grpc.use_local_subchannel_pool", 1),
    ("grpc.enable_retries", 0),
    ("grpc.enable_http_proxy", 0),
)

# In a child, what is left of grpcio must not be touched, and not be freed either.
_graveyard: list[object] = []


class _Pending:
    """A request without an answer yet."""

    def __init__(self, call: Call | None) -> None:
        self.call = call
        self.abandoned = False
        self.answer: Mapping[str, Any] | None = None
        self.done = Bell()
        self.waker: tuple[asyncio.AbstractEventLoop, asyncio.Future[None]] | None = None

    def answered(self, answer: Mapping[str, Any] | None) -> None:
        self.answer = answer
        self.done.ring()
        if self.waker is not None:
            loop, future = self.waker
            try:
                loop.call_soon_threadsafe(_wake, future)
            except RuntimeError:
                pass  # the loop is closed: nobody waits


def _wake(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)


class _Opening:
    """What came of opening the stream."""

    def __init__(self) -> None:
        self.done = Bell()
        self.abandoned = False
        self.answer: tuple[float, Mapping[str, Any]] = (0.0, {})
        self.error: BaseException | None = None


class GRPC:
    """A transport, see _model.Transport."""

    def __init__(self, path: str) -> None:
        self.path = path
        self._mutex = threading.RLock()
        self._pending: dict[str, _Pending] = {}
        self._last_id = 0
        self._ended = False
        self._requests: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
        self._done = Bell()
        self._channel: Any = None
        self._stream: Any = None

    def open(self, request: Mapping[str, Any], sink: Sink) -> tuple[float, Mapping[str, Any]]:
        # In a thread, as an interrupt in the middle of grpcio's own work would leave it
        # in pieces: signals are the main thread's.
        opening = _Opening()

        def start() -> None:
            try:
                opening.answer = self._start(request, sink)
            except BaseException as e:
                opening.error = e
            opening.done.ring()
            if opening.abandoned:
                self.drop()

        try:
            threading.Thread(target=start, name="locksidecar-open", daemon=True).start()
            opening.done.wait()
        except BaseException:
            opening.abandoned = True
            if opening.done.rung:
                self.drop()
            raise
        if opening.error is not None:
            raise opening.error
        return opening.answer

    def _start(self, request: Mapping[str, Any], sink: Sink) -> tuple[float, Mapping[str, Any]]:
        connect(self.path).close()  # grpcio would not say what is wrong with the path
        self._channel = grpc.insecure_channel(f"unix:{self.path}", _OPTIONS)
        start = self._channel.stream_stream(_METHOD, request_serializer=None, response_deserializer=None)
        pending = self._pending[_OPEN_ID] = _Pending(None)
        sent = boot_time()
        self._requests.put(encode(SESSION_REQUEST, {"requestId": _OPEN_ID, "open": request}))
        self._stream = start(iter(self._requests.get, None))
        threading.Thread(target=self._listen, args=(self._stream, sink), name="locksidecar-events", daemon=True).start()
        try:
            if not pending.done.wait(_OPEN_TIMEOUT):
                raise _silent(_OPEN_TIMEOUT)
            opened: Mapping[str, Any] = self._take(pending)["opened"]
        except BaseException:
            self.drop()
            raise
        return sent, opened

    def _listen(self, stream: Iterator[bytes], sink: Sink) -> None:
        why = "the connection to the sidecar ended"
        error: LockSidecarError | None = None
        try:
            for raw in stream:
                m = decode(SESSION_RESPONSE, raw)
                if event := m.get("event"):
                    sink.news(event)
                else:
                    self._answered(m)
        except grpc.RpcError as e:
            error = _refusal(e)
            why = error.message if error is not None else why
        except BadMessage as e:
            why = f"the sidecar sent what is no message: {e}"
        sink.gone(why)
        with self._mutex:
            self._ended = True
            pending, self._pending = self._pending, {}
        for p in pending.values():
            p.answered({"refused": error} if error is not None else None)
        self._requests.put(None)
        self._channel.close()
        self._done.ring()

    def _answered(self, m: Mapping[str, Any]) -> None:
        with self._mutex:
            pending = self._pending.pop(m["requestId"], None)
        if pending is None:
            return
        with self._mutex:
            if pending.abandoned:
                self._give_back(m)
            else:
                pending.answered(m)

    def _give_back(self, m: Mapping[str, Any]) -> None:
        if granted := m.get("granted"):
            self._send(_Pending(None), "release", {"lockId": granted["lockId"]})

    # Calls.

    def call(self, call: Call, timeout: float | None) -> Mapping[str, Any]:
        pending = self._begin(call)
        if not pending.done.wait(timeout):
            raise _silent(timeout)
        return self._take(pending)

    async def call_async(self, call: Call, timeout: float | None) -> Mapping[str, Any]:
        loop = asyncio.get_running_loop()
        future: asyncio.Future[None] = loop.create_future()
        pending = self._begin(call, (loop, future))
        timer = loop.call_later(timeout, _wake, future) if timeout is not None else None
        try:
            await future
        finally:
            if timer is not None:
                timer.cancel()
        if not pending.done.rung:
            raise _silent(timeout)
        return self._take(pending)

    def _begin(
        self, call: Call, waker: tuple[asyncio.AbstractEventLoop, asyncio.Future[None]] | None = None
    ) -> _Pending:
        pending = _Pending(call)
        pending.waker = waker
        call.transport = pending
        call.sent = boot_time()
        self._send(pending, *_request(call))
        return pending

    def _send(self, pending: _Pending, kind: str, fields: Mapping[str, Any]) -> None:
        with self._mutex:
            if self._ended:
                raise self._broken()
            self._last_id += 1
            request_id = str(self._last_id)
            raw = encode(SESSION_REQUEST, {"requestId": request_id, kind: fields})
            self._pending[request_id] = pending
            self._requests.put(raw)

    def _take(self, pending: _Pending) -> Mapping[str, Any]:
        answer = pending.answer
        if answer is None:
            raise self._broken()
        if refused := answer.get("refused"):
            raise refused
        if pending.call is not None:
            pending.call.answered = True
        if status := answer.get("error"):
            raise from_status(_readable(status))
        for kind in ("granted", "released", "downgraded"):
            if kind in answer:
                result: Mapping[str, Any] = answer[kind]
                return result
        return answer

    def _broken(self) -> SidecarGone:
        return SidecarGone(f"the connection to the sidecar at {self.path} broke")

    # The end.

    def abandon(self, call: Call) -> None:
        pending = call.transport
        try:
            if isinstance(call.operation, Release):
                self._send(_Pending(None), *_request(call))
            elif isinstance(pending, _Pending):
                with self._mutex:
                    pending.abandoned = True
                    if pending.answer is not None:
                        self._give_back(pending.answer)
                        return
                    ids = [i for i, p in self._pending.items() if p is pending]
                    for request_id in ids:
                        self._send(_Pending(None), "cancel", {"requestId": request_id})
        except SidecarGone:
            pass  # then everything is released

    def close(self, timeout: float) -> None:
        """Half-close the stream: the sidecar releases everything, and then ends it."""
        self._requests.put(None)
        if not self._done.wait(timeout):
            self._stream.cancel()

    def drop(self) -> None:
        if self._stream is not None:
            self._stream.cancel()

    def forget(self) -> None:
        _graveyard.append(self.__dict__.copy())
        self._ended = True
        self._mutex = threading.RLock()


def _request(call: Call) -> tuple[str, Mapping[str, Any]]:
    operation = call.operation
    if isinstance(operation, Release):
        return "release", {"lockId": operation.lock_id, "requestId": operation.request_id}
    if isinstance(operation, Downgrade):
        return "downgrade", {"lockId": operation.lock_id}
    assert isinstance(operation, Acquire)
    wanted = operation.wanted
    for field, value in (("resource", wanted.resource), ("owner", wanted.owner)):
        _check(field, value)
    return "acquire", {
        "resource": wanted.resource,
        "mode": wanted.mode.value,
        "wait": wanted.wait,
        "maxHold": wanted.max_hold,
        "owner": wanted.owner,
        "reentrant": wanted.reentrant,
    }


def _check(field: str, value: str) -> None:
    try:
        size = len(value.encode())
    except UnicodeEncodeError:
        raise InvalidRequest(f"{field} is not valid Unicode", metadata={"field": field}) from None
    if size > _MAX_STRING:
        raise InvalidRequest(f"{field} is {size} bytes long", metadata={"field": field})


def _readable(status: Mapping[str, Any]) -> Mapping[str, Any]:
    """The status with its details unpacked, as in JSON."""
    details = [
        decode(ERROR_INFO, detail["value"])
        for detail in status["details"]
        if detail["typeUrl"].endswith("/google.rpc.ErrorInfo")
    ]
    return {**status, "details": details}


def _refusal(e: Any) -> LockSidecarError | None:
    """What the sidecar said when it ended the stream, if it said something."""
    for key, value in e.trailing_metadata() or ():
        if key == "grpc-status-details-bin":
            said = from_status(_readable(decode(STATUS, value)))
            return said if said.reason != "INTERNAL" else None
    if e.code() == grpc.StatusCode.RESOURCE_EXHAUSTED:
        return LimitExceeded(e.details() or "")
    return None


def _silent(timeout: float | None) -> SidecarSilent:
    return SidecarSilent(f"the sidecar did not answer within {timeout:g} s; it may be frozen")
