"""A job that is due at every tick, on nodes that all have the same schedule.

Each node tries to take the lock (`wait=0`) when a tick is due. Who gets it looks
whether the tick was done already, does the job, and notes that it is done. When
the node that does it is killed, its lock is free at once and another one does it.
When its sidecar dies with it, the lock is free when the lease is over.

    python3 scenarios/scheduled.py [--store redis://…] [--nodes 4] [--ticks 9]
"""

from __future__ import annotations

import argparse
import contextlib
import multiprocessing
import os
import signal
import sqlite3
import sys
import tempfile
import time
from multiprocessing.context import SpawnProcess

from run_sidecars import EMBEDDED, Sidecar, default_store, sidecars

import locksidecar

PERIOD = 0.5  # seconds between ticks
WORK = 0.25  # how long the job takes
LOOK = 0.05  # how often a node looks whether something is due


class Journal:
    """Which ticks were begun and which are done, in a database of all nodes."""

    def __init__(self, path: str) -> None:
        self._db = sqlite3.connect(path, timeout=30, isolation_level=None)

    @staticmethod
    def build(path: str) -> None:
        with contextlib.closing(sqlite3.connect(path)) as db:
            db.execute("PRAGMA journal_mode = WAL")
            db.execute("CREATE TABLE begun (tick INTEGER, node TEXT, pid INTEGER, fence INTEGER)")
            db.execute("CREATE TABLE done (tick INTEGER, node TEXT, fence INTEGER)")
            db.commit()

    def last_done(self) -> int:
        return int(self._db.execute("SELECT coalesce(max(tick), 0) FROM done").fetchone()[0])

    def begin(self, tick: int, node: str, fence: int) -> None:
        self._db.execute("INSERT INTO begun VALUES (?, ?, ?, ?)", (tick, node, os.getpid(), fence))

    def finish(self, tick: int, node: str, fence: int) -> None:
        """Nobody with an older lock than one that was seen finishes anything."""
        done = self._db.execute(
            "INSERT INTO done SELECT ?, ?, ? WHERE NOT EXISTS (SELECT * FROM begun WHERE fence > ?)",
            (tick, node, fence, fence),
        )
        if done.rowcount != 1:
            raise RuntimeError(f"fence {fence} is older than one that was seen")

    def at_work(self) -> tuple[int, str, int, int] | None:
        """Tick, node, pid and fence of who is at it."""
        row = self._db.execute(
            "SELECT tick, node, pid, fence FROM begun b WHERE NOT EXISTS (SELECT * FROM done d WHERE d.fence >= b.fence)"
            " ORDER BY fence DESC LIMIT 1"
        ).fetchone()
        return (int(row[0]), str(row[1]), int(row[2]), int(row[3])) if row else None

    def is_done(self, fence: int) -> bool:
        return self._db.execute("SELECT * FROM done WHERE fence = ?", (fence,)).fetchone() is not None

    def runs(self) -> dict[int, list[tuple[str, bool]]]:
        """For each tick, who began it and whether he came to its end."""
        found: dict[int, list[tuple[str, bool]]] = {}
        rows = self._db.execute(
            "SELECT b.tick, b.node, d.fence IS NOT NULL FROM begun b LEFT JOIN done d USING (fence) ORDER BY b.fence"
        )
        for tick, node, finished in rows:
            found.setdefault(tick, []).append((node, bool(finished)))
        return found


def run_node(node: str, path: str, socket: str, first_tick: float, ticks: int) -> None:
    """A node: does what is due, if nobody else does."""
    journal = Journal(path)
    client = locksidecar.Client(socket, name=node)
    lock = client.lock("nightly-report", wait=0)
    while (tick := journal.last_done() + 1) <= ticks:
        if time.time() >= first_tick + (tick - 1) * PERIOD:
            try:
                with lock as held:
                    if journal.last_done() < tick:  # else another was quicker
                        journal.begin(tick, node, held.fence)
                        time.sleep(WORK)  # the job
                        held.check()
                        journal.finish(tick, node, held.fence)
            except locksidecar.LockHeld:
                pass  # another node is at it
            except (locksidecar.LockLost, locksidecar.NoSidecar, locksidecar.SidecarGone) as e:
                print(f"{node}: {e}", flush=True)
        time.sleep(LOOK)


class Cluster:
    """The nodes, and somebody who kills them and starts them again."""

    def __init__(self, path: str, started: dict[str, Sidecar], ticks: int) -> None:
        self._path = path
        self._sidecars = started
        self._ticks = ticks
        self._first_tick = time.time() + 1
        self._context = multiprocessing.get_context("spawn")
        self._nodes: dict[str, SpawnProcess] = {}
        for name in started:
            self.start(name)

    def start(self, name: str) -> None:
        arguments = (name, self._path, self._sidecars[name].socket, self._first_tick, self._ticks)
        self._nodes[name] = self._context.Process(target=run_node, args=arguments)
        self._nodes[name].start()

    def kill_who_is_at_work(self, journal: Journal, tick: int, with_sidecar: bool) -> None:
        """In the middle of the job of that tick, or of a later one."""
        while not self._kill_who_is_at_work(journal, tick, with_sidecar):
            pass

    def _kill_who_is_at_work(self, journal: Journal, tick: int, with_sidecar: bool) -> bool:
        while (now := journal.at_work()) is None or now[0] < tick or self._nodes[now[1]].pid != now[2]:
            if journal.last_done() >= self._ticks:
                raise SystemExit("all ticks were done before anybody could be killed")
            time.sleep(0.005)
        at, name, pid, fence = now
        what = "the process"
        if with_sidecar:  # first: else it would see the process end, and release its lock
            self._sidecars[name].kill()
            what = "its sidecar and the process"
        os.kill(pid, signal.SIGKILL)
        self._nodes[name].join()
        killed = time.monotonic()
        in_time = not journal.is_done(fence)
        if in_time:
            while (taken := journal.at_work()) == now or taken is None:
                time.sleep(0.002)
            took = (time.monotonic() - killed) * 1000
            print(f"tick {at}: {name} was killed in the middle ({what}); {taken[1]} began it {took:.0f} ms later", flush=True)
        if with_sidecar:
            self._sidecars[name].start()
        self.start(name)
        return in_time

    def wait(self) -> None:
        for node in self._nodes.values():
            node.join()

    def end(self) -> None:
        for node in self._nodes.values():
            if node.is_alive():
                node.kill()
                node.join()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--store", default=default_store(), help="URL of the store (default: %(default)s)")
    parser.add_argument("--nodes", type=int, default=4)
    parser.add_argument("--ticks", type=int, default=9)
    options = parser.parse_args()
    names = [f"node-{n}" for n in range(1, options.nodes + 1)]

    with (
        tempfile.TemporaryDirectory() as directory,
        sidecars(names, options.store, ttl="1s") as started,
    ):
        path = os.path.join(directory, "journal.db")
        Journal.build(path)
        journal = Journal(path)
        cluster = Cluster(path, started, options.ticks)
        try:
            cluster.kill_who_is_at_work(journal, 3, with_sidecar=False)
            # With the embedded store all nodes have one sidecar: to kill it would end them all.
            cluster.kill_who_is_at_work(journal, 6, with_sidecar=options.store != EMBEDDED)
            cluster.wait()
        finally:
            cluster.end()
        runs = journal.runs()

    killed = twice = missing = 0
    for tick in range(1, options.ticks + 1):
        finished = [node for node, done in runs.get(tick, []) if done]
        killed += len(runs.get(tick, [])) - len(finished)
        twice += max(0, len(finished) - 1)
        missing += not finished
        print(f"tick {tick}: done by {' and '.join(finished) or 'nobody'}")
    print(f"{options.ticks} ticks, {killed} killed in the middle, {missing} not done, {twice} done twice")
    return 1 if twice or missing else 0


if __name__ == "__main__":
    sys.exit(main())
