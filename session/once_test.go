package session

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/locksidecar/locksidecar/lock"
	"github.com/locksidecar/locksidecar/session/outcome"
)

// More operations of a store, as names for faults.
const (
	opRead  = "read record"
	opWrite = "write record"
)

// keeping is a way to the store, and to the records in it.
type keeping struct {
	*faulty
	records lock.Records
}

var _ lock.RecordGuarder = (*keeping)(nil)

// keeps gives a sidecar the store's records.
func keeps(e *env) func(*Options) {
	return func(o *Options) { o.Backend = &keeping{faulty: o.Backend.(*faulty), records: e.store} }
}

func (k *keeping) ReadRecord(ctx context.Context, r lock.Resource) (found lock.Record, err error) {
	err = k.do(ctx, opRead, func(ctx context.Context) (err error) {
		found, err = k.records.ReadRecord(ctx, r)
		return err
	})
	return found, err
}

func (k *keeping) WriteRecord(ctx context.Context, r lock.Resource, after string, next lock.Record, keep time.Duration) error {
	return k.do(ctx, opWrite, func(ctx context.Context) error { return k.records.WriteRecord(ctx, r, after, next, keep) })
}

func (k *keeping) DeleteRecord(ctx context.Context, r lock.Resource, after string) error {
	return k.records.DeleteRecord(ctx, r, after)
}

func (k *keeping) ListRecords(ctx context.Context, prefix string, p lock.Page) ([]lock.NamedRecord, error) {
	return k.records.ListRecords(ctx, prefix, p)
}

func (k *keeping) RecordGuard(r lock.Resource, after string, next lock.Record, keep time.Duration) *lock.Guard {
	return &lock.Guard{Dialect: "test", SQL: string(r), Args: []string{after, next.Version, keep.String()}}
}

// attempt asks to do "r" once.
func attempt(most int) AcquireRequest {
	return with(exclusive, func(r *AcquireRequest) { r.Once = &outcome.Wish{Keep: time.Hour, MaxAttempts: most} })
}

// concluded ends an attempt.
func concluded(t *testing.T, s *Session, g Grant, state outcome.State, note string) {
	t.Helper()
	if left, err := s.Conclude(context.Background(), g.LockID, "", state, note); left != 0 || err != nil {
		t.Fatalf("Conclude = %d, %v", left, err)
	}
}

// refused checks for a refusal and gives what was found.
func refused(t *testing.T, err, cause error) outcome.Outcome {
	t.Helper()
	var r *outcome.RefusedError
	if !errors.As(err, &r) || !errors.Is(err, cause) || r.Resource != "r" {
		t.Fatalf("error = %v, want %v of r", err, cause)
	}
	return r.Found
}

// recorded is what the store has of "r".
func recorded(t *testing.T, e *env) outcome.Outcome {
	t.Helper()
	found, err := e.store.ReadRecord(context.Background(), "r")
	if err != nil {
		t.Fatal(err)
	}
	o, err := outcome.Read(found)
	if err != nil || o == nil {
		t.Fatalf("recorded: %v, %v", o, err)
	}
	return *o
}

// What failed, and what ended without a word, is tried again and told to who tries;
// what succeeded is not.
func TestOnce(t *testing.T) {
	bubble(t, func(t *testing.T, e *env) {
		sc := e.sidecar(keeps(e))
		a := sc.session(func(r *OpenRequest) { r.Metadata = map[string]string{"job": "7"} })
		g := must(t, a, with(attempt(0), func(r *AcquireRequest) { r.Owner = "t-1" }))
		if g.Attempt.Number != 1 || g.Attempt.Previous != nil || recorded(t, e).State != outcome.Unknown {
			t.Errorf("first: %+v", g.Attempt)
		}
		if guard := g.Attempt.Guard; guard == nil || !slices.Equal(guard.Args, []string{string(g.LockID), string(g.LockID) + ".SUCCEEDED", "1h0m0s"}) {
			t.Errorf("guard %+v", guard)
		}
		time.Sleep(time.Second)
		concluded(t, a, g, outcome.Failed, "the gateway is away")
		e.free()

		time.Sleep(time.Minute)
		g = must(t, a, attempt(0))
		p := g.Attempt.Previous
		if g.Attempt.Number != 2 || p.State != outcome.Failed || p.Attempt != 1 || p.Note != "the gateway is away" || p.Age < time.Minute || p.Age > 2*time.Minute ||
			p.By.Sidecar != "test" || p.By.Owner.PID != 7 || p.By.Owner.Label != "t-1" || p.By.Owner.Metadata["job"] != "7" {
			t.Errorf("second: %+v after %+v", g.Attempt, p)
		}
		a.Close()

		b := sc.session()
		g = must(t, b, attempt(0))
		if p := g.Attempt.Previous; g.Attempt.Number != 3 || p.State != outcome.Unknown || p.Attempt != 2 {
			t.Errorf("third: %+v after %+v", g.Attempt, p)
		}
		if _, err := b.Release(context.Background(), g.LockID, ""); err != nil {
			t.Error(err)
		}
		g = must(t, b, attempt(0))
		if p := g.Attempt.Previous; p.State != outcome.Unknown || p.Attempt != 3 {
			t.Errorf("released without an outcome: %+v", p)
		}
		concluded(t, b, g, outcome.Succeeded, "paid")
		for _, r := range []AcquireRequest{attempt(0), try(attempt(9))} {
			_, err := b.Acquire(context.Background(), r)
			if o := refused(t, err, outcome.ErrAlreadyDone); o.Note != "paid" || o.Attempt != 4 {
				t.Errorf("found %+v", o)
			}
		}
		if got, want := sc.obs.results(), []AcquireResult{Granted, Granted, Granted, Granted, Done, Done}; !slices.Equal(got, want) {
			t.Errorf("observed %v, want %v", got, want)
		}
		e.free()
		must(t, b, exclusive) // an ordinary lock of that name knows nothing of it
	})
}

// Who waits while somebody does it is refused when that has succeeded, and goes on where
// it has not.
func TestOnceWaits(t *testing.T) {
	bubble(t, func(t *testing.T, e *env) {
		sc := e.sidecar(keeps(e))
		a, b := sc.session(), sc.session()
		g := must(t, a, attempt(2))
		_, err := b.Acquire(context.Background(), try(attempt(2)))
		isErr(t, err, lock.ErrHeld)
		second := begin(b, attempt(2))
		concluded(t, a, g, outcome.Failed, "")
		if g, err = second.wait(); err != nil || g.Attempt.Number != 2 || g.Attempt.Previous.State != outcome.Failed {
			t.Fatalf("%+v, %v", g.Attempt, err)
		}
		third, fourth := begin(a, attempt(2)), begin(a, attempt(0))
		concluded(t, b, g, outcome.Succeeded, "")
		for _, p := range []*pending{third, fourth} {
			_, err := p.wait()
			refused(t, err, outcome.ErrAlreadyDone)
		}
		e.free()
	})
}

// The last attempt is the last, also where it ended without a word, and the lock is free.
func TestAttemptsExhausted(t *testing.T) {
	bubble(t, func(t *testing.T, e *env) {
		sc := e.sidecar(keeps(e))
		a, b := sc.session(), sc.session()
		must(t, a, attempt(1))
		waiter := begin(b, attempt(1))
		if waiter.over() {
			t.Fatal("refused while the last attempt is at work")
		}
		a.Close()
		_, err := waiter.wait()
		if o := refused(t, err, outcome.ErrAttemptsExhausted); o.State != outcome.Unknown {
			t.Errorf("found %+v", o)
		}
		e.free()
		g := must(t, b, attempt(2))
		concluded(t, b, g, outcome.Failed, "")
		_, err = b.Acquire(context.Background(), try(attempt(2)))
		refused(t, err, outcome.ErrAttemptsExhausted)
		e.free()
	})
}

// A request that is repeated finds its hold and the same attempt.
func TestOnceRepeated(t *testing.T) {
	bubble(t, func(t *testing.T, e *env) {
		s := e.sidecar(keeps(e)).session()
		r := with(attempt(0), func(r *AcquireRequest) { r.RequestID = "q" })
		g := must(t, s, r)
		if h := must(t, s, r); h.LockID != g.LockID || h.Attempt != g.Attempt || recorded(t, e).Attempt != 1 {
			t.Errorf("got %+v, then %+v", g, h)
		}
		_, err := s.Acquire(context.Background(), with(exclusive, func(r *AcquireRequest) { r.RequestID = "q" }))
		isErr(t, err, lock.ErrInvalid)
		for _, requestID := range []string{"", "e", "e"} {
			if left, err := s.Conclude(context.Background(), g.LockID, requestID, outcome.Succeeded, ""); left != 0 || err != nil {
				t.Errorf("%q: %d, %v", requestID, left, err)
			}
		}
		_, err = s.Conclude(context.Background(), g.LockID, "", outcome.Failed, "")
		isErr(t, err, lock.ErrInvalid)
		if o := recorded(t, e); o.State != outcome.Succeeded {
			t.Errorf("recorded %+v", o)
		}
		e.free()
	})
}

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
// succeeded is never begun again.
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

func TestOnceRefusesFields(t *testing.T) {
	bubble(t, func(t *testing.T, e *env) {
		sc := e.sidecar(keeps(e))
		s := sc.session()
		for field, f := range map[string]func(*AcquireRequest){
			"once":              func(r *AcquireRequest) { r.Mode = lock.Shared },
			"once.keep":         func(r *AcquireRequest) { r.Once.Keep = lock.MaxKeep + 1 },
			"once.max_attempts": func(r *AcquireRequest) { r.Once.MaxAttempts = -1 },
		} {
			var bad *lock.InvalidError
			if _, err := s.Acquire(context.Background(), with(attempt(0), f)); !errors.As(err, &bad) || bad.Field != field {
				t.Errorf("%s: %v", field, err)
			}
		}
		_, err := s.Acquire(context.Background(), again(attempt(0)))
		isErr(t, err, lock.ErrInvalid)
		plain, g := must(t, s, with(exclusive, func(r *AcquireRequest) { r.Resource = "plain" })), must(t, s, attempt(0))
		for _, c := range []struct {
			id    lock.HoldID
			state outcome.State
			note  string
		}{
			{plain.LockID, outcome.Succeeded, ""}, {g.LockID, outcome.Unknown, ""},
			{g.LockID, outcome.Failed, strings.Repeat("x", outcome.MaxNote+1)},
		} {
			_, err := s.Conclude(context.Background(), c.id, "", c.state, c.note)
			isErr(t, err, lock.ErrInvalid)
		}
		_, err = s.Conclude(context.Background(), "none", "", outcome.Failed, "")
		isErr(t, err, lock.ErrNotHolder)
		if n := sc.Info().Holds; n != 2 {
			t.Errorf("%d holds", n)
		}
	})
}

// On a store without records nothing can be done once.
func TestOnceUnsupported(t *testing.T) {
	bubble(t, func(t *testing.T, e *env) {
		sc := e.sidecar()
		_, err := sc.session().Acquire(context.Background(), attempt(0))
		isErr(t, err, lock.ErrUnsupported)
		_, _, err = sc.Outcomes(context.Background(), "", "", 1)
		isErr(t, err, lock.ErrUnsupported)
		_, err = sc.ResetOutcome(context.Background(), "r")
		isErr(t, err, lock.ErrUnsupported)
	})
}

// Outcomes are listed by prefix and state, page by page, within the namespace, and
// forgotten by name.
func TestOutcomes(t *testing.T) {
	bubble(t, func(t *testing.T, e *env) {
		sc := e.sidecar(keeps(e), func(o *Options) { o.Namespace = "ns" })
		outside := e.sidecar(keeps(e)).session()
		concluded(t, outside, must(t, outside, attempt(0)), outcome.Failed, "")
		s := sc.session()
		var failed []string
		for i := range 25 {
			name := fmt.Sprintf("w/%02d", i)
			state := outcome.Succeeded
			if i%5 == 0 {
				state, failed = outcome.Failed, append(failed, name)
			}
			concluded(t, s, must(t, s, with(attempt(0), func(r *AcquireRequest) { r.Resource = name })), state, "")
		}
		must(t, s, with(attempt(0), func(r *AcquireRequest) { r.Resource = "x" }))
		list := func(prefix string, limit int, states ...outcome.State) (names []string) {
			for after, first := "", true; first || after != ""; first = false {
				page, next, err := sc.Outcomes(context.Background(), prefix, after, limit, states...)
				if err != nil || len(page) > limit {
					t.Fatalf("%d outcomes, %v", len(page), err)
				}
				for _, o := range page {
					names = append(names, o.Resource)
				}
				after = next
			}
			return names
		}
		for _, limit := range []int{1, 3, lock.MaxPage} {
			if got := list("w/", limit, outcome.Failed); !slices.Equal(got, failed) {
				t.Errorf("by %d: %v", limit, got)
			}
			if got := list("", limit); len(got) != 26 || got[25] != "x" {
				t.Errorf("all by %d: %v", limit, got)
			}
			if got := list("", limit, outcome.Unknown, outcome.Failed); !slices.Equal(got, append(slices.Clone(failed), "x")) {
				t.Errorf("unknown or failed by %d: %v", limit, got)
			}
		}
		_, err := sc.ResetOutcome(context.Background(), "x")
		isErr(t, err, lock.ErrHeld)
		s.Close()
		for _, want := range []outcome.State{outcome.Unknown, 0} {
			o, err := sc.ResetOutcome(context.Background(), "x")
			if err != nil || (o != nil) != (want != 0) || o != nil && (o.State != want || o.Resource != "x") {
				t.Errorf("reset: %+v, %v", o, err)
			}
		}
		if got := list("x", 1); len(got) > 0 {
			t.Errorf("still there: %v", got)
		}
	})
}
