package main

import (
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/locksidecar/locksidecar/client"
	"github.com/locksidecar/locksidecar/internal/testengine"
)

// works are lines of a script in bash that note in a file, every 10 ms, when that is, in ns since the epoch. They start
// no program for it: that would be two each time, and several of these work at the same time for seconds. Instead of sleep,
// bash reads from a pipe into which nobody writes.
const works = `
exec 3<> <(:)
work() { while :; do echo "${EPOCHREALTIME/[.,]/}000" >>"$1"; read -rt 0.01 -u 3; done; }
`

// worker is a CMD that works, with a child that does it too. Neither ends when it is asked to.
const worker = works + `
trap 'echo term >>"$1.term"' TERM
(trap '' TERM; work "$1") &
echo $$ $! >"$1.pids"
work "$1"
`

// startWorker runs worker under a lock and waits until it works.
func startWorker(t *testing.T, args ...string) (run *program, log string) {
	t.Helper()
	log = filepath.Join(t.TempDir(), "log")
	run = launch(t, nil, binary, append(append([]string{"run"}, args...), "--", "bash", "-c", worker, "bash", log)...)
	eventually(t, "CMD works", func() bool {
		_, err := os.Stat(log)
		return err == nil && len(workerPIDs(log)) == 2
	})
	return run, log
}

func workerPIDs(log string) []int {
	text, err := os.ReadFile(log + ".pids")
	if err != nil {
		return nil
	}
	var pids []int
	for _, f := range strings.Fields(string(text)) {
		pid, err := strconv.Atoi(f)
		if err != nil {
			return nil
		}
		pids = append(pids, pid)
	}
	return pids
}

// lastWork is when the worker worked last, in ns since the epoch.
func lastWork(t *testing.T, log string) int64 {
	t.Helper()
	text, err := os.ReadFile(log)
	if err != nil {
		t.Fatal(err)
	}
	last := int64(0)
	for line := range strings.Lines(string(text)) {
		if n, err := strconv.ParseInt(strings.TrimSpace(line), 10, 64); err == nil { // the last may be half
			last = max(last, n)
		}
	}
	return last
}

// startSuccessor waits for the lock and notes when it got it.
func startSuccessor(t *testing.T, args ...string) *program {
	t.Helper()
	return launch(t, nil, binary, append(append([]string{"run"}, args...), "--", "date", "+%s%N")...)
}

// checkSuccession: the worker was dead before the successor was let in.
func checkSuccession(t *testing.T, next *program, log string) {
	t.Helper()
	if code := next.wait(); code != 0 {
		t.Fatalf("the successor's status is %d", code)
	}
	granted, err := strconv.ParseInt(strings.TrimSpace(next.out.String()), 10, 64)
	if err != nil {
		t.Fatal(err)
	}
	for _, pid := range workerPIDs(log) {
		eventually(t, "the worker is dead", func() bool { return !alive(pid) })
	}
	if last := lastWork(t, log); last >= granted {
		t.Errorf("CMD worked until %s after the next holder had begun", time.Duration(last-granted))
	}
}

func TestForcedReleaseEndsCMDFirst(t *testing.T) {
	t.Parallel()
	side := serveProgram(t)
	run, log := startWorker(t, "--socket", side.socket, "a")
	next := startSuccessor(t, "--socket", side.socket, "a")
	c := dial(t, side)
	eventually(t, "the successor waits", func() bool { _, n := status(t, c, "a"); return n == 1 })

	began := time.Now()
	got := cli(t, "release", "--force", "a", "--grace", "8s", "--socket", side.socket)
	if got.code != 0 || !strings.HasPrefix(got.out, "a: taken from ") {
		t.Errorf("release: %+v", got)
	}
	if code := run.wait(); code != exitLost {
		t.Errorf("status %d, want %d", code, exitLost)
	}
	if !strings.Contains(run.err.String(), "an administrator forced its release: CMD gets SIGTERM, and SIGKILL in ") {
		t.Errorf("stderr %q", run.err)
	}
	if _, err := os.Stat(log + ".term"); err != nil {
		t.Errorf("CMD got no SIGTERM: %v", err)
	}
	checkSuccession(t, next, log)
	if took := time.Since(began); took < 4*time.Second {
		t.Errorf("a CMD that does not end was given only %s of the grace", took)
	}
}

// A CMD that ends when it is asked to lets the next one in at once, and not
// when the grace is over.
func TestForcedReleaseOfAPoliteCMD(t *testing.T) {
	side := serveProgram(t)
	run := launch(t, nil, binary, "run", "--socket", side.socket, "a", "--", "sleep", "60")
	c := dial(t, side)
	eventually(t, "it is held", func() bool { n, _ := status(t, c, "a"); return n == 1 })
	next := startSuccessor(t, "--socket", side.socket, "a")
	eventually(t, "the successor waits", func() bool { _, n := status(t, c, "a"); return n == 1 })
	began := time.Now()
	if got := cli(t, "release", "--force", "a", "--grace", "1m", "--socket", side.socket); got.code != 0 {
		t.Errorf("release: %+v", got)
	}
	if code := next.wait(); code != 0 {
		t.Errorf("the successor's status is %d", code)
	}
	if took := time.Since(began); took > 50*time.Second {
		t.Errorf("the next one was let in after %s", took)
	}
	if code := run.wait(); code != exitLost {
		t.Errorf("status %d", code)
	}
}

func TestForcedReleaseAtOnce(t *testing.T) {
	side := serveProgram(t)
	run, log := startWorker(t, "--socket", side.socket, "a")
	if got := cli(t, "release", "--force", "a", "--grace", "0s", "--socket", side.socket); got.code != 0 {
		t.Errorf("release: %+v", got)
	}
	if code := run.wait(); code != exitLost || !strings.Contains(run.err.String(), "CMD gets SIGKILL\n") {
		t.Errorf("status %d, stderr %q", code, run.err)
	}
	for _, pid := range workerPIDs(log) {
		if alive(pid) {
			t.Errorf("process %d is alive", pid)
		}
	}
}

func TestMaxHold(t *testing.T) {
	t.Parallel()
	side := serveProgram(t)
	run, log := startWorker(t, "--socket", side.socket, "--max-hold", "1s", "a")
	next := startSuccessor(t, "--socket", side.socket, "a")
	if code := run.wait(); code != exitLost {
		t.Errorf("status %d", code)
	}
	if !strings.Contains(run.err.String(), ": CMD gets SIGTERM") {
		t.Errorf("stderr %q", run.err)
	}
	if _, err := os.Stat(log + ".term"); err != nil {
		t.Errorf("CMD got no SIGTERM: %v", err)
	}
	checkSuccession(t, next, log)
}

// What CMD has started dies with the lock, wherever it has hidden.
func TestLossReachesOtherSessions(t *testing.T) {
	side := serveProgram(t)
	log := filepath.Join(t.TempDir(), "pid")
	run := launch(t, nil, binary, "run", "--socket", side.socket, "a", "--", "sh", "-c",
		`setsid sh -c 'echo $$ >"$1"; exec sleep 60' sh "$1" & exec sleep 60`, "sh", log)
	pid := pidIn(t, log)
	if got := cli(t, "release", "--force", "a", "--socket", side.socket); got.code != 0 {
		t.Errorf("release: %+v", got)
	}
	if code := run.wait(); code != exitLost {
		t.Errorf("status %d", code)
	}
	if alive(pid) {
		t.Error("a process in another session has survived the lock")
	}
}

// A sidecar that is frozen for longer than its TTL: run ends CMD by its own clock.
func TestFrozenSidecar(t *testing.T) {
	t.Parallel()
	redis := testengine.Shared(t, testengine.Redis)
	store := []string{"--store", storeURL(redis), "--ttl", "5s", "--namespace", namespace(t)}
	frozen, other := serveProgram(t, store...), serveProgram(t, store...)
	run, log := startWorker(t, "--kill-after", "100ms", "--socket", frozen.socket, "a") // of half a second
	next := startSuccessor(t, "--socket", other.socket, "a")
	c := dial(t, other)
	eventually(t, "the successor waits", func() bool { _, n := status(t, c, "a"); return n == 1 })
	freeze(t, frozen.cmd.Process.Pid)
	if code := run.wait(); code != exitLost {
		t.Errorf("status %d", code)
	}
	checkSuccession(t, next, log)
	frozen.signal(syscall.SIGCONT)
	if got := cli(t, "run", "--socket", frozen.socket, "--wait", "20s", "a", "--", "true"); got.code != 0 {
		t.Errorf("after the freeze: %+v", got)
	}
}

// supervisorOf is the pid of run's supervisor, its only child.
func supervisorOf(t *testing.T, run *program) (pid int) {
	t.Helper()
	eventually(t, "run has a supervisor", func() bool {
		stats, err := filepath.Glob("/proc/[0-9]*/stat")
		if err != nil {
			t.Fatal(err)
		}
		for _, name := range stats {
			text, _ := os.ReadFile(name) // it may have ended
			_, rest, _ := strings.Cut(string(text), ") ")
			if f := strings.Fields(rest); len(f) > 1 && f[1] == strconv.Itoa(run.cmd.Process.Pid) {
				pid, _ = strconv.Atoi(strings.Split(name, "/")[2]) // digits, by the pattern
			}
		}
		return pid != 0
	})
	return pid
}

// A supervisor that is frozen, with the lease in it: run ends CMD before the next one is
// let in.
func TestFrozenSupervisor(t *testing.T) {
	t.Parallel()
	redis := testengine.Shared(t, testengine.Redis)
	store := []string{"--store", storeURL(redis), "--ttl", "5s", "--namespace", namespace(t)} // half a second to kill
	run, log := startWorker(t, append(store, "a")...)
	next := startSuccessor(t, append(store, "a")...)
	if err := syscall.Kill(supervisorOf(t, run), syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	checkSuccession(t, next, log)
	if code := run.wait(); code != exitLost || !strings.Contains(run.err.String(), "the supervisor of CMD does not answer: CMD got SIGKILL\n") {
		t.Errorf("status %d, stderr %q", code, run.err)
	}
}

// A supervisor that is killed: run ends CMD, also what hides in other sessions.
func TestKilledSupervisor(t *testing.T) {
	side := serveProgram(t)
	log := filepath.Join(t.TempDir(), "pid")
	run := launch(t, nil, binary, "run", "--socket", side.socket, "a", "--", "sh", "-c",
		`setsid sh -c 'echo $$ >"$1"; exec sleep 60' sh "$1" & exec sleep 60`, "sh", log)
	hidden := pidIn(t, log)
	if err := syscall.Kill(supervisorOf(t, run), syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	if code := run.wait(); code != exitLost {
		t.Errorf("status %d", code)
	}
	if alive(hidden) {
		t.Error("a process in another session has survived")
	}
}

// pidIn waits for a pid in a file.
func pidIn(t *testing.T, file string) (pid int) {
	t.Helper()
	eventually(t, "a pid is in "+filepath.Base(file), func() bool {
		text, _ := os.ReadFile(file) // not there yet
		pid, _ = strconv.Atoi(strings.TrimSpace(string(text)))
		return pid != 0
	})
	return pid
}

// kill -9 of run frees the lock before its TTL, and nothing goes on without it.
func TestKilledRun(t *testing.T) {
	side := serveProgram(t, "--ttl", "1m")
	run, log := startWorker(t, "--socket", side.socket, "a")
	s, err := dial(t, side).OpenSession(t.Context(), client.SessionOptions{})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	granted := make(chan time.Time, 1)
	go func() {
		if _, err := s.Acquire(t.Context(), "a", client.AcquireOptions{}); err != nil {
			t.Error(err)
		}
		granted <- time.Now()
	}()
	c := dial(t, side)
	eventually(t, "somebody waits", func() bool { _, n := status(t, c, "a"); return n == 1 })
	killed := time.Now()
	run.signal(syscall.SIGKILL)
	select {
	case at := <-granted:
		t.Logf("free after %s", at.Sub(killed))
	case <-time.After(patience): // less than the TTL
		t.Fatal("the lock was not freed")
	}
	for _, pid := range workerPIDs(log) {
		if alive(pid) {
			t.Errorf("process %d of CMD is alive", pid)
		}
	}
}

// The same without a daemon: the supervisor gives the lease back, long before its TTL.
func TestKilledRunWithItsOwnSidecar(t *testing.T) {
	redis := testengine.Shared(t, testengine.Redis)
	store := []string{"--store", storeURL(redis), "--ttl", "1m", "--namespace", namespace(t)}
	run, log := startWorker(t, append(store, "a")...)
	next := startSuccessor(t, append(store, "a")...)
	run.signal(syscall.SIGKILL)
	checkSuccession(t, next, log) // patience is less than the TTL
}

func TestOwnSidecarLeavesNothing(t *testing.T) {
	redis := testengine.Shared(t, testengine.Redis)
	for _, sig := range []syscall.Signal{syscall.SIGTERM, syscall.SIGKILL} {
		t.Run(sig.String(), func(t *testing.T) {
			tmp := socketDir(t)
			works := filepath.Join(t.TempDir(), "works")
			run := launch(t, []string{"TMPDIR=" + tmp}, binary, "run", "--store", storeURL(redis), "--namespace", namespace(t), "a", "--",
				"sh", "-c", `touch "$1"; exec sleep 60`, "sh", works)
			eventually(t, "CMD works", func() bool { _, err := os.Stat(works); return err == nil })
			if m, _ := filepath.Glob(tmp + "/*/socket"); len(m) != 1 {
				t.Errorf("sockets %q", m)
			}
			run.signal(sig)
			run.wait()
			eventually(t, "the directory is gone", func() bool { m, _ := filepath.Glob(tmp + "/*"); return len(m) == 0 })
		})
	}
}
