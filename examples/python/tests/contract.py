"""Runs the cases of examples/contract with this client: by threads, and by tasks."""

from __future__ import annotations

import asyncio
import concurrent.futures
import json
import threading
import time
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol, Union
from urllib.parse import quote

from sidecars import EMBEDDED, MYSQL, REDIS, Sidecar

from locksidecar import AsyncHeld, Client, Held, LockLost, LockSidecarError, Mode, NotHolder

CASES = Path(__file__).resolve().parents[2] / "contract"

AnyHeld = Union[Held, AsyncHeld]



def stores(case: dict[str, Any]) -> list[str]:
    """The names of the stores on which a case is to be run; none: what it needs is not there."""
    there = {"redis": REDIS, "mysql": MYSQL}
    match case.get("store", "any"):
        case "any":
            return ["redis"] if REDIS else ["embedded"]
        case "shared":
            return [name for name, url in there.items() if url]
        case "mysql":
            return ["mysql"] if MYSQL else []
        case other:
            raise ValueError(f"unknown store {other!r}")


def url(store: str) -> str:
    return {"embedded": EMBEDDED, "redis": REDIS, "mysql": MYSQL}[store]


class Driver(Protocol):
    """How the steps reach the client."""

    def acquire(self, client: Client, **options: Any) -> concurrent.futures.Future[AnyHeld]: ...
    def release(self, held: AnyHeld) -> int: ...
    def downgrade(self, held: AnyHeld) -> None: ...
    def when_lost(self, held: AnyHeld, then: Callable[[], None]) -> None: ...
    def can_cancel(self) -> bool: ...


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

    def downgrade(self, held: AnyHeld) -> None:
        assert isinstance(held, Held)
        held.downgrade()

    def when_lost(self, held: AnyHeld, then: Callable[[], None]) -> None:
        assert isinstance(held, Held)
        lost = held.lost

        def run() -> None:
            lost.wait()
            then()

        threading.Thread(target=run, daemon=True).start()

    def can_cancel(self) -> bool:
        return False


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
        return asyncio.run_coroutine_threadsafe(held.release(), self.loop).result()

    def downgrade(self, held: AnyHeld) -> None:
        assert isinstance(held, AsyncHeld)
        asyncio.run_coroutine_threadsafe(held.downgrade(), self.loop).result()

    def when_lost(self, held: AnyHeld, then: Callable[[], None]) -> None:
        assert isinstance(held, AsyncHeld)
        lost = held.lost

        async def run() -> None:
            await lost.wait()
            then()

        self._tasks.add(asyncio.run_coroutine_threadsafe(run(), self.loop))

    def can_cancel(self) -> bool:
        return True

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


def uses_cancel(case: dict[str, Any]) -> bool:
    return any(step["do"] == "cancel" for step in case["steps"])


def load(name: str) -> dict[str, Any]:
    case = json.loads((CASES / f"{name}.json").read_text())
    assert isinstance(case, dict)
    return case


def reason(e: BaseException) -> str:
    if isinstance(e, (concurrent.futures.CancelledError, asyncio.CancelledError)):
        return "CANCELLED"
    if isinstance(e, LockSidecarError):
        return e.reason
    raise e


class Run:
    """One run of one case."""

    def __init__(self, case: dict[str, Any], store: str, driver: Driver) -> None:
        self._case = case
        self._driver = driver
        self._sidecars: dict[str, Sidecar] = {}
        self._clients: dict[str, Client] = {}
        self._holds: dict[str, AnyHeld] = {}
        self._calls: dict[str, concurrent.futures.Future[AnyHeld]] = {}
        self._noted: dict[str, float] = {}
        self._lost: dict[str, threading.Event] = {}
        self._namespace = uuid.uuid4().hex
        self._url = url(store)

    def run(self) -> None:
        try:
            for name, flags in self._case["sidecars"].items():
                self._sidecars[name] = Sidecar(self._url, namespace=self._namespace, flags=flags, name=name)
            for name in self._case["clients"]:
                self._do_open({"client": name})
            for number, step in enumerate(self._case["steps"], 1):
                try:
                    self._step(step)
                except Exception as e:
                    raise AssertionError(f"step {number}, {json.dumps(step, ensure_ascii=False)}: {e!r}") from e
        finally:
            for sidecar in self._sidecars.values():
                sidecar.stop()
            for client in self._clients.values():
                client.close()

    def _step(self, step: dict[str, Any]) -> None:
        do = getattr(self, "_do_" + step["do"])
        error = step.get("error")
        if error is None or step["do"] == "answer" or "call" in step:
            do(step)
            return
        try:
            do(step)
        except LockSidecarError as e:
            self._check_error(step, e)
        else:
            raise AssertionError(f"it succeeded, and should have failed with {error}")

    def _check_error(self, step: dict[str, Any], e: BaseException) -> None:
        assert reason(e) == step["error"], f"{reason(e)}: {e}"
        for key in step.get("metadata", ()):
            assert isinstance(e, LockSidecarError) and e.metadata.get(key), f"no {key}"

    def _do_acquire(self, step: dict[str, Any]) -> None:
        options: dict[str, Any] = {"resource": step["resource"], "owner": step.get("owner")}
        options["mode"] = Mode(step.get("mode", "EXCLUSIVE"))
        options["reentrant"] = step.get("reentrant", False)
        if "wait" in step:
            options["wait"] = step["wait"] / 1000
        if "maxHold" in step:
            options["max_hold"] = step["maxHold"] / 1000
        future = self._driver.acquire(self._clients[step["client"]], **options)
        if name := step.get("call"):
            self._calls[name] = future
            future.add_done_callback(lambda _: self._note(f"got:{name}"))
            return
        self._hold(step, future.result(30))

    def _hold(self, step: dict[str, Any], held: AnyHeld) -> None:
        if "count" in step:
            assert held.count == step["count"], held.count
        name = step["hold"]
        self._holds[name] = held
        told = self._lost[name] = threading.Event()

        def lost() -> None:
            self._note(f"lost:{name}")
            told.set()

        self._driver.when_lost(held, lost)

    def _note(self, what: str) -> None:
        self._noted.setdefault(what, time.clock_gettime(time.CLOCK_BOOTTIME))

    def _do_pending(self, step: dict[str, Any]) -> None:
        done, _ = concurrent.futures.wait([self._calls[step["call"]]], step["time"] / 1000)
        assert not done, "it was answered"

    def _do_cancel(self, step: dict[str, Any]) -> None:
        self._calls[step["call"]].cancel()

    def _do_answer(self, step: dict[str, Any]) -> None:
        try:
            held = self._calls[step["call"]].result(step["within"] / 1000)
        except concurrent.futures.TimeoutError as e:
            if not isinstance(e, LockSidecarError):
                raise AssertionError("no answer in time") from e
            self._check_error(step, e)
        except BaseException as e:
            if "error" not in step:
                raise
            self._check_error(step, e)
        else:
            assert "error" not in step, "it succeeded"
            self._hold(step, held)

    def _do_release(self, step: dict[str, Any]) -> None:
        left = self._driver.release(self._holds[step["hold"]])
        if "count" in step:
            assert left == step["count"], left

    def _do_downgrade(self, step: dict[str, Any]) -> None:
        self._driver.downgrade(self._holds[step["hold"]])

    def _do_look(self, step: dict[str, Any]) -> None:
        held = self._holds[step["hold"]]
        if "lost" in step:
            assert held.lost.is_set() == step["lost"], held
            assert (held.problem is not None) == step["lost"], held
            if step["lost"]:
                try:
                    held.check()
                except LockLost:
                    pass
                else:
                    raise AssertionError("check does not raise")
            else:
                try:
                    held.check()
                except NotHolder:
                    assert not held.count
        if "validFor" in step:
            least, most = step["validFor"]
            assert least <= held.valid_for() * 1000 <= most, held.valid_for()
        if "mode" in step:
            assert held.mode == step["mode"], held
        if "guard" in step:
            assert (held.guard is not None) == step["guard"]

    def _do_lost(self, step: dict[str, Any]) -> None:
        held = self._holds[step["hold"]]
        assert self._lost[step["hold"]].wait(step["within"] / 1000), "not lost in time"
        assert held.problem is not None and held.problem.lost_reason == step["reason"], held.problem
        assert held.valid_for() == 0

    def _do_rising(self, step: dict[str, Any]) -> None:
        fences = [self._holds[name].fence for name in step["holds"]]
        assert fences == sorted(set(fences)), fences

    def _do_order(self, step: dict[str, Any]) -> None:
        assert self._noted[step["first"]] < self._noted[step["then"]], self._noted

    def _do_open(self, step: dict[str, Any]) -> None:
        name = step["client"]
        sidecar = self._sidecars[self._case["clients"][name]]
        if name not in self._clients:
            self._clients[name] = Client(sidecar.socket, name=name)
        self._clients[name].open()

    def _do_close(self, step: dict[str, Any]) -> None:
        self._clients.pop(step["client"]).close()

    def _do_freeze(self, step: dict[str, Any]) -> None:
        self._sidecars[step["sidecar"]].freeze()

    def _do_thaw(self, step: dict[str, Any]) -> None:
        self._sidecars[step["sidecar"]].thaw()

    def _do_kill(self, step: dict[str, Any]) -> None:
        self._sidecars[step["sidecar"]].kill()

    def _do_start(self, step: dict[str, Any]) -> None:
        self._sidecars[step["sidecar"]].start()

    def _do_force(self, step: dict[str, Any]) -> None:
        sidecar = self._sidecars[step["sidecar"]]
        path = f"/v1/locks/{quote(step['resource'])}?grace={step['grace'] / 1000}s"
        threading.Thread(target=lambda: sidecar.http("DELETE", path), daemon=True).start()

    def _do_queue(self, step: dict[str, Any]) -> None:
        self._sidecars[step["sidecar"]].expect_queue(
            step["resource"], step["holders"], step["waiters"], step["within"] / 1000
        )
        if owners := step.get("owners"):
            holders, _ = self._sidecars[step["sidecar"]].look(step["resource"])
            told = [h["owner"] for h in holders]
            assert all(is_ if want == "*" else is_ == want for want, is_ in zip(owners, told, strict=True)), told

    def _do_pause(self, step: dict[str, Any]) -> None:
        time.sleep(step["time"] / 1000)
