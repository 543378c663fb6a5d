"""Runs the cases of examples/contract with this client. Its README says what the fields mean.

As a program it runs one case: those that fork or stop need a process of their own.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import gc
import json
import os
import queue
import subprocess
import sys
import threading
import time
import traceback
import uuid
from pathlib import Path
from typing import Any
from urllib.parse import quote

from contract_drivers import AnyHeld, Driver, Tasks, Threads
from sidecars import EMBEDDED, MYSQL, REDIS, Relay, Sidecar, eventually

from locksidecar import Client, Detached, LockLost, LockSidecarError, NotHolder, Once

CASES = Path(__file__).resolve().parents[2] / "contract"

OF_A_CASE = {"about", "store", "needs", "sidecars", "relays", "clients", "metadata", "steps"}
OF_A_STEP = {
    *("do", "error", "metadata", "within", "time", "client", "sidecar", "relay", "lines", "steps"),
    *("resource", "resources", "mode", "wait", "owner", "reentrant", "maxHold", "minHold", "limit", "once", "unwatched"),
    *("detachable", "ttl", "handle"),
    *("hold", "call", "count", "outcome", "note", "lost", "validFor", "guard", "parts", "slot", "attempt", "previous"),
    *("holds", "are", "reason", "first", "then", "grace", "holders", "waiters", "owners"),
    *("value", "candidates", "interval", "watch"),
}
_TIMES = {"wait": "wait", "maxHold": "max_hold", "minHold": "min_hold"}  # of an acquire


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


DRIVERS: dict[str, type[Threads] | type[Tasks]] = {"threads": Threads, "tasks": Tasks}


def load(name: str) -> dict[str, Any]:
    case = json.loads((CASES / f"{name}.json").read_text())
    assert isinstance(case, dict)
    return case


def run(name: str, store: str, driver_name: str) -> None:
    """Run one case, in a process of its own where others in this one would not bear it."""
    case = load(name)
    if {"fork", "stop"}.isdisjoint(case.get("needs", ())) and all(s["do"] != "drop" for s in case["steps"]):
        run_here(case, store, driver_name)
        return
    ignored = ["-W", "ignore:This process:DeprecationWarning", "-W", "ignore::ResourceWarning"]  # forks, and drops
    command = [sys.executable, "-W", "error", *ignored, __file__, name, store, driver_name]
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    assert done.returncode == 0, done.stdout


def run_here(case: dict[str, Any], store: str, driver_name: str) -> None:
    driver = DRIVERS[driver_name]()
    try:
        Run(case, store, driver).run()
    finally:
        driver.close()


def reason(e: BaseException) -> str:
    if isinstance(e, (concurrent.futures.CancelledError, asyncio.CancelledError)):
        return "CANCELLED"
    if isinstance(e, LockSidecarError):
        return e.reason
    raise e


class Run:
    """One run of one case."""

    def __init__(self, case: dict[str, Any], store: str, driver: Driver) -> None:
        assert set(case) <= OF_A_CASE, set(case) - OF_A_CASE
        self._case = case
        self._driver = driver
        self._sidecars: dict[str, Sidecar] = {}
        self._relays: dict[str, Relay] = {}
        self._clients: dict[str, Client] = {}
        self._closed: set[str] = set()  # clients
        self._holds: dict[str, AnyHeld] = {}
        self._handles: dict[str, Detached] = {}
        self._calls: dict[str, concurrent.futures.Future[AnyHeld]] = {}
        self._watches: dict[str, queue.Queue[dict[str, Any]]] = {}
        self._noted: dict[str, float] = {}
        self._lost: dict[str, threading.Event] = {}
        self._namespace = uuid.uuid4().hex
        self._url = url(store)

    def run(self) -> None:
        try:
            for name, flags in self._case["sidecars"].items():
                self._sidecars[name] = Sidecar(self._url, namespace=self._namespace, flags=flags, name=name)
            for name, relay in self._case.get("relays", {}).items():
                self._relays[name] = Relay(self._sidecars[relay["to"]], without=relay["without"])
            for name in self._case["clients"]:
                self._do_open({"client": name})
            self._steps(self._case["steps"])
        finally:
            for sidecar in self._sidecars.values():
                sidecar.stop()
            for relay in self._relays.values():
                relay.close()
            for client in self._clients.values():
                client.close()

    def _steps(self, steps: list[dict[str, Any]]) -> None:
        for number, step in enumerate(steps, 1):
            try:
                self._step(step)
            except Exception as e:
                raise AssertionError(f"step {number}, {json.dumps(step, ensure_ascii=False)}: {e!r}") from e

    def _step(self, step: dict[str, Any]) -> None:
        assert set(step) <= OF_A_STEP, set(step) - OF_A_STEP
        do = getattr(self, "_do_" + step["do"])
        if "error" not in step or step["do"] == "answer" or "call" in step:
            do(step)
        elif "within" in step:
            eventually(f"it fails with {step['error']}", lambda: self._fails(do, step), step["within"] / 1000)
        else:
            assert self._fails(do, step), f"it succeeded, and should have failed with {step['error']}"

    def _fails(self, do: Any, step: dict[str, Any]) -> bool:
        try:
            do(step)
        except LockSidecarError as e:
            self._check_error(step, e)
            return True
        return False

    def _check_error(self, step: dict[str, Any], e: BaseException) -> None:
        assert reason(e) == step["error"], f"{reason(e)}: {e}"
        for key in step.get("metadata", ()):
            assert isinstance(e, LockSidecarError) and e.metadata.get(key), f"no {key}"

    # What the app does.

    def _do_acquire(self, step: dict[str, Any]) -> None:
        options: dict[str, Any] = {"resource": step.get("resource", step.get("resources"))}
        options |= {name: step[name] for name in ("owner", "mode", "reentrant", "limit", "detachable") if name in step}
        options |= {to: step[name] / 1000 for name, to in _TIMES.items() if name in step}
        if (once := step.get("once")) is not None:
            options["once"] = Once(once["keep"] / 1000 if "keep" in once else None, once.get("maxAttempts", 0))
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
        if step.get("unwatched"):
            return
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
        held = self._holds[step["hold"]]
        if "outcome" in step:
            self._driver.conclude(held, step["outcome"], step.get("note", ""))
            return
        left = self._driver.release(held)
        if "count" in step:
            assert left == step["count"], left

    def _do_dispose(self, step: dict[str, Any]) -> None:
        self._driver.dispose(self._holds[step["hold"]])

    def _do_drop(self, step: dict[str, Any]) -> None:
        del self._holds[step["hold"]]
        gc.collect()

    def _do_downgrade(self, step: dict[str, Any]) -> None:
        self._driver.downgrade(self._holds[step["hold"]])

    def _do_extend(self, step: dict[str, Any]) -> None:
        self._driver.extend(self._holds[step["hold"]], step["maxHold"] / 1000)

    def _do_detach(self, step: dict[str, Any]) -> None:
        held = self._holds[step["hold"]]
        detached = self._driver.detach(held, step["ttl"] / 1000)
        assert (detached.resource, detached.mode, detached.fence) == (held.resource, held.mode, held.fence), detached
        assert 0 < detached.valid_for() <= step["ttl"] / 1000, detached.valid_for()
        self._handles[step["handle"]] = detached

    def _do_attach(self, step: dict[str, Any]) -> None:
        self._hold(step, self._driver.attach(self._clients[step["client"]], self._handles[step["handle"]]))

    def _do_extendHandle(self, step: dict[str, Any]) -> None:
        before = self._handles[step["handle"]]
        after = self._driver.extend_detached(self._clients[step["client"]], before, step["ttl"] / 1000)
        assert after == before and 0 < after.valid_for() <= step["ttl"] / 1000, (before, after, after.valid_for())

    def _do_releaseHandle(self, step: dict[str, Any]) -> None:
        self._driver.release_detached(self._clients[step["client"]], self._handles[step["handle"]])

    def _do_same(self, step: dict[str, Any]) -> None:
        fences = [self._holds[name].fence for name in step["holds"]]
        assert len(set(fences)) == 1, fences

    def _do_check(self, step: dict[str, Any]) -> None:
        self._holds[step["hold"]].check()

    def _do_look(self, step: dict[str, Any]) -> None:
        held = self._holds[step["hold"]]
        if "lost" in step:
            self._look_lost(held, step["lost"])
        if "validFor" in step:
            least, most = step["validFor"]
            assert least <= held.valid_for() * 1000 <= most, held.valid_for()
        if "mode" in step:
            assert held.mode == step["mode"], held
        if "guard" in step:
            assert (held.guard is not None) == step["guard"]
        if "parts" in step:
            assert [p.resource for p in held.parts] == step["parts"], held.parts
            assert all(p.fence > 0 for p in held.parts), held.parts
        if "slot" in step:
            assert held.slot == step["slot"], held.slot
        if "attempt" in step:
            assert held.attempt == step["attempt"], held.attempt
        if "previous" in step:
            previous = held.previous and {name: held.previous[name] for name in ("state", "attempt", "note")}
            assert previous == step["previous"], previous

    def _look_lost(self, held: AnyHeld, lost: bool) -> None:
        assert held.lost.is_set() == lost, held
        assert (held.problem is not None) == lost, held
        try:
            held.check()
        except LockLost:
            assert lost
        except NotHolder:
            assert not held.count and not lost
        else:
            assert not lost, "check does not raise"

    def _do_slots(self, step: dict[str, Any]) -> None:
        slots = [self._holds[name].slot for name in step["holds"]]
        assert sorted(slots, key=str) == step["are"], slots

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
        if name not in self._clients or name in self._closed:
            at = self._case["clients"][name]
            socket = (self._relays.get(at) or self._sidecars[at]).socket
            self._clients[name] = Client(socket, name=name, metadata=self._case.get("metadata", {}).get(name))
            self._closed.discard(name)
        self._clients[name].open()

    def _do_close(self, step: dict[str, Any]) -> None:
        self._clients[step["client"]].close()
        self._closed.add(step["client"])

    def _do_draining(self, step: dict[str, Any]) -> None:
        client = self._clients[step["client"]]
        eventually("told", lambda: client.draining, step["within"] / 1000)

    # What becomes of the process of the app.

    def _do_fork(self, step: dict[str, Any]) -> None:
        pid = os.fork()
        if pid == 0:
            status = 1
            try:
                self._steps(step["steps"])
                status = 0
            except BaseException:
                traceback.print_exc()
            finally:
                os._exit(status)
        assert os.waitpid(pid, 0)[1] == 0, "the child failed"

    def _do_stop(self, step: dict[str, Any]) -> None:
        pid = os.getpid()
        command = ["sh", "-c", f"sleep 0.2; kill -STOP {pid}; sleep {step['time'] / 1000}; kill -CONT {pid}"]
        if "hold" not in step:
            subprocess.run(command, check=True)
            return
        with subprocess.Popen(command) as stopper:  # the app asks about it again and again meanwhile
            while stopper.poll() is None:
                self._holds[step["hold"]].check()
        assert stopper.returncode == 0

    # What becomes of the sidecars, and what they show.

    def _do_freeze(self, step: dict[str, Any]) -> None:
        self._sidecars[step["sidecar"]].freeze()

    def _do_thaw(self, step: dict[str, Any]) -> None:
        self._sidecars[step["sidecar"]].thaw()

    def _do_kill(self, step: dict[str, Any]) -> None:
        self._sidecars[step["sidecar"]].kill()

    def _do_terminate(self, step: dict[str, Any]) -> None:
        self._sidecars[step["sidecar"]].terminate()

    def _do_ended(self, step: dict[str, Any]) -> None:
        self._sidecars[step["sidecar"]].ended(step["within"] / 1000)

    def _do_start(self, step: dict[str, Any]) -> None:
        self._sidecars[step["sidecar"]].start()

    def _do_withheld(self, step: dict[str, Any]) -> None:
        relay = self._relays[step["relay"]]
        eventually("withheld", lambda: relay.withheld >= step["lines"], step["within"] / 1000)

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

    def _do_leader(self, step: dict[str, Any]) -> None:
        client = self._clients[step["client"]]
        end = time.monotonic() + step.get("within", 0) / 1000
        while True:
            leader = client.leader(step["resource"])
            if self._leads(step, leader):
                return
            assert time.monotonic() < end, leader
            time.sleep(0.005)

    def _leads(self, step: dict[str, Any], leader: dict[str, Any]) -> bool:
        holder: dict[str, Any] = leader.get("holder") or {}
        return (
            leader["leads"] == bool(holder) == (step["value"] is not None)
            and leader["value"] == (step["value"] or "")
            and ("hold" not in step or int(holder.get("fence", 0)) == self._holds[step["hold"]].fence)
            and step.get("candidates", leader["candidates"]) == leader["candidates"]
        )

    def _do_watchLeader(self, step: dict[str, Any]) -> None:
        told = self._watches[step["watch"]] = queue.Queue()
        leaders = self._clients[step["client"]].watch_leader(step["resource"], interval=step["interval"] / 1000)

        def read() -> None:
            with contextlib.suppress(LockSidecarError):  # it ends with its sidecar
                for leader in leaders:
                    told.put(leader)

        threading.Thread(target=read, daemon=True).start()

    def _do_told(self, step: dict[str, Any]) -> None:
        end = time.monotonic() + step["within"] / 1000
        last: dict[str, Any] | None = None
        while last is None or not self._leads(step, last):
            try:
                last = self._watches[step["watch"]].get(timeout=max(0, end - time.monotonic()))
            except queue.Empty:
                raise AssertionError(f"not told in time; the last was {last}") from None

    def _do_pause(self, step: dict[str, Any]) -> None:
        time.sleep(step["time"] / 1000)


if __name__ == "__main__":
    run_here(load(sys.argv[1]), *sys.argv[2:])
