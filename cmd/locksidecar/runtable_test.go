package main

import (
	"bytes"
	"fmt"
	"os"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/locksidecar/locksidecar/internal/testengine"
)

// Lines of the table in docs/guides/run.md that no other test is about.

// What CMD has left behind goes on, without the lock.
func TestLeftBehindGoesOn(t *testing.T) {
	side := serveProgram(t)
	run := launch(t, nil, binary, "run", "--socket", side.socket, "a", "--", "sh", "-c", `sleep 600 >/dev/null 2>&1 & echo $!`)
	if code := run.wait(); code != 0 || run.err.String() != "" {
		t.Errorf("status %d, stderr %q", code, run.err)
	}
	left, err := strconv.Atoi(strings.TrimSpace(run.out.String()))
	if err != nil {
		t.Fatal(err)
	}
	if !alive(left) {
		t.Error("it was killed")
	}
	_ = syscall.Kill(left, syscall.SIGKILL)
	if n, _ := status(t, dial(t, side), "a"); n != 0 {
		t.Error("the lock is held")
	}
}

// The store falls silent: CMD is asked to end, and is dead before the next one begins.
func TestSilentStore(t *testing.T) {
	t.Parallel()
	store := onStore(t, testengine.Redis, "--ttl", "5s")
	proxy := testengine.Through(t, testengine.Shared(t, testengine.Redis))
	run, log := startWorker(t, append([]string{"--kill-after", "100ms", "--store", proxy.URL() + "?restart-grace=0s"}, append(store[2:], "a")...)...) // of half a second
	next := startSuccessor(t, append(store, "a")...)
	c := func() string { return cli(t, append([]string{"get", "a"}, store[:4]...)...).out }
	eventually(t, "the successor waits", func() bool { return strings.Contains(c(), "QUEUE") })
	proxy.Inject(testengine.Cut)
	if code := run.wait(); code != exitLost {
		t.Errorf("status %d", code)
	}
	checkSuccession(t, next, log)
}

// A signal to run reaches CMD; without a terminal also those that a terminal sends.
func TestRunPassesOtherSignalsOn(t *testing.T) {
	side := serveProgram(t)
	for _, sig := range []syscall.Signal{syscall.SIGALRM, syscall.SIGCONT, syscall.SIGWINCH} {
		run := launch(t, nil, "setsid", binary, "run", "--socket", side.socket, sig.String(), "--",
			"sh", "-c", fmt.Sprintf(`trap 'exit 40' %d; echo ready; while :; do sleep 0.02; done`, sig))
		eventually(t, "CMD listens", func() bool { return run.out.String() == "ready\n" })
		run.signal(sig)
		if code := run.wait(); code != 40 {
			t.Errorf("%s: status %d", sig, code)
		}
	}
	run := launch(t, nil, "setsid", binary, "run", "--socket", side.socket, "TSTP", "--", "sh", "-c", "echo $$; exec sleep 60")
	cmd := 0
	eventually(t, "CMD runs", func() bool { cmd, _ = strconv.Atoi(strings.TrimSpace(run.out.String())); return cmd != 0 })
	run.signal(syscall.SIGTSTP)
	eventually(t, "CMD is stopped", func() bool { return frozen(cmd) })
	run.signal(syscall.SIGCONT)
	eventually(t, "CMD goes on", func() bool { return !frozen(cmd) })
}

// SIGINT and SIGQUIT by kill, to run in front of a terminal, cannot be told from the keys,
// which CMD has seen itself. SIGTERM ends it.
func TestInterruptForRunAlone(t *testing.T) {
	side := serveProgram(t)
	s := launchOnTerminal(t, nil, binary, "run", "-v", "--socket", side.socket, "a", "--", "sh", "-c",
		`trap 'echo int' INT; trap 'echo quit' QUIT; trap 'echo term; exit 9' TERM; echo ready; while :; do sleep 0.01; done`)
	s.shows("ready")
	s.signal(syscall.SIGINT)
	s.signal(syscall.SIGQUIT)
	s.signal(syscall.SIGTERM) // has a larger number than the others, and is taken after them
	s.shows("term")
	if code := s.wait(); code != 9 {
		t.Errorf("status %d", code)
	}
	if seen := s.seen.String(); strings.Contains(seen, "int\r") || strings.Contains(seen, "quit\r") {
		t.Errorf("CMD got them:\n%s", seen)
	}
}

// Ctrl-\ reaches CMD as Ctrl-C does.
func TestTerminalQuit(t *testing.T) {
	side := serveProgram(t)
	s := launchOnTerminal(t, nil, binary, "run", "--socket", side.socket, "a", "--", "sh", "-c", `trap 'echo caught; exit 9' QUIT; echo ready; while :; do sleep 0.01; done`)
	s.shows("ready")
	s.write("\x1c")
	s.shows("caught")
	if code := s.wait(); code != 9 {
		t.Errorf("status %d", code)
	}
}

// While run waits, each signal that asks to end ends it; a second one also where the
// first is not heard. It is another signal: the kernel, and Go after it, keep one of each
// kind, so the same may be lost until the first has been taken.
func TestSignalsWhileWaiting(t *testing.T) {
	side := serveProgram(t)
	c := dial(t, side)
	hold(t, c, "taken")
	waiting := func() *program {
		run := launch(t, nil, binary, "run", "--socket", side.socket, "taken", "--", "true")
		eventually(t, "it waits", func() bool { _, n := status(t, c, "taken"); return n == 1 })
		return run
	}
	for _, sig := range []syscall.Signal{syscall.SIGINT, syscall.SIGHUP, syscall.SIGQUIT} {
		run := waiting()
		run.signal(sig)
		code := run.wait()
		if code != 128+int(sig) && (code != -1 || sig != syscall.SIGINT) { // it dies of SIGINT, for who started it
			t.Errorf("%s: status %d", sig, code)
		}
		eventually(t, "it waits no more", func() bool { _, n := status(t, c, "taken"); return n == 0 })
	}
	run := waiting()
	freeze(t, supervisorOf(t, run))
	run.signal(syscall.SIGTERM)
	run.signal(syscall.SIGHUP)
	if code := run.wait(); code != 128+int(syscall.SIGTERM) && code != 128+int(syscall.SIGHUP) { // that of the one that is taken last
		t.Errorf("status %d", code)
	}
	eventually(t, "it waits no more", func() bool { _, n := status(t, c, "taken"); return n == 0 })
}

// pending reports whether a process has signals that it was not told of.
func pending(pid int) bool {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	return err == nil && !bytes.Contains(text, []byte("ShdPnd:\t0000000000000000"))
}

// bg continues a job that Ctrl-Z has stopped; it has kept its lock.
func TestTerminalBackground(t *testing.T) {
	side := serveProgram(t)
	j := startJob(t, []string{"--socket", side.socket}, "", worker)
	j.write("\x1a")
	j.shows("Stopped")
	j.write("bg\n")
	j.works()
	if n, _ := status(t, dial(t, side), "a"); n != 1 {
		t.Error("the lock is not held")
	}
	kill(t, j.run, syscall.SIGKILL)
}

// The terminal goes away with its shell: CMD has SIGHUP, and does not end of it where
// that is ignored, as with nohup.
func TestTerminalHangsUp(t *testing.T) {
	side := serveProgram(t)
	c := dial(t, side)
	for _, ignores := range []string{"", "trap '' HUP; "} {
		dir := t.TempDir()
		s := launchOnTerminal(t, nil, "sh", "-c", ignores+`"$@"; :`, "sh", binary, "run", "--socket", side.socket, "a", "--",
			"sh", "-c", `echo $$ >"$1/pid"; while [ ! -e "$1/end" ]; do sleep 0.01; done; echo >"$1/ended"`, "sh", dir)
		cmd := pidIn(t, dir+"/pid")
		front := supervisorOf(t, s.program) // the only child of the shell
		s.signal(syscall.SIGKILL)
		s.wait()
		if ignores != "" {
			eventually(t, "they have the signal", func() bool { return !pending(front) && !pending(cmd) })
			touch(t, dir+"/end")
		}
		eventually(t, "CMD and run end", func() bool { return !alive(cmd) && !alive(front) })
		if _, err := os.Stat(dir + "/ended"); (err == nil) != (ignores != "") {
			t.Errorf("%q: CMD's own end: %v", ignores, err)
		}
		eventually(t, "the lock is free", func() bool { n, _ := status(t, c, "a"); return n == 0 })
	}
}

// All of them stand still for longer than the TTL, as when the machine is suspended, or
// a container is paused: the lock is lost, and CMD ends.
func TestEverythingStandsStill(t *testing.T) {
	t.Parallel()
	store := onShortLease(t)
	run, log := startWorker(t, append(store, "a")...)
	all := append(workerPIDs(log), supervisorOf(t, run), run.cmd.Process.Pid)
	for _, pid := range all {
		freeze(t, pid)
	}
	next := startSuccessor(t, append(store, "a")...)
	if code := next.wait(); code != 0 {
		t.Errorf("the next one's status is %d", code)
	}
	for i := range all {
		_ = syscall.Kill(all[len(all)-1-i], syscall.SIGCONT) // it may be killed already
	}
	if code := run.wait(); code != exitLost {
		t.Errorf("status %d", code)
	}
	for _, pid := range workerPIDs(log) {
		if alive(pid) {
			t.Errorf("process %d is alive", pid)
		}
	}
}

// What no process can help: with both gone CMD itself is killed by the kernel, and what
// it has started lives on; with both stopped all of it goes on.
func TestBothAreGone(t *testing.T) {
	for _, sig := range []syscall.Signal{syscall.SIGKILL, syscall.SIGSTOP} {
		t.Run(sig.String(), func(t *testing.T) {
			for end := time.Now().Add(patience); !bothAreGone(t, sig); {
				if time.Now().After(end) {
					t.Fatal("the machine is too busy to end two processes at the same time")
				}
			}
		})
	}
}

// together is how soon after one of them the other must be killed. The kernel continues each where the other one ends,
// stopped or not, and then it ends all of CMD, as it should.
const together = 200 * time.Microsecond

// bothAreGone is false where one of them has acted before it was killed.
func bothAreGone(t *testing.T, sig syscall.Signal) bool {
	side := serveProgram(t)
	run, log := startWorker(t, "--socket", side.socket, "a")
	cmd, child := workerPIDs(log)[0], workerPIDs(log)[1]
	t.Cleanup(func() { _, _ = syscall.Kill(cmd, syscall.SIGKILL), syscall.Kill(child, syscall.SIGKILL) })
	supervisor := supervisorOf(t, run)
	freeze(t, run.cmd.Process.Pid) // at the same time: neither can do anything
	freeze(t, supervisor)
	held := func() int { n, _ := status(t, dial(t, side), "a"); return n }
	mayAct := false
	if sig == syscall.SIGKILL {
		began := time.Now()
		kill(t, run.cmd.Process.Pid, sig)
		kill(t, supervisor, sig)
		mayAct = time.Since(began) > together
		eventually(t, "CMD is dead", func() bool { return !alive(cmd) })
		eventually(t, "the lock is free", func() bool { return held() == 0 })
	}
	now := time.Now().UnixNano()
	gone := false
	eventually(t, "what it has started goes on", func() bool {
		gone = mayAct && !alive(child)
		return gone || lastWork(t, log) > now
	})
	if sig == syscall.SIGSTOP && (!alive(cmd) || held() != 1) {
		t.Error("CMD is dead, or the lock is free")
	}
	return !gone
}

// With --store, kill -9 of the supervisor leaves the lease to its TTL; all of CMD is dead
// before.
func TestKilledSupervisorWithItsOwnSidecar(t *testing.T) {
	t.Parallel()
	store := onShortLease(t)
	run, log := startWorker(t, append(store, "a")...)
	next := startSuccessor(t, append(store, "a")...)
	kill(t, supervisorOf(t, run), syscall.SIGKILL)
	if code := run.wait(); code != exitLost {
		t.Errorf("status %d", code)
	}
	checkSuccession(t, next, log)
}
