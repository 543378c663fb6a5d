package session

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hashicorp/go-hclog"

	"github.com/locksidecar/locksidecar/lock"
	"github.com/locksidecar/locksidecar/session/outcome"
)

// fieldOf is the field that an error refuses; "" where it refuses none.
func fieldOf(err error) string {
	var i *lock.InvalidError
	if errors.As(err, &i) {
		return i.Field
	}
	return ""
}

// TestBoundsOfASession: what the API allows for a session, to the last step.
func TestBoundsOfASession(t *testing.T) {
	gone := make(chan struct{})
	of := func(change func(*OpenRequest)) OpenRequest {
		r := OpenRequest{Liveness: Stream}
		change(&r)
		return r
	}
	for _, c := range []struct {
		r       OpenRequest
		refused string
	}{
		{of(func(r *OpenRequest) { r.Liveness = 0 }), "liveness"},
		{of(func(r *OpenRequest) { r.Liveness = 9 }), "liveness"},
		{of(func(r *OpenRequest) { r.Liveness = Process }), "liveness"},
		{of(func(r *OpenRequest) { r.Liveness, r.Peer.Gone = Process, gone }), ""},
		{of(func(r *OpenRequest) { r.Liveness = TTL }), "ttl"},
		{of(func(r *OpenRequest) { r.Liveness, r.TTL = TTL, time.Second }), ""},
		{of(func(r *OpenRequest) { r.TTL = -1 }), "ttl"},
		{of(func(r *OpenRequest) { r.TTL = 1 }), "ttl"},
		{of(func(r *OpenRequest) { r.TTL = 100*time.Millisecond - 1 }), "ttl"},
		{of(func(r *OpenRequest) { r.TTL = 100 * time.Millisecond }), ""},
		{of(func(r *OpenRequest) { r.TTL = time.Hour }), ""},
		{of(func(r *OpenRequest) { r.TTL = time.Hour + 1 }), "ttl"},
		{of(func(r *OpenRequest) { r.Name = strings.Repeat("x", 128) }), ""},
		{of(func(r *OpenRequest) { r.Name = strings.Repeat("x", 129) }), "name"},
		{of(func(r *OpenRequest) { r.Name = "\xff" }), "name"},
		{of(func(r *OpenRequest) { r.Metadata = map[string]string{"k": "v", "x": strings.Repeat("x", 1021)} }), ""},
		{of(func(r *OpenRequest) { r.Metadata = map[string]string{"k": "v", "x": strings.Repeat("x", 1022)} }), "metadata"},
		{of(func(r *OpenRequest) { r.Metadata = map[string]string{"\xff": "v"} }), "metadata"},
		{of(func(r *OpenRequest) { r.Metadata = map[string]string{"k": "\xff"} }), "metadata"},
	} {
		if got := fieldOf(checkOpen(c.r)); got != c.refused {
			t.Errorf("%+v: %q is refused, want %q", c.r, got, c.refused)
		}
	}
}

// TestBoundsOfARequest: the same for an acquire, and for the names of resources.
func TestBoundsOfARequest(t *testing.T) {
	bubble(t, func(t *testing.T, e *env) {
		for _, namespace := range []string{"", "ns"} {
			m, err := New(Options{Backend: e.store, Namespace: namespace})
			if err != nil {
				t.Fatal(err)
			}
			long := lock.MaxResourceBytes
			if namespace != "" {
				long -= len(namespace) + 1
			}
			for _, c := range []struct {
				change  func(*AcquireRequest)
				refused string
			}{
				{func(*AcquireRequest) {}, ""},
				{func(r *AcquireRequest) { r.Mode = 0 }, "mode"},
				{func(r *AcquireRequest) { r.Wait = 0 }, ""},
				{func(r *AcquireRequest) { r.Wait = -2 }, "wait"},
				{func(r *AcquireRequest) { r.Wait = 24 * time.Hour }, ""},
				{func(r *AcquireRequest) { r.Wait = 24*time.Hour + 1 }, "wait"},
				{func(r *AcquireRequest) { r.MaxHold = -1 }, "max_hold"},
				{func(r *AcquireRequest) { r.MaxHold = 1 }, "max_hold"},
				{func(r *AcquireRequest) { r.MaxHold = 100*time.Millisecond - 1 }, "max_hold"},
				{func(r *AcquireRequest) { r.MaxHold = 100 * time.Millisecond }, ""},
				{func(r *AcquireRequest) { r.MaxHold = 24 * time.Hour }, ""},
				{func(r *AcquireRequest) { r.MaxHold = 24*time.Hour + 1 }, "max_hold"},
				{func(r *AcquireRequest) { r.RequestID = strings.Repeat("x", 128) }, ""},
				{func(r *AcquireRequest) { r.RequestID = strings.Repeat("x", 129) }, "request_id"},
				{func(r *AcquireRequest) { r.Owner = strings.Repeat("x", 128) }, ""},
				{func(r *AcquireRequest) { r.Owner = strings.Repeat("x", 129) }, "owner"},
				{func(r *AcquireRequest) { r.Resource = "" }, "resource"},
				{func(r *AcquireRequest) { r.Resource = strings.Repeat("x", long) }, ""},
				{func(r *AcquireRequest) { r.Resource = strings.Repeat("x", long+1) }, "resource"},
			} {
				r := exclusive
				c.change(&r)
				res, _, err := m.Everybody().checkAcquire(&r)
				if got := fieldOf(err); got != c.refused {
					t.Errorf("%+v: %q is refused, want %q", r, got, c.refused)
				}
				if want := strings.TrimPrefix(namespace+"/"+r.Resource, "/"); err == nil && string(res) != want {
					t.Errorf("%q is named %q in the store, want %q", r.Resource, res, want)
				}
			}
		}
	})
}

// TestBoundsOfOptions: the same for the sidecar's own settings.
func TestBoundsOfOptions(t *testing.T) {
	bubble(t, func(t *testing.T, e *env) {
		for _, c := range []struct {
			change  func(*Options)
			refused string
		}{
			{func(*Options) {}, ""},
			{func(o *Options) { o.Backend = nil }, "backend"},
			{func(o *Options) { o.TTL = lock.MinTTL }, ""},
			{func(o *Options) { o.TTL = lock.MinTTL - 1 }, "ttl"},
			{func(o *Options) { o.TTL = lock.MaxTTL }, ""},
			{func(o *Options) { o.TTL = lock.MaxTTL + 1 }, "ttl"},
			{func(o *Options) { o.LostGrace = -1 }, "lost_grace"},
			{func(o *Options) { o.LostGrace = 1 }, ""},
			{func(o *Options) { o.Limits.Sessions = -1 }, "limits"},
			{func(o *Options) { o.Limits.SessionsPerUID = -1 }, "limits"},
			{func(o *Options) { o.Limits.HoldsPerSession = -1 }, "limits"},
			{func(o *Options) { o.Limits.HoldsPerUID = -1 }, "limits"},
			{func(o *Options) { o.Limits.WaitersPerSession = -1 }, "limits"},
			{func(o *Options) { o.Limits.PerSpace.Sessions = -1 }, "limits"},
			{func(o *Options) { o.Limits.PerSpace.Holds = -1 }, "limits"},
			{func(o *Options) { o.Limits.PerAccount.Waiters = -1 }, "limits"},
			{func(o *Options) { o.Limits.PerAccount.Detached = -1 }, "limits"},
			{func(o *Options) { o.Limits.InFlight = -1 }, "limits"},
			{func(o *Options) { o.Limits.InFlightPerUID = -1 }, "limits"},
			{func(o *Options) { o.Limits.PerSpace.InFlight = -1 }, "limits"},
			{func(o *Options) { o.Limits.PerAccount.InFlight = -1 }, "limits"},
			{func(o *Options) { o.Namespace = strings.Repeat("x", lock.MaxResourceBytes-2) }, ""},
			{func(o *Options) { o.Namespace = strings.Repeat("x", lock.MaxResourceBytes-1) }, "namespace"},
			{func(o *Options) { o.Namespace = "a/b" }, "namespace"},
			{func(o *Options) { o.Namespace = "a\nb" }, "namespace"},
		} {
			o := Options{Backend: e.store}
			c.change(&o)
			if _, err := New(o); fieldOf(err) != c.refused || (err != nil) != (c.refused != "") {
				t.Errorf("%+v: %v, want %q to be refused", o, err, c.refused)
			}
		}
		_, err := New(Options{Backend: e.store, Namespace: "a\nb"})
		if longest := fmt.Sprint(lock.MaxResourceBytes - len("/x")); err == nil || !strings.Contains(err.Error(), "at most "+longest+" bytes") {
			t.Errorf("%v does not say that %s bytes are allowed", err, longest)
		}
		m, err := New(Options{Backend: e.store})
		if err != nil {
			t.Fatal(err)
		}
		want := Limits{Sessions: 10_000, SessionsPerUID: 5_000, HoldsPerSession: 10_000, HoldsPerUID: 20_000, DetachedPerUID: 1_000, WaitersPerSession: 1_000, InFlight: 3_072, InFlightPerUID: 2_304}
		if m.o.Limits != want || m.o.TTL != 10*time.Second || m.o.LostGrace != 2*time.Second {
			t.Errorf("the defaults are %+v, %v, %v", m.o.Limits, m.o.TTL, m.o.LostGrace)
		}
	})
}

// TestResults: how each end of an acquire is counted, and what that is called.
func TestResults(t *testing.T) {
	for _, c := range []struct {
		count int
		err   error
		want  AcquireResult
		name  string
	}{
		{1, nil, Granted, "granted"},
		{2, nil, Reentered, "reentered"},
		{0, &lock.HeldError{Cause: lock.ErrHeld}, Held, "held"},
		{0, &lock.HeldError{Cause: context.DeadlineExceeded}, TimedOut, "timed_out"},
		{0, &lock.HeldError{Cause: context.Canceled}, Cancelled, "cancelled"},
		{0, ErrSessionClosed, Ended, "ended"},
		{0, &LostError{}, Ended, "ended"},
		{0, ErrUpgradeRefused, Refused, "refused"},
		{0, &LimitError{}, Refused, "refused"},
		{0, &DeadlockError{}, Deadlocked, "deadlock"},
		{0, &outcome.RefusedError{Cause: outcome.ErrAlreadyDone}, Done, "done"},
		{0, &outcome.RefusedError{Cause: outcome.ErrAttemptsExhausted}, Exhausted, "exhausted"},
		{0, lock.ErrUnavailable, Unavailable, "unavailable"},
		{0, fmt.Errorf("%w: %w", lock.ErrUnavailable, context.DeadlineExceeded), Unavailable, "unavailable"},
	} {
		got := resultOf(Grant{Count: c.count}, c.err)
		if got != c.want || got.String() != c.name {
			t.Errorf("%d, %v: %v, want %s", c.count, c.err, got, c.name)
		}
	}
	if got := AcquireResult(0).String(); got != "unknown" {
		t.Errorf("0 is %q", got)
	}
}

// TestWhyNotReady: each reason is told, and is over when its cause is.
func TestWhyNotReady(t *testing.T) {
	bubble(t, func(t *testing.T, e *env) {
		sc := e.build()
		sc.way.on(down, opOpen)
		isErr(t, sc.Ready(), lock.ErrUnavailable)
		sc.run()
		synctest.Wait()
		isErr(t, sc.Ready(), errDown)
		isErr(t, sc.OnceReady(), errDown)
		sc.way.on(nil, opOpen)
		time.Sleep(5 * time.Second)
		isErr(t, sc.Ready(), nil)
		isErr(t, sc.OnceReady(), nil)

		sc.way.on(down, opHeartbeat)
		time.Sleep(5 * time.Second)
		isErr(t, sc.Ready(), lock.ErrUnavailable)
		if why := sc.Info().NotReadyBecause; !strings.Contains(why, "heartbeat") {
			t.Errorf("not ready because: %q", why)
		}
		sc.way.on(nil, opHeartbeat)
		time.Sleep(5 * time.Second)
		isErr(t, sc.Ready(), nil)

		sc.way.on(down, opHeartbeat, opOpen)
		time.Sleep(11 * time.Second)
		isErr(t, sc.Ready(), lock.ErrUnavailable)
		isErr(t, sc.OnceReady(), nil) // it was ready before
		sc.way.on(nil, opHeartbeat, opOpen)
		time.Sleep(5 * time.Second)
		isErr(t, sc.Ready(), nil)
		if err := sc.Drain(context.Background()); err != nil {
			t.Error(err)
		}
		isErr(t, sc.Ready(), ErrDraining)
		isErr(t, sc.OnceReady(), ErrDraining)
	})
}

// TestTheStoreFailsQueries: what the store refuses is told, of each query.
func TestTheStoreFailsQueries(t *testing.T) {
	bubble(t, func(t *testing.T, e *env) {
		sc := e.sidecar()
		s := sc.session()
		ids := []lock.HoldID{must(t, s, shared).LockID, must(t, s, shared).LockID}
		ctx := t.Context()

		long := strings.Repeat("x", lock.MaxResourceBytes)
		for _, c := range []struct {
			prefix  string
			limit   int
			refused string
		}{{long, 1, ""}, {long + "x", 1, "prefix"}, {"", 0, "page_size"}, {"", 1, ""}, {"", lock.MaxPage, ""}, {"", lock.MaxPage + 1, "page_size"}} {
			if _, err := sc.List(ctx, c.prefix, "", c.limit); fieldOf(err) != c.refused {
				t.Errorf("a page of %d: %v", c.limit, err)
			}
		}
		_, err := sc.ForceRelease(ctx, "", "", 0)
		isErr(t, err, lock.ErrInvalid)
		for _, grace := range []time.Duration{-1, time.Minute + 1} {
			if _, err := sc.ForceRelease(ctx, "free", "", grace); fieldOf(err) != "grace" {
				t.Errorf("a grace of %v: %v", grace, err)
			}
		}
		_, err = sc.ForceRelease(ctx, "free", "", time.Minute)
		isErr(t, err, nil)

		sc.way.on(down, opGet, opList)
		_, err = sc.Get(ctx, "r")
		isErr(t, err, errDown)
		_, err = sc.List(ctx, "", "", 1)
		isErr(t, err, errDown)
		_, err = sc.ForceRelease(ctx, "r", "", 0)
		isErr(t, err, errDown)
		sc.way.on(nil, opGet, opList)

		sc.way.force = func(lock.HoldID) error { return nil }
		taken, err := sc.ForceRelease(ctx, "r", ids[1], 0)
		isErr(t, err, nil)
		if len(taken) != 1 || taken[0] != ids[1] {
			t.Errorf("taken %v, want the one that was named", taken)
		}
		sc.way.force = func(lock.HoldID) error { return errDown }
		_, err = sc.ForceRelease(ctx, "r", ids[1], 0)
		isErr(t, err, errDown)

		// One of two cannot be taken, and the other is.
		sc.way.force = func(id lock.HoldID) error {
			if id == ids[0] {
				return errDown
			}
			return nil
		}
		taken, err = sc.ForceRelease(ctx, "r", "", 0)
		isErr(t, err, errDown)
		if len(taken) != 1 || taken[0] != ids[1] {
			t.Errorf("taken %v, want the other one", taken)
		}
		// One that has gone by itself in between is no failure.
		sc.way.force = func(lock.HoldID) error { return lock.ErrNotHolder }
		taken, err = sc.ForceRelease(ctx, "r", "", 0)
		isErr(t, err, nil)
		if len(taken) != 0 {
			t.Errorf("taken %v, want none", taken)
		}
	})
}

// TestManyForcedReleases go to the store at the same time, 256 of them.
func TestManyForcedReleases(t *testing.T) {
	bubble(t, func(t *testing.T, e *env) {
		sc := e.sidecar()
		s := sc.session()
		for range 300 {
			must(t, s, shared)
		}
		var flying, most atomic.Int32
		sc.way.force = func(lock.HoldID) error {
			most.Store(max(most.Load(), flying.Add(1)))
			time.Sleep(time.Second)
			flying.Add(-1)
			return nil
		}
		if taken, err := sc.ForceRelease(t.Context(), "r", "", 0); len(taken) != 300 || err != nil {
			t.Errorf("%d are taken, %v", len(taken), err)
		}
		if most.Load() != 256 {
			t.Errorf("%d at the same time, want 256", most.Load())
		}
	})
}

// TestBoundsOfAWatch: its interval, and its end by its own function and its ctx.
func TestBoundsOfAWatch(t *testing.T) {
	bubble(t, func(t *testing.T, e *env) {
		sc := e.sidecar()
		enough := errors.New("enough")
		stop := func(WatchEvent) error { return enough }
		for interval, refused := range map[time.Duration]string{
			-1: "interval", 1: "interval", 100*time.Millisecond - 1: "interval", 100 * time.Millisecond: "",
			0: "", time.Minute: "", time.Minute + 1: "interval",
		} {
			err := sc.Watch(t.Context(), "", interval, stop)
			if fieldOf(err) != refused || refused == "" && !errors.Is(err, enough) {
				t.Errorf("an interval of %v: %v", interval, err)
			}
		}
		must(t, sc.session(), exclusive)
		for _, kind := range []WatchKind{Current, Synced, Changed} {
			go func() {
				time.Sleep(3 * time.Second)
				must(t, sc.session(), named(fmt.Sprint(kind)))
			}()
			err := sc.Watch(t.Context(), "", 0, func(e WatchEvent) error {
				if e.Kind == kind {
					return enough
				}
				return nil
			})
			isErr(t, err, enough)
			time.Sleep(4 * time.Second)
		}
		ctx, cancel := context.WithTimeout(t.Context(), 90*time.Second)
		defer cancel()
		began := e.now()
		err := sc.Watch(ctx, "", time.Minute, func(WatchEvent) error { return nil })
		isErr(t, err, context.DeadlineExceeded)
		if took := e.now() - began; took != 90*time.Second {
			t.Errorf("ended after %v", took)
		}
		sc.way.on(down, opList)
		isErr(t, sc.Watch(t.Context(), "", 0, stop), errDown)
	})
}

// TestAskedBeforeThereIsALease: a request that waits for a lease says that it blocks,
// asks on the lease that comes, and hears of its hold.
func TestAskedBeforeThereIsALease(t *testing.T) {
	bubble(t, func(t *testing.T, e *env) {
		sc := e.build(func(o *Options) { o.Logger = hclog.NewNullLogger() })
		sc.way.on(down, opOpen)
		sc.run()
		s := sc.session()
		var told atomic.Int32
		ctx := lock.WithBlocking(t.Context(), func() { told.Add(1) })
		grants := make(chan Grant, 1)
		q := s.Begin(ctx, with(exclusive, func(r *AcquireRequest) { r.Owner = "me" }), func(g Grant, err error) {
			isErr(t, err, nil)
			grants <- g
		})
		go q.Run()
		synctest.Wait()
		if told.Load() == 0 {
			t.Error("nobody is told that the request blocks")
		}
		sc.way.on(nil, opOpen)
		g := <-grants
		st, err := sc.Get(t.Context(), "r")
		if err != nil || len(st.Holders) != 1 || st.Holders[0].Owner.Label != "me" || st.Holders[0].Owner.PID != 7 {
			t.Errorf("%+v, %v", st, err)
		}
		go func() {
			if _, err := sc.ForceRelease(context.Background(), "r", g.LockID, time.Second); err != nil {
				t.Error(err)
			}
		}()
		if l := lostEvent(t, s); l.Reason != Forced || l.LockID != g.LockID {
			t.Errorf("%+v", l)
		}
		time.Sleep(2 * time.Second)

		// Without a label the store names the process.
		g = must(t, s, exclusive)
		st, err = sc.Get(t.Context(), "r")
		if err != nil || len(st.Holders) != 1 || st.Holders[0].Owner.Label != "" || st.Holders[0].Owner.PID != 7 || st.Holders[0].ID != g.LockID {
			t.Errorf("%+v, %v", st, err)
		}
	})
}

// TestDowngradeBesideAnother: the second waits for the first, at most two seconds.
func TestDowngradeBesideAnother(t *testing.T) {
	bubble(t, func(t *testing.T, e *env) {
		sc := e.sidecar()
		s := sc.session()
		g := must(t, s, exclusive)
		sc.way.on(once(stuck), opDowngrade)
		first := make(chan error, 1)
		go func() {
			_, err := s.Downgrade(context.Background(), g.LockID)
			first <- err
		}()
		synctest.Wait()
		began := e.now()
		got, err := s.Downgrade(context.Background(), g.LockID)
		isErr(t, err, lock.ErrUnavailable)
		isErr(t, err, context.DeadlineExceeded)
		if took := e.now() - began; took != 2*time.Second || got.LockID != "" {
			t.Errorf("%+v after %v", got, took)
		}
		isErr(t, <-first, lock.ErrUnavailable)
	})
}

// TestWhatIsGivenUpHasABudget: while the store does not answer for a lock, an app that asks for it and gives up again
// and again is refused at its limit, and others of its user at theirs. When the store answers, nothing is left.
func TestWhatIsGivenUpHasABudget(t *testing.T) {
	bubble(t, func(t *testing.T, e *env) {
		const own, all = 10, 15
		sc := e.sidecar(func(o *Options) { o.Limits.HoldsPerSession, o.Limits.HoldsPerUID = own, all })
		a, b := sc.session(), sc.session()
		sc.way.on(hang, opAcquire, opRelease)
		giveUp := func(s *Session) error {
			p := beginAsync(s, exclusive)
			if p.over() {
				return p.err
			}
			p.cancel()
			_, err := p.wait()
			isErr(t, err, context.Canceled)
			synctest.Wait()
			return nil
		}
		for range own {
			isErr(t, giveUp(a), nil)
		}
		isErr(t, giveUp(a), ErrLimit)
		for range all - own {
			isErr(t, giveUp(b), nil)
		}
		isErr(t, giveUp(b), ErrLimit)
		sc.way.on(nil, opAcquire, opRelease)
		time.Sleep(2 * choreTimeout)
		for range own {
			must(t, a, shared)
		}
		a.Close()
		b.Close()
		e.free()
	})
}
