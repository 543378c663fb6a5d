"""What a client asks for again, and what it does not."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable

import pytest
from sidecars import PATIENCE, Relay, Sidecar, eventually

import locksidecar
from locksidecar import Client
from locksidecar._call import Call
from locksidecar._session import Session


def test_a_sidecar_that_hangs_up_on_the_first_calls(sidecar: Sidecar) -> None:
    for hang_up in (1, 4):
        with Relay(sidecar, hang_up) as relay, Client(relay.socket) as client:
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


def test_a_sidecar_that_always_hangs_up(sidecar: Sidecar) -> None:
    with Relay(sidecar, 1 << 30) as relay, Client(relay.socket, connect_timeout=0.3) as client:
        with pytest.raises(locksidecar.SidecarGone):
            client.open()


def test_close_ends_the_calls(sidecar: Sidecar) -> None:
    with Relay(sidecar, 1 << 30) as relay:
        client = Client(relay.socket, connect_timeout=1e6)

        async def main() -> BaseException | None:
            opening = asyncio.create_task(client.lock("r").acquire_async())
            while relay.hung_up < 2:
                await asyncio.sleep(0.01)
            await asyncio.to_thread(client.close)
            return (await asyncio.gather(opening, return_exceptions=True))[0]  # type: ignore[return-value]

        assert isinstance(asyncio.run(main()), locksidecar.SessionClosed)


def test_what_was_opened_too_late_leaves_no_session(
    own_sidecar: Callable[..., Sidecar], monkeypatch: pytest.MonkeyPatch
) -> None:
    sidecar = own_sidecar()
    monkeypatch.setattr("locksidecar._connection._OPEN_TIMEOUT", 0.3)
    sidecar.freeze()
    for _ in range(8):
        with pytest.raises(locksidecar.SidecarSilent):
            Client(sidecar.socket).open()
    sidecar.thaw()
    with Client(sidecar.socket) as client:
        client.lock("after").acquire().release()  # it has read what came before
        eventually("one session", lambda: sidecar.http("GET", "/v1/info")[1]["sessions"] == 1)


def test_threads_share_an_opening_that_fails(
    own_sidecar: Callable[..., Sidecar], monkeypatch: pytest.MonkeyPatch
) -> None:
    """One after the other, the last of them would wait for all before it."""
    sidecar = own_sidecar()
    monkeypatch.setattr("locksidecar._connection._OPEN_TIMEOUT", 1.0)
    client = Client(sidecar.socket)
    attempts: list[None] = []
    open_new = Client._open_new

    def counted(self: Client) -> Session:
        attempts.append(None)
        return open_new(self)

    monkeypatch.setattr(Client, "_open_new", counted)
    silent: list[None] = []

    def ask() -> None:
        with pytest.raises(locksidecar.SidecarSilent):
            client.lock("r", wait=0).acquire()
        silent.append(None)

    sidecar.freeze()
    threads = [threading.Thread(target=ask) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE)
    assert len(silent) == 8 and len(attempts) < 8
    sidecar.thaw()
    with client.lock("r", wait=PATIENCE):  # and another tries again
        pass
    client.close()


def test_no_sidecar_is_told_at_once() -> None:
    with pytest.raises(locksidecar.NoSidecar):
        Client("/tmp/there-is-no-such-socket", connect_timeout=1e6).open()


def test_the_connection_has_ended_and_nobody_has_read_that_yet(
    own_sidecar: Callable[..., Sidecar], monkeypatch: pytest.MonkeyPatch
) -> None:
    """What was never sent goes to the next sidecar."""
    sidecar = own_sidecar(ttl="1s")
    with Client(sidecar.socket) as client:
        client.lock("r").acquire().release()
        session = client.session()
        asked = threading.Event()
        receive = Session._receive

        def late(self: Session, timeout: float | None) -> bytes | None:
            data = receive(self, timeout)
            if self is session and data == b"":
                asked.wait(PATIENCE)
            return data

        monkeypatch.setattr(Session, "_receive", late)
        with client.lock("r2").acquire():
            pass  # so that who reads comes by
        sidecar.kill()
        sidecar.start()
        post = Session._post

        def posted(self: Session, call: Call) -> None:
            post(self, call)
            asked.set()

        monkeypatch.setattr(Session, "_post", posted)
        with client.lock("r", wait=PATIENCE).acquire() as held:
            held.check()
            assert client.session() is not session
