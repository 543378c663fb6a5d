"""What tasks do while they wait for an answer: now and then look whether that takes too long."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable

from ._errors import LockSidecarError


class Ticks:
    """One timer of a loop for all tasks that wait there.

    It stays when an answer has come: most come long before it, and the next task finds it.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, tick: Callable[[], None]) -> None:
        self._loop = loop
        self._tick = tick
        self._timer: asyncio.TimerHandle | None = None
        self._waiting: dict[asyncio.Future[None], Callable[[], float]] = {}

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
