"""The cases that every client must pass."""

from __future__ import annotations

import concurrent.futures
from collections.abc import Iterator

import contract
import pytest


def _runs() -> Iterator[tuple[str, str, str]]:
    for path in sorted(contract.CASES.glob("*.json")):
        case = contract.load(path.stem)
        for store in contract.stores(case) or [""]:
            for name, driver in contract.DRIVERS.items():
                if driver.can_do(case):
                    yield path.stem, store, name


RUNS = list(_runs())
Results = dict[tuple[str, str, str], "concurrent.futures.Future[None]"]


@pytest.fixture(scope="module")
def results(request: pytest.FixtureRequest) -> Iterator[Results]:
    """All runs that were asked for, a few at a time: most of what they do is to wait."""
    wanted = {
        item.callspec.params["run"]
        for item in request.session.items
        if hasattr(item, "callspec") and "run" in item.callspec.params
    }
    with concurrent.futures.ThreadPoolExecutor(5) as pool:
        yield {run: pool.submit(contract.run, *run) for run in RUNS if run in wanted and run[1]}


@pytest.mark.parametrize("run", RUNS, ids=["-".join(filter(None, run)) for run in RUNS])
def test_contract(run: tuple[str, str, str], results: Results) -> None:
    if run not in results:
        pytest.skip("needs a store that is not there")
    results[run].result()
