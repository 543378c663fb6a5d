package main

import (
	"bufio"
	"fmt"
	"os"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/locksidecar/locksidecar/lock"
)

// A guard is a second process of run's. It kills CMD's process group when run
// cannot: when run was killed, or was stopped for so long that the lock is over.
// The kernel's own help (PR_SET_PDEATHSIG) reaches CMD, but not what CMD has
// started.
//
// It is this program under another name, and is told what it must know through
// a pipe, in lines:
//
//	group N      the process group to kill
//	remove DIR   a directory of run's, to be removed when run cannot
//	until N      the lock is over when the boot-time clock shows N nanoseconds; 0: not known
//	done         everything went well
//
// The end of the pipe without done means that run is dead.
const (
	guardName = "locksidecar-guard"
	guardFD   = 3
	guardStep = time.Second // timers stand still while the machine is suspended
	// guardSlack is a change that is not worth telling.
	guardSlack = 10 * time.Millisecond
)

// guard is run's side of it.
type guard struct {
	pid   int
	pipe  *os.File
	until time.Duration // told last
}

// startGuard starts the guard. dir may be empty.
func startGuard(dir string) (*guard, error) {
	r, w, err := os.Pipe()
	if err != nil {
		return nil, fmt.Errorf("make a pipe: %w", err)
	}
	defer r.Close()
	null, err := os.OpenFile(os.DevNull, os.O_RDWR, 0)
	if err != nil {
		return nil, fmt.Errorf("start guard: %w", err)
	}
	defer null.Close()
	pid, err := syscall.ForkExec("/proc/self/exe", []string{guardName}, &syscall.ProcAttr{ //nolint:gosec // ourselves
		Dir:   "/",
		Env:   []string{},
		Files: []uintptr{null.Fd(), null.Fd(), null.Fd(), r.Fd()},
		Sys:   &syscall.SysProcAttr{Setsid: true}, // away from the terminal and its signals
	})
	if err != nil {
		return nil, fmt.Errorf("start guard: %w", err)
	}
	g := &guard{pid: pid, pipe: w}
	if dir != "" {
		g.tell("remove %s", dir)
	}
	return g, nil
}

// tell sends a line. A guard that is dead guards no more, and that is all.
func (g *guard) tell(format string, args ...any) { _, _ = fmt.Fprintf(g.pipe, format+"\n", args...) }

// watch names the process group.
func (g *guard) watch(group int) { g.tell("group %d", group) }

// validFor tells how long the lock is good from now; 0: do not count.
func (g *guard) validFor(d time.Duration) {
	until := time.Duration(0)
	if d > 0 {
		until = lock.BootTime() + d
	}
	if change := until - g.until; change.Abs() > guardSlack {
		g.until = until
		g.tell("until %d", int64(until))
	}
}

// done sends the guard home.
func (g *guard) done() {
	g.tell("done")
	_ = g.pipe.Close()
	_, _ = syscall.Wait4(g.pid, nil, 0, nil) // or an orphan's parent has reaped it
}

// beGuard is the guard's main.
func beGuard() {
	lines := make(chan string)
	go func() { // ends with the process
		defer close(lines)
		scan := bufio.NewScanner(os.NewFile(guardFD, "pipe"))
		for scan.Scan() {
			lines <- scan.Text()
		}
	}()
	var group int
	var dir string
	var until time.Duration
	step := time.NewTicker(guardStep)
	defer step.Stop()
	for {
		var over <-chan time.Time
		if until != 0 {
			over = time.After(until - lock.BootTime())
		}
		select {
		case <-over:
			kill(group)
			until = 0
		case <-step.C:
		case line, ok := <-lines:
			if !ok {
				kill(group)
				if dir != "" {
					_ = os.RemoveAll(dir)
				}
				return
			}
			what, value, _ := strings.Cut(line, " ")
			number, _ := strconv.ParseInt(value, 10, 64)
			switch what {
			case "group":
				group = int(number)
			case "remove":
				dir = value
			case "until":
				until = time.Duration(number)
			case "done":
				return
			}
		}
	}
}

func kill(group int) {
	if group > 1 {
		_ = syscall.Kill(-group, syscall.SIGKILL)
	}
}
