"""A sidecar that freezes, dies or stops, and what an app sees of it."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

import pytest
from sidecars import PATIENCE, App, Sidecar, eventually

import locksidecar
from locksidecar import Client, LockLost

Start = Callable[..., Sidecar]


def test_frozen_by_the_clock_alone(own_sidecar: Start) -> None:
    """No thread has to run for that: the one that asks sees it."""
    sidecar = own_sidecar(ttl="1s")
    with Client(sidecar.socket) as client:
        with pytest.raises(LockLost) as e, client.lock("r") as held:
            sidecar.freeze()
            frozen = asked = time.clock_gettime(time.CLOCK_BOOTTIME)
            while not held.lost.is_set():
                assert asked - frozen < 0.9, "not lost, and valid for longer than a lease of 1 s can be"
                asked = time.clock_gettime(time.CLOCK_BOOTTIME)
            assert held.valid_for() == 0
        assert e.value.lost_reason == "SIDECAR_SILENT" and e.value.grace_left() <= 0.1
        sidecar.thaw()
        with client.lock("r", wait=PATIENCE) as held:  # the lost one was let go in the background
            held.check()
        sidecar.expect_queue("r", 0, 0)


def test_frozen_while_somebody_waits(own_sidecar: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("locksidecar._session.PATIENCE", 0.3)
    sidecar = own_sidecar(ttl="60s")
    with Client(sidecar.socket) as client:
        client.open()
        sidecar.freeze()
        began = time.monotonic()
        with pytest.raises(locksidecar.SidecarSilent):
            client.lock("r", wait=0.1).acquire()
        assert time.monotonic() - began < 30  # it does not wait until the lease is over
        sidecar.thaw()
        sidecar.expect_queue("r", 0, 0)  # also where it was granted in vain
        with client.lock("r", wait=PATIENCE) as held:
            assert held.count == 1


def test_frozen_at_the_release(
    own_sidecar: Start, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The work was done under the lock. That is no reason to fail it."""
    monkeypatch.setattr("locksidecar._session.PATIENCE", -1.7)
    sidecar = own_sidecar(ttl="60s")
    with Client(sidecar.socket) as client:
        with client.lock("r"):
            sidecar.freeze()
        assert "may be frozen" in caplog.text
        sidecar.thaw()
        sidecar.expect_queue("r", 0, 0)


NO_THREADS = """
import resource, sys, threading
import locksidecar
held, other = locksidecar.lock("callback").acquire(), locksidecar.lock("other").acquire()
held.on_lost(lambda problem: print("told", problem.lost_reason, flush=True))
with open("/proc/self/statm") as f:
    size = int(f.read().split()[0]) * resource.getpagesize()
threading.stack_size(64 << 20)
_, hard = resource.getrlimit(resource.RLIMIT_AS)
resource.setrlimit(resource.RLIMIT_AS, (size + (32 << 20), hard))
print("ready", flush=True)
for event in (held.lost, other.lost):
    event.wait()
    print("lost", flush=True)
sys.stdin.readline()
resource.setrlimit(resource.RLIMIT_AS, (hard, hard))
with locksidecar.lock("next", wait=10):
    sys.stdin.readline()
"""


def test_a_loss_where_no_thread_can_be_started(sidecar: Sidecar) -> None:
    """The callback has to wait for its thread, and nothing else has to."""
    with App(NO_THREADS, sidecar.socket) as app:
        app.expect("ready")
        sidecar.force("callback", 0)
        app.expect("lost")
        sidecar.force("other", 0)
        app.expect("lost")
        app.say()
        app.expect("told FORCED")
        app.say()
        assert app.wait() == 0


def test_killed_and_started_again(own_sidecar: Start) -> None:
    sidecar = own_sidecar()
    with Client(sidecar.socket) as client:
        held = client.lock("r").acquire()
        sidecar.kill()
        assert held.lost.wait(PATIENCE) and held.problem is not None
        assert held.problem.lost_reason == "SIDECAR_GONE"
        with pytest.raises(locksidecar.NoSidecar) as e:
            client.lock("r").acquire()
        assert sidecar.socket in str(e.value) and "locksidecar serve" in str(e.value)
        sidecar.start()
        with client.lock("r", wait=PATIENCE) as again:
            assert again.fence > held.fence
        assert held.lost.is_set()


def test_stopped(own_sidecar: Start) -> None:
    sidecar = own_sidecar(drain="10s")
    with Client(sidecar.socket) as client:
        held = client.lock("r").acquire()
        assert not client.draining
        stopping = threading.Thread(target=sidecar.stop)
        stopping.start()
        eventually("told", lambda: client.draining)
        held.check()
        held.release()
        stopping.join(PATIENCE)
        assert not stopping.is_alive()


def test_news_keep_it(own_sidecar: Start) -> None:
    sidecar = own_sidecar(ttl="20s")  # a busy machine may freeze it for seconds
    with Client(sidecar.socket) as client, client.lock("r") as held:
        first = held._hold.until

        def later() -> bool:
            held.check()
            assert 0 < held.valid_for() <= 18
            return held._hold.until > first + 1

        eventually("news", later)
        held.check()
