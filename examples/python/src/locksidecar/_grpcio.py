"""grpcio, without its handlers of fork.

With them (grpcio 1.85) a fork stops grpcio's threads and starts them again, in the
child too, where they read from the parent's connection until they have closed their
copy of it. What they take, an answer or an event, the parent never gets: who waits for
it waits for ever, and who is not told of a loss goes on without the lock. Without them
a child has none of grpcio's threads, and the parent's are not disturbed; a child uses
HTTP and needs no more.

grpcio reads the setting once, when it is imported.
"""

from __future__ import annotations

import os
import sys

_SETTING = "GRPC_ENABLE_FORK_SUPPORT"
_OFF = frozenset(("0", "false", "f", "no", "n"))  # as grpcio reads it

_set_by_user = os.environ.get(_SETTING)
if _set_by_user is None and "grpc" not in sys.modules:
    os.environ[_SETTING] = "0"
    try:
        import grpc  # type: ignore[import-untyped]
    finally:
        os.environ.pop(_SETTING, None)  # it is not for the programs that this one starts
elif _set_by_user is not None and _set_by_user.lower() in _OFF:
    import grpc
else:
    how = "was imported before" if _set_by_user is None else f"is to handle forks, by {_SETTING}={_set_by_user}"
    raise ImportError(
        f"grpcio {how}, and with its handlers a fork can lose what the sidecar says: "
        f"start the program with {_SETTING}=0, or use the transport http"
    )

__all__ = ["grpc"]
