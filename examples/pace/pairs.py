"""Prints the median µs of a pair of acquire and release, and its processor time: pairs.py KIND SOCKET PAIRS

KIND: threads, asyncio; with -hand: the same by hand, the fewest steps in which this language can do it at the sidecar;
with -floor: two lines there and back over a bare socket.
"""

from __future__ import annotations

import asyncio
import itertools
import socket
import sys
import time
from collections.abc import Awaitable, Callable

from locksidecar import Client

LINE = b"x" * 127 + b"\n"
OPEN = b'{"requestId":"0","open":{"name":"pace"}}\n'
ACQUIRE = b'{"requestId":"%d","acquire":{"resource":"pace","owner":"hand"}}\n'
RELEASE = b'{"requestId":"%d","release":{"lockId":"%b"}}\n'


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


def lock_id(granted: bytes) -> bytes:
    at = granted.index(b'"lockId":"') + 10
    return granted[at : granted.index(b'"', at)]


def came(text: bytes, word: bytes) -> bool:
    """Whether the answer that has the word is there. News may come before it."""
    return text.endswith(b"\n") and word in text


def threads_hand(path: str, pairs: int) -> None:
    with socket.socket(socket.AF_UNIX) as sock:
        sock.connect(path)

        def ask(line: bytes, word: bytes) -> bytes:
            sock.sendall(line)
            answer = sock.recv(65536)
            while not came(answer, word):
                answer += sock.recv(65536)
            return answer

        def pair() -> None:
            ask(RELEASE % (next(numbers), lock_id(ask(ACQUIRE % next(numbers), b"granted"))), b"released")

        numbers = itertools.count(1)
        ask(OPEN, b"opened")
        measure(pair, pairs)


Ask = Callable[[bytes, bytes], Awaitable[bytes]]


class Bare(asyncio.Protocol):
    """A bare connection of asyncio, with a future for what comes back."""

    answered: asyncio.Future[bytes]
    word = said = b""

    def data_received(self, data: bytes) -> None:
        self.said += data
        if came(self.said, self.word):
            self.answered.set_result(self.said)


async def bare(path: str, pairs: int, pair_of: Callable[[Ask], Awaitable[object]]) -> None:
    loop = asyncio.get_running_loop()
    transport, protocol = await loop.create_unix_connection(Bare, path)

    def ask(line: bytes, word: bytes) -> asyncio.Future[bytes]:
        protocol.answered, protocol.word, protocol.said = loop.create_future(), word, b""
        transport.write(line)
        return protocol.answered

    await measure_tasks(lambda: pair_of(ask), pairs)
    transport.close()


def tasks_hand(path: str, pairs: int) -> None:
    numbers = itertools.count(1)

    async def pair(ask: Ask) -> None:
        number = next(numbers)
        if number == 1:
            await ask(OPEN, b"opened")
        await ask(RELEASE % (next(numbers), lock_id(await ask(ACQUIRE % number, b"granted"))), b"released")

    asyncio.run(bare(path, pairs, pair))


def tasks_floor(path: str, pairs: int) -> None:
    async def pair(ask: Ask) -> None:
        await ask(LINE, b"x")
        await ask(LINE, b"x")

    asyncio.run(bare(path, pairs, pair))


KINDS = {
    "threads": threads,
    "threads-hand": threads_hand,
    "threads-floor": threads_floor,
    "asyncio": tasks,
    "asyncio-hand": tasks_hand,
    "asyncio-floor": tasks_floor,
}
KINDS[sys.argv[1]](sys.argv[2], int(sys.argv[3]))
