"""What can go wrong, as exceptions with the API's stable reasons."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ._clock import boot_time


class LockSidecarError(Exception):
    """Base of all errors of this package.

    `reason` is stable and made for programs (docs/api.md lists them), the text is
    for people. `metadata` has details, such as `holder_pid`.
    """

    reason: str = "INTERNAL"

    def __init__(
        self, message: str, *, metadata: Mapping[str, str] | None = None, reason: str | None = None
    ) -> None:
        super().__init__(message)
        self.message = message
        self.metadata: dict[str, str] = dict(metadata or {})
        if reason is not None:
            self.reason = reason

    def __str__(self) -> str:
        return self.message

    def __reduce__(self) -> tuple[Any, ...]:
        # The default would forget what is not in args, and errors do travel
        # between processes.
        return (_rebuild, (type(self), self.message, self.__dict__))

    def again(self) -> LockSidecarError:
        """The same error, to be raised once more: one object would collect all tracebacks."""
        return _rebuild(type(self), self.message, self.__dict__)


def _rebuild(kind: type[LockSidecarError], message: str, state: dict[str, Any]) -> LockSidecarError:
    error = kind.__new__(kind, message)
    Exception.__init__(error, message)
    error.__dict__.update(state)
    return error


class LockHeld(LockSidecarError):
    """A try (`wait=0`) found the lock taken. The metadata name the holder."""

    reason = "LOCK_HELD"


class WaitTimeout(LockSidecarError, TimeoutError):
    """The wait is over and the lock is not ours. The metadata name the holder."""

    reason = "WAIT_TIMEOUT"


class LockLost(LockSidecarError):
    """The hold is over though nobody released it. Stop the work: somebody else may have the lock.

    `lost_reason` says why: one of the API's (`LEASE_EXPIRED`, `LEASE_LOST`,
    `STORE_LOST`, `FORCED`, `MAX_HOLD`, `SESSION_EXPIRED`, `STOPPING`, `TAKEN_OVER`), or of this
    client: `NOT_HOLDER` (the sidecar does not know it), `SIDECAR_SILENT` (nothing was heard for as long as the hold could be
    relied on), `SIDECAR_GONE` (the connection broke), `SESSION_CLOSED` (by
    `Client.close`), `FORKED` (this is a child; the parent has the lock).
    """

    reason = "LOCK_LOST"

    def __init__(
        self,
        message: str,
        *,
        lost_reason: str = "",
        resource: str = "",
        lock_id: str = "",
        fence: int = 0,
        grace_end: float = 0.0,
        metadata: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(message, metadata=metadata)
        self.lost_reason = lost_reason or self.metadata.get("lost_reason", "")
        self.resource = resource or self.metadata.get("resource", "")
        self.lock_id = lock_id or self.metadata.get("lock_id", "")
        self.fence = fence or int(self.metadata.get("fence") or 0)
        self._grace_end = grace_end

    def grace_left(self) -> float:
        """For how many seconds the sidecar still keeps others out, so that work can be stopped."""
        return max(0.0, self._grace_end - boot_time())


class SessionNotFound(LockSidecarError):
    """The session has ended; everything that it held is gone."""

    reason = "SESSION_NOT_FOUND"


class NotHolder(LockSidecarError):
    """It was released before, or detached."""

    reason = "NOT_HOLDER"


class UpgradeRefused(LockSidecarError):
    """The owner has it for reading and asks for writing: release first."""

    reason = "UPGRADE_REFUSED"


class Deadlock(LockSidecarError):
    """Owners wait for each other, and this one asked last. It keeps what it holds: let go and start over."""

    reason = "DEADLOCK"


class AlreadyDone(LockSidecarError):
    """It is done once, and has succeeded before."""

    reason = "ALREADY_DONE"


class AttemptsExhausted(LockSidecarError):
    """It is done once, and was tried as often as it may be."""

    reason = "ATTEMPTS_EXHAUSTED"


class Unsupported(LockSidecarError):
    """The store cannot do it."""

    reason = "UNSUPPORTED"


class StoreUnavailable(LockSidecarError):
    """The sidecar answers, its store does not."""

    reason = "STORE_UNAVAILABLE"


class ListIncomplete(StoreUnavailable):
    """A list lacks what some shards of the store have, which did not answer. It comes after what the others have.

    `missing` has their names.
    """

    def __init__(self, missing: Sequence[str]) -> None:
        names = ", ".join(missing)
        super().__init__(f"the list is not complete: these shards of the store do not answer: {names}")
        self.missing = tuple(missing)


class LimitExceeded(LockSidecarError):
    """A limit of sessions, holds, waiters, connections or sizes."""

    reason = "LIMIT_EXCEEDED"


class InvalidRequest(LockSidecarError, ValueError):
    """A field is refused; `metadata["field"]` says which."""

    reason = "INVALID_REQUEST"


class PermissionDenied(LockSidecarError, PermissionError):
    """This uid or gid may not do that."""

    reason = "PERMISSION_DENIED"


class Draining(LockSidecarError):
    """The sidecar is stopping and opens no more sessions."""

    reason = "DRAINING"


class Cancelled(LockSidecarError):
    """The wait was cancelled at the sidecar."""

    reason = "CANCELLED"


class SessionClosed(LockSidecarError):
    """This process has closed the session: `Client.close`."""

    reason = "SESSION_CLOSED"


class NoSidecar(LockSidecarError, ConnectionError):
    """Nothing answers at the socket. The text says which path was tried and what to do."""

    reason = "NO_SIDECAR"


class SidecarGone(LockSidecarError, ConnectionError):
    """The connection broke before the answer came; the session and its locks have ended."""

    reason = "SIDECAR_GONE"


class SidecarSilent(LockSidecarError, TimeoutError):
    """The sidecar takes longer to answer than it may. It may be frozen."""

    reason = "SIDECAR_SILENT"


_SAID_BY_THE_SIDECAR: tuple[type[LockSidecarError], ...] = (
    LockHeld,
    WaitTimeout,
    LockLost,
    SessionNotFound,
    NotHolder,
    UpgradeRefused,
    Deadlock,
    AlreadyDone,
    AttemptsExhausted,
    Unsupported,
    StoreUnavailable,
    LimitExceeded,
    InvalidRequest,
    PermissionDenied,
    Draining,
    Cancelled,
)
_BY_REASON = {kind.reason: kind for kind in _SAID_BY_THE_SIDECAR}


def from_status(status: Mapping[str, Any]) -> LockSidecarError:
    """The exception for a google.rpc.Status in JSON."""
    message = str(status.get("message", ""))
    for detail in status.get("details", ()):
        if detail.get("domain") == "locksidecar":
            reason = str(detail.get("reason", ""))
            kind = _BY_REASON.get(reason)
            if kind is None:
                return LockSidecarError(message, metadata=detail.get("metadata"), reason=reason)
            return kind(message, metadata=detail.get("metadata"))
    return LockSidecarError(message)
