"""What travels between this process and the sidecar, whatever the transport.

Both transports give messages as dicts in the form of the API's JSON; times may be
"1.5s" or 1.5, and integers may be strings.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol, Union


class Mode(str, enum.Enum):
    """How a resource is locked."""

    EXCLUSIVE = "EXCLUSIVE"  # alone
    SHARED = "SHARED"  # beside other shared holds


@dataclass(frozen=True)
class Guard:
    """One SQL statement for the app's own transaction, on the database that is also the store.

    Run it just before the commit. One row: the lock is still the app's, commit.
    None: roll back.
    """

    dialect: str  # "mysql", "mariadb" or "postgresql"
    sql: str  # with a ? for each argument
    args: tuple[str, ...]  # ASCII


def seconds(value: Any) -> float:
    if isinstance(value, str):
        return float(value[:-1])
    return float(value or 0)


def duration(value: float) -> str:
    return f"{value:.9f}s"


class Grant(NamedTuple):
    lock_id: str
    resource: str
    mode: Mode
    fence: int
    valid_for: float
    counted_at: float
    guard: Guard | None

    @classmethod
    def read(cls, m: Mapping[str, Any]) -> Grant:
        guard = m.get("guard")
        return cls(
            lock_id=m["lockId"],
            resource=m["resource"],
            mode=Mode(m["mode"]),
            fence=int(m["fence"]),
            valid_for=seconds(m["validFor"]),
            counted_at=seconds(m["countedAt"]),
            guard=Guard(guard["dialect"], guard["sql"], tuple(guard["args"])) if guard else None,
        )


@dataclass(frozen=True)
class Wanted:
    """A lock as an app asks for it."""

    resource: str
    mode: Mode
    wait: float | None  # None: for ever; 0: try once
    owner: str
    reentrant: bool
    max_hold: float | None


@dataclass(frozen=True)
class Acquire:
    wanted: Wanted
    request_id: str

    def release(self, lock_id: str) -> Release:
        """The release of what it has got. It is one and the same however often it is sent."""
        return Release(lock_id, f"release {self.request_id}")


@dataclass(frozen=True)
class Cancel:
    """Gives up an Acquire, wherever it is."""

    request_id: str


@dataclass(frozen=True)
class Release:
    lock_id: str
    request_id: str


@dataclass(frozen=True)
class Downgrade:
    lock_id: str


Operation = Union[Acquire, Cancel, Release, Downgrade]


@dataclass(eq=False)
class Call:
    """One operation on its way."""

    operation: Operation
    sent: float = 0.0  # on our clock, just before it was sent
    answered: bool = False  # the sidecar said yes or no
    granted: Grant | None = None  # what it said yes to
    hold: Any = None  # what came of an acquire
    undone: bool = False  # and was given up again
    transport: Any = field(default=None, repr=False)  # the transport's own


class Sink(Protocol):
    """Where a transport brings news."""

    def news(self, event: Mapping[str, Any]) -> None:
        """An event of the API, as JSON."""

    def gone(self, why: str) -> bool:
        """The connection is broken: nothing will come any more."""


class Transport(Protocol):
    """A way to the sidecar for one session. Its methods may be called by any thread."""

    def open(self, request: Mapping[str, Any], sink: Sink) -> tuple[float, Mapping[str, Any]]:
        """Open the session. Returns when the request was sent, and the answer."""

    def call(self, call: Call, timeout: float | None) -> Mapping[str, Any]:
        """Carry out an operation and return the answer.

        The sidecar's errors are raised with call.answered set. SidecarGone: the
        connection broke. SidecarSilent: no answer within timeout.
        """

    async def call_async(self, call: Call, timeout: float | None) -> Mapping[str, Any]:
        """The same for a task of asyncio."""

    def abandon(self, call: Call) -> None:
        """The caller of a call has left: see in the background that nothing is left behind."""

    def close(self, timeout: float) -> None:
        """End the session at the sidecar, and wait for it."""

    def drop(self) -> None:
        """The session has ended: end what is still on its way."""

    def forget(self) -> None:
        """This is a child after a fork: let go of the parent's, without touching it."""
