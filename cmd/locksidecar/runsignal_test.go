package main

import (
	"context"
	"crypto/rand"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/locksidecar/locksidecar/internal/testengine"
)

// Processes that die or kill wrongly, signals and terminals.

// launchUnread starts a program whose stderr nobody reads any more.
func launchUnread(t *testing.T, path string, args ...string) *program {
	t.Helper()
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	p := launchInto(t, w, path, args...)
	_, _ = w.Close(), r.Close()
	return p
}

// launchInto starts a program that writes into a pipe of the test's.
func launchInto(t *testing.T, w *os.File, path string, args ...string) *program {
	t.Helper()
	cmd := exec.CommandContext(context.Background(), path, args...)
	cmd.Env, cmd.Stdout, cmd.Stderr = cleanEnv(), w, w
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	p := &program{t: t, cmd: cmd, out: &buffer{}, err: &buffer{}, exited: make(chan struct{})}
	go func() {
		defer close(p.exited)
		_ = cmd.Wait() // the status is looked at below
		p.code = cmd.ProcessState.ExitCode()
	}()
	t.Cleanup(func() {
		p.signal(syscall.SIGKILL)
		<-p.exited
	})
	return p
}

// Hole 6: nobody reads what serve writes; it drains all the same.
func TestServeIntoABrokenPipe(t *testing.T) {
	socket := filepath.Join(socketDir(t), "s")
	p := launchUnread(t, binary, "serve", "--socket", socket)
	side := &sidecarProgram{program: p, socket: socket}
	eventually(t, "the sidecar serves", func() bool { _, err := os.Stat(socket); return err == nil })
	hold(t, dial(t, side), "a")
	p.signal(syscall.SIGTERM)
	eventually(t, "it drains", func() bool { i, err := dial(t, side).Info(t.Context()); return err == nil && i.GetDraining() })
	p.signal(syscall.SIGTERM)
	if code := p.wait(); code != 128+15 {
		t.Errorf("status %d: the second signal has not found a sidecar that drains", code)
	}
}

// Hole 6: nobody reads what run writes; CMD is asked to end and the status is right.
func TestRunIntoABrokenPipe(t *testing.T) {
	side := serveProgram(t)
	dir := t.TempDir()
	p := launchUnread(t, binary, "run", "--socket", side.socket, "a", "--",
		"sh", "-c", `exec 2>/dev/null; trap 'echo asked >"$1/asked"; exit' TERM; echo $$ >"$1/pid"; while :; do sleep 0.01; done`, "sh", dir)
	pidIn(t, dir+"/pid")
	if got := cli(t, "release", "--force", "a", "--grace", "10s", "--socket", side.socket); got.code != 0 {
		t.Fatalf("release: %+v", got)
	}
	if code := p.wait(); code != exitLost {
		t.Errorf("status %d", code)
	}
	if _, err := os.Stat(dir + "/asked"); err != nil {
		t.Errorf("CMD was not asked to end: %v", err)
	}
}

// A signal that comes when the exit status is decided does not change it, such as Ctrl-C that
// reaches run after CMD has ended for it. Here run is kept at that point: it cannot write.
func TestSignalAfterTheEnd(t *testing.T) {
	side := serveProgram(t)
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _, _ = r.Close(), w.Close() })
	_ = w.SetWriteDeadline(time.Now().Add(100 * time.Millisecond))
	for err == nil { // until it is full
		_, err = w.Write([]byte("x"))
	}
	file := filepath.Join(t.TempDir(), "pid")
	p := launchInto(t, w, binary, "run", "--socket", side.socket, "a", "--", "sh", "-c", `echo $$ >"$1"; exec sleep 600`, "sh", file)
	cmd := pidIn(t, file)
	kill(t, supervisorOf(t, p), syscall.SIGKILL)
	eventually(t, "CMD is dead", func() bool { return !alive(cmd) })
	for range 50 { // run is about to say so
		p.signal(syscall.SIGINT)
		time.Sleep(5 * time.Millisecond)
	}
	go func() { _, _ = io.Copy(io.Discard, r) }()
	if code := p.wait(); code != exitLost {
		t.Errorf("status %d", code)
	}
}

// Holes 7 and 8: CMD ends with 0 under a valid lock, and the sidecar freezes before the
// release: the status is CMD's, and what CMD has left behind lives on. That is so
// when the sidecar goes on and says that the lock is lost, too.
func TestSidecarFreezesAtTheRelease(t *testing.T) {
	for _, thaws := range []bool{false, true} {
		t.Run(fmt.Sprintf("thaws=%t", thaws), func(t *testing.T) {
			t.Parallel()
			store := onStore(t, testengine.Redis)
			side := serveProgram(t, append(store, "--ttl", "3s")...)
			dir := t.TempDir()
			run := launch(t, nil, binary, "run", "--socket", side.socket, "a", "--", "sh", "-c",
				`sleep 600 >/dev/null 2>&1 & echo $! >"$1/left"; kill -STOP "$2"
				until [ -z "$(grep -L '^State:.T' /proc/"$2"/task/*/status)" ]; do :; done; echo $$ >"$1/cmd"`,
				"sh", dir, strconv.Itoa(side.cmd.Process.Pid))
			left := pidIn(t, dir+"/left")
			t.Cleanup(func() { _ = syscall.Kill(left, syscall.SIGKILL) })
			if thaws {
				cmd := pidIn(t, dir+"/cmd")
				eventually(t, "CMD has ended", func() bool { return !alive(cmd) })
				eventually(t, "the lease is over", func() bool {
					return cli(t, append([]string{"get", "a"}, store...)...).out == "a is free\n"
				})
				side.signal(syscall.SIGCONT)
			}
			if code := run.wait(); code != 0 {
				t.Errorf("status %d", code)
			}
			if said := run.err.String(); !strings.Contains(said, "CMD has ended, with status 0; release") || strings.Contains(said, "context") {
				t.Errorf("stderr %q has no warning", run.err)
			}
			if !alive(left) {
				t.Error("what CMD has left behind was killed")
			}
		})
	}
}

// Hole 9: SIGTERM to all processes of run, as systemd sends it: a CMD that does not end
// is guarded as before.
func TestTermToAllProcesses(t *testing.T) {
	side := serveProgram(t)
	run, log := startWorker(t, "--socket", side.socket, "a")
	kill(t, supervisorOf(t, run), syscall.SIGTERM)
	run.signal(syscall.SIGTERM)
	eventually(t, "CMD has the signal", func() bool { _, err := os.Stat(log + ".term"); return err == nil })
	next := startSuccessor(t, "--socket", side.socket, "a")
	run.signal(syscall.SIGKILL)
	checkSuccession(t, next, log)
}

// Hole 10: SIGHUP drains, as SIGTERM does.
func TestServeDrainsOnHangup(t *testing.T) {
	side := serveProgram(t, "--drain", "100ms", "--lost-grace", "100ms")
	hold(t, dial(t, side), "a")
	side.signal(syscall.SIGHUP)
	if code := side.wait(); code != 0 || !strings.Contains(side.err.String(), "waiting for apps to finish") {
		t.Errorf("status %d, stderr %q", code, side.err)
	}
}

// onTerminal runs a script of bash in a session of its own.
func onTerminal(t *testing.T, side *sidecarProgram, script string) *screen {
	t.Helper()
	if _, err := exec.LookPath("bash"); err != nil {
		t.Skip("no bash here")
	}
	return launchOnTerminal(t, []string{"LOCKSIDECAR=" + binary, "LOCKSIDECAR_SOCKET=" + side.socket}, "bash", "-c", script)
}

// Hole 11: Ctrl-C ends a loop around run, in a script and at a prompt, while CMD runs
// and while run waits.
func TestCtrlCEndsTheLoop(t *testing.T) {
	for _, c := range []struct{ name, cmd, resource string }{
		{"CMD runs", "sleep 60", "a"},
		{"run waits", "true", "taken"},
	} {
		t.Run(c.name, func(t *testing.T) {
			side := serveProgram(t)
			hold(t, dial(t, side), "taken")
			loop := fmt.Sprintf(`for i in 1 2 3; do echo tu""rn $i; $LOCKSIDECAR run -v %s -- sh -c 'echo wor""ks; exec %s'; done; echo o""ver`, c.resource, c.cmd)
			busy := func() bool {
				h, w := status(t, dial(t, side), c.resource)
				return h+w > 0 && (c.resource == "a" || w > 0)
			}
			t.Run("script", func(t *testing.T) {
				s := onTerminal(t, side, loop)
				eventually(t, "run is there", busy)
				if c.resource == "a" {
					s.shows("works")
				}
				s.write("\x03")
				if code := s.wait(); code != -1 {
					t.Errorf("the script ended with status %d and not by a signal", code)
				}
				if seen := s.seen.String(); strings.Contains(seen, "turn 2") || strings.Contains(seen, "over") {
					t.Error("the script went on")
				}
			})
			t.Run("prompt", func(t *testing.T) {
				s := launchOnTerminal(t, []string{"LOCKSIDECAR=" + binary, "LOCKSIDECAR_SOCKET=" + side.socket}, "bash", "--norc", "--noprofile", "-i")
				s.write(loop + "\n")
				eventually(t, "run is there", busy)
				if c.resource == "a" {
					s.shows("works")
				}
				s.write("\x03")
				eventually(t, "run is gone", func() bool { return !busy() })
				s.write("echo the sh\"\"ell reads\n")
				s.shows("the shell reads")
				if seen := s.seen.String(); strings.Contains(seen, "turn 2") {
					t.Error("the loop went on")
				}
				s.write("exit\n")
				s.wait()
			})
		})
	}
}

// Hole 12: CMD ignores what was ignored when run was started, and nothing else, as
// if run were not there; and so do the front and the supervisor.
func TestRunPassesIgnoringOn(t *testing.T) {
	side := serveProgram(t)
	for _, signals := range []string{"", "HUP INT QUIT TSTP", "TERM PIPE USR1", "PIPE", "QUIT", "HUP INT QUIT USR1 USR2 PIPE ALRM TERM CONT TSTP TTIN TTOU XCPU XFSZ VTALRM WINCH IO 40 64"} {
		t.Run(signals, func(t *testing.T) {
			t.Parallel()
			trap := ""
			if signals != "" {
				trap = "trap '' " + signals + "; "
			}
			without := launch(t, nil, "sh", "-c", trap+`exec grep SigIgn: /proc/self/status`)
			with := launch(t, nil, "sh", "-c", fmt.Sprintf(trap+`exec %s run --socket %s %s -- sh -c '
				read -r _ _ _ front _ </proc/$PPID/stat
				for s in %s; do kill -$s $PPID; kill -$s $front; kill -$s $$; done
				exec grep SigIgn: /proc/self/status'`, binary, side.socket, rand.Text(), signals))
			if code := without.wait(); code != 0 {
				t.Fatalf("without run: status %d", code)
			}
			if code := with.wait(); code != 0 || with.out.String() != without.out.String() {
				t.Errorf("status %d, CMD's %q, want %q", code, with.out, without.out)
			}
		})
	}
}

// A sidecar that was started by something that ignores SIGTERM can be stopped all the
// same; SIGINT and SIGHUP are ignored as in the background of a script.
func TestServeStopsByTermHoweverItWasStarted(t *testing.T) {
	socket := filepath.Join(socketDir(t), "s")
	p := launch(t, nil, "sh", "-c", fmt.Sprintf(`trap '' TERM HUP INT; exec %s serve --socket %s`, binary, socket))
	eventually(t, "the sidecar serves", func() bool { return strings.Contains(p.out.String(), "curl ") })
	p.signal(syscall.SIGHUP)
	p.signal(syscall.SIGINT)
	p.signal(syscall.SIGTERM)
	if code := p.wait(); code != 0 || !strings.Contains(p.err.String(), "signal=terminated") {
		t.Errorf("status %d, stderr %q", code, p.err)
	}
}

// Hole 13: under xargs -P one CMD is stopped; the others go on, and it, too, when it is
// continued.
func TestOneStoppedOfMany(t *testing.T) {
	side := serveProgram(t)
	dir := t.TempDir()
	s := launchOnTerminal(t, []string{"LOCKSIDECAR=" + binary, "LOCKSIDECAR_SOCKET=" + side.socket}, "bash", "--norc", "--noprofile", "-i")
	s.write(fmt.Sprintf(`printf '1\n2\n' | xargs -P 2 -I{} $LOCKSIDECAR run r{} -- sh -c 'echo $$ >%s/pid{}; until [ -e %[1]s/go{} ]; do sleep 0.01; done; echo en""d{}'; echo o""ver`+"\n", dir))
	first := pidIn(t, dir+"/pid1")
	pidIn(t, dir+"/pid2")
	freeze(t, first)
	time.Sleep(50 * time.Millisecond) // in which others would stop with it
	touch(t, dir+"/go2")
	s.shows("end2")
	touch(t, dir+"/go1")
	kill(t, first, syscall.SIGCONT)
	s.shows("end1")
	s.shows("over")
	s.write("exit\n")
	s.wait()
}

func touch(t *testing.T, path string) {
	t.Helper()
	if err := os.WriteFile(path, nil, 0o600); err != nil {
		t.Fatal(err)
	}
}

// Hole 16: a sidecar that is frozen is given up soon, and signals are heard meanwhile.
func TestFrozenSidecarIsGivenUp(t *testing.T) {
	t.Parallel()
	side := serveProgram(t)
	freeze(t, side.cmd.Process.Pid)
	got := cli(t, "run", "--socket", side.socket, "--wait", "0s", "a", "--", "true")
	if got.code != exitUnavailable || !strings.Contains(got.err, "may be frozen") {
		t.Errorf("%+v", got)
	}
	run := launch(t, nil, binary, "run", "--socket", side.socket, "a", "--", "true")
	supervisor := supervisorOf(t, run)
	eventually(t, "it has asked the sidecar", func() bool { return sockets(supervisor) > 1 }) // the other is for run
	run.signal(syscall.SIGTERM)
	if code := run.wait(); code != 128+15 { // else it was given up before the signal was heard
		t.Errorf("status %d", code)
	}
}

// sockets is how many a process has.
func sockets(pid int) (n int) {
	fds, _ := filepath.Glob(fmt.Sprintf("/proc/%d/fd/*", pid)) // the pattern is right
	for _, fd := range fds {
		if to, _ := os.Readlink(fd); strings.HasPrefix(to, "socket:") { // it may be closed meanwhile
			n++
		}
	}
	return n
}

// Hole 15: a lock that is free is granted however short the wait is.
func TestShortWaitForAFreeLock(t *testing.T) {
	store := onStore(t, testengine.Redis)
	side := serveProgram(t, store...)
	for range 20 {
		if got := cli(t, "run", "--socket", side.socket, "--wait", "1us", "a", "--", "true"); got.code != 0 {
			t.Fatalf("%+v", got)
		}
	}
}

// Hole 17: kill -9 while run waits leaves no folder.
func TestKilledWhileWaitingLeavesNothing(t *testing.T) {
	store := onStore(t, testengine.Redis)
	holder, _ := startWorker(t, append(store, "a")...)
	tmp := socketDir(t)
	waiting := launch(t, []string{"TMPDIR=" + tmp}, binary, append(append([]string{"run"}, store...), "a", "--", "true")...)
	eventually(t, "it has its socket", func() bool { m, _ := filepath.Glob(tmp + "/*/socket"); return len(m) == 1 })
	waiting.signal(syscall.SIGKILL)
	eventually(t, "the folder is gone", func() bool { m, _ := filepath.Glob(tmp + "/*"); return len(m) == 0 })
	holder.signal(syscall.SIGKILL)
}

// Hole 17: as from cron with an empty environment.
func TestRunWithoutPATH(t *testing.T) {
	side := serveProgram(t)
	cmd := exec.CommandContext(t.Context(), binary, "run", "--socket", side.socket, "a", "--", "ls", "/")
	cmd.Env = []string{}
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Errorf("%v: %s", err, out)
	}
}

// Hole 17: the store's URL, which may have a password, is not CMD's business.
func TestStoreURLStaysHere(t *testing.T) {
	store := storeURL(testengine.Shared(t, testengine.Redis))
	got := cliEnv(t, []string{"LOCKSIDECAR_STORE=" + store, "LOCKSIDECAR_NAMESPACE=" + namespace(t)}, "run", "a", "--", "env")
	if got.code != 0 || strings.Contains(got.out, "LOCKSIDECAR_STORE") || !strings.Contains(got.out, "LOCKSIDECAR_FENCE") {
		t.Errorf("%+v", got)
	}
}

// A run inside a run on the same resource would wait for itself.
func TestNestedRun(t *testing.T) {
	side := serveProgram(t)
	nested := func(args ...string) result {
		t.Helper()
		return cliEnv(t, []string{"L=" + binary, "LOCKSIDECAR_SOCKET=" + side.socket}, append([]string{"run"}, args...)...)
	}
	got := nested("a", "-c", `$L run b -c '$L run a -- echo in'`)
	if got.code != exitOwnFailure || got.out != "" || !strings.Contains(got.err, "it would wait for itself") {
		t.Errorf("on the same resource: %+v", got)
	}
	if got := nested("a", "-c", `$L run --wait 0s a -- echo in`); got.code != exitNotGot || got.out != "" {
		t.Errorf("without waiting: %+v", got)
	}
	if got := nested("a", "-c", `$L run b -- echo in`); got.code != 0 || got.out != "in\n" {
		t.Errorf("on another: %+v", got)
	}
	if got := nested("--shared", "a", "-c", `$L run --shared a -- echo in`); got.code != 0 || got.out != "in\n" {
		t.Errorf("both shared: %+v", got)
	}
}

func TestSignalAndKillAfter(t *testing.T) {
	t.Parallel()
	side := serveProgram(t)
	run := launch(t, nil, binary, "run", "--socket", side.socket, "--signal", "int", "--kill-after", "1s", "a", "--",
		"sh", "-c", `trap 'echo asked' INT; trap '' TERM; echo ready; while :; do sleep 0.01; done`)
	eventually(t, "CMD listens", func() bool { return run.out.String() == "ready\n" })
	if got := cli(t, "release", "--force", "a", "--grace", "1m", "--socket", side.socket); got.code != 0 {
		t.Fatalf("release: %+v", got)
	}
	if code := run.wait(); code != exitLost {
		t.Errorf("status %d", code)
	}
	if !strings.Contains(run.err.String(), "CMD gets SIGINT, and SIGKILL in 1s") || run.out.String() != "ready\nasked\n" {
		t.Errorf("stdout %q, stderr %q", run.out, run.err)
	}
}
