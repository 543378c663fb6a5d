"""Parts that need no sidecar: the wire, the messages, the clock, the decorator."""

from __future__ import annotations

import asyncio
import itertools
import json
import re
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from sidecars import Sidecar

import locksidecar
from locksidecar import Client, Mode, NoSidecar
from locksidecar._clock import SidecarClock, boot_time
from locksidecar._call import Call
from locksidecar._core import Core
from locksidecar._errors import from_status
from locksidecar._hold import Hold
from locksidecar._holds import MAX_LOOK
from locksidecar._model import Wanted


def test_no_sidecar(tmp_path: Path) -> None:
    path = tmp_path / "s"
    with pytest.raises(NoSidecar, match=f"{path}: there is no such socket.*locksidecar serve --socket {path}"):
        Client(path).open()
    with socket.socket(socket.AF_UNIX) as s:
        s.bind(str(path))
    with pytest.raises(NoSidecar, match="gone.*locksidecar serve"):
        Client(path).open()
    with pytest.raises(ConnectionError):
        Client(path).lock("r").acquire()
    assert NoSidecar.reason == "NO_SIDECAR"


def test_the_default_client(sidecar: Sidecar, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(locksidecar, "_default", Client())
    monkeypatch.setenv("LOCKSIDECAR_SOCKET", sidecar.socket)
    with locksidecar.lock("default") as held, locksidecar.rwlock("default-2").write():
        assert held.fence
    locksidecar.default_client().close()


def test_decorator(sidecar: Sidecar) -> None:
    with Client(sidecar.socket) as client:

        @client.locked("nightly-report", wait=0)
        def report(name: str) -> tuple[str, int]:
            """Doc."""
            return name, sidecar.queue("nightly-report")[0]

        assert report("x") == ("x", 1) and report.__doc__ == "Doc." and report.__name__ == "report"
        assert sidecar.queue("nightly-report") == (0, 0)
        with client.lock("nightly-report", owner="other"), pytest.raises(locksidecar.LockHeld):
            report("x")

        @client.locked(lambda order, **_: f"orders/{order}")
        def pay(order: int, amount: int = 0) -> int:
            return sidecar.queue(f"orders/{order}")[0]

        assert pay(42, amount=1) == 1

        @client.locked("async-report", wait=0)
        async def report_async() -> int:
            await asyncio.sleep(0)
            return sidecar.queue("async-report")[0]

        assert asyncio.run(report_async()) == 1

        with pytest.raises(TypeError, match="generator"):

            @client.locked("g")
            def generator() -> Iterator[int]:
                yield 1


def test_clock() -> None:
    clock = SidecarClock()
    clock.answered(100.0, 40.5)  # the true difference is 60; the answer was half a second on its way
    assert clock.until(50.0, 2.0) == 111.5
    clock.answered(110.0, 50.1)
    assert clock.until(50.0, 2.0) == pytest.approx(111.9)
    clock.answered(120.0, 63.0)  # a slow one teaches nothing
    assert clock.until(50.0, 2.0) == pytest.approx(111.9)


def test_errors_have_their_reasons() -> None:
    def status(reason: str) -> dict[str, Any]:
        info = {"domain": "locksidecar", "reason": reason, "metadata": {"resource": "r", "fence": "7"}}
        return {"code": 10, "message": "m", "details": [{"@type": "x"}, info]}

    doc = Path(__file__).resolve().parents[3] / "docs" / "api.md"
    reasons = re.findall(r"^\| `([A-Z_]+)` \| `[A-Z_]+` \d+ \|", doc.read_text(), re.MULTILINE)
    assert len(reasons) > 10
    for reason in reasons:
        error = from_status(status(reason))
        assert (error.reason, str(error), error.metadata["resource"]) == (reason, "m", "r")
        if reason not in ("INTERNAL", "NO_SUCH_CALL"):
            assert type(error) is not locksidecar.LockSidecarError
    assert from_status({"message": "?"}).reason == "INTERNAL"


class OneSidecar:
    """The core of a session, with answers that the test makes."""

    def __init__(self, lease_margin: float = 1.0) -> None:
        self.core = Core(threading.RLock())
        self._ids = itertools.count(1)
        call = Call("open", {})
        self.core.post(call)
        self.answer(call, "opened", sessionId="s", countedAt=f"{boot_time()}s", leaseMargin=f"{lease_margin}s")

    def answer(self, call: Call, kind: str, **fields: object) -> None:
        self.core.feed(json.dumps({"requestId": call.id, kind: fields}).encode() + b"\n")

    def ask(self, resource: str = "r", wait: float | None = None, max_hold: float | None = None) -> Call:
        call = Call("acquire", {}, wanted=Wanted((resource,), Mode.EXCLUSIVE, wait, "", False, max_hold))
        self.core.post(call)
        return call

    def answer_grant(self, call: Call, valid_for: float, counted_at: float) -> Hold:
        assert call.wanted is not None
        self.answer(
            call,
            "granted",
            lockId=f"l{next(self._ids)}",
            resource=call.wanted.resources[0],
            mode="EXCLUSIVE",
            fence="1",
            validFor=f"{valid_for}s",
            countedAt=f"{counted_at}s",
        )
        assert call.hold is not None
        return call.hold

    def grant(self, valid_for: float, counted_at: float, max_hold: float | None = None) -> Hold:
        return self.answer_grant(self.ask(max_hold=max_hold), valid_for, counted_at)

    def event(self, kind: str, **fields: object) -> None:
        self.core.feed(json.dumps({"requestId": "", "event": {kind: fields}}).encode() + b"\n")

    def sent(self) -> list[dict[str, Any]]:
        """What is to be sent, which then counts as sent."""
        data, _, queued = self.core.outbox
        self.core.outbox = (b"", [], queued)
        return [json.loads(line) for line in data.splitlines()]


def test_a_grant_prolongs_no_other_hold() -> None:
    sidecar = OneSidecar()
    now = boot_time()
    short = sidecar.grant(50.0, now)
    long = sidecar.grant(900.0, now)  # on another lease, say
    assert 0 < short.valid_for() <= 50 < long.valid_for()
    sidecar.event("lease", validFor="900s", countedAt=f"{now}s")
    assert short.valid_for() > 800


def test_news_prolong_only_what_was_held_then() -> None:
    sidecar = OneSidecar()
    now = boot_time()
    sidecar.event("lease", validFor="900s", countedAt=f"{now}s")
    assert 0 < sidecar.grant(50.0, now + 0.001).valid_for() <= 51
    sidecar.event("lease", validFor="900s", countedAt=f"{now + 0.003}s")  # overtakes the next grant
    assert sidecar.grant(50.0, now + 0.002).valid_for() > 800


def test_a_loss_that_overtakes_its_grant_counts() -> None:
    sidecar = OneSidecar()
    call = sidecar.ask()
    now = f"{boot_time()}s"
    sidecar.event("lost", lockId="l1", resource="r", fence="1", reason="FORCED", grace="2s", message="m", countedAt=now)
    hold = sidecar.answer_grant(call, 50.0, boot_time())
    assert hold.problem is not None and hold.problem.lost_reason == "FORCED" and hold.valid_for() == 0


def test_a_loss_of_what_is_held_counts_for_a_grant_that_comes_after_it() -> None:
    """Who re-enters it gets an answer of its own, which the event may overtake."""
    sidecar = OneSidecar()
    now = f"{boot_time()}s"
    first, again = sidecar.ask(), sidecar.ask()
    hold = sidecar.answer_grant(first, 50.0, boot_time())
    sidecar.event(
        "lost", lockId=hold.lock_id, resource="r", fence="1", reason="FORCED", grace="2s", message="m", countedAt=now
    )
    sidecar.answer(
        again, "granted", lockId=hold.lock_id, resource="r", mode="EXCLUSIVE", fence="1", validFor="50s", countedAt=now
    )
    assert again.hold is not None and again.hold.valid_for() == 0
    assert again.hold.problem is not None and again.hold.problem.lost_reason == "FORCED"


def test_losses_that_nobody_waits_for_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("locksidecar._holds._MOST_EARLY", 3)
    sidecar = OneSidecar()
    call = sidecar.ask()
    for n in range(9, 0, -1):  # that of its own grant is the latest
        now = f"{boot_time()}s"
        sidecar.event(
            "lost", lockId=f"l{n}", resource="r", fence="1", reason="FORCED", grace="2s", message="m", countedAt=now
        )
    assert len(sidecar.core.early) == 3
    assert sidecar.answer_grant(call, 50.0, boot_time()).problem is not None
    assert not sidecar.core.early


@pytest.mark.parametrize(("margin", "slack"), [(0.0, 0.0), (0.1, 0.05), (60.0, 0.25)])
def test_the_end_by_max_hold_waits_for_its_news_within_the_margin(margin: float, slack: float) -> None:
    sidecar = OneSidecar(lease_margin=margin)
    hold = sidecar.grant(900.0, boot_time(), max_hold=50.0)
    assert hold.silent_at() - hold.end() == pytest.approx(slack)
    other = sidecar.grant(50.0, boot_time(), max_hold=900.0)
    assert other.silent_at() == other.end()


def test_check_raises_when_the_end_is_there() -> None:
    """Also where the sidecar may still say why: the process may have slept past the grace."""
    sidecar = OneSidecar()
    hold = sidecar.grant(900.0, boot_time(), max_hold=0.0)
    assert hold.valid_for() == 0
    lost = hold.check()
    assert lost is not None and lost.lost_reason == "MAX_HOLD"
    assert hold.lost.is_set()


def test_a_look_at_many_holds_is_not_one_at_each(monkeypatch: pytest.MonkeyPatch) -> None:
    """Who reads looks after each piece that it has read: with thousands of holds that would be all it does."""
    sidecar = OneSidecar()
    now = boot_time()
    holds = [sidecar.grant(900.0, now) for _ in range(100)]
    looked: list[Hold] = []
    silent_at = Hold.silent_at

    def noted(hold: Hold) -> float:
        looked.append(hold)
        return silent_at(hold)

    monkeypatch.setattr(Hold, "silent_at", noted)
    for _ in range(50):
        assert sidecar.core.look(boot_time()) == MAX_LOOK
    assert len(looked) < 50
    soon = sidecar.grant(-60.0, boot_time())  # ends before all others
    sidecar.core.look(boot_time())
    assert soon.problem is not None and not any(hold.problem for hold in holds)
    sooner = sidecar.grant(900.0, boot_time())
    change = Call("extend", {"lockId": sooner.lock_id, "maxHold": "-60s"}, about=sooner)
    sidecar.core.post(change)
    sidecar.answer(
        change, "extended", lockId=sooner.lock_id, resource="r", mode="EXCLUSIVE", fence="1", validFor="9s",
        countedAt=f"{boot_time()}s",
    )  # fmt: skip
    sidecar.core.look(boot_time())
    assert sooner.problem is not None


def test_lines_come_in_any_pieces() -> None:
    sidecar = OneSidecar()
    call = sidecar.ask()
    line = json.dumps({"requestId": call.id, "error": {"message": "m"}}).encode() + b"\n"
    for byte in line:
        assert not call.done
        sidecar.core.feed(bytes([byte]))
    assert call.done and str(call.error) == "m"
    for bad in (b"SSH-2.0\r\n", b"[]\n", b'{"requestId":"1x","opened":7}\n{"requestId":"","event":3}\n'):
        with pytest.raises(locksidecar.SidecarGone, match="no sidecar"):
            OneSidecar().core.feed(bad)


def test_many_queue_here_and_others_get_through() -> None:
    """Above the sidecar's limit acquires queue in the client, but not those for which nobody asks yet."""
    sidecar = OneSidecar()
    first = [sidecar.ask("busy") for _ in range(1500)]
    assert len(sidecar.sent()) == 1 + 800  # and the open
    sidecar.ask("free")
    assert [m["acquire"]["resource"] for m in sidecar.sent()] == ["free"]
    sidecar.answer_grant(first[0], 9, boot_time())
    sidecar.answer_grant(first[1], 9, boot_time())
    assert [m["acquire"]["resource"] for m in sidecar.sent()] == ["busy"]
    sidecar.core.abandon(first[1400])
    assert not sidecar.sent(), "it was not sent, so it need not be cancelled"


def test_what_was_not_sent_is_known_at_the_end() -> None:
    """The sidecar has never seen it: so it can go to another session."""
    sidecar = OneSidecar()
    sidecar.sent()
    calls = [sidecar.ask(f"r{n}") for n in range(3)]
    lines = sidecar.core.outbox[0].splitlines(keepends=True)
    sidecar.core.outbox[1].append(len(lines[0]))
    sidecar.core.outbox[1].append(1)  # of the second
    assert sidecar.core.end(locksidecar.SidecarGone("it is gone"), "SIDECAR_GONE", "it is gone")
    assert [call.unsent for call in calls] == [False, False, True]
    assert all(call.done for call in calls)
    late = sidecar.ask()
    assert late.done and late.unsent


def test_what_nobody_asks_for_any_more_gets_through_before_those_who_came_earlier() -> None:
    sidecar = OneSidecar()
    busy = [sidecar.ask("busy") for _ in range(799)]
    others = [sidecar.ask(f"r{n}") for n in range(201)]
    for resource in ("busy", "r0", "free", "r1"):
        sidecar.ask(resource)
    assert len(sidecar.sent()) == 1 + 1000

    def sent_after(call: Call) -> list[str]:
        sidecar.answer_grant(call, 9, boot_time())
        return [m["acquire"]["resource"] for m in sidecar.sent()]

    assert sent_after(busy[0]) == ["free"]
    assert sent_after(busy[1]) == []
    assert sent_after(others[1]) == ["r1"]
    assert [sent_after(call) for call in busy[2:201]] == [[]] * 199
    assert sent_after(others[100]) == ["busy"]


def test_what_had_to_queue_because_there_was_no_room_gets_through_as_soon_as_there_is_some() -> None:
    sidecar = OneSidecar()
    busy = [sidecar.ask("busy") for _ in range(801)]
    sidecar.answer_grant(busy[0], 9, boot_time())
    sidecar.ask("busy")
    sidecar.answer_grant(sidecar.ask("other"), 9, boot_time())  # what queues is looked through in vain
    for n in range(200):
        sidecar.ask(f"r{n}")
    sidecar.sent()
    sidecar.ask("free")
    assert not sidecar.sent()
    sidecar.answer_grant(busy[1], 9, boot_time())
    assert [m["acquire"]["resource"] for m in sidecar.sent()] == ["free"]


def test_who_is_refused_keeps_its_place_before_those_who_came_later() -> None:
    sidecar = OneSidecar()
    calls = [sidecar.ask(resource) for resource in "abcd"]
    sidecar.sent()
    details = [{"domain": "locksidecar", "reason": "LIMIT_EXCEEDED", "metadata": {"limit": "waiters", "max": "1"}}]
    for call in calls[1:]:
        sidecar.answer(call, "error", message="too many", details=details)
    calls += [sidecar.ask("e"), sidecar.ask("first try", wait=0), sidecar.ask("second try", wait=0)]
    order = []
    for call in (calls[0], *calls[5:], *calls[1:4]):
        sidecar.answer_grant(call, 9, boot_time())
        order += [m["acquire"]["resource"] for m in sidecar.sent()]
    assert order == ["first try", "second try", "b", "c", "d", "e"]


def test_a_sidecar_with_a_smaller_limit() -> None:
    sidecar = OneSidecar()
    calls = [sidecar.ask("busy") for _ in range(5)]
    sidecar.sent()
    details = [{"domain": "locksidecar", "reason": "LIMIT_EXCEEDED", "metadata": {"limit": "waiters", "max": "2"}}]
    for call in calls[2:]:
        sidecar.answer(call, "error", message="too many", details=details)
        assert not call.done
    assert not sidecar.sent()
    sidecar.answer_grant(calls[0], 9, boot_time())
    assert len(sidecar.sent()) == 1


def test_an_abandoned_grant_is_given_back() -> None:
    sidecar = OneSidecar()
    call = sidecar.ask()
    sidecar.sent()
    sidecar.core.abandon(call)
    assert sidecar.sent()[0]["cancel"] == {"requestId": call.id}
    hold = sidecar.answer_grant(call, 9, boot_time())
    assert sidecar.sent()[0]["release"]["lockId"] == hold.lock_id and not hold.count


@pytest.mark.parametrize("taken", [None, 0, 9, 10_000])
def test_what_the_sidecar_does_not_take_at_once_is_kept(taken: int | None) -> None:
    """None: it is gone, or takes nothing now."""
    core = OneSidecar().core
    core.outbox = b"", [], core.outbox[2]
    call, next_call = (Call("acquire", {}, Wanted(("r",), Mode.EXCLUSIVE, None, "", False, None)) for _ in range(2))

    def send(line: bytes, _: int) -> int:
        if taken is None:
            raise BlockingIOError
        return min(taken, len(line))

    before = core.outbox[2]
    assert call.wanted is not None
    line = b'{"requestId":"2","' + call.wanted.rest
    assert core.post_alone(call, call.wanted.rest, 1.0, send) == (taken == 10_000)
    assert (call.id, call.start, call.sent, core.calls) == ("2", before, 1.0, {"2": call})
    core.post(next_call)
    data, written, queued = core.outbox
    left = line[min(taken or 0, len(line)) :]
    assert data[sum(written) :] == left + b'{"requestId":"3","' + call.wanted.rest
    assert queued == before + 2 * len(line) and next_call.start == before + len(line)


def test_stubs_beside_the_client(tmp_path: Path) -> None:
    """Stubs of the API, which protoc makes in a folder of the app, do not hide the client, nor it them."""
    stubs = tmp_path / "locksidecar" / "v1"
    stubs.mkdir(parents=True)
    (stubs / "locksidecar_pb2.py").write_text("DESCRIPTOR = 'of the API'\n")
    code = "import locksidecar, locksidecar.v1.locksidecar_pb2 as pb; print(locksidecar.lock.__name__, pb.DESCRIPTOR)"
    got = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert got.stdout == "lock of the API\n", got.stderr
