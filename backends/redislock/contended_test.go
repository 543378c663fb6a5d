package redislock

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

// several is a request for several apps.
type several struct{}

func (several) Stay() bool { return false }

// However many sidecars share a lock, each hears that somebody waits for it: else it would
// keep what it has parked.
func TestManyWhoShareHearOfAWriter(t *testing.T) { again(t, testManyWhoShareHearOfAWriter) }

func testManyWhoShareHearOfAWriter(t testing.TB) {
	const n = 40
	s := testengine.New(t, testengine.Redis)
	b, writer := sidecar(t, s.URL()+noGrace, time.Minute)
	swallow(writer)
	var heard atomic.Int64
	for range n {
		l, err := b.OpenLease(t.Context(), lock.LeaseOptions{TTL: time.Minute, Sidecar: "shares"})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = l.Close(context.WithoutCancel(t.Context())) })
		go func() {
			for e := range l.Events() {
				if e.Kind == lock.Contended {
					heard.Add(1)
				}
			}
		}()
		q := exclusive("r")
		q.Mode, q.Cohort = lock.Shared, several{}
		if _, err := acquire(t.Context(), l, q); err != nil {
			t.Fatal(err)
		}
	}
	waits := make(chan error, 1)
	q := exclusive("r")
	go func() {
		_, err := writer.Acquire(t.Context(), q)
		waits <- err
	}()
	eventually(t, "all have heard of it", func() error {
		if got := heard.Load(); got != n {
			return fmt.Errorf("%d of %d have", got, n)
		}
		return nil
	})
	if err := b.ForceRelease(t.Context(), "r", q.ID, 0); err != nil {
		t.Error(err)
	}
	if err := <-waits; !errors.Is(err, lock.ErrNotHolder) {
		t.Errorf("the writer got %v", err)
	}
}
