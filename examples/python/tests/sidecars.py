"""Real sidecars for tests."""

from __future__ import annotations

import http.client
import json
import os
import select
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import uuid
from collections.abc import Callable, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, NoReturn
from urllib.parse import quote

PATIENCE = 60.0  # for what must happen, and may be slow on a busy machine

# pytest changes os.environ before and after each test, and threads of the contract start processes meanwhile.
ENVIRONMENT = dict(os.environ)
REDIS = os.environ.get("LOCKSIDECAR_TEST_REDIS", "")
MYSQL = os.environ.get("LOCKSIDECAR_TEST_MYSQL", "")
EMBEDDED = "embedded:"


def binary() -> str:
    built = Path(__file__).resolve().parents[3] / "bin" / "locksidecar"
    path = os.environ.get("LOCKSIDECAR_BINARY") or (str(built) if built.exists() else shutil.which("locksidecar"))
    if not path:
        raise RuntimeError("no sidecar to test with: set LOCKSIDECAR_BINARY, or run `make build`")
    return path


def eventually(what: str, ok: Callable[[], bool], within: float = PATIENCE) -> None:
    end = time.monotonic() + within
    while not ok():
        assert time.monotonic() < end, f"not {what} in time"
        time.sleep(0.005)


class Sidecar:
    """A sidecar as a process of its own."""

    def __init__(
        self, store: str = EMBEDDED, *, namespace: str = "", flags: Mapping[str, str] | None = None, name: str = "test"
    ) -> None:
        self._dir = tempfile.mkdtemp(prefix="lsp", dir="/tmp")  # short enough for a socket's path
        self.socket = os.path.join(self._dir, "s")
        self.log = os.path.join(self._dir, "log")
        self._command = [binary(), "serve", "--socket", self.socket, "--store", store, "--name", name]
        self._command += ["--namespace", namespace or uuid.uuid4().hex, "--drain", "0s", "--log-level", "debug"]
        for flag, value in (flags or {}).items():
            self._command += ["--" + flag, value]
        self._process: subprocess.Popen[bytes] | None = None
        self.start()

    def start(self) -> None:
        env = {k: v for k, v in ENVIRONMENT.items() if not k.startswith("LOCKSIDECAR_")}
        with open(self.log, "ab") as log:
            self._process = subprocess.Popen(self._command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=env)
        try:
            eventually("ready", self._ready)
        except BaseException:
            print(Path(self.log).read_text(), file=sys.stderr)
            self.stop()
            raise

    def _ready(self) -> bool:
        assert self._process is not None and self._process.poll() is None, "the sidecar has ended"
        try:
            return self.http("GET", "/readyz")[0] == 200
        except OSError:
            return False

    def http(self, method: str, path: str, body: Any = None) -> tuple[int, Any]:
        connection = http.client.HTTPConnection("locksidecar")
        connection.sock = socket.socket(socket.AF_UNIX)
        connection.sock.settimeout(PATIENCE)
        try:
            connection.sock.connect(self.socket)
            connection.request(method, path, json.dumps(body) if body is not None else None)
            response = connection.getresponse()
            raw = response.read()
        finally:
            connection.close()
        return response.status, json.loads(raw) if raw.startswith(b"{") else raw.decode()

    def look(self, resource: str) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
        """Holders and waiters. A parked lock has no holder: no app has it."""
        status, lock = self.http("GET", "/v1/locks/" + quote(resource))
        assert status == 200, lock
        return [h for h in lock["holders"] if not h["parked"]], lock["waiters"]

    def queue(self, resource: str) -> tuple[int, int]:
        holders, waiters = self.look(resource)
        return len(holders), len(waiters)

    def expect_queue(self, resource: str, holders: int, waiters: int, within: float = PATIENCE) -> None:
        eventually(
            f"{holders} holders and {waiters} waiters of {resource}",
            lambda: self.queue(resource) == (holders, waiters),
            within,
        )

    def force(self, resource: str, grace: float) -> None:
        status, answer = self.http("DELETE", f"/v1/locks/{quote(resource)}?grace={grace:.3f}s")
        assert status == 200, answer

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    def freeze(self) -> None:
        os.kill(self.pid, signal.SIGSTOP)
        eventually("stopped", lambda: Path(f"/proc/{self.pid}/stat").read_text().rsplit(")", 1)[1].split()[0] == "T")

    def thaw(self) -> None:
        os.kill(self.pid, signal.SIGCONT)

    def kill(self) -> None:
        assert self._process is not None
        self._process.kill()
        self._process.wait()

    def terminate(self) -> None:
        """It drains, and ends."""
        assert self._process is not None
        self._process.terminate()

    def ended(self, within: float = PATIENCE) -> None:
        assert self._process is not None
        self._process.wait(within)

    def stop(self) -> None:
        if self._process is not None and self._process.poll() is None:
            self.thaw()
            self._process.terminate()
            try:
                self._process.wait(10)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()
        shutil.rmtree(self._dir, ignore_errors=True)

    def __enter__(self) -> Sidecar:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if kind is not None:
            print(Path(self.log).read_text()[-5000:], file=sys.stderr)
        self.stop()


class Relay:
    """A socket before a sidecar's.

    hang_up: it hangs up on so many calls first, as a sidecar does to make room; on every
        other after it has read something.
    without: it withholds the sidecar's lines whose event has that field.
    """

    def __init__(self, sidecar: Sidecar, hang_up: int = 0, without: str = "") -> None:
        self._dir = tempfile.mkdtemp(prefix="lsr", dir="/tmp")
        self.socket = os.path.join(self._dir, "s")
        self.hung_up = 0
        self.withheld = 0
        self.leased = 0.0  # when news of the lease were passed on last, by time.monotonic
        self._without = without
        self._sidecar = sidecar
        self._hang_up = hang_up
        self._apps: list[socket.socket] = []
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(self.socket)
        self._listener.listen(64)
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        while True:
            try:
                app, _ = self._listener.accept()
            except OSError:
                return  # closed
            if self.hung_up < self._hang_up:
                if self.hung_up % 2:
                    app.recv(65536)
                self.hung_up += 1
                app.close()
                continue
            sidecar = socket.socket(socket.AF_UNIX)
            sidecar.connect(self._sidecar.socket)
            self._apps.append(app)
            threading.Thread(target=self._up, args=(app, sidecar), daemon=True).start()
            threading.Thread(target=self._down, args=(app, sidecar), daemon=True).start()

    def say(self, message: Any) -> None:
        """A line to the app that has called last."""
        self._apps[-1].sendall(json.dumps(message).encode() + b"\n")

    def _up(self, app: socket.socket, sidecar: socket.socket) -> None:
        try:
            while data := app.recv(65536):
                sidecar.sendall(data)
            sidecar.shutdown(socket.SHUT_WR)
        except OSError:
            pass  # one of them has ended

    def _down(self, app: socket.socket, sidecar: socket.socket) -> None:
        with app, sidecar, sidecar.makefile("rb") as lines:
            try:
                for line in lines:
                    event = json.loads(line).get("event") or ()
                    if self._without and self._without in event:
                        self.withheld += 1
                    else:
                        app.sendall(line)
                        if "lease" in event:
                            self.leased = time.monotonic()
            except OSError:
                pass
            for end in (app, sidecar):
                try:
                    end.shutdown(socket.SHUT_RDWR)  # wakes who reads
                except OSError:
                    pass

    def __enter__(self) -> Relay:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)  # wakes who accepts
        self._listener.close()
        shutil.rmtree(self._dir, ignore_errors=True)


class App:
    """A Python program as a process of its own, which talks to us by lines.

    Whoever waits for it in vain gets the stacks of all its threads, and of those of
    its children, on stderr.
    """

    def __init__(self, code: str, socket_path: str, *args: str, env: Mapping[str, str] | None = None) -> None:
        self._said = b""
        self.process = subprocess.Popen(
            # Since Python 3.12 every fork among threads is warned of.
            [sys.executable, "-X", "faulthandler", "-W", "error", "-W", "ignore:This process:DeprecationWarning"]
            + ["-c", code, *args],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env={**ENVIRONMENT, "LOCKSIDECAR_SOCKET": socket_path, "PYTHONUNBUFFERED": "1", **(env or {})},
        )

    @property
    def pid(self) -> int:
        return self.process.pid

    def line(self, within: float = PATIENCE) -> str:
        """Its next line; what is left at its end."""
        assert self.process.stdout is not None
        end = time.monotonic() + within
        while b"\n" not in self._said:
            if not select.select([self.process.stdout], [], [], max(0.0, end - time.monotonic()))[0]:
                self._stuck(f"said nothing for {within:g} s")
            data = os.read(self.process.stdout.fileno(), 65536)
            if not data:
                break
            self._said += data
        line, _, self._said = self._said.partition(b"\n")
        return line.decode()

    def expect(self, line: str, within: float = PATIENCE) -> None:
        got = self.line(within)
        assert got == line, f"the app said {got!r}, and not {line!r}"

    def say(self, line: str = "") -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(line.encode() + b"\n")
        self.process.stdin.flush()

    def signal(self, number: int) -> None:
        self.process.send_signal(number)

    def wait(self, timeout: float = PATIENCE) -> int:
        try:
            return self.process.wait(timeout)
        except subprocess.TimeoutExpired:
            self._stuck(f"did not end within {timeout:g} s")

    def _stuck(self, what: str) -> NoReturn:
        family = [*descendants(self.pid), self.pid]
        for pid in family:
            print(f"process {pid}:", file=sys.stderr, flush=True)
            send(pid, signal.SIGABRT)  # faulthandler writes the stacks
            time.sleep(0.2)
        raise AssertionError(f"the app {what}; its stacks are on stderr, of the processes {family}")

    def __enter__(self) -> App:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self.process.poll() is None:
            for pid in descendants(self.pid):
                send(pid, signal.SIGKILL)
            self.process.kill()
        self.process.wait()
        for pipe in (self.process.stdin, self.process.stdout):
            if pipe is not None:
                pipe.close()


def descendants(pid: int) -> list[int]:
    """The children of a process, and theirs, which come first."""
    try:
        children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    except OSError:
        return []  # it has ended
    return [d for child in map(int, children) for d in (*descendants(child), child)]


def send(pid: int, number: int) -> None:
    try:
        os.kill(pid, number)
    except ProcessLookupError:
        pass  # it has ended
