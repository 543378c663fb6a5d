package session

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/locksidecar/locksidecar/lock"
)

// severalBy is a request of an owner for resources together.
func severalBy(owner string, names ...string) AcquireRequest {
	return with(several(names...), func(r *AcquireRequest) { r.Owner = owner })
}

// When all of several are lost at once, the loss names the last, whatever the ledger comes to first.
func TestLossOfAllNamesTheLast(t *testing.T) {
	for reason, lose := range map[LostReason]func(sc *sidecar){
		LeaseLost:      func(sc *sidecar) { sc.way.on(once(leaseLost), opHeartbeat) },
		SessionExpired: func(*sidecar) {},
	} {
		for range 5 {
			bubble(t, func(t *testing.T, e *env) {
				sc := e.sidecar()
				s := sc.session(func(r *OpenRequest) {
					if reason == SessionExpired {
						r.Liveness, r.TTL = TTL, time.Second
					}
				})
				g := must(t, s, several("a", "b", "c", "d", "e", "f"))
				lose(sc)
				last := g.Parts[5]
				if l := lostEvent(t, s); l.Reason != reason || l.Resource != "f" || l.Fence != last.Fence || l.LockID != g.LockID {
					t.Errorf("lost %+v, want %s and %+v", l, reason, last)
				}
			})
		}
	}
}

// The end of a session that has some of several, and waits for one more, is over when the
// store has confirmed that these are free.
func TestEndOfASessionThatHasSomeOfSeveral(t *testing.T) {
	bubble(t, func(t *testing.T, e *env) {
		sc := e.sidecar()
		must(t, sc.session(), named("c"))
		s := sc.session()
		p := begin(s, several("a", "b", "c"))
		sc.way.on(func(ctx context.Context, do func(context.Context) error) error {
			time.Sleep(time.Second)
			return do(ctx)
		}, opRelease)
		s.Close()
		if e.heldBy("abc") != "001" || e.now() != time.Second {
			t.Errorf("closed at %v, held by %s", e.now(), e.heldBy("abc"))
		}
		_, err := p.wait()
		isErr(t, err, ErrSessionClosed)
	})
}

// A release that finds one of several lost says so, and which, whatever the store does not
// answer about the others. These are released in the background.
func TestReleaseOfSeveralOfWhichOneWasLost(t *testing.T) {
	for lost, part := range []string{"a", "b", "c"} {
		bubble(t, func(t *testing.T, e *env) {
			sc := e.sidecar()
			s := sc.session()
			g := must(t, s, several("a", "b", "c"))
			_ = sc.way.last.Lease.Release(context.Background(), lock.Resource(part), g.Parts[lost].LockID) // the store forgets it
			calls := make(chan int, 1)
			calls <- 0
			sc.way.on(func(ctx context.Context, do func(context.Context) error) error {
				n := <-calls
				calls <- n + 1
				if n == lost {
					return do(ctx)
				}
				return errDown
			}, opRelease)
			time.AfterFunc(answerLimit, func() { sc.way.on(nil, opRelease) })
			if lost > 0 { // what comes first is silent until its time is over
				sc.way.on(once(hang), opRelease)
			}
			_, err := s.Release(context.Background(), g.LockID, "1")
			isLost(t, err, StoreLost)
			var l *LostError
			if errors.As(err, &l) && l.Lost.Resource != part {
				t.Errorf("lost %+v, want %s", l.Lost, part)
			}
			if _, again := s.Release(context.Background(), g.LockID, "1"); again == nil || again.Error() != err.Error() {
				t.Errorf("repeated: %v", again)
			}
			if !slices.Equal(sc.obs.lost, []LostReason{StoreLost}) {
				t.Errorf("counted %v", sc.obs.lost)
			}
			time.Sleep(10 * time.Second)
			e.free()
		})
	}
}

// A downgrade that finds one of several lost says so, and which, and the rest is free after the grace: also where
// the store did not answer about another one.
func TestDowngradeOfSeveralOfWhichOneWasLost(t *testing.T) {
	for lost, part := range []string{"a", "b", "c"} {
		for silent := range 3 {
			bubble(t, func(t *testing.T, e *env) {
				sc := e.sidecar()
				s := sc.session()
				g := must(t, s, several("a", "b", "c"))
				_ = sc.way.last.Lease.Release(context.Background(), lock.Resource(part), g.Parts[lost].LockID) // the store forgets it
				if silent != lost {
					calls := make(chan int, 1)
					calls <- 0
					sc.way.on(func(ctx context.Context, do func(context.Context) error) error {
						n := <-calls
						calls <- n + 1
						if n == silent {
							return fmt.Errorf("ask store: %w", lock.ErrUnsupported) // it is not asked again
						}
						return do(ctx)
					}, opDowngrade)
				}
				_, err := s.Downgrade(context.Background(), g.LockID)
				isLost(t, err, StoreLost)
				if l := lostEvent(t, s); l.Resource != part || l.Fence != g.Parts[lost].Fence || l.LockID != g.LockID || l.GraceEnd != 0 {
					t.Errorf("lost %+v, want %s", l, part)
				}
				time.Sleep(sc.o.LostGrace + time.Second)
				e.free()
			})
		}
	}
}

// What a request for several has while it waits counts for the circles of its owner, as single
// locks do. The one who is told gives back what it had of several, and keeps its other locks.
func TestDeadlockOfSeveral(t *testing.T) {
	for name, change := range map[string]func(*env) []func(*Options){
		"store":   func(*env) []func(*Options) { return nil },
		"arbiter": func(e *env) []func(*Options) { return []func(*Options){e.inTurn} },
	} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T, e *env) {
				_, s := e.sidecars(3, change(e)...)
				must(t, s[1], by("y", "b", lock.Exclusive))
				group := later(s[0], severalBy("x", "a", "b"))
				single := later(s[1], by("y", "a", lock.Exclusive))
				time.Sleep(3 * time.Second)
				if n, err := victims(t, []*pending{group, single}); n != 1 || !single.over() || len(err.Cycle) != 2 {
					t.Errorf("%d got DEADLOCK, %v; want the single one, which asked last", n, err)
				}
				s[1].Close()
				if _, err := group.wait(); err != nil {
					t.Error(err)
				}

				must(t, s[0], by("x", "z", lock.Exclusive))
				must(t, s[2], by("w", "e", lock.Exclusive))
				single = later(s[2], by("w", "z", lock.Exclusive))
				group = later(s[0], severalBy("x", "c", "d", "e"))
				time.Sleep(3 * time.Second)
				if n, err := victims(t, []*pending{group, single}); n != 1 || !group.over() || err.Resource != "e" {
					t.Errorf("%d got DEADLOCK, %v; want the one for several", n, err)
				}
				if held := e.heldBy("abcdez"); held != "110011" {
					t.Errorf("held by %s", held)
				}
			})
		})
	}
}

// Two requests for several, and locks that their owners had before, in a circle: one is told.
func TestDeadlockOfTwoForSeveral(t *testing.T) {
	bubble(t, func(t *testing.T, e *env) {
		_, s := e.sidecars(3)
		must(t, s[0], by("g", "m", lock.Exclusive))
		must(t, s[1], by("h", "k", lock.Exclusive))
		all := []*pending{
			later(s[0], severalBy("g", "j", "k")), // has m and j
			later(s[1], severalBy("h", "i", "m")), // has k and i
			later(s[2], severalBy("f", "i", "j")), // waits for i, and nobody for it
		}
		time.Sleep(3 * time.Second)
		if n, _ := victims(t, all); n != 1 || !all[1].over() {
			t.Errorf("%d got DEADLOCK, want the one who asked last for what another one has", n)
		}
		if held := e.heldBy("ijkm"); held != "1111" { // i went to the third
			t.Errorf("held by %s", held)
		}
		s[1].Close()
		if g, err := all[0].wait(); err != nil || len(g.Parts) != 2 {
			t.Errorf("%+v, %v", g, err)
		}
		s[0].Close()
		if g, err := all[2].wait(); err != nil || fmt.Sprint(g.Parts[0].Resource, g.Parts[1].Resource) != "ij" {
			t.Errorf("%+v, %v", g, err)
		}
	})
}
