"""Distributed locks through the sidecar beside this process.

    import locksidecar

    with locksidecar.lock("orders/42", wait=5) as held:
        write(fence=held.fence)
        held.check()  # raises LockLost; or wait for held.lost, an Event

The functions here use one client of the process, made with the first lock; make a
Client for another socket, or for a name in lists.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pkgutil import extend_path as _extend_path
from typing import TypeVar

from . import _decorator
from ._aio import AsyncLostEvent
from ._client import Client
from ._errors import (
    AlreadyDone,
    AttemptsExhausted,
    Cancelled,
    Deadlock,
    Draining,
    InvalidRequest,
    LimitExceeded,
    ListIncomplete,
    LockHeld,
    LockLost,
    LockSidecarError,
    NoSidecar,
    NotHolder,
    PermissionDenied,
    SessionClosed,
    SessionNotFound,
    SidecarGone,
    SidecarSilent,
    StoreUnavailable,
    Unsupported,
    UpgradeRefused,
    WaitTimeout,
)
from ._held import AsyncHeld, Held
from ._hold import LostEvent
from ._lock import Lock, RWLock
from ._model import Detached, Guard, Mode, Once, Part, Seconds
from ._socket import SOCKET_ENV, default_socket

__all__ = [
    "SOCKET_ENV",
    "AlreadyDone",
    "AsyncHeld",
    "AsyncLostEvent",
    "AttemptsExhausted",
    "Cancelled",
    "Client",
    "Deadlock",
    "Detached",
    "Draining",
    "Guard",
    "Held",
    "InvalidRequest",
    "LimitExceeded",
    "ListIncomplete",
    "Lock",
    "LockHeld",
    "LockLost",
    "LockSidecarError",
    "LostEvent",
    "Mode",
    "NoSidecar",
    "NotHolder",
    "Once",
    "Part",
    "PermissionDenied",
    "RWLock",
    "Seconds",
    "SessionClosed",
    "SessionNotFound",
    "SidecarGone",
    "SidecarSilent",
    "StoreUnavailable",
    "Unsupported",
    "UpgradeRefused",
    "WaitTimeout",
    "attach",
    "default_client",
    "default_socket",
    "lock",
    "locked",
    "once",
    "rwlock",
]

# Stubs that protoc makes of the API are the package locksidecar.v1, wherever they are.
__path__ = _extend_path(__path__, __name__)

_F = TypeVar("_F", bound=Callable[..., object])

_default = Client()


def default_client() -> Client:
    """The client that the functions of this module use: for `default_socket()`."""
    return _default


def lock(
    resource: str | Sequence[str],
    *,
    wait: Seconds | None = None,
    owner: str | None = None,
    reentrant: bool = False,
    max_hold: Seconds | None = None,
    min_hold: Seconds | None = None,
    mode: Mode | str = Mode.EXCLUSIVE,
    limit: int | None = None,
    detachable: bool = False,
    cancel_on_lost: bool = False,
) -> Lock:
    """See Client.lock."""
    return _default.lock(
        resource,
        wait=wait,
        owner=owner,
        reentrant=reentrant,
        max_hold=max_hold,
        min_hold=min_hold,
        mode=mode,
        limit=limit,
        detachable=detachable,
        cancel_on_lost=cancel_on_lost,
    )


def attach(handle: Detached | str, *, owner: str | None = None, cancel_on_lost: bool = False) -> Lock:
    """See Client.attach."""
    return _default.attach(handle, owner=owner, cancel_on_lost=cancel_on_lost)


def once(
    resource: str,
    *,
    keep: Seconds | None = None,
    max_attempts: int = 0,
    wait: Seconds | None = None,
    owner: str | None = None,
    max_hold: Seconds | None = None,
    min_hold: Seconds | None = None,
) -> Lock:
    """See Client.once."""
    return _default.once(
        resource,
        keep=keep,
        max_attempts=max_attempts,
        wait=wait,
        owner=owner,
        max_hold=max_hold,
        min_hold=min_hold,
    )


def rwlock(
    resource: str,
    *,
    wait: Seconds | None = None,
    owner: str | None = None,
    reentrant: bool = False,
    max_hold: Seconds | None = None,
    min_hold: Seconds | None = None,
) -> RWLock:
    """See Client.rwlock."""
    return _default.rwlock(
        resource, wait=wait, owner=owner, reentrant=reentrant, max_hold=max_hold, min_hold=min_hold
    )


def locked(
    resource: _decorator.Resource,
    *,
    wait: Seconds | None = None,
    owner: str | None = None,
    reentrant: bool = False,
    max_hold: Seconds | None = None,
    min_hold: Seconds | None = None,
    mode: Mode | str = Mode.EXCLUSIVE,
    limit: int | None = None,
) -> Callable[[_F], _F]:
    """See Client.locked."""
    return _decorator.locked(
        default_client,
        resource,
        wait=wait,
        owner=owner,
        reentrant=reentrant,
        max_hold=max_hold,
        min_hold=min_hold,
        mode=mode,
        limit=limit,
    )
