"""Programs that are ended, in all the ways."""

from __future__ import annotations

import signal
import time

import pytest
from sidecars import App, Sidecar


HOLDER = """
import signal, sys, time
import locksidecar
how = sys.argv[1]
if how == "exit":
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
try:
    with locksidecar.lock("{resource}") as held:
        print("held", flush=True)
        time.sleep(60)
except KeyboardInterrupt:
    assert held.count == 0
    print("interrupted", flush=True)
    time.sleep(60)  # what is free now is not free because we ended
"""

WAITER = """
import sys, time
import locksidecar
locksidecar.lock("mine").acquire()
print("begun", flush=True)
try:
    locksidecar.lock("{resource}").acquire()
except KeyboardInterrupt:
    print("interrupted", flush=True)
print(locksidecar.lock("{resource}-2", wait=0).acquire().count, flush=True)
sys.stdin.readline()
"""


def run(code: str, resource: str, sidecar: Sidecar, *args: str) -> App:
    return App(code.format(resource=resource), sidecar.socket, *args)


@pytest.mark.parametrize("how", ["kill", "term", "exit"])
def test_ended_while_it_holds(sidecar: Sidecar, how: str) -> None:
    resource = f"end-{how}"
    with run(HOLDER, resource, sidecar, how) as a:
        a.expect("held")
        sidecar.expect_queue(resource, 1, 0)
        a.signal(signal.SIGKILL if how == "kill" else signal.SIGTERM)
        assert a.wait() == {"kill": -9, "term": -15, "exit": 0}[how]
        sidecar.expect_queue(resource, 0, 0, 5)


def test_interrupted_while_it_holds(sidecar: Sidecar) -> None:
    resource = f"int"
    with run(HOLDER, resource, sidecar, "") as a:
        a.expect("held")
        a.signal(signal.SIGINT)
        a.expect("interrupted")
        assert sidecar.queue(resource) == (0, 0)


def test_interrupted_while_it_waits(sidecar: Sidecar) -> None:
    resource = f"wait"
    with run(HOLDER, resource, sidecar, "") as holder:
        holder.expect("held")
        with run(WAITER, resource, sidecar) as a:
            a.expect("begun")
            sidecar.expect_queue(resource, 1, 1)
            a.signal(signal.SIGINT)
            a.expect("interrupted")
            sidecar.expect_queue(resource, 1, 0)
            a.expect("1")  # the session lives on
            holder.signal(signal.SIGKILL)
            holder.wait()
            sidecar.expect_queue(resource, 0, 0, 5)
            time.sleep(0.1)
            assert sidecar.queue(resource) == (0, 0)


INTERRUPTED_AT_RANDOM = """
import random, signal, sys, time
import locksidecar
other = locksidecar.Client()
random.seed(1)
struck = tries = 0
while struck < 20 and tries < 5000:  # on a fast machine most come too late
    tries += 1
    held = other.lock("{resource}").acquire()
    try:
        signal.signal(signal.SIGALRM, signal.default_int_handler)
        signal.setitimer(signal.ITIMER_REAL, random.uniform(0.0001, 0.0015))
        held.release()
        with locksidecar.lock("{resource}"):
            signal.setitimer(signal.ITIMER_REAL, 0)
    except KeyboardInterrupt:
        struck += 1
    signal.signal(signal.SIGALRM, signal.SIG_IGN)
    if held.count:
        held.release()
print("done", struck >= 20, flush=True)
sys.stdin.readline()
"""


def test_interrupted_at_any_moment(sidecar: Sidecar) -> None:
    """Wherever the interrupt strikes, acquire and release leave nothing behind.

    Not so at the end of a block: there Python itself can be interrupted before it
    calls __exit__ (bpo-29988), and the lock is held until the process ends.
    """
    resource = f"random"
    with run(INTERRUPTED_AT_RANDOM, resource, sidecar) as a:
        a.expect("done True")
        sidecar.expect_queue(resource, 0, 0)


IN_THE_MIDDLE = """
import signal, sys, time
import locksidecar, locksidecar._session

locksidecar._session.STORE_LIMIT = 60.0
locksidecar._session.Session.close.__defaults__ = (60.0,)
client = locksidecar.Client()
held = client.lock("{resource}").acquire()
session = client.session()
took = []

def handler(*_):
    began = time.monotonic()
    try:
        client.lock("{resource}-other").acquire()
    except RuntimeError:
        print("refused", flush=True)
    print("left", held.release(), flush=True)
    if "close" in sys.argv:
        client.close()
    took.append(time.monotonic() - began)

signal.signal(signal.SIGUSR1, handler)
with session.mutex:  # as any request has it for a moment
    signal.raise_signal(signal.SIGUSR1)
assert took[0] < 30, took  # to wait for the sidecar would take a minute, and it could not be heard
print("gone on", flush=True)
sys.stdin.readline()
"""


@pytest.mark.parametrize("how", ["release", "close"])
def test_a_handler_that_interrupts_a_request_of_its_own_thread(sidecar: Sidecar, how: str) -> None:
    """It cannot wait for the sidecar: who reads waits for the request that it has interrupted."""
    resource = f"in-the-middle-{how}"
    with App(IN_THE_MIDDLE.replace("{resource}", resource), sidecar.socket, how) as app:
        app.expect("refused")
        app.expect("left 0")
        app.expect("gone on")
        sidecar.expect_queue(resource, 0, 0)
        sidecar.expect_queue(f"{resource}-other", 0, 0)
        app.say()
        assert app.wait() == 0


INTERRUPTED_IN_EXIT = """
import random, signal, sys
import locksidecar
lock = locksidecar.lock("in-exit")
random.seed(1)
struck = 0
def strike(*_):
    frame = sys._getframe(1)
    # Before the first step of __exit__, as before its call, Python itself has no answer: bpo-29988.
    if frame.f_code.co_filename != "<string>" and frame.f_lineno != frame.f_code.co_firstlineno:
        raise KeyboardInterrupt
signal.signal(signal.SIGALRM, strike)
for _ in range(400):
    try:
        with lock:
            signal.setitimer(signal.ITIMER_REAL, random.uniform(0.00001, 0.0003))
        signal.setitimer(signal.ITIMER_REAL, 0)
    except KeyboardInterrupt:
        struck += 1
    signal.setitimer(signal.ITIMER_REAL, 0)
print(struck > 0, flush=True)
sys.stdin.readline()
"""


INTERRUPTED_TASKS = """
import asyncio, random, signal, sys
import locksidecar
lock = locksidecar.lock("in-task")
random.seed(1)
struck = 0
def strike(*_):
    frame = sys._getframe(1)
    # Elsewhere a loop of asyncio may forget what it was about to call.
    if "/locksidecar/" in frame.f_code.co_filename and frame.f_lineno != frame.f_code.co_firstlineno:
        signal.setitimer(signal.ITIMER_REAL, 1, 1)  # again, if it is ignored, as in __del__
        raise KeyboardInterrupt
signal.signal(signal.SIGALRM, strike)
async def work():
    while True:
        async with lock:
            await asyncio.sleep(0)
for _ in range(100):
    loop = asyncio.new_event_loop()
    task = loop.create_task(work())
    try:
        loop.call_soon(signal.setitimer, signal.ITIMER_REAL, random.uniform(0.0005, 0.003), 0.001)
        loop.run_until_complete(task)
    except KeyboardInterrupt:
        signal.setitimer(signal.ITIMER_REAL, 0)
        struck += 1
    task.cancel()
    loop.run_until_complete(asyncio.gather(task, return_exceptions=True))
    loop.close()
    if locksidecar.default_client().held("in-task"):
        locksidecar.lock("in-task", wait=10).acquire().release()
print(struck > 0, flush=True)
sys.stdin.readline()
"""


def test_an_interrupt_of_a_loop_leaves_nothing(sidecar: Sidecar) -> None:
    """Its task is cancelled, as asyncio.run does it."""
    with App(INTERRUPTED_TASKS, sidecar.socket) as app:
        app.expect("True", 50)
        sidecar.expect_queue("in-task", 0, 0, 5)


def test_an_interrupt_at_the_end_of_a_block_leaves_nothing(sidecar: Sidecar) -> None:
    """A hold that leaked would stop the next round for ever."""
    with App(INTERRUPTED_IN_EXIT, sidecar.socket) as app:
        app.expect("True")
        sidecar.expect_queue("in-exit", 0, 0, 5)
