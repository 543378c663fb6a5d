package mysql

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

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
	if err := l.(lock.Detacher).Detach(t.Context(), r, g.ID, key, ttl); err != nil {
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

// A time that a lock is kept for counts from when it is granted, and not from when its request began to wait for the row.
func TestMinHoldCountsFromTheGrant(t *testing.T) {
	t.Parallel()
	eachKind(t, func(t testing.TB, s testengine.Server) {
		b, l := sidecar(t, s.URL(), 30*time.Second)
		r := unique("r")
		if err := l.Release(t.Context(), r, hold(t, l, r).ID); err != nil {
			t.Fatal(err)
		}
		app := stranger(t, b)
		app.do("SELECT 1 FROM {lock} WHERE name=? FOR UPDATE", []byte(r))
		began := time.Now()
		q := exclusive(r)
		q.MinHold = time.Hour
		granted := insist(t, l, q)
		eventually(t, "the request waits for the row", func() error {
			n := number(t, b, "SELECT COUNT(*) FROM information_schema.processlist WHERE info LIKE 'SELECT fence%FOR UPDATE' AND info LIKE ?", "%"+string(r)+"%")
			if n == 0 && time.Since(began) < 2*time.Second { // then it does not wait any more, and asks again and again
				return errors.New("it does not")
			}
			return nil
		})
		free := number(t, b, "SELECT "+b.d.Words().Now)
		app.do("COMMIT")
		if <-granted.done; granted.err != nil {
			t.Fatal(granted.err)
		}
		if ends := number(t, b, "SELECT ends FROM {least} WHERE name=? AND id=?", []byte(r), []byte(q.ID)); ends < free+q.MinHold.Microseconds() {
			t.Errorf("it ends %d µs too soon", free+q.MinHold.Microseconds()-ends)
		}
		if err := b.ForceRelease(t.Context(), r, q.ID, 0); err != nil {
			t.Error(err)
		}
	})
}
