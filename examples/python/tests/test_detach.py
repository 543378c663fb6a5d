"""Locks that are taken here and released there."""

from __future__ import annotations

import asyncio
import pickle
from collections.abc import Callable
from typing import Any

import pytest
from sidecars import Sidecar, eventually
from test_parts import OneSidecar

import locksidecar
from locksidecar import Client, Detached, InvalidRequest, LockLost, NotHolder
from locksidecar._clock import boot_time
from locksidecar._call import Call
from locksidecar._hold import Hold

Start = Callable[..., Sidecar]


def test_a_block_that_detaches_ends_quietly(client: Client, sidecar: Sidecar) -> None:
    with client.lock("d/block", detachable=True) as held:
        detached = held.detach(60)
        assert held.count == 0 and held.valid_for() == 0 and not held.lost.is_set()
        with pytest.raises(NotHolder, match="was detached"):
            held.check()
    assert repr(held).endswith("detached>")
    assert detached.resource == "d/block" and detached.fence == held.fence and 0 < detached.valid_for() <= 60
    assert detached.handle not in repr(detached), "it is a password"
    with pytest.raises(locksidecar.LockHeld):
        client.lock("d/block", wait=0).acquire()
    assert detached.handle not in repr(client.attach(detached.handle))
    with client.attach(detached.handle) as again:
        assert again.fence == held.fence and again.resource == "d/block"
        again.check()
    assert sidecar.queue("d/block") == (0, 0)
    with pytest.raises(NotHolder):
        client.attach(detached.handle).acquire()


def test_tasks(client: Client, sidecar: Sidecar) -> None:
    async def main() -> None:
        async with client.lock("d/task", detachable=True, cancel_on_lost=True) as held:
            detached = await held.detach(60)
        async with client.attach(detached, owner="worker", cancel_on_lost=True) as again:
            assert again.fence == held.fence
            assert [h["owner"] for h in sidecar.look("d/task")[0]] == ["worker"]
            longer = await client.extend_detached_async(detached.handle, 3600)
            assert longer == detached and longer.valid_for() > 60
            await client.release_detached_async(detached)
            await asyncio.Event().wait()  # until the loss cancels it

    client.open()
    with pytest.raises(LockLost) as e:
        asyncio.run(main())
    assert e.value.lost_reason == "TAKEN_OVER"


def test_an_attach_that_is_given_up_leaves_the_lock(own_sidecar: Start) -> None:
    """To the next one who has the handle."""
    sidecar = own_sidecar()

    async def main(client: Client) -> None:
        async with client.lock("d/given-up", detachable=True) as held:
            detached = await held.detach(3600)
        sidecar.freeze()
        attaching = asyncio.create_task(client.attach(detached).acquire_async())
        while not any(call.wanted for call in client.session().core.calls.values()):
            await asyncio.sleep(0.01)
        attaching.cancel()
        with pytest.raises(asyncio.CancelledError):
            await attaching
        sidecar.thaw()
        async with client.lock("d/other"):  # what was sent before is carried out
            with pytest.raises(locksidecar.LockHeld):
                await client.lock("d/given-up", wait=0).acquire_async()
        assert not client.session().core.holds
        async with client.attach(detached) as again:
            assert again.fence == held.fence

    with Client(sidecar.socket) as client:
        client.open()
        asyncio.run(main(client))


def test_permits_say_of_how_many(client: Client) -> None:
    with client.lock("d/permit", limit=3, detachable=True) as held:
        detached = held.detach(60)
    assert (detached.limit, detached.mode) == (3, locksidecar.Mode.PERMIT)
    with client.attach(detached) as again:
        assert again.slot == held.slot


def test_a_lock_of_a_handle_can_be_pickled(client: Client) -> None:
    with client.lock("d/pickle", detachable=True) as held:
        lock = client.attach(held.detach(60))
    copy = pickle.loads(pickle.dumps(lock))
    with copy as again:
        assert again.fence == held.fence
    copy._client.close()


@pytest.mark.parametrize("ttl", [None, -1, float("inf"), "30s", True])
def test_bad_times(client: Client, ttl: Any) -> None:
    with client.lock("d/bad", detachable=True) as held:
        calls: list[Callable[[], object]] = [
            lambda: held.detach(ttl),
            lambda: client.extend_detached("lsh1_", ttl),
        ]
        for call in calls:
            with pytest.raises(InvalidRequest) as e:
                call()
            assert e.value.metadata["field"] == "ttl"
        held.check()


@pytest.mark.parametrize("handle", ["", None, b"lsh1_secret", 7, "\ud800"])
def test_bad_handles(client: Client, handle: Any) -> None:
    for call in (
        lambda: client.attach(handle),
        lambda: client.extend_detached(handle, 60),
        lambda: client.release_detached(handle),
    ):
        with pytest.raises(InvalidRequest) as e:
            call()
        assert e.value.metadata["field"] == "handle" and "secret" not in str(e.value)


def test_what_a_handle_locks_is_not_known_before(client: Client) -> None:
    with pytest.raises(InvalidRequest):
        client.attach("lsh1_unknown").locked()


@pytest.mark.parametrize("tasks", [False, True])
def test_a_handle_that_nobody_waits_for(own_sidecar: Start, tasks: bool) -> None:
    """The sidecar has detached it, and its answer comes when the caller has gone: nobody keeps the lock."""
    sidecar = own_sidecar(ttl="1m")

    async def give_up(client: Client) -> None:
        held = await client.lock("late", detachable=True).acquire_async()
        sidecar.freeze()
        detaching = asyncio.create_task(held.detach(3600))
        await asyncio.sleep(0)  # it is sent
        detaching.cancel()
        with pytest.raises(asyncio.CancelledError):
            await detaching
        with pytest.raises(LockLost) as lost:
            held.check()
        assert lost.value.lost_reason == "NOT_HOLDER"

    with Client(sidecar.socket) as client:
        if tasks:
            asyncio.run(give_up(client))
        else:
            held = client.lock("late", detachable=True).acquire()
            sidecar.freeze()
            with pytest.raises(locksidecar.SidecarSilent):
                held.detach(3600)
            with pytest.raises(LockLost):
                held.check()
        sidecar.thaw()
        eventually("free", lambda: sidecar.queue("late") == (0, 0))


def detaching(sidecar: OneSidecar) -> tuple[Hold, Call]:
    hold = sidecar.grant(900.0, boot_time())
    call = Call("detach", {"lockId": hold.lock_id, "ttl": "60s"}, about=hold)
    sidecar.core.post(call)
    sidecar.sent()
    return hold, call


def answered(sidecar: OneSidecar, call: Call) -> None:
    sidecar.answer(call, "detached", handle="h", resource="r", mode="EXCLUSIVE", fence="1", validFor="60s")


def refused(sidecar: OneSidecar, call: Call, reason: str) -> None:
    details = [{"domain": "locksidecar", "reason": reason, "metadata": {}}]
    sidecar.answer(call, "error", message="no", details=details)


def test_an_answer_whose_caller_was_interrupted() -> None:
    """The handle is there, and an interrupt strikes before the caller has it."""
    sidecar = OneSidecar()
    hold, call = detaching(sidecar)
    answered(sidecar, call)
    assert not hold.count and not sidecar.sent()
    for _ in range(2):
        sidecar.core.keep_no_handle(call)
    assert [m["releaseHandle"] for m in sidecar.sent()] == [{"handle": "h"}]


def test_refusals_of_detach() -> None:
    sidecar = OneSidecar()
    for reason, lost in (("INVALID_REQUEST", None), ("LIMIT_EXCEEDED", None), ("STORE_UNAVAILABLE", "NOT_HOLDER")):
        hold, call = detaching(sidecar)
        refused(sidecar, call, reason)
        sidecar.core.keep_no_handle(call)
        assert (hold.problem and hold.problem.lost_reason) == lost, reason
        assert call.error is not None and call.error.reason == reason
        assert hold.count == 1 and not sidecar.sent(), "its block releases it"


def test_the_end_of_what_is_attached() -> None:
    """It is that of its handle, whatever the lease says."""
    sidecar = OneSidecar()
    now = boot_time()
    call = sidecar.ask()
    sidecar.answer(
        call, "granted", lockId="l", resource="r", mode="EXCLUSIVE", fence="1", validFor="900s", countedAt=f"{now}s",
        endsIn="30s",
    )  # fmt: skip
    hold = call.hold
    assert hold is not None and 0 < hold.valid_for() <= 30
    sidecar.event("lease", validFor="900s", countedAt=f"{now}s")
    assert hold.valid_for() <= 30
    assert hold.silent_at() > hold.end(), "the sidecar has a moment to say so"
    change = Call("extend", {"lockId": "l", "maxHold": "800s"}, about=hold)
    sidecar.core.post(change)
    sidecar.answer(
        change, "extended", lockId="l", resource="r", mode="EXCLUSIVE", fence="1", validFor="900s",
        countedAt=f"{boot_time()}s", endsIn="60s",
    )  # fmt: skip
    assert 30 < hold.valid_for() <= 60, "it was extended by its handle meanwhile"


def test_the_end_of_a_grant_that_comes_late() -> None:
    """The sidecar sends it when its client reads, and its max_hold runs before."""
    sidecar = OneSidecar()
    now = boot_time()
    call = sidecar.ask(max_hold=60.0)
    late = {"lockId": "l", "resource": "r", "mode": "EXCLUSIVE", "fence": "1", "validFor": "900s"}
    sidecar.answer(call, "granted", **late, countedAt=f"{now + 5}s", endsIn="55s")
    hold = call.hold
    assert hold is not None and 0 < hold.valid_for() <= 60, "as if it had been counted in time"
    change = Call("extend", {"lockId": "l", "maxHold": "100s"}, about=hold)
    sidecar.core.post(change)
    sidecar.answer(change, "extended", **late, countedAt=f"{now + 10}s", endsIn="95s")
    assert 60 < hold.valid_for() <= 105
    over = sidecar.ask("s", max_hold=60.0)
    sidecar.answer(over, "granted", **{**late, "lockId": "over"}, countedAt=f"{boot_time()}s", endsIn="0s")
    assert over.hold is not None and (problem := over.hold.check()) is not None and problem.lost_reason == "MAX_HOLD"


def test_values_compare_by_what_they_say() -> None:
    one = Detached("h", "r", locksidecar.Mode.SHARED, 1, None, 5.0)
    assert one == Detached("h", "r", locksidecar.Mode.SHARED, 1, None, 7.0)
    assert pickle.loads(pickle.dumps(one)) == one
