package mysql

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	"github.com/locksidecar/locksidecar/internal/testengine"
	"github.com/locksidecar/locksidecar/lock"
)

// Many sidecars end, as when all are replaced by a new version. For a minute the keeper asks with each of its rounds whether
// anything is left of them: with a request or two for all, and not with one for each. What comes in late is cleared away.
func TestManyEndedLeases(t *testing.T) {
	t.Parallel()
	eachKind(t, testManyEndedLeases)
}

func testManyEndedLeases(t testing.TB, s testengine.Server) {
	const ended, rounds = 40, 3
	url := own(t, s, "ended_")
	var sweeps, observed atomic.Int64
	keeper := openWith(t, url, func(command string, _ time.Duration, _ error) {
		switch command {
		case "sweep":
			sweeps.Add(1)
		case "observe":
			observed.Add(1)
		}
	})
	t.Cleanup(func() { _ = keeper.Close() })
	keepAlive(t, t.Context(), leaseFor(t, keeper, 5*time.Second))
	b := openAt(t, url)
	t.Cleanup(func() { _ = b.Close() })
	var last lock.LeaseID
	for range ended {
		l := leaseFor(t, b, time.Minute)
		last = l.ID()
		if err := l.Close(context.WithoutCancel(t.Context())); err != nil {
			t.Fatal(err)
		}
	}
	after := func(n int64) {
		t.Helper()
		n += observed.Load()
		eventually(t, "the keeper makes its rounds", func() error {
			if observed.Load() < n {
				return errors.New("it does not")
			}
			return nil
		})
	}
	eventually(t, "each was swept", func() error {
		if n := sweeps.Load(); n < ended {
			return fmt.Errorf("%d were", n)
		}
		return nil
	})
	after(2) // what was under way is over
	sweptBefore, observedBefore := sweeps.Load(), observed.Load()
	after(rounds)
	if swept, all := sweeps.Load()-sweptBefore, observed.Load()-observedBefore; swept < 1 || swept > 3*all {
		t.Errorf("the keeper has sent %d requests in %d rounds for %d leases that are over", swept, all, ended)
	}
	// Nothing but a request that began before the end can do this, and no test makes one wait in the server for so long.
	execute(t, b, "INSERT INTO {lock} (name, fence, crowd) VALUES ('late', 1, 1)")
	execute(t, b, "INSERT INTO {note} (name, id, lease, kind, era) VALUES ('late', 'late', ?, 1, 0)", []byte(last))
	eventually(t, "what came late is cleared away", func() error {
		if n := number(t, b, "SELECT COUNT(*) FROM {note}"); n > 0 {
			return fmt.Errorf("there are %d notes", n)
		}
		return nil
	})
}
