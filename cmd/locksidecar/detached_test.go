package main

import (
	"context"
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/locksidecar/locksidecar/internal/testengine"
	"github.com/locksidecar/locksidecar/lock"
)

// TestDetached: an HTTP request locks and detaches at one sidecar, a worker at another one attaches,
// finishes and releases; whoever is killed in between.
func TestDetached(t *testing.T) {
	onEach(t, func(t *testing.T, kind *testengine.Kind) {
		t.Parallel()
		store := onStore(t, kind, "--ttl", "6s")
		one := serveProgram(t, store...)
		detachAndKill(t, one, serveProgram(t, store...), serveProgram(t, store...))
	})
}

// TestDetachedEmbedded is the same on the embedded store, which ends with its sidecar.
func TestDetachedEmbedded(t *testing.T) {
	one := serveProgram(t)
	detachAndKill(t, one, one, one)
}

func detachAndKill(t *testing.T, one, two, three *sidecarProgram) {
	handle, fence := detachOverHTTP(t, one)
	if one != two {
		one.signal(syscall.SIGKILL)
	}
	state := func(word string) func() bool {
		return func() bool {
			got := cli(t, "get", "--socket", three.socket, "export")
			return strings.Contains(got.out, word)
		}
	}
	eventually(t, "it is detached", state("detached until:"))
	if got := tries(t, "run", "--socket", two.socket, "--wait", "0s", "export", "--", "true"); got.code != exitNotGot || !strings.Contains(got.err, "detached EXCLUSIVE for another") {
		t.Errorf("another app: %+v", got)
	}
	work := func(side *sidecarProgram) *program {
		p := launch(t, []string{"LOCKSIDECAR_HANDLE=" + handle}, binary, "run", "--socket", side.socket, "--", "sh", "-c", `echo "$LOCKSIDECAR_RESOURCE $LOCKSIDECAR_FENCE ${LOCKSIDECAR_HANDLE-none}"; exec sleep 600`)
		eventually(t, "the worker has it", func() bool { return strings.Contains(p.out.String(), "export "+fence+" none") })
		return p
	}
	worker := work(two)
	eventually(t, "it is held", state("held by:"))
	worker.signal(syscall.SIGKILL)
	eventually(t, "it is detached again, when the worker was killed", state("detached until:"))
	worker = work(two)
	if two != three {
		two.signal(syscall.SIGKILL)
		eventually(t, "it is detached again, when the sidecar was killed", state("detached until:"))
	}
	if got := cli(t, "detached", "extend", "--socket", three.socket, "--ttl", "2h", handle); got.code != 0 || !strings.Contains(got.out, "export: detached for another ") {
		t.Errorf("extend: %+v", got)
	}
	if got := cliEnv(t, []string{"LOCKSIDECAR_HANDLE=" + handle}, "run", "--socket", three.socket, "--", "sh", "-c", `echo "$LOCKSIDECAR_FENCE"`); got.code != 0 || strings.TrimSpace(got.out) != fence {
		t.Errorf("the last worker: %+v, want fence %s", got, fence)
	}
	if two == three { // from which it was taken over
		worker.wait()
		if worker.code != exitLost || !strings.Contains(worker.err.String(), "with its handle") {
			t.Errorf("the worker before: status %d, %s", worker.code, worker.err)
		}
	}
	if got := tries(t, "run", "--socket", three.socket, "--wait", "0s", "export", "--", "true"); got.code != 0 {
		t.Errorf("after the release: %+v", got)
	}
	if got := cli(t, "detached", "release", "--socket", three.socket, handle); got.code != exitFailure || !strings.Contains(got.err, "no detached hold") {
		t.Errorf("release of what is released: %+v", got)
	}
	taken := tries(t, "detached", "take", "--socket", three.socket, "--ttl", "1h", "--wait", "0s", "export")
	if taken.code != 0 {
		t.Fatalf("take: %+v", taken)
	}
	if got := tries(t, "detached", "take", "--socket", three.socket, "--ttl", "1h", "--wait", "0s", "export"); got.code != exitNotGot {
		t.Errorf("take again: %+v", got)
	}
	if got := cli(t, "detached", "release", "--socket", three.socket, strings.TrimSpace(taken.out)); got.code != 0 || got.out != "released\n" {
		t.Errorf("release: %+v", got)
	}
}

// detachOverHTTP takes a lock and detaches it, as an HTTP request does, and gives its handle and fence.
func detachOverHTTP(t *testing.T, side *sidecarProgram) (handle, fence string) {
	t.Helper()
	c := &http.Client{Transport: &http.Transport{DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, "unix", side.socket)
	}}}
	defer c.CloseIdleConnections()
	ask := func(path, body string) map[string]any {
		t.Helper()
		q, err := http.NewRequestWithContext(t.Context(), http.MethodPost, "http://localhost"+path, strings.NewReader(body))
		if err != nil {
			t.Fatal(err)
		}
		a, err := c.Do(q)
		if err != nil {
			t.Fatal(err)
		}
		defer a.Body.Close()
		var m map[string]any
		if err := json.NewDecoder(a.Body).Decode(&m); err != nil || a.StatusCode != http.StatusOK {
			t.Fatalf("%s: %s, %v, %v", path, a.Status, m, err)
		}
		return m
	}
	session := ask("/v1/sessions", `{"ttl":"60s"}`)["sessionId"].(string)
	g := ask("/v1/sessions/"+session+"/locks", `{"resource":"export","detachable":true}`)
	d := ask("/v1/sessions/"+session+"/locks/"+g["lockId"].(string)+":detach", `{"ttl":"3600s"}`)
	if d["fence"] != g["fence"] {
		t.Errorf("granted %v, detached %v", g, d)
	}
	return d["handle"].(string), d["fence"].(string)
}

// TestDetachedTakeOfASilentSidecar: the handle is printed that the sidecar has answered with, whatever it does then.
func TestDetachedTakeOfASilentSidecar(t *testing.T) {
	t.Parallel()
	socket := filepath.Join(t.TempDir(), "s")
	l, err := net.Listen("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.Close() })
	go func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			t.Cleanup(func() { _ = conn.Close() }) // and not before
			go answerLines(conn)
		}
	}()
	if got := cli(t, "detached", "take", "--socket", socket, "--ttl", "1h", "export"); got.code != 0 || got.out != "lsh1_secret\n" {
		t.Errorf("got %+v, want the handle", got)
	}
}

// answerLines answers to a greeting, or in a session that acquires and detaches.
func answerLines(conn net.Conn) {
	lines := json.NewDecoder(conn)
	for n := 0; ; n++ {
		var q map[string]json.RawMessage
		if err := lines.Decode(&q); err != nil {
			if n == 0 {
				_, _ = fmt.Fprint(conn, "HTTP/1.1 200 OK\r\n\r\n")
			}
			return
		}
		hold := fmt.Sprintf(`"resource":"export","mode":"EXCLUSIVE","fence":"1024","validFor":"3600s","countedAt":"%.3fs"`, lock.BootTime().Seconds())
		answer := `"opened":{"sessionId":"1"}`
		if q["acquire"] != nil {
			answer = `"granted":{"lockId":"1","count":1,` + hold + "}"
		} else if q["detach"] != nil {
			answer = `"detached":{"handle":"lsh1_secret",` + hold + "}"
		}
		if _, err := fmt.Fprintf(conn, "{\"requestId\":%s,%s}\n", q["requestId"], answer); err != nil {
			return
		}
	}
}
