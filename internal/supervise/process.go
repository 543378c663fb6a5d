package supervise

import (
	"errors"
	"runtime"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/locksidecar/locksidecar/lock"
)

// Signalled plus the number of a signal is the exit status of what it has ended.
const Signalled = 128

// Program is what is to be started, on our stdin, stdout and stderr.
type Program struct {
	Path string
	Argv []string
	Env  []string
	// Group 0 gives it a process group of its own; else it joins this one.
	Group int
	// Everything that has Mark in the environment variable MarkName is the program's
	// too, whoever has started it.
	MarkName, Mark string
}

// Process is a program that was started, and what it started in turn.
//
// With AdoptOrphans, everything it started can be found when it has to end,
// whatever groups and sessions it made.
type Process struct {
	program Program
	pid     int
	changed chan State
	exited  chan struct{}      // closed when it has ended
	status  syscall.WaitStatus // valid then

	tell  sync.Once  // of exited
	mu    sync.Mutex // a signal is sent, or a child reaped: so no pid is used that is somebody else's
	ended bool
}

// State is what a program that has not ended has come to.
type State struct {
	Stopped bool           // else it was continued
	By      syscall.Signal // has stopped it
}

// Start starts a program. While it runs, the Process takes the end of
// every child of this one, so that nobody else can wait for them.
// The error is that of execve.
func Start(program Program) (*Process, error) {
	p := &Process{program: program, changed: make(chan State, 1), exited: make(chan struct{})}
	started := make(chan error)
	go func() {
		// The kernel kills the child when the thread that started it ends, so the
		// thread must not end before.
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		var err error
		p.pid, err = syscall.ForkExec(program.Path, program.Argv, &syscall.ProcAttr{ //nolint:gosec // to run what it is told is what run is for
			Env:   program.Env,
			Files: []uintptr{0, 1, 2},
			Sys:   &syscall.SysProcAttr{Setpgid: true, Pgid: program.Group, Pdeathsig: syscall.SIGKILL},
		})
		started <- err
		if err == nil {
			p.wait()
		}
	}()
	return p, <-started
}

// PID is that of the program.
func (p *Process) PID() int { return p.pid }

// Changed tells that the program was stopped or continued: the last change that
// nobody has read.
func (p *Process) Changed() <-chan State { return p.changed }

// Exited is closed when the program has ended; what it started may go on.
func (p *Process) Exited() <-chan struct{} { return p.exited }

// wait reaps all children, the program and orphans, until the program has ended.
func (p *Process) wait() {
	for {
		err := unix.Waitid(unix.P_ALL, 0, nil, unix.WEXITED|unix.WSTOPPED|unix.WCONTINUED|unix.WNOWAIT, nil)
		if err != nil && !errors.Is(err, unix.EINTR) { // ECHILD: End was faster
			return
		}
		p.reap()
		select {
		case <-p.exited:
			return
		default:
		}
	}
}

// reap takes what children have to tell, and reports whether there are none left. That
// the program has ended is told last: from then on children may be somebody else's.
func (p *Process) reap() (none bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for {
		var status syscall.WaitStatus
		pid, err := syscall.Wait4(-1, &status, syscall.WNOHANG|syscall.WUNTRACED|syscall.WCONTINUED, nil)
		switch {
		case errors.Is(err, syscall.EINTR), err == nil && pid > 0 && pid != p.pid:
		case err != nil || pid == 0:
			if p.ended {
				p.tell.Do(func() { close(p.exited) })
			}
			return errors.Is(err, syscall.ECHILD)
		case status.Stopped(), status.Continued():
			select {
			case <-p.changed: // nobody has looked at it
			default:
			}
			state := State{Stopped: status.Stopped()}
			if state.Stopped {
				state.By = status.StopSignal()
			}
			p.changed <- state
		default:
			p.ended, p.status = true, status
		}
	}
}

// Signal sends s to the program and what it started in its process group. It is no
// error when the program has ended.
func (p *Process) Signal(s syscall.Signal) {
	p.mu.Lock()
	defer p.mu.Unlock()
	switch {
	case p.ended:
	case p.program.Group == 0:
		_ = syscall.Kill(-p.pid, s)
	default:
		_ = syscall.Kill(p.pid, s)
		tree, _ := descendants() // no /proc: the program has it, and may pass it on
		for _, d := range tree {
			if d.group == p.program.Group && d.pid != p.pid {
				_ = syscall.Kill(d.pid, s)
			}
		}
	}
}

// Ending says how a program is ended. Its moments are those of the boot-time clock.
type Ending struct {
	Signal syscall.Signal  // first
	Kill   time.Duration   // when what is left is killed; what is past means at once
	GiveUp time.Duration   // when what cannot be killed is left alone
	Hurry  <-chan struct{} // kill at once; may be nil
}

// End ends everything that the program started. It returns when nothing is left, or
// with what could not be ended.
func (p *Process) End(e Ending) []Survivor {
	told := map[int]bool{}
	for hurry := false; !hurry && lock.BootTime() < e.Kill; {
		all := p.all()
		for _, d := range all {
			if !told[d.pid] { // also what was started meanwhile
				told[d.pid] = true
				_ = syscall.Kill(d.pid, e.Signal)
				_ = syscall.Kill(d.pid, syscall.SIGCONT) // what is stopped would not see it
			}
		}
		if p.reap() && len(all) == 0 {
			return nil
		}
		select {
		case <-e.Hurry:
			hurry = true
		case <-time.After(treePause):
		}
	}
	return killAll(e.GiveUp, p.reap, p.all)
}

// all is everything that is the program's: descendants, and when there is none,
// what else has its mark.
func (p *Process) all() []stat {
	tree, err := descendants()
	switch {
	case err != nil && p.reap():
		return nil
	case err != nil: // without /proc the group is what can be seen
		return []stat{{pid: -p.pid, name: "process group"}}
	case len(tree) == 0:
		return carriers(p.program.MarkName, p.program.Mark)
	}
	return tree
}

// ExitStatus is that of the program in the words of a shell: its own, or Signalled
// plus the number of the signal that has ended it. Valid when Exited is closed.
func (p *Process) ExitStatus() int {
	if p.status.Signaled() {
		return Signalled + int(p.status.Signal())
	}
	return p.status.ExitStatus()
}

// EndedBy is the signal that has ended the program; 0: none. Valid when Exited is
// closed.
func (p *Process) EndedBy() syscall.Signal {
	if p.status.Signaled() {
		return p.status.Signal()
	}
	return 0
}
