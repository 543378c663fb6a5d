package mysql

import (
	"context"
	"database/sql/driver"
	"errors"
	"os"
	"testing"
	"time"

	"github.com/go-sql-driver/mysql"

	"github.com/locksidecar/locksidecar/backends/backendtest"
	"github.com/locksidecar/locksidecar/lock"
)

const patience = time.Minute

// again runs a test, and once more where the machine was too busy for it. It is not for tests of what
// happens without an answer.
func again(t *testing.T, test func(t testing.TB)) {
	t.Helper()
	backendtest.Again(t, test, os.ErrDeadlineExceeded, context.DeadlineExceeded, mysql.ErrInvalidConn, driver.ErrBadConn)
}

// sidecar opens a backend and a lease that live as long as the test.
func sidecar(t testing.TB, url string, ttl time.Duration) (*store, lock.Lease) {
	t.Helper()
	b := openAt(t, url)
	t.Cleanup(func() { _ = b.Close() })
	var l lock.Lease
	var opened time.Duration
	eventually(t, "a lease is opened", func() (err error) {
		opened = lock.BootTime()
		l, err = b.OpenLease(t.Context(), lock.LeaseOptions{TTL: ttl, Sidecar: t.Name()})
		return err
	})
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), 2*time.Second)
		defer cancel()
		_ = l.Close(ctx) // the server may be gone
	})
	return b, backendtest.Timed(l, ttl, opened)
}

var eventually, beat = backendtest.Eventually, backendtest.Beat

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
