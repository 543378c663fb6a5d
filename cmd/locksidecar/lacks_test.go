package main

import (
	"strings"
	"testing"

	"github.com/locksidecar/locksidecar/internal/testengine"
)

// TestWhatTheStoreLacks: a store that has no permits, no min_hold and no detached locks says so, and the command does not run.
func TestWhatTheStoreLacks(t *testing.T) {
	t.Parallel()
	store := onStore(t, testengine.MariaDB)
	store[1] += "?strategy=row"
	side := serveProgram(t, store...)
	for _, c := range []struct {
		args []string
		code int
		says string
	}{
		{[]string{"run", "--socket", side.socket, "--limit", "2", "exports", "--", "true"}, exitUnavailable, "this store has no permits"},
		{[]string{"run", "--socket", side.socket, "--min-hold", "1h", "report", "--", "true"}, exitUnavailable, "this store has no min_hold"},
		{[]string{"detached", "take", "--socket", side.socket, "--ttl", "1h", "export"}, exitFailure, "this store has no detached holds"},
	} {
		got := cli(t, c.args...)
		if got.code != c.code || !strings.Contains(got.err, c.says) {
			t.Errorf("%q: %+v; want status %d and %q", c.args, got, c.code, c.says)
		}
	}
}
