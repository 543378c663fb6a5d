package sqllock

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/locksidecar/locksidecar/backends/leasekit"
)

// A sidecar that waits sees leases that are over, one after the other, for as long as it lives. Only the keeper, which forgets
// them when their rows are gone, has to know of them when they were swept.
func TestEndedLeasesAreForgotten(t *testing.T) {
	for who, kept := range map[string]int{"the keeper": 100, "another": 0} {
		t.Run(who, func(t *testing.T) {
			words := func(name string) string { return name }
			w := Words{
				Table: words, Join: func(a, b string) string { return a + b }, InsertNew: words,
				Returning: func(expr, _ string) (value, tail string) { return expr, "" },
			}
			b := &Backend{pool: cleanPool{}, sql: newStatements(w), clock: func() time.Duration { return 0 }}
			l := &lease{b: b, id: "own", ended: make(map[string]*overLease), sweeps: make(chan struct{}, 1)}
			l.observer = leasekit.NewObserver(l, leasekit.ObserverOptions{ID: "own", TTL: time.Second, Clock: b.clock, MostRound: mostRound})
			if kept > 0 {
				l.observer.SawKeeper(leasekit.KeeperRound{Lease: "own", TTL: time.Second, Round: 1})
			}
			for i := range 100 {
				l.overdue(fmt.Sprint(i), 0)
			}
			for len(l.dirty) > 0 || len(l.again) > 0 {
				l.sweepNext(t.Context())
			}
			if len(l.ended) != kept {
				t.Errorf("%d are known", len(l.ended))
			}
		})
	}
}

// cleanPool is that of a store in which nothing is left of any lease.
type cleanPool struct{ Pool }

func (cleanPool) Do(context.Context, string, ...Statement) ([]Result, error) {
	return []Result{{Rows: []Row{{false}}}}, nil
}
