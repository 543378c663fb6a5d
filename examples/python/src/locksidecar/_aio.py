"""What asyncio needs besides."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    from ._hold import Hold


class AsyncLostEvent(asyncio.Event):
    """Set when the hold is lost; never cleared. See LostEvent."""

    def __init__(self, hold: Hold, home: asyncio.AbstractEventLoop) -> None:
        super().__init__()
        self._hold = hold
        self._home = home
        with hold.session.mutex:
            hold.listen(self._tell)
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
        self._hold.forget(self._tell)


class Canceller:
    """Cancels the task of a block when its lock is lost, and knows that it did."""

    def __init__(self, hold: Hold) -> None:
        self._hold = hold
        self._task = current_task()
        self._loop = asyncio.get_running_loop()
        self._cancelled = self._over = False
        with hold.session.mutex:
            hold.listen(self._tell)
        if hold.problem is not None:
            self._tell()

    def _tell(self) -> None:
        try:
            self._loop.call_soon_threadsafe(self._cancel)
        except RuntimeError:
            pass

    def _cancel(self) -> None:
        if not self._over and not self._cancelled:
            self._cancelled = True
            self._task.cancel("the lock is lost")

    def leave(self, error: BaseException | None) -> bool:
        """The block has ended: whether what it raised is only our cancellation."""
        self._over = True
        self._hold.forget(self._tell)
        if not self._cancelled:
            return False
        # Before Python 3.11 nobody counts: whoever cancels besides is not told apart.
        uncancel: Any = getattr(self._task, "uncancel", None)
        others = uncancel() if uncancel is not None else 0
        return isinstance(error, asyncio.CancelledError) and not others


_NO_TASK = (
    "async with a lock needs a task of asyncio, and there is none. Where trio runs, take the lock in a thread: "
    "held = await trio.to_thread.run_sync(lock.acquire), and release it there, too. "
    'With anyio, choose its backend "asyncio", or use anyio.to_thread.run_sync in the same way.'
)


def running_task() -> asyncio.Task[object] | None:
    """None: nothing runs here that could wait. A coroutine that is dropped is closed in any place."""
    try:
        return asyncio.current_task()
    except RuntimeError:  # no loop runs here
        return None


def current_task() -> asyncio.Task[object]:
    try:
        task = asyncio.current_task()
    except RuntimeError:  # no loop runs here
        task = None
    if task is None:
        raise RuntimeError(_NO_TASK)
    return task
