"""What tasks do while they wait for an answer: now and then look whether that takes too long."""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Callable

from ._errors import LockSidecarError
from ._reading import PATIENT

# So long a task may go on from answer to answer while others wait for the loop.
_RUN = 0.001


class Ticks:
    """One timer of a loop for all tasks that wait there.

    It stays when an answer has come: most come long before it, and the next task finds it.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, tick: Callable[[], None]) -> None:
        self._loop = loop
        self._tick = tick
        self._timer: asyncio.TimerHandle | None = None
        self._waiting: dict[asyncio.Future[None], Callable[[], float]] = {}
        self._turn = 0.0  # when the loop had its last turn, as far as is known
        self._patient = 0  # so many answers more are awaited by turns of the loop

    def hurries(self) -> bool:
        """Whether a task may wait for its answer without a turn of the loop. Others have theirs every _RUN at least."""
        if self._patient:
            self._patient -= 1
            return False
        now = time.monotonic()
        if now - self._turn < _RUN:
            return True
        self._turn = now
        return False

    def missed(self) -> None:
        """An answer did not come at once: nor will the next ones."""
        self._patient = PATIENT

    def add(self, answered: asyncio.Future[None], step: Callable[[], float]) -> None:
        """step: for how long it waits before the next look. LockSidecarError: it has waited for too long."""
        self._waiting[answered] = step
        self._arm(step())

    def remove(self, answered: asyncio.Future[None]) -> None:
        self._waiting.pop(answered, None)

    def _arm(self, after: float) -> None:
        now, timer = self._loop.time(), self._timer
        if timer is not None:
            if now <= timer.when() <= now + after:
                return
            timer.cancel()
        self._timer = self._loop.call_at(now + after, self._look)

    def _look(self) -> None:
        self._timer = None
        if not self._waiting:
            return
        self._tick()
        soonest = math.inf
        for answered, step in list(self._waiting.items()):
            try:
                soonest = min(soonest, step())
            except LockSidecarError as e:
                if not answered.done():
                    answered.set_exception(e)
        if soonest < math.inf:
            self._arm(soonest)
