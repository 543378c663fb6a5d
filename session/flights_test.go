package session

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/locksidecar/locksidecar/lock"
	"github.com/locksidecar/locksidecar/session/outcome"
)

// ask begins an acquire that does not end by itself, and tells how it was refused at once.
func ask(s *Session, name string) (*pending, error) {
	p := beginAsync(s, with(exclusive, func(r *AcquireRequest) { r.Resource = name }))
	if p.over() {
		return p, p.err
	}
	return p, nil
}

// askAll begins acquires until one is refused, and counts those that were not.
func askAll(t *testing.T, s *Session, limit string) (all []*pending) {
	t.Helper()
	for i := range 100 {
		p, err := ask(s, fmt.Sprintf("%s/%d", s.ID(), i))
		if err == nil {
			all = append(all, p)
			continue
		}
		var full *LimitError
		if !errors.As(err, &full) || full.Limit != limit || !strings.Contains(err.Error(), "wait for answers") {
			t.Errorf("refused with %v, want the limit of %s", err, limit)
		}
		return all
	}
	t.Error("nothing is refused")
	return all
}

func as(uid uint32) func(*OpenRequest) { return func(r *OpenRequest) { r.Peer.UID = uid } }

// TestWhatIsInFlightHasABudget: while the store is silent, requests for locks are refused at the limit of a user and at
// that of all. Other sessions and other users find room all the same, and what lets go is never refused.
func TestWhatIsInFlightHasABudget(t *testing.T) {
	bubble(t, func(t *testing.T, e *env) {
		sc := e.sidecar(func(o *Options) { o.Limits.InFlight = 32 }) // 24 of one user
		a, b := sc.session(), sc.session(func(r *OpenRequest) { r.Liveness, r.TTL = TTL, time.Minute })
		held := must(t, a, shared)
		sc.way.on(hang, opAcquire, opRelease)

		of := askAll(t, a, "requests in flight per uid")
		if len(of) != 23 {
			t.Errorf("a session has %d requests in flight, want 23", len(of))
		}
		c, d := sc.session(as(1001)), sc.session(as(1002))
		for _, x := range []struct {
			who   string
			s     *Session
			limit string
			want  int
		}{
			{"another session of the same user", b, "requests in flight per uid", 1},
			{"another user", c, "requests in flight of all apps", 6},
			{"a third user", d, "requests in flight of all apps", 1},
		} {
			more := askAll(t, x.s, x.limit)
			if of = append(of, more...); len(more) != x.want {
				t.Errorf("%s has %d requests in flight, want %d", x.who, len(more), x.want)
			}
		}

		// What does not ask for more.
		_, err := b.KeepAlive()
		isErr(t, err, nil)
		of[0].cancel()
		_, err = of[0].wait()
		isErr(t, err, context.Canceled)
		began := e.now()
		_, err = a.Release(context.Background(), held.LockID, "")
		isErr(t, err, nil)
		if took := e.now() - began; took != answerLimit {
			t.Errorf("a release took %v, want %v", took, answerLimit)
		}

		sc.way.on(nil, opAcquire, opRelease)
		for _, p := range of {
			p.cancel()
		}
		time.Sleep(2 * choreTimeout)
		synctest.Wait()
		if n := sc.flights.Load(); n != 0 {
			t.Errorf("%d requests are in flight after the store has answered", n)
		}
		must(t, a, exclusive)
		for _, s := range []*Session{a, b, c, d} {
			s.Close()
		}
		e.free()
		synctest.Wait()
		if len(sc.usages) != 0 {
			t.Errorf("left: %v", sc.usages)
		}
	})
}

// TestWhatIsGivenUpIsInFlight until the store has answered: else who gives up soon could ask without end.
func TestWhatIsGivenUpIsInFlight(t *testing.T) {
	bubble(t, func(t *testing.T, e *env) {
		sc := e.sidecar(func(o *Options) { o.Limits.InFlight, o.Limits.InFlightPerUID = 100, 10 })
		sc.way.on(stuck, opAcquire)
		for range 10 {
			p, err := ask(sc.session(), "given up")
			isErr(t, err, nil)
			p.cancel()
			_, err = p.wait()
			isErr(t, err, context.Canceled)
		}
		s := sc.session()
		_, err := ask(s, "one more")
		isErr(t, err, ErrLimit)
		sc.way.on(nil, opAcquire)
		time.Sleep(stuckFor)
		synctest.Wait()
		must(t, s, exclusive)
	})
}

// TestReleasesBeyondTheBudget are not refused, and not waited for: they go on in the background.
func TestReleasesBeyondTheBudget(t *testing.T) {
	bubble(t, func(t *testing.T, e *env) {
		const room = 5 // 4 and a quarter
		sc := e.sidecar(func(o *Options) { o.Limits.InFlight, o.Limits.InFlightPerUID = 100, 4 })
		s := sc.session()
		var held []Grant
		for i := range 2 * room {
			held = append(held, must(t, s, with(exclusive, func(r *AcquireRequest) { r.Resource = fmt.Sprint(i) })))
		}
		sc.way.on(hang, opRelease, opDowngrade)
		began := e.now()
		for i, g := range held {
			done := make(chan error, 1)
			go func() {
				_, err := s.Release(context.Background(), g.LockID, "")
				done <- err
			}()
			synctest.Wait()
			select {
			case err := <-done:
				if isErr(t, err, nil); i < room {
					t.Errorf("release %d was not waited for", i)
				}
			default:
				if i >= room {
					t.Errorf("release %d is waited for", i)
				}
			}
		}
		if e.now() != began {
			t.Errorf("it took %v", e.now()-began)
		}
		// The same for the end of a session, and what may be refused is.
		other := sc.session()
		other.Close()
		if e.now() != began {
			t.Errorf("a session's end took %v", e.now()-began)
		}
		_, err := s.Downgrade(context.Background(), held[0].LockID)
		isErr(t, err, ErrLimit)
		_, err = sc.Fly(Peer{UID: 1000}, true)
		isErr(t, err, ErrLimit)
		look, err := sc.Fly(Peer{UID: 1000}, false) // there is room for one
		isErr(t, err, nil)
		_, err = sc.Fly(Peer{UID: 1000}, false)
		isErr(t, err, ErrLimit)
		look()
		land, err := sc.Fly(Peer{UID: 1001}, false)
		isErr(t, err, nil)
		land()
		sc.way.on(nil, opRelease, opDowngrade)
		time.Sleep(2 * choreTimeout)
		e.free()
		s.Close()
		synctest.Wait()
		if n := sc.Info().InFlight; len(sc.usages) != 0 || n != 0 {
			t.Errorf("left: %v, %d", sc.usages, n)
		}
	})
}

// TestLooksFindRoom: where requests that wait have used up what may be in flight, looks find an eighth more, and what lets
// go finds room beside them. Neither takes room from a request for a lock.
func TestLooksFindRoom(t *testing.T) {
	bubble(t, func(t *testing.T, e *env) {
		sc := e.sidecar(func(o *Options) { o.Limits.InFlight, o.Limits.InFlightPerUID = 64, 24 })
		sc.way.on(hang, opAcquire)
		var waits []*pending
		for range 24 { // each in a session that has nothing else
			p, err := ask(sc.session(), "hot")
			isErr(t, err, nil)
			waits = append(waits, p)
		}
		_, err := ask(sc.session(), "one more")
		isErr(t, err, ErrLimit)
		var lands []func()
		looks := func(uid uint32, want int) {
			t.Helper()
			for n := 0; ; n++ {
				land, err := sc.Fly(Peer{UID: uid}, false)
				if err != nil {
					if isErr(t, err, ErrLimit); n != want {
						t.Errorf("uid %d has %d looks, want %d", uid, n, want)
					}
					return
				}
				lands = append(lands, land)
			}
		}
		looks(1000, 3)
		force, err := sc.Fly(Peer{UID: 1000}, true)
		isErr(t, err, nil)
		force()
		if n := sc.Info().InFlight; n != 24+3 {
			t.Errorf("%d are in flight, want 27", n)
		}
		looks(1001, 23+3) // 24 of its own, of which one is for another session
		looks(1002, 13+2) // 64 of all; 8 of all looks
		looks(1003, 1)    // which has nothing
		waits[0].cancel()
		_, err = waits[0].wait()
		isErr(t, err, context.Canceled)
		sc.way.on(nil, opAcquire)
		synctest.Wait()
		for _, land := range lands[3:] {
			land()
		}
		must(t, sc.session(), exclusive) // though there are looks
		for _, land := range lands[:3] {
			land()
		}
		for _, p := range waits[1:] {
			p.cancel()
		}
		time.Sleep(2 * choreTimeout)
		synctest.Wait()
		if n := sc.Info().InFlight; n != 0 {
			t.Errorf("%d are left in flight", n)
		}
	})
}

// TestWhatEndedSessionsHaveLeftHasABudget: while the store does not answer for what they have left to be released, an app that
// opens sessions, takes locks and dies, again and again, is refused at the limit of its user. When the store answers, nothing is left.
func TestWhatEndedSessionsHaveLeftHasABudget(t *testing.T) {
	for what, fault := range map[string]struct {
		ops  []string
		take func(t *testing.T, s *Session) error
	}{
		"holds": {[]string{opRelease}, func(_ *testing.T, s *Session) error {
			_, err := s.Acquire(context.Background(), with(exclusive, func(r *AcquireRequest) { r.Resource = string(s.ID()) }))
			return err
		}},
		"requests": {[]string{opAcquire, opRelease}, func(_ *testing.T, s *Session) error {
			_, err := ask(s, string(s.ID()))
			return err
		}},
		"requests that were given up": {[]string{opAcquire, opRelease}, func(t *testing.T, s *Session) error {
			p, err := ask(s, string(s.ID()))
			if err == nil {
				p.cancel()
				_, gone := p.wait()
				isErr(t, gone, context.Canceled)
			}
			return err
		}},
	} {
		t.Run(what, func(t *testing.T) {
			bubble(t, func(t *testing.T, e *env) {
				const limit = 15
				sc := e.sidecar(func(o *Options) { o.Limits.HoldsPerUID = limit })
				sc.way.on(hang, fault.ops...)
				for range limit {
					s := sc.session()
					isErr(t, fault.take(t, s), nil)
					s.Close()
					synctest.Wait()
				}
				s := sc.session()
				err := fault.take(t, s)
				isErr(t, err, ErrLimit)
				if full := (*LimitError)(nil); !errors.As(err, &full) || full.Limit != "holds per uid" {
					t.Errorf("refused with %v", err)
				}
				other := sc.session(as(1001))
				sc.way.on(nil, opAcquire)
				must(t, other, with(exclusive, func(r *AcquireRequest) { r.Resource = "of another user" }))
				sc.way.on(nil, opRelease)
				time.Sleep(2 * choreTimeout)
				must(t, s, exclusive)
				s.Close()
				other.Close()
				e.free()
				synctest.Wait()
				if len(sc.usages) != 0 {
					t.Errorf("left: %v", sc.usages)
				}
			})
		})
	}
}

// TestWhatASpaceHasLeft counts for the space, too, until it is released.
func TestWhatASpaceHasLeft(t *testing.T) {
	bubble(t, func(t *testing.T, e *env) {
		sc := e.sidecar(func(o *Options) { o.Limits.PerSpace = Quota{Holds: 2, InFlight: 4} })
		sp, err := sc.In("web")
		isErr(t, err, nil)
		open := func(uid uint32) *Session {
			s, err := sp.Open(context.Background(), OpenRequest{Liveness: Stream, Peer: Peer{PID: 7, UID: uid}})
			isErr(t, err, nil)
			return s
		}
		sc.way.on(hang, opRelease)
		for uid := range uint32(2) {
			s := open(uid)
			must(t, s, with(exclusive, func(r *AcquireRequest) { r.Resource = fmt.Sprint(uid) }))
			s.Close()
		}
		s := open(2)
		_, err = s.Acquire(context.Background(), exclusive)
		if full := (*LimitError)(nil); !errors.As(err, &full) || full.Limit != "holds per space" {
			t.Errorf("refused with %v", err)
		}
		sc.way.on(nil, opRelease)
		time.Sleep(2 * choreTimeout)
		must(t, s, exclusive)
		s.Close()

		// The same for what is in flight.
		var lands []func()
		for range 4 + 1 { // one in the room that only looks have
			land, err := sp.Fly(Peer{UID: 3}, false)
			isErr(t, err, nil)
			lands = append(lands, land)
		}
		_, err = sp.Fly(Peer{UID: 4}, false)
		if full := (*LimitError)(nil); !errors.As(err, &full) || full.Limit != "requests in flight per space" {
			t.Errorf("refused with %v", err)
		}
		own := Peer{UID: 3}.Shares(sp)
		if len(sc.usages) != len(own) || sc.usages[own[0]] == nil || sc.usages[own[1]] == nil {
			t.Errorf("there are %v", sc.usages)
		}
		for _, land := range lands {
			land()
		}
	})
}

// TestWhatHasEndedIsNotInFlight, from the moment at which its caller has the answer, though its session goes on.
func TestWhatHasEndedIsNotInFlight(t *testing.T) {
	ctx := context.Background()
	for what, f := range map[string]func(t *testing.T, sc *sidecar, s *Session){
		"release": func(t *testing.T, _ *sidecar, s *Session) {
			_, err := s.Release(ctx, must(t, s, exclusive).LockID, "")
			isErr(t, err, nil)
		},
		"release, and its retry": func(t *testing.T, sc *sidecar, s *Session) {
			g := must(t, s, exclusive)
			sc.way.on(once(hang), opRelease)
			var both sync.WaitGroup
			for range 2 {
				both.Go(func() {
					_, err := s.Release(ctx, g.LockID, "q")
					isErr(t, err, nil)
				})
				synctest.Wait()
			}
			if n := sc.Info().InFlight; n != 2 {
				t.Errorf("%d are in flight while both wait", n)
			}
			both.Wait()
		},
		"downgrade": func(t *testing.T, sc *sidecar, s *Session) {
			g := must(t, s, exclusive)
			sc.way.on(func(ctx context.Context, do func(context.Context) error) error {
				if n := sc.Info().InFlight; n != 1 {
					t.Errorf("%d are in flight while it is asked for", n)
				}
				return do(ctx)
			}, opDowngrade)
			_, err := s.Downgrade(ctx, g.LockID)
			isErr(t, err, nil)
		},
		"downgrade of nothing": func(t *testing.T, _ *sidecar, s *Session) {
			_, err := s.Downgrade(ctx, "none")
			isErr(t, err, lock.ErrNotHolder)
		},
		"detach": func(t *testing.T, _ *sidecar, s *Session) {
			_, err := s.Detach(ctx, must(t, s, detachable).LockID, time.Minute)
			isErr(t, err, nil)
		},
		"detach of nothing": func(t *testing.T, _ *sidecar, s *Session) {
			_, err := s.Detach(ctx, "none", time.Minute)
			isErr(t, err, lock.ErrNotHolder)
		},
		"conclude": func(t *testing.T, _ *sidecar, s *Session) {
			concluded(t, s, must(t, s, attempt(0)), outcome.Succeeded, "")
		},
		"conclude at a silent store": func(t *testing.T, sc *sidecar, s *Session) {
			g := must(t, s, attempt(0))
			sc.way.on(hang, opRead, opWrite)
			_, err := s.Conclude(ctx, g.LockID, "", outcome.Succeeded, "")
			isErr(t, err, lock.ErrUnavailable)
			sc.way.on(nil, opRead, opWrite)
		},
		"try": func(t *testing.T, sc *sidecar, s *Session) {
			must(t, sc.session(), exclusive)
			_, err := s.Acquire(ctx, try(exclusive))
			isErr(t, err, lock.ErrHeld)
		},
		"wait that is over": func(t *testing.T, sc *sidecar, s *Session) {
			must(t, sc.session(), exclusive)
			_, err := s.Acquire(ctx, waiting(exclusive, time.Second))
			isErr(t, err, context.DeadlineExceeded)
		},
		"wait that is cancelled": func(t *testing.T, sc *sidecar, s *Session) {
			must(t, sc.session(), exclusive)
			p := begin(s, with(exclusive, func(r *AcquireRequest) { r.RequestID = "q" }))
			isErr(t, s.Cancel(ctx, "q"), nil)
			_, err := p.wait()
			isErr(t, err, context.Canceled)
		},
	} {
		t.Run(what, func(t *testing.T) {
			bubble(t, func(t *testing.T, e *env) {
				sc := e.sidecar(keeps(e))
				s := sc.session()
				f(t, sc, s)
				synctest.Wait()
				if n := sc.Info().InFlight; n != 0 {
					t.Errorf("%d are in flight", n)
				}
			})
		})
	}
}

// TestConcludeBeyondTheBudget is not waited for, and the hold stays: another one records the outcome.
func TestConcludeBeyondTheBudget(t *testing.T) {
	bubble(t, func(t *testing.T, e *env) {
		sc := e.sidecar(keeps(e), func(o *Options) { o.Limits.InFlightPerUID = 4 })
		s := sc.session()
		g := must(t, s, attempt(0))
		sc.way.on(hang, opRelease)
		for i := range 5 {
			held := must(t, s, with(exclusive, func(r *AcquireRequest) { r.Resource = fmt.Sprint(i) }))
			go func() { _, _ = s.Release(context.Background(), held.LockID, "") }()
		}
		synctest.Wait()
		began := e.now()
		_, err := s.Conclude(context.Background(), g.LockID, "", outcome.Succeeded, "")
		if isErr(t, err, lock.ErrUnavailable); !strings.Contains(err.Error(), "too much is in flight") || e.now() != began {
			t.Errorf("%v, after %v", err, e.now()-began)
		}
		if o := recorded(t, e); o.State != outcome.Unknown {
			t.Errorf("recorded as %v", o.State)
		}
		sc.way.on(nil, opRelease)
		time.Sleep(2 * choreTimeout)
		synctest.Wait()
		concluded(t, s, g, outcome.Succeeded, "")
		if o := recorded(t, e); o.State != outcome.Succeeded {
			t.Errorf("recorded as %v at last", o.State)
		}
	})
}

func TestLooksOf(t *testing.T) {
	for flights, want := range map[int64]int64{0: 0, 1: 1, 8: 1, 64: 8} {
		if n := looksOf(flights); n != want {
			t.Errorf("beside %d there may be %d looks, want %d", flights, n, want)
		}
	}
}
