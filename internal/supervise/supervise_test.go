package supervise

import (
	"bytes"
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

	"go.uber.org/goleak"
)

// parentEnv makes the test binary a process with a watchdog, which sleeps.
const parentEnv = "SUPERVISE_TEST_PARENT"

func TestMain(m *testing.M) {
	if RunWatchdog() {
		return
	}
	if dir := os.Getenv(parentEnv); dir != "" {
		beParent(dir)
		return
	}
	if err := AdoptOrphans(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	goleak.VerifyTestMain(m)
}

const patience = 20 * time.Second

func eventually(t *testing.T, what string, ok func() bool) {
	t.Helper()
	for end := time.Now().Add(patience); !ok(); time.Sleep(2 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("in vain: %s", what)
		}
	}
}

// alive reports whether a process is there and has not ended.
func alive(pid int) bool {
	state, _, _, ok := readStat(pid)
	return ok && state != 'Z' && state != 'X'
}

// shell starts a script, which may write to the file $OUT.
func shell(t *testing.T, script string) (p *Process, out func() string) {
	t.Helper()
	file := filepath.Join(t.TempDir(), "out")
	p, err := Start("/bin/sh", []string{"sh", "-c", script}, append(os.Environ(), "OUT="+file))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { p.End(0) })
	return p, func() string {
		b, _ := os.ReadFile(file) // not there yet
		return string(bytes.TrimSpace(b))
	}
}

func exited(t *testing.T, p *Process) int {
	t.Helper()
	select {
	case <-p.Exited():
	case <-time.After(patience):
		t.Fatal("the program has not ended")
	}
	return p.ExitStatus()
}

func TestExitStatus(t *testing.T) {
	p, _ := shell(t, "exit 7")
	if got := exited(t, p); got != 7 {
		t.Errorf("status %d", got)
	}
	p, _ = shell(t, "kill -USR1 $$")
	if got := exited(t, p); got != Signalled+int(syscall.SIGUSR1) {
		t.Errorf("status %d", got)
	}
	if _, err := Start("/no/such/program", []string{"x"}, nil); err == nil {
		t.Error("started what is not there")
	}
}

func TestSignalReachesTheGroup(t *testing.T) {
	p, out := shell(t, `sh -c 'trap "echo got >$OUT; exit" USR1; echo ready >$OUT; while :; do sleep 0.01; done'; exit 3`)
	eventually(t, "the grandchild listens", func() bool { return out() == "ready" })
	p.Signal(syscall.SIGSTOP)
	select {
	case s := <-p.Stopped():
		if s != syscall.SIGSTOP {
			t.Errorf("stopped by %s", s)
		}
	case <-time.After(patience):
		t.Fatal("the stop was not told")
	}
	p.Signal(syscall.SIGUSR1)
	p.Signal(syscall.SIGCONT)
	exited(t, p)
	eventually(t, "the grandchild has the signal", func() bool { return out() == "got" })
}

// What the program started ends with it, also in a session of its own, and also
// when it does not listen to SIGTERM.
func TestEndReachesEverything(t *testing.T) {
	p, out := shell(t, `setsid sh -c 'trap "" TERM; echo $$ >$OUT; while :; do sleep 0.01; done' & wait`)
	eventually(t, "the grandchild is there", func() bool { return out() != "" })
	deaf, err := strconv.Atoi(out())
	if err != nil {
		t.Fatal(err)
	}
	p.End(50 * time.Millisecond)
	if alive(p.PID()) || alive(deaf) {
		t.Error("something is left")
	}
}

// beParent starts a group and has it watched.
func beParent(dir string) {
	w, err := StartWatchdog(dir)
	if err == nil {
		var p *Process
		if p, err = Start("/bin/sh", []string{"sh", "-c", "sleep 600 & wait"}, os.Environ(), w.PID()); err == nil {
			w.Watch(p.PID())
			fmt.Println(p.PID())
			var line string
			for {
				if _, err := fmt.Scanln(&line); err != nil {
					select {} // until it is killed
				}
				if line == "done" {
					w.Done()
					p.End(0)
					return
				}
				d, _ := time.ParseDuration(line) // the tests write them well
				w.ValidFor(d)
				fmt.Println("told")
			}
		}
	}
	fmt.Fprintln(os.Stderr, err)
	os.Exit(1)
}

// parent is a process that has a group of its own watched.
type parent struct {
	cmd   *exec.Cmd
	in    io.Writer
	out   io.Reader
	dir   string // to be removed
	group int
}

func startParent(t *testing.T) *parent {
	t.Helper()
	p := &parent{cmd: exec.CommandContext(t.Context(), "/proc/self/exe"), dir: filepath.Join(t.TempDir(), "d")}
	if err := os.Mkdir(p.dir, 0o700); err != nil {
		t.Fatal(err)
	}
	p.cmd.Env = append(os.Environ(), parentEnv+"="+p.dir)
	p.cmd.Stderr = os.Stderr
	var err error
	if p.in, err = p.cmd.StdinPipe(); err != nil {
		t.Fatal(err)
	}
	if p.out, err = p.cmd.StdoutPipe(); err != nil {
		t.Fatal(err)
	}
	if err := p.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = p.cmd.Process.Kill()
		_ = p.cmd.Wait()
	})
	if _, err := fmt.Fscanln(p.out, &p.group); err != nil {
		t.Fatal(err)
	}
	return p
}

func (p *parent) tell(t *testing.T, line string) {
	t.Helper()
	if _, err := fmt.Fprintln(p.in, line); err != nil {
		t.Fatal(err)
	}
	var told string
	if _, err := fmt.Fscanln(p.out, &told); err != nil {
		t.Fatal(err)
	}
}

func (p *parent) signal(t *testing.T, s syscall.Signal) {
	t.Helper()
	if err := p.cmd.Process.Signal(s); err != nil {
		t.Fatal(err)
	}
}

// groupAlive reports whether anything of a process group is left.
func groupAlive(group int) bool {
	names, err := filepath.Glob("/proc/[0-9]*")
	if err != nil {
		return true
	}
	for _, name := range names {
		pid, _ := strconv.Atoi(strings.TrimPrefix(name, "/proc/")) // digits, by the pattern
		if state, _, g, ok := readStat(pid); ok && g == group && state != 'Z' && state != 'X' {
			return true
		}
	}
	return false
}

func TestWatchdogKillsWhenTheParentIsKilled(t *testing.T) {
	p := startParent(t)
	p.signal(t, syscall.SIGKILL)
	eventually(t, "the group is dead", func() bool { return !groupAlive(p.group) })
	eventually(t, "the directory is gone", func() bool { _, err := os.Stat(p.dir); return os.IsNotExist(err) })
}

func TestWatchdogKillsWhenTheTimeIsOver(t *testing.T) {
	p := startParent(t)
	p.tell(t, "1h")
	p.tell(t, "50ms")
	p.signal(t, syscall.SIGSTOP)
	eventually(t, "the group is dead", func() bool { return !groupAlive(p.group) })
	if _, err := os.Stat(p.dir); err != nil {
		t.Error(err) // the parent lives and may need it
	}
}

func TestWatchdogDone(t *testing.T) {
	p := startParent(t)
	if _, err := fmt.Fprintln(p.in, "done"); err != nil {
		t.Fatal(err)
	}
	if err := p.cmd.Wait(); err != nil {
		t.Error(err)
	}
	if _, err := os.Stat(p.dir); err != nil {
		t.Errorf("the watchdog has removed what is not its own any more: %v", err)
	}
}
