"""Measures the two transports beside each other, on a sidecar with the embedded store.

    python bench/transports.py [--seconds 2]
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import locksidecar

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent / "scenarios"))

from run_sidecars import EMBEDDED, sidecars  # noqa: E402

WAITER = """
import sys, time
import locksidecar
client = locksidecar.Client(sys.argv[1], transport=sys.argv[2])
lock = client.lock("hand-over")
client.open()
print("ready", flush=True)
while sys.stdin.readline():
    with lock:
        got = time.clock_gettime(time.CLOCK_BOOTTIME)
    print(got, flush=True)
"""


def micros(seconds: float) -> str:
    return f"{seconds * 1e6:.0f} µs"


def one_thread(client: locksidecar.Client, seconds: float) -> str:
    """Acquire and release, median."""
    lock = client.lock("one")
    took = []
    end = time.perf_counter() + seconds
    while (began := time.perf_counter()) < end:
        with lock:
            pass
        took.append(time.perf_counter() - began)
    return micros(statistics.median(took))


def threads(client: locksidecar.Client, seconds: float, count: int = 8) -> str:
    """Each takes a lock of its own, again and again."""
    stop = time.perf_counter() + seconds
    done = [0] * count

    def work(n: int) -> None:
        lock = client.lock(f"thread/{n}")
        while time.perf_counter() < stop:
            with lock:
                done[n] += 1

    workers = [threading.Thread(target=work, args=(n,)) for n in range(count)]
    for w in workers:
        w.start()
    for w in workers:
        w.join()
    return f"{sum(done) / seconds:.0f}/s"


def tasks(client: locksidecar.Client, seconds: float, count: int = 100) -> str:
    """The same in tasks of one loop."""

    async def main() -> int:
        stop = time.perf_counter() + seconds
        done = 0

        async def work(n: int) -> None:
            nonlocal done
            lock = client.lock(f"task/{n}")
            while time.perf_counter() < stop:
                async with lock:
                    done += 1

        await asyncio.gather(*(work(n) for n in range(count)))
        return done

    return f"{asyncio.run(main()) / seconds:.0f}/s"


def waiting(client: locksidecar.Client, seconds: float, count: int = 500) -> str:
    """So many tasks wait for one lock; then it goes through all of them."""

    async def main() -> float:
        async def work() -> None:
            async with client.lock("queue"):
                pass

        async with client.lock("queue"):
            queue = [asyncio.create_task(work()) for _ in range(count)]
            await asyncio.sleep(1)
            began = time.perf_counter()
        await asyncio.gather(*queue)
        return time.perf_counter() - began

    return f"{count / asyncio.run(main()):.0f}/s"


def hand_over(client: locksidecar.Client, seconds: float) -> str:
    """From the release here until another process has it, median."""
    socket = client.session()._transport.path  # type: ignore[attr-defined]
    transport = type(client.session()._transport).__name__.lower()
    took: list[float] = []
    with subprocess.Popen(
        [sys.executable, "-c", WAITER, socket, transport], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as other:
        assert other.stdin is not None and other.stdout is not None
        other.stdout.readline()
        end = time.perf_counter() + seconds
        while time.perf_counter() < end:
            held = client.lock("hand-over").acquire()
            other.stdin.write("\n")
            other.stdin.flush()
            time.sleep(0.01)  # it waits now
            released = time.clock_gettime(time.CLOCK_BOOTTIME)
            held.release()
            took.append(float(other.stdout.readline()) - released)
        other.stdin.close()
    return micros(statistics.median(took))


def start(transport: str, socket: str) -> str:
    """A new process: from its start until it has the first lock, best of 5."""
    code = (
        "import sys, locksidecar;"
        "client = locksidecar.Client(sys.argv[1], transport=sys.argv[2]);"
        "client.lock('start').acquire().release()"
    )

    def once() -> float:
        began = time.perf_counter()
        subprocess.run([sys.executable, "-c", code, socket, transport], check=True)
        return time.perf_counter() - began

    return f"{min(once() for _ in range(5)) * 1e3:.0f} ms"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=2.0)
    seconds: float = parser.parse_args().seconds
    measures: list[tuple[str, Callable[[locksidecar.Client, float], str]]] = [
        ("acquire + release, one thread", one_thread),
        ("acquire + release, 8 threads", threads),
        ("acquire + release, 100 tasks", tasks),
        ("one lock through 500 waiting tasks", waiting),
        ("hand-over between two processes", hand_over),
    ]
    names: tuple[Any, ...] = ("http", "grpc")
    rows: dict[str, list[str]] = {what: [] for what, _ in measures}
    rows["start of a process, to its first lock"] = []
    with sidecars(["bench"], EMBEDDED) as started:
        socket = started["bench"].socket
        for name in names:
            for what, measure in measures:
                with locksidecar.Client(socket, transport=name) as client:
                    client.open()
                    rows[what].append(measure(client, seconds))
            rows["start of a process, to its first lock"].append(start(name, socket))
    print(f"| | {' | '.join(names)} |\n|---|---|---|")
    for what, row in rows.items():
        print(f"| {what} | {' | '.join(row)} |")


if __name__ == "__main__":
    main()
