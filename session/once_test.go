package session

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
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
