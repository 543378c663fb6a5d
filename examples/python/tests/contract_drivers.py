"""How the steps of a case reach the client: by threads, or by tasks."""

from __future__ import annotations

import asyncio
import concurrent.futures
import threading
from collections.abc import Callable, Coroutine
from typing import Any, Protocol, TypeVar, Union

from locksidecar import AsyncHeld, Client, Detached, Held

AnyHeld = Union[Held, AsyncHeld]
R = TypeVar("R")


class Driver(Protocol):
    """How the steps reach the client."""

    def acquire(self, client: Client, **options: Any) -> concurrent.futures.Future[AnyHeld]: ...
    def release(self, held: AnyHeld) -> int: ...
    def conclude(self, held: AnyHeld, outcome: str, note: str) -> None: ...
    def dispose(self, held: AnyHeld) -> None: ...
    def downgrade(self, held: AnyHeld) -> None: ...
    def extend(self, held: AnyHeld, max_hold: float) -> None: ...
    def detach(self, held: AnyHeld, ttl: float) -> Detached: ...
    def attach(self, client: Client, handle: Detached) -> AnyHeld: ...
    def extend_detached(self, client: Client, handle: Detached, ttl: float) -> Detached: ...
    def release_detached(self, client: Client, handle: Detached) -> None: ...
    def when_lost(self, held: AnyHeld, then: Callable[[], None]) -> None: ...
    def close(self) -> None: ...


class Threads:
    """Locks in threads, which nothing can interrupt from outside."""

    def acquire(self, client: Client, **options: Any) -> concurrent.futures.Future[AnyHeld]:
        future: concurrent.futures.Future[AnyHeld] = concurrent.futures.Future()

        def run() -> None:
            try:
                future.set_result(client.lock(**options).acquire())
            except BaseException as e:
                future.set_exception(e)

        threading.Thread(target=run, daemon=True).start()
        return future

    def release(self, held: AnyHeld) -> int:
        assert isinstance(held, Held)
        return held.release()

    def conclude(self, held: AnyHeld, outcome: str, note: str) -> None:
        assert isinstance(held, Held)
        {"SUCCEEDED": held.succeeded, "FAILED": held.failed}[outcome](note)

    def dispose(self, held: AnyHeld) -> None:
        assert isinstance(held, Held)
        held.__exit__(None, None, None)

    def downgrade(self, held: AnyHeld) -> None:
        assert isinstance(held, Held)
        held.downgrade()

    def extend(self, held: AnyHeld, max_hold: float) -> None:
        assert isinstance(held, Held)
        held.extend(max_hold)

    def detach(self, held: AnyHeld, ttl: float) -> Detached:
        assert isinstance(held, Held)
        return held.detach(ttl)

    def attach(self, client: Client, handle: Detached) -> AnyHeld:
        return client.attach(handle).acquire()

    def extend_detached(self, client: Client, handle: Detached, ttl: float) -> Detached:
        return client.extend_detached(handle, ttl)

    def release_detached(self, client: Client, handle: Detached) -> None:
        client.release_detached(handle)

    def when_lost(self, held: AnyHeld, then: Callable[[], None]) -> None:
        assert isinstance(held, Held)
        lost = held.lost

        def run() -> None:
            lost.wait()
            then()

        threading.Thread(target=run, daemon=True).start()

    @staticmethod
    def can_do(case: dict[str, Any]) -> bool:
        return all(step["do"] != "cancel" for step in case["steps"])

    def close(self) -> None:
        pass


class Tasks:
    """Locks in tasks of one loop."""

    def __init__(self) -> None:
        self.loop = asyncio.new_event_loop()
        self._tasks: set[concurrent.futures.Future[Any]] = set()
        self._thread = threading.Thread(target=self.loop.run_forever)
        self._thread.start()

    def acquire(self, client: Client, **options: Any) -> concurrent.futures.Future[AnyHeld]:
        async def run() -> AnyHeld:
            return await client.lock(**options).acquire_async()

        return asyncio.run_coroutine_threadsafe(run(), self.loop)

    def release(self, held: AnyHeld) -> int:
        assert isinstance(held, AsyncHeld)
        return self._run(held.release())

    def conclude(self, held: AnyHeld, outcome: str, note: str) -> None:
        assert isinstance(held, AsyncHeld)
        self._run({"SUCCEEDED": held.succeeded, "FAILED": held.failed}[outcome](note))

    def dispose(self, held: AnyHeld) -> None:
        assert isinstance(held, AsyncHeld)
        self._run(held.__aexit__(None, None, None))

    def downgrade(self, held: AnyHeld) -> None:
        assert isinstance(held, AsyncHeld)
        self._run(held.downgrade())

    def extend(self, held: AnyHeld, max_hold: float) -> None:
        assert isinstance(held, AsyncHeld)
        self._run(held.extend(max_hold))

    def detach(self, held: AnyHeld, ttl: float) -> Detached:
        assert isinstance(held, AsyncHeld)
        return self._run(held.detach(ttl))

    def attach(self, client: Client, handle: Detached) -> AnyHeld:
        return self._run(client.attach(handle).acquire_async())

    def extend_detached(self, client: Client, handle: Detached, ttl: float) -> Detached:
        return self._run(client.extend_detached_async(handle, ttl))

    def release_detached(self, client: Client, handle: Detached) -> None:
        self._run(client.release_detached_async(handle))

    def _run(self, coroutine: Coroutine[Any, Any, R]) -> R:
        return asyncio.run_coroutine_threadsafe(coroutine, self.loop).result()

    def when_lost(self, held: AnyHeld, then: Callable[[], None]) -> None:
        assert isinstance(held, AsyncHeld)
        lost = held.lost

        async def run() -> None:
            await lost.wait()
            then()

        self._tasks.add(asyncio.run_coroutine_threadsafe(run(), self.loop))

    @staticmethod
    def can_do(case: dict[str, Any]) -> bool:
        return "fork" not in case.get("needs", ())  # its loop runs in a thread, which does not go on in a child

    def close(self) -> None:
        for task in self._tasks:
            task.cancel()

        async def settle() -> None:
            others = asyncio.all_tasks() - {asyncio.current_task()}
            for task in others:
                task.cancel()
            await asyncio.gather(*others, return_exceptions=True)

        asyncio.run_coroutine_threadsafe(settle(), self.loop).result()
        self.loop.call_soon_threadsafe(self.loop.stop)
        self._thread.join()
        self.loop.close()
