"""What asyncio needs besides."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from ._hold import Hold


class AsyncLostEvent(asyncio.Event):
    """Set when the hold is lost; never cleared. See LostEvent."""

    def __init__(self, hold: Hold) -> None:
        super().__init__()
        self._hold = hold
        self._home = asyncio.get_running_loop()
        with hold.session.mutex:
            hold.listeners.append(self._tell)
        if hold.problem is not None:  # lost before anybody could listen
            self.set()

    def _tell(self) -> None:
        """Called by any thread."""
        try:
            self._home.call_soon_threadsafe(self.set)
        except RuntimeError:
            pass  # the loop is closed: nobody listens

    def is_set(self) -> bool:
        return super().is_set() or self._hold.look() is not None

    async def wait(self) -> Literal[True]:
        if not self.is_set():
            await super().wait()
        return True

    def forget(self) -> None:
        """It was released."""
        with self._hold.session.mutex:
            if self._tell in self._hold.listeners:
                self._hold.listeners.remove(self._tell)
