package session

import (
	"context"
	"sync/atomic"
	"testing"
	"time"
)

// TestFrozenWhileASessionOpens: the sidecar stands still for longer than the ttl
// of a session that it opens at that moment. The session has ended then, and
// nobody else is held up.
func TestFrozenWhileASessionOpens(t *testing.T) {
	bubble(t, func(t *testing.T, e *env) {
		var freeze atomic.Int32
		sc := e.sidecar(func(o *Options) {
			clock := o.Clock
			o.Clock = func() time.Duration {
				now := clock()
				if freeze.Add(-1) == 0 {
					e.jump.Add(int64(time.Second))
				}
				return now
			}
		})
		done := make(chan struct{})
		go func() {
			defer close(done)
			freeze.Store(1)
			s, err := sc.Open(context.Background(), OpenRequest{Liveness: TTL, TTL: minSessionTTL})
			if err != nil {
				t.Error(err)
				return
			}
			<-s.Done()
		}()
		<-done
		if n := sc.Info().Sessions; n != 0 {
			t.Errorf("%d sessions", n)
		}
	})
}
