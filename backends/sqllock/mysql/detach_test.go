package mysql

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/locksidecar/locksidecar/backends/backendtest"
	"github.com/locksidecar/locksidecar/internal/testengine"
	"github.com/locksidecar/locksidecar/lock"
)

// detached takes a lock and detaches it.
func detached(t testing.TB, l lock.Lease, r lock.Resource, ttl time.Duration) (lock.Grant, lock.HandleKey) {
	t.Helper()
	q := exclusive(r)
	q.Detachable = true
	g, err := l.Acquire(t.Context(), q)
	if err != nil {
		t.Fatalf("Acquire: %v", err)
	}
	key := lock.NewSecret().Key()
	if err := l.(*backendtest.TimedLease).Lease.(lock.Detacher).Detach(t.Context(), r, g.ID, key, ttl); err != nil {
		t.Fatalf("Detach: %v", err)
	}
	return g, key
}

// Tables that were made before there were detached locks get theirs, where the sidecar may make it.
func TestDetachInOlderTables(t *testing.T) {
	t.Parallel()
	again(t, testDetachInOlderTables)
}

func testDetachInOlderTables(t testing.TB) {
	url := own(t, testengine.Shared(t, testengine.MariaDB), "handless_")
	older, _ := sidecar(t, url, 30*time.Second)
	execute(t, older, "DROP TABLE {handle}")
	fixed := openAt(t, with(url, "migrate=false"))
	defer func() { _ = fixed.Close() }()
	if _, err := fixed.SetHandle(t.Context(), "r", "key", time.Hour); !errors.Is(err, lock.ErrUnavailable) || !strings.Contains(err.Error(), "locksidecar schema mysql") {
		t.Errorf("without the table: %v", err)
	}
	_, l := sidecar(t, url, 30*time.Second)
	g, key := detached(t, l, "r", time.Hour)
	if d, err := fixed.SetHandle(t.Context(), "r", key, 0); err != nil || d.Fence != g.Fence || d.ID != g.ID || d.Mode != lock.Exclusive {
		t.Errorf("SetHandle(0): got %+v, %v, want %+v", d, err, g)
	}
}

// What is detached and over is cleared away though nobody asks for it, and its row says that it is free.
func TestDetachedIsReaped(t *testing.T) {
	t.Parallel()
	eachKind(t, func(t testing.TB, s testengine.Server) {
		b, l := sidecar(t, own(t, s, "detached_"), 30*time.Second)
		keepAlive(t, t.Context(), l)
		_, key := detached(t, l, "r", lock.MinDetach)
		eventually(t, "nothing is left", func() error {
			if n := number(t, b, "SELECT (SELECT COUNT(*) FROM {least})+(SELECT COUNT(*) FROM {handle})+(SELECT COUNT(*) FROM {lock} WHERE crowd=1)"); n > 0 {
				return fmt.Errorf("%d rows", n)
			}
			return nil
		})
		if _, err := b.SetHandle(t.Context(), "r", key, time.Hour); !errors.Is(err, lock.ErrNoHandle) {
			t.Errorf("SetHandle of what is over: %v", err)
		}
	})
}
