"""The clock by which a hold ends."""

import functools
import math
from collections.abc import Callable
from time import CLOCK_BOOTTIME, clock_gettime

# Seconds on a clock that nobody can set and that goes on while the machine is suspended.
boot_time: Callable[[], float] = functools.partial(clock_gettime, CLOCK_BOOTTIME)


class SidecarClock:
    """Maps moments on the sidecar's clock to ours, never too late.

    An answer was counted after its request was sent. So (our clock before the
    request) - (counted_at) is at most the true difference of the clocks, and the
    largest of these found is the best. With it a message tells how old it is,
    even if this process was stopped before it read it.
    """

    __slots__ = ("difference",)

    def __init__(self) -> None:
        self.difference = -math.inf

    def answered(self, sent: float, counted_at: float) -> None:
        """Learn from one request, sent at that moment of our clock, and its answer."""
        if sent - counted_at > self.difference:
            self.difference = sent - counted_at

    def until(self, counted_at: float, left: float) -> float:
        """The moment on our clock at which `left`, counted at `counted_at`, is over."""
        return counted_at + self.difference + left
