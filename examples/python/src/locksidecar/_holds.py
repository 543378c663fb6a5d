"""What a session holds: until when, and what of it is lost.

As in _core.py there is no input, no output and no lock here: who calls has the mutex.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

from ._call import NOTHING, PLAIN_GRANT, Call
from ._clock import SidecarClock
from ._errors import LockLost
from ._hold import Hold
from ._model import MODES, Part, Wanted, seconds

# How long the sidecar may take at most to say that max_hold is over, see Hold.silent_at.
_MAX_SLACK = 0.25
# A clock that goes on in suspend is looked at this often: timers stand still meanwhile.
MAX_LOOK = 1.0
# So many losses are kept for grants that come after them.
_MOST_EARLY = 10_000


def _nothing_stands(step: int) -> bool:
    return False


class Holds:
    def __init__(self, mutex: Any) -> None:
        self.mutex = mutex  # of the shell, for those who look at a hold
        self.holds: dict[str, Hold] = {}
        self.jeopardy = False
        self.margin = 0.0  # of the lease
        self.asking: dict[tuple[str, ...], int] = {}  # acquires on their way, by what they ask for
        self.early: dict[str, LockLost] = {}  # losses, for grants that come after them
        self.clock = SidecarClock()
        self._news = (-math.inf, 0.0)  # of the lease: when it was counted, its end on our clock
        self._look_at = math.inf  # no hold ends before that without a word
        # Lets who reads take what has come, before an end is found by the clock; whether to look again. Without the mutex.
        self.settle: Callable[[int], bool] = _nothing_stands

    @property
    def slack(self) -> float:
        return min(_MAX_SLACK, self.margin / 2)

    # What the sidecar says.

    def granted(self, call: Call, m: Mapping[str, Any]) -> bool:
        """An acquire has got it. False: its caller has given it up, and it is to be let go again."""
        wanted = call.wanted
        assert wanted is not None
        if call.hold is not None and call not in call.hold.entered:
            return True  # an interrupt came between the grant and its caller, who has let it go
        counted_at, lock_id = seconds(m["countedAt"]), m["lockId"]
        self.clock.answered(call.sent, counted_at)
        until = self.clock.until(counted_at, seconds(m["validFor"]))
        hold = self.holds.get(lock_id)
        if hold is None:
            parts = tuple(Part.read(part) for part in m.get("parts") or ())
            resource = m["resource"] or ", ".join(part.resource for part in parts)
            hold = Hold(self, call, lock_id, resource, MODES[m["mode"]], int(m["fence"]), counted_at, m)
            hold.parts = parts
        else:
            hold.mode = MODES[m["mode"]]
            hold.entered.add(call)
        ends_in = m.get("endsIn")
        if wanted.max_hold is not None or ends_in:
            limit = self.limit_of(counted_at, wanted.max_hold, ends_in)
            hold.limit = limit if hold.limit is None or limit is None else min(hold.limit, limit)
        self._got(call, hold, until)
        return not call.abandoned

    def granted_plainly(self, call: Call, wanted: Wanted, data: bytes, start: int) -> bool:
        """The same, in fewer steps, where this is from there on the whole line of a grant like most. False: it may be another."""
        m = PLAIN_GRANT.fullmatch(data.decode(), start)  # the start is ASCII
        if m is None or wanted.max_hold is not None or call.hold is not None or call.abandoned:
            return False
        lock_id, resource, mode, fence, valid_for, at = m.groups()
        counted_at = float(at)
        if lock_id in self.holds or self.early or counted_at <= self._news[0]:
            return False
        hold = Hold(self, call, lock_id, resource, MODES[mode], int(fence), counted_at, NOTHING)
        clock, difference = self.clock, call.sent - counted_at
        if difference > clock.difference:
            clock.difference = difference
        hold.until = until = counted_at + clock.difference + float(valid_for)
        self.holds[lock_id] = hold
        call.hold = hold
        if until < self._look_at:
            self._look_at = until
        return True

    def _got(self, call: Call, hold: Hold, until: float) -> None:
        if until > hold.until:
            hold.until = until
        self.holds[hold.lock_id] = hold
        call.hold = hold
        if hold.counted_at <= self._news[0]:
            self._prolong(hold)  # news may overtake the grant
        self.ends(hold)
        if self.early and (early := self.early.get(hold.lock_id)):
            self.lose(hold, early)

    def limit_of(self, counted_at: float, max_hold: float | None, ends_in: Any) -> float | None:
        """When the first of these is over, which were counted then; None: there are none."""
        lefts = (max_hold, seconds(ends_in) if ends_in else None)
        return min((self.clock.until(counted_at, left) for left in lefts if left is not None), default=None)

    def changed(self, call: Call, m: Mapping[str, Any]) -> None:
        """It was downgraded, or extended."""
        hold, counted_at = call.about, seconds(m["countedAt"])
        assert hold is not None
        self.clock.answered(call.sent, counted_at)
        hold.mode = MODES[m["mode"]]
        if call.kind == "extend":
            hold.limit = self.limit_of(counted_at, seconds(call.body["maxHold"]), m.get("endsIn"))
            hold.until = max(hold.until, self.clock.until(counted_at, seconds(m["validFor"])))
            self.ends(hold)

    def leased(self, lease: Mapping[str, Any]) -> None:
        """News of the lease, and so of all that is held."""
        counted_at = seconds(lease["countedAt"])
        self._news = counted_at, self.clock.until(counted_at, seconds(lease["validFor"]))
        for hold in self.holds.values():
            self._prolong(hold)
        self.jeopardy = bool(lease.get("jeopardy"))

    def _prolong(self, hold: Hold) -> None:
        """News are for what was held when they were counted: not for what was over, or granted later."""
        counted_at, until = self._news
        if hold.counted_at <= counted_at and self.clock.until(counted_at, 0) < hold.until:
            hold.until = max(hold.until, until)

    def told(self, lost: Mapping[str, Any]) -> None:
        """The sidecar says that something is lost."""
        problem = LockLost(
            f"the lock on {lost['resource']!r} is lost: {lost['message']}",
            lost_reason=str(lost["reason"]),
            resource=str(lost["resource"]),
            fence=int(lost["fence"]),
            grace_end=self.clock.until(seconds(lost["countedAt"]), seconds(lost["grace"])),
        )
        known = self.holds.get(lost["lockId"])
        if known is not None:
            self.lose(known, problem)
        else:
            self._remember(lost["lockId"], problem)

    # Ends.

    def left(self, entry: Call) -> None:
        """An app has left what it has entered."""
        hold = entry.hold
        assert hold is not None
        entered = hold.entered
        if len(entered) < 2 and (not entered or entry in entered):
            self.holds.pop(hold.lock_id, None)
        entered.discard(entry)

    def lose(self, hold: Hold, problem: LockLost) -> None:
        hold.lose(problem)
        self.holds.pop(hold.lock_id, None)
        self._remember(hold.lock_id, problem)  # who re-enters it may have a grant on its way

    def _remember(self, lock_id: str, problem: LockLost) -> None:
        if self.asking:
            self.early[lock_id] = problem
            if len(self.early) > _MOST_EARLY:
                del self.early[next(iter(self.early))]  # the oldest

    def silence(self, hold: Hold) -> None:
        """Its end is there and nothing was heard."""
        if hold.limit is not None and hold.silent_at() >= hold.limit:
            lost_reason, message, grace = "MAX_HOLD", "it was held longer than its max_hold", 0.0
        else:
            lost_reason, message = "SIDECAR_SILENT", "the sidecar was not heard of in time"
            grace = hold.end() + self.margin
        self.lose(
            hold,
            LockLost(f"the lock on {hold.resource!r} is lost: {message}", lost_reason=lost_reason, grace_end=grace),
        )

    def is_due(self, now: float) -> bool:
        """Whether look may find an end."""
        return self._look_at <= now

    def look(self, now: float) -> float | None:
        """Notice the ends that have come by now, a moment of boot_time. When to look again, in seconds; None: when something is granted.

        One look at all holds tells when the next is due: each that is read would be too many.
        """
        if not self.holds:
            return None
        if self._look_at <= now:
            self._look_at = math.inf
            for hold in list(self.holds.values()):
                if hold.silent_at() <= now:
                    self.silence(hold)
                else:
                    self.ends(hold)
        return max(0.001, min(self._look_at, now + MAX_LOOK) - now) if self.holds else None

    def ends(self, hold: Hold) -> None:
        """Look at it when it may be over. News of the lease only move that away."""
        end = hold.until if hold.limit is None else hold.silent_at()
        if end < self._look_at:
            self._look_at = end
