"""One request: its line, and what came of it.

Lines of the hot path are put together from pieces that are JSON already: to encode a whole
request each time would take as long as all else of it.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from json.encoder import encode_basestring_ascii as quoted
from types import MappingProxyType
from typing import Any

from ._clock import boot_time
from ._errors import LockSidecarError
from ._hold import Hold
from ._model import Wanted

encode = json.JSONEncoder(separators=(",", ":"), allow_nan=False).encode
_decoder = json.JSONDecoder()
# What raw_decode calls, where there is such a thing: as one call less.
_scan: Callable[[str, int], tuple[Any, int]] = getattr(_decoder, "scan_once", _decoder.raw_decode)
NOTHING: Mapping[str, Any] = MappingProxyType({})

# What the sidecar says most, after the number of the request, in its own words: a grant of one resource without anything
# special, and a release. To find the words in it takes a third of the time of JSON, which is for all else.
PLAIN_GRANT = re.compile(
    r'granted":\{"lockId":"([!#-\[\]-~]+)","resource":"([ !#-\[\]-~]*)","mode":"(EXCLUSIVE|SHARED)","fence":"([0-9]+)",'
    r'"validFor":"([0-9.]+)s","count":[0-9]+,"countedAt":"([0-9.]+)s","parts":\[\]\}\}\n'
)
PLAIN_RELEASE = b'released":{"count":0}}\n'
RELEASED: Mapping[str, Any] = MappingProxyType({"released": {"count": 0}})


def decode(line: bytes) -> Any:
    text = line.decode()
    try:
        value, end = _scan(text, 0)
    except StopIteration:
        raise ValueError(f"no JSON: {text!r}") from None
    if end != len(text):
        raise ValueError(f"more than one value in a line: {text!r}")
    return value


class Call:
    """One request and what came of it."""

    id = ""  # empty: it was not sent
    head = b""  # with this its line starts, and so does the sidecar's answer
    sent = 0.0  # on our clock, just before it was sent
    start = 0  # how many bytes were to be sent before it
    unsent = False  # the session has ended, and nothing of it had been sent
    deadline: float | None = None  # of the wait of an acquire
    place = 0  # of an acquire, among those that queue here
    done = False
    answer = NOTHING
    error: LockSidecarError | None = None
    hold: Hold | None = None  # what an acquire got
    abandoned = False  # nobody wants it any more
    late = 0  # how often its answer was missed after its time
    wake: Callable[[], None] | None = None  # must not block
    home: object = None  # the loop of the task that waits for it

    def __init__(
        self,
        kind: str,
        body: Mapping[str, Any] = NOTHING,
        wanted: Wanted | None = None,
        about: Hold | None = None,
        rest: bytes = b"",
    ) -> None:
        self.kind = kind
        self.body = body
        self.rest = rest  # of the line, where somebody has made it
        self.wanted = wanted  # of an acquire
        self.about = about  # which hold is to be changed

    def line(self, number: int, now: float) -> bytes:
        """What to send now, with that number."""
        self.id = str(number)
        self.sent = now
        self.head = head = b'{"requestId":"%d","' % number
        wanted = self.wanted
        if wanted is None:
            return head + (self.rest or f'{self.kind}":{encode(self.body)}}}\n'.encode())
        if self.deadline is None:
            return head + wanted.rest
        return head + wanted.rest_for(max(0.001, self.deadline - now))

    def wait_left(self, wait: float | None) -> float | None:
        """What is left of the wait of an acquire, for another try; a wait does not become one that tries once."""
        return wait if self.deadline is None else max(0.001, self.deadline - boot_time())

    def finish(self, error: LockSidecarError | None = None) -> None:
        if not self.done:
            self.error = error
            self.done = True
            if self.wake is not None:
                self.wake()


def release_of(entry: Call) -> Call:
    """The release of what an acquire got."""
    hold = entry.hold
    assert hold is not None
    rest = f'release":{{"lockId":{quoted(hold.lock_id)},"requestId":"release {entry.id}"}}}}\n'
    return Call("release", NOTHING, None, hold, rest.encode())
