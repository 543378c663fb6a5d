"""1,000 threads, and then 1,000 tasks, that hold a lock each at the same time. Prints how many the sidecar counts."""

import asyncio
import threading

import locksidecar

CROWD = 1000
client = locksidecar.Client()
all_hold, counted = threading.Barrier(CROWD + 1), threading.Event()


def hold(name: str) -> None:
    with client.lock(name):
        all_hold.wait()
        counted.wait()


threads = [threading.Thread(target=hold, args=(f"thread/{i}",)) for i in range(CROWD)]
for thread in threads:
    thread.start()
all_hold.wait()
print(client.info()["holds"])
counted.set()
for thread in threads:
    thread.join()


async def main() -> None:
    held, over = [], asyncio.Event()

    async def hold_too(name: str) -> None:
        async with client.lock(name):
            held.append(name)
            if len(held) == CROWD:
                print(client.info()["holds"])
                over.set()
            await over.wait()

    await asyncio.gather(*[hold_too(f"task/{i}") for i in range(CROWD)])


asyncio.run(main())
client.close()
