package postgres

import (
	"context"
	"sync/atomic"
	"testing"
	"time"

	"github.com/locksidecar/locksidecar/backends/sqllock"
	"github.com/locksidecar/locksidecar/internal/testengine"
	"github.com/locksidecar/locksidecar/lock"
)

// An idle sidecar asks little, and has few connections.
func TestIdleLoad(t *testing.T) {
	t.Parallel()
	s := testengine.New(t, testengine.Postgres)
	var requests atomic.Int64
	for range 2 { // the keeper, and another
		b, err := Open(s.URL(), func(string, time.Duration, error) { requests.Add(1) })
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = b.Close() })
		l, err := b.OpenLease(t.Context(), lock.LeaseOptions{TTL: 40 * time.Second})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = l.Close(context.Background()) })
	}
	const idle = 14 * time.Second // longer than a connection that nobody uses is kept
	requests.Store(0)
	time.Sleep(idle)
	if n := requests.Load(); float64(n) > 2*0.5*idle.Seconds() {
		t.Errorf("two idle sidecars have sent %d requests in %s", n, idle)
	}
	p := openPool(t, dialect(t, s.URL()), sqllock.PoolOptions{Size: 1})
	var n int64
	eventually(t, "the server says who is connected", func() error {
		rs, err := p.Do(t.Context(), "test", statement("SELECT COUNT(*) FROM pg_stat_activity WHERE application_name='locksidecar'"))
		if err == nil {
			n = rs[0].Rows[0].Int(0)
		}
		return err
	})
	if n > 2*3+1 { // and the test's
		t.Errorf("two idle sidecars have %d connections", n)
	}
}
