"""The few messages of locksidecar.proto that a Session stream carries.

Written by hand, so that the extra needs grpcio alone and not the one version of
protobuf that generated code goes with. Messages are dicts in the form of the API's
JSON, with times as numbers of seconds. A test compares the tables with the proto
file.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple, Union

Kind = Union[str, "Message"]  # "string", "bytes", "int", "bool", "duration", "map", an enum's name, a message


class Field(NamedTuple):
    name: str  # in JSON
    kind: Kind
    repeated: bool = False


class Message(NamedTuple):
    name: str
    fields: Mapping[int, Field]


ENUMS: dict[str, tuple[str, ...]] = {
    "Mode": ("MODE_UNSPECIFIED", "EXCLUSIVE", "SHARED"),
    "LostReason": (
        "LOST_REASON_UNSPECIFIED",
        "LEASE_EXPIRED",
        "LEASE_LOST",
        "FORCED",
        "MAX_HOLD",
        "SESSION_EXPIRED",
        "STORE_LOST",
        "STOPPING",
    ),
}

GUARD = Message("Guard", {1: Field("dialect", "string"), 2: Field("sql", "string"), 3: Field("args", "string", True)})
GRANT = Message(
    "Grant",
    {
        1: Field("lockId", "string"),
        2: Field("resource", "string"),
        3: Field("mode", "Mode"),
        4: Field("fence", "int"),
        5: Field("validFor", "duration"),
        6: Field("count", "int"),
        7: Field("countedAt", "duration"),
        8: Field("guard", GUARD),
    },
)
OPENED = Message(
    "OpenSessionResponse",
    {
        1: Field("sessionId", "string"),
        2: Field("leaseTtl", "duration"),
        3: Field("sidecar", "string"),
        4: Field("countedAt", "duration"),
        5: Field("leaseMargin", "duration"),
    },
)
LEASE = Message(
    "LeaseNews",
    {1: Field("validFor", "duration"), 2: Field("jeopardy", "bool"), 3: Field("countedAt", "duration")},
)
LOST = Message(
    "Lost",
    {
        1: Field("lockId", "string"),
        2: Field("resource", "string"),
        3: Field("fence", "int"),
        4: Field("reason", "LostReason"),
        5: Field("grace", "duration"),
        6: Field("message", "string"),
        7: Field("countedAt", "duration"),
    },
)
DRAINING = Message("Draining", {1: Field("remaining", "duration"), 2: Field("countedAt", "duration")})
EVENT = Message("Event", {3: Field("lease", LEASE), 4: Field("lost", LOST), 5: Field("draining", DRAINING)})
RELEASED = Message("ReleaseResponse", {1: Field("count", "int")})
NOTHING = Message("CancelResponse", {})
ANY = Message("google.protobuf.Any", {1: Field("typeUrl", "string"), 2: Field("value", "bytes")})
STATUS = Message(
    "google.rpc.Status", {1: Field("code", "int"), 2: Field("message", "string"), 3: Field("details", ANY, True)}
)
ERROR_INFO = Message(
    "google.rpc.ErrorInfo", {1: Field("reason", "string"), 2: Field("domain", "string"), 3: Field("metadata", "map")}
)
SESSION_RESPONSE = Message(
    "SessionResponse",
    {
        1: Field("requestId", "string"),
        2: Field("opened", OPENED),
        3: Field("granted", GRANT),
        4: Field("cancelled", NOTHING),
        5: Field("released", RELEASED),
        6: Field("downgraded", GRANT),
        8: Field("error", STATUS),
        9: Field("event", EVENT),
    },
)

OPEN = Message("OpenSessionRequest", {3: Field("name", "string"), 4: Field("metadata", "map")})
ACQUIRE = Message(
    "AcquireRequest",
    {
        3: Field("resource", "string"),
        4: Field("mode", "Mode"),
        5: Field("wait", "duration"),
        6: Field("maxHold", "duration"),
        7: Field("owner", "string"),
        10: Field("reentrant", "bool"),
    },
)
CANCEL = Message("CancelRequest", {1: Field("requestId", "string")})
RELEASE = Message("ReleaseRequest", {2: Field("lockId", "string"), 3: Field("requestId", "string")})
DOWNGRADE = Message("DowngradeRequest", {2: Field("lockId", "string")})
SESSION_REQUEST = Message(
    "SessionRequest",
    {
        1: Field("requestId", "string"),
        2: Field("open", OPEN),
        3: Field("acquire", ACQUIRE),
        4: Field("cancel", CANCEL),
        5: Field("release", RELEASE),
        6: Field("downgrade", DOWNGRADE),
    },
)

_STRING_MAP = Message("", {1: Field("key", "string"), 2: Field("value", "string")})
_NANO = 1_000_000_000
_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5


class BadMessage(Exception):
    """That is no message."""


def encode(message: Message, values: Mapping[str, Any]) -> bytes:
    """Write a message. What is absent or None is left out; a value that is there is written, 0 too."""
    out = bytearray()
    for number, field in message.fields.items():
        value = values.get(field.name)
        if value is not None:
            _write(out, number, field.kind, value)
    return bytes(out)


def _write(out: bytearray, number: int, kind: Kind, value: Any) -> None:
    if isinstance(kind, Message):
        _write_bytes(out, number, encode(kind, value))
    elif kind == "string":
        _write_bytes(out, number, value.encode())
    elif kind == "map":
        for k, v in value.items():
            _write_bytes(out, number, encode(_STRING_MAP, {"key": k, "value": v}))
    elif kind == "duration":
        total = round(value * _NANO)
        whole, nano = abs(total) // _NANO, abs(total) % _NANO
        sign = -1 if total < 0 else 1
        one = bytearray()
        _write_varint(one, 1 << 3)
        _write_varint(one, sign * whole)
        _write_varint(one, 2 << 3)
        _write_varint(one, sign * nano)
        _write_bytes(out, number, bytes(one))
    else:
        _write_varint(out, number << 3)
        _write_varint(out, ENUMS[kind].index(value) if kind in ENUMS else int(value))


def _write_bytes(out: bytearray, number: int, data: bytes) -> None:
    _write_varint(out, number << 3 | _BYTES)
    _write_varint(out, len(data))
    out += data


def _write_varint(out: bytearray, n: int) -> None:
    n &= (1 << 64) - 1
    while n > 0x7F:
        out.append(n & 0x7F | 0x80)
        n >>= 7
    out.append(n)


def decode(message: Message, data: bytes) -> dict[str, Any]:
    """Read a message. Fields that are not in the table are skipped.

    As in JSON from the sidecar, plain fields that were not sent have their zero
    value; messages are there only if they were sent.
    """
    values: dict[str, Any] = {}
    for field in message.fields.values():
        if field.repeated:
            values[field.name] = []
        elif not isinstance(field.kind, Message):
            values[field.name] = _zero(field.kind)
    for number, raw in _fields(data):
        found = message.fields.get(number)
        if found is None:
            continue
        value = _read(found.kind, raw)
        if found.repeated:
            values[found.name].append(value)
        elif found.kind == "map":
            values[found.name][value["key"]] = value["value"]
        else:
            values[found.name] = value
    return values


_ZEROS: dict[str, Callable[[], Any]] = {
    "string": str,
    "bytes": bytes,
    "int": int,
    "bool": bool,
    "duration": float,
    "map": dict,
}


def _zero(kind: str) -> Any:
    return ENUMS[kind][0] if kind in ENUMS else _ZEROS[kind]()


def _read(kind: Kind, raw: int | bytes) -> Any:
    if isinstance(raw, int):
        if isinstance(kind, Message) or kind in ("string", "bytes", "duration", "map"):
            raise BadMessage(f"a number where {kind} should be")
        signed = raw - (1 << 64) if raw >= 1 << 63 else raw
        if kind in ENUMS:
            names = ENUMS[kind]
            return names[signed] if 0 <= signed < len(names) else str(signed)
        return bool(raw) if kind == "bool" else signed
    if isinstance(kind, Message):
        return decode(kind, raw)
    if kind == "string":
        return raw.decode()
    if kind == "bytes":
        return raw
    if kind == "map":
        return decode(_STRING_MAP, raw)
    if kind == "duration":
        parts = {number: _read("int", value) for number, value in _fields(raw)}
        return parts.get(1, 0) + parts.get(2, 0) / _NANO
    raise BadMessage(f"bytes where {kind} should be")


def _fields(data: bytes) -> Iterator[tuple[int, int | bytes]]:
    at = 0
    while at < len(data):
        key, at = _varint(data, at)
        wire = key & 7
        value: int | bytes
        if wire == _VARINT:
            value, at = _varint(data, at)
        elif wire == _BYTES:
            size, at = _varint(data, at)
            value, at = data[at : at + size], at + size
        elif wire == _FIXED64:
            value, at = struct.unpack_from("<Q", data, at)[0], at + 8
        elif wire == _FIXED32:
            value, at = struct.unpack_from("<I", data, at)[0], at + 4
        else:
            raise BadMessage(f"wire type {wire}")
        if at > len(data):
            raise BadMessage("it is cut off")
        yield key >> 3, value


def _varint(data: bytes, at: int) -> tuple[int, int]:
    n = shift = 0
    while at < len(data):
        byte = data[at]
        at += 1
        n |= (byte & 0x7F) << shift
        if byte < 0x80:
            return n, at
        shift += 7
    raise BadMessage("it is cut off")
