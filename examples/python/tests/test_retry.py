"""What a client asks for again, and what it does not."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator

import pytest
from conftest import TRANSPORTS
from sidecars import PATIENCE, Relay, Sidecar

import locksidecar
from locksidecar import Client, TransportName


@pytest.fixture
def relay(sidecar: Sidecar) -> Iterator[Relay]:
    with Relay(sidecar) as relay:
        yield relay


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_a_sidecar_that_hangs_up_on_the_first_calls(sidecar: Sidecar, transport: TransportName) -> None:
    for hang_up in (1, 4):
        with Relay(sidecar, hang_up) as relay, Client(relay.socket, transport=transport) as client:
            with client.lock("hung-up", wait=5) as held:
                held.check()
            assert relay.hung_up == hang_up


def test_a_sidecar_that_hangs_up_on_the_first_calls_of_tasks(sidecar: Sidecar) -> None:
    async def main(client: Client) -> None:
        async with client.lock("hung-up", wait=5) as held:
            held.check()

    with Relay(sidecar, 3) as relay, Client(relay.socket) as client:
        asyncio.run(main(client))
        assert relay.hung_up == 3


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_a_sidecar_that_always_hangs_up(sidecar: Sidecar, transport: TransportName) -> None:
    with Relay(sidecar, 1 << 30) as relay, Client(relay.socket, transport=transport, connect_timeout=0.3) as client:
        with pytest.raises(locksidecar.SidecarGone):
            client.open()


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_close_ends_the_calls(sidecar: Sidecar, transport: TransportName) -> None:
    with Relay(sidecar, 1 << 30) as relay:
        client = Client(relay.socket, transport=transport, connect_timeout=1e6)

        async def main() -> BaseException | None:
            opening = asyncio.create_task(client.lock("r").acquire_async())
            while relay.hung_up < 2:
                await asyncio.sleep(0.01)
            await asyncio.to_thread(client.close)
            return (await asyncio.gather(opening, return_exceptions=True))[0]  # type: ignore[return-value]

        assert isinstance(asyncio.run(main()), locksidecar.SessionClosed)


def test_no_sidecar_is_told_at_once() -> None:
    with pytest.raises(locksidecar.NoSidecar):
        Client("/tmp/there-is-no-such-socket", connect_timeout=1e6).open()


def test_a_release_whose_answer_is_lost_takes_off_one_count(sidecar: Sidecar, relay: Relay) -> None:
    with Client(relay.socket) as client:
        lock = client.lock("counted", reentrant=True)
        outer, inner = lock.acquire(), lock.acquire()
        lost: list[str] = []
        relay.lose = lambda head: head.startswith("DELETE") and not lost and not lost.append(head)  # type: ignore[func-returns-value]
        assert inner.release() == 1
        releases = [head for head in relay.heads if head.startswith("DELETE")]
        assert lost and len(releases) == 2 and releases[0] == releases[1] and "?requestId=" in releases[0]
        outer.check()
        assert outer.release() == 0
        assert len({head for head in relay.heads if head.startswith("DELETE")}) == 2, "each release has its own id"


def test_a_release_of_a_task_whose_answer_is_lost_takes_off_one_count(sidecar: Sidecar, relay: Relay) -> None:
    async def main(client: Client) -> None:
        lock = client.lock("counted", reentrant=True)
        outer, inner = await lock.acquire_async(), await lock.acquire_async()
        lost: list[str] = []
        relay.lose = lambda head: head.startswith("DELETE") and not lost and not lost.append(head)  # type: ignore[func-returns-value]
        assert await inner.release() == 1
        assert lost
        outer.check()
        assert await outer.release() == 0

    with Client(relay.socket) as client:
        asyncio.run(main(client))


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_the_app_releases_again_what_was_not_answered(
    own_sidecar: Callable[..., Sidecar], transport: TransportName, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The second release is the first one, for the sidecar too."""
    sidecar = own_sidecar()
    with Client(sidecar.socket, transport=transport) as client:
        lock = client.lock("counted", reentrant=True)
        outer, inner = lock.acquire(), lock.acquire()
        sidecar.freeze()
        with monkeypatch.context() as m:
            m.setattr("locksidecar._session._PATIENCE", -1.7)
            with pytest.raises(locksidecar.SidecarSilent):
                inner.release()
        sidecar.thaw()
        assert inner.release() == 1
        outer.check()
        assert outer.release() == 0
        sidecar.expect_queue("counted", 0, 0)


def test_the_sidecar_goes_while_a_call_waits(sidecar: Sidecar, relay: Relay) -> None:
    """That is SidecarGone, whoever sees it first: the reader of the events or the call.

    As the sidecar lives on behind the relay, so does its session, with the lock.
    """
    with Client(sidecar.socket) as other, Client(relay.socket) as client:
        client.open()
        relay.lose = lambda head: head.startswith("POST")
        held = other.lock("gone").acquire()
        errors: list[BaseException] = []

        def wait() -> None:
            try:
                client.lock("gone").acquire()
            except BaseException as e:
                errors.append(e)

        thread = threading.Thread(target=wait)
        thread.start()
        sidecar.expect_queue("gone", 1, 1)
        relay.refuse()
        held.release()  # the answer to the waiter is lost
        thread.join(PATIENCE)
        assert isinstance(errors[0], locksidecar.SidecarGone), errors


def test_the_sidecar_goes_while_a_task_waits(sidecar: Sidecar, relay: Relay) -> None:
    async def main(other: Client, client: Client) -> None:
        await client.session_async()
        relay.lose = lambda head: head.startswith("POST")
        held = await other.lock("gone-task").acquire_async()
        waiting = asyncio.create_task(client.lock("gone-task").acquire_async())
        await asyncio.to_thread(sidecar.expect_queue, "gone-task", 1, 1)
        relay.refuse()
        await held.release()
        with pytest.raises(locksidecar.SidecarGone):
            await waiting

    with Client(sidecar.socket) as other, Client(relay.socket) as client:
        asyncio.run(main(other, client))
