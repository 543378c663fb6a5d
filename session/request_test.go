package session

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/locksidecar/locksidecar/lock"
)

// TestBegin: a request under way gets the one answer that Acquire gives.
func TestBegin(t *testing.T) {
	tests := map[string]func(t *testing.T, sc *sidecar, s *Session){
		"free": func(t *testing.T, sc *sidecar, s *Session) {
			g, err := beginAsync(s, exclusive).wait()
			isErr(t, err, nil)
			_, err = s.Release(context.Background(), g.LockID, "")
			isErr(t, err, nil)
		},
		"refused": func(t *testing.T, _ *sidecar, s *Session) {
			r := exclusive
			r.Resource = ""
			_, err := beginAsync(s, r).wait()
			isErr(t, err, lock.ErrInvalid)
		},
		"a try finds it held": func(t *testing.T, sc *sidecar, s *Session) {
			_, err := beginAsync(sc.session(), exclusive).wait()
			isErr(t, err, nil)
			_, err = beginAsync(s, try(exclusive)).wait()
			isErr(t, err, lock.ErrHeld)
		},
		"waits for the other": func(t *testing.T, sc *sidecar, s *Session) {
			other := sc.session()
			g, err := beginAsync(other, exclusive).wait()
			isErr(t, err, nil)
			p := beginAsync(s, exclusive)
			if p.over() {
				t.Fatal("broken law: granted beside another")
			}
			_, err = other.Release(context.Background(), g.LockID, "")
			isErr(t, err, nil)
			_, err = p.wait()
			isErr(t, err, nil)
		},
		"the time is over": func(t *testing.T, sc *sidecar, s *Session) {
			_, err := beginAsync(sc.session(), exclusive).wait()
			isErr(t, err, nil)
			_, err = beginAsync(s, waiting(exclusive, time.Second)).wait()
			isErr(t, err, context.DeadlineExceeded)
			if held := (*lock.HeldError)(nil); !errors.As(err, &held) || len(held.Status.Holders) != 1 {
				t.Errorf("%v does not say who holds it", err)
			}
		},
		"given up": func(t *testing.T, sc *sidecar, s *Session) {
			_, err := beginAsync(sc.session(), exclusive).wait()
			isErr(t, err, nil)
			p := beginAsync(s, exclusive)
			p.cancel()
			_, err = p.wait()
			isErr(t, err, context.Canceled)
			p.cancel() // again
		},
		"given up after the answer": func(t *testing.T, sc *sidecar, s *Session) {
			p := beginAsync(s, exclusive)
			g, err := p.wait()
			isErr(t, err, nil)
			p.cancel()
			synctest.Wait()
			_, err = s.Release(context.Background(), g.LockID, "")
			isErr(t, err, nil)
		},
		"two with one id": func(t *testing.T, sc *sidecar, s *Session) {
			other := sc.session()
			g, err := beginAsync(other, exclusive).wait()
			isErr(t, err, nil)
			one, two := beginAsync(s, request("1")), beginAsync(s, request("1"))
			_, err = other.Release(context.Background(), g.LockID, "")
			isErr(t, err, nil)
			a, err := one.wait()
			isErr(t, err, nil)
			b, err := two.wait()
			isErr(t, err, nil)
			if a.LockID != b.LockID {
				t.Errorf("two holds, %v and %v", a.LockID, b.LockID)
			}
		},
		"the session closes": func(t *testing.T, sc *sidecar, s *Session) {
			_, err := beginAsync(sc.session(), exclusive).wait()
			isErr(t, err, nil)
			p := beginAsync(s, exclusive)
			s.Close()
			_, err = p.wait()
			isErr(t, err, ErrSessionClosed)
			_, err = beginAsync(s, exclusive).wait()
			isErr(t, err, ErrSessionClosed)
		},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T, e *env) {
				sc := e.sidecar()
				test(t, sc, sc.session())
			})
		})
	}
}

// TestBeginDoesNotBlock: it is Run that asks the store.
func TestBeginDoesNotBlock(t *testing.T) {
	bubble(t, func(t *testing.T, e *env) {
		sc := e.sidecar()
		s := sc.session()
		sc.way.on(once(stuck), opAcquire)
		answered := make(chan error, 1)
		q := s.Begin(context.Background(), exclusive, func(_ Grant, err error) { answered <- err })
		synctest.Wait()
		if n := sc.way.count(opAcquire); n != 0 {
			t.Errorf("Begin has asked the store %d times", n)
		}
		q.GiveUp()
		isErr(t, <-answered, context.Canceled)
		q.Run() // the driver is told that nobody wants it
		synctest.Wait()
		time.Sleep(stuckFor)
		synctest.Wait()
		if i := sc.Info(); i.Holds != 0 || i.Waiters != 0 {
			t.Errorf("Info = %+v", i)
		}
		e.free()
	})
}
