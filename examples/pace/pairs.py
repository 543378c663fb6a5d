"""Prints the nanoseconds of a pair of acquire and release: pairs.py SOCKET PAIRS threads|asyncio"""

import asyncio
import sys
import time

from locksidecar import Client


def threads(client: Client, pairs: int) -> None:
    lock = client.lock("pace")
    for _ in range(pairs):
        lock.acquire().release()


async def tasks(client: Client, pairs: int) -> int:
    lock = client.lock("pace")
    began = 0
    for i in range(pairs + pairs // 10):
        if i == pairs // 10:  # warm
            began = time.perf_counter_ns()
        await (await lock.acquire_async()).release()
    return time.perf_counter_ns() - began


def main(socket: str, pairs: int, kind: str) -> None:
    with Client(socket, name="pace") as client:
        if kind == "asyncio":
            took = asyncio.run(tasks(client, pairs))
        else:
            threads(client, pairs // 10)  # warm
            began = time.perf_counter_ns()
            threads(client, pairs)
            took = time.perf_counter_ns() - began
    print(took / pairs)


main(sys.argv[1], int(sys.argv[2]), sys.argv[3])
