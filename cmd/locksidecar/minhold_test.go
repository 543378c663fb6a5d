package main

import (
	"strings"
	"syscall"
	"testing"

	"github.com/locksidecar/locksidecar/internal/testengine"
)

// TestRunMinHold: others are kept out whether CMD ends, or run or its sidecar is killed.
func TestRunMinHold(t *testing.T) {
	onEach(t, func(t *testing.T, kind *testengine.Kind) {
		t.Parallel()
		store := onStore(t, kind, "--ttl", "6s")
		one, other := serveProgram(t, store...), serveProgram(t, store...)
		run := func(side *sidecarProgram, more ...string) result {
			return tries(t, append([]string{"run", "--socket", side.socket, "--wait", "0s", "--verbose", "--min-hold", "1h"}, more...)...)
		}
		runMinHold(t, one, other, run)
	})
}

// TestRunMinHoldEmbedded is the same on the embedded store, which the sidecars of a host share.
func TestRunMinHoldEmbedded(t *testing.T) {
	one := serveProgram(t)
	runMinHold(t, one, one, func(side *sidecarProgram, more ...string) result {
		return tries(t, append([]string{"run", "--socket", side.socket, "--wait", "0s", "--verbose", "--min-hold", "1h"}, more...)...)
	})
}

func runMinHold(t *testing.T, one, other *sidecarProgram, run func(side *sidecarProgram, more ...string) result) {
	if got := run(one, "report", "--", "true"); got.code != 0 || !strings.Contains(got.err, `released the lock on "report", which is kept for another `) {
		t.Errorf("the first: %+v", got)
	}
	refused := func(resource string) bool {
		got := run(other, resource, "--", "true")
		return got.code == exitNotGot && strings.Contains(got.err, "kept for another")
	}
	if !refused("report") {
		t.Error("the second runs, too")
	}
	if got := cli(t, "get", "--socket", other.socket, "report"); !strings.Contains(got.out, "kept until:") {
		t.Errorf("get: %+v", got)
	}
	if got := cli(t, "release", "--socket", other.socket, "--force", "report"); got.code != 0 {
		t.Errorf("release --force: %+v", got)
	}
	if got := run(other, "report", "--", "true"); got.code != 0 {
		t.Errorf("after a forced release: %+v", got)
	}
	for _, victim := range []string{"run", "sidecar"} {
		if victim == "sidecar" && one == other { // the store ends with it
			break
		}
		killed := launch(t, nil, binary, "run", "--socket", one.socket, "--min-hold", "1h", victim, "--", "sh", "-c", "echo runs; exec sleep 600")
		eventually(t, "CMD runs", func() bool { return strings.Contains(killed.out.String(), "runs") })
		if victim == "run" {
			killed.signal(syscall.SIGKILL)
		} else {
			one.signal(syscall.SIGKILL)
		}
		eventually(t, "it is kept, as nobody has it", func() bool { return refused(victim) })
	}
}
