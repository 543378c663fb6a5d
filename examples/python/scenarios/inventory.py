"""Two services sell the same stock, each from several processes.

To sell a unit is to read the stock, to take the payment, and to write the stock:
two processes that do so at the same time sell one unit twice. Here they do it
first without the lock and then with it.

    python3 scenarios/inventory.py [--store redis://…] [--units 60] [--processes 3]
"""

from __future__ import annotations

import argparse
import contextlib
import multiprocessing
import os
import random
import sqlite3
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from multiprocessing.synchronize import Barrier

from run_sidecars import default_store, sidecars

import locksidecar

SERVICES = ["shop", "marketplace"]


class Warehouse:
    """The stock, in a database that several services use."""

    def __init__(self, path: str) -> None:
        self._db = sqlite3.connect(path, timeout=30, isolation_level=None)

    @staticmethod
    def build(path: str, units: int) -> None:
        with contextlib.closing(sqlite3.connect(path)) as db:
            db.execute("PRAGMA journal_mode = WAL")
            db.execute("CREATE TABLE stock (sku TEXT PRIMARY KEY, units INTEGER, fence INTEGER)")
            db.execute("CREATE TABLE orders (sku TEXT, service TEXT, pid INTEGER)")
            db.execute("INSERT INTO stock VALUES ('lamp', ?, 0)", (units,))
            db.commit()

    def units(self, sku: str) -> int:
        return int(self._db.execute("SELECT units FROM stock WHERE sku = ?", (sku,)).fetchone()[0])

    def sold(self, sku: str, service: str, left: int, fence: int) -> None:
        """Write the order and what is left, unless somebody with a later lock was here before."""
        self._db.execute("BEGIN IMMEDIATE")
        changed = self._db.execute(
            "UPDATE stock SET units = ?, fence = ? WHERE sku = ? AND fence <= ?", (left, fence, sku, fence)
        )
        if changed.rowcount != 1:
            self._db.execute("ROLLBACK")
            raise RuntimeError(f"fence {fence} is older than one that was seen")
        self._db.execute("INSERT INTO orders VALUES (?, ?, ?)", (sku, service, os.getpid()))
        self._db.execute("COMMIT")

    def orders(self) -> dict[str, int]:
        return dict(self._db.execute("SELECT service, count(*) FROM orders GROUP BY service"))


def take_the_payment() -> None:
    time.sleep(random.uniform(0.001, 0.004))


def sell(warehouse: Warehouse, service: str, fence: int, check: Callable[[], None]) -> bool:
    units = warehouse.units("lamp")
    if units <= 0:
        return False
    take_the_payment()
    check()
    warehouse.sold("lamp", service, units - 1, fence)
    return True


def run_service(service: str, path: str, socket: str | None, opening: Barrier) -> None:
    """One process of a service: it sells until there is nothing left."""
    warehouse = Warehouse(path)
    opening.wait(30)
    if socket is None:
        while sell(warehouse, service, 0, lambda: None):
            pass
        return
    client = locksidecar.Client(socket, name=service)
    lock = client.lock("stock/lamp", wait=30)
    while True:
        with lock as held:
            if not sell(warehouse, service, held.fence, held.check):
                return


def day(units: int, processes: int, sockets: dict[str, str] | None) -> dict[str, int]:
    """One day of selling. How much each service has sold."""
    context = multiprocessing.get_context("spawn")
    with tempfile.TemporaryDirectory() as directory:
        path = os.path.join(directory, "warehouse.db")
        Warehouse.build(path, units)
        opening = context.Barrier(len(SERVICES) * processes)
        workers = [
            context.Process(target=run_service, args=(service, path, sockets[service] if sockets else None, opening))
            for service in SERVICES
            for _ in range(processes)
        ]
        with ended(workers):
            for worker in workers:
                worker.start()
            for worker in workers:
                worker.join()
        if failed := [worker.exitcode for worker in workers if worker.exitcode]:
            raise SystemExit(f"a process of a service has failed: {failed}")
        return Warehouse(path).orders()


@contextlib.contextmanager
def ended(workers: list[multiprocessing.context.SpawnProcess]) -> Iterator[None]:
    try:
        yield
    finally:
        for worker in workers:
            if worker.is_alive():
                worker.kill()


def tell(title: str, units: int, orders: dict[str, int]) -> int:
    sold = sum(orders.values())
    by = ", ".join(f"{service} {orders.get(service, 0)}" for service in SERVICES)
    print(f"{title:17} {units} units in stock, {sold} sold ({by}): {sold - units} oversold", flush=True)
    return sold - units


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--store", default=default_store(), help="URL of the store (default: %(default)s)")
    parser.add_argument("--units", type=int, default=60)
    parser.add_argument("--processes", type=int, default=3, help="of each service")
    options = parser.parse_args()

    tell("without the lock:", options.units, day(options.units, options.processes, None))
    with sidecars(SERVICES, options.store) as started:
        sockets = {service: started[service].socket for service in SERVICES}
        oversold = tell("with the lock:", options.units, day(options.units, options.processes, sockets))
    return 1 if oversold else 0


if __name__ == "__main__":
    sys.exit(main())
