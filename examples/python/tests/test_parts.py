"""Parts that need no sidecar: where the socket is, the wire, the messages, the clock, the decorator."""

from __future__ import annotations

import asyncio
import itertools
import os
import re
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from sidecars import Sidecar

import locksidecar
from locksidecar import Client, Held, LockLost, Mode, NoSidecar, _proto
from locksidecar._clock import SidecarClock, boot_time
from locksidecar._errors import from_status
from locksidecar._hold import Hold
from locksidecar._model import Call, Wanted
from locksidecar._session import Session
from locksidecar._socket import _default_socket
from locksidecar._wire import BadResponse, Chunks, Lines, parse


def test_default_socket(tmp_path: Path) -> None:
    system, tmp, uid = tmp_path / "run" / "locksidecar", tmp_path / "tmp", os.getuid()
    tmp.mkdir()
    env: dict[str, str] = {}

    def found(uid: int = uid) -> str:
        return _default_socket(env, str(system), str(tmp), uid).removeprefix(str(tmp_path))

    private = f"/tmp/locksidecar-{uid}/locksidecar.sock"
    assert found() == private
    system.parent.mkdir()
    assert found() == "/run/locksidecar/locksidecar.sock"  # it can be made there
    system.mkdir()
    assert found() == "/run/locksidecar/locksidecar.sock"
    with socket.socket(socket.AF_UNIX) as s:
        s.bind(str(system / "locksidecar.sock"))
        assert found() == "/run/locksidecar/locksidecar.sock"
    (system / "locksidecar.sock").unlink()
    system.rmdir()
    system.parent.rmdir()
    env["XDG_RUNTIME_DIR"] = str(tmp_path / "xdg")
    assert found() == "/xdg/locksidecar/locksidecar.sock"
    del env["XDG_RUNTIME_DIR"]
    directory = tmp / f"locksidecar-{uid}"
    directory.mkdir(0o700)
    assert found() == private
    directory.chmod(0o777)
    with pytest.raises(NoSidecar, match=f"{directory}.*LOCKSIDECAR_SOCKET"):
        found()
    env["LOCKSIDECAR_SOCKET"] = "/somewhere"
    assert found() == "/somewhere"


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


def test_transport_names(sidecar: Sidecar) -> None:
    with pytest.raises(ValueError, match="http, grpc or auto"):
        Client(sidecar.socket, transport="tcp").open()  # type: ignore[arg-type]
    with Client(sidecar.socket, transport="auto") as client:
        client.lock("auto").acquire().release()


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


def test_wire() -> None:
    whole = b"HTTP/1.1 409 Conflict\r\ncontent-length: 5\r\nX: y\r\n\r\nhello"
    for size in range(len(whole)):
        assert parse(whole[:size]) is None
    assert parse(whole) == (409, b"hello", True)
    assert parse(whole + b"x") == (409, b"hello", False)
    assert parse(b"HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 0\r\n\r\n") == (200, b"", False)
    chunked = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nhel\r\n2;x=y\r\nlo\r\n0\r\n\r\n"
    assert parse(chunked) == (200, b"hello", False)
    for bad in (b"SSH-2.0\r\n\r\n", b"HTTP/1.1 abc\r\n\r\n", b"HTTP/1.1 200 OK\r\nContent-Length: x\r\n\r\n"):
        with pytest.raises(BadResponse):
            parse(bad)
    chunks, lines = Chunks(), Lines()
    got = []
    for byte in b"4\r\na\nbc\r\n4\r\nd\ne\n\r\n0\r\n\r\n":
        got += lines.feed(chunks.feed(bytes([byte])))
    assert got == [b"a", b"bcd", b"e"] and chunks.ended
    with pytest.raises(BadResponse):
        Chunks().feed(b"xyz\r\n")


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


def test_messages() -> None:
    request = {
        "requestId": "ü1",
        "acquire": {"resource": "r" * 200, "mode": "SHARED", "wait": 0.0, "maxHold": 1.5, "owner": "", "reentrant": True},
    }
    raw = _proto.encode(_proto.SESSION_REQUEST, request)
    assert _proto.decode(_proto.SESSION_REQUEST, raw)["acquire"] == request["acquire"]
    assert _proto.decode(_proto.SESSION_REQUEST, _proto.encode(_proto.SESSION_REQUEST, {"release": {"lockId": "x"}})) == {
        "requestId": "",
        "release": {"lockId": "x", "requestId": ""},
    }
    grant = {
        "lockId": "a",
        "resource": "r",
        "mode": "EXCLUSIVE",
        "fence": 1 << 62,
        "validFor": -1.000000001,
        "count": -3,
        "countedAt": 1e7 + 0.5,
        "guard": {"dialect": "mysql", "sql": "SELECT ?", "args": ["1", "2"]},
    }
    assert _proto.decode(_proto.GRANT, _proto.encode(_proto.GRANT, {**grant, "guard": None})) == {
        **{k: v for k, v in grant.items() if k != "guard"}
    }
    guard = b"\x0a\x05mysql\x12\x08SELECT ?\x1a\x011\x1a\x012"
    assert _proto.decode(_proto.GUARD, guard) == grant["guard"]
    metadata = {"a": "b", "c": ""}
    assert _proto.decode(_proto.OPEN, _proto.encode(_proto.OPEN, {"name": "n", "metadata": metadata})) == {
        "name": "n",
        "metadata": metadata,
    }
    unknown = b"\x9a\x06\x03abc" + b"\x99\x06" + b"x" * 8 + b"\x9d\x06" + b"x" * 4 + b"\x98\x06\x07" + b"\x08\x05"
    assert _proto.decode(_proto.RELEASED, unknown) == {"count": 5}
    for bad in (b"\x08", b"\x0a\x05ab", b"\x0b", b"\xff" * 3):
        with pytest.raises(_proto.BadMessage):
            _proto.decode(_proto.GRANT, bad)


def test_messages_are_those_of_the_proto_file() -> None:
    text = (Path(__file__).resolve().parents[3] / "api" / "locksidecar" / "v1" / "locksidecar.proto").read_text()
    text = re.sub(r"//.*", "", text)
    checked = 0
    for table in vars(_proto).values():
        if not isinstance(table, _proto.Message) or not table.name or table.name.startswith("google."):
            continue
        block = re.search(rf"^message {table.name} {{(.*?)^}}", text, re.MULTILINE | re.DOTALL)
        empty = re.search(rf"^message {table.name} {{}}", text, re.MULTILINE)
        body = block.group(1) if block and not empty else ""
        declared = {
            int(number): (kind, name)
            for kind, name, number in re.findall(r"([\w.<>, ]+?) (\w+) = (\d+);", body)
        }
        for number, field in table.fields.items():
            kind, name = declared[number]
            head, *rest = name.split("_")
            assert field.name == head + "".join(part.title() for part in rest)
            assert field.repeated == ("repeated" in kind)
            kind = kind.replace("repeated", "").strip()
            kinds = {"google.protobuf.Duration": "duration", "int32": "int", "int64": "int", "map<string, string>": "map"}
            own = field.kind.name if isinstance(field.kind, _proto.Message) else field.kind
            assert own == kinds.get(kind, kind), (table.name, name)
            checked += 1
    assert checked > 40
    for enum, names in _proto.ENUMS.items():
        block = re.search(rf"^enum {enum} {{(.*?)^}}", text, re.MULTILINE | re.DOTALL)
        assert block is not None
        assert tuple(re.findall(r"([A-Z_]+) = \d+;", block.group(1))) == names


class OneSidecar:
    """A transport whose answers the test makes."""

    def __init__(self) -> None:
        self.ids = itertools.count(1)
        self.valid_for = self.counted_at = 0.0
        self.lease_margin = 1.0

    def open(self, request: object, sink: object) -> tuple[float, dict[str, Any]]:
        return boot_time(), {"sessionId": "s", "countedAt": boot_time(), "leaseMargin": self.lease_margin}

    def call(self, call: Call, timeout: float | None) -> dict[str, Any]:
        call.sent, call.answered = boot_time(), True
        return {
            "lockId": f"l{next(self.ids)}",
            "resource": "r",
            "mode": "EXCLUSIVE",
            "fence": 1,
            "validFor": self.valid_for,
            "countedAt": self.counted_at,
        }

    def drop(self) -> None:
        pass

    def grant(
        self, session: Session, valid_for: float, counted_at: float, max_hold: float | None = None
    ) -> Hold:
        self.valid_for, self.counted_at = valid_for, counted_at
        return session.acquire(session.prepare(Wanted("r", Mode.EXCLUSIVE, None, "", False, max_hold)))


@pytest.fixture
def one_sidecar() -> Iterator[tuple[OneSidecar, Session]]:
    transport = OneSidecar()
    session = Session(transport, "", {})  # type: ignore[arg-type]
    yield transport, session
    session.gone("the test is over")


def test_a_grant_prolongs_no_other_hold(one_sidecar: tuple[OneSidecar, Session]) -> None:
    transport, session = one_sidecar
    now = boot_time()
    short = transport.grant(session, 50.0, now)
    long = transport.grant(session, 900.0, now)  # on another lease, say
    assert 0 < short.valid_for() <= 50 < long.valid_for()
    session.news({"lease": {"validFor": 900.0, "countedAt": now}})
    assert short.valid_for() > 800


def test_news_prolong_only_what_was_held_then(one_sidecar: tuple[OneSidecar, Session]) -> None:
    transport, session = one_sidecar
    now = boot_time()
    session.news({"lease": {"validFor": 900.0, "countedAt": now}})
    assert 0 < transport.grant(session, 50.0, now + 0.001).valid_for() <= 51
    session.news({"lease": {"validFor": 900.0, "countedAt": now + 0.003}})  # overtakes the next grant
    assert transport.grant(session, 50.0, now + 0.002).valid_for() > 800


@pytest.mark.parametrize(("margin", "slack"), [(0.0, 0.0), (0.1, 0.05), (60.0, 0.25)])
def test_the_end_by_max_hold_waits_for_its_news_within_the_margin(margin: float, slack: float) -> None:
    transport = OneSidecar()
    transport.lease_margin = margin
    session = Session(transport, "", {})  # type: ignore[arg-type]
    hold = transport.grant(session, 900.0, boot_time(), max_hold=50.0)
    assert hold.silent_at() - hold.end() == pytest.approx(slack)
    other = transport.grant(session, 50.0, boot_time(), max_hold=900.0)
    assert other.silent_at() == other.end()
    session.gone("the test is over")


def test_check_raises_when_the_end_is_there() -> None:
    """Also where the sidecar may still say why: the process may have slept past the grace."""
    transport = OneSidecar()
    session = Session(transport, "", {})  # type: ignore[arg-type]
    transport.valid_for, transport.counted_at = 900.0, boot_time()
    call = session.prepare(Wanted("r", Mode.EXCLUSIVE, None, "", False, 0.0))
    session.acquire(call)
    held = Held(call)
    assert held.valid_for() == 0
    with pytest.raises(LockLost) as lost:
        held.check()
    assert lost.value.lost_reason == "MAX_HOLD"
    assert held.lost.is_set()
    session.gone("the test is over")
