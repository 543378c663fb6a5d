package redislock

import (
	"context"
	"errors"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/locksidecar/locksidecar/backends/backendtest"
	"github.com/locksidecar/locksidecar/lock"
)

const patience = time.Minute

// again runs a test, and once more where the machine was too busy for it. It is not for tests of what
// happens without an answer.
func again(t *testing.T, test func(t testing.TB)) {
	t.Helper()
	backendtest.Again(t, test, os.ErrDeadlineExceeded)
}

// patient has a backend wait for answers for longer than a busy machine stands still, unless
// the URL says otherwise.
func patient(url string) string {
	switch {
	case strings.Contains(url, "timeout="):
		return url
	case strings.Contains(url, "?"):
		return url + "&timeout=3s"
	default:
		return url + "?timeout=3s"
	}
}

// sidecar opens a backend and a lease that live as long as the test.
func sidecar(t testing.TB, url string, ttl time.Duration) (*Backend, lock.Lease) {
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

func exclusive(r lock.Resource) lock.Request {
	return lock.Request{ID: lock.NewHoldID(), Resource: r, Mode: lock.Exclusive, Owner: lock.Owner{Session: "test"}.Encode()}
}

func hold(t testing.TB, l lock.Lease, r lock.Resource) lock.Grant {
	t.Helper()
	g, err := acquire(t.Context(), l, exclusive(r))
	if err != nil {
		t.Fatalf("Acquire: %v", err)
	}
	return g
}

const noGrace = "?restart-grace=0s"

// try asks once.
func try(t testing.TB, l lock.Lease, r lock.Resource) (lock.Grant, error) {
	t.Helper()
	q := exclusive(r)
	q.Try = true
	return l.Acquire(t.Context(), q)
}

// swallow reads the events of a lease until it is closed.
func swallow(l lock.Lease) {
	go func() {
		for range l.Events() {
		}
	}()
}

// driverOf is a driver of a lease that is open already, with the same id.
func driverOf(t testing.TB, b *Backend, l lock.Lease) *driver {
	t.Helper()
	return driverNamed(b, l.ID())
}

// lone is a lease of which nothing but its driver is there: it sends no heartbeats by
// itself, and clears nothing away.
func lone(t testing.TB, b *Backend, ttl time.Duration) *driver {
	t.Helper()
	d := driverNamed(b, lock.NewLeaseID())
	d.ttl = ttl
	eventually(t, "a lease is opened", func() error {
		d.renewed = b.clock()
		return d.openSlot(t.Context(), d.slots[0])
	})
	return d
}

func driverNamed(b *Backend, id lock.LeaseID) *driver {
	d := &driver{
		b: b, id: id, ttl: 30 * time.Second, recheck: time.Second,
		beatTurn: make(chan struct{}, 1), more: make(chan lock.Resource, 8), looks: make(chan struct{}, 1),
		probes: make(chan struct{}, 1), found: make(chan finding, 1), subscribed: make(chan struct{}),
	}
	d.unlooked = time.NewTimer(time.Hour)
	for i := range b.keys.buckets {
		d.slots = append(d.slots, &slot{index: i, turn: make(chan struct{}, 1)})
	}
	d.renewed = b.clock()
	return d
}

// acquire acquires until the outcome is known: on a busy machine an answer of Redis can come
// later than a driver waits for it.
func acquire(ctx context.Context, l lock.Lease, q lock.Request) (g lock.Grant, err error) {
	for g, err = l.Acquire(ctx, q); errors.Is(err, lock.ErrUnavailable) && ctx.Err() == nil; {
		g, err = l.Acquire(ctx, q)
	}
	return g, err
}

// release does the same for a release.
func release(ctx context.Context, l lock.Lease, r lock.Resource, id lock.HoldID) error {
	err := l.Release(ctx, r, id)
	for errors.Is(err, lock.ErrUnavailable) && ctx.Err() == nil {
		if err = l.Release(ctx, r, id); errors.Is(err, lock.ErrNotHolder) {
			return nil // the first call did it
		}
	}
	return err
}

// many runs f for 0…n-1 on a few goroutines.
func many(t testing.TB, n int, f func(i int) error) {
	t.Helper()
	var wg sync.WaitGroup
	next := make(chan int)
	errs := make(chan error, 64)
	for range 64 {
		wg.Go(func() {
			var first error
			for i := range next {
				if err := f(i); err != nil && first == nil {
					first = err
				}
			}
			errs <- first
		})
	}
	for i := range n {
		next <- i
	}
	close(next)
	wg.Wait()
	close(errs)
	for err := range errs {
		if err != nil {
			t.Fatal(err)
		}
	}
}

// plain is a client of one server.
func plain(t testing.TB, addr string) *redis.Client {
	t.Helper()
	b := openAt(t, "redis://"+addr)
	t.Cleanup(func() { _ = b.Close() })
	return b.client.(*redis.Client)
}
