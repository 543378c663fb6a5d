"""The scenarios, as programs of their own, on real stores."""

from __future__ import annotations

import concurrent.futures
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from sidecars import EMBEDDED, MYSQL, REDIS, binary

SCENARIOS = Path(__file__).resolve().parents[1] / "scenarios"

STORES = {"embedded": EMBEDDED, "redis": REDIS, "mysql": MYSQL}
RUNS = [(name, store) for name in ("inventory", "scheduled") for store in STORES]
Outputs = dict[tuple[str, str], "concurrent.futures.Future[str]"]


def run(name: str, store: str) -> str:
    done = subprocess.run(
        [sys.executable, str(SCENARIOS / f"{name}.py"), "--store", STORES[store]],
        env={**os.environ, "LOCKSIDECAR_BINARY": binary()},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def outputs(request: pytest.FixtureRequest) -> Iterator[Outputs]:
    """All that were asked for, a few at a time: much of what they do is to wait."""
    with concurrent.futures.ThreadPoolExecutor(3) as pool:
        wanted = {item.name for item in request.session.items}
        yield {
            (name, store): pool.submit(run, name, store)
            for name, store in RUNS
            if STORES[store] and f"test_{name}[{store}]" in wanted
        }


def output(outputs: Outputs, name: str, store: str) -> str:
    if (name, store) not in outputs:
        pytest.skip("needs a store that is not there")
    text = outputs[name, store].result()
    print(text)
    return text


@pytest.mark.parametrize("store", STORES)
def test_inventory(store: str, outputs: Outputs) -> None:
    lines = output(outputs, "inventory", store).splitlines()
    found = [re.search(r"60 units in stock, (\d+) sold \(shop (\d+), marketplace (\d+)\)", line) for line in lines]
    without, within = found
    assert without is not None and within is not None
    assert int(without[1]) > 60, "nothing went wrong without the lock"
    assert int(within[1]) == 60
    assert int(within[2]) > 0 and int(within[3]) > 0, "one service sold everything"


@pytest.mark.parametrize("store", STORES)
def test_scheduled(store: str, outputs: Outputs) -> None:
    text = output(outputs, "scheduled", store)
    for tick in range(1, 10):
        assert re.search(rf"^tick {tick}: done by node-\d$", text, re.MULTILINE)
    assert "9 ticks, 2 killed in the middle, 0 not done, 0 done twice" in text
    assert re.search(r"was killed in the middle \(the process\); node-\d began it \d+ ms later", text)
    assert store == "embedded" or "its sidecar and the process" in text
