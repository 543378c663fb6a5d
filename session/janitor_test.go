package session

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/hashicorp/go-hclog"

	"github.com/locksidecar/locksidecar/lock"
)

// rowLease is a store where a transaction of an app holds the rows of some locks.
type rowLease struct{ lock.Lease }

func (rowLease) Release(ctx context.Context, r lock.Resource, _ lock.HoldID) error {
	if strings.HasPrefix(string(r), "row") {
		<-ctx.Done()
		return fmt.Errorf("release: %w: %w", lock.ErrUnavailable, ctx.Err())
	}
	return nil
}

// TestNoSessionHoldsUpTheEndOfAnother: an app with many holds has ended, frozen in
// a transaction, so that the store does not answer to their releases. What another
// app leaves behind is released all the same, at the start and when all of the
// first were tried.
func TestNoSessionHoldsUpTheEndOfAnother(t *testing.T) {
	for _, later := range []time.Duration{0, time.Minute} {
		bubble(t, func(t *testing.T, e *env) {
			ctx, cancel := context.WithCancel(t.Context())
			j := newJanitor(ctx, rowLease{}, func() {}, func(chore) {}, &logger{out: hclog.NewNullLogger()})

			for n := range 1000 {
				r := fmt.Sprint("row", n)
				j.add(chore{session: "frozen", resource: lock.Resource(r), id: lock.HoldID(r)})
			}
			time.Sleep(later)
			began := e.now()
			b := newBatch(10)
			for n := range 10 {
				r := fmt.Sprint("other", n)
				j.add(chore{session: "other", resource: lock.Resource(r), id: lock.HoldID(r), batch: b})
			}
			<-b.done
			if took := e.now() - began; took > 2*firstTimeout {
				t.Errorf("after %v: took %v", later, took)
			}
			cancel()
			j.stop()
		})
	}
}
