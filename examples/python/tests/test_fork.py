"""Forks: a child owns nothing, and does not keep what its parent had."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from sidecars import PATIENCE, App, Sidecar, eventually

Start = Callable[..., Sidecar]

CHILD_OWNS_NOTHING = """
import os, sys, time
import locksidecar
with locksidecar.lock("mine") as held:
    outer = locksidecar.lock("outer").acquire()
    pid = os.fork()
    if pid == 0:
        assert held.lost.is_set() and held.problem.lost_reason == "FORKED" and held.valid_for() == 0
        for forbidden in (held.check, held.release, outer.release, outer.downgrade):
            try:
                forbidden()
            except locksidecar.LockLost as e:
                assert e.lost_reason == "FORKED"
            else:
                os._exit(3)
        try:
            locksidecar.lock("mine", wait=0).acquire()
        except locksidecar.LockHeld as e:
            assert int(e.metadata["holder_pid"]) == os.getppid(), e.metadata
        else:
            os._exit(4)
        with locksidecar.lock("child", wait=5) as own:
            own.check()
            print("child", flush=True)
            sys.stdin.readline()
            own.check()
        os._exit(0)
    _, status = os.waitpid(pid, 0)
    print("child ended with", os.waitstatus_to_exitcode(status))
    held.check()
    time.sleep(0.2)
    held.check()  # the child's end took nothing with it
    assert not held.lost.is_set() and held.valid_for() > 0
    outer.release()
print("done")
"""


def app(code: str, sidecar: Sidecar, *args: str) -> App:
    return App(code, sidecar.socket, *args)


def test_child_owns_nothing(own_sidecar: Start) -> None:
    sidecar = own_sidecar()
    with app(CHILD_OWNS_NOTHING, sidecar) as a:
        a.expect("child")
        (mine,), _ = sidecar.look("mine")
        (child,), _ = sidecar.look("child")
        assert mine["pid"] == a.pid and child["pid"] not in (a.pid, 0)
        a.say()
        a.expect("child ended with 0")
        a.expect("done")
        assert a.wait() == 0


CHILD_LIVES_ON = """
import os, sys, time
import locksidecar, locksidecar._session
locksidecar._session.Session.close.__defaults__ = (60.0,)
held = locksidecar.lock("r").acquire()
waiter = locksidecar.lock("r")
if os.fork() == 0:
    sys.stdout.close()
    os.close(1)
    time.sleep(600)
    os._exit(0)
print("forked", flush=True)
if sys.argv[1] == "exit":
    sys.stdin.readline()
    sys.exit(0)
time.sleep(600)
"""


@pytest.mark.parametrize("end", ["kill", "exit"])
def test_the_child_does_not_keep_the_parents_lock(own_sidecar: Start, end: str) -> None:
    sidecar = own_sidecar()
    with app(CHILD_LIVES_ON, sidecar, end) as a:
        a.expect("forked")
        assert sidecar.queue("r") == (1, 0)
        children = Path(f"/proc/{a.pid}/task/{a.pid}/children").read_text().split()
        assert len(children) == 1
        began = time.monotonic()
        if end == "kill":
            a.signal(9)
        else:
            a.say()
        a.wait()
        took = time.monotonic() - began
        sidecar.expect_queue("r", 0, 0)
        assert Path(f"/proc/{children[0]}").exists(), "the child has ended, and the test shows nothing"
        os.kill(int(children[0]), 9)
    assert took < 30, f"the parent's exit took {took:.1f} s"  # to wait for the child, or in vain for the sidecar, takes longer


FALLS_OUT_OF_THE_BLOCK = """
import os
import locksidecar
try:
    with locksidecar.lock("r") as held:
        pid = os.fork()
except locksidecar.LockLost as e:
    assert pid == 0 and e.lost_reason == "FORKED"
    os._exit(7)
_, status = os.waitpid(pid, 0)
print(os.waitstatus_to_exitcode(status))
"""


def test_a_child_cannot_leave_the_block_as_if_it_had_the_lock(sidecar: Sidecar) -> None:
    with app(FALLS_OUT_OF_THE_BLOCK, sidecar) as a:
        a.expect("7")
        assert a.wait() == 0


FORK_AMONG_THREADS = """
import os, threading, time
import locksidecar
stop = False
def busy(i):
    while not stop:
        with locksidecar.lock(f"busy/{i}"):
            pass
threads = [threading.Thread(target=busy, args=(i,)) for i in range(4)]
for t in threads: t.start()
time.sleep(0.1)  # the first fork meets the opening of the session, where the machine is busy
for i in range(15):
    pid = os.fork()
    if pid == 0:
        threads = os.listdir("/proc/self/task")
        assert len(threads) == 1, threads
        with locksidecar.lock(f"child/{i}", wait=10) as held:
            held.check()
            assert held.valid_for() > 0
        os._exit(0)
    _, status = os.waitpid(pid, 0)
    assert status == 0, status
stop = True
for t in threads: t.join()
print("done")
"""


def test_fork_among_busy_threads(sidecar: Sidecar) -> None:
    with app(FORK_AMONG_THREADS, sidecar) as a:
        a.expect("done", 2 * PATIENCE)  # fifteen children, one by one
        assert a.wait() == 0


CHILD_EXITS = """
import os, sys
import locksidecar
held = locksidecar.lock("r").acquire()
for _ in range(10):
    pid = os.fork()
    if pid == 0:
        sys.exit(0)  # and not os._exit: everything is freed
    assert os.waitpid(pid, 0)[1] == 0
held.release()
print("done")
"""


def test_a_child_ends_in_an_orderly_way(sidecar: Sidecar) -> None:
    with app(CHILD_EXITS, sidecar) as a:
        a.expect("done")
        assert a.wait() == 0


MULTIPROCESSING = """
import multiprocessing, sys
import locksidecar

def count(path):
    for _ in range(10):
        with locksidecar.lock("counter", wait=30):
            with open(path) as f:
                n = int(f.read())
            with open(path, "w") as f:
                f.write(str(n + 1))

if __name__ == "__main__":
    path, method = sys.argv[1:]
    with locksidecar.lock("before"):  # the parent has a session of its own
        context = multiprocessing.get_context(method)
        workers = [context.Process(target=count, args=(path,)) for _ in range(4)]
        for w in workers: w.start()
        for w in workers: w.join()
        print([w.exitcode for w in workers])
"""


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_multiprocessing(sidecar: Sidecar, method: str, tmp_path: Path) -> None:
    counter, program = tmp_path / "counter", tmp_path / "program.py"
    counter.write_text("0")
    program.write_text(MULTIPROCESSING)  # spawn imports it again
    code = f"import runpy, sys; sys.argv[0] = {str(program)!r}; runpy.run_path(sys.argv[0], run_name='__main__')"
    if method == "spawn":
        code = f"import os, sys; os.execv(sys.executable, [sys.executable, {str(program)!r}, *sys.argv[1:]])"
    with app(code, sidecar, str(counter), method) as a:
        a.expect("[0, 0, 0, 0]")
        assert a.wait() == 0
    assert counter.read_text() == "40"


PREFORK = """
import os, signal, sys, time
import locksidecar

lock = locksidecar.lock("request")          # made in the master, used in the workers

with locksidecar.lock("migrate", wait=30):  # the master takes one itself, and so opens a session
    pass

def work(number):
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    while True:
        with lock as held:
            print(number, held.fence, flush=True)
            time.sleep(0.005)

workers = []
for number in range(3):
    pid = os.fork()
    if pid == 0:
        try:
            work(number)
        finally:
            os._exit(0)
    workers.append(pid)

def stop(*_):
    for pid in workers:
        os.kill(pid, signal.SIGTERM)
    for pid in workers:
        assert os.waitpid(pid, 0)[1] == 0
    sys.exit(0)

signal.signal(signal.SIGTERM, stop)
while True:
    signal.pause()
"""


def test_prefork_server(own_sidecar: Start) -> None:
    """A master that forks workers, as gunicorn does."""
    sidecar = own_sidecar()
    with app(PREFORK, sidecar) as a:
        seen: set[str] = set()
        last = 0
        while len(seen) < 3:
            number, fence = a.line().split()
            seen.add(number)
            assert int(fence) > last
            last = int(fence)
        a.signal(15)
        assert a.wait() == 0
        sidecar.expect_queue("request", 0, 0, 5)


ASYNC_PARENT = """
import asyncio, os
import locksidecar

async def take(resource):
    async with locksidecar.lock(resource, wait=5) as held:
        held.check()

async def main():
    async with locksidecar.lock("parent") as held:
        waiting = asyncio.create_task(take("parent"))
        await asyncio.sleep(0.1)
        pid = os.fork()
        if pid == 0:
            try:
                assert held.lost.is_set()
                asyncio.events._set_running_loop(None)
                asyncio.run(take("child"))
                os._exit(0)
            except BaseException as e:
                print(repr(e), flush=True)
                os._exit(1)
        await asyncio.get_running_loop().run_in_executor(None, os.waitpid, pid, 0)
        held.check()
        assert not held.lost.is_set() and not waiting.done()
    await waiting
    print("done")

asyncio.run(main())
"""


def test_fork_of_an_asyncio_program(sidecar: Sidecar) -> None:
    with app(ASYNC_PARENT, sidecar) as a:
        a.expect("done")
        assert a.wait() == 0


def test_the_childs_copies_are_closed(own_sidecar: Start) -> None:
    """A child that takes no lock has no connection to the sidecar at all."""
    code = """
import os, sys, time
import locksidecar
held = locksidecar.lock("r").acquire()
def sockets():
    return sum(os.readlink(f"/proc/self/fd/{fd}").startswith("socket:") for fd in os.listdir("/proc/self/fd") if os.path.lexists(f"/proc/self/fd/{fd}"))
print(sockets() > 0, flush=True)
if os.fork() == 0:
    print(sockets(), flush=True)
    os._exit(0)
os.wait()
"""
    with app(code, own_sidecar()) as a:
        a.expect("True")
        a.expect("0")
        eventually("ended", lambda: a.process.poll() == 0)


CYCLES = """
import gc, mmap, os, random, sys, threading
import locksidecar

cycles = int(sys.argv[1])
counters = memoryview(mmap.mmap(-1, 4096)).cast("q")  # shared with the children
ORDERS = 4

def add(resource):
    with locksidecar.lock(f"orders/{resource}") as held:
        n = counters[resource]
        held.check()
        counters[resource] = n + 1

def busy():
    while not stop:
        add(random.randrange(ORDERS))
        counters[511] += 1  # only this thread has this one

def open_files():
    gc.collect()
    return len(os.listdir("/proc/self/fd"))

def resident():
    return int(open("/proc/self/statm").read().split()[1]) * mmap.PAGESIZE

def child():
    assert kept.lost.is_set() and kept.problem.lost_reason == "FORKED"
    add(random.randrange(ORDERS))
    if random.random() < 0.1:  # and a grandchild, which forks from a process with a session of its own
        grandchild = os.fork()
        if grandchild:
            assert os.waitpid(grandchild, 0)[1] == 0
        else:
            add(random.randrange(ORDERS))
            counters[ORDERS + 1] += 1

def fork():
    pid = os.fork()
    if pid == 0:
        status = 1
        try:
            child()
            status = 0
        except BaseException as e:
            print(repr(e), flush=True)
        finally:
            os._exit(status)
    return pid

stop = False
kept = locksidecar.lock("kept").acquire()
thread = threading.Thread(target=busy)
thread.start()
before = None
for n in range(cycles):
    assert os.waitpid(fork(), 0)[1] == 0
    kept.check()
    if n == cycles // 4:
        before = open_files(), resident()
after = open_files(), resident()
stop = True
thread.join()
kept.release()
assert after[0] <= before[0] + 1, (before, after)  # the thread may have one open that it does not keep
assert after[1] <= before[1] + (4 << 20), (before, after)
print(sum(counters[:ORDERS]), counters[511] + cycles + counters[ORDERS + 1])
sys.stdin.readline()
"""


@pytest.mark.timeout(3600)
def test_forks_one_after_the_other_under_load(own_sidecar: Start) -> None:
    """Nothing is lost and nothing leaks, however many: a thread of the parent takes locks all the time."""
    cycles = 10_000 if os.environ.get("LOCKSIDECAR_TEST_FULL") else 100
    sidecar = own_sidecar()
    with app(CYCLES, sidecar, str(cycles)) as a:
        counted, expected = a.line(PATIENCE + cycles).split()
        assert counted == expected
        sidecar.expect_queue("kept", 0, 0)
        eventually("one session", lambda: sidecar.http("GET", "/v1/info")[1]["sessions"] == 1)
        a.say()
        assert a.wait() == 0
