"""What an app asks for and gets, as plain values."""

from __future__ import annotations

import enum
import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any, Union

from ._clock import boot_time
from ._errors import InvalidRequest


class Mode(str, enum.Enum):
    """How a resource is locked."""

    EXCLUSIVE = "EXCLUSIVE"  # alone
    SHARED = "SHARED"  # beside other shared holds
    PERMIT = "PERMIT"  # one of so many, of a lock with a limit


_encode = json.JSONEncoder(separators=(",", ":"), allow_nan=False).encode

MODES = {mode.value: mode for mode in Mode}

# Times are seconds; who has a timedelta may give that.
Seconds = Union[float, timedelta]


@dataclass(frozen=True)
class Guard:
    """One SQL statement for the app's own transaction, on the database that is also the store.

    Run it just before the commit. One row: the lock is still the app's, commit.
    None: roll back.
    """

    dialect: str  # "mysql", "mariadb" or "postgresql"
    sql: str  # with a ? for each argument
    args: tuple[str, ...]  # ASCII

    @classmethod
    def read(cls, m: Mapping[str, Any] | None) -> Guard | None:
        return cls(m["dialect"], m["sql"], tuple(m["args"])) if m else None


@dataclass(frozen=True)
class Part:
    """One of several resources that are held together."""

    resource: str
    lock_id: str  # as lists show it
    fence: int
    guard: Guard | None

    @classmethod
    def read(cls, m: Mapping[str, Any]) -> Part:
        return cls(m["resource"], m["lockId"], int(m["fence"]), Guard.read(m.get("guard")))


@dataclass(frozen=True)
class Once:
    """Something that is to succeed only once.

    keep: for so many seconds the outcome is remembered (1 s to 400 days; none: 30 days).
    max_attempts: after so many there is no other; 0: no limit.
    """

    keep: Seconds | None = None
    max_attempts: int = 0


@dataclass(frozen=True)
class Detached:
    """A lock that lives by a time of its own in the store. Whoever has its handle has it: see Client.attach."""

    handle: str = field(repr=False)  # a password for this one lock: hand it on, and do not log it
    resource: str
    mode: Mode
    fence: int
    limit: int | None = None  # of a PERMIT: how many there are
    _until: float = field(default=0.0, repr=False, compare=False)  # on this machine's clock

    @classmethod
    def read(cls, m: Mapping[str, Any], sent: float) -> Detached:
        """What came as the answer to a request that was sent then."""
        return cls(
            m["handle"], m["resource"], MODES[m["mode"]], int(m["fence"]), m.get("limit"), sent + seconds(m["validFor"])
        )

    def valid_for(self) -> float:
        """For how many seconds the store keeps others out at least, unless somebody releases it; never too long.

        It does not know of extensions that came later.
        """
        return max(0.0, self._until - boot_time())


def seconds(value: Any) -> float:
    """A duration of the API's JSON."""
    return float(value[:-1]) if isinstance(value, str) else float(value or 0)


def duration(value: float) -> str:
    return f"{value:.9f}s"


def given_seconds(field: str, value: Seconds | None) -> float | None:
    """A time that the app gave, in seconds. InvalidRequest: it is none."""
    if value is None:
        return None
    if isinstance(value, timedelta):
        value = value.total_seconds()
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise InvalidRequest(f"{field} must be seconds or a timedelta, and not {value!r}", metadata={"field": field})
    if not math.isfinite(value) or value < 0:
        raise InvalidRequest(f"{field} must be a finite number of seconds, not {value!r}", metadata={"field": field})
    return float(value)


_LONGEST = 4096  # what is longer the sidecar would refuse anyhow, after it was sent


def given_text(field: str, value: object) -> str:
    """A text that the app gave. InvalidRequest: it cannot be sent."""
    if not isinstance(value, str):
        raise InvalidRequest(f"{field} must be a str, and not {value!r}", metadata={"field": field})
    try:
        size = len(value.encode())
    except UnicodeEncodeError as e:
        raise InvalidRequest(f"{field} is not valid Unicode: {e}", metadata={"field": field}) from None
    if size > _LONGEST:
        raise InvalidRequest(f"{field} is {size} bytes long", metadata={"field": field})
    return value


def given_ttl(value: Seconds) -> float:
    """For how long it is to be detached. InvalidRequest: that is no time."""
    ttl = given_seconds("ttl", value)
    if ttl is None:
        raise InvalidRequest("ttl must be given: for how long others are kept out", metadata={"field": "ttl"})
    return ttl


def given_handle(value: Detached | str) -> str:
    """A handle that the app gave. InvalidRequest: it is none."""
    handle = value.handle if isinstance(value, Detached) else value
    if not isinstance(handle, str):  # what it is must not be shown
        kind = type(handle).__name__
        raise InvalidRequest(f"handle must be a str or a Detached, and not a {kind}", metadata={"field": "handle"})
    if not handle:
        raise InvalidRequest("handle is empty", metadata={"field": "handle"})
    return given_text("handle", handle)


def given_limit(value: object) -> int | None:
    """How many permits there are. InvalidRequest: that is no number of them."""
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise InvalidRequest(f"limit must be 1 or more, and not {value!r}", metadata={"field": "limit"})
    return value


def given_once(value: Once) -> Once:
    """InvalidRequest: its fields make no sense."""
    attempts = value.max_attempts
    if isinstance(attempts, bool) or not isinstance(attempts, int) or attempts < 0:
        raise InvalidRequest(f"max_attempts must be 0 or more, and not {attempts!r}", metadata={"field": "max_attempts"})
    return Once(given_seconds("keep", value.keep), attempts)


def given_mode(value: Mode | str, limit: int | None) -> Mode:
    """The mode of what has that limit: who gives one need not say PERMIT besides."""
    try:
        mode = Mode(value)
    except ValueError:
        raise InvalidRequest(
            f"mode must be EXCLUSIVE or SHARED, and not {value!r}", metadata={"field": "mode"}
        ) from None
    if mode is Mode.PERMIT and limit is None:
        raise InvalidRequest("PERMIT needs a limit: how many there are", metadata={"field": "limit"})
    if mode is Mode.SHARED and limit is not None:
        raise InvalidRequest("what has a limit cannot be SHARED: it is a PERMIT", metadata={"field": "mode"})
    return mode if limit is None else Mode.PERMIT


@dataclass(eq=False)
class Wanted:
    """A lock as an app asks for it. Times are checked seconds. Nothing of it changes."""

    resources: tuple[str, ...]
    mode: Mode
    wait: float | None  # None: for ever; 0: try once
    owner: str
    reentrant: bool
    max_hold: float | None
    once: Once | None = None
    limit: int | None = None  # of a PERMIT
    min_hold: float | None = None
    detachable: bool = False
    handle: str = ""  # in place of all but the owner: attach what it names

    def __post_init__(self) -> None:
        self._head = 'acquire":' + _encode(self._body())[:-1]  # the request in JSON, but for its wait and the braces
        # The line after its number, with the whole wait: who asks again and again makes it once.
        self.rest = (self._head + "}}\n").encode() if self.wait is None else self.rest_for(self.wait)

    def rest_for(self, wait: float) -> bytes:
        """The same with what is left of the wait."""
        if self.handle:
            wait = 0.0  # it is there or not
        return f'{self._head},"wait":"{duration(wait)}"}}}}\n'.encode()

    def _body(self) -> dict[str, Any]:
        if self.handle:
            return {"handle": self.handle, "owner": self.owner}
        body: dict[str, Any] = {"mode": self.mode.value, "owner": self.owner, "reentrant": self.reentrant}
        if len(self.resources) == 1:
            body["resource"] = self.resources[0]
        else:
            body["resources"] = list(self.resources)
        if self.limit is not None:
            body["limit"] = self.limit
        if self.max_hold is not None:
            body["maxHold"] = duration(self.max_hold)
        if self.min_hold is not None:
            body["minHold"] = duration(self.min_hold)
        if self.detachable:
            body["detachable"] = True
        if self.once is not None:
            body["once"] = once = {"maxAttempts": self.once.max_attempts}
            if isinstance(self.once.keep, float):  # as given_once leaves it
                once["keep"] = duration(self.once.keep)  # type: ignore[assignment]
        return body
