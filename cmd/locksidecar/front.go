package main

import (
	"context"
	"fmt"
	"os"
	"os/signal"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/locksidecar/locksidecar/internal/supervise"
	"github.com/locksidecar/locksidecar/lock"
)

const (
	// askEvery is how often the front looks at least whether the supervisor lives.
	askEvery = time.Second
	// answerLimit is how long the supervisor may take to answer a front that was itself
	// stopped or starved, and so cannot tell which of the two was late.
	answerLimit = 250 * time.Millisecond
	// killLimit is how long it may take to kill what a dead supervisor has left.
	killLimit = 2 * time.Second
)

// front is the process that was started as "run": it has the signals and the
// terminal. Its supervisor does everything else; see package supervise.
type front struct {
	io         streams
	supervisor *supervise.Supervisor
	tty        *supervise.Terminal
	signals    chan os.Signal
	cmd        int           // pid of CMD; 0: it does not run yet
	until      time.Duration // the supervisor has to answer before; 0: any time
	looked     time.Duration // when this was compared with the clock last
	ended      int           // signals that were to end the wait for the lock
	asked      bool          // somebody wants all of it to end
}

// runFront starts the supervisor with the same command line, and stays until it has ended. The
// signals still go to the front then: what comes when the exit status is decided does not change it.
func runFront(ctx context.Context, io streams) (*front, error) {
	if err := supervise.AdoptOrphans(); err != nil {
		return nil, err
	}
	supervise.ReserveThreads()
	f := &front{io: io, tty: supervise.OpenTerminal(), signals: make(chan os.Signal, 16)}
	wanted := []syscall.Signal{
		syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP, syscall.SIGQUIT, syscall.SIGUSR1, syscall.SIGUSR2,
		syscall.SIGALRM, syscall.SIGCONT,
	}
	if f.tty == nil { // else CMD has these from the terminal, and the kernel stops us as it does CMD
		wanted = append(wanted, syscall.SIGWINCH, syscall.SIGTSTP)
	}
	supervise.Notify(f.signals, wanted...)
	var err error
	if f.supervisor, err = supervise.StartSupervisor(io.args); err != nil {
		return nil, err
	}
	supervise.WriteAlways()
	return f, f.stay(ctx)
}

// leave gives the signals back to the kernel: from here on they end this process. It reports
// whether one has asked it to end before.
func (f *front) leave() (asked bool) {
	signal.Stop(f.signals)
	for len(f.signals) > 0 {
		f.note(<-f.signals)
	}
	return f.asked
}

// stay returns what became of it all.
func (f *front) stay(ctx context.Context) error {
	f.looked = lock.BootTime()
	tick := time.NewTimer(askEvery)
	defer tick.Stop()
	for {
		select {
		case m, ok := <-f.supervisor.Messages():
			switch {
			case !ok:
				return f.alone("the supervisor of CMD has died")
			case m.Kind == supervise.KindEnded:
				by, _ := strconv.Atoi(m.Text)
				if syscall.Signal(by) == syscall.SIGINT { // so that a script around us ends as well
					supervise.Die(syscall.SIGINT)
				}
				if m.Number != 0 {
					return &exitError{code: int(m.Number)}
				}
				return nil
			}
			f.told(m)
		case sig := <-f.signals:
			number := f.note(sig)
			if f.signal(number) {
				return &exitError{code: exitSignalled + int(number)}
			}
		case <-tick.C:
			if f.late() {
				return f.alone("the supervisor of CMD does not answer")
			}
			f.supervisor.Ask()
		case <-ctx.Done():
			return f.alone("stopped")
		}
		tick.Reset(f.pause())
	}
}

func (f *front) told(m supervise.Message) {
	switch m.Kind {
	case supervise.KindStarted:
		f.cmd = int(m.Number)
	case supervise.KindUntil:
		f.until = time.Duration(m.Number)
	case supervise.KindStopped:
		inFront := f.tty.Has(0) || f.tty.Has(f.cmd) // a shell in CMD has taken the terminal for itself
		if inFront && supervise.Stopped(f.cmd) {    // else the terminal has stopped us, too, and we went on together
			supervise.Stop()
		}
	case supervise.KindSay:
		_, _ = fmt.Fprint(f.io.err, m.Text)
	}
}

// note remembers whether a signal asks for the end. Without a terminal that hangs up, SIGHUP
// makes many programs read their settings again.
func (f *front) note(sig os.Signal) syscall.Signal {
	s, _ := sig.(syscall.Signal) // what Notify sends on Unix
	f.asked = f.asked || endsWait(s) && (s != syscall.SIGHUP || f.tty != nil)
	return s
}

// signal passes a signal on to the supervisor, which has it for CMD, unless CMD has it
// already. It reports whether this process must end at once.
func (f *front) signal(s syscall.Signal) bool {
	runs := f.cmd != 0 || f.supervisor.Runs()
	switch {
	case runs && (s == syscall.SIGINT || s == syscall.SIGQUIT) && f.tty.Has(0):
		return false // Ctrl-C reaches all that share the terminal
	case !runs && endsWait(s):
		f.ended++
	}
	f.supervisor.Signal(s)
	return !runs && f.ended > 1 // the supervisor does not react
}

// endsWait tells which signals end the wait for the lock.
func endsWait(s syscall.Signal) bool {
	return s == syscall.SIGINT || s == syscall.SIGTERM || s == syscall.SIGHUP || s == syscall.SIGQUIT
}

// late reports whether the supervisor has not answered in time.
func (f *front) late() bool {
	now := lock.BootTime()
	before := f.looked
	f.looked = now
	if f.until == 0 || now < f.until {
		return false
	}
	if now-before > f.pause()+answerLimit { // we are late ourselves: its answer may be there unread
		f.until = now + answerLimit
		return false
	}
	return true
}

// pause is the time to the next look.
func (f *front) pause() time.Duration {
	if f.until == 0 {
		return askEvery
	}
	left := f.until - lock.BootTime()
	return min(askEvery, max(left/8, answerLimit/10))
}

// alone ends CMD without the supervisor.
func (f *front) alone(why string) error {
	left := supervise.KillAll(lock.BootTime() + killLimit)
	if f.cmd == 0 {
		return fmt.Errorf("%s before CMD ran", why)
	}
	return &exitError{code: exitLost, err: fmt.Errorf("%s: CMD got SIGKILL%s", why, survivors(left))}
}

// survivors names what could not be ended.
func survivors(left []supervise.Survivor) string {
	var s strings.Builder
	for _, p := range left {
		s.WriteString("; process " + p.String())
	}
	if len(left) > 0 {
		s.WriteString("; it goes on without the lock")
	}
	return s.String()
}
