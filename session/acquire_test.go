package session

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/locksidecar/locksidecar/lock"
)

func TestAcquireAndRelease(t *testing.T) {
	bubble(t, func(t *testing.T, e *env) {
		sc := e.sidecar(func(o *Options) { o.Namespace = "ns" })
		s := sc.session()
		first := must(t, s, exclusive)
		if first.Resource != "r" || first.Mode != lock.Exclusive || first.Count != 1 || left(e, first.Until) != 9*time.Second {
			t.Errorf("grant = %+v", first)
		}
		if n, _ := e.holders("ns/r"); n != 1 {
			t.Errorf("%d holders of ns/r in the store, want 1", n)
		}
		if i := sc.Info(); i.Holds != 1 || i.Sessions != 1 || i.Waiters != 0 || !i.Ready || i.LeaseID == "" {
			t.Errorf("Info = %+v", i)
		}
		left, err := s.Release(t.Context(), first.LockID, "")
		if left != 0 || err != nil {
			t.Errorf("Release = %d, %v", left, err)
		}
		e.free()
		if second := must(t, s, exclusive); second.Fence <= first.Fence || second.LockID == first.LockID {
			t.Errorf("second grant %+v after %+v", second, first)
		}
		s.Close()
		e.free()
		if i := sc.Info(); i.Holds != 0 || i.Sessions != 0 {
			t.Errorf("Info = %+v", i)
		}
	})
}

func TestReentrancy(t *testing.T) {
	bubble(t, func(t *testing.T, e *env) {
		sc := e.sidecar()
		s := sc.session()
		g1 := must(t, s, again(exclusive))
		g2 := must(t, s, again(shared)) // counted on the exclusive hold
		g3 := must(t, s, again(try(exclusive)))
		if g3.LockID != g1.LockID || g3.Fence != g1.Fence || g2.Mode != lock.Exclusive || g3.Count != 3 {
			t.Errorf("grants %+v, %+v, %+v", g1, g2, g3)
		}
		if n := sc.way.count(opAcquire); n != 1 {
			t.Errorf("the store was asked %d times, want once", n)
		}
		// Another owner of the same session is somebody else.
		_, err := s.Acquire(t.Context(), with(again(try(exclusive)), func(r *AcquireRequest) { r.Owner = "worker-2" }))
		isErr(t, err, lock.ErrHeld)
		for want := 2; want >= 0; want-- {
			if left, err := s.Release(t.Context(), g1.LockID, ""); left != want || err != nil {
				t.Errorf("Release = %d, %v, want %d", left, err, want)
			}
		}
		e.free()
		if want := []AcquireResult{Granted, Reentered, Reentered, Held}; !slices.Equal(sc.obs.results(), want) {
			t.Errorf("observed %v, want %v", sc.obs.results(), want)
		}
	})
}

func TestGuardComesWithEveryGrant(t *testing.T) {
	bubble(t, func(t *testing.T, e *env) {
		sc := e.sidecar()
		s := sc.session()
		sc.way.guard = &lock.Guard{Dialect: "mysql", SQL: "SELECT ?", Args: []string{"1"}}
		first, second := must(t, s, again(exclusive)), must(t, s, again(exclusive))
		down, err := s.Downgrade(t.Context(), first.LockID)
		isErr(t, err, nil)
		for i, g := range []Grant{first, second, down} {
			if g.Guard != sc.way.guard {
				t.Errorf("grant %d has guard %+v", i, g.Guard)
			}
		}
		s.Close()
	})
}

func TestUpgradeIsRefused(t *testing.T) {
	bubble(t, func(t *testing.T, e *env) {
		sc := e.sidecar()
		s := sc.session()
		g := must(t, s, again(shared))
		_, err := s.Acquire(t.Context(), again(exclusive))
		isErr(t, err, ErrUpgradeRefused)
		if left, err := s.Release(t.Context(), g.LockID, ""); left != 0 || err != nil {
			t.Errorf("Release = %d, %v: the refused request must not be counted", left, err)
		}
		// The same while waiting for the shared hold.
		must(t, sc.session(), exclusive)
		p := begin(s, again(shared))
		_, err = s.Acquire(t.Context(), again(exclusive))
		isErr(t, err, ErrUpgradeRefused)
		p.cancel()
		_, err = p.wait()
		isErr(t, err, context.Canceled)
	})
}

func TestWaitsEnd(t *testing.T) {
	bubble(t, func(t *testing.T, e *env) {
		a, b := e.sidecar(), e.sidecar()
		holder := must(t, a.session(), exclusive)
		s := b.session()

		var h *lock.HeldError
		_, err := s.Acquire(t.Context(), try(exclusive))
		if !errors.As(err, &h) || !errors.Is(h.Cause, lock.ErrHeld) || h.Status.Resource != "r" || len(h.Status.Holders) != 1 || h.Status.Holders[0].ID != holder.LockID {
			t.Errorf("try = %+v", err)
		}

		began := e.now()
		_, err = s.Acquire(t.Context(), waiting(exclusive, 3*time.Second))
		if !errors.As(err, &h) || !errors.Is(h.Cause, context.DeadlineExceeded) || h.Position != 1 || len(h.Status.Holders) != 1 {
			t.Errorf("wait = %+v", err)
		}
		if took := e.now() - began; took != 3*time.Second {
			t.Errorf("waited %v, want 3s", took)
		}

		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		_, err = s.Acquire(ctx, exclusive)
		isErr(t, err, context.DeadlineExceeded)
		_, err = s.Acquire(ctx, exclusive)
		isErr(t, err, context.DeadlineExceeded)

		p := begin(s, exclusive)
		if b.Info().Waiters != 1 {
			t.Errorf("Info = %+v", b.Info())
		}
		p.cancel()
		_, err = p.wait()
		if !errors.As(err, &h) || !errors.Is(h.Cause, context.Canceled) {
			t.Errorf("cancelled = %+v", err)
		}
		if _, n := e.holders("r"); n != 0 {
			t.Errorf("%d waiters left in the store", n)
		}
		if want := []AcquireResult{Held, TimedOut, TimedOut, TimedOut, Cancelled}; !slices.Equal(b.obs.results(), want) {
			t.Errorf("observed %v, want %v", b.obs.results(), want)
		}
	})
}

func TestWaiterIsGrantedByTheRelease(t *testing.T) {
	bubble(t, func(t *testing.T, e *env) {
		a, b := e.sidecar(), e.sidecar()
		sa := a.session()
		g := must(t, sa, exclusive)
		p := begin(b.session(), exclusive)
		began := e.now()
		if _, err := sa.Release(t.Context(), g.LockID, ""); err != nil {
			t.Fatal(err)
		}
		next, err := p.wait()
		if err != nil || next.Fence <= g.Fence || e.now() != began {
			t.Errorf("granted %+v, %v after %v", next, err, e.now()-began)
		}
	})
}

func TestSameRequestGetsTheSameAnswer(t *testing.T) {
	bubble(t, func(t *testing.T, e *env) {
		sc := e.sidecar()
		other := sc.session()
		blocker := must(t, other, exclusive)
		s := sc.session()
		req := with(again(exclusive), func(r *AcquireRequest) { r.RequestID = "1" })

		lost, kept := begin(s, req), begin(s, req) // a retry while the first is in flight
		lost.cancel()
		_, err := lost.wait()
		isErr(t, err, context.Canceled)
		third := begin(s, req)
		if _, err := other.Release(t.Context(), blocker.LockID, ""); err != nil {
			t.Fatal(err)
		}
		g, err := kept.wait()
		if err != nil || g.Count != 1 {
			t.Fatalf("grant %+v, %v: one request, however often it is sent, counts once", g, err)
		}
		if g2, err := third.wait(); err != nil || g2.LockID != g.LockID || g2.Count != 1 {
			t.Errorf("in flight: %+v, %v", g2, err)
		}
		if g3 := must(t, s, req); g3.LockID != g.LockID || g3.Count != 1 {
			t.Errorf("held: %+v", g3)
		}
		_, err = s.Acquire(t.Context(), with(req, func(r *AcquireRequest) { r.Resource = "x" }))
		isErr(t, err, lock.ErrInvalid)

		// Another request counts, and its end frees its id.
		if g4 := must(t, s, with(req, func(r *AcquireRequest) { r.RequestID = "2" })); g4.Count != 2 {
			t.Errorf("second request: %+v", g4)
		}
		for range 2 {
			if _, err := s.Release(t.Context(), g.LockID, ""); err != nil {
				t.Error(err)
			}
		}
		if g5 := must(t, s, with(req, func(r *AcquireRequest) { r.Resource = "x" })); g5.LockID == g.LockID || g5.Count != 1 {
			t.Errorf("after the end of the hold: %+v", g5)
		}
	})
}

func TestSameOwnerWaitsTogether(t *testing.T) {
	bubble(t, func(t *testing.T, e *env) {
		sc := e.sidecar()
		other := sc.session()
		blocker := must(t, other, exclusive)
		s := sc.session()
		calls := []*pending{begin(s, again(exclusive)), begin(s, again(shared)), begin(s, again(exclusive))}
		if _, n := e.holders("r"); n != 1 {
			t.Errorf("%d waiters in the store, want 1", n)
		}
		_, err := s.Acquire(t.Context(), again(try(exclusive)))
		isErr(t, err, lock.ErrHeld) // a try does not wait with them
		if _, err := other.Release(t.Context(), blocker.LockID, ""); err != nil {
			t.Fatal(err)
		}
		var id lock.HoldID
		for _, p := range calls {
			g, err := p.wait()
			if err != nil || g.Count != 3 || id != "" && g.LockID != id {
				t.Errorf("grant %+v, %v", g, err)
			}
			id = g.LockID
		}
		for want := 2; want >= 0; want-- {
			if left, err := s.Release(t.Context(), id, ""); left != want || err != nil {
				t.Errorf("Release = %d, %v", left, err)
			}
		}
		e.free()
	})
}

func TestLeaderGivesUp(t *testing.T) {
	bubble(t, func(t *testing.T, e *env) {
		sc := e.sidecar()
		other := sc.session()
		blocker := must(t, other, exclusive)
		s := sc.session()
		leader := begin(s, again(waiting(exclusive, time.Second)))
		second := begin(s, again(waiting(exclusive, 2*time.Second)))
		third := begin(s, again(exclusive))
		_, err := leader.wait()
		isErr(t, err, context.DeadlineExceeded)
		if e.now() != time.Second || second.over() || third.over() {
			t.Errorf("at %v: the others wait on: %v %v", e.now(), !second.over(), !third.over())
		}
		_, err = second.wait()
		isErr(t, err, context.DeadlineExceeded)
		synctest.Wait()
		if _, n := e.holders("r"); n != 1 {
			t.Errorf("%d waiters in the store, want the third", n)
		}
		if _, err := other.Release(t.Context(), blocker.LockID, ""); err != nil {
			t.Fatal(err)
		}
		if g, err := third.wait(); err != nil || g.Count != 1 {
			t.Errorf("third: %+v, %v", g, err)
		}
	})
}

func TestFollowerGivesUp(t *testing.T) {
	bubble(t, func(t *testing.T, e *env) {
		sc := e.sidecar()
		other := sc.session()
		blocker := must(t, other, exclusive)
		s := sc.session()
		leader := begin(s, again(exclusive))
		follower := begin(s, again(exclusive))
		follower.cancel()
		_, err := follower.wait()
		isErr(t, err, context.Canceled)
		if _, err := other.Release(t.Context(), blocker.LockID, ""); err != nil {
			t.Fatal(err)
		}
		if g, err := leader.wait(); err != nil || g.Count != 1 {
			t.Errorf("leader: %+v, %v, want only its own count", g, err)
		}
	})
}

// TestCancelledInTheMomentOfTheGrant: the store has granted, the caller is gone.
func TestCancelledInTheMomentOfTheGrant(t *testing.T) {
	bubble(t, func(t *testing.T, e *env) {
		sc := e.sidecar()
		s := sc.session()
		granted := make(chan struct{})
		sc.way.on(func(ctx context.Context, do func(context.Context) error) error {
			err := do(ctx)
			<-granted
			return err
		}, opAcquire)
		p := begin(s, exclusive)
		if n, _ := e.holders("r"); n != 1 {
			t.Fatal("not granted in the store")
		}
		p.cancel()
		close(granted)
		_, err := p.wait()
		isErr(t, err, context.Canceled)
		synctest.Wait()
		e.free()
	})
}

func TestBadRequests(t *testing.T) {
	bubble(t, func(t *testing.T, e *env) {
		sc := e.sidecar(func(o *Options) { o.Namespace = strings.Repeat("n", 100) })
		s := sc.session()
		cases := map[string]func(*AcquireRequest){
			"resource":   func(r *AcquireRequest) { r.Resource = "" },
			"mode":       func(r *AcquireRequest) { r.Mode = 0 },
			"wait":       func(r *AcquireRequest) { r.Wait = -2 },
			"max_hold":   func(r *AcquireRequest) { r.MaxHold = time.Millisecond },
			"owner":      func(r *AcquireRequest) { r.Owner = strings.Repeat("o", 129) },
			"request_id": func(r *AcquireRequest) { r.RequestID = "\xff" },
		}
		for field, change := range cases {
			_, err := s.Acquire(t.Context(), with(exclusive, change))
			var i *lock.InvalidError
			if !errors.As(err, &i) || i.Field != field {
				t.Errorf("%s: error = %v", field, err)
			}
		}
		for n, want := range map[int]error{411: nil, 412: lock.ErrInvalid} { // with the namespace 512 and 513
			_, err := s.Acquire(t.Context(), with(exclusive, func(r *AcquireRequest) { r.Resource = strings.Repeat("x", n) }))
			isErr(t, err, want)
		}
	})
}

func TestLimits(t *testing.T) {
	bubble(t, func(t *testing.T, e *env) {
		sc := e.sidecar(func(o *Options) { o.Limits = Limits{Sessions: 2, HoldsPerSession: 3, WaitersPerSession: 1} })
		s, other := sc.session(), sc.session()
		var l *LimitError
		_, err := sc.Open(t.Context(), OpenRequest{Liveness: Stream})
		if !errors.As(err, &l) || l.Limit != "sessions" || l.Max != 2 {
			t.Errorf("third session: %v", err)
		}
		named := func(name string) AcquireRequest {
			return with(exclusive, func(r *AcquireRequest) { r.Resource = name })
		}
		a := must(t, other, again(named("a")))
		b := must(t, other, named("b"))
		must(t, other, again(named("a"))) // counts as well
		for _, r := range []AcquireRequest{named("c"), again(named("a"))} {
			_, err = other.Acquire(t.Context(), r)
			if !errors.As(err, &l) || l.Limit != "holds" || !errors.Is(err, ErrLimit) {
				t.Errorf("a hold too many: %v", err)
			}
		}
		p := begin(s, named("a"))
		_, err = s.Acquire(t.Context(), named("b"))
		if !errors.As(err, &l) || l.Limit != "waiters" {
			t.Errorf("second waiter: %v", err)
		}
		for _, id := range []lock.HoldID{a.LockID, a.LockID, b.LockID} {
			if _, err := other.Release(t.Context(), id, ""); err != nil {
				t.Error(err)
			}
		}
		if _, err := p.wait(); err != nil {
			t.Error(err)
		}
		other.Close()
		sc.session()
	})
}
