package session

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/locksidecar/locksidecar/lock"
	"github.com/locksidecar/locksidecar/session/outcome"
)

// While the store is silent an outcome is neither lost nor taken for recorded: the hold stays,
// and who asks again learns what happened.
func TestConcludeUnknown(t *testing.T) {
	for name, ft := range map[string]fault{"down": down, "silent": hang, "answer lost": mute} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T, e *env) {
				sc := e.sidecar(keeps(e))
				s := sc.session()
				g := must(t, s, attempt(0))
				sc.way.on(ft, opWrite)
				sc.way.on(hang, opRead)
				began := e.now()
				_, err := s.Conclude(context.Background(), g.LockID, "q", outcome.Succeeded, "paid")
				isErr(t, err, lock.ErrUnavailable)
				if took := e.now() - began; took > answerLimit {
					t.Errorf("took %v", took)
				}
				if holders, _ := e.holders("r"); holders != 1 || sc.Info().Holds != 1 {
					t.Error("the hold is gone")
				}
				sc.way.on(nil, opWrite, opRead)
				if left, err := s.Conclude(context.Background(), g.LockID, "q", outcome.Succeeded, "paid"); left != 0 || err != nil {
					t.Errorf("again: %d, %v", left, err)
				}
				if o := recorded(t, e); o.State != outcome.Succeeded || o.Note != "paid" {
					t.Errorf("recorded %+v", o)
				}
				e.free()
			})
		})
	}
}

// The beginning of an attempt whose record the store has not confirmed is written once.
func TestBeginUnknown(t *testing.T) {
	for name, ft := range map[string]fault{"down": once(down), "answer lost": once(mute)} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T, e *env) {
				sc := e.sidecar(keeps(e))
				s := sc.session()
				sc.way.on(ft, opWrite)
				sc.way.on(once(down), opRead)
				if g := must(t, s, attempt(0)); g.Attempt.Number != 1 || g.Attempt.Previous != nil {
					t.Errorf("%+v", g.Attempt)
				}
			})
		})
	}
}

// Where the store does not take the record, nobody is granted anything, and the lock
// is free again.
func TestBeginUnavailable(t *testing.T) {
	bubble(t, func(t *testing.T, e *env) {
		sc := e.sidecar(keeps(e))
		s := sc.session()
		sc.way.on(hang, opWrite)
		for _, r := range []AcquireRequest{try(attempt(0)), waiting(attempt(0), time.Second)} {
			_, err := s.Acquire(context.Background(), r)
			isErr(t, err, lock.ErrUnavailable)
			synctest.Wait()
			time.Sleep(time.Second)
			e.free()
		}
	})
}

// Where somebody else has begun, an outcome comes too late.
func TestConcludeTooLate(t *testing.T) {
	bubble(t, func(t *testing.T, e *env) {
		one, two := e.sidecar(keeps(e)), e.sidecar(keeps(e))
		a, b := one.session(), two.session()
		old := must(t, a, attempt(0))
		one.way.on(hang, opHeartbeat, opAcquire)
		fresh := must(t, b, attempt(0)) // when the lease is over
		one.way.on(nil, opHeartbeat, opAcquire)
		if p := fresh.Attempt.Previous; p.State != outcome.Unknown || p.By.LockID != old.LockID {
			t.Errorf("previous %+v", p)
		}
		_, err := a.Conclude(context.Background(), old.LockID, "", outcome.Succeeded, "")
		isLost(t, err, LeaseExpired)
		_, err = a.Conclude(context.Background(), old.LockID, "", outcome.Succeeded, "")
		isLost(t, err, LeaseExpired)
		concluded(t, b, fresh, outcome.Failed, "")
		if o := recorded(t, e); o.State != outcome.Failed || o.By.LockID != fresh.LockID {
			t.Errorf("recorded %+v", o)
		}
	})
}

// What was done under a lock that is lost was done: as long as nobody else has begun, it
// is recorded, and nobody does it again.
func TestConcludeAfterLoss(t *testing.T) {
	bubble(t, func(t *testing.T, e *env) {
		one, two := e.sidecar(keeps(e)), e.sidecar(keeps(e))
		a, b := one.session(), two.session()
		g := must(t, a, with(attempt(0), func(r *AcquireRequest) { r.MaxHold = time.Second }))
		time.Sleep(time.Minute)
		if lost := lostEvent(t, a); lost.Reason != MaxHold {
			t.Errorf("lost by %v", lost.Reason)
		}
		e.free()
		concluded(t, a, g, outcome.Succeeded, "late")
		_, err := b.Acquire(context.Background(), attempt(0))
		if o := refused(t, err, outcome.ErrAlreadyDone); o.Note != "late" {
			t.Errorf("found %+v", o)
		}
	})
}

// A record that has outlived its keep does not take the outcome with it.
func TestConcludeForgotten(t *testing.T) {
	bubble(t, func(t *testing.T, e *env) {
		s := e.sidecar(keeps(e)).session()
		g := must(t, s, with(attempt(0), func(r *AcquireRequest) { r.Once.Keep = time.Second }))
		time.Sleep(time.Minute)
		concluded(t, s, g, outcome.Succeeded, "")
		_, err := s.Acquire(context.Background(), attempt(0))
		refused(t, err, outcome.ErrAlreadyDone)
	})
}

// Who loses the lock between its grant and the record of the attempt leaves the record of
// the next holder alone: an administrator can take a lock at any time, and the lease lives.
func TestOvertakenAtTheBeginning(t *testing.T) {
	bubble(t, func(t *testing.T, e *env) {
		one, two := e.sidecar(keeps(e)), e.sidecar(keeps(e))
		a, b := one.session(), two.session()
		reached, resume := make(chan struct{}), make(chan struct{})
		one.way.mute = true // the news of the loss come by the next heartbeat
		one.way.on(once(func(ctx context.Context, do func(context.Context) error) error {
			close(reached)
			<-resume
			return do(ctx)
		}), opWrite)
		slow := begin(a, attempt(0))
		<-reached
		if _, err := two.ForceRelease(context.Background(), "r", "", 0); err != nil {
			t.Fatal(err)
		}
		g := must(t, b, attempt(0))
		close(resume)
		if _, err := slow.wait(); !errors.Is(err, ErrLost) {
			t.Errorf("granted: %v", err)
		}
		if o := recorded(t, e); o.By.LockID != g.LockID {
			t.Errorf("recorded %+v", o)
		}
		concluded(t, b, g, outcome.Succeeded, "")
	})
}

// Whoever dies at whatever moment, each attempt has a number of its own, and what
// succeeded is never tried again.
func TestOnceUnderFaults(t *testing.T) {
	bubble(t, func(t *testing.T, e *env) {
		sidecars := []*sidecar{e.sidecar(keeps(e)), e.sidecar(keeps(e))}
		done := 0
		for i := range 60 {
			sc := sidecars[i%2]
			sc.way.on([]fault{nil, mute, once(hang), once(down), once(mute)}[i%5], opWrite)
			sc.way.on([]fault{nil, once(mute), once(hang)}[i%3], opAcquire)
			s := sc.session()
			g, err := s.Acquire(context.Background(), waiting(attempt(0), time.Minute))
			sc.way.on(nil, opWrite, opAcquire)
			switch {
			case done > 0:
				refused(t, err, outcome.ErrAlreadyDone)
			case err != nil:
			case i > 40:
				sc.way.on(once(mute), opWrite, opRead)
				concluded(t, s, g, outcome.Succeeded, "")
				done++
			case i%4 == 0:
				concluded(t, s, g, outcome.Failed, "")
			}
			s.Close()
			time.Sleep(time.Second)
		}
		if done != 1 {
			t.Errorf("done %d times", done)
		}
		e.free()
	})
}

// What the store has under the name of a resource may be of another program. It is left
// alone, and the lock is released, by one call at a time.
func TestOnceFindsWhatIsNotItsOwn(t *testing.T) {
	bubble(t, func(t *testing.T, e *env) {
		sc := e.sidecar(keeps(e))
		if err := e.store.WriteRecord(t.Context(), "r", "", lock.Record{Version: "1", Value: []byte("{}")}, time.Hour); err != nil {
			t.Fatal(err)
		}
		sc.way.on(func(context.Context, func(context.Context) error) error {
			time.Sleep(100 * time.Millisecond)
			return errDown
		}, opRelease)
		_, err := sc.session().Acquire(t.Context(), attempt(0))
		isErr(t, err, outcome.ErrForeign)
		time.Sleep(time.Second)
		sc.way.on(nil, opRelease)
		time.Sleep(2 * time.Second)
		e.free()
	})
}
