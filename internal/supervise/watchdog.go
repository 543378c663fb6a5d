package supervise

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

// A watchdog is a second process. It kills the program's process group when this
// one cannot: when this one was killed, or was stopped until the program's time was
// over. The kernel's own help (PR_SET_PDEATHSIG) reaches the program, but not what
// the program has started.
//
// It is this program under another name, and is told what it must know through
// a pipe, in lines:
//
//	group N      the process group to kill
//	remove DIR   a directory to be removed when this process cannot
//	until N      the time is over when the boot-time clock shows N nanoseconds; 0: not known
//	done         everything went well
//
// The end of the pipe without done means that this process is dead.
const (
	watchdogName = "locksidecar-guard"
	watchdogFD   = 3
	watchdogStep = time.Second // timers stand still while the machine is suspended
	// slack is a change that is not worth telling.
	slack = 10 * time.Millisecond
)

// Watchdog is this process's side of it.
type Watchdog struct {
	pid   int
	pipe  *os.File
	until time.Duration // told last
}

// StartWatchdog starts the watchdog: this program again, which must call
// RunWatchdog first of all. The watchdog removes dir when this process dies without
// Done; dir may be empty.
func StartWatchdog(dir string) (*Watchdog, error) {
	r, w, err := os.Pipe()
	if err != nil {
		return nil, fmt.Errorf("make a pipe: %w", err)
	}
	defer r.Close()
	null, err := os.OpenFile(os.DevNull, os.O_RDWR, 0)
	if err != nil {
		return nil, fmt.Errorf("start watchdog: %w", err)
	}
	defer null.Close()
	pid, err := syscall.ForkExec("/proc/self/exe", []string{watchdogName}, &syscall.ProcAttr{ //nolint:gosec // ourselves
		Dir:   "/",
		Env:   []string{},
		Files: []uintptr{null.Fd(), null.Fd(), null.Fd(), r.Fd()},
		Sys:   &syscall.SysProcAttr{Setsid: true}, // away from the terminal and its signals
	})
	if err != nil {
		return nil, fmt.Errorf("start watchdog: %w", err)
	}
	d := &Watchdog{pid: pid, pipe: w}
	if dir != "" {
		d.tell("remove %s", dir)
	}
	return d, nil
}

// PID is that of the watchdog.
func (w *Watchdog) PID() int { return w.pid }

// tell sends a line. A watchdog that is dead watches no more, and that is all.
func (w *Watchdog) tell(format string, args ...any) { _, _ = fmt.Fprintf(w.pipe, format+"\n", args...) }

// Watch names the process group.
func (w *Watchdog) Watch(group int) { w.tell("group %d", group) }

// ValidFor says that the group is to be killed when so much time is over from now,
// unless this is called again before; 0: never.
func (w *Watchdog) ValidFor(d time.Duration) {
	until := time.Duration(0)
	if d > 0 {
		until = lock.BootTime() + d
	}
	if change := until - w.until; change.Abs() > slack {
		w.until = until
		w.tell("until %d", int64(until))
	}
}

// Done ends the watchdog, which then kills and removes nothing.
func (w *Watchdog) Done() {
	w.tell("done")
	_ = w.pipe.Close()
	_, _ = syscall.Wait4(w.pid, nil, 0, nil) // or an orphan's parent has reaped it
}

// RunWatchdog is the watchdog's main: where this process was started as one, it
// returns true when its work is done, and else false at once.
func RunWatchdog() bool {
	if os.Args[0] != watchdogName {
		return false
	}
	watch()
	return true
}

func watch() {
	lines := make(chan string)
	go func() { // ends with the process
		defer close(lines)
		scan := bufio.NewScanner(os.NewFile(watchdogFD, "pipe"))
		for scan.Scan() {
			lines <- scan.Text()
		}
	}()
	var group int
	var dir string
	var until time.Duration
	step := time.NewTicker(watchdogStep)
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
