"""The scenarios, as programs of their own, on real stores."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from sidecars import EMBEDDED, MYSQL, REDIS, binary

SCENARIOS = Path(__file__).resolve().parents[1] / "scenarios"

STORES = [
    pytest.param(EMBEDDED, id="embedded"),
    pytest.param(REDIS, id="redis", marks=pytest.mark.skipif(not REDIS, reason="LOCKSIDECAR_TEST_REDIS is not set")),
    pytest.param(MYSQL, id="mysql", marks=pytest.mark.skipif(not MYSQL, reason="LOCKSIDECAR_TEST_MYSQL is not set")),
]


def run(name: str, store: str, *options: str) -> str:
    done = subprocess.run(
        [sys.executable, str(SCENARIOS / name), "--store", store, *options],
        env={**os.environ, "LOCKSIDECAR_BINARY": binary()},
        capture_output=True,
        text=True,
        timeout=90,
    )
    print(done.stdout, done.stderr)
    assert done.returncode == 0
    return done.stdout


@pytest.mark.parametrize("store", STORES)
def test_inventory(store: str) -> None:
    lines = run("inventory.py", store, "--units", "30").splitlines()
    without, within = (re.search(r"30 units in stock, (\d+) sold \(shop (\d+), marketplace (\d+)\)", l) for l in lines)
    assert without is not None and within is not None
    assert int(without[1]) > 30, "nothing went wrong without the lock"
    assert int(within[1]) == 30
    assert int(within[2]) > 0 and int(within[3]) > 0, "one service sold everything"


@pytest.mark.parametrize("store", STORES)
def test_scheduled(store: str) -> None:
    out = run("scheduled.py", store)
    for tick in range(1, 10):
        assert re.search(rf"^tick {tick}: done by node-\d$", out, re.MULTILINE)
    assert "9 ticks, 2 killed in the middle, 0 not done, 0 done twice" in out
    killed = re.findall(r"was killed in the middle \(the process\); node-\d began it (\d+) ms later", out)
    assert killed, out
