package shedlock

import (
	"context"
	"errors"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/locksidecar/locksidecar/backends/backendtest"
	"github.com/locksidecar/locksidecar/internal/testengine"
	"github.com/locksidecar/locksidecar/lock"
)

const patience = time.Minute

// onEach runs a test on both kinds of server, and once more where the machine was too busy for it.
func onEach(t *testing.T, server func(testing.TB, *testengine.Kind) testengine.Server, f func(t testing.TB, s testengine.Server)) {
	t.Helper()
	for _, kind := range kinds {
		t.Run(kind.String(), func(t *testing.T) {
			t.Parallel()
			insist(t, func(t testing.TB) { f(t, server(t, kind)) })
		})
	}
}

// insist runs a test, and once more where the machine was too busy for it. It is not for tests of what
// happens without an answer.
func insist(t *testing.T, test func(t testing.TB)) {
	t.Helper()
	backendtest.Again(t, test, os.ErrDeadlineExceeded, context.DeadlineExceeded)
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
		l, err = b.OpenLease(t.Context(), lock.LeaseOptions{TTL: ttl, Sidecar: "sidecar of " + t.Name()})
		if err != nil && !errors.Is(err, lock.ErrUnavailable) {
			t.Fatal(err)
		}
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

// unique is a name of this run of the test that fits ShedLock's table.
func unique(t testing.TB) lock.Resource {
	return lock.Resource(strings.TrimPrefix(t.Name(), "Test") + "/" + random())
}

// random is for names of one run.
func random() string { return string(lock.NewHoldID())[:8] }

func request(r lock.Resource) lock.Request {
	return lock.Request{ID: lock.NewHoldID(), Resource: r, Mode: lock.Exclusive, Owner: lock.Owner{Session: "test"}.Encode()}
}

func hold(t testing.TB, l lock.Lease, r lock.Resource) lock.Grant {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	q := request(r)
	var g lock.Grant
	eventually(t, "it is granted", func() (err error) {
		if g, err = l.Acquire(ctx, q); err != nil && !errors.Is(err, lock.ErrUnavailable) {
			t.Fatalf("Acquire: %v", err)
		}
		return err
	})
	return g
}

// held tries what must be taken, and gives who has it.
func held(t testing.TB, l lock.Lease, r lock.Resource) lock.Status {
	t.Helper()
	q := request(r)
	q.Try = true
	g, err := l.Acquire(t.Context(), q)
	var held *lock.HeldError
	if !errors.Is(err, lock.ErrHeld) || !errors.As(err, &held) {
		t.Fatalf("try of what is held: got %+v, %v; want ErrHeld", g, err)
	}
	return held.Status
}

func get(t testing.TB, b *Backend, r lock.Resource) lock.Status {
	t.Helper()
	st, err := b.Get(t.Context(), r)
	if err != nil {
		t.Fatal(err)
	}
	return st
}

func list(t testing.TB, b *Backend, prefix string) lock.Status {
	t.Helper()
	all, err := b.List(t.Context(), prefix, lock.Page{Limit: 10})
	if err != nil || len(all) != 1 {
		t.Fatalf("List has %+v, %v; want one lock", all, err)
	}
	return all[0]
}
