package mysql

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/locksidecar/locksidecar/internal/testengine"
	"github.com/locksidecar/locksidecar/lock"
)

// A keeper with a long TTL dies together with a holder with a short one: the holder is
// noticed in time, also where nobody waits.
func TestLongKeeperDies(t *testing.T) {
	t.Parallel()
	s := testengine.New(t, testengine.MariaDB)
	url := own(t, s, "keeper_")
	mortal := func(ttl time.Duration) (*store, lock.Lease) {
		b := openAt(t, url)
		l, err := b.OpenLease(t.Context(), lock.LeaseOptions{TTL: ttl, Sidecar: "mortal"})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			ctx, cancel := context.WithTimeout(context.Background(), 2*time.Second)
			defer cancel()
			_ = l.Close(ctx)
		})
		return b, l
	}
	keeper, _ := mortal(2 * time.Minute)
	holder, h := mortal(time.Second)
	_, l := sidecar(t, url, time.Second)
	keepAlive(t, t.Context(), l)
	hold(t, h, "r")
	_ = keeper.Close()
	_ = holder.Close()
	start := time.Now()
	for {
		q := exclusive("r")
		q.Try = true
		_, err := l.Acquire(t.Context(), q)
		if err == nil {
			break
		}
		if !errors.Is(err, lock.ErrHeld) {
			t.Fatal(err)
		}
		if time.Since(start) > 40*time.Second {
			t.Fatalf("held %s after its sidecar died", time.Since(start))
		}
		time.Sleep(100 * time.Millisecond)
	}
}
