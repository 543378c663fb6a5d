package main

import (
	"os"
	"strings"
	"testing"

	"github.com/hashicorp/go-hclog"
)

// TestNoTakeoverByOneThatEnds: a sidecar whose probes cannot be served before it can grant locks ends. It leaves the
// socket to the one that serves it.
func TestNoTakeoverByOneThatEnds(t *testing.T) {
	old := serveProgram(t)
	before, err := os.Lstat(old.socket)
	if err != nil {
		t.Fatal(err)
	}
	side, err := newSidecar(t.Context(), sidecarOptions{
		store: "redis://127.0.0.1:1", name: "new", socket: old.socket, socketMode: 0o600, replace: true,
		httpAddr: "127.0.0.1:0", logger: hclog.NewNullLogger(),
	})
	if err != nil {
		t.Fatal(err)
	}
	_ = side.health.listener.Close()
	if err := side.Run(t.Context(), nil); err == nil || !strings.Contains(err.Error(), "serve probes") {
		t.Errorf("it ended with: %v", err)
	}
	if after, err := os.Lstat(old.socket); err != nil || !os.SameFile(before, after) {
		t.Errorf("the socket is another one now: %v", err)
	}
	if got := cli(t, "info", "--socket", old.socket); got.code != 0 {
		t.Errorf("who serves: %+v", got)
	}
}
