package main

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/locksidecar/locksidecar/client"
	"github.com/locksidecar/locksidecar/internal/testengine"
)

const (
	counters   = 10 // processes
	increments = 10 // of each
	fewer      = 5  // of each, on all stores but one: what can be wrong is in run, and each of them has it
	alone      = 3  // of each, where each is by a sidecar of its own
)

// increment is what is wrong without a lock.
const increment = `n=$(cat "$F"); echo $((n+1)) >"$F"`

// countTogether runs a script n times in each of many processes and looks at
// what they have counted. env is for process i.
func countTogether(t *testing.T, n int, script string, env func(i int) []string) {
	t.Helper()
	file := filepath.Join(t.TempDir(), "f")
	if err := os.WriteFile(file, []byte("0\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	began := time.Now()
	var all []*program
	for i := range counters {
		all = append(all, launch(t, append(env(i), "F="+file, "LOCKSIDECAR="+binary, fmt.Sprintf("N=%d", n), "INCREMENT="+increment),
			"sh", "-c", `set -e; while [ $N -gt 0 ]; do `+script+`; N=$((N-1)); done`))
	}
	for _, p := range all {
		select {
		case <-p.exited:
		case <-time.After(5 * time.Minute):
			t.Fatal("they do not end")
		}
		if p.code != 0 {
			t.Fatalf("status %d, stderr %q", p.code, p.err)
		}
	}
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if got, want := strings.TrimSpace(string(text)), fmt.Sprint(counters*n); got != want {
		t.Errorf("they counted to %s, want %s", got, want)
	}
	t.Logf("%d increments in %s", counters*n, time.Since(began))
}

// atTwo sends half of the processes through each of two sidecars.
func atTwo(t *testing.T, kind *testengine.Kind) func(i int) []string {
	store := onStore(t, kind)
	sides := []*sidecarProgram{serveProgram(t, store...), serveProgram(t, store...)}
	return func(i int) []string {
		return []string{"LOCKSIDECAR_SOCKET=" + sides[i%2].socket, "FIFO=" + filepath.Join(t.TempDir(), "fifo")}
	}
}

func TestCountWithRun(t *testing.T) {
	onEach(t, func(t *testing.T, kind *testengine.Kind) {
		n := increments
		if kind != testengine.Redis {
			n = fewer
		}
		countTogether(t, n, `$LOCKSIDECAR run counter -- sh -c "$INCREMENT"`, atTwo(t, kind))
	})
}

// Each run is its own sidecar: it comes and goes with its command.
func TestCountWithRunAlone(t *testing.T) {
	onEach(t, func(t *testing.T, kind *testengine.Kind) {
		store := onStore(t, kind)
		countTogether(t, alone, `$LOCKSIDECAR run $STORE counter -- sh -c "$INCREMENT"`, func(int) []string {
			return []string{"STORE=" + strings.Join(store, " ")}
		})
	})
}

func TestCountWithCurl(t *testing.T) {
	countTogether(t, increments, `rm -f "$FIFO"; mkfifo "$FIFO"
		curl -sN --unix-socket "$LOCKSIDECAR_SOCKET" http://locksidecar/v1/hold -d '{"resource":"counter"}' >"$FIFO" & curl=$!
		exec 3<"$FIFO"
		read -r line <&3
		case $line in '{"granted":'*) ;; *) echo "$line" >&2; exit 1;; esac
		sh -c "$INCREMENT"
		kill $curl; wait $curl || true
		exec 3<&-`, atTwo(t, testengine.Redis))
}

// waiterAt waits for a lock at a sidecar and tells when it got it.
func waiterAt(t *testing.T, side *sidecarProgram, resource string) <-chan time.Time {
	t.Helper()
	c := dial(t, side)
	s, err := c.OpenSession(t.Context(), client.SessionOptions{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.Close() })
	granted := make(chan time.Time, 1)
	go func() {
		if _, err := s.Acquire(t.Context(), resource, client.AcquireOptions{}); err != nil {
			t.Errorf("acquire: %v", err)
		}
		granted <- time.Now()
	}()
	eventually(t, "it waits", func() bool { _, n := status(t, c, resource); return n == 1 })
	return granted
}

func takes(t *testing.T, granted <-chan time.Time, since time.Time) {
	t.Helper()
	select {
	case at := <-granted:
		t.Logf("granted after %s", at.Sub(since))
	case <-time.After(patience):
		t.Fatal("never granted")
	}
}

// kill -9 of the holder lets the waiter at the other sidecar in at once.
func TestKilledHolder(t *testing.T) {
	onEach(t, func(t *testing.T, kind *testengine.Kind) {
		store := onStore(t, kind, "--ttl", "10s")
		one, other := serveProgram(t, store...), serveProgram(t, store...)
		best := time.Hour
		for i := 0; i < 10 && best > time.Second; i++ { // the machine may be busy; the road is what is measured
			resource := fmt.Sprintf("a%d", i)
			app := launch(t, nil, "curl", "-sN", "--unix-socket", one.socket, "http://locksidecar/v1/hold", "-d", `{"resource":"`+resource+`"}`)
			eventually(t, "curl has the lock", func() bool { return strings.Contains(app.out.String(), "granted") })
			granted := waiterAt(t, other, resource)
			killed := time.Now()
			app.signal(syscall.SIGKILL)
			select {
			case at := <-granted:
				best = min(best, at.Sub(killed))
			case <-time.After(patience):
				t.Fatal("never granted")
			}
		}
		t.Logf("the best: %s", best)
		if best > time.Second { // a waiter that nobody wakes looks after 3 s
			t.Errorf("the best of ten took %s", best)
		}
	})
}

// kill -9 of the holder's sidecar lets it in when the TTL is over, and the
// holder knows at once.
func TestKilledSidecar(t *testing.T) {
	onEach(t, func(t *testing.T, kind *testengine.Kind) {
		t.Parallel()
		const ttl = 6 * time.Second
		store := onStore(t, kind, "--ttl", ttl.String())
		one, other := serveProgram(t, store...), serveProgram(t, store...)
		run, log := startWorker(t, "--socket", one.socket, "a")
		granted := waiterAt(t, other, "a")
		killed := time.Now()
		one.signal(syscall.SIGKILL)
		if code := run.wait(); code != exitLost {
			t.Errorf("status %d", code)
		}
		for _, pid := range workerPIDs(log) {
			if alive(pid) {
				t.Errorf("process %d is alive", pid)
			}
		}
		takes(t, granted, killed)
	})
}
