package main

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/locksidecar/locksidecar/client"
	"github.com/locksidecar/locksidecar/internal/testengine"
)

// No CMD outlives its lock: whatever stops, kills or freezes what.

// shortTTL leaves a busy machine time for the heartbeats. What goes on for longer is
// brought about by longer.
const (
	shortTTL = 2 * time.Second
	longer   = 2 * shortTTL
)

// onShortLease are flags for a lease that ends soon, in a namespace of the test's own.
func onShortLease(t *testing.T) []string {
	return onStore(t, testengine.Redis, "--ttl", shortTTL.String())
}

// jobShell is an interactive shell that runs a worker as a job on a terminal.
type jobShell struct {
	*screen
	log string
	run int // pid
}

func startJob(t *testing.T, flags []string, before, script string) *jobShell {
	t.Helper()
	if _, err := exec.LookPath("bash"); err != nil {
		t.Skip("no bash here")
	}
	dir := t.TempDir()
	log := filepath.Join(dir, "log")
	file := filepath.Join(dir, "job")
	words := []string{binary, "run"}
	for _, f := range append(flags, "a", "--", "bash", "-c", script, "bash", log) {
		words = append(words, shellQuote(f))
	}
	if err := os.WriteFile(file, []byte("echo $$ >"+log+".run\nexec "+strings.Join(words, " ")+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	s := launchOnTerminal(t, nil, "bash", "--norc", "--noprofile", "-i")
	s.write(before + "sh " + file + "\n")
	eventually(t, "CMD works", func() bool { return len(workerPIDs(log)) == 2 })
	return &jobShell{screen: s, log: log, run: pidIn(t, log+".run")}
}

// works reports that the worker goes on.
func (j *jobShell) works() {
	j.t.Helper()
	now := time.Now().UnixNano()
	eventually(j.t, "CMD works", func() bool { return lastWork(j.t, j.log) > now })
}

func kill(t *testing.T, pid int, s syscall.Signal) {
	t.Helper()
	if err := syscall.Kill(pid, s); err != nil {
		t.Fatalf("send %s to %d: %v", s, pid, err)
	}
}

// Hole 1: CMD is stopped and continued from outside, longer than the TTL; or it stops
// while a child of it goes on.
func TestStoppedCMDKeepsItsLock(t *testing.T) {
	for _, outside := range []bool{true, false} {
		t.Run(fmt.Sprintf("outside=%t", outside), func(t *testing.T) {
			t.Parallel()
			store := onShortLease(t)
			j := startJob(t, store, "", worker)
			next := startSuccessor(t, append(store, "a")...)
			pids := workerPIDs(j.log)
			kill(t, pids[0], syscall.SIGSTOP) // its child goes on
			j.shows("Stopped")                // run has followed it
			time.Sleep(longer)
			if outside {
				kill(t, pids[0], syscall.SIGCONT)
			} else {
				j.write("fg\n")
			}
			j.works()
			select {
			case <-next.exited:
				t.Error("somebody else was let in")
			default:
			}
			kill(t, j.run, syscall.SIGKILL)
			checkSuccession(t, next, j.log)
		})
	}
}

// Hole 2: Ctrl-Z for longer than the TTL, and fg.
func TestCtrlZForLongerThanTheTTL(t *testing.T) {
	t.Parallel()
	store := onShortLease(t)
	j := startJob(t, store, "", worker)
	next := startSuccessor(t, append(store, "a")...)
	j.write("\x1a")
	j.shows("Stopped")
	time.Sleep(longer)
	j.write("fg\n")
	j.works()
	kill(t, j.run, syscall.SIGKILL)
	checkSuccession(t, next, j.log)
}

// daemonizer is a CMD whose child works in a session of its own.
const daemonizer = `
setsid bash -c 'trap "" TERM HUP; echo $$ $$ >"$1.pids"; ` + works + ` work "$1"' bash "$1" &
while :; do sleep 1; done
`

// Hole 3: run is stopped, and then killed; what CMD has put into another session
// keeps the lock, and ends with it.
func TestStoppedRunReachesOtherSessions(t *testing.T) {
	t.Parallel()
	store := onShortLease(t)
	log := filepath.Join(t.TempDir(), "log")
	run := launch(t, nil, binary, append(append([]string{"run"}, store...), "a", "--", "sh", "-c", daemonizer, "sh", log)...)
	eventually(t, "CMD works", func() bool { return len(workerPIDs(log)) == 2 })
	next := startSuccessor(t, append(store, "a")...)
	run.signal(syscall.SIGSTOP)
	time.Sleep(longer)
	run.signal(syscall.SIGKILL)
	checkSuccession(t, next, log)
}

// Hole 4: what may not be signalled is named, and run ends all the same.
func TestWhatCannotBeEnded(t *testing.T) {
	t.Parallel()
	if os.Getuid() != 0 {
		t.Skip("makes a program that runs as root for another user")
	}
	dir, err := os.MkdirTemp("", "ls")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	if err := os.Chmod(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	const nobody = 65534
	copyFile(t, binary, filepath.Join(dir, "locksidecar"), 0o755)
	setpriv, err := exec.LookPath("setpriv")
	if err != nil {
		t.Skip("no setpriv(1) here")
	}
	copyFile(t, setpriv, filepath.Join(dir, "become"), 0o4755)
	side := serveProgram(t, "--socket-mode", "0666", "--lost-grace", "1s")
	if err := os.Chmod(filepath.Dir(side.socket), 0o755); err != nil {
		t.Fatal(err)
	}
	run := launchAs(t, nobody, filepath.Join(dir, "locksidecar"), "run", "--socket", side.socket, "a", "--",
		"sh", "-c", filepath.Join(dir, "become")+" --reuid 0 sleep 600 >/dev/null 2>&1 & echo $!; wait")
	var pid int
	eventually(t, "the setuid program runs", func() bool {
		pid, _ = strconv.Atoi(strings.TrimSpace(run.out.String()))
		text, _ := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid)) // not there yet
		return strings.Contains(string(text), "(sleep)")
	})
	t.Cleanup(func() { _ = syscall.Kill(pid, syscall.SIGKILL) })
	next := startSuccessor(t, "--socket", side.socket, "a")
	c := dial(t, side)
	eventually(t, "the successor waits", func() bool { _, n := status(t, c, "a"); return n == 1 })
	forced := time.Now()
	if got := cli(t, "release", "--force", "a", "--grace", "3s", "--socket", side.socket); got.code != 0 {
		t.Fatalf("release: %+v", got)
	}
	next.wait()
	if kept := time.Since(forced); kept < 2500*time.Millisecond {
		t.Errorf("the lock was given away after %s, and the process is alive", kept)
	}
	if code := run.wait(); code != exitLost {
		t.Errorf("status %d", code)
	}
	if want := fmt.Sprintf("process %d (sleep): operation not permitted; it goes on without the lock", pid); !strings.Contains(run.err.String(), want) {
		t.Errorf("stderr %q lacks %q", run.err, want)
	}
}

func copyFile(t *testing.T, from, to string, mode os.FileMode) {
	t.Helper()
	text, err := os.ReadFile(from)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(to, text, 0o700); err != nil {
		t.Fatal(err)
	}
	if mode&0o4000 != 0 {
		mode = mode&0o777 | os.ModeSetuid
	}
	if err := os.Chmod(to, mode); err != nil {
		t.Fatal(err)
	}
}

// Hole 5: after kill -9 of run the lock is free when the last grandchild is dead, and
// not before. Many of them make the difference visible.
func TestKilledRunIsDeadBeforeTheNext(t *testing.T) {
	side := serveProgram(t)
	dir := t.TempDir()
	run := launch(t, nil, binary, "run", "--socket", side.socket, "a", "--", "sh", "-c",
		`for i in $(seq 100); do sleep 600 & setsid sleep 600 & done; ps -o pid= -s $$ >"$1"; echo done >>"$1"; wait`, "sh", dir+"/pids")
	eventually(t, "CMD has its children", func() bool {
		text, _ := os.ReadFile(dir + "/pids")
		return strings.HasSuffix(string(text), "done\n")
	})
	supervisor := supervisorOf(t, run)
	pids := processesBelow(t, supervisor)
	if len(pids) < 200 {
		t.Fatalf("%d processes", len(pids))
	}
	s, err := dial(t, side).OpenSession(t.Context(), client.SessionOptions{})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	granted := make(chan int, 1)
	go func() {
		_, err := s.Acquire(t.Context(), "a", client.AcquireOptions{})
		left := 0
		for _, pid := range pids {
			if alive(pid) {
				left++
			}
		}
		if err != nil {
			t.Error(err)
		}
		granted <- left
	}()
	c := dial(t, side)
	eventually(t, "somebody waits", func() bool { _, n := status(t, c, "a"); return n == 1 })
	run.signal(syscall.SIGKILL)
	select {
	case left := <-granted:
		if left > 0 {
			t.Errorf("%d processes of CMD were alive when the next one got the lock", left)
		}
	case <-time.After(patience):
		t.Fatal("the lock was not freed")
	}
}

// processesBelow are all descendants of a process.
func processesBelow(t *testing.T, root int) []int {
	t.Helper()
	stats, err := filepath.Glob("/proc/[0-9]*/stat")
	if err != nil {
		t.Fatal(err)
	}
	children := map[string][]string{}
	for _, name := range stats {
		text, _ := os.ReadFile(name) // it may have ended
		_, rest, _ := strings.Cut(string(text), ") ")
		if f := strings.Fields(rest); len(f) > 1 {
			children[f[1]] = append(children[f[1]], strings.Split(name, "/")[2])
		}
	}
	var found []int
	for next := []string{strconv.Itoa(root)}; len(next) > 0; next = next[1:] {
		for _, c := range children[next[0]] {
			pid, _ := strconv.Atoi(c) // digits, by the pattern
			found = append(found, pid)
			next = append(next, c)
		}
	}
	return found
}

// In a PID namespace that has not its own /proc, the pids there are others'.
func TestForeignProc(t *testing.T) {
	if err := exec.CommandContext(t.Context(), "unshare", "-pf", "true").Run(); err != nil {
		t.Skipf("no PID namespaces here: %v", err)
	}
	side := serveProgram(t)
	dir := t.TempDir()
	run := launch(t, nil, "unshare", "-pf", binary, "run", "--socket", side.socket, "a", "--",
		"sh", "-c", `sleep 600 & echo up >"$1/pid"; exec sleep 600`, "sh", dir)
	eventually(t, "CMD works", func() bool { _, err := os.Stat(dir + "/pid"); return err == nil })
	if got := cli(t, "release", "--force", "a", "--grace", "1m", "--socket", side.socket); got.code != 0 {
		t.Fatalf("release: %+v", got)
	}
	began := time.Now()
	if code := run.wait(); code != exitLost || strings.Contains(run.err.String(), "goes on") {
		t.Errorf("status %d, stderr %q", code, run.err)
	}
	if took := time.Since(began); took > 50*time.Second {
		t.Errorf("ended after %s", took)
	}
}

// As process 1 of a container, run also reaps what is not below its supervisor.
func TestProcessOneReapsEverything(t *testing.T) {
	if err := exec.CommandContext(t.Context(), "unshare", "-pf", "true").Run(); err != nil {
		t.Skipf("no PID namespaces here: %v", err)
	}
	side := serveProgram(t)
	works := filepath.Join(t.TempDir(), "works")
	box := launch(t, nil, "unshare", "-pf", "--kill-child", "sh", "-c",
		`sleep 0.5 & exec "$0" run --socket "$1" a -- sh -c 'touch "$1"; exec sleep 60' sh "$2"`, binary, side.socket, works)
	eventually(t, "CMD works", func() bool { _, err := os.Stat(works); return err == nil })
	front := supervisorOf(t, box) // the only child of unshare
	eventually(t, "the supervisor and CMD are all there is", func() bool { return len(processesBelow(t, front)) == 2 })
	box.signal(syscall.SIGKILL)
}

// What somebody else has started for CMD, such as at(1), carries the ids of its holds,
// and ends with the hold.
func TestLossReachesWhatCarriesTheHold(t *testing.T) {
	side := serveProgram(t)
	dir := t.TempDir()
	run := launch(t, nil, binary, "run", "--socket", side.socket, "a", "--", "sh", "-c",
		`echo "$LOCKSIDECAR_LOCK_IDS" >"$1.tmp"; mv "$1.tmp" "$1"; exec sleep 600`, "sh", dir+"/ids")
	var ids []byte
	eventually(t, "CMD runs", func() bool { ids, _ = os.ReadFile(dir + "/ids"); return len(ids) > 0 })
	carrier := launch(t, []string{"LOCKSIDECAR_LOCK_IDS=x," + strings.TrimSpace(string(ids))}, "sleep", "600")
	other := launch(t, []string{"LOCKSIDECAR_LOCK_IDS=x"}, "sleep", "600")
	if got := cli(t, "release", "--force", "a", "--socket", side.socket); got.code != 0 {
		t.Fatalf("release: %+v", got)
	}
	if code := run.wait(); code != exitLost {
		t.Errorf("status %d", code)
	}
	if code := carrier.wait(); code != -1 {
		t.Errorf("status %d of what carries the hold", code)
	}
	if !alive(other.cmd.Process.Pid) {
		t.Error("a stranger was ended")
	}
}
