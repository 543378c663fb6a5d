package session

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/locksidecar/locksidecar/lock"
	"github.com/locksidecar/locksidecar/session/ledger"
)

func request(id string) AcquireRequest {
	return with(exclusive, func(r *AcquireRequest) { r.RequestID = id })
}

func TestCancelEndsTheWait(t *testing.T) {
	bubble(t, func(t *testing.T, e *env) {
		sc := e.sidecar()
		holder, s := sc.session(), sc.session()
		g := must(t, holder, exclusive)
		p, second := begin(s, again(request("1"))), begin(s, again(request("1")))
		other := begin(s, again(request("2"))) // of the same owner: it goes on
		synctest.Wait()
		isErr(t, s.Cancel(t.Context(), "1"), nil)
		for _, p := range []*pending{p, second} {
			_, err := p.wait()
			isErr(t, err, context.Canceled)
		}
		_, err := holder.Release(t.Context(), g.LockID, "")
		isErr(t, err, nil)
		got, err := other.wait()
		isErr(t, err, nil)
		if got.Count != 1 {
			t.Errorf("count %d, want that of the one that was not cancelled", got.Count)
		}
		s.Close()
		e.free()
	})
}

func TestCancelGivesTheGrantBack(t *testing.T) {
	bubble(t, func(t *testing.T, e *env) {
		s := e.sidecar().session()
		must(t, s, request("1"))
		isErr(t, s.Cancel(t.Context(), "1"), nil)
		e.free()
		isErr(t, s.Cancel(t.Context(), "1"), nil)
		isErr(t, s.Cancel(t.Context(), "unknown"), nil)

		// Of a hold with several counts it takes its own, and once.
		g := must(t, s, again(exclusive))
		must(t, s, again(request("2")))
		must(t, s, again(request("3")))
		for range 2 {
			isErr(t, s.Cancel(t.Context(), "2"), nil)
		}
		if left, err := s.Release(t.Context(), g.LockID, ""); left != 1 || err != nil {
			t.Errorf("Release = %d, %v, want one count left", left, err)
		}
		s.Close()
		e.free()
	})
}

func TestCancelOvertakesItsRequest(t *testing.T) {
	bubble(t, func(t *testing.T, e *env) {
		s := e.sidecar().session()
		isErr(t, s.Cancel(t.Context(), "1"), nil)
		_, err := s.Acquire(t.Context(), request("1"))
		isErr(t, err, context.Canceled)
		e.free()
		for i := range ledger.MaxCancelled {
			isErr(t, s.Cancel(t.Context(), fmt.Sprint("more", i)), nil)
		}
		must(t, s, request("1")) // forgotten by now
	})
}

// A Cancel that is repeated counts from then: it is not forgotten with those that came
// since the first.
func TestRepeatedCancelIsRememberedFromThen(t *testing.T) {
	bubble(t, func(t *testing.T, e *env) {
		s := e.sidecar().session()
		for round := range 3 { // the memory is not full, just full, and has gone round
			id := fmt.Sprint("repeated", round)
			isErr(t, s.Cancel(t.Context(), id), nil)
			for i := range ledger.MaxCancelled - 1 {
				isErr(t, s.Cancel(t.Context(), fmt.Sprint("more", round, "-", i)), nil)
			}
			isErr(t, s.Cancel(t.Context(), id), nil)
			for i := range ledger.MaxCancelled / 2 {
				isErr(t, s.Cancel(t.Context(), fmt.Sprint("since", round, "-", i)), nil)
			}
			if _, err := s.Acquire(t.Context(), request(id)); !errors.Is(err, context.Canceled) {
				t.Errorf("round %d: got %v, want that it was cancelled", round, err)
				break
			}
		}
		s.Close()
		e.free()
	})
}

func TestCancelWhatIsLost(t *testing.T) {
	bubble(t, func(t *testing.T, e *env) {
		s := e.sidecar().session()
		must(t, s, with(request("1"), func(r *AcquireRequest) { r.MaxHold = time.Second }))
		time.Sleep(2 * time.Second)
		isErr(t, s.Cancel(t.Context(), "1"), nil)
		s.Close()
		isErr(t, s.Cancel(t.Context(), "1"), ErrSessionClosed)
		isErr(t, s.Cancel(t.Context(), ""), lock.ErrInvalid)
	})
}

// Whatever the moment at which the cancelling comes, nothing is left behind.
func TestCancelAtAnyMoment(t *testing.T) {
	bubble(t, func(t *testing.T, e *env) {
		sc := e.sidecar()
		s := sc.session()
		for i := range 200 {
			id := fmt.Sprint(i)
			p := begin(s, request(id))
			if i%2 == 0 {
				time.Sleep(time.Duration(i) * time.Millisecond / 50)
			}
			isErr(t, s.Cancel(t.Context(), id), nil)
			_, _ = p.wait()
			synctest.Wait()
			e.free()
		}
		if i := sc.Info(); i.Holds != 0 || i.Waiters != 0 {
			t.Errorf("Info = %+v", i)
		}
	})
}
