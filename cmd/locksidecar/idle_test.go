package main

import (
	"fmt"
	"strings"
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

// A sidecar keeps what its packages make when the program starts, and the collector first runs the sooner the more that is. So
// none of this module makes more than a little before it is asked to, but for the API's messages, which are generated.
func TestPackagesMakeLittleAtTheStart(t *testing.T) {
	const (
		most = 16 << 10
		ours = "github.com/locksidecar/locksidecar/"
	)
	seen := 0
	for line := range strings.Lines(cliEnv(t, []string{"GODEBUG=inittrace=1"}, "version").err) {
		var name string
		var at, took float64
		var bytes, times int
		if _, err := fmt.Sscanf(line, "init %s @%f ms, %f ms clock, %d bytes, %d allocs", &name, &at, &took, &bytes, &times); err != nil {
			continue
		}
		seen++
		if strings.HasPrefix(name, ours) && name != ours+"api/locksidecar/v1" && bytes > most {
			t.Errorf("%s makes %d bytes, at most %d are allowed", name, bytes, most)
		}
	}
	if seen < 10 {
		t.Errorf("%d packages were seen", seen)
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
