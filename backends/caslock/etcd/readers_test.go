package etcd

import (
	"context"
	"testing"
	"time"

	"github.com/locksidecar/locksidecar/arbiter"
	"github.com/locksidecar/locksidecar/internal/testengine"
	"github.com/locksidecar/locksidecar/lock"
)

// Many sidecars have parked a hold of the same readers' lock. Who wants to write has it when they were told, and does not wait until
// they need it no more.
func TestWriterBehindManyReaders(t *testing.T) {
	const readers, park, soon = 20, time.Minute, 30 * time.Second
	s := testengine.Shared(t, testengine.Etcd)
	name := lock.Resource("readers" + string(lock.NewHoldID()))
	open := func() lock.Lease {
		b, err := Open(s.URL(), nil)
		if err != nil {
			t.Fatal(err)
		}
		f := arbiter.New(b, arbiter.Options{Turns: arbiter.MaxTurns, Park: park})
		l, err := f.OpenLease(t.Context(), lock.LeaseOptions{TTL: 4 * park})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			bounded, cancel := context.WithTimeout(context.Background(), patience)
			defer cancel()
			_ = l.Close(bounded)
			_ = f.Close()
		})
		return l
	}
	for range readers {
		l := open()
		go func() {
			for range l.Events() { // somebody has to take them
			}
		}()
		for range 3 { // it is parked when it has come back
			q := lock.Request{ID: lock.NewHoldID(), Resource: name, Mode: lock.Shared}
			if _, err := l.Acquire(t.Context(), q); err != nil {
				t.Fatal(err)
			}
			if err := l.Release(t.Context(), name, q.ID); err != nil {
				t.Fatal(err)
			}
		}
	}
	l := open()
	ctx, cancel := context.WithTimeout(t.Context(), soon)
	defer cancel()
	began := time.Now()
	q := lock.Request{ID: lock.NewHoldID(), Resource: name, Mode: lock.Exclusive}
	if _, err := l.Acquire(ctx, q); err != nil {
		t.Fatalf("after %s, while %d sidecars keep it for %s: %v", time.Since(began), readers, park, err)
	}
	t.Logf("it waited %s", time.Since(began))
	if err := l.Release(t.Context(), name, q.ID); err != nil {
		t.Error(err)
	}
}
