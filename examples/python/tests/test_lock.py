"""Locks in threads."""

from __future__ import annotations

import pickle
import socket
import threading
import time
from collections.abc import Callable

import pytest
from sidecars import PATIENCE, Sidecar

import locksidecar
from locksidecar import Client, Held, LockHeld, LockLost, Mode, NotHolder

Connect = Callable[..., Client]


@pytest.fixture
def client(connect: Connect) -> Client:
    return connect()


def in_thread(work: Callable[[], object]) -> None:
    """Run it in a thread of its own, and raise what it raises."""
    errors: list[BaseException] = []

    def run() -> None:
        try:
            work()
        except BaseException as e:
            errors.append(e)

    thread = threading.Thread(target=run)
    thread.start()
    thread.join(PATIENCE)
    assert not thread.is_alive()
    if errors:
        raise errors[0]


def test_with(client: Client, sidecar: Sidecar) -> None:
    with client.lock("with", wait=5) as first:
        assert isinstance(first, Held) and first.resource == "with" and first.mode is Mode.EXCLUSIVE
        assert 0 < first.valid_for() <= 9 and not first.lost.is_set() and first.problem is None
        assert first.count == 1 and not first.jeopardy
        first.check()
        holders, _ = sidecar.look("with")
        assert holders[0]["fence"] == str(first.fence) and holders[0]["lockId"] == first.lock_id
    assert first.valid_for() == 0 and not first.lost.is_set() and "released" in repr(first)
    assert sidecar.queue("with") == (0, 0)
    with client.lock("with", wait=5) as second:
        assert second.fence > first.fence


def test_the_block_fails(client: Client, sidecar: Sidecar) -> None:
    with pytest.raises(KeyError), client.lock("fails"):
        raise KeyError
    assert sidecar.queue("fails") == (0, 0)


def test_a_lock_is_used_again_and_again_by_many_threads(client: Client) -> None:
    lock = client.lock("many")
    inside = total = 0

    def work() -> None:
        nonlocal inside, total
        for _ in range(10):
            with lock:
                inside += 1
                assert inside == 1
                total += 1
                inside -= 1

    threads = [threading.Thread(target=work) for _ in range(8)]
    for t in threads:
        t.start()
    for t in threads:
        t.join(PATIENCE)
    assert total == 80


def test_not_reentrant_unless_asked(client: Client, sidecar: Sidecar) -> None:
    with client.lock("alone") as outer:
        for lock in (client.lock("alone", wait=0), client.lock("alone", wait=0, reentrant=True)):
            with pytest.raises(LockHeld) as e:
                lock.acquire()
            assert e.value.metadata["holder_pid"] and e.value.reason == "LOCK_HELD"
        with pytest.raises(locksidecar.WaitTimeout):
            client.lock("alone", wait=0.05).acquire()
        assert outer.count == 1 and sidecar.queue("alone") == (1, 0)
    with client.lock("alone", owner="import"), pytest.raises(LockHeld):
        client.lock("alone", owner="import", wait=0).acquire()  # the owner only says who asks
    with client.lock("alone", reentrant=True), pytest.raises(LockHeld):
        client.lock("alone", wait=0).acquire()  # who enters again says so, too


def test_reentrant_by_thread(client: Client) -> None:
    lock = client.lock("again", wait=0, reentrant=True)
    with lock as outer, lock as inner:
        assert inner.count == 2 and inner.lock_id == outer.lock_id

        def other() -> None:
            with pytest.raises(LockHeld) as e, lock:
                pass
            assert e.value.metadata["holder_pid"] and e.value.reason == "LOCK_HELD"

        in_thread(other)
    assert outer.count == 0
    in_thread(lambda: lock.acquire().release())


def test_a_reentrant_owner_is_shared_by_threads(client: Client) -> None:
    lock = client.lock("shared-owner", owner="import", wait=0, reentrant=True)
    with lock:

        def same() -> None:
            with lock as held:
                assert held.count == 2

        in_thread(same)


def test_an_owner_is_not_the_next_thread_of_the_same_number(client: Client) -> None:
    lock = client.lock("left-behind", wait=0, reentrant=True)
    in_thread(lock.acquire)
    with pytest.raises(LockHeld):
        in_thread(lock.acquire)
    lock.release()


def test_who_asks_is_in_lists(client: Client, sidecar: Sidecar) -> None:
    owners = []
    for resource in ("listed-1", "listed-2"):
        with client.lock(resource):
            owners.append(sidecar.look(resource)[0][0]["owner"])
    assert owners[0].startswith("thread:") and owners[0] == owners[1]
    with client.lock("listed-1", owner="import"):
        assert sidecar.look("listed-1")[0][0]["owner"] == "import"


def test_release_by_another_thread_and_twice(client: Client) -> None:
    held = client.lock("elsewhere").acquire()
    in_thread(held.release)
    with pytest.raises(NotHolder):
        held.release()
    with pytest.raises(NotHolder):
        held.downgrade()


def test_a_second_release_takes_nothing_off_another_count(client: Client) -> None:
    lock = client.lock("twice", reentrant=True)
    a, b = lock.acquire(), lock.acquire()
    b.release()
    with pytest.raises(NotHolder):
        b.release()
    assert a.count == 1 and a.valid_for() > 0
    a.release()


def test_wait(client: Client, sidecar: Sidecar) -> None:
    with client.lock("busy"):

        def wait() -> None:
            began = time.monotonic()
            with pytest.raises(locksidecar.WaitTimeout) as e, client.lock("busy", wait=0.2):
                pass
            assert time.monotonic() - began >= 0.2
            assert e.value.metadata["position"] == "1" and isinstance(e.value, TimeoutError)

        in_thread(wait)
        assert sidecar.queue("busy") == (1, 0)


def test_rwlock(client: Client, sidecar: Sidecar) -> None:
    rw = client.rwlock("rw", wait=0)
    with rw.read() as mine:

        def another_reader() -> None:
            with rw.read() as theirs:
                assert theirs.mode is Mode.SHARED and theirs.lock_id != mine.lock_id
                assert sidecar.queue("rw") == (2, 0)
            with pytest.raises(LockHeld), rw.write():
                pass

        in_thread(another_reader)
        with pytest.raises(LockHeld):
            rw.write().acquire()  # it would wait for itself
    reentrant = client.rwlock("rw", wait=0, reentrant=True)
    with reentrant.read(), pytest.raises(locksidecar.UpgradeRefused):
        reentrant.write().acquire()
    with rw.write() as held:
        with pytest.raises(LockHeld):
            in_thread(lambda: rw.read().acquire())
        held.downgrade()
        assert held.mode is Mode.SHARED
        in_thread(lambda: rw.read().acquire().release())


def test_lost_by_force(client: Client, sidecar: Sidecar) -> None:
    with pytest.raises(LockLost) as at_the_end, client.lock("taken") as held:
        told: list[bool] = []
        waiting = threading.Thread(target=lambda: told.append(held.lost.wait(PATIENCE)))
        waiting.start()
        forcing = threading.Thread(target=sidecar.force, args=("taken", 5.0))
        forcing.start()
        assert held.lost.wait(PATIENCE)
        waiting.join(PATIENCE)
        assert told == [True]
        with pytest.raises(LockLost) as e:
            held.check()
        assert (e.value.lost_reason, e.value.reason) == ("FORCED", "LOCK_LOST")
        assert (e.value.resource, e.value.fence, e.value.lock_id) == ("taken", held.fence, held.lock_id)
        assert 3 < e.value.grace_left() <= 5
        assert held.valid_for() == 0
    assert at_the_end.value.lost_reason == "FORCED"
    forcing.join(2)  # the end of the block has ended the grace
    assert not forcing.is_alive()
    with pytest.raises(LockLost):
        held.release()


def test_a_lost_lock_does_not_hide_the_error_of_the_block(client: Client, sidecar: Sidecar) -> None:
    with pytest.raises(KeyError), client.lock("taken-2") as held:
        sidecar.http("DELETE", "/v1/locks/taken-2?grace=0s")
        assert held.lost.wait(PATIENCE)
        raise KeyError


@pytest.mark.parametrize("fails", [False, True])
def test_the_end_of_a_block_releases_what_was_lost(client: Client, sidecar: Sidecar, fails: bool) -> None:
    """That is how the sidecar knows that the loss was seen, and that nobody works any more."""
    lock = client.lock("taken-3", reentrant=True)
    with pytest.raises(KeyError if fails else LockLost), lock as outer:
        with pytest.raises(KeyError if fails else LockLost), lock:
            forcing = threading.Thread(target=sidecar.force, args=("taken-3", 60.0))
            forcing.start()
            assert outer.lost.wait(PATIENCE)
            if fails:
                raise KeyError
        raise KeyError if fails else outer.problem  # type: ignore[misc]
    forcing.join(PATIENCE)
    assert not forcing.is_alive(), "the sidecar still waits for the release"
    with client.lock("taken-3", wait=PATIENCE):
        pass


def test_max_hold(client: Client) -> None:
    with pytest.raises(LockLost) as e, client.lock("short", max_hold=0.7) as held:
        assert 0 < held.valid_for() <= 0.7
        assert held.lost.wait(PATIENCE)
    assert e.value.lost_reason == "MAX_HOLD"  # also where the sidecar's word comes late
    client.lock("short", wait=5).acquire().release()


def test_released_in_the_block(client: Client) -> None:
    with client.lock("early") as held:
        assert held.release() == 0
    with client.lock("early", wait=0):
        pass


def test_refused(client: Client) -> None:
    for bad in ("", "x" * 600, "x" * 5000, "a\nb", "\ud800"):
        with pytest.raises(locksidecar.InvalidRequest) as e:
            client.lock(bad, wait=0).acquire()
        assert e.value.metadata["field"] and isinstance(e.value, ValueError)
    with pytest.raises(locksidecar.InvalidRequest):
        client.lock("ok", wait=-1).acquire()
    client.lock("ok", wait=0).acquire().release()  # the session lives on


def test_close(connect: Connect, sidecar: Sidecar) -> None:
    client = connect()
    held = client.lock("closing").acquire()
    waiting: list[BaseException] = []

    def wait() -> None:
        try:
            client.lock("closing").acquire()
        except BaseException as e:
            waiting.append(e)

    thread = threading.Thread(target=wait)
    thread.start()
    sidecar.expect_queue("closing", 1, 1)
    client.close()
    assert sidecar.queue("closing") == (0, 0)
    thread.join(PATIENCE)
    assert isinstance(waiting[0], locksidecar.SessionClosed)
    assert held.lost.is_set() and held.problem is not None and held.problem.lost_reason == "SESSION_CLOSED"
    with pytest.raises(LockLost):
        held.release()
    with pytest.raises(locksidecar.SessionClosed):
        client.lock("closing").acquire()
    client.close()


def test_name_and_metadata(connect: Connect, sidecar: Sidecar) -> None:
    client = connect(name="billing", metadata={"job": "42", "ü": "ß"})
    with client.lock("named"):
        (holder,), _ = sidecar.look("named")
    assert holder["session"] == "billing" and holder["metadata"] == {"job": "42", "ü": "ß"}


def test_the_connection_breaks_and_the_sidecar_lives(client: Client, sidecar: Sidecar) -> None:
    held = client.lock("broken").acquire()
    client.session()._in.shutdown(socket.SHUT_RDWR)
    assert held.lost.wait(PATIENCE)
    assert held.problem is not None and held.problem.lost_reason == "SIDECAR_GONE"
    sidecar.expect_queue("broken", 0, 0)
    with client.lock("broken", wait=5) as held:  # in a new session
        held.check()


def test_errors_travel(client: Client) -> None:
    with client.lock("travel"):
        with pytest.raises(LockHeld) as held:
            in_thread(lambda: client.lock("travel", wait=0).acquire())
    copy = pickle.loads(pickle.dumps(held.value))
    assert type(copy) is LockHeld and str(copy) == str(held.value) and copy.metadata == held.value.metadata
    lost = LockLost("gone", lost_reason="FORCED", resource="r", fence=7)
    copy = pickle.loads(pickle.dumps(lost))
    assert (copy.lost_reason, copy.resource, copy.fence) == ("FORCED", "r", 7)
