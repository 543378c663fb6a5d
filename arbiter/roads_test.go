package arbiter

import (
	"context"
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/locksidecar/locksidecar/lock"
)

// What nobody has is released again until the store has answered, in pauses that grow to a
// second, and an attempt takes 5 s at most.
func TestLeavingGoesOn(t *testing.T) {
	inHouse(t, func(h *house) {
		s := h.side(Options{Turns: 9, Park: 200 * time.Millisecond})
		b := s.bend()
		s.give(s.take(exclusive()))
		before := b.releases(silent)
		s.give(s.take(exclusive()))
		s.lives(10*time.Second + 200*time.Millisecond)
		after := b.releases(nil)
		if n := after - before; n < 15 || n > 27 {
			t.Errorf("released %d times within 10 s", n)
		}
		s.lives(time.Second)
		if s.forgets(); b.releases(nil) != after+1 {
			t.Errorf("released %d times after the store had answered", b.releases(nil)-after)
		}

		s.give(s.take(exclusive()))
		s.give(s.take(exclusive()))
		var took time.Duration
		before = b.releases(func(ctx context.Context, _ error) error {
			began := h.clock()
			<-ctx.Done()
			took = h.clock() - began
			b.releases(nil)
			return lock.ErrUnavailable
		})
		s.lives(10 * time.Second)
		if s.forgets(); took != 5*time.Second || b.releases(nil) != before+2 {
			t.Errorf("an attempt without an answer took %s; released %d times", took, b.releases(nil)-before)
		}
		s.close()
	})
}

// The end of the lease ends it, whoever learns of that first.
func TestLeavingEndsWithTheLease(t *testing.T) {
	for name, end := range map[string]func(s *side, b *bend){
		"told": func(s *side, b *bend) {
			b.releases(func(context.Context, error) error { return lock.ErrLeaseLost })
			time.Sleep(2 * time.Second)
			s.forgets()
			if _, err := s.Acquire(s.h.Context(), exclusive()); !errors.Is(err, lock.ErrLeaseLost) {
				s.h.Errorf("Acquire: %v", err)
			}
		},
		"closed": func(*side, *bend) {},
	} {
		t.Run(name, func(t *testing.T) {
			inHouse(t, func(h *house) {
				s := h.side(Options{Turns: 9, Park: 200 * time.Millisecond})
				b := s.bend()
				s.give(s.take(exclusive()))
				g := s.take(exclusive())
				s.give(g)
				b.releases(silent)
				time.Sleep(time.Second)
				end(s, b)
				s.close()
			})
		})
	}
}

// The lease is over when the store says so, to whatever is asked: nothing is granted by it
// any more.
func TestLeaseIsOver(t *testing.T) {
	lost := func(error) error { return lock.ErrLeaseLost }
	for name, ask := range map[string]func(s *side, b *bend, g lock.Grant) error{
		"Heartbeat": func(s *side, b *bend, _ lock.Grant) error {
			b.heartbeat = func() ([]lock.Event, error) { return nil, lock.ErrLeaseLost }
			_, err := s.Heartbeat(s.h.Context())
			return err
		},
		"Release": func(s *side, b *bend, g lock.Grant) error {
			b.releases(func(_ context.Context, err error) error { return lost(err) })
			return s.Release(s.h.Context(), "r", g.ID)
		},
		"Downgrade": func(s *side, b *bend, g lock.Grant) error {
			b.downgrade = lost
			return s.Downgrade(s.h.Context(), "r", g.ID)
		},
		"Acquire": func(s *side, _ *bend, _ lock.Grant) error {
			s.way.after = func(_ *lock.Grant, err *error) { *err = lock.ErrLeaseLost }
			q := exclusive()
			q.Resource = "other"
			_, err := s.Acquire(s.h.Context(), q)
			return err
		},
	} {
		t.Run(name, func(t *testing.T) {
			inHouse(t, func(h *house) {
				s := h.side(Options{Turns: 9})
				b := s.bend()
				g := s.take(exclusive())
				w := s.ask(shared())
				if err := ask(s, b, g); !errors.Is(err, lock.ErrLeaseLost) {
					t.Errorf("got %v", err)
				}
				synctest.Wait()
				s.way.after = nil
				asked := len(s.way.asked)
				if _, err := s.Acquire(h.Context(), exclusive()); !errors.Is(err, lock.ErrLeaseLost) || len(s.way.asked) != asked {
					t.Errorf("Acquire: %v, the store was asked %d times", err, len(s.way.asked)-asked)
				}
				w.cancel()
				s.close()
			})
		})
	}
}

// What a heartbeat says of a hold is told of those who have it now; what it says of others
// is passed on; and who stands behind it is the arbiter's own matter.
func TestNewsOfAHeartbeat(t *testing.T) {
	inHouse(t, func(h *house) {
		s := h.side(Options{Turns: 9})
		b := s.bend()
		g := s.take(exclusive())
		w := s.ask(exclusive())
		s.give(g)
		h.granted(w)(w)
		other := lock.Event{Kind: lock.Revoked, Resource: "other", ID: lock.NewHoldID(), Until: 7}
		b.heartbeat = func() ([]lock.Event, error) {
			return []lock.Event{
				{Kind: lock.Contended, Resource: "r", ID: g.ID}, {Kind: lock.Contended, Resource: "other", ID: other.ID},
				{Kind: lock.Revoked, Resource: "r", ID: g.ID, Until: 8}, other,
			}, lock.ErrUnavailable
		}
		told, err := s.Heartbeat(h.Context())
		if !errors.Is(err, lock.ErrUnavailable) || len(told) != 2 || told[1] != other ||
			told[0] != (lock.Event{Kind: lock.Revoked, Resource: "r", ID: w.q.ID, Until: 8}) {
			t.Errorf("told %+v, %v", told, err)
		}
		if n := s.b.Stats().Contended; n != 1 {
			t.Errorf("%d are contended", n)
		}
		late := s.ask(exclusive())
		h.granted(w)(w, late)
		s.give(w.g)
		h.granted(w, late)(w, late)
		s.give(late.g)
		s.forgets()
		s.close()
	})
}

// A hold that is forced before its grant is known is nobody's: who was seen in the store is
// out, and the others ask for themselves. Where the store has only forgotten it, all do.
func TestTakenBeforeItIsKnown(t *testing.T) {
	for name, kind := range map[string]lock.EventKind{"forced": lock.Revoked, "vanished": lock.Vanished} {
		t.Run(name, func(t *testing.T) {
			inHouse(t, func(h *house) {
				a, b := h.side(Options{Turns: 9}), h.side(Options{Turns: 9})
				g := b.take(exclusive())
				first, second := a.ask(exclusive()), a.ask(exclusive())
				a.way.after = func(_ *lock.Grant, err *error) {
					if *err != nil {
						return
					}
					a.way.after = nil
					if kind == lock.Revoked {
						if err := h.store.ForceRelease(h.Context(), "r", first.q.ID, 0); err != nil {
							t.Error(err)
						}
						time.Sleep(time.Millisecond) // and it is told
						return
					}
					if told := a.news(lock.Event{Kind: kind, Resource: "r", ID: first.q.ID}); len(told) != 0 {
						t.Errorf("told %+v", told)
					}
				}
				b.give(g)
				time.Sleep(10 * time.Millisecond)
				synctest.Wait()
				if kind == lock.Revoked {
					if !errors.Is(first.err, lock.ErrNotHolder) {
						t.Errorf("who was forced: %+v, %v", first.g, first.err)
					}
				} else {
					h.granted(first)(first, second)
					a.give(first.g)
				}
				synctest.Wait()
				if !second.over || second.err != nil || second.g.Fence <= g.Fence {
					t.Fatalf("the other: %+v, %v", second.g, second.err)
				}
				a.give(second.g)
				if len(a.told) != 0 {
					t.Errorf("told %+v", a.told)
				}
				a.forgets()
				a.close()
				b.close()
			})
		})
	}
}

// A downgrade without an answer is asked for again; one that has its answer is not.
func TestUnknownDowngrade(t *testing.T) {
	inHouse(t, func(h *house) {
		s := h.side(Options{Turns: 9})
		b := s.bend()
		g := s.take(exclusive())
		b.downgrade = func(error) error { return lock.ErrUnavailable }
		for range 2 {
			if err := s.Downgrade(h.Context(), "r", g.ID); !errors.Is(err, lock.ErrUnavailable) {
				t.Errorf("got %v", err)
			}
		}
		b.downgrade = nil
		for range 2 {
			if err := s.Downgrade(h.Context(), "r", g.ID); err != nil {
				t.Errorf("got %v", err)
			}
		}
		if b.downgraded != 3 {
			t.Errorf("the store was asked %d times", b.downgraded)
		}
		r := s.take(shared())
		s.give(g)
		s.give(r)

		g = s.take(exclusive())
		b.downgrade = func(error) error { return lock.ErrNotHolder }
		if err := s.Downgrade(h.Context(), "r", g.ID); !errors.Is(err, lock.ErrNotHolder) {
			t.Errorf("of what is gone: %v", err)
		}
		s.forgets()
		b.downgrade = nil
		if err := s.Release(h.Context(), "r", g.ID); err != nil { // the store had it all the same
			t.Error(err)
		}

		// A shared hold needs none.
		b.downgraded = 0
		r = s.take(shared())
		if err := s.Downgrade(h.Context(), "r", r.ID); err != nil || b.downgraded != 0 {
			t.Errorf("of a shared hold: %v, asked %d times", err, b.downgraded)
		}
		s.give(r)

		// One that the store has by itself goes to the store.
		q := exclusive()
		q.Direct = true
		g = s.take(q)
		if err := s.Downgrade(h.Context(), "r", g.ID); err != nil || b.downgraded != 1 {
			t.Errorf("of a direct hold: %v, asked %d times", err, b.downgraded)
		}
		s.give(g)
		s.forgets()
		s.close()
	})
}

// A waiter whose call is not under way is forced out: that is told when it asks again, or
// gives up.
func TestForcedWhileNobodyAsks(t *testing.T) {
	for name, then := range map[string]func(s *side, q lock.Request) error{
		"asks again": func(s *side, q lock.Request) error { _, err := s.Acquire(s.h.Context(), q); return err },
		"gives up":   func(s *side, q lock.Request) error { return s.Release(s.h.Context(), "r", q.ID) },
	} {
		t.Run(name, func(t *testing.T) {
			inHouse(t, func(h *house) {
				s := h.side(Options{Turns: 9})
				q := exclusive()
				s.way.deaf = true
				if _, err := s.Acquire(h.Context(), q); !errors.Is(err, lock.ErrUnavailable) {
					t.Errorf("got %v", err)
				}
				s.way.deaf = false
				g := s.take(exclusive()) // asks for both, and has it
				if err := s.b.ForceRelease(h.Context(), "r", q.ID, time.Minute); err != nil {
					t.Errorf("ForceRelease: %v", err)
				}
				for range 2 {
					if err := then(s, q); !errors.Is(err, lock.ErrNotHolder) {
						t.Errorf("got %v", err)
					}
				}
				s.give(g)
				s.forgets()
				s.close()
			})
		})
	}
}

// Of several readers one is forced alone: told until when it may finish, of a shorter grace
// again, and out when that is over, or as soon as it has let go.
func TestForceOfOneReader(t *testing.T) {
	inHouse(t, func(h *house) {
		s := h.side(Options{Turns: 9})
		g, stays := s.take(shared()), s.take(shared())
		force := func(ctx context.Context, grace time.Duration) <-chan error {
			done := make(chan error, 1)
			go func() { done <- s.b.ForceRelease(ctx, "r", g.ID, grace) }()
			synctest.Wait()
			return done
		}
		over := func(done <-chan error) bool { return len(done) > 0 }
		long := force(h.Context(), time.Minute)
		same := force(h.Context(), time.Minute)
		longer := force(h.Context(), time.Hour)
		if len(s.told) != 1 || s.told[0] != (lock.Event{Kind: lock.Revoked, Resource: "r", ID: g.ID, Until: h.clock() + time.Minute}) {
			t.Errorf("told %+v", s.told)
		}
		short := force(h.Context(), time.Second)
		if len(s.told) != 2 || s.told[1].Until != h.clock()+time.Second {
			t.Errorf("told %+v", s.told)
		}
		ctx, cancel := context.WithCancel(h.Context())
		left := force(ctx, time.Minute)
		cancel()
		if err := <-left; !errors.Is(err, lock.ErrUnavailable) || !errors.Is(err, context.Canceled) || !strings.Contains(err.Error(), "grace is not over") {
			t.Errorf("who has left: %v", err)
		}
		if late := s.ask(shared()); late.err != nil || !late.over || len(s.way.asked) != 2 {
			t.Errorf("a reader who comes later: %v; the store was asked %d times, and it is not to join", late.err, len(s.way.asked))
		} else {
			s.give(late.g)
		}
		time.Sleep(time.Second - 1)
		synctest.Wait()
		if over(long) || over(same) || over(longer) || over(short) {
			t.Error("over before the grace")
		}
		time.Sleep(time.Nanosecond)
		for _, done := range []<-chan error{long, same, longer, short} {
			if err := <-done; err != nil {
				t.Error(err)
			}
		}
		if err := s.Release(h.Context(), "r", g.ID); !errors.Is(err, lock.ErrNotHolder) {
			t.Errorf("Release after the grace: %v", err)
		}
		s.give(stays)
		s.forgets()

		g, stays = s.take(shared()), s.take(shared())
		long = force(h.Context(), time.Hour)
		s.give(g)
		if err := <-long; err != nil {
			t.Errorf("it has let go, and %v", err)
		}
		s.give(stays)

		// The last of all takes the hold with it.
		g, stays = s.take(shared()), s.take(shared())
		s.told = nil
		long = force(h.Context(), time.Second)
		s.give(stays)
		time.Sleep(time.Second)
		if err := <-long; err != nil {
			t.Error(err)
		}
		if s.forgets(); len(s.told) != 1 {
			t.Errorf("told %+v", s.told)
		}

		// At once is at once.
		g, stays = s.take(shared()), s.take(shared())
		s.told = nil
		if err := <-force(h.Context(), 0); err != nil {
			t.Error(err)
		}
		if len(s.told) != 1 || s.told[0].Until != 0 {
			t.Errorf("told %+v", s.told)
		}
		s.give(stays)
		s.forgets()
		s.close()
	})
}

// A direct try waits for what the sidecar itself is giving back, and not for longer than its
// caller.
func TestDirectTryBesideALeave(t *testing.T) {
	inHouse(t, func(h *house) {
		s := h.side(Options{Turns: 9, Park: 200 * time.Millisecond})
		b := s.bend()
		s.give(s.take(exclusive()))
		s.give(s.take(exclusive()))
		answer := make(chan struct{})
		b.releases(func(_ context.Context, err error) error {
			b.releases(nil) // this one alone
			<-answer
			return err
		})
		time.Sleep(200 * time.Millisecond)
		asked := len(s.way.asked)
		q := try(exclusive())
		q.Direct = true
		one, two := s.ask(q), s.ask(func() lock.Request { q.ID = lock.NewHoldID(); return q }())
		if one.over || two.over || len(s.way.asked) != asked {
			t.Errorf("the store was asked %d times before it had answered", len(s.way.asked)-asked)
		}
		two.cancel()
		synctest.Wait()
		if !two.over || one.over {
			t.Errorf("over: %v, %v", one.over, two.over)
		}
		if two.err == nil {
			s.give(two.g)
		}
		close(answer)
		h.granted(one)(one)
		s.give(one.g)
		s.forgets()
		s.close()
	})
}

// recently is remembered for one window at least and two at most, and a bounded number of names.
func TestRecent(t *testing.T) {
	r := recent{window: 10}
	if r.has("a", 100) {
		t.Error("nothing was added")
	}
	r.add("a", 105)
	for _, c := range []struct {
		at   time.Duration
		want bool
	}{{105, true}, {109, true}, {110, true}, {119, true}, {120, false}} {
		if got := r.has("a", c.at); got != c.want {
			t.Errorf("at %d: %v", c.at, got)
		}
	}
	r.add("b", 121)
	if !r.has("b", 139) {
		t.Error("forgotten within two windows of the last look")
	}
	r = recent{window: 10}
	r.add("c", 100)
	if r.has("c", 120) {
		t.Error("remembered after two windows without a look")
	}
	r = recent{window: 10}
	for i := range 3 * maxRecent {
		r.add(string(lock.NewHoldID()), time.Duration(i/maxRecent))
		if n := len(r.now) + len(r.before); n > 2*maxRecent {
			t.Fatalf("%d names are kept", n)
		}
	}
	if n := len(r.now) + len(r.before); n < maxRecent {
		t.Errorf("%d names are kept", n)
	}
}

// Turns are as many as there are fences.
func TestTurnsHaveFences(t *testing.T) {
	inHouse(t, func(h *house) {
		s := h.side(Options{Turns: 10 * MaxTurns})
		g := s.take(exclusive())
		var calls []*call
		for range MaxTurns {
			calls = append(calls, s.ask(exclusive()))
		}
		if len(s.way.asked) != 2 {
			t.Errorf("the store was asked %d times", len(s.way.asked))
		}
		for _, c := range calls {
			s.give(g)
			synctest.Wait()
			if !c.over || c.err != nil || c.g.Fence <= g.Fence {
				t.Fatalf("%+v, %v after %+v", c.g, c.err, g)
			}
			g = c.g
		}
		s.give(g)
		s.forgets()
		s.close()
	})
}
