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
// process was started stay ignored, also for what it starts, as nohup(1) and shells
// with background jobs mean it.
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
// Go lets that be known: its runtime puts handlers of its own in the place of all but
// SIGHUP, SIGINT and those of the terminal. Shells ignore SIGQUIT with SIGINT.
var ignored = sync.OnceValue(func() []syscall.Signal {
	var all []syscall.Signal
	text, _ := os.ReadFile("/proc/self/status") // without /proc: what Go says
	_, mask, _ := strings.Cut(string(text), "\nSigIgn:\t")
	mask, _, _ = strings.Cut(mask, "\n")
	bits, _ := strconv.ParseUint(mask, 16, 64)
	for _, s := range []syscall.Signal{syscall.SIGHUP, syscall.SIGINT, syscall.SIGTSTP, syscall.SIGTTIN, syscall.SIGTTOU} {
		if bits&(1<<(s-1)) != 0 || signal.Ignored(s) {
			all = append(all, s)
		}
	}
	if slices.Contains(all, syscall.SIGINT) {
		signal.Ignore(syscall.SIGQUIT)
		all = append(all, syscall.SIGQUIT)
	}
	return all
})

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
