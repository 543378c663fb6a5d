package mysql

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"
	"time"

	"github.com/locksidecar/locksidecar/internal/testengine"
	"github.com/locksidecar/locksidecar/lock"
)

// The connection that sleeps until it is woken is no slow request: it would keep the
// alarm of a slow store firing for ever.
func TestSleepIsNotMeasured(t *testing.T) {
	eachKind(t, func(t testing.TB, s testengine.Server) {
		var measured, rang atomic.Int64
		d := New(mustParse(t, s.URL()), func(command string, _ time.Duration, _ error) {
			if command == "listen" {
				measured.Add(1)
			}
		})
		id := lock.NewLeaseID()
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan struct{})
		go func() {
			defer close(done)
			_ = d.Listen(ctx, id, "", func() { rang.Add(1) })
		}()
		defer func() {
			cancel()
			<-done
		}()
		b := openAt(t, s.URL())
		t.Cleanup(func() { _ = b.Close() })
		for n := range int64(3) { // before it sleeps, and twice when it was woken
			eventually(t, "the bell is heard", func() error {
				if rang.Load() > n {
					return nil
				}
				if n > 0 { // it may have rung before the sleep began
					_ = d.Ring(t.Context(), b.pool(t), []lock.LeaseID{id})
				}
				return errors.New("silence")
			})
		}
		// When it begins it asks for its named lock, which is measured.
		if n := measured.Load(); n != 1 {
			t.Errorf("%d requests of the listener were measured, want 1: it has slept twice", n)
		}
	})
}
