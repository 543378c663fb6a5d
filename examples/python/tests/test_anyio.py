"""Locks in tasks of anyio and of trio, the real ones."""

from __future__ import annotations

import functools
from collections.abc import Awaitable, Callable

import pytest
from sidecars import Sidecar, eventually

from locksidecar import Client, LockLost

anyio = pytest.importorskip("anyio")
trio = pytest.importorskip("trio")

Connect = Callable[..., Client]


@pytest.fixture
def client(connect: Connect) -> Client:
    return connect()


def on_asyncio(main: Callable[[], Awaitable[None]]) -> None:
    anyio.run(main, backend="asyncio")


def test_they_exclude_each_other(client: Client) -> None:
    inside = done = 0

    async def work() -> None:
        nonlocal inside, done
        async with client.lock("anyio/many", wait=60):
            inside += 1
            assert inside == 1
            await anyio.sleep(0.001)
            inside -= 1
        done += 1

    async def main() -> None:
        async with anyio.create_task_group() as group:
            for _ in range(20):
                group.start_soon(work)

    on_asyncio(main)
    assert done == 20


def test_a_wait_that_a_scope_cancels_leaves_nothing(client: Client, sidecar: Sidecar) -> None:
    async def main() -> None:
        async with client.lock("anyio/wait"):
            with anyio.move_on_after(0.2) as scope:
                await client.lock("anyio/wait").acquire_async()
            assert scope.cancelled_caught
            with pytest.raises(TimeoutError), anyio.fail_after(0.2):
                async with client.lock("anyio/wait"):
                    raise AssertionError("it is held")
            await anyio.to_thread.run_sync(sidecar.expect_queue, "anyio/wait", 1, 0)
        await anyio.to_thread.run_sync(sidecar.expect_queue, "anyio/wait", 0, 0)

    on_asyncio(main)


def test_a_block_that_a_scope_cancels_releases(client: Client, sidecar: Sidecar) -> None:
    """anyio cancels each await of such a block again, that of the release, too."""

    async def main() -> None:
        with anyio.CancelScope() as scope:
            async with client.lock("anyio/block"):
                scope.cancel()
                await anyio.sleep(60)
        assert scope.cancelled_caught
        await anyio.to_thread.run_sync(sidecar.expect_queue, "anyio/block", 0, 0)
        async with client.lock("anyio/block", wait=60) as held:
            held.check()

    on_asyncio(main)


def test_a_loss_cancels_the_task_of_a_group(client: Client, sidecar: Sidecar) -> None:
    told: list[str] = []

    async def work() -> None:
        with pytest.raises(LockLost) as lost:
            async with client.lock("anyio/lost", cancel_on_lost=True):
                client.force("anyio/lost", grace=0)
                await anyio.sleep(60)
        told.append(lost.value.lost_reason)
        await anyio.sleep(0)  # it is not cancelled any more

    async def main() -> None:
        async with anyio.create_task_group() as group:
            group.start_soon(work)

    on_asyncio(main)
    assert told == ["FORCED"]


@pytest.mark.parametrize("run", [trio.run, functools.partial(anyio.run, backend="trio")], ids=["trio", "anyio"])
@pytest.mark.parametrize("opened", [False, True])
def test_trio_is_told_what_to_do(client: Client, sidecar: Sidecar, run: Callable[..., None], opened: bool) -> None:
    if opened:
        client.open()

    async def main() -> None:
        lock = client.lock("trio/refused")
        with pytest.raises(RuntimeError, match=r"trio\.to_thread"):
            await lock.acquire_async()
        with pytest.raises(RuntimeError, match=r"trio\.to_thread"):
            async with lock:
                pass
        with pytest.raises(RuntimeError, match=r"trio\.to_thread"):
            await client.release_detached_async("no handle")

    run(main)
    assert sidecar.queue("trio/refused") == (0, 0)
    assert opened or client._session is None  # nothing was opened


def test_trio_takes_locks_in_threads(client: Client, sidecar: Sidecar) -> None:
    inside = done = 0

    async def work() -> None:
        nonlocal inside, done
        held = await trio.to_thread.run_sync(client.lock("trio/threads", wait=60).acquire)
        inside += 1
        assert inside == 1
        held.check()
        await trio.sleep(0.001)
        inside -= 1
        await trio.to_thread.run_sync(held.release)
        done += 1

    async def main() -> None:
        async with trio.open_nursery() as nursery:
            for _ in range(10):
                nursery.start_soon(work)

    trio.run(main)
    assert done == 10
    eventually("nothing is left", lambda: sidecar.queue("trio/threads") == (0, 0))


def test_a_block_that_trio_cancels_releases(client: Client, sidecar: Sidecar) -> None:
    async def main() -> None:
        with trio.CancelScope() as scope:
            held = await trio.to_thread.run_sync(client.lock("trio/threads", wait=60).acquire)
            try:
                scope.cancel()
                await trio.sleep(60)
            finally:
                with trio.CancelScope(shield=True):
                    await trio.to_thread.run_sync(held.release)
        assert scope.cancelled_caught

    trio.run(main)
    eventually("nothing is left", lambda: sidecar.queue("trio/threads") == (0, 0))
