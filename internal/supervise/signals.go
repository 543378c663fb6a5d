package supervise

import (
	"os"
	"os/signal"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"
)

// Notify is signal.Notify, except that signals which were ignored when this
// process was started stay ignored, also for what it starts, as nohup(1), the trap of shells
// and services of systemd (IgnoreSIGPIPE=) mean it.
func Notify(c chan<- os.Signal, signals ...syscall.Signal) {
	var wanted []os.Signal
	for _, s := range signals {
		if !slices.Contains(ignored(), s) {
			wanted = append(wanted, s)
		}
	}
	if len(wanted) > 0 { // with none, Notify would take all
		signal.Notify(c, wanted...)
	}
}

// ignored are the signals that were ignored when this process was started, as far as
// that is known. They are ignored again from the first call on.
var ignored = sync.OnceValue(func() []syscall.Signal {
	bits := ignoredAtStart
	if atStartKnown == 0 {
		bits = seenIgnored()
	}
	var all []syscall.Signal
	for s := syscall.Signal(1); s <= 64; s++ {
		switch {
		case bits&(1<<(s-1)) == 0:
		case s == syscall.SIGCHLD, s == syscall.SIGURG: // or we could not wait for a child, and Go not stop a goroutine
		default:
			signal.Ignore(s)
			all = append(all, s)
		}
	}
	return all
})

// seenIgnored is what can be seen of it from within Go: its runtime leaves SIGHUP, SIGINT and
// those of the terminal as they are. Shells ignore SIGQUIT with SIGINT.
func seenIgnored() (bits uint64) {
	text, _ := os.ReadFile("/proc/self/status") // without /proc: what Go says
	_, mask, _ := strings.Cut(string(text), "\nSigIgn:\t")
	mask, _, _ = strings.Cut(mask, "\n")
	now, _ := strconv.ParseUint(mask, 16, 64)
	for _, s := range []syscall.Signal{syscall.SIGHUP, syscall.SIGINT, syscall.SIGTSTP, syscall.SIGTTIN, syscall.SIGTTOU} {
		if now&(1<<(s-1)) == 0 && !signal.Ignored(s) {
			continue
		}
		bits |= 1 << (s - 1)
		if s == syscall.SIGINT {
			bits |= 1 << (syscall.SIGQUIT - 1)
		}
	}
	return bits
}

// dieLimit is more than a signal to oneself takes.
const dieLimit = time.Second

// Die ends this process by a signal, as a shell that looks for it wants to see it. It
// returns where that cannot be: where it is ignored, and as process 1 of a container.
func Die(s syscall.Signal) {
	if slices.Contains(ignored(), s) || os.Getpid() == 1 {
		return
	}
	signal.Reset(s)
	_ = syscall.Kill(os.Getpid(), s)
	time.Sleep(dieLimit)
}
