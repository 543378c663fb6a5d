"""Fixtures for all tests."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator

import pytest
from sidecars import EMBEDDED, REDIS, Sidecar

from locksidecar import Client

@pytest.fixture(scope="session", autouse=True)
def _no_settings_of_the_user() -> None:
    os.environ.pop("LOCKSIDECAR_SOCKET", None)


@pytest.fixture(scope="session")
def shared_sidecar() -> Iterator[Sidecar]:
    """One for all tests that do it no harm, on a real store where there is one."""
    with Sidecar(REDIS or EMBEDDED) as sidecar:
        yield sidecar


@pytest.fixture
def sidecar(shared_sidecar: Sidecar) -> Sidecar:
    return shared_sidecar


@pytest.fixture
def own_sidecar() -> Iterator[Callable[..., Sidecar]]:
    """Sidecars for tests that freeze or kill them."""
    started: list[Sidecar] = []

    def start(**flags: str) -> Sidecar:
        sidecar = Sidecar(flags={k.replace("_", "-"): v for k, v in flags.items()})
        started.append(sidecar)
        return sidecar

    yield start
    for sidecar in started:
        sidecar.stop()


@pytest.fixture
def client(sidecar: Sidecar) -> Iterator[Client]:
    with Client(sidecar.socket) as client:
        yield client


@pytest.fixture
def connect(sidecar: Sidecar) -> Iterator[Callable[..., Client]]:
    """Makes clients of the shared sidecar."""
    made: list[Client] = []

    def make(**options: object) -> Client:
        client = Client(sidecar.socket, **options)  # type: ignore[arg-type]
        made.append(client)
        return client

    yield make
    for client in made:
        client.close()
