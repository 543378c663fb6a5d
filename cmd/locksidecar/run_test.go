package main

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"github.com/locksidecar/locksidecar/client"
	"github.com/locksidecar/locksidecar/internal/testengine"
)

func TestRunExitStatus(t *testing.T) {
	side := serveProgram(t)
	noProgram := filepath.Join(t.TempDir(), "text")
	if err := os.WriteFile(noProgram, []byte("no program"), 0o600); err != nil {
		t.Fatal(err)
	}
	noLine := filepath.Join(t.TempDir(), "for-sh")
	if err := os.WriteFile(noLine, []byte("exit $1\n"), 0o700); err != nil {
		t.Fatal(err)
	}
	noFormat := filepath.Join(t.TempDir(), "broken")
	if err := os.WriteFile(noFormat, []byte("\x7fELF"), 0o700); err != nil {
		t.Fatal(err)
	}
	noInterpreter := filepath.Join(t.TempDir(), "script")
	if err := os.WriteFile(noInterpreter, []byte("#!/no/such/interpreter\n"), 0o700); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		name string
		args []string
		want int
		err  string // part of stderr, which must be one line; empty: nothing is there
	}{
		{"success", []string{"a", "--", "true"}, 0, ""},
		{"without dashes", []string{"a", "true"}, 0, ""},
		{"CMD's own status", []string{"a", "--", "sh", "-c", "exit 3"}, 3, ""},
		{"CMD's flags are its own", []string{"a", "--", "sh", "-c", `test "$1" = --wait`, "sh", "--wait"}, 0, ""},
		{"ended by a signal", []string{"a", "--", "sh", "-c", "kill -TERM $$"}, 128 + 15, ""},
		{"not there", []string{"a", "--", "no-such-program"}, 127, `there is no program "no-such-program"`},
		{"not there, with a path", []string{"a", "--", "/no/such/program"}, 127, "there is no program"},
		{"not executable", []string{"a", "--", noProgram}, 126, "cannot execute"},
		{"not a program", []string{"a", "--", noFormat}, 126, "cannot execute"},
		{"a script without its first line", []string{"a", "--", noLine, "8"}, 8, ""},
		{"without its interpreter", []string{"a", "--", noInterpreter}, 127, "cannot execute"},
		{"no CMD", []string{"a"}, 125, "something is missing: give RESOURCE -- CMD [ARG...]"},
		{"nothing to be locked", []string{"--", "sh", "-c", "exit 7"}, 125, "no RESOURCE stands before --, and there is no --handle (LOCKSIDECAR_HANDLE)"},
		{"an empty handle", []string{"--handle", "", "--", "sh", "-c", "exit 7"}, 125, "no RESOURCE stands before --, and there is no --handle"},
		{"a name like a flag", []string{"--", "-odd", "--", "true"}, 0, ""},
		{"nothing behind the dashes", []string{"a", "--"}, 125, "something is missing"},
		{"unknown flag", []string{"--max-holdd", "1s", "a", "true"}, 125, "did you mean --max-hold?"},
		{"bad duration", []string{"--wait", "soon", "a", "true"}, 125, `invalid argument "soon" for "--wait"`},
		{"negative wait", []string{"--wait=-1s", "a", "true"}, 125, "must not be negative"},
		{"too long a wait", []string{"--wait=25h", "a", "true"}, 125, "wait"},
		{"bad name", []string{"a\tb", "true"}, 125, "control character"},
		{"two sidecars", []string{"--store", "embedded:", "a", "true"}, 125, "--store and --socket are two ways"},
		{"a store's namespace without a store", []string{"--namespace", "n", "a", "true"}, 125, "--namespace means nothing without --store"},
		{"flags behind the resource", []string{"a", "--wait", "0s", "--", "true"}, 125, "--wait stands after RESOURCE: put flags before RESOURCE"},
		{"wait forever", []string{"--wait", "forever", "a", "true"}, 0, ""},
		{"a line", []string{"a", "-c", "exit 4 | exit 5"}, 5, ""},
		{"a line as a flag", []string{"-c", "exit 6", "a"}, 6, ""},
		{"several", []string{"b", "a", "c", "--", "sh", "-c", "exit 7"}, 7, ""},
		{"several, one twice", []string{"a", "b", "a", "--", "true"}, 125, `resource "a" is given twice`},
		{"several, one of a bad name", []string{"a", "b\tc", "--", "true"}, 125, "control character"},
		{"too many permits", []string{"--limit", "1025", "a", "true"}, 125, "--limit is 1025: must be 1 to 1024"},
		{"permits and shared", []string{"--limit", "4", "--shared", "a", "true"}, 125, "it is for one resource alone"},
		{"permits of several", []string{"--limit", "4", "a", "b", "--", "true"}, 125, "it is for one resource alone"},
		{"too many", append(strings.Fields("1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17"), "--", "true"), 125, "17 resources stand before --: at most 16"},
		{"CMD without dashes has some of its own", []string{"a", "sh", "-c", `test "$1" = --`, "sh", "--"}, 0, ""},
		{"a line and more", []string{"a", "-c", "exit", "4"}, 125, "put it in quotes"},
		{"a line and CMD", []string{"-c", "exit", "a", "true"}, 125, "give one of them"},
		{"unknown signal", []string{"--signal", "KILL", "a", "true"}, 125, "must be TERM"},
		{"status out of range", []string{"--conflict-exit-code", "256", "a", "true"}, 125, "must be 0 to 255"},
		{"a password", []string{"a", "redis://u:secret@h/1"}, 127, `there is no program "redis://xxxxx@h/1"`},
	} {
		t.Run(c.name, func(t *testing.T) {
			got := cli(t, append([]string{"run", "--socket", side.socket}, c.args...)...)
			if got.code != c.want {
				t.Errorf("exit status %d, want %d", got.code, c.want)
			}
			if !strings.Contains(got.err, c.err) || (c.err == "") != (got.err == "") || strings.Count(got.err, "\n") > 1 {
				t.Errorf("stderr %q, want one line with %q", got.err, c.err)
			}
			if got.out != "" {
				t.Errorf("stdout %q", got.out)
			}
		})
	}
}

func TestRunWhenTheLockIsNotGot(t *testing.T) {
	t.Parallel()
	side := serveProgram(t)
	l := hold(t, dial(t, side), "taken")
	for _, c := range []struct {
		name string
		args []string
		code int
		want string
	}{
		{"try once", []string{"--socket", side.socket, "--wait", "0s", "taken", "--", "true"}, exitNotGot, `the lock on "taken" is not free: held EXCLUSIVE by pid ` + strconv.Itoa(os.Getpid())},
		{"wait", []string{"--socket", side.socket, "--wait", "50ms", "taken", "--", "true"}, exitNotGot, `the wait for the lock on "taken" is over`},
		{"shared", []string{"--socket", side.socket, "--wait", "0s", "--shared", "taken", "--", "true"}, exitNotGot, "is not free"},
		{"with a status of its own", []string{"--socket", side.socket, "--wait", "0s", "--conflict-exit-code", "9", "taken", "--", "true"}, 9, "is not free"},
		{"no sidecar", []string{"--socket", side.socket + "x", "a", "--", "true"}, exitUnavailable, "start a sidecar with: locksidecar serve"},
		{"no store", []string{"--store", "redis://127.0.0.1:1", "--wait", "300ms", "a", "--", "true"}, exitUnavailable, "connection refused"},
	} {
		t.Run(c.name, func(t *testing.T) {
			got := cli(t, append([]string{"run", "--log-level", "off"}, c.args...)...)
			if got.code != c.code || !strings.Contains(got.err, c.want) || strings.Count(got.err, "\n") != 1 {
				t.Errorf("exit status %d, stderr %q; want %d and one line with %q", got.code, got.err, c.code, c.want)
			}
		})
	}
	if l.ValidFor() == 0 {
		t.Error("the holder has lost the lock")
	}
}

func TestRunEnvironment(t *testing.T) {
	side := serveProgram(t)
	got := cliEnv(t, []string{"LOCKSIDECAR_SOCKET=" + side.socket, "LOCKSIDECAR_FENCE=old", "KEEP=kept"},
		"run", "orders/42", "--", "sh", "-c",
		`echo "$LOCKSIDECAR_FENCE $LOCKSIDECAR_RESOURCE $LOCKSIDECAR_LOCK_ID $LOCKSIDECAR_SOCKET $KEEP"; env | grep -c LOCKSIDECAR_FENCE`)
	f := strings.Fields(got.out)
	if got.code != 0 || len(f) != 6 {
		t.Fatalf("status %d, stdout %q, stderr %q", got.code, got.out, got.err)
	}
	if fence, err := strconv.ParseInt(f[0], 10, 64); err != nil || fence <= 0 {
		t.Errorf("fence %q", f[0])
	}
	if f[1] != "orders/42" || len(f[2]) != 32 || f[3] != side.socket || f[4] != "kept" || f[5] != "1" {
		t.Errorf("environment %q", f)
	}
}

func TestRunEnvironmentOfSeveral(t *testing.T) {
	side := serveProgram(t)
	got := cliEnv(t, []string{"LOCKSIDECAR_SOCKET=" + side.socket}, "run", "b", "a c", "--", binary, "run", "x", "--", "sh", "-c",
		`echo "$LOCKSIDECAR_LOCK_IDS"`)
	if ids := strings.Split(strings.TrimSpace(got.out), ","); got.code != 0 || len(ids) != 3 {
		t.Errorf("status %d, stdout %q, stderr %q", got.code, got.out, got.err)
	}
	got = cliEnv(t, []string{"LOCKSIDECAR_SOCKET=" + side.socket}, "run", "b", "a c", "--", "sh", "-c", `echo "$LOCKSIDECAR_RESOURCE
$LOCKSIDECAR_FENCE"`)
	lines := strings.Split(got.out, "\n")
	if got.code != 0 || len(lines) != 5 || lines[0] != "a c" || lines[1] != "b" || lines[2] == "0" || lines[3] == "" {
		t.Errorf("status %d, stdout %q, stderr %q", got.code, got.out, got.err)
	}
	got = cliEnv(t, []string{"LOCKSIDECAR_SOCKET=" + side.socket}, "run", "b", "a", "--", binary, "run", "c", "a", "--", "true")
	if got.code != 125 || !strings.Contains(got.err, `holds the lock on "a" already`) {
		t.Errorf("inside itself: status %d, stderr %q", got.code, got.err)
	}
}

// Several are held together, on each store, and free together when their holder is killed:
// kill -9 of run, and of its sidecar.
func TestRunOfSeveral(t *testing.T) {
	onEach(t, func(t *testing.T, kind *testengine.Kind) {
		t.Parallel()
		store := onStore(t, kind, "--ttl", "6s")
		one, other := serveProgram(t, store...), serveProgram(t, store...)
		for _, victim := range []string{"run", "sidecar"} {
			run, _ := startWorker(t, "--socket", one.socket, "b", "a")
			for _, r := range []string{"a", "b"} {
				got := tries(t, "run", "--socket", other.socket, "--wait", "0s", "c", r, "--", "true")
				if got.code != exitNotGot || !strings.Contains(got.err, `the lock on "`+r+`" is not free`) {
					t.Errorf("try of c and %s: %+v", r, got)
				}
			}
			if got := tries(t, "run", "--socket", other.socket, "--wait", "0s", "c", "--", "true"); got.code != 0 {
				t.Errorf("c is not free: %+v", got)
			}
			next := launch(t, nil, binary, "run", "--socket", other.socket, "a", "b", "--", "true")
			eventually(t, "another waits", func() bool { _, n := status(t, dial(t, other), "a"); return n == 1 })
			if victim == "run" {
				run.signal(syscall.SIGKILL)
			} else {
				one.signal(syscall.SIGKILL)
			}
			if code := next.wait(); code != 0 {
				t.Errorf("after kill -9 of the %s: status %d, %s", victim, code, next.err.String())
			}
		}
	})
}

// A store is this process's own or unknown: it says so before it takes a lock.
func TestRunOnAStoreThatIsNone(t *testing.T) {
	for store, want := range map[string]string{
		"embedded:":  "exclude nobody",
		"consul://x": `scheme "consul" is not one of`,
	} {
		if got := cli(t, "run", "--store", store, "a", "--", "true"); got.code != exitOwnFailure || !strings.Contains(got.err, want) {
			t.Errorf("%s: %+v", store, got)
		}
	}
}

func TestGuardStatement(t *testing.T) {
	for want, g := range map[string]*client.Guard{
		"": nil,
		"SELECT 1 FROM `d`.`t` WHERE name = UNHEX('6f') AND id = 'it''s' FOR SHARE": {
			SQL: "SELECT 1 FROM `d`.`t` WHERE name = UNHEX(?) AND id = ? FOR SHARE", Args: []string{"6f", "it's"},
		},
		"SELECT 'none'": {SQL: "SELECT 'none'"},
	} {
		if got := guardStatement(g); got != want {
			t.Errorf("got %q, want %q", got, want)
		}
	}
}

func TestRunPassesStreamsThrough(t *testing.T) {
	side := serveProgram(t)
	script := launch(t, nil, "sh", "-c", fmt.Sprintf(`echo in | %s run --socket %s a -- sh -c 'cat; echo err >&2'`, binary, side.socket))
	if code := script.wait(); code != 0 || script.out.String() != "in\n" || script.err.String() != "err\n" {
		t.Errorf("status %d, stdout %q, stderr %q", code, script.out, script.err)
	}
}

func TestRunVerbose(t *testing.T) {
	side := serveProgram(t)
	got := cli(t, "run", "--socket", side.socket, "-v", "a", "--", "true")
	for _, want := range []string{`got the lock on "a"`, `released the lock on "a"`} {
		if !strings.Contains(got.err, want) {
			t.Errorf("stderr %q lacks %q", got.err, want)
		}
	}
}

func TestRunShared(t *testing.T) {
	side := serveProgram(t)
	c := dial(t, side)
	var readers []*program
	for range 2 {
		readers = append(readers, launch(t, nil, binary, "run", "--socket", side.socket, "--shared", "r", "--", "sleep", "60"))
	}
	eventually(t, "two readers hold it", func() bool { n, _ := status(t, c, "r"); return n == 2 })
	if got := cli(t, "run", "--socket", side.socket, "--wait", "0s", "r", "--", "true"); got.code != exitNotGot {
		t.Errorf("a writer beside readers: status %d", got.code)
	}
	for _, r := range readers {
		r.signal(syscall.SIGTERM)
		if code := r.wait(); code != 128+15 {
			t.Errorf("status %d", code)
		}
	}
}

// At most N run at a time on each store, with numbers of their own, and a permit is free when
// who has it is killed: kill -9 of run, and of its sidecar.
func TestRunLimit(t *testing.T) {
	onEach(t, func(t *testing.T, kind *testengine.Kind) {
		t.Parallel()
		store := onStore(t, kind, "--ttl", "6s")
		one, other := serveProgram(t, store...), serveProgram(t, store...)
		c := dial(t, other)
		work := func(side *sidecarProgram) *program {
			return launch(t, nil, binary, "run", "--socket", side.socket, "--limit", "2", "exports", "--", "sh", "-c", `echo "slot $LOCKSIDECAR_SLOT"; exec sleep 600`)
		}
		slot := func(p *program) string {
			eventually(t, "CMD runs", func() bool { return strings.Contains(p.out.String(), "\n") })
			return strings.TrimSpace(p.out.String())
		}
		kept := work(other)
		keptSlot := slot(kept)
		for _, victim := range []string{"run", "sidecar"} {
			killed := work(one)
			was := slot(killed)
			if was == keptSlot || was != "slot 0" && was != "slot 1" {
				t.Errorf("broken law: two have %q and %q", keptSlot, was)
			}
			for _, more := range [][]string{{"--limit", "2"}, {"--shared"}, nil} {
				got := tries(t, append(append([]string{"run", "--socket", other.socket, "--wait", "0s"}, more...), "exports", "--", "true")...)
				if got.code != exitNotGot || !strings.Contains(got.err, "held PERMIT by pid") {
					t.Errorf("%v beside 2 of 2: %+v", more, got)
				}
			}
			if got := cli(t, "run", "--socket", other.socket, "--limit", "3", "exports", "--", "true"); got.code != exitOwnFailure || !strings.Contains(got.err, "limit is 3") {
				t.Errorf("another limit: %+v", got)
			}
			if got := tries(t, "get", "--socket", other.socket, "exports"); !strings.Contains(got.out, "held PERMIT by 2 of 2") || !strings.Contains(got.out, "PERMIT 1 of 2") {
				t.Errorf("get: %+v", got)
			}
			next := work(other)
			eventually(t, "another waits", func() bool { _, n := status(t, c, "exports"); return n == 1 })
			if victim == "run" {
				killed.signal(syscall.SIGKILL)
			} else {
				one.signal(syscall.SIGKILL)
			}
			if got := slot(next); got != was {
				t.Errorf("after kill -9 of the %s: %q, want %q", victim, got, was)
			}
			next.signal(syscall.SIGTERM)
			next.wait()
		}
		kept.signal(syscall.SIGTERM)
		kept.wait()
	})
}

func TestRunPassesSignalsOn(t *testing.T) {
	side := serveProgram(t)
	for _, sig := range []syscall.Signal{syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP, syscall.SIGQUIT, syscall.SIGUSR1, syscall.SIGUSR2} {
		t.Run(sig.String(), func(t *testing.T) {
			run := launch(t, nil, binary, "run", "--socket", side.socket, "a", "--",
				"sh", "-c", fmt.Sprintf(`trap 'echo got; exit 40' %d; echo ready; while :; do sleep 0.02; done`, sig))
			eventually(t, "CMD listens", func() bool { return strings.Contains(run.out.String(), "ready") })
			run.signal(sig)
			if code := run.wait(); code != 40 || !strings.Contains(run.out.String(), "got") {
				t.Errorf("status %d, stdout %q", code, run.out)
			}
		})
	}
}

func TestRunSignalReachesTheWholeGroup(t *testing.T) {
	side := serveProgram(t)
	run := launch(t, nil, binary, "run", "--socket", side.socket, "a", "--", "sh", "-c", `sleep 60 & echo $!; wait`)
	eventually(t, "CMD has a child", func() bool { return strings.Contains(run.out.String(), "\n") })
	child, err := strconv.Atoi(strings.TrimSpace(run.out.String()))
	if err != nil {
		t.Fatal(err)
	}
	run.signal(syscall.SIGTERM)
	if code := run.wait(); code != 128+15 {
		t.Errorf("status %d", code)
	}
	eventually(t, "the child has ended", func() bool { return !alive(child) })
}

func TestRunSignalWhileWaiting(t *testing.T) {
	side := serveProgram(t)
	c := dial(t, side)
	hold(t, c, "taken")
	run := launch(t, nil, binary, "run", "--socket", side.socket, "taken", "--", "true")
	eventually(t, "it waits", func() bool { _, n := status(t, c, "taken"); return n == 1 })
	run.signal(syscall.SIGTERM)
	if code := run.wait(); code != 128+15 || strings.Count(run.err.String(), "\n") != 1 {
		t.Errorf("status %d, stderr %q", code, run.err)
	}
	eventually(t, "it waits no more", func() bool { _, n := status(t, c, "taken"); return n == 0 })
}

func TestRunReleasesWhenCMDEnds(t *testing.T) {
	side := serveProgram(t)
	end := filepath.Join(t.TempDir(), "end")
	first := launch(t, nil, binary, "run", "--socket", side.socket, "a", "--", "sh", "-c", `until [ -e "$1" ]; do sleep 0.01; done; exit 1`, "sh", end)
	c := dial(t, side)
	eventually(t, "it is held", func() bool { n, _ := status(t, c, "a"); return n == 1 })
	second := launch(t, nil, binary, "run", "--socket", side.socket, "--wait", "20s", "a", "--", "true")
	eventually(t, "the second waits", func() bool { _, n := status(t, c, "a"); return n == 1 })
	touch(t, end)
	if a, b := first.wait(), second.wait(); a != 1 || b != 0 {
		t.Errorf("statuses %d and %d", a, b)
	}
	if n, _ := status(t, c, "a"); n != 0 {
		t.Error("the lock is still held")
	}
}
