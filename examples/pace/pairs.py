"""Prints the median µs of a pair of acquire and release, and its processor time: pairs.py KIND SOCKET PAIRS

KIND: threads, asyncio; with -floor: two lines there and back over a bare socket.
"""

from __future__ import annotations

import asyncio
import socket
import sys
import time
from collections.abc import Awaitable, Callable

from locksidecar import Client

LINE = b"x" * 127 + b"\n"


def measure(pair: Callable[[], object], pairs: int) -> None:
    for _ in range(pairs // 2):  # warm
        pair()
    took, before = [], time.process_time_ns()
    for _ in range(pairs):
        began = time.perf_counter_ns()
        pair()
        took.append(time.perf_counter_ns() - began)
    show(took, before)


async def measure_tasks(pair: Callable[[], Awaitable[object]], pairs: int) -> None:
    for _ in range(pairs // 2):  # warm
        await pair()
    took, before = [], time.process_time_ns()
    for _ in range(pairs):
        began = time.perf_counter_ns()
        await pair()
        took.append(time.perf_counter_ns() - began)
    show(took, before)


def show(took: list[int], before: int) -> None:
    used = time.process_time_ns() - before
    print(sorted(took)[len(took) // 2] / 1e3, used / 1e3 / len(took))


def threads(path: str, pairs: int) -> None:
    with Client(path, name="pace") as client:
        lock = client.lock("pace")
        measure(lambda: lock.acquire().release(), pairs)


def tasks(path: str, pairs: int) -> None:
    with Client(path, name="pace") as client:
        lock = client.lock("pace")

        async def pair() -> None:
            await (await lock.acquire_async()).release()

        asyncio.run(measure_tasks(pair, pairs))


def threads_floor(path: str, pairs: int) -> None:
    with socket.socket(socket.AF_UNIX) as sock:
        sock.connect(path)

        def pair() -> None:
            for _ in range(2):
                sock.sendall(LINE)
                rest = len(LINE)
                while rest:
                    rest -= len(sock.recv(65536))

        measure(pair, pairs)


class Echo(asyncio.Protocol):
    """A bare connection of asyncio, with a future for what comes back."""

    def __init__(self) -> None:
        self.answered: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def data_received(self, data: bytes) -> None:
        if data.endswith(b"\n"):
            self.answered.set_result(None)


def tasks_floor(path: str, pairs: int) -> None:
    async def main() -> None:
        loop = asyncio.get_running_loop()
        transport, echo = await loop.create_unix_connection(Echo, path)

        async def pair() -> None:
            for _ in range(2):
                echo.answered = loop.create_future()
                transport.write(LINE)
                await echo.answered

        await measure_tasks(pair, pairs)
        transport.close()

    asyncio.run(main())


KINDS = {"threads": threads, "threads-floor": threads_floor, "asyncio": tasks, "asyncio-floor": tasks_floor}
KINDS[sys.argv[1]](sys.argv[2], int(sys.argv[3]))
