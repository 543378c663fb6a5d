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

// TestFrozenPastTheWait: when the sidecar goes on, the lease is over and so is the
// wait, in the same look. Nothing of the request goes on to wait for a lease.
func TestFrozenPastTheWait(t *testing.T) {
	ends := map[string]func(sc *sidecar, s *Session){
		"wait":    func(sc *sidecar, s *Session) { time.Sleep(6 * time.Second) },
		"session": func(sc *sidecar, s *Session) { s.Close() },
		"sidecar": func(sc *sidecar, s *Session) {},
	}
	for name, end := range ends {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T, e *env) {
				a, b := e.sidecar(), e.sidecar()
				must(t, b.session(), exclusive)
				s := a.session()
				p := begin(s, waiting(exclusive, 5*time.Second))
				a.way.on(down, opOpen, opHeartbeat)
				e.jump.Add(int64(time.Minute))
				end(a, s)
				if err := a.stop(); err != nil {
					t.Error(err)
				}
				if _, err := p.wait(); err == nil {
					t.Error("granted")
				}
			})
		})
	}
}

// TestWaitEndsInTimeAfterAStandstill: the timer of the session was set before the
// machine was suspended, and stood still with it.
func TestWaitEndsInTimeAfterAStandstill(t *testing.T) {
	bubble(t, func(t *testing.T, e *env) {
		a, b := e.sidecar(), e.sidecar(func(o *Options) { o.Clock = e.base })
		must(t, b.session(), exclusive)
		s := a.session(func(r *OpenRequest) { r.TTL = time.Hour })
		time.Sleep(100 * time.Millisecond)
		e.jump.Add(int64(time.Minute))
		began := e.now()
		if _, err := s.Acquire(t.Context(), waiting(exclusive, time.Second)); err == nil {
			t.Error("granted")
		}
		if took := e.now() - began; took > time.Second+patience {
			t.Errorf("a wait of 1s took %v", took)
		}
	})
}
