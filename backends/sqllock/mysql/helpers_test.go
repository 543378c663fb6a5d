package mysql

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/locksidecar/locksidecar/lock"
)

const patience = time.Minute

// sidecar opens a backend and a lease that live as long as the test.
func sidecar(t testing.TB, url string, ttl time.Duration) (*store, lock.Lease) {
	t.Helper()
	b := openAt(t, url)
	t.Cleanup(func() { _ = b.Close() })
	var l lock.Lease
	eventually(t, "a lease is opened", func() (err error) {
		l, err = b.OpenLease(t.Context(), lock.LeaseOptions{TTL: ttl, Sidecar: t.Name()})
		return err
	})
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), 2*time.Second)
		defer cancel()
		_ = l.Close(ctx) // the server may be gone
	})
	return b, l
}

func eventually(t testing.TB, what string, f func() error) {
	t.Helper()
	deadline := time.Now().Add(patience)
	for {
		err := f()
		if err == nil {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("waited %s in vain until %s: %v", patience, what, err)
		}
		time.Sleep(20 * time.Millisecond)
	}
}

func hold(t testing.TB, l lock.Lease, r lock.Resource) lock.Grant {
	t.Helper()
	q := exclusive(r)
	var g lock.Grant
	eventually(t, "it is granted", func() (err error) {
		if g, err = l.Acquire(t.Context(), q); err != nil && !errors.Is(err, lock.ErrUnavailable) {
			t.Fatalf("Acquire: %v", err)
		}
		return err
	})
	return g
}
