"""Where the sidecar is."""

from __future__ import annotations

import errno
import os
import socket
import stat
from collections.abc import Mapping

from ._errors import NoSidecar

SOCKET_ENV = "LOCKSIDECAR_SOCKET"

_SYSTEM_DIR = "/run/locksidecar"
_NAME = "locksidecar.sock"
_CONNECT_TIMEOUT = 5.0


def default_socket() -> str:
    """Where a sidecar and its clients meet when nobody says otherwise.

    1. $LOCKSIDECAR_SOCKET, if it is set;
    2. /run/locksidecar/locksidecar.sock, if this user can connect to it or make it;
    3. $XDG_RUNTIME_DIR/locksidecar/locksidecar.sock, if that is set;
    4. locksidecar-UID/locksidecar.sock in $TMPDIR, or /tmp.

    NoSidecar: the directory of the last is another user's; a lock from there would
    be worth nothing.
    """
    return _default_socket(os.environ, _SYSTEM_DIR)


def _default_socket(env: Mapping[str, str], system: str) -> str:
    if path := env.get(SOCKET_ENV):
        return path
    if _usable(system):
        return os.path.join(system, _NAME)
    if runtime := env.get("XDG_RUNTIME_DIR"):
        return os.path.join(runtime, "locksidecar", _NAME)
    uid = os.getuid()
    directory = os.path.join(env.get("TMPDIR") or "/tmp", f"locksidecar-{uid}")
    try:
        st = os.lstat(directory)
    except FileNotFoundError:
        pass  # it will be this user's own
    except OSError as e:
        raise NoSidecar(f"find socket: {e}") from e
    else:
        if not stat.S_ISDIR(st.st_mode) or st.st_uid != uid or st.st_mode & 0o022:
            raise NoSidecar(
                f"find socket: {directory} is not a directory of this user's alone "
                f"(uid {st.st_uid}, mode {stat.S_IMODE(st.st_mode):o}); set {SOCKET_ENV}"
            )
    return os.path.join(directory, _NAME)


def _usable(directory: str) -> bool:
    """Whether there is a socket to connect to, or whether one can be made."""
    path = os.path.join(directory, _NAME)
    if os.path.exists(path):
        return os.access(path, os.W_OK)
    place = directory if os.path.exists(directory) else os.path.dirname(directory)
    return os.path.isdir(place) and os.access(place, os.W_OK | os.X_OK)


def connect(path: str) -> socket.socket:
    """Connect to the sidecar, or say why that cannot be done."""
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        sock.settimeout(_CONNECT_TIMEOUT)  # a frozen sidecar's backlog can be full
        sock.connect(path)
        return sock
    except OSError as e:
        sock.close()
        raise explain(path, e) from e
    except BaseException:
        sock.close()
        raise


def explain(path: str, e: OSError) -> NoSidecar:
    """What to do about a socket that cannot be connected to."""
    start = f"locksidecar serve --socket {path}"
    if isinstance(e, FileNotFoundError):
        hint = f"there is no such socket; start a sidecar with: {start}"
    elif isinstance(e, ConnectionRefusedError):
        hint = f"the sidecar that made it is gone; start one with: {start}"
    elif e.errno == errno.EACCES:
        hint = "this user may not connect to it; see its mode and that of its directory"
    elif isinstance(e, TimeoutError) or e.errno == errno.EAGAIN:
        hint = "it takes no connections; the sidecar may be frozen"
    else:
        hint = str(e)
    return NoSidecar(f"no sidecar answers at {path}: {hint}")
