package main

import (
	"strings"
	"testing"

	"github.com/locksidecar/locksidecar/internal/testengine"
)

// TestWhatTheStoreLacks: a store that has no permits and no min_hold says so, and the command does not run.
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
		{[]string{"run", "--limit", "2", "exports", "--", "true"}, exitUnavailable, "this store has no permits"},
		{[]string{"run", "--min-hold", "1h", "report", "--", "true"}, exitUnavailable, "this store has no min_hold"},
	} {
		got := cli(t, append([]string{c.args[0], "--socket", side.socket}, c.args[1:]...)...)
		if got.code != c.code || !strings.Contains(got.err, c.says) {
			t.Errorf("%q: %+v; want status %d and %q", c.args, got, c.code, c.says)
		}
	}
}
