"""Signal handlers that strike while their thread waits for an answer, and run for long."""

from __future__ import annotations

import asyncio
import signal
import socket
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from sidecars import PATIENCE, App, Relay, Sidecar, eventually
from test_reading import Strike, left_to_callers

from locksidecar import Client, LockLost, SessionClosed
from locksidecar._reading import Reading

Start = Callable[..., Sidecar]

LONG_HANDLER = """
import signal, sys, threading
import locksidecar

client = locksidecar.Client()
held = client.lock("held").acquire()
session = client.session()
struck = False

def waits(frame):
    while frame is not None and frame.f_code.co_name != "read_own":
        frame = frame.f_back
    return frame is not None and not frame.f_locals["call"].done and not session.mutex._is_owned()

def pair():
    client.lock("another", wait=60).acquire().release()
    return "done"

def in_a_thread(what):
    got = []
    thread = threading.Thread(target=lambda: got.append(what()), daemon=True)
    thread.start()
    thread.join(20)
    return got

def handler(_, frame):
    global struck
    if struck or not waits(frame):
        return
    struck = True
    signal.setitimer(signal.ITIMER_REAL, 0)
    print("thread", in_a_thread(pair), flush=True)
    try:
        print("handler", pair(), flush=True)
    except RuntimeError as e:
        print(repr(e), flush=True)
    print("force", flush=True)
    print("lost", held.lost.wait(20), flush=True)

signal.signal(signal.SIGALRM, handler)
signal.setitimer(signal.ITIMER_REAL, 0.003, 0.0031)
while not struck:
    client.lock("busy").acquire().release()
print("goes on", flush=True)
sys.stdin.readline()
"""


def test_a_handler_that_strikes_in_a_wait_keeps_nobody_from_the_sidecar(own_sidecar: Start) -> None:
    """Other threads have their answers, the handler itself has one, and a loss is told."""
    sidecar = own_sidecar(ttl="5m")  # a busy machine may freeze it for long
    with App(LONG_HANDLER, sidecar.socket) as app:
        app.expect("thread ['done']")
        app.expect("handler done")
        app.expect("force")
        sidecar.force("held", 0)
        app.expect("lost True")
        app.expect("goes on")


STOPPED = """
import signal, sys
import locksidecar

client = locksidecar.Client()
lock = client.lock("held")
held = lock.acquire()
heard = ""

def handler(*_):
    global heard
    heard = held.problem.lost_reason if held.problem else "held"

signal.signal(signal.SIGUSR1, handler)
print("ready", flush=True)
while True:
    client.lock("busy").acquire().release()
    if heard:
        print(heard, flush=True)
        heard = ""
        sys.stdin.readline()
        if held.problem is not None:
            held = lock.acquire()
        print("ready", flush=True)
"""


def test_a_handler_that_runs_first_after_a_standstill_tells_no_loss(own_sidecar: Start) -> None:
    """The process was stopped for longer than a lease lives, mostly while it waited for an answer, and its sidecar went on."""
    ttl = 6.0
    sidecar = own_sidecar(ttl=f"{ttl:g}s")
    with Relay(sidecar) as relay, App(STOPPED, relay.socket) as app:
        for _ in range(3):
            app.expect("ready")
            app.signal(signal.SIGSTOP)
            eventually("stopped", lambda: Path(f"/proc/{app.pid}/stat").read_text().rsplit(")", 1)[1].split()[0] == "T")
            over = time.monotonic() + ttl
            app.signal(signal.SIGUSR1)
            # What it hears when it goes on is new enough for a machine that is slow.
            eventually("news", lambda: time.monotonic() > over and time.monotonic() - relay.leased < ttl / 20)
            app.signal(signal.SIGCONT)
            assert app.line() != "SIDECAR_SILENT"
            app.say()


def test_a_wait_ends_while_signals_come() -> None:
    """A timer that strikes before the wait is over does not begin it again."""
    struck = 0

    def handler(*_: object) -> None:
        nonlocal struck
        struck += 1
        if struck == 2000:  # it would never end
            signal.setitimer(signal.ITIMER_REAL, 0)

    here, there = socket.socketpair()
    with here, there:
        reading = Reading(here, 0.0)
        before = signal.signal(signal.SIGALRM, handler)
        signal.setitimer(signal.ITIMER_REAL, 0.002, 0.002)
        try:
            assert not any(reading.comes_soon() for _ in range(5))
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
            signal.signal(signal.SIGALRM, before)
    assert struck < 2000


def by_a_thread(client: Client) -> None:
    client.lock("r").acquire().release()


def by_a_task(client: Client) -> None:
    async def main() -> None:
        await (await client.lock("r").acquire_async()).release()

    asyncio.run(main())


@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    ("pair", "opened"), [(by_a_thread, True), (by_a_task, True), (by_a_thread, False)], ids=["thread", "task", "opening"]
)
def test_a_handler_that_closes_the_client_at_each_line(
    own_sidecar: Start, pair: Callable[[Client], None], opened: bool
) -> None:
    """Who asks is told, and does not wait for an answer that nobody gives any more. No session is left."""
    sidecar = own_sidecar()
    n = 0
    struck = True
    while struck:
        n += 1
        client = Client(sidecar.socket)
        if opened:
            left_to_callers(client)
        strike = Strike(n, client.close)
        told: list[BaseException | None] = []

        def work(client: Client = client, strike: Strike = strike, told: list[BaseException | None] = told) -> None:
            try:
                with strike:
                    pair(client)
                told.append(None)
            except BaseException as e:
                told.append(e)

        thread = threading.Thread(target=work, daemon=True)
        thread.start()
        thread.join(PATIENCE)
        assert told, f"it waits: {strike.where}"
        assert told[0] is None or isinstance(told[0], (SessionClosed, LockLost)), f"{told[0]!r}: {strike.where}"
        struck = strike.left <= 0
        if struck:
            eventually(f"no session: {strike.where}", lambda: sidecar.http("GET", "/v1/info")[1]["sessions"] == 0)
        client.close()
    assert n > 50


@pytest.mark.timeout(600)
def test_an_interrupt_at_each_line_of_close(own_sidecar: Start) -> None:
    """Who closes the client once more has all released, and who waits is told."""
    sidecar = own_sidecar()
    n = 0
    struck = True
    while struck:
        n += 1
        client = Client(sidecar.socket)
        held = client.lock("r").acquire()
        told: list[BaseException] = []

        def wait(client: Client = client, told: list[BaseException] = told) -> None:
            try:
                client.lock("r").acquire()
            except BaseException as e:
                told.append(e)

        thread = threading.Thread(target=wait, daemon=True)
        thread.start()
        sidecar.expect_queue("r", 1, 1)
        struck = False
        try:
            with Strike(n) as strike:
                client.close()
        except KeyboardInterrupt:
            struck = True
        client.close()
        eventually(f"it is free: {strike.where}", lambda: sidecar.queue("r") == (0, 0))
        thread.join(PATIENCE)
        assert told and isinstance(told[0], SessionClosed), f"{told}: {strike.where}"
        assert held.problem is not None and held.problem.lost_reason == "SESSION_CLOSED", strike.where
    assert n > 20
