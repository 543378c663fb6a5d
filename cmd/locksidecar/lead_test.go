package main

import (
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/locksidecar/locksidecar/internal/testengine"
)

// leaders counts lines that CMD of a leader has written, one a campaign.
func leaders(log string) int {
	text, err := os.ReadFile(log)
	if err != nil {
		return 0
	}
	return strings.Count(string(text), "\n")
}

// One leads, and says what it publishes. When it dies, the next one leads.
func TestLead(t *testing.T) {
	onEach(t, func(t *testing.T, kind *testengine.Kind) {
		t.Parallel()
		store := onStore(t, kind, "--ttl", "30s")
		one, other := serveProgram(t, store...), serveProgram(t, store...)
		log := filepath.Join(t.TempDir(), "log")
		lead := func(socket, value string) *program {
			return launch(t, nil, binary, "lead", "--socket", socket, "boss", "--publish", value, "--", "sh", "-c", `echo "$LOCKSIDECAR_FENCE" >>"$1"; exec sleep 600`, "sh", log)
		}
		eventually(t, "the sidecar says that nobody leads", func() bool { // it is ready when it has a lease
			got := cli(t, "leader", "--socket", other.socket, "boss")
			return got.code == exitNoLeader && got.out == "nobody leads boss\n"
		})
		first := lead(one.socket, "one:1")
		eventually(t, "somebody leads", func() bool { return leaders(log) == 1 })
		watch := launch(t, nil, binary, "leader", "--watch", "--interval", "100ms", "--socket", other.socket, "boss")
		eventually(t, "who leads is shown", func() bool { return strings.Contains(watch.out.String(), "publishes one:1") })
		if got := cli(t, "leader", "--socket", other.socket, "boss"); got.code != 0 || !strings.Contains(got.out, "publishes:   one:1") {
			t.Errorf("leader: %+v", got)
		}
		if got := tries(t, "lead", "--socket", other.socket, "--wait", "0s", "boss", "--", "true"); got.code != exitNotGot || !strings.Contains(got.err, "locksidecar lead: not run: ") {
			t.Errorf("another one: %+v", got)
		}
		lead(other.socket, "two:2")
		eventually(t, "a candidate waits", func() bool { _, n := status(t, dial(t, other), "boss"); return n == 1 })
		killed := time.Now()
		first.signal(syscall.SIGKILL)
		eventually(t, "the next one leads", func() bool { return leaders(log) == 2 })
		t.Logf("the next one's CMD ran within %s", time.Since(killed))
		eventually(t, "the change is shown", func() bool { return strings.Contains(watch.out.String(), "publishes two:2") })
		if got := cli(t, "leader", "--socket", one.socket, "-o", "json", "boss"); got.code != 0 || !strings.Contains(got.out, `"value": "two:2"`) {
			t.Errorf("leader: %+v", got)
		}
	})
}

// Who stops lead stops its campaigns, though CMD ends well for the signal: while it runs,
// and in the pause before the next campaign.
func TestLeadIsStopped(t *testing.T) {
	side := serveProgram(t)
	log := filepath.Join(t.TempDir(), "log")
	for _, sig := range []syscall.Signal{syscall.SIGTERM, syscall.SIGINT, syscall.SIGQUIT} {
		before := leaders(log)
		lead := launch(t, nil, binary, "lead", "--socket", side.socket, "boss", "--", "sh", "-c",
			`trap 'exit 0' TERM INT QUIT; echo >>"$1"; while :; do sleep 0.01; done`, "sh", log)
		eventually(t, "it leads", func() bool { return leaders(log) > before })
		lead.signal(sig)
		if code := lead.wait(); code != 0 || leaders(log) != before+1 {
			t.Errorf("%s: status %d after %d campaigns", sig, code, leaders(log)-before)
		}
	}
	before := leaders(log)
	lead := launch(t, nil, binary, "lead", "--socket", side.socket, "boss", "--", "sh", "-c", `echo >>"$1"`, "sh", log)
	eventually(t, "it has led", func() bool { return leaders(log) > before })
	lead.signal(syscall.SIGTERM)
	lead.wait() // by the signal, in the pause; or CMD was not quite at its end, and took it
}

// A CMD that ends well leads to the next campaign; any other status, and a loss, end lead.
func TestLeadStandsAgain(t *testing.T) {
	side := serveProgram(t)
	log := filepath.Join(t.TempDir(), "log")
	lead := launch(t, nil, binary, "lead", "--socket", side.socket, "boss", "--", "sh", "-c", `echo >>"$1"; [ "$(wc -l <"$1")" -lt 2 ] || exit 7`, "sh", log)
	if code := lead.wait(); code != 7 || leaders(log) != 2 {
		t.Errorf("status %d after %d campaigns: %s", code, leaders(log), lead.err.String())
	}
	lead = launch(t, nil, binary, "lead", "--socket", side.socket, "boss", "--", "sh", "-c", `echo >>"$1"; exec sleep 600`, "sh", log)
	eventually(t, "it leads", func() bool { return leaders(log) == 3 })
	if got := cli(t, "release", "--force", "--socket", side.socket, "boss"); got.code != 0 {
		t.Fatalf("%+v", got)
	}
	if code := lead.wait(); code != exitLost {
		t.Errorf("forced: status %d", code)
	}
	if got := cli(t, "lead", "--socket", side.socket, "a", "b", "--", "true"); got.code != exitOwnFailure || !strings.Contains(got.err, "give one NAME, then -- and CMD") {
		t.Errorf("two names: %+v", got)
	}
}

// A -- among the arguments of CMD is CMD's.
func TestLeadOfACommandWithDashes(t *testing.T) {
	t.Parallel()
	side := serveProgram(t)
	if got := cli(t, "lead", "--socket", side.socket, "boss", "--", "grep", "x", "--", "/dev/null"); got.code != 1 || got.err != "" { // grep's: nothing is found
		t.Errorf("%+v", got)
	}
}
