package session

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"
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
		_, err = sc.Fly(Peer{UID: 1000}, false)
		isErr(t, err, ErrLimit)
		_, err = sc.Fly(Peer{UID: 1000}, true)
		isErr(t, err, ErrLimit)
		land, err := sc.Fly(Peer{UID: 1001}, false)
		isErr(t, err, nil)
		land()
		sc.way.on(nil, opRelease, opDowngrade)
		time.Sleep(2 * choreTimeout)
		e.free()
		s.Close()
		synctest.Wait()
		if len(sc.usages) != 0 || sc.flights.Load() != 0 {
			t.Errorf("left: %v, %d", sc.usages, sc.flights.Load())
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
		for range 4 {
			_, err := sp.Fly(Peer{UID: 3}, false)
			isErr(t, err, nil)
		}
		_, err = sp.Fly(Peer{UID: 4}, false)
		if full := (*LimitError)(nil); !errors.As(err, &full) || full.Limit != "requests in flight per space" {
			t.Errorf("refused with %v", err)
		}
		own := Peer{UID: 3}.Shares(sp)
		if len(sc.usages) != len(own) || sc.usages[own[0]] == nil || sc.usages[own[1]] == nil {
			t.Errorf("there are %v", sc.usages)
		}
	})
}
