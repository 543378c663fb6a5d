"""HTTP/1.1 over a Unix socket, as much of it as the sidecar speaks.

http.client would do too, but its responses are objects over files over sockets,
and cost more than the lock itself. These parsers do no input or output, so that
threads and tasks share them.
"""

from __future__ import annotations

from typing import NamedTuple


class Response(NamedTuple):
    status: int
    body: bytes
    reusable: bool  # whether the connection may be used again


class BadResponse(Exception):
    """That is no HTTP."""


def request(method: str, path: str, body: bytes = b"") -> bytes:
    head = f"{method} {path} HTTP/1.1\r\nHost: locksidecar\r\n"
    if method == "POST":
        head += f"Content-Length: {len(body)}\r\n"
    return head.encode("ascii") + b"\r\n" + body


class Head(NamedTuple):
    status: int
    length: int  # of the body; -1: it is chunked
    close: bool
    size: int  # of the head itself


def parse_head(buf: bytes | bytearray) -> Head | None:
    """The head of a response, or None where it is not there in full."""
    end = buf.find(b"\r\n\r\n")
    if end < 0:
        return None
    lines = bytes(buf[:end]).decode("latin-1").split("\r\n")
    try:
        version, status = lines[0].split(" ", 2)[:2]
        if not version.startswith("HTTP/1."):
            raise BadResponse(lines[0])
        length, chunked, close = 0, False, version == "HTTP/1.0"
        for line in lines[1:]:
            name, _, value = line.partition(":")
            name, value = name.lower(), value.strip()
            if name == "content-length":
                length = int(value)
            elif name == "transfer-encoding":
                chunked = value.lower() == "chunked"
            elif name == "connection":
                close = close or value.lower() == "close"
        return Head(int(status), -1 if chunked else length, close, end + 4)
    except ValueError as e:
        raise BadResponse(lines[0]) from e


def parse(buf: bytes | bytearray) -> Response | None:
    """A whole response, or None where it is not there in full."""
    head = parse_head(buf)
    if head is None:
        return None
    if head.length >= 0:
        end = head.size + head.length
        if len(buf) < end:
            return None
        # Bytes behind the end were not asked for: what comes next could not be told.
        return Response(head.status, bytes(buf[head.size : end]), not head.close and len(buf) == end)
    chunks = Chunks()
    body = chunks.feed(bytes(buf[head.size :]))
    if not chunks.ended:
        return None
    return Response(head.status, body, False)


class Chunks:
    """Takes the chunks of a body apart."""

    def __init__(self) -> None:
        self.ended = False
        self._raw = bytearray()

    def feed(self, data: bytes) -> bytes:
        """What these bytes add to the body."""
        self._raw += data
        body = bytearray()
        while not self.ended:
            line = self._raw.find(b"\r\n")
            if line < 0:
                break
            try:
                size = int(self._raw[:line].split(b";", 1)[0], 16)
            except ValueError as e:
                raise BadResponse("a chunk without a size") from e
            if size == 0:
                self.ended = True
                break
            end = line + 2 + size
            if len(self._raw) < end + 2:
                break
            body += self._raw[line + 2 : end]
            del self._raw[: end + 2]
        return bytes(body)


class Lines:
    """Gives whole lines."""

    def __init__(self) -> None:
        self._rest = b""

    def feed(self, data: bytes) -> list[bytes]:
        *lines, self._rest = (self._rest + data).split(b"\n")
        return lines
