package session

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/locksidecar/locksidecar/lock"
)

// TestWaitsEndInTimeWhateverTheDriverDoes: it does not return for half a minute.
// Afterwards nothing is left behind in the store.
func TestWaitsEndInTimeWhateverTheDriverDoes(t *testing.T) {
	cases := map[string]struct {
		request AcquireRequest
		end     func(*Session, *pending) // after a second
		took    time.Duration
		want    error
	}{
		"a try":              {try(exclusive), nil, 2 * time.Second, lock.ErrUnavailable},
		"a wait":             {waiting(exclusive, 3*time.Second), nil, 3*time.Second + patience, lock.ErrUnavailable},
		"cancelled":          {exclusive, func(_ *Session, p *pending) { p.cancel() }, time.Second + patience, context.Canceled},
		"by its id":          {request("1"), func(s *Session, _ *pending) { _ = s.Cancel(context.Background(), "1") }, time.Second, context.Canceled},
		"the session closes": {exclusive, func(s *Session, _ *pending) { s.Close() }, time.Second, ErrSessionClosed},
	}
	for name, c := range cases {
		test := func(t *testing.T, begin func(*Session, AcquireRequest) *pending) {
			bubble(t, func(t *testing.T, e *env) {
				sc := e.sidecar()
				s := sc.session()
				sc.way.on(once(stuck), opAcquire)
				p := begin(s, c.request)
				began := e.now()
				if c.end != nil {
					time.Sleep(time.Second)
					c.end(s, p)
				}
				_, err := p.wait()
				isErr(t, err, c.want)
				if took := e.now() - began; took > c.took {
					t.Errorf("took %v, want %v", took, c.took)
				}
				if n := sc.way.count(opRelease); n != 0 {
					t.Errorf("%d releases while the driver still acquires", n)
				}
				time.Sleep(stuckFor)
				synctest.Wait()
				e.free()
				if i := sc.Info(); i.Holds != 0 || i.Waiters != 0 {
					t.Errorf("Info = %+v", i)
				}
			})
		}
		t.Run(name, func(t *testing.T) { test(t, begin) })
		t.Run(name+", by Begin", func(t *testing.T) { test(t, beginAsync) })
	}
}

// TestStoreInTheProcessAlwaysAnswers: on a machine that is so busy that the answer takes long, the end of a wait, and a try,
// says what the store says.
func TestStoreInTheProcessAlwaysAnswers(t *testing.T) {
	slow := func(d time.Duration) fault {
		return func(ctx context.Context, do func(context.Context) error) error {
			err := do(ctx)
			if ctx.Err() != nil || d > tryLimit { // the end of a wait, or all of a try
				time.Sleep(d)
			}
			return err
		}
	}
	for name, c := range map[string]struct {
		request AcquireRequest
		slow    time.Duration
		near    bool
		want    error
	}{
		"a wait":                      {waiting(exclusive, time.Second), time.Second, true, context.DeadlineExceeded},
		"a try":                       {try(exclusive), 5 * time.Second, true, lock.ErrHeld},
		"a wait at a store elsewhere": {waiting(exclusive, time.Second), time.Second, false, lock.ErrUnavailable},
		"a try at a store elsewhere":  {try(exclusive), 5 * time.Second, false, lock.ErrUnavailable},
	} {
		for way, begin := range map[string]func(*Session, AcquireRequest) *pending{"": begin, ", by Begin": beginAsync} {
			t.Run(name+way, func(t *testing.T) {
				bubble(t, func(t *testing.T, e *env) {
					sc := e.sidecar()
					sc.Manager.lease.Load().near = c.near
					holder := must(t, sc.session(), exclusive)
					sc.way.on(slow(c.slow), opAcquire)
					_, err := begin(sc.session(), c.request).wait()
					isErr(t, err, c.want)
					held := (*lock.HeldError)(nil)
					if c.near && (!errors.As(err, &held) || len(held.Status.Holders) != 1 || held.Status.Holders[0].ID != holder.LockID) {
						t.Errorf("it does not say who has the lock: %v", err)
					}
					time.Sleep(c.slow) // until the store has answered
					synctest.Wait()
				})
			})
		}
	}
}

// TestStuckDriverDoesNotKeepTheNextLeaseWaiting: the request goes to the next
// lease although the driver still has it on the old one.
func TestStuckDriverDoesNotKeepTheNextLeaseWaiting(t *testing.T) {
	bubble(t, func(t *testing.T, e *env) {
		sc := e.sidecar()
		sc.way.on(once(stuck), opAcquire)
		sc.way.on(hang, opHeartbeat)
		p := begin(sc.session(), exclusive)
		if _, err := p.wait(); err != nil || e.now() > 11*time.Second { // when the store has ended the old lease
			t.Errorf("%v at %v", err, e.now())
		}
		sc.way.on(nil, opHeartbeat)
		time.Sleep(stuckFor)
	})
}

// TestStopWhileTheStoreIsAway: whatever hangs or fails, the end is no error.
func TestStopWhileTheStoreIsAway(t *testing.T) {
	for name, f := range map[string]fault{"down": down, "hanging": hang, "stuck": stuck, "lost": leaseLost} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T, e *env) {
				sc := e.sidecar()
				s := sc.session()
				must(t, s, exclusive)
				sc.way.on(f, opHeartbeat, opOpen, opRelease, opClose, opAcquire, opDowngrade, opGet)
				waiters := []*pending{begin(s, named("x")), begin(s, again(named("y"))), begin(s, try(again(named("y"))))}
				time.Sleep(time.Second)
				if err := sc.stop(); err != nil {
					t.Errorf("Run = %v", err)
				}
				for _, p := range waiters {
					if _, err := p.wait(); err == nil {
						t.Error("granted by a store that is away")
					}
				}
				sc.way.on(nil, opHeartbeat, opOpen, opRelease, opClose, opAcquire, opDowngrade, opGet)
				time.Sleep(2 * stuckFor)
			})
		})
	}
}

// TestStopLetsNoWaiterIn: the holds of one session end while others of the same
// sidecar still wait for them.
func TestStopLetsNoWaiterIn(t *testing.T) {
	for range 50 {
		bubble(t, func(t *testing.T, e *env) {
			a, b := e.sidecar(), e.sidecar()
			quick := a.session()
			g := must(t, quick, exclusive)
			var waiters []*pending
			for range 8 {
				waiters = append(waiters, begin(a.session(), exclusive))
			}
			next := begin(b.session(), exclusive)
			go func() { // an app that lets go as soon as it hears of it
				lostEvent(t, quick)
				_, _ = quick.Release(context.Background(), g.LockID, "")
			}()
			stopped := make(chan error, 1)
			go func() { stopped <- a.stop() }()
			for _, p := range waiters {
				_, err := p.wait()
				isErr(t, err, ErrSessionClosed)
			}
			if _, err := next.wait(); err != nil || e.now() != 0 {
				t.Errorf("the next one: %v at %v, want at once", err, e.now())
			}
			isErr(t, <-stopped, nil)
		})
	}
}

// goneAfter is a ctx that has ended when the caller looks at it after the grant,
// and not before.
type goneAfter struct {
	context.Context
	gone chan struct{}
}

func (c goneAfter) Err() error {
	select {
	case <-c.gone:
		return context.Canceled
	default:
		return nil
	}
}

// TestRetryKeepsItsGrant: the first call of a request is granted and gone in the
// same moment; its retry was answered with the hold, and keeps it.
func TestRetryKeepsItsGrant(t *testing.T) {
	for name, retries := range map[string]bool{"with a retry": true, "without": false} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T, e *env) {
				sc := e.sidecar()
				s := sc.session()
				gone, answer := make(chan struct{}), make(chan struct{})
				sc.way.on(func(ctx context.Context, do func(context.Context) error) error {
					err := do(ctx)
					<-answer
					return err
				}, opAcquire)
				first := make(chan error, 1)
				go func() {
					_, err := s.Acquire(goneAfter{t.Context(), gone}, request("1"))
					first <- err
				}()
				synctest.Wait()
				var retry *pending
				if retries {
					retry = begin(s, request("1"))
				}
				close(gone)
				close(answer)
				isErr(t, <-first, context.Canceled)
				synctest.Wait()
				holders, _ := e.holders("r")
				if !retries {
					if holders != 0 {
						t.Error("the hold of nobody is kept")
					}
					return
				}
				g, err := retry.wait()
				if err != nil || holders != 1 {
					t.Fatalf("retry: %+v, %v, %d holders in the store", g, err, holders)
				}
				if left, err := s.Release(t.Context(), g.LockID, ""); left != 0 || err != nil {
					t.Errorf("Release = %d, %v", left, err)
				}
			})
		})
	}
}

// TestTryGetsTheGrantThatIsOnItsWay: a reentrant try comes while the answer to
// another request of its owner travels. The store shows the session's own hold.
func TestTryGetsTheGrantThatIsOnItsWay(t *testing.T) {
	bubble(t, func(t *testing.T, e *env) {
		sc := e.sidecar()
		s := sc.session()
		answer := make(chan struct{})
		sc.way.on(func(ctx context.Context, do func(context.Context) error) error {
			err := do(ctx)
			<-answer
			return err
		}, opAcquire)
		leader := begin(s, again(exclusive))
		follower := begin(s, again(try(exclusive)))
		if follower.over() {
			t.Errorf("the try is answered with %v", follower.err)
		}
		close(answer)
		for _, p := range []*pending{leader, follower} {
			if g, err := p.wait(); err != nil || g.Count != 2 {
				t.Errorf("grant %+v, %v", g, err)
			}
		}
	})
}

// TestMaxHoldOfOneWhoGaveUp does not end the hold of those who share the wait.
func TestMaxHoldOfOneWhoGaveUp(t *testing.T) {
	bubble(t, func(t *testing.T, e *env) {
		sc := e.sidecar()
		other, s := sc.session(), sc.session()
		g := must(t, other, exclusive)
		brief := begin(s, with(again(exclusive), func(r *AcquireRequest) { r.MaxHold = time.Second }))
		leader := begin(s, again(exclusive))
		brief.cancel()
		_, err := brief.wait()
		isErr(t, err, context.Canceled)
		_, err = other.Release(t.Context(), g.LockID, "")
		isErr(t, err, nil)
		if g, err := leader.wait(); err != nil || left(e, g.Until) != 9*time.Second {
			t.Errorf("grant %+v, %v", g, err)
		}
		s.Close()
	})
}

// TestEachAcquireStandsAlone where it does not ask to be reentrant.
func TestEachAcquireStandsAlone(t *testing.T) {
	bubble(t, func(t *testing.T, e *env) {
		sc := e.sidecar()
		s := sc.session()
		one, two := must(t, s, shared), must(t, s, shared)
		if one.LockID == two.LockID || one.Count != 1 || two.Count != 1 {
			t.Errorf("grants %+v and %+v, want two holds", one, two)
		}
		if n, _ := e.holders("r"); n != 2 {
			t.Errorf("%d holders in the store, want 2", n)
		}
		for _, g := range []Grant{one, two} {
			if left, err := s.Release(t.Context(), g.LockID, ""); left != 0 || err != nil {
				t.Errorf("Release = %d, %v", left, err)
			}
		}
		owned := with(exclusive, func(r *AcquireRequest) { r.Owner = "me" }) // an owner alone asks for nothing
		g := must(t, s, owned)
		_, err := s.Acquire(t.Context(), try(owned))
		isErr(t, err, lock.ErrHeld)
		_, err = s.Acquire(t.Context(), again(try(owned))) // the hold is not of a reentrant request
		isErr(t, err, lock.ErrHeld)
		second := begin(s, owned)
		if _, n := e.holders("r"); second.over() || n != 1 {
			t.Errorf("the second: over %v, %d waiters in the store", second.over(), n)
		}
		if _, err := s.Release(t.Context(), g.LockID, ""); err != nil {
			t.Error(err)
		}
		if g2, err := second.wait(); err != nil || g2.LockID == g.LockID || g2.Fence <= g.Fence {
			t.Errorf("the second: %+v, %v", g2, err)
		}
	})
}

// TestReleaseIsRetried: the answer is lost on the way to the app, which sends its
// release again.
func TestReleaseIsRetried(t *testing.T) {
	bubble(t, func(t *testing.T, e *env) {
		sc := e.sidecar()
		s := sc.session()
		g := must(t, s, again(exclusive))
		must(t, s, again(exclusive))
		must(t, s, again(exclusive))
		for range 3 {
			if left, err := s.Release(t.Context(), g.LockID, "1"); left != 2 || err != nil {
				t.Errorf("Release = %d, %v", left, err)
			}
		}
		if left, err := s.Release(t.Context(), g.LockID, ""); left != 1 || err != nil {
			t.Errorf("Release = %d, %v", left, err)
		}
		// The last one, while the first copy still waits for the store.
		sc.way.on(func(ctx context.Context, do func(context.Context) error) error {
			time.Sleep(time.Second)
			return do(ctx)
		}, opRelease)
		answers := make(chan error, 2)
		for range 2 {
			go func() {
				left, err := s.Release(context.Background(), g.LockID, "2")
				if left != 0 {
					err = errors.New("counts are left")
				}
				answers <- err
			}()
		}
		for range 2 {
			isErr(t, <-answers, nil)
		}
		if n := sc.way.count(opRelease); n != 1 || e.now() != time.Second {
			t.Errorf("the store was asked %d times, answered at %v", n, e.now())
		}
		_, err := s.Release(t.Context(), g.LockID, "3")
		isErr(t, err, lock.ErrNotHolder)
		_, err = s.Release(t.Context(), "other", "1")
		isErr(t, err, lock.ErrInvalid)
		_, err = s.Release(t.Context(), g.LockID, string(make([]byte, 129)))
		isErr(t, err, lock.ErrInvalid)
	})
}

// TestReleaseFollowsADowngrade: one call at a time goes to the store for a hold.
func TestReleaseFollowsADowngrade(t *testing.T) {
	bubble(t, func(t *testing.T, e *env) {
		sc := e.sidecar()
		s := sc.session()
		g := must(t, s, exclusive)
		sc.way.on(func(ctx context.Context, do func(context.Context) error) error {
			time.Sleep(time.Second)
			return do(ctx)
		}, opDowngrade)
		downgraded := make(chan error, 2)
		for range 2 {
			go func() {
				_, err := s.Downgrade(context.Background(), g.LockID)
				downgraded <- err
			}()
		}
		synctest.Wait()
		if left, err := s.Release(t.Context(), g.LockID, ""); left != 0 || err != nil || e.now() != time.Second {
			t.Errorf("Release = %d, %v at %v", left, err, e.now())
		}
		e.free()
		for range 2 {
			isErr(t, <-downgraded, lock.ErrNotHolder)
		}
	})
}

// TestLimitsOfAUser: one user cannot take what all have together.
func TestLimitsOfAUser(t *testing.T) {
	bubble(t, func(t *testing.T, e *env) {
		sc := e.sidecar(func(o *Options) { o.Limits = Limits{SessionsPerUID: 2, HoldsPerUID: 3} })
		a, b := sc.session(), sc.session()
		var l *LimitError
		_, err := sc.Open(t.Context(), OpenRequest{Liveness: Stream, Peer: Peer{UID: 1000}})
		if !errors.As(err, &l) || l.Limit != "sessions per uid" || l.Max != 2 {
			t.Errorf("third session: %v", err)
		}
		other := sc.session(func(r *OpenRequest) { r.Peer.UID = 2000 })
		g := must(t, a, named("1"))
		must(t, b, named("2"))
		p := begin(b, named("1")) // a wait counts, too
		for _, s := range []*Session{a, b} {
			if _, err = s.Acquire(t.Context(), named("3")); !errors.As(err, &l) || l.Limit != "holds per uid" || l.Max != 3 {
				t.Errorf("fourth hold: %v", err)
			}
		}
		must(t, other, named("3"))
		_, err = a.Release(t.Context(), g.LockID, "")
		isErr(t, err, nil)
		if _, err := p.wait(); err != nil {
			t.Error(err)
		}
		must(t, a, named("4"))
		a.Close()
		must(t, sc.session(), named("5"))
		b.Close()
		if n := len(sc.usages); n != 2 {
			t.Errorf("%d users are counted, want 2", n)
		}
	})
}

// TestTimerSeesAJumpOfTheClock: the machine was suspended, in which Go's timers
// stand still, and nobody asks anything.
func TestTimerSeesAJumpOfTheClock(t *testing.T) {
	bubble(t, func(t *testing.T, e *env) {
		sc := e.sidecar(func(o *Options) { o.TTL = lock.MaxTTL })
		s := sc.session()
		r := s.Events()
		must(t, s, with(exclusive, func(r *AcquireRequest) { r.MaxHold = 5 * time.Minute }))
		told := make(chan time.Duration, 1)
		go func() {
			for {
				if ev, err := r.Next(context.Background()); err != nil || ev.Lost != nil {
					told <- e.now()
					return
				}
			}
		}()
		synctest.Wait()
		e.jump.Store(int64(6 * time.Minute))
		if at := <-told; at > maxStep {
			t.Errorf("told after %v", at)
		}
	})
}
