package supervise

import (
	"errors"
	"fmt"
	"os"
	"runtime"
	"slices"
	"strconv"
	"syscall"

	"golang.org/x/sys/unix"
)

// supervisorName is the name under which this program is a supervisor.
const supervisorName = "locksidecar-supervisor"

// Supervisor is the supervisor, as the front sees it.
type Supervisor struct {
	pid      int
	link     link
	messages chan Message
}

// StartSupervisor starts the supervisor: this program again, with the arguments args, which must call
// Supervised first of all. When this process dies, the supervisor ends the program; when the
// supervisor does, Messages ends and what it has left is a descendant of this process, if
// that has called AdoptOrphans. Each goes on for that when it is stopped.
func StartSupervisor(args []string) (*Supervisor, error) {
	g := &Supervisor{messages: make(chan Message)}
	started := make(chan error)
	go func() { // ends with the supervisor
		// The kernel continues the supervisor when the thread that started it ends, so the
		// thread must not end before.
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		pid, err := g.start(args)
		started <- err
		if err != nil {
			return
		}
		go reapEverything()
		defer close(g.messages)
		g.link.receive(func(m Message) { g.messages <- m })
		_, _ = syscall.Wait4(pid, nil, 0, nil) // or somebody else has
	}()
	if err := <-started; err != nil {
		return nil, fmt.Errorf("start the supervisor: %w", err)
	}
	return g, nil
}

// reapEverything takes the end of all children, not of the supervisor alone: process 1 of a
// container gets orphans that are none of the supervisor's, and a script may have left some
// before it became this program. It ends when there are none left.
func reapEverything() {
	for err := error(nil); err == nil || errors.Is(err, syscall.EINTR); {
		_, err = syscall.Wait4(-1, nil, 0, nil)
	}
}

func (g *Supervisor) start(args []string) (pid int, err error) {
	life, err := newLife()
	if err != nil {
		return 0, err
	}
	defer unix.Close(life)
	l, theirs, err := socketPair()
	if err != nil {
		return 0, err
	}
	defer unix.Close(theirs)
	// Their numbers are free in this process, so they are none that the program is to
	// inherit.
	for _, fd := range []int{theirs, life} {
		if _, err := unix.FcntlInt(uintptr(fd), unix.F_SETFD, 0); err != nil {
			return 0, errors.Join(err, l.conn.Close())
		}
	}
	argv := append([]string{supervisorName, strconv.Itoa(theirs), strconv.Itoa(life)}, args...)
	pid, err = syscall.ForkExec("/proc/self/exe", argv, &syscall.ProcAttr{ //nolint:gosec // ourselves
		Env:   os.Environ(),
		Files: []uintptr{0, 1, 2},
		Sys: &syscall.SysProcAttr{
			Setpgid:   true,            // away from the signals of the terminal
			Pdeathsig: syscall.SIGCONT, // else a stopped supervisor would not see that we are dead
		},
	})
	if err != nil {
		return 0, errors.Join(err, l.conn.Close())
	}
	g.pid, g.link = pid, l
	return pid, nil
}

// Messages are what the supervisor tells; closed when it is gone.
func (g *Supervisor) Messages() <-chan Message { return g.messages }

// Runs reports whether the supervisor has started the program, also where it has not told
// so yet: the program may be faster than the message.
func (g *Supervisor) Runs() bool {
	tree, _ := descendants() // no /proc: what was told must do
	return slices.ContainsFunc(tree, func(s stat) bool { return s.parent == g.pid })
}

// Signal passes a signal on.
func (g *Supervisor) Signal(s syscall.Signal) { g.link.send(false, kindSignal, int64(s), "") }

// Ask asks for a KindUntil, which shows that the supervisor lives.
func (g *Supervisor) Ask() { g.link.send(false, kindAsk, 0, "") }
