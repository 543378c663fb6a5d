package session

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/locksidecar/locksidecar/arbiter"
	"github.com/locksidecar/locksidecar/lock"
)

// by is a request of an owner for a resource.
func by(owner, resource string, mode lock.Mode) AcquireRequest {
	return AcquireRequest{Resource: resource, Mode: mode, Wait: Forever, Owner: owner}
}

// later is begin, one millisecond after what began before.
func later(s *Session, r AcquireRequest) *pending {
	time.Sleep(time.Millisecond)
	return begin(s, r)
}

// victims counts those that got DEADLOCK, and returns the error of the last.
func victims(t *testing.T, all []*pending) (n int, last *DeadlockError) {
	t.Helper()
	for _, p := range all {
		if p.over() && p.err != nil {
			if !errors.As(p.err, &last) {
				t.Errorf("a wait ended with %v", p.err)
			}
			n++
		}
	}
	return n, last
}

// sidecars starts n of them, each with one session.
func (e *env) sidecars(n int, change ...func(*Options)) (all []*sidecar, sessions []*Session) {
	for i := range n {
		sc := e.sidecar(append(change, func(o *Options) { o.Sidecar = fmt.Sprint("pod-", i) })...)
		all = append(all, sc)
		sessions = append(sessions, sc.session())
	}
	return all, sessions
}

// inTurn makes a sidecar one that hands locks on among its own apps.
func (e *env) inTurn(o *Options) {
	o.Backend = arbiter.New(e.store, arbiter.Options{Turns: arbiter.MaxTurns, Clock: o.Clock})
}

// ring makes n owners, at those sessions in turn, each of which holds a resource and waits for
// that of the next. The last one closes the circle.
func ring(t *testing.T, sessions []*Session, n int) (all []*pending) {
	t.Helper()
	name := func(kind string, i int) string { return fmt.Sprint(n, kind, i%n) }
	for i := range n {
		must(t, sessions[i%len(sessions)], by(name("o", i), name("r", i), lock.Exclusive))
	}
	for i := range n {
		all = append(all, later(sessions[i%len(sessions)], by(name("o", i), name("r", i+1), lock.Exclusive)))
	}
	return all
}

// TestDeadlock: of owners at three sidecars that wait for each other, the one who asked
// last is told, who waits for whom is in the error, and all keep what they hold.
func TestDeadlock(t *testing.T) {
	for _, n := range []int{2, 3, 5} {
		t.Run(fmt.Sprint(n), func(t *testing.T) {
			bubble(t, func(t *testing.T, e *env) {
				scs, sessions := e.sidecars(3)
				all := ring(t, sessions, n)
				time.Sleep(3 * time.Second)
				count, err := victims(t, all)
				if count != 1 || !all[n-1].over() {
					t.Fatalf("%d got DEADLOCK, the last %t; want the last alone", count, all[n-1].over())
				}
				for i := range n {
					if !strings.Contains(err.Error(), fmt.Sprint(n, "o", i)) || !strings.Contains(err.Error(), fmt.Sprintf("%q", fmt.Sprint(n, "r", i))) {
						t.Errorf("the error names not owner and resource %d: %v", i, err)
					}
					if h, w := e.holders(lock.Resource(fmt.Sprint(n, "r", i))); h != 1 || i > 0 && w != 1 || i == 0 && w != 0 {
						t.Errorf("resource %d has %d holders and %d waiters", i, h, w)
					}
				}
				if len(err.Cycle) != n {
					t.Errorf("the circle has %d members: %v", len(err.Cycle), err)
				}
				time.Sleep(time.Minute)
				if count, _ := victims(t, all); count != 1 {
					t.Errorf("a minute later %d got DEADLOCK", count)
				}
				for i, sc := range scs {
					want := []bool(nil)
					if i == (n-1)%3 {
						want = []bool{true}
					}
					if got := sc.obs.deadlocks(); fmt.Sprint(got) != fmt.Sprint(want) {
						t.Errorf("sidecar %d counted %v, want %v", i, got, want)
					}
				}
				// The one who was told lets go, and all others get theirs, one after the other.
				sessions[(n-1)%3].Close()
				if !all[n-2].over() || all[n-2].err != nil {
					t.Errorf("the one before got %v", all[n-2].err)
				}
			})
		})
	}
}

// TestDeadlockOfReaders: a writer waits for a reader, and a reader behind the writer for the
// writer.
func TestDeadlockOfReaders(t *testing.T) {
	bubble(t, func(t *testing.T, e *env) {
		_, s := e.sidecars(3, func(o *Options) { o.Namespace = "ns" })
		must(t, s[0], by("holder", "r", lock.Shared))
		must(t, s[1], by("reader", "h", lock.Exclusive))
		all := []*pending{
			later(s[2], by("writer", "r", lock.Exclusive)), // for the holder
			later(s[1], by("reader", "r", lock.Shared)),    // for the writer
			later(s[0], by("holder", "h", lock.Shared)),    // for the reader
		}
		time.Sleep(3 * time.Second)
		if n, err := victims(t, all); n != 1 || !all[2].over() || len(err.Cycle) != 3 {
			t.Errorf("%d got DEADLOCK, %v; want the last alone, and a circle of three", n, err)
		}
	})
}

// TestNoDeadlock: who waits, but not in a circle of owners, waits on.
func TestNoDeadlock(t *testing.T) {
	for name, f := range map[string]func(t *testing.T, e *env, s []*Session) []*pending{
		"without owners": func(t *testing.T, _ *env, s []*Session) []*pending {
			must(t, s[0], by("", "a", lock.Exclusive))
			must(t, s[1], by("", "b", lock.Exclusive))
			return []*pending{later(s[0], by("", "b", lock.Exclusive)), later(s[1], by("", "a", lock.Exclusive))}
		},
		"one without owner": func(t *testing.T, _ *env, s []*Session) []*pending {
			must(t, s[0], by("x", "a", lock.Exclusive))
			must(t, s[1], by("", "b", lock.Exclusive))
			return []*pending{later(s[0], by("x", "b", lock.Exclusive)), later(s[1], by("", "a", lock.Exclusive))}
		},
		"another session": func(t *testing.T, _ *env, s []*Session) []*pending {
			must(t, s[0], by("x", "a", lock.Exclusive))
			must(t, s[1], by("y", "b", lock.Exclusive))
			return []*pending{later(s[0], by("x", "b", lock.Exclusive)), later(s[2], by("y", "a", lock.Exclusive))}
		},
		"a chain": func(t *testing.T, _ *env, s []*Session) []*pending {
			must(t, s[0], by("x", "a", lock.Exclusive))
			must(t, s[1], by("y", "b", lock.Exclusive))
			must(t, s[2], by("z", "c", lock.Exclusive))
			return []*pending{later(s[0], by("x", "b", lock.Exclusive)), later(s[1], by("y", "c", lock.Exclusive))}
		},
		"its own hold": func(t *testing.T, _ *env, s []*Session) []*pending {
			must(t, s[0], by("x", "a", lock.Exclusive))
			return []*pending{later(s[0], by("x", "a", lock.Exclusive))}
		},
		"readers": func(t *testing.T, _ *env, s []*Session) []*pending {
			must(t, s[0], by("x", "a", lock.Shared))
			must(t, s[1], by("y", "b", lock.Exclusive))
			must(t, s[1], by("y", "a", lock.Shared))
			return []*pending{later(s[0], by("x", "b", lock.Shared))}
		},
		"what it let go while it waited": func(t *testing.T, _ *env, s []*Session) []*pending {
			g := must(t, s[0], by("y", "b", lock.Exclusive))
			must(t, s[1], by("z", "c", lock.Exclusive))
			waits := later(s[0], by("y", "c", lock.Exclusive))
			if _, err := s[0].Release(context.Background(), g.LockID, ""); err != nil {
				t.Error(err)
			}
			must(t, s[2], by("x", "b", lock.Exclusive))
			return []*pending{waits, later(s[1], by("z", "b", lock.Exclusive))}
		},
		"a hold that is taken away": func(t *testing.T, e *env, s []*Session) []*pending {
			g := must(t, s[0], by("x", "a", lock.Exclusive))
			must(t, s[1], by("y", "b", lock.Exclusive))
			all := []*pending{later(s[0], by("x", "b", lock.Exclusive)), later(s[1], by("y", "a", lock.Exclusive))}
			go func() { _ = e.store.ForceRelease(context.Background(), "a", g.LockID, time.Minute) }()
			return all
		},
	} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T, e *env) {
				_, s := e.sidecars(3)
				all := f(t, e, s)
				time.Sleep(2 * time.Minute)
				if n, err := victims(t, all); n != 0 {
					t.Errorf("%d got DEADLOCK: %v", n, err)
				}
			})
		})
	}
}

// TestDeadlockThatEnds: a circle that is gone at the second look is not broken. It was there
// at the first.
func TestDeadlockThatEnds(t *testing.T) {
	for name, end := range map[string]func(s *Session, g Grant, p *pending){
		"released": func(s *Session, g Grant, _ *pending) {
			if _, err := s.Release(context.Background(), g.LockID, ""); err != nil {
				panic(err)
			}
		},
		"given up": func(_ *Session, _ Grant, p *pending) { p.cancel() },
	} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T, e *env) {
				_, s := e.sidecars(2)
				g := must(t, s[0], by("x", "a", lock.Exclusive))
				must(t, s[1], by("y", "b", lock.Exclusive))
				waits := later(s[0], by("x", "b", lock.Exclusive))
				p := later(s[1], by("y", "a", lock.Exclusive))
				time.Sleep(searchAfter + secondLook/2)
				end(s[0], g, waits)
				time.Sleep(time.Minute)
				if name == "released" && (!p.over() || p.err != nil) || name == "given up" && p.over() {
					t.Errorf("the last one got %v", p.err)
				}
			})
		})
	}
}

// TestDeadlockModes: report tells and breaks nothing, off does not look.
func TestDeadlockModes(t *testing.T) {
	for mode, want := range map[DeadlockMode]string{ReportDeadlocks: "[false]", IgnoreDeadlocks: "[]"} {
		bubble(t, func(t *testing.T, e *env) {
			scs, s := e.sidecars(2, func(o *Options) { o.Deadlock = mode })
			all := ring(t, s, 2)
			time.Sleep(5 * time.Minute)
			if n, _ := victims(t, all); n != 0 {
				t.Errorf("mode %v: %d got DEADLOCK", mode, n)
			}
			if got := fmt.Sprint(scs[1].obs.deadlocks()); got != want || len(scs[0].obs.deadlocks()) != 0 {
				t.Errorf("mode %v: counted %s and %v", mode, got, scs[0].obs.deadlocks())
			}
			if reads := scs[0].way.count(opGet); mode == IgnoreDeadlocks && reads != 0 {
				t.Errorf("%d reads of the store", reads)
			}
		})
	}
}

// TestDeadlockOfTheBlind: where the sidecar of the one who asked last does not look, the next
// one is told, a little later.
func TestDeadlockOfTheBlind(t *testing.T) {
	bubble(t, func(t *testing.T, e *env) {
		_, seeing := e.sidecars(2)
		_, blind := e.sidecars(1, func(o *Options) { o.Deadlock = IgnoreDeadlocks })
		all := ring(t, append(seeing, blind...), 3)
		time.Sleep(turnTime)
		if n, _ := victims(t, all); n != 0 {
			t.Errorf("%d got DEADLOCK already", n)
		}
		time.Sleep(2 * turnTime)
		if n, _ := victims(t, all); n != 1 || !all[1].over() {
			t.Errorf("%d got DEADLOCK, want the one before the last", n)
		}
	})
}

// TestDeadlockOutlastsSilence: a store that does not answer delays the end, and no more.
func TestDeadlockOutlastsSilence(t *testing.T) {
	bubble(t, func(t *testing.T, e *env) {
		scs, s := e.sidecars(2)
		all := ring(t, s, 2)
		for _, sc := range scs {
			sc.way.on(down, opGet)
		}
		time.Sleep(20 * time.Second)
		if n, _ := victims(t, all); n != 0 {
			t.Errorf("%d got DEADLOCK without an answer of the store", n)
		}
		for _, sc := range scs {
			sc.way.on(nil, opGet)
		}
		time.Sleep(maxSearchPause)
		if n, _ := victims(t, all); n != 1 {
			t.Errorf("%d got DEADLOCK", n)
		}
	})
}

// TestLoadOfLongWaits: a thousand waits cost the store nothing where their owners hold nothing,
// and few reads, at a bounded rate, where they do.
func TestLoadOfLongWaits(t *testing.T) {
	const waits = 1000
	for nested, most := range map[bool]int{false: 0, true: 2 * waits} {
		bubble(t, func(t *testing.T, e *env) {
			sc := e.sidecar()
			s := sc.session()
			must(t, sc.session(), exclusive)
			var all []*pending
			for i := range waits {
				owner := fmt.Sprint("o", i)
				if nested {
					must(t, s, by(owner, fmt.Sprint("own/", i), lock.Exclusive))
				}
				p := &pending{done: make(chan struct{})}
				go func() {
					defer close(p.done)
					p.grant, p.err = s.Acquire(t.Context(), by(owner, "r", lock.Exclusive))
				}()
				all = append(all, p)
			}
			before := 0
			for range 15 {
				time.Sleep(time.Second)
				now := sc.way.count(opGet)
				if now-before > int(time.Second/readPause)+1 {
					t.Fatalf("%d reads in one second", now-before)
				}
				before = now
			}
			if before > most || nested && before < waits {
				t.Errorf("nested %t: %d reads in 15 seconds, want at most %d", nested, before, most)
			}
			if n, _ := victims(t, all); n != 0 {
				t.Errorf("%d got DEADLOCK", n)
			}
		})
	}
}

// TestDeadlockAmongLocalTurns: also those are found who wait, at different sidecars, behind others
// of theirs, so that the store has one place for all of them.
func TestDeadlockAmongLocalTurns(t *testing.T) {
	for _, mode := range []lock.Mode{lock.Exclusive, lock.Shared} {
		bubble(t, func(t *testing.T, e *env) {
			scs, s := e.sidecars(3, e.inTurn)
			for i := range 3 {
				must(t, s[i], by(fmt.Sprint("o", i), fmt.Sprint("r", i), lock.Exclusive))
			}
			var others, all []*pending
			for i := range 3 {
				others = append(others, later(scs[i].session(), by("", fmt.Sprint("r", (i+1)%3), mode)))
				all = append(all, later(s[i], by(fmt.Sprint("o", i), fmt.Sprint("r", (i+1)%3), mode)))
			}
			for i, sc := range scs {
				if st, err := e.store.Get(t.Context(), lock.Resource(fmt.Sprint("r", (i+1)%3))); err != nil || len(st.Waiters) != 1 {
					t.Fatalf("%s shows %+v, %v; want one waiter", sc.o.Sidecar, st, err)
				}
			}
			time.Sleep(3 * time.Second)
			if n, _ := victims(t, all); n != 1 || !all[2].over() {
				t.Errorf("%d got DEADLOCK, want the last alone", n)
			}
			if n, _ := victims(t, others); n != 0 {
				t.Errorf("%d others got DEADLOCK", n)
			}
			for _, p := range others {
				p.cancel()
				if _, err := p.wait(); err == nil {
					t.Error("somebody else was granted")
				}
			}
			s[2].Close()
			if !all[1].over() || all[1].err != nil {
				t.Errorf("who waited for the one who was told got %v", all[1].err)
			}
		})
	}
}

// TestDeadlockOfAHiddenReader: a reader that shares the hold of another one of its sidecar is
// seen by that sidecar only. Where it is not the one to give up, it does so all the same, later.
func TestDeadlockOfAHiddenReader(t *testing.T) {
	bubble(t, func(t *testing.T, e *env) {
		scs, s := e.sidecars(2, e.inTurn)
		must(t, scs[0].session(), by("", "r", lock.Shared))
		must(t, s[0], by("reader", "r", lock.Shared))
		must(t, s[1], by("writer", "h", lock.Exclusive))
		all := []*pending{later(s[0], by("reader", "h", lock.Exclusive)), later(s[1], by("writer", "r", lock.Exclusive))}
		time.Sleep(turnTime - time.Second)
		if n, _ := victims(t, all); n != 0 {
			t.Errorf("%d got DEADLOCK already", n)
		}
		time.Sleep(2 * turnTime)
		if n, _ := victims(t, all); n != 1 || !all[0].over() {
			t.Errorf("%d got DEADLOCK, want the reader", n)
		}
	})
}
