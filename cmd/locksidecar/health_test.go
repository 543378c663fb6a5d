package main

import (
	"net"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/locksidecar/locksidecar/internal/testengine"
)

// checkHealth runs the probe once.
func checkHealth(t *testing.T, socket string, code int, line string, args ...string) {
	t.Helper()
	got := cli(t, append([]string{"health", "--socket", socket, "--timeout", patience.String()}, args...)...)
	if text := got.out + got.err; got.code != code || !strings.Contains(text, line) || strings.Count(text, "\n") != 1 || (got.out != "") != (code == 0) {
		t.Errorf("health %v: status %d, stdout %q, stderr %q; want %d and one line with %q", args, got.code, got.out, got.err, code, line)
	}
}

// awaitHealth waits until the probe says ready, or not ready.
func awaitHealth(t *testing.T, socket string, code int) {
	t.Helper()
	eventually(t, "the probe changes its mind", func() bool {
		return cli(t, "health", "--socket", socket, "--timeout", patience.String()).code == code
	})
}

func TestHealth(t *testing.T) {
	dir := socketDir(t)
	checkHealth(t, filepath.Join(dir, "s"), exitFailure, "there is no such socket; start a sidecar with")

	side := serveAt(t, filepath.Join(dir, "s"))
	awaitHealth(t, side.socket, 0)
	checkHealth(t, side.socket, 0, "ready")
	checkHealth(t, side.socket, 0, "ok", "--live")
	if got := cliEnv(t, []string{"LOCKSIDECAR_SOCKET=" + side.socket}, "health"); got.code != 0 {
		t.Errorf("by the environment: %+v", got)
	}

	hold(t, dial(t, side), "a") // keeps it from stopping
	side.signal(syscall.SIGTERM)
	awaitHealth(t, side.socket, exitFailure)
	checkHealth(t, side.socket, exitFailure, "not ready: the sidecar is stopping")
	checkHealth(t, side.socket, exitFailure, "not ready: the sidecar is stopping", "--once")
	checkHealth(t, side.socket, 0, "ok", "--live")

	side.signal(syscall.SIGKILL)
	side.wait()
	checkHealth(t, side.socket, exitFailure, "the sidecar that made it is gone")
	checkHealth(t, side.socket, exitFailure, "the sidecar that made it is gone", "--live")
}

// A store that is down makes the sidecar not ready, and is no reason to restart it.
func TestHealthWithoutStore(t *testing.T) {
	t.Parallel()
	proxy := testengine.Through(t, testengine.Shared(t, testengine.Redis))
	side := serveProgram(t, "--store", proxy.URL()+"?restart-grace=0s", "--namespace", namespace(t), "--ttl", "3s")
	awaitHealth(t, side.socket, 0)
	proxy.Inject(testengine.Cut)
	awaitHealth(t, side.socket, exitFailure)
	checkHealth(t, side.socket, exitFailure, "the store is unavailable")
	checkHealth(t, side.socket, 0, "ok", "--live")
	checkHealth(t, side.socket, 0, "ready", "--once")
	if err := proxy.Heal(); err != nil {
		t.Fatal(err)
	}
	awaitHealth(t, side.socket, 0)
}

// A sidecar that never had its store is not ready in any way.
func TestHealthBeforeTheStore(t *testing.T) {
	side := serveProgram(t, "--store", "redis://127.0.0.1:1")
	for _, args := range [][]string{nil, {"--once"}} {
		checkHealth(t, side.socket, exitFailure, "not ready: no lease", args...)
	}
	checkHealth(t, side.socket, 0, "ok", "--live")
}

// A sidecar that hangs fails both probes, in time.
func TestHealthOfAFrozenSidecar(t *testing.T) {
	side := serveProgram(t)
	freeze(t, side.cmd.Process.Pid)
	for _, args := range [][]string{nil, {"--live"}} {
		start := time.Now()
		got := cli(t, append([]string{"health", "--socket", side.socket, "--timeout", "50ms"}, args...)...)
		if got.code != exitFailure || !strings.Contains(got.err, "no answer within 50ms") || time.Since(start) > patience/2 {
			t.Errorf("%v: after %s %+v", args, time.Since(start), got)
		}
	}
}

// Apps that take all connections are no reason to restart the sidecar.
func TestHealthWithoutRoom(t *testing.T) {
	side := serveProgram(t, "--max-connections", "1")
	c, err := net.Dial("unix", side.socket)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	// A connection in use keeps its place; one that only lies there makes room.
	if _, err := c.Write([]byte("POST /v1/hold HTTP/1.1\r\nHost: x\r\nContent-Length: 16\r\n\r\n{\"resource\":\"r\"}")); err != nil {
		t.Fatal(err)
	}
	if _, err := c.Read(make([]byte, 1)); err != nil {
		t.Fatal(err)
	}
	checkHealth(t, side.socket, exitFailure, "limit reached: at most 1 connections")
	checkHealth(t, side.socket, 0, "no room for another connection", "--live")
}

func TestHealthRefusesWrongSettings(t *testing.T) {
	for _, args := range [][]string{{"--timeout", "0s"}, {"now"}, {"--lively"}, {"--live", "--once"}} {
		if got := cli(t, append([]string{"health"}, args...)...); got.code != exitUsage {
			t.Errorf("%v: %+v", args, got)
		}
	}
}
