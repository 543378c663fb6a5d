package redislock

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/locksidecar/locksidecar/backends/backendtest"
	"github.com/locksidecar/locksidecar/internal/testengine"
	"github.com/locksidecar/locksidecar/lock"
)

// A restart that keeps data, while somebody waits: a wait that ends within the
// grace leaves nothing. Issue 9, 3.13.
func TestWaitEndsWithinTheGrace(t *testing.T) {
	t.Parallel() // it has servers of its own, and waits
	again(t, testWaitEndsWithinTheGrace)
}

func testWaitEndsWithinTheGrace(t testing.TB) {
	s := testengine.New(t, testengine.Redis)
	b, l := sidecar(t, s.URL()+"?restart-grace=2s", 5*time.Minute)
	_, other := sidecar(t, s.URL()+"?restart-grace=2s", 5*time.Minute)
	g := hold(t, other, "r")
	q := exclusive("r")
	waiting := make(chan error, 1)
	go func() {
		_, err := l.Acquire(t.Context(), q)
		waiting <- err
	}()
	eventually(t, "the request is queued", func() error {
		st, err := b.Get(t.Context(), "r")
		if err == nil && len(st.Waiters) != 1 {
			err = errors.New("no waiter")
		}
		return err
	})
	start := testengine.Crash(t, s, testengine.KeepData)
	if err := <-waiting; !errors.Is(err, lock.ErrUnavailable) {
		t.Fatalf("Acquire over a crash: got %v, want ErrUnavailable", err)
	}
	start()
	eventually(t, "Redis answers", func() error { return errors.Join(beat(t.Context(), l), beat(t.Context(), other)) })
	eventually(t, "the wait has ended and was withdrawn", func() error {
		ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
		defer cancel()
		_, err := l.Acquire(ctx, q)
		if errors.Is(err, context.DeadlineExceeded) && !errors.Is(err, lock.ErrUnavailable) {
			return nil
		}
		return fmt.Errorf("got %w", err)
	})
	if err := other.Release(t.Context(), "r", g.ID); err != nil {
		t.Fatal(err)
	}
	if st, err := b.Get(t.Context(), "r"); err != nil || len(st.Waiters)+len(st.Holders) != 0 {
		t.Errorf("left in the store: %+v, %v", st, err)
	}
}

// After a failover nothing is granted for a while, to those who were there and to
// those who come. Issue 9, 3.14.
func TestFailoverGrace(t *testing.T) {
	t.Parallel() // it has servers of its own, and waits
	again(t, testFailoverGrace)
}

func testFailoverGrace(t testing.TB) {
	s := testengine.New(t, testengine.RedisSentinel)
	const grace = 8 * time.Second // longer than a failover takes
	url := s.URL() + "?restart-grace=" + grace.String()
	_, l := sidecar(t, url, 5*time.Minute)
	began := time.Now()
	testengine.FailOver(t, s, testengine.KeepData)
	eventually(t, "the new master answers", func() error { return beat(t.Context(), l) })
	fresh := openAt(t, url)
	defer func() { _ = fresh.Close() }()
	if n, err := fresh.OpenLease(t.Context(), lock.LeaseOptions{TTL: time.Minute}); !errors.Is(err, lock.ErrUnavailable) {
		if err == nil {
			_ = n.Close(t.Context())
		}
		if err == nil && time.Since(began) >= grace {
			t.Fatal(backendtest.Busy(errors.New("the grace was over before the new sidecar asked")))
		}
		t.Errorf("a new sidecar after the failover: got %v, want ErrUnavailable", err)
	}
	eventually(t, "the lock is granted", func() error {
		if err := beat(t.Context(), l); err != nil {
			return err
		}
		_, err := try(t, l, "r")
		return err
	})
	if took := time.Since(began); took < grace {
		t.Errorf("granted %s after the old master was there", took)
	}
}

// A server that was restarted hands out nothing until holders from before must
// have noticed; one that was emptied neither. Issue 9, 3.8.
func TestEmptiedStoreWaits(t *testing.T) { again(t, testEmptiedStoreWaits) }

func testEmptiedStoreWaits(t testing.TB) {
	s := testengine.New(t, testengine.Redis)
	b, l := sidecar(t, s.URL(), 2*time.Second)
	hold(t, l, "r")
	flushed := time.Now()
	if err := b.client.FlushAll(t.Context()).Err(); err != nil {
		t.Fatal(err)
	}
	_, l2 := sidecar(t, s.URL(), 2*time.Second) // it does not know that there was anything
	hold(t, l2, "r")
	if took := time.Since(flushed); took < 2*time.Second {
		t.Errorf("granted %s after the store was emptied, sooner than the TTL", took)
	}
	if err := beat(t.Context(), l); !errors.Is(err, lock.ErrLeaseLost) {
		t.Errorf("Heartbeat after FLUSHALL: got %v, want ErrLeaseLost", err)
	}
}
