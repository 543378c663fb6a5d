"""What stands unread when a hold seems to be over: it is read first, and puts off no loss."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest
from sidecars import PATIENCE, Sidecar, eventually

from locksidecar import Client, LockLost
from locksidecar._clock import boot_time

Start = Callable[..., Sidecar]


def until_news_stand_after_the_end(held: Any) -> None:
    """As in a process that was stopped past the end, while its sidecar went on."""
    hold, session = held._hold, held._session
    eventually("news after the end", lambda: boot_time() > hold.until and session._stands())


@pytest.mark.parametrize("how", ["check", "on_lost", "release", "block", "release_async"])
def test_news_that_stand_unread_are_read_before_a_loss_is_told(
    own_sidecar: Start, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    """The thread that reads stands still until somebody calls it."""
    sidecar = own_sidecar(ttl="2s")
    with Client(sidecar.socket) as client:
        session = client.session()
        stands, called = threading.Event(), threading.Event()
        receive, call = session._receive, session._reading.call

        def stand_still(timeout: float | None) -> bytes | None:
            stands.set()
            called.wait(PATIENCE)
            return receive(timeout)

        def called_now() -> None:
            called.set()
            call()

        def stop(held: Any) -> None:
            monkeypatch.setattr(session, "_receive", stand_still)
            assert stands.wait(PATIENCE)
            monkeypatch.setattr(session._reading, "call", called_now)
            until_news_stand_after_the_end(held)

        async def in_a_task() -> None:
            held = await client.lock("stopped").acquire_async()
            stop(held)
            await held.release()

        try:
            if how == "release_async":
                asyncio.run(in_a_task())
                return
            told: list[LockLost] = []
            with client.lock("stopped") as held:
                stop(held)
                if how == "check":
                    held.check()
                elif how == "on_lost":
                    held.on_lost(told.append)
                elif how == "release":
                    held.release()
            assert held.problem is None and not told
        finally:
            called.set()


def test_news_that_come_while_the_thread_looks_are_read_first(own_sidecar: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    """It has just seen that nothing is over, and the process is stopped."""
    sidecar = own_sidecar(ttl="2s")
    with Client(sidecar.socket) as client, client.lock("stopped") as held:
        core = client.session().core
        is_due = core.is_due
        looks: list[bool] = []

        def stopped_after_that(*args: float) -> bool:
            due = is_due(*args)
            if not due and not looks:
                until_news_stand_after_the_end(held)
            looks.append(due)
            return due

        monkeypatch.setattr(core, "is_due", stopped_after_that)
        eventually("looks", lambda: len(looks) > 2)
        assert held._hold.problem is None
        held.check()


def test_a_stream_of_other_news_does_not_put_off_a_loss(own_sidecar: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    sidecar = own_sidecar(ttl="1s")
    monkeypatch.setattr("locksidecar._connection._SETTLE", PATIENCE)
    with Client(sidecar.socket) as client:
        session = client.session()
        held = client.lock("r").acquire()
        hold = held._hold
        sidecar.freeze()
        news, pieces = b'{"event":{"other":{}}}\n' * 2800, 0  # as much as it reads at a time

        def more(timeout: float | None) -> bytes:
            nonlocal pieces
            pieces += boot_time() > hold.end() and hold.problem is None
            time.sleep(0.001)
            session.core.inbox.append(news)
            return news

        monkeypatch.setattr(session, "_receive", more)
        monkeypatch.setattr(session, "_stands", lambda: True)
        began = time.monotonic()
        with pytest.raises(LockLost):
            while time.monotonic() - began < PATIENCE:
                held.check()
                time.sleep(0.001)
        assert time.monotonic() - began < PATIENCE / 2, "who asks waits for the end of the stream"
        assert pieces <= 10, "more than the socket could hold is read first"
        monkeypatch.undo()
