package supervise

import (
	"errors"
	"fmt"
	"runtime"
	"slices"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/locksidecar/locksidecar/lock"
)

// Signalled plus the number of a signal is the exit status of what it has ended.
const Signalled = 128

// treePause is how often a tree that is to end is looked at.
const treePause = 5 * time.Millisecond

// Process is a program that was started, the leader of its own process group, and
// what it started in turn.
//
// With AdoptOrphans, everything it started can be found when it has to end,
// whatever groups and sessions it made.
type Process struct {
	pid     int
	stopped chan syscall.Signal // it was stopped, by this signal
	exited  chan struct{}       // closed when it has ended
	status  syscall.WaitStatus  // valid then
	spare   []int               // children of ours that are not the program's
}

// AdoptOrphans makes this process the parent of every descendant that loses its
// own.
func AdoptOrphans() error {
	if err := unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0); err != nil {
		return fmt.Errorf("become the parent of orphans: %w", err)
	}
	return nil
}

// Start starts a program on our stdin, stdout and stderr. spare are children of
// ours that it has nothing to do with. While it runs, the Process takes the end of
// every child of this one, so that nobody else can wait for them.
// The error is that of execve.
func Start(path string, argv, env []string, spare ...int) (*Process, error) {
	p := &Process{stopped: make(chan syscall.Signal, 1), exited: make(chan struct{}), spare: spare}
	started := make(chan error)
	go func() {
		// The kernel kills the child when the thread that started it ends, so the
		// thread must not end before.
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		var err error
		p.pid, err = syscall.ForkExec(path, argv, &syscall.ProcAttr{ //nolint:gosec // to run what it is told is what run is for
			Env:   env,
			Files: []uintptr{0, 1, 2},
			Sys:   &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL},
		})
		started <- err
		if err == nil {
			p.wait()
		}
	}()
	return p, <-started
}

// PID is that of the program, and of its process group.
func (p *Process) PID() int { return p.pid }

// Stopped tells that the program was stopped, and by which signal. What nobody has
// read is one value.
func (p *Process) Stopped() <-chan syscall.Signal { return p.stopped }

// Exited is closed when the program has ended; what it started may go on.
func (p *Process) Exited() <-chan struct{} { return p.exited }

// wait reaps all children, the program and orphans, until the program has ended.
func (p *Process) wait() {
	defer close(p.exited)
	for {
		var status syscall.WaitStatus
		pid, err := syscall.Wait4(-1, &status, syscall.WUNTRACED, nil)
		switch {
		case errors.Is(err, syscall.EINTR) || (err == nil && pid != p.pid):
		case err != nil: // ECHILD: somebody else has reaped it, which nobody here does
			return
		case status.Stopped():
			select {
			case p.stopped <- status.StopSignal():
			default: // the one before was not looked at yet
			}
		default:
			p.status = status
			return
		}
	}
}

// Signal sends s to the process group. It is no error when it has ended.
func (p *Process) Signal(s syscall.Signal) { _ = syscall.Kill(-p.pid, s) }

// signalTree sends s to everything that the program started and that is left, also
// outside its group. It reports whether anything is left.
func (p *Process) signalTree(s syscall.Signal) bool {
	p.Signal(s)
	tree, err := descendants()
	if err != nil { // no /proc: the group is what can be seen
		return syscall.Kill(-p.pid, 0) == nil
	}
	left := false
	for _, d := range tree {
		if slices.Contains(p.spare, d.pid) {
			continue
		}
		left = true
		if d.group != p.pid {
			_ = syscall.Kill(d.pid, s)
		}
	}
	return left
}

// End ends everything that the program started: SIGTERM now, SIGKILL after patience. It
// returns when nothing is left.
func (p *Process) End(patience time.Duration) {
	kill := lock.BootTime() + patience
	if patience > 0 {
		p.signalTree(syscall.SIGTERM)
		p.signalTree(syscall.SIGCONT) // what is stopped would not see it
	}
	for sig := syscall.Signal(0); ; time.Sleep(treePause) {
		if lock.BootTime() >= kill {
			sig = syscall.SIGKILL // again and again: what is killed may just have started something
		}
		left := p.signalTree(sig)
		select {
		case <-p.exited:
			p.reap()
			if !left {
				return
			}
		default:
		}
	}
}

// reap takes the orphans that have ended, once wait does it no more.
func (p *Process) reap() {
	for {
		pid, err := syscall.Wait4(-1, nil, syscall.WNOHANG, nil)
		if pid <= 0 && !errors.Is(err, syscall.EINTR) {
			return
		}
	}
}

// ExitStatus is that of the program in the words of a shell: its own, or Signalled
// plus the number of the signal that has ended it. Valid when Exited is closed.
func (p *Process) ExitStatus() int {
	if p.status.Signaled() {
		return Signalled + int(p.status.Signal())
	}
	return p.status.ExitStatus()
}
