package testengine

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"syscall"
)

// node is one process of a server.
type node struct {
	m       machine
	dir     string
	port    int
	program program
	argv    func(ctx context.Context) ([]string, error) // how to start it now
	up      func(ctx context.Context) error             // more to wait for when it answers; may be nil

	mu      sync.Mutex
	proc    process // nil: not running
	version string
}

// program is what must be known of the program that a node runs.
type program interface {
	// String is its name.
	String() string
	// ready asks the node once whether it serves, and for its version. An error
	// of stop says that there is nothing to wait for: it is not the node's
	// process that answers.
	ready(ctx context.Context, n *node) (version string, err error)
	// keep sees to it before a crash that all that was acknowledged survives it.
	keep(ctx context.Context, n *node) error
	// drop removes the data of a node that does not run.
	drop(ctx context.Context, n *node) error
}

func (n *node) Addr() string { return hostPort(n.port) }

func (n *node) Origin() string {
	n.mu.Lock()
	defer n.mu.Unlock()
	return fmt.Sprintf("%s %s %s", n.program, n.version, n.m)
}

// Start implements Crasher.
func (n *node) Start(ctx context.Context) error {
	if err := n.launch(ctx); err != nil || n.up == nil {
		return err
	}
	return n.up(ctx)
}

// launch starts the process and waits until it answers, unless it runs.
func (n *node) launch(ctx context.Context) error {
	n.mu.Lock()
	defer n.mu.Unlock()
	if err := n.runLocked(ctx); err != nil {
		return err
	}
	if err := n.answers(ctx); err != nil {
		return n.explain(ctx, err)
	}
	return nil
}

// run starts the process, unless it runs, and does not wait.
func (n *node) run(ctx context.Context) error {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.runLocked(ctx)
}

func (n *node) runLocked(ctx context.Context) error {
	if n.proc != nil {
		return nil
	}
	argv, err := n.argv(ctx)
	if err != nil {
		return err
	}
	n.proc, err = n.m.start(ctx, n.dir, argv...)
	return err
}

// answers waits until the process answers. n.mu is held.
func (n *node) answers(ctx context.Context) error {
	return poll(ctx, func() error {
		version, err := n.program.ready(ctx, n)
		if err != nil {
			if alive, aliveErr := n.proc.alive(ctx); aliveErr == nil && !alive {
				return stop(errors.New("it has ended"))
			}
			return err
		}
		n.version = version
		return nil
	})
}

func (n *node) explain(ctx context.Context, err error) error {
	log, _ := n.m.sh(context.WithoutCancel(ctx), "tail -n 20 "+quote(n.dir+"/log")) // only to explain err
	if strings.Contains(strings.ToLower(log), "address already in use") {
		err = fmt.Errorf("%w: %w", errPortTaken, err)
	}
	return fmt.Errorf("start %s on %s: %w\n%s", n.program, n.Addr(), err, log)
}

// Pause implements Pauser. The signal takes effect when a thread of the process
// runs next, and until then others may go on to answer.
func (n *node) Pause(ctx context.Context) error {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.proc == nil {
		return nil
	}
	if err := n.proc.signal(ctx, syscall.SIGSTOP); err != nil {
		return err
	}
	if _, err := n.m.sh(ctx, n.children("kill -STOP $all")); err != nil {
		return err
	}
	return poll(ctx, func() error {
		threads, err := n.m.sh(ctx, n.children(fmt.Sprintf("for p in %d $all; do cat /proc/$p/task/*/stat; done", n.proc.pid())))
		if err != nil {
			return stop(err)
		}
		for line := range strings.Lines(threads) { // 42 (name) S …
			if i := strings.LastIndex(line, ") "); i >= 0 && !strings.ContainsAny(line[i+2:i+3], "TtZX") {
				return fmt.Errorf("%s still runs", n.program)
			}
		}
		return nil
	})
}

// Resume implements Pauser.
func (n *node) Resume(ctx context.Context) error {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.proc == nil {
		return nil
	}
	_, err := n.m.sh(ctx, n.children("kill -CONT $all"))
	return errors.Join(err, n.proc.signal(ctx, syscall.SIGCONT))
}

// children is a script that does something with the processes that the node's
// process has started: PostgreSQL has one for each connection. $all are their
// numbers. What it does may fail: a process may end at any time.
func (n *node) children(do string) string {
	return fmt.Sprintf(`all=$(sed -n 's/^\([0-9]*\) (.*) [^ZX] %d .*/\1/p' /proc/[0-9]*/stat 2>/dev/null || :)
{ %s; } 2>/dev/null || :`, n.proc.pid(), do)
}

// Crash implements Crasher.
func (n *node) Crash(ctx context.Context, d Data) error {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.proc == nil {
		return nil
	}
	if d == KeepData {
		if err := n.program.keep(ctx, n); err != nil {
			return fmt.Errorf("save the data before the crash: %w", err)
		}
	}
	// A process that is frozen starts no more children, and buries none.
	err := n.proc.signal(ctx, syscall.SIGSTOP)
	children := ""
	if err == nil {
		children, err = n.m.sh(ctx, n.children("kill -9 $all; echo $all"))
	}
	if err = errors.Join(err, n.proc.kill(ctx)); err != nil {
		return err
	}
	if _, err := n.m.sh(ctx, "for p in "+strings.TrimSpace(children)+
		"; do while grep -q '^State:.[^ZX]' /proc/$p/status 2>/dev/null; do sleep 0.01; done; done"); err != nil {
		return err
	}
	n.proc = nil
	if d == DropData {
		return n.program.drop(ctx, n)
	}
	return nil
}
