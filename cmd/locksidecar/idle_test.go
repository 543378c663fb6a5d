package main

import (
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/locksidecar/locksidecar/internal/testengine"
)

// Between its heartbeats nothing wakes a sidecar that nobody asks for anything: three seconds come in which
// it takes no processor time at all. Issue 9, its last line.
func TestIdleSidecarSleeps(t *testing.T) {
	for name, store := range map[string]func(t *testing.T) string{
		"embedded": func(*testing.T) string { return "embedded:" },
		"Redis":    func(t *testing.T) string { return storeURL(testengine.Shared(t, testengine.Redis)) },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := serveProgram(t, "--store", store(t), "--ttl", "30s")
			var used time.Duration
			var since time.Time
			eventually(t, "nothing wakes the sidecar for three seconds", func() bool {
				if now := processorTime(t, s.cmd.Process.Pid); now != used {
					used, since = now, time.Now()
				}
				return time.Since(since) > 3*time.Second
			})
		})
	}
}

// processorTime is what all threads of a process have used so far.
func processorTime(t *testing.T, pid int) time.Duration {
	t.Helper()
	const processClock = 2 // CPUCLOCK_SCHED, of all threads
	var used unix.Timespec
	if err := unix.ClockGettime(int32(^pid<<3|processClock), &used); err != nil {
		t.Fatal(err)
	}
	return time.Duration(used.Nano())
}
