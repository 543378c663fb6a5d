"""Looks at who holds what, on a connection of their own, without a session."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Mapping
from typing import Any

from ._errors import ListIncomplete, LockSidecarError, NoSidecar, SidecarGone, SidecarSilent, from_status
from ._socket import connect

_TIMEOUT = 10.0
_LONGEST = 3600.0  # no answer takes so much longer, whatever grace the app gives


def ask(path: str, kind: str, body: Mapping[str, Any], answer: str, more: float = 0.0) -> dict[str, Any]:
    """One question, whose answer may take so many seconds more than others.

    A sidecar that hangs up without a word, as one does to make room, is asked again for a while.
    """
    end = time.monotonic() + _TIMEOUT
    pause = 0.01
    while True:
        try:
            for said in stream(path, kind, body, answer, _TIMEOUT + min(more, _LONGEST)):
                return said
        except SidecarGone:
            if kind in ("forceRelease", "releaseHandle", "resetOutcome") or time.monotonic() + pause > end:
                raise
        time.sleep(pause)
        pause = min(2 * pause, 0.5)


def stream(
    path: str, kind: str, body: Mapping[str, Any], answer: str, timeout: float | None = None
) -> Iterator[dict[str, Any]]:
    """A question and all its answers. The connection ends with the iterator."""
    sock = connect(path)
    try:
        sock.settimeout(timeout)
        sock.sendall(json.dumps({"requestId": "1", kind: body}).encode() + b"\n")
        with sock.makefile("rb") as lines:
            for line in lines:
                yield _read(line, answer)
    except TimeoutError as e:
        raise SidecarSilent(f"the sidecar did not answer within {timeout:g} s; it may be frozen") from e
    except OSError as e:
        if isinstance(e, LockSidecarError):
            raise
        raise SidecarGone(f"the connection to the sidecar at {path} ended: {e}") from e
    finally:
        sock.close()
    raise SidecarGone(f"the sidecar at {path} has ended the connection")


def pages(path: str, kind: str, body: Mapping[str, Any], answer: str) -> Iterator[dict[str, Any]]:
    """What a list has, page by page; the answer has the rows under its own name.

    ListIncomplete, after that: some shards did not answer, maybe for some pages only.
    """
    token = ""
    missing: set[str] = set()
    while True:
        page = ask(path, kind, {**body, "partial": True, "pageSize": 1000, "pageToken": token}, answer)
        yield from page.get(answer) or ()
        missing.update(page.get("missingShards") or ())
        token = page.get("nextPageToken") or ""
        if token:
            continue
        if missing:
            raise ListIncomplete(sorted(missing))
        return


def _read(line: bytes, answer: str) -> dict[str, Any]:
    try:
        m = json.loads(line)
        if error := m.get("error"):
            raise from_status(error)
        found = m[answer]
        assert isinstance(found, dict)
    except (ValueError, KeyError, AttributeError, AssertionError) as e:
        if isinstance(e, LockSidecarError):
            raise
        raise NoSidecar(f"what answers is no sidecar, or an older one than this client: {e!r}") from e
    return found


