package supervise

import (
	"fmt"
	"os"
	"strconv"
	"syscall"

	"golang.org/x/sys/unix"
)

// guardName is the name under which this program is a guard.
const guardName = "locksidecar-guard"

// Guard is the guard, as the front sees it.
type Guard struct {
	link     link
	messages chan Message
}

// StartGuard starts the guard: this program again, with the arguments args, which must call
// Guarded first of all. When this process dies, the guard ends the program; when the
// guard does, Messages ends and what it has left is a descendant of this process, if
// that has called AdoptOrphans.
func StartGuard(args []string) (*Guard, error) {
	l, theirs, err := socketPair()
	if err != nil {
		return nil, fmt.Errorf("start the guard: %w", err)
	}
	defer unix.Close(theirs)
	// The number of the socket is free in this process, so it is none that the program
	// is to inherit.
	if _, err := unix.FcntlInt(uintptr(theirs), unix.F_SETFD, 0); err != nil {
		return nil, fmt.Errorf("start the guard: %w", err)
	}
	pid, err := syscall.ForkExec("/proc/self/exe", append([]string{guardName, strconv.Itoa(theirs)}, args...), &syscall.ProcAttr{ //nolint:gosec // ourselves
		Env:   os.Environ(),
		Files: []uintptr{0, 1, 2},
		Sys:   &syscall.SysProcAttr{Setpgid: true}, // away from the signals of the terminal
	})
	if err != nil {
		_ = l.conn.Close()
		return nil, fmt.Errorf("start the guard: %w", err)
	}
	g := &Guard{link: l, messages: make(chan Message)}
	go func() { // ends with the guard
		defer close(g.messages)
		l.receive(func(m Message) { g.messages <- m })
		_, _ = syscall.Wait4(pid, nil, 0, nil) // or the kernel has, see KillAll
	}()
	return g, nil
}

// Messages are what the guard tells; closed when it is gone.
func (g *Guard) Messages() <-chan Message { return g.messages }

// Signal passes a signal on.
func (g *Guard) Signal(s syscall.Signal) { g.link.send(false, kindSignal, int64(s), "") }

// Ask asks for a KindUntil, which shows that the guard lives.
func (g *Guard) Ask() { g.link.send(false, kindAsk, 0, "") }
