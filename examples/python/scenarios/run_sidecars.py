"""Starts sidecars for the scenarios. In production one runs beside each app already."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import locksidecar

EMBEDDED = "embedded:"


def default_store() -> str:
    """A store that sidecars can share, if the environment names one."""
    return os.environ.get("LOCKSIDECAR_TEST_REDIS") or os.environ.get("LOCKSIDECAR_TEST_MYSQL") or EMBEDDED


def _binary() -> str:
    built = Path(__file__).resolve().parents[3] / "bin" / "locksidecar"
    found = os.environ.get("LOCKSIDECAR_BINARY") or (str(built) if built.exists() else shutil.which("locksidecar"))
    if not found:
        raise SystemExit("no sidecar found: run `make build`, or set LOCKSIDECAR_BINARY")
    return found


class Sidecar:
    """One sidecar."""

    def __init__(self, directory: Path, name: str, store: str, namespace: str, ttl: str) -> None:
        self.socket = str(directory / f"{name}.sock")
        self._command = [_binary(), "serve", "--socket", self.socket, "--name", name, "--store", store]
        self._command += ["--namespace", namespace, "--ttl", ttl, "--drain", "1s", "--log-level", "error"]
        self.start()

    def start(self) -> None:
        env = {k: v for k, v in os.environ.items() if not k.startswith("LOCKSIDECAR_")}
        self._process = subprocess.Popen(self._command, env=env, stdout=subprocess.DEVNULL, start_new_session=True)
        client = locksidecar.Client(self.socket)
        end = time.monotonic() + 20
        while True:
            try:
                client.lock("ready", owner="", wait=1).acquire().release()
                client.close()
                return
            except locksidecar.LockSidecarError as e:
                if self._process.poll() is not None or time.monotonic() > end:
                    self.stop()
                    raise SystemExit(f"the sidecar is not ready: {e}") from e
                time.sleep(0.02)

    def kill(self) -> None:
        self._process.kill()
        self._process.wait()

    def stop(self) -> None:
        self._process.send_signal(signal.SIGTERM)
        try:
            self._process.wait(10)
        except subprocess.TimeoutExpired:
            self.kill()


@contextlib.contextmanager
def sidecars(names: list[str], store: str, ttl: str = "10s") -> Iterator[dict[str, Sidecar]]:
    """A sidecar for each name. The embedded store is one sidecar's own: there all share one."""
    namespace = f"scenario-{os.getpid()}-{time.time_ns()}"
    with tempfile.TemporaryDirectory(prefix="ls", dir="/tmp") as directory, contextlib.ExitStack() as stack:
        started: dict[str, Sidecar] = {}
        for name in names:
            if store == EMBEDDED and started:
                started[name] = started[names[0]]
                continue
            started[name] = Sidecar(Path(directory), name, store, namespace, ttl)
            stack.callback(started[name].stop)
        yield started
