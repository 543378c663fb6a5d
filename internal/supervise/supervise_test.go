package supervise

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"go.uber.org/goleak"
	"golang.org/x/sys/unix"

	"github.com/locksidecar/locksidecar/lock"
)

const (
	// frontEnv makes the test binary a front, which prints what its supervisor tells.
	frontEnv = "SUPERVISE_TEST_FRONT"
	// saidEnv is a file that the supervisor makes when it has only the end left to tell.
	saidEnv = "SUPERVISE_TEST_SAID"
	// lateEnv is a file that the supervisor waits for before it tells that the program runs.
	lateEnv = "SUPERVISE_TEST_LATE"
)

func TestMain(m *testing.M) {
	front, args, err := Supervised(os.Args)
	switch {
	case err != nil:
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	case front != nil:
		beSupervisor(front, args)
		return
	case os.Getenv(senderEnv) != "":
		beSender()
		return
	case os.Getenv(frontEnv) != "":
		beFront(os.Getenv(frontEnv))
		return
	}
	if err := AdoptOrphans(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	goleak.VerifyTestMain(m)
}

const patience = time.Minute

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
	s, ok := readStat(pid)
	return ok && !s.ended()
}

// shell starts a script, which may write to the file $OUT.
func shell(t *testing.T, group int, script string) (p *Process, out func() string) {
	t.Helper()
	file := filepath.Join(t.TempDir(), "out")
	p, err := Start(Program{Path: "/bin/sh", Argv: []string{"sh", "-c", script}, Env: append(os.Environ(), "OUT="+file), Group: group})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { p.End(Ending{GiveUp: lock.BootTime() + patience}) })
	return p, func() string {
		b, _ := os.ReadFile(file) // not there yet
		return string(bytes.TrimSpace(b))
	}
}

// exists waits for what a script makes when its traps are set.
func exists(t *testing.T, path string) {
	t.Helper()
	eventually(t, path+" is there", func() bool { _, err := os.Stat(path); return err == nil })
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
	p, _ := shell(t, 0, "exit 7")
	if got := exited(t, p); got != 7 || p.EndedBy() != 0 {
		t.Errorf("status %d, ended by %s", got, p.EndedBy())
	}
	p, _ = shell(t, 0, "kill -USR1 $$")
	if got := exited(t, p); got != Signalled+int(syscall.SIGUSR1) || p.EndedBy() != syscall.SIGUSR1 {
		t.Errorf("status %d, ended by %s", got, p.EndedBy())
	}
	if _, err := Start(Program{Path: "/no/such/program", Argv: []string{"x"}}); err == nil {
		t.Error("started what is not there")
	}
}

// A signal reaches what the program started, be the group its own or that of a job.
func TestSignalReachesTheGroup(t *testing.T) {
	for name, group := range map[string]int{"own": 0, "job": unix.Getpgrp()} {
		t.Run(name, func(t *testing.T) {
			p, out := shell(t, group, `sh -c 'trap "echo got >$OUT; exit" USR1; echo ready >$OUT; while :; do sleep 0.01; done'; exit 3`)
			eventually(t, "the grandchild listens", func() bool { return out() == "ready" })
			p.Signal(syscall.SIGSTOP)
			select {
			case s := <-p.Changed():
				if !s.Stopped {
					t.Error("a stop was told as a continuation")
				}
			case <-time.After(patience):
				t.Fatal("the stop was not told")
			}
			p.Signal(syscall.SIGUSR1)
			p.Signal(syscall.SIGCONT)
			exited(t, p)
			eventually(t, "the grandchild has the signal", func() bool { return out() == "got" })
		})
	}
}

// When the program has been reaped, its pid may be another's: nothing is sent there.
func TestNoSignalAfterTheEnd(t *testing.T) {
	p, out := shell(t, 0, `sh -c 'trap "echo got >>$OUT" USR1; trap "echo end >>$OUT" USR2; echo $$ >$OUT; while :; do sleep 0.01; done' & until [ -s $OUT ]; do sleep 0.01; done`)
	exited(t, p)
	left, err := strconv.Atoi(out())
	if err != nil {
		t.Fatal(err)
	}
	p.Signal(syscall.SIGUSR1) // to the group, which the child is still in
	if err := syscall.Kill(left, syscall.SIGUSR2); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the child has a later signal", func() bool { return strings.HasSuffix(out(), "end") })
	if strings.Contains(out(), "got") {
		t.Error("a signal was sent for a program that has ended")
	}
}

// What the program started ends with it, also in a session of its own, and also
// when it does not listen to the first signal.
func TestEndReachesEverything(t *testing.T) {
	p, out := shell(t, 0, `setsid sh -c 'trap "" TERM; echo $$ >$OUT; while :; do sleep 0.01; done' & wait`)
	eventually(t, "the grandchild is there", func() bool { return out() != "" })
	deaf, err := strconv.Atoi(out())
	if err != nil {
		t.Fatal(err)
	}
	now := lock.BootTime()
	if left := p.End(Ending{Signal: syscall.SIGTERM, Kill: now + 50*time.Millisecond, GiveUp: now + patience}); left != nil {
		t.Errorf("left: %v", left)
	}
	if alive(p.PID()) || alive(deaf) {
		t.Error("something is left")
	}
}

func TestEndIsFastWhenTheProgramListens(t *testing.T) {
	p, _ := shell(t, 0, `sleep 600 & wait`)
	now := lock.BootTime()
	p.End(Ending{Signal: syscall.SIGTERM, Kill: now + time.Hour, GiveUp: now + time.Hour})
	if alive(p.PID()) {
		t.Error("it is alive")
	}
}

func TestEndInAHurry(t *testing.T) {
	p, out := shell(t, 0, `trap "" TERM; echo ready >$OUT; while :; do sleep 0.01; done`)
	eventually(t, "the program is deaf", func() bool { return out() != "" })
	hurry := make(chan struct{})
	time.AfterFunc(20*time.Millisecond, func() { close(hurry) })
	now := lock.BootTime()
	p.End(Ending{Signal: syscall.SIGTERM, Kill: now + time.Hour, GiveUp: now + time.Hour, Hurry: hurry})
	if alive(p.PID()) {
		t.Error("it is alive")
	}
}

// beFront starts a supervisor and prints what it tells.
func beFront(what string) {
	if err := AdoptOrphans(); err != nil {
		fmt.Println(err)
		return
	}
	g, err := StartSupervisor([]string{what})
	if err != nil {
		fmt.Println(err)
		return
	}
	signals := make(chan os.Signal, 1)
	signal.Notify(signals, syscall.SIGUSR1, syscall.SIGUSR2)
	for {
		select {
		case m, ok := <-g.Messages():
			if !ok {
				fmt.Println("left", KillAll(lock.BootTime()+patience))
				return
			}
			if m.Kind != KindSay {
				fmt.Println(m.Kind, m.Number, m.Text)
			}
		case s := <-signals:
			if s == syscall.SIGUSR2 {
				fmt.Println("runs", g.Runs())
				g.Ask()
			} else {
				g.Signal(syscall.SIGUSR1)
			}
		}
	}
}

// beSupervisor is the supervisor of beFront.
func beSupervisor(f *Front, args []string) {
	if err := AdoptOrphans(); err != nil {
		f.Ended(99)
		return
	}
	f.Until(12345)
	p, err := Start(Program{Path: "/bin/sh", Argv: []string{"sh", "-c", args[0]}, Env: os.Environ()})
	if err != nil {
		f.Ended(98)
		return
	}
	for late := os.Getenv(lateEnv); late != ""; time.Sleep(time.Millisecond) {
		if _, err := os.Stat(late); err == nil {
			break
		}
	}
	f.Started(p.PID())
	for {
		select {
		case s := <-f.Signals():
			p.Signal(s)
		case <-f.Gone():
			p.End(Ending{GiveUp: lock.BootTime() + patience})
			return
		case s := <-p.Changed():
			f.Changed(s)
		case <-p.Exited():
			for range 30 { // more than fits between two processes
				if _, err := fmt.Fprintln(f, strings.Repeat("x", 20000)); err != nil {
					return
				}
			}
			if said := os.Getenv(saidEnv); said != "" {
				_ = os.WriteFile(said, nil, 0o600) // else the test waits in vain
			}
			f.EndedBy(p.EndedBy())
			f.Ended(p.ExitStatus())
			return
		}
	}
}

// pair is a front and its supervisor.
type pair struct {
	cmd *exec.Cmd
	out *bufferOfLines
	pid int // of the program
}

// bufferOfLines is what the front has printed.
type bufferOfLines struct{ path string }

func (b *bufferOfLines) lines() []string {
	text, _ := os.ReadFile(b.path) // not there: no lines
	return strings.Split(strings.TrimRight(string(text), "\n"), "\n")
}

func startPair(t *testing.T, script string, env ...string) *pair {
	t.Helper()
	p := launchPair(t, script, env...)
	p.started(t)
	return p
}

// launchPair does not wait until the program runs.
func launchPair(t *testing.T, script string, env ...string) *pair {
	t.Helper()
	p := &pair{cmd: exec.CommandContext(t.Context(), "/proc/self/exe"), out: &bufferOfLines{filepath.Join(t.TempDir(), "out")}}
	out, err := os.Create(p.out.path)
	if err != nil {
		t.Fatal(err)
	}
	defer out.Close()
	p.cmd.Env, p.cmd.Stdout, p.cmd.Stderr = append(append(os.Environ(), env...), frontEnv+"="+script), out, os.Stderr
	if err := p.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = p.cmd.Process.Kill()
		_ = p.cmd.Wait()
	})
	return p
}

func (p *pair) started(t *testing.T) {
	t.Helper()
	eventually(t, "the program is started", func() bool {
		for _, line := range p.out.lines() {
			if _, err := fmt.Sscanf(line, KindStarted+" %d", &p.pid); err == nil {
				return true
			}
		}
		return false
	})
}

func (p *pair) signal(t *testing.T, s syscall.Signal) {
	t.Helper()
	if err := p.cmd.Process.Signal(s); err != nil {
		t.Fatal(err)
	}
}

func (p *pair) tells(t *testing.T, line string) {
	t.Helper()
	eventually(t, "the supervisor tells "+line, func() bool { return slices.Contains(p.out.lines(), line) })
}

func (p *pair) supervisor(t *testing.T) int {
	t.Helper()
	s, ok := readStat(p.pid)
	if !ok {
		t.Fatal("the program is gone")
	}
	return s.parent
}

func TestSupervisorTells(t *testing.T) {
	ready := filepath.Join(t.TempDir(), "ready")
	p := startPair(t, `trap 'exit 5' USR1; echo >'`+ready+`'; while :; do sleep 0.01; done`)
	exists(t, ready)
	p.signal(t, syscall.SIGUSR2)
	p.tells(t, KindUntil+" 12345 ")
	if err := syscall.Kill(p.pid, syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	p.tells(t, KindStopped+" 0 ")
	_ = syscall.Kill(p.pid, syscall.SIGCONT)
	p.signal(t, syscall.SIGUSR1)
	p.tells(t, KindEnded+" 5 0")
}

// The front knows that the program runs also before the supervisor has told.
func TestSupervisorRuns(t *testing.T) {
	dir := t.TempDir()
	ready, told := filepath.Join(dir, "ready"), filepath.Join(dir, "told")
	p := launchPair(t, `echo >'`+ready+`'; exec sleep 60`, lateEnv+"="+told)
	exists(t, ready)
	p.signal(t, syscall.SIGUSR2)
	p.tells(t, "runs true")
	if err := os.WriteFile(told, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	p.started(t)
	_ = syscall.Kill(p.pid, syscall.SIGKILL)
	p.tells(t, fmt.Sprintf("%s %d %d", KindEnded, Signalled+int(syscall.SIGKILL), syscall.SIGKILL))
}

// The end is told also to a front that was stopped while more was said than fits.
func TestTheEndIsAlwaysTold(t *testing.T) {
	dir := t.TempDir()
	end, said := filepath.Join(dir, "end"), filepath.Join(dir, "said")
	p := startPair(t, `until [ -e '`+end+`' ]; do sleep 0.01; done; kill -USR2 $$`, saidEnv+"="+said)
	supervisor := p.supervisor(t)
	p.signal(t, syscall.SIGSTOP)
	if err := os.WriteFile(end, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	exists(t, said)
	time.Sleep(50 * time.Millisecond) // in which it would end
	if !alive(supervisor) {
		t.Error("the supervisor has ended before it could tell")
	}
	p.signal(t, syscall.SIGCONT)
	p.tells(t, fmt.Sprintf("%s %d %d", KindEnded, Signalled+int(syscall.SIGUSR2), syscall.SIGUSR2))
}

// Kill -9 of either process: the other ends the program, wherever it has hidden.
func TestOneIsKilled(t *testing.T) {
	for _, name := range []string{"front", "supervisor"} {
		t.Run(name, func(t *testing.T) {
			file := filepath.Join(t.TempDir(), "pid")
			p := startPair(t, `setsid sh -c 'trap "" TERM HUP; echo $$ >`+file+`; while :; do sleep 0.01; done' & wait`)
			var hidden int
			eventually(t, "the program has a daemon", func() bool {
				text, _ := os.ReadFile(file)
				hidden, _ = strconv.Atoi(strings.TrimSpace(string(text)))
				return hidden != 0
			})
			victim := p.cmd.Process.Pid
			if name == "supervisor" {
				victim = p.supervisor(t)
			}
			if err := syscall.Kill(victim, syscall.SIGKILL); err != nil {
				t.Fatal(err)
			}
			eventually(t, "all are dead", func() bool { return !alive(p.pid) && !alive(hidden) })
			if name == "supervisor" {
				p.tells(t, "left []")
			}
		})
	}
}

// The same when the other was stopped before: it goes on, and ends the program.
func TestOneIsStoppedAndTheOtherKilled(t *testing.T) {
	for _, name := range []string{"front", "supervisor"} {
		t.Run(name+" killed", func(t *testing.T) {
			file := filepath.Join(t.TempDir(), "pid")
			p := startPair(t, `setsid sh -c 'echo $$ >`+file+`; exec sleep 60' & wait`)
			var hidden int
			eventually(t, "the program has a daemon", func() bool {
				text, _ := os.ReadFile(file)
				hidden, _ = strconv.Atoi(strings.TrimSpace(string(text)))
				return hidden != 0
			})
			stopped, victim := p.supervisor(t), p.cmd.Process.Pid
			if name == "supervisor" {
				stopped, victim = victim, stopped
			}
			if err := syscall.Kill(stopped, syscall.SIGSTOP); err != nil {
				t.Fatal(err)
			}
			eventually(t, "it is stopped", func() bool { return Stopped(stopped) })
			if err := syscall.Kill(victim, syscall.SIGKILL); err != nil {
				t.Fatal(err)
			}
			eventually(t, "all are dead", func() bool { return !alive(p.pid) && !alive(hidden) })
		})
	}
}

// Signals that are sent to all processes of a service do not end the supervisor, and one
// that is sent to it alone is for the program.
func TestSignalsToTheSupervisor(t *testing.T) {
	ready := filepath.Join(t.TempDir(), "ready")
	p := startPair(t, `trap 'exit 6' TERM; trap '' HUP; echo >'`+ready+`'; while :; do sleep 0.01; done`)
	exists(t, ready)
	supervisor := p.supervisor(t)
	for _, s := range []syscall.Signal{syscall.SIGHUP, syscall.SIGPIPE, syscall.SIGTSTP, syscall.SIGTTOU} {
		_ = syscall.Kill(supervisor, s)
	}
	eventually(t, "the supervisor has them", func() bool {
		text, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", supervisor))
		return err != nil || bytes.Contains(text, []byte("ShdPnd:\t0000000000000000")) // or is gone
	})
	if !alive(supervisor) || !alive(p.pid) || Stopped(supervisor) {
		t.Fatal("the supervisor or the program has ended")
	}
	_ = syscall.Kill(supervisor, syscall.SIGTERM)
	p.tells(t, KindEnded+" 6 0")
}
