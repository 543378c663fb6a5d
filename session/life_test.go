package session

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/locksidecar/locksidecar/lock"
)

func TestOpenChecks(t *testing.T) {
	bubble(t, func(t *testing.T, e *env) {
		sc := e.sidecar()
		cases := map[string]OpenRequest{
			"liveness": {Liveness: Process},
			"ttl":      {Liveness: TTL},
			"name":     {Liveness: Stream, Name: "\xff"},
			"metadata": {Liveness: Stream, Metadata: map[string]string{"k": string(make([]byte, maxMetadata))}},
		}
		for field, r := range cases {
			_, err := sc.Open(t.Context(), r)
			var i *lock.InvalidError
			if !errors.As(err, &i) || i.Field != field {
				t.Errorf("%s: error = %v", field, err)
			}
		}
		for _, r := range []OpenRequest{{}, {Liveness: Stream, TTL: time.Millisecond}} {
			_, err := sc.Open(t.Context(), r)
			isErr(t, err, lock.ErrInvalid)
		}
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		_, err := sc.Open(ctx, OpenRequest{Liveness: Stream})
		isErr(t, err, context.Canceled)
	})
}

func TestLookup(t *testing.T) {
	bubble(t, func(t *testing.T, e *env) {
		sc := e.sidecar()
		s := sc.session()
		if got, err := sc.Lookup(s.ID(), Peer{UID: 1000}); got != s || err != nil {
			t.Errorf("Lookup = %v, %v", got, err)
		}
		_, err := sc.Lookup(s.ID(), Peer{UID: 1001})
		isErr(t, err, ErrSessionNotFound)
		_, err = sc.Lookup("x", Peer{UID: 1000})
		isErr(t, err, ErrSessionNotFound)
		s.Close()
		_, err = sc.Lookup(s.ID(), Peer{UID: 1000})
		isErr(t, err, ErrSessionNotFound)
	})
}

// TestTTLOutlivesTheProcess: a session that lives by keep-alives needs nothing
// of the process that opened it.
func TestTTLOutlivesTheProcess(t *testing.T) {
	bubble(t, func(t *testing.T, e *env) {
		gone := make(chan struct{})
		s := e.sidecar().session(func(r *OpenRequest) {
			r.Liveness, r.TTL, r.Peer.Gone = TTL, time.Minute, gone
		})
		close(gone)
		synctest.Wait()
		must(t, s, exclusive)
		if _, err := s.KeepAlive(); err != nil {
			t.Error(err)
		}
	})
}

// TestDeathOfTheProcess frees everything at once, for the kinds of liveness that
// hang on it.
func TestDeathOfTheProcess(t *testing.T) {
	for _, l := range []Liveness{Stream, Process} {
		bubble(t, func(t *testing.T, e *env) {
			a, b := e.sidecar(), e.sidecar()
			gone := make(chan struct{})
			s := a.session(func(r *OpenRequest) {
				r.Liveness, r.TTL, r.Peer.Gone = l, time.Hour, gone
			})
			must(t, s, again(exclusive))
			must(t, s, again(exclusive)) // counts do not keep it
			blocker := b.session()
			must(t, blocker, with(exclusive, func(r *AcquireRequest) { r.Resource = "x" }))
			wait := begin(s, with(exclusive, func(r *AcquireRequest) { r.Resource = "x" }))
			follow := begin(s, with(exclusive, func(r *AcquireRequest) { r.Resource = "x" }))
			next := begin(b.session(), exclusive)
			close(gone)
			if _, err := next.wait(); err != nil || e.now() != 0 {
				t.Errorf("the next one: %v at %v", err, e.now())
			}
			<-s.Done()
			for _, p := range []*pending{wait, follow} {
				_, err := p.wait()
				isErr(t, err, ErrSessionClosed)
			}
			synctest.Wait()
			if _, n := e.holders("x"); n != 0 {
				t.Errorf("%d waiters left", n)
			}
			_, err := news(s).Next(t.Context())
			isErr(t, err, ErrSessionClosed)
			_, err = s.Acquire(t.Context(), exclusive)
			isErr(t, err, ErrSessionClosed)
			_, err = s.KeepAlive()
			isErr(t, err, ErrSessionClosed)
		})
	}
}

func ttlSession(r *OpenRequest) { r.Liveness, r.TTL = TTL, 5*time.Second }

func TestKeepAlive(t *testing.T) {
	bubble(t, func(t *testing.T, e *env) {
		sc := e.sidecar()
		s, other := sc.session(ttlSession), sc.session()
		g := must(t, s, exclusive)
		if left(e, g.Until) != 5*time.Second {
			t.Errorf("grant %+v, want not longer than the session", g)
		}
		for range 10 {
			time.Sleep(4 * time.Second)
			if end, err := s.KeepAlive(); left(e, end) != 5*time.Second || err != nil {
				t.Fatalf("KeepAlive = %v, %v", end, err)
			}
		}
		wait := begin(s, with(exclusive, func(r *AcquireRequest) { r.Resource = "x" }))
		if _, err := wait.wait(); err != nil {
			t.Fatal(err)
		}
		next := begin(other, exclusive)
		began := e.now()
		// Two holds are lost, told, and kept for the grace.
		for range 2 {
			if l := lostEvent(t, s); l.Reason != SessionExpired || left(e, l.GraceEnd) != 2*time.Second || e.now() != began+5*time.Second {
				t.Errorf("lost %+v at %v", l, e.now())
			}
		}
		_, err := s.KeepAlive()
		isErr(t, err, ErrSessionClosed)
		_, err = s.Acquire(t.Context(), exclusive)
		isErr(t, err, ErrSessionClosed)
		if _, err := sc.Lookup(s.ID(), Peer{UID: 1000}); err != nil {
			t.Errorf("Lookup in the grace = %v: the app could not release", err)
		}
		if _, err := next.wait(); err != nil || e.now() != began+7*time.Second {
			t.Errorf("the next one: %v at %v", err, e.now())
		}
		_, err = news(s).Next(t.Context())
		isErr(t, err, ErrSessionClosed)
	})
}

func TestReleaseEndsTheGraceOfAnExpiredSession(t *testing.T) {
	bubble(t, func(t *testing.T, e *env) {
		sc := e.sidecar()
		s := sc.session(ttlSession)
		g := must(t, s, exclusive)
		lostEvent(t, s)
		_, err := s.Release(t.Context(), g.LockID, "")
		isLost(t, err, SessionExpired)
		synctest.Wait()
		e.free()
		select {
		case <-s.Done(): // nothing is left to wait for
		default:
			t.Error("the session has not ended")
		}
	})
}

func TestExpiredSessionWithoutHoldsEndsAtOnce(t *testing.T) {
	bubble(t, func(t *testing.T, e *env) {
		sc := e.sidecar()
		s := sc.session(ttlSession)
		<-s.Done()
		if e.now() != 5*time.Second {
			t.Errorf("ended at %v", e.now())
		}
	})
}

func TestNoKeepAliveIsNeeded(t *testing.T) {
	bubble(t, func(t *testing.T, e *env) {
		if left, err := e.sidecar().session().KeepAlive(); left != 0 || err != nil {
			t.Errorf("KeepAlive = %v, %v", left, err)
		}
	})
}

// TestExpiredSessionAfterAStop: the clock is past the session's end and no timer
// has fired.
func TestExpiredSessionAfterAStop(t *testing.T) {
	bubble(t, func(t *testing.T, e *env) {
		sc := e.sidecar(func(o *Options) { o.TTL = lock.MaxTTL })
		s := sc.session(ttlSession)
		g := must(t, s, exclusive)
		e.jump.Store(int64(6 * time.Second))
		_, err := s.KeepAlive()
		isErr(t, err, ErrSessionClosed)
		_, err = s.Release(t.Context(), g.LockID, "")
		isLost(t, err, SessionExpired)
	})
}

func TestLeaseNews(t *testing.T) {
	bubble(t, func(t *testing.T, e *env) {
		sc := e.sidecar()
		idle, s := sc.session(), sc.session(func(r *OpenRequest) { r.TTL = 6 * time.Second })
		must(t, s, exclusive)
		ev, err := news(s).Next(t.Context())
		// Valid as long as the lease and the session are.
		if err != nil || ev.Lease == nil || ev.Lease.Jeopardy || left(e, ev.Lease.Until) != 6*time.Second-sc.o.TTL/3 {
			t.Errorf("event %+v, %v", ev, err)
		}
		if _, err := s.KeepAlive(); err != nil {
			t.Error(err)
		}
		if ev, err := news(s).Next(t.Context()); err != nil || ev.Lease == nil || left(e, ev.Lease.Until) != 6*time.Second {
			t.Errorf("event after a keep-alive %+v, %v", ev, err)
		}
		// Old news are not kept: what is read late is one, and of now.
		for range 4 {
			time.Sleep(4 * time.Second)
			_, _ = s.KeepAlive()
		}
		if ev, err := news(s).Next(t.Context()); err != nil || ev.Lease == nil || left(e, ev.Lease.Until) > 6*time.Second {
			t.Errorf("event %+v, %v", ev, err)
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Millisecond)
		defer cancel()
		if ev, err := news(s).Next(ctx); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("event %+v, %v, want none", ev, err)
		}
		ctx, cancel = context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		if ev, err := news(idle).Next(ctx); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("event for a session without holds: %+v, %v", ev, err)
		}
	})
}

func TestDrain(t *testing.T) {
	bubble(t, func(t *testing.T, e *env) {
		sc := e.sidecar()
		s := sc.session()
		g := must(t, s, exclusive)
		ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
		defer cancel()
		done := make(chan error, 1)
		go func() { done <- sc.Drain(ctx) }()
		ev, err := news(s).Next(t.Context())
		if err != nil || ev.Draining == nil || time.Until(ev.Draining.End) != 30*time.Second {
			t.Errorf("event %+v, %v", ev, err)
		}
		_, err = sc.Open(t.Context(), OpenRequest{Liveness: Stream})
		isErr(t, err, ErrDraining)
		isErr(t, sc.Ready(), ErrDraining)
		must(t, s, with(exclusive, func(r *AcquireRequest) { r.Resource = "x" })) // may go on
		time.Sleep(10 * time.Second)
		if i := sc.Info(); !i.Draining || i.Ready || i.NotReadyBecause == "" {
			t.Errorf("Info = %+v", i)
		}
		if _, err := s.Release(t.Context(), g.LockID, ""); err != nil {
			t.Error(err)
		}
		select {
		case err := <-done:
			t.Errorf("Drain = %v while there is a hold", err)
		default:
		}
		s.Close()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
}

func TestDrainIsOver(t *testing.T) {
	bubble(t, func(t *testing.T, e *env) {
		sc := e.sidecar()
		must(t, sc.session(), exclusive)
		ctx, cancel := context.WithTimeout(t.Context(), 3*time.Second)
		defer cancel()
		isErr(t, sc.Drain(ctx), context.DeadlineExceeded)
	})
}

func TestStop(t *testing.T) {
	bubble(t, func(t *testing.T, e *env) {
		a, b := e.sidecar(), e.sidecar()
		quick, slow, idle := a.session(), a.session(), a.session()
		g := must(t, quick, exclusive)
		must(t, slow, with(exclusive, func(r *AcquireRequest) { r.Resource = "x" }))
		waiter := begin(idle, exclusive)
		next := begin(b.session(), exclusive)
		late := begin(b.session(), with(exclusive, func(r *AcquireRequest) { r.Resource = "x" }))
		stopped := make(chan error, 1)
		go func() { stopped <- a.stop() }()

		if l := lostEvent(t, quick); l.Reason != Stopping || left(e, l.GraceEnd) != 2*time.Second {
			t.Errorf("lost %+v", l)
		}
		_, err := quick.Release(t.Context(), g.LockID, "")
		isLost(t, err, Stopping)
		if _, err := next.wait(); err != nil || e.now() != 0 {
			t.Errorf("the next one: %v at %v, want at once", err, e.now())
		}
		_, err = waiter.wait()
		isErr(t, err, ErrSessionClosed)
		if late.over() {
			t.Error("let in before the grace is over")
		}
		if err := <-stopped; err != nil || e.now() != 2*time.Second {
			t.Errorf("Run = %v at %v", err, e.now())
		}
		if _, err := late.wait(); err != nil {
			t.Error(err)
		}
		// What is told can still be read.
		if l := lostEvent(t, slow); l.Reason != Stopping || left(e, l.GraceEnd) != 0 {
			t.Errorf("lost %+v", l)
		}
		_, err = news(slow).Next(t.Context())
		isErr(t, err, ErrSessionClosed)
		_, err = a.Open(t.Context(), OpenRequest{Liveness: Stream})
		isErr(t, err, ErrDraining)
	})
}

func TestStopWithNothingToLose(t *testing.T) {
	bubble(t, func(t *testing.T, e *env) {
		sc := e.sidecar()
		s := sc.session()
		if err := sc.stop(); err != nil || e.now() != 0 {
			t.Errorf("Run = %v at %v", err, e.now())
		}
		<-s.Done()
	})
}

func TestStoreDownAtStart(t *testing.T) {
	bubble(t, func(t *testing.T, e *env) {
		sc := e.build()
		isErr(t, sc.Ready(), lock.ErrUnavailable) // before Run
		sc.way.on(down, opOpen)
		sc.run()
		synctest.Wait()
		isErr(t, sc.Ready(), lock.ErrUnavailable)
		s := sc.session() // sessions do not need the store
		_, err := s.Acquire(t.Context(), waiting(exclusive, 3*time.Second))
		isErr(t, err, lock.ErrUnavailable)
		if e.now() != 3*time.Second {
			t.Errorf("failed at %v", e.now())
		}
		_, err = s.Acquire(t.Context(), try(exclusive))
		isErr(t, err, lock.ErrUnavailable)
		if e.now() != 5*time.Second {
			t.Errorf("try failed at %v", e.now())
		}
		p := begin(s, exclusive)
		q := begin(s, with(exclusive, func(r *AcquireRequest) { r.Resource = "x" }))
		q.cancel()
		_, err = q.wait()
		isErr(t, err, context.Canceled)
		time.Sleep(time.Minute)
		sc.way.on(nil, opOpen)
		if _, err := p.wait(); err != nil || sc.Ready() != nil {
			t.Errorf("after the store came up: %v, %v", err, sc.Ready())
		}
	})
}

func TestStopWhileTheStoreIsDown(t *testing.T) {
	bubble(t, func(t *testing.T, e *env) {
		sc := e.build()
		sc.way.on(hang, opOpen)
		sc.run()
		s := sc.session()
		p := begin(s, exclusive)
		if err := sc.stop(); err != nil || e.now() != 0 {
			t.Errorf("Run = %v at %v", err, e.now())
		}
		_, err := p.wait()
		isErr(t, err, ErrSessionClosed)
	})
}

func TestStopAfterTheStoreWentAway(t *testing.T) {
	bubble(t, func(t *testing.T, e *env) {
		sc := e.sidecar()
		must(t, sc.session(), exclusive)
		sc.way.on(hang, opHeartbeat, opOpen, opRelease, opClose, opAcquire)
		time.Sleep(9500 * time.Millisecond) // in the grace of the expired lease
		if err := sc.stop(); err != nil || e.now() > 11*time.Second {
			t.Errorf("Run = %v at %v", err, e.now())
		}
	})
}

func TestOptionsAreChecked(t *testing.T) {
	bubble(t, func(t *testing.T, e *env) {
		for name, o := range map[string]Options{
			"no backend":    {},
			"short ttl":     {Backend: e.store, TTL: time.Millisecond},
			"bad namespace": {Backend: e.store, Namespace: "a\nb"},
			"two in one":    {Backend: e.store, Namespace: "a/b"}, // with "c" it would be "a" with "b/c"
			"bad limit":     {Backend: e.store, Limits: Limits{Sessions: -1}},
			"bad grace":     {Backend: e.store, LostGrace: -1},
		} {
			if _, err := New(o); !errors.Is(err, lock.ErrInvalid) {
				t.Errorf("%s: %v", name, err)
			}
		}
	})
}
