"""What a client asks for again, and what it does not."""

from __future__ import annotations

import asyncio
import json
import socket
import threading
from collections.abc import Callable, Iterator

import pytest
from conftest import TRANSPORTS
from sidecars import PATIENCE, Relay, Sidecar, eventually

import locksidecar
from locksidecar import Client, TransportName
from locksidecar._http import HTTP
from locksidecar._wire import request


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


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_what_was_opened_too_late_leaves_no_session(
    own_sidecar: Callable[..., Sidecar], transport: TransportName, monkeypatch: pytest.MonkeyPatch
) -> None:
    sidecar = own_sidecar()
    monkeypatch.setattr("locksidecar._http._OPEN_TIMEOUT", 0.3)
    monkeypatch.setattr("locksidecar._grpc._OPEN_TIMEOUT", 0.3)
    sidecar.freeze()
    for _ in range(8):
        with pytest.raises(locksidecar.SidecarSilent):
            Client(sidecar.socket, transport=transport).open()
    sidecar.thaw()
    with Client(sidecar.socket) as client:
        client.lock("after").acquire()  # it has read what came before
        eventually("one session", lambda: sidecar.http("GET", "/v1/info")[1]["sessions"] == 1)


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


def test_a_call_whose_connection_makes_room_is_sent_again(sidecar: Sidecar, relay: Relay) -> None:
    """The session does not hang on that connection, nor do its locks."""
    with Client(relay.socket) as client, client.lock("kept") as kept:
        for kind in ("POST", "DELETE"):
            evicted: list[str] = []
            relay.evict = lambda head: head.startswith(kind) and len(evicted) < 4 and not evicted.append(head)  # type: ignore[func-returns-value]
            with client.lock("crowded", wait=5):
                pass
            assert len(evicted) == 4 and len(set(evicted)) == 1
        kept.check()
        sidecar.expect_queue("crowded", 0, 0)


def test_a_call_of_a_task_whose_connection_makes_room_is_sent_again(sidecar: Sidecar, relay: Relay) -> None:
    async def main(client: Client) -> None:
        async with client.lock("kept") as kept:
            for kind in ("POST", "DELETE"):
                evicted: list[str] = []
                relay.evict = lambda head: head.startswith(kind) and len(evicted) < 4 and not evicted.append(head)  # type: ignore[func-returns-value]
                async with client.lock("crowded", wait=5):
                    pass
                assert len(evicted) == 4
            kept.check()
            sidecar.expect_queue("crowded", 0, 0)

    with Client(relay.socket) as client:
        asyncio.run(main(client))


def test_what_cannot_be_released_for_want_of_a_connection_is_released_when_there_is_one(
    own_sidecar: Callable[..., Sidecar],
) -> None:
    sidecar = own_sidecar(max_connections="16")
    crowd: list[socket.socket] = []
    with Client(sidecar.socket) as client:
        errors: list[BaseException] = []

        def wait() -> None:
            try:
                client.lock("kept", wait=2 * PATIENCE).acquire().release()
            except BaseException as e:
                errors.append(e)

        with client.lock("kept"):
            waiting = threading.Thread(target=wait)  # has the connection that was idle
            waiting.start()
            sidecar.expect_queue("kept", 1, 1)
            while crowd_enters(sidecar, crowd):
                pass
        for one in crowd:
            one.close()
        waiting.join(PATIENCE)
        assert not waiting.is_alive() and not errors
        sidecar.expect_queue("kept", 0, 0)


def crowd_enters(sidecar: Sidecar, crowd: list[socket.socket]) -> bool:
    """One more connection that is in use; False: there is no place for it."""
    one = socket.socket(socket.AF_UNIX)
    one.connect(sidecar.socket)
    crowd.append(one)
    one.sendall(request("POST", "/v1/hold", json.dumps({"resource": f"crowd/{len(crowd)}"}).encode()))
    answer = one.recv(65536)
    assert b" 200 " in answer or b" 429 " in answer, answer
    return b" 200 " in answer


def test_a_release_that_finds_no_sidecar_says_that_the_lock_is_lost(sidecar: Sidecar, relay: Relay) -> None:
    with Client(relay.socket) as client:
        with pytest.raises(locksidecar.LockLost) as lost, client.lock("gone-before"):
            transport = client.session()._transport
            assert isinstance(transport, HTTP)
            while (idle := transport._idle_one()) is not None:
                transport._discard(idle)
            relay.refuse()
        assert lost.value.lost_reason == "SIDECAR_GONE"


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
