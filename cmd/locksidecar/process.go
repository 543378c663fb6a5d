package main

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

// treePause is how often a tree that is to end is looked at.
const treePause = 5 * time.Millisecond

// process is CMD, the leader of its own process group, and what it started.
//
// With adoptOrphans, everything CMD started can be found when it has to end,
// whatever groups and sessions it made.
type process struct {
	pid     int
	stopped chan syscall.Signal // it was stopped, by this signal
	exited  chan struct{}       // closed when it has ended
	status  syscall.WaitStatus  // valid then
	spare   []int               // children of ours that are not CMD's
}

// adoptOrphans makes this process the parent of every descendant that loses its
// own.
func adoptOrphans() error {
	if err := unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0); err != nil {
		return fmt.Errorf("become the parent of orphans: %w", err)
	}
	return nil
}

// startProcess starts a program on our stdin, stdout and stderr. spare are
// children of ours that CMD has nothing to do with.
func startProcess(path string, argv, env []string, spare ...int) (*process, error) {
	p := &process{stopped: make(chan syscall.Signal, 1), exited: make(chan struct{}), spare: spare}
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

// wait reaps all children, CMD and orphans, until CMD has ended.
func (p *process) wait() {
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

// signal sends s to CMD's process group. It is no error when it has ended.
func (p *process) signal(s syscall.Signal) { _ = syscall.Kill(-p.pid, s) }

// signalTree sends s to everything that CMD started and that is left, also
// outside its group. It reports whether anything is left.
func (p *process) signalTree(s syscall.Signal) bool {
	p.signal(s)
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

// end ends everything that CMD started: SIGTERM now, SIGKILL after patience. It
// returns when nothing is left.
func (p *process) end(patience time.Duration) {
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
func (p *process) reap() {
	for {
		pid, err := syscall.Wait4(-1, nil, syscall.WNOHANG, nil)
		if pid <= 0 && !errors.Is(err, syscall.EINTR) {
			return
		}
	}
}

// exitStatus is that of CMD in the words of a shell.
func (p *process) exitStatus() int {
	if p.status.Signaled() {
		return exitSignalled + int(p.status.Signal())
	}
	return p.status.ExitStatus()
}
