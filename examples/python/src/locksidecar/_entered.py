"""What was taken by one Lock, and who has taken it."""

from __future__ import annotations

from typing import TypeVar

from ._held import AsyncHeld, Held

H = TypeVar("H", Held, AsyncHeld)


class Entered(list[H]):
    """No step of it can be seen half done, so it has no mutex."""

    def __init__(self, forgets: bool = False) -> None:
        self._forgets = forgets  # what was released without a word to the Lock: not in blocks, which end all the same

    def push(self, held: H) -> None:
        if self._forgets:
            self.forget_released()
        self.append(held)

    def innermost(self, who: object) -> H | None:
        """What this thread or task took last, else what one that is no more did, else what any did."""
        there = self.copy()
        for owner in (who, None):
            for held in reversed(there):
                if held._who() is owner:
                    return held
        return there[-1] if there else None

    def drop(self, held: H | None) -> None:
        try:
            self.remove(held)  # type: ignore[arg-type] # None is not in it
        except ValueError:
            pass

    def forget_released(self) -> None:
        for held in self.copy():
            if held._released:
                self.drop(held)
