package redislock

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/locksidecar/locksidecar/backends/leasekit"
	"github.com/locksidecar/locksidecar/internal/testengine"
)

// A server that is down is asked for pushes less and less often: all sidecars do so, and it
// has to come back.
func TestFewConnectionsWhereRedisIsDown(t *testing.T) {
	t.Parallel()
	road := testengine.Through(t, testengine.Shared(t, testengine.Redis))
	sidecar(t, road.URL()+noGrace, 30*time.Second)
	connects := testengine.Refuse(t, road)
	const down, most = 2 * time.Second, 24
	time.Sleep(down)
	if n := connects(); n == 0 || n > most {
		t.Errorf("an idle sidecar has made %d connections in %s to a server that is down, want 1 to %d", n, down, most)
	}
}

// A heartbeat that is answered brings the pushes back, however long the pause has become.
func TestHeartbeatBringsPushesBack(t *testing.T) {
	t.Parallel()
	road := testengine.Through(t, testengine.Shared(t, testengine.Redis))
	b := openAt(t, road.URL()+noGrace)
	t.Cleanup(func() { _ = b.Close() })
	d := lone(t, b, 30*time.Second)
	d.listening = leasekit.NewRetry(time.Hour)
	ctx, cancel := context.WithCancel(t.Context())
	var listens sync.WaitGroup
	defer listens.Wait()
	defer cancel()
	var heard atomic.Int64
	listens.Go(func() {
		d.Listen(ctx, func(p leasekit.Push) {
			if p.Kind == leasekit.Missed {
				heard.Add(1)
			}
		})
	})
	hears := func(n int64, beat func() error) {
		t.Helper()
		eventually(t, fmt.Sprintf("pushes are heard, %d", n), func() error {
			if got := heard.Load(); got < n {
				return errors.Join(fmt.Errorf("the subscription was made %d times", got), beat())
			}
			return nil
		})
	}
	hears(1, func() error { return nil })
	road.Inject(testengine.Sever)
	hears(2, func() error {
		_, err := d.Renew(ctx, nil)
		return err
	})
}
