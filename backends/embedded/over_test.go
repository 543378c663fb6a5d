package embedded

import (
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/locksidecar/locksidecar/backends/leasekit"
	"github.com/locksidecar/locksidecar/lock"
)

// What a driver says of a lease that is over: that it is lost, to every request, and at
// once to who listens only now.
func TestRequestsOnALeaseThatIsOver(t *testing.T) {
	bubble(t, func(t *testing.T, s *Store) {
		a, l := driver(t, s)
		g := acquire(t, a, "r", lock.Exclusive)
		time.Sleep(ttl)
		r := leasekit.Ref{Resource: "r", ID: g.ID}
		refuses := func(what string, got any, err error) {
			t.Helper()
			if !errors.Is(err, lock.ErrLeaseLost) || got != nil {
				t.Errorf("%s: %+v, %v, want ErrLeaseLost alone", what, got, err)
			}
		}
		answer, err := l.Ask(t.Context(), lock.Request{ID: "x", Resource: "r", Mode: lock.Exclusive})
		refuses("Ask", orNil(answer, leasekit.Answer{}), err)
		withdrawn, err := l.Withdraw(t.Context(), leasekit.Withdrawal{Ref: r})
		refuses("Withdraw", nil, err)
		if withdrawn.Found || withdrawn.Position != 0 {
			t.Errorf("Withdraw: %+v", withdrawn)
		}
		refuses("Downgrade", nil, l.Downgrade(t.Context(), r))
		renewal, err := l.Renew(t.Context(), nil)
		refuses("Renew", nil, err)
		if renewal.Entries != 0 {
			t.Errorf("Renew: %+v", renewal)
		}
		var held []leasekit.Ref
		refuses("Held", nil, l.Held(t.Context(), func(r leasekit.Ref) { held = append(held, r) }))
		if len(held) > 0 {
			t.Errorf("Held: %v", held)
		}
		shut(t, a)
	})
}

func orNil[T comparable](got, none T) any {
	if got == none {
		return nil
	}
	return got
}

// What hangs on a lease is counted and named, each hold and each waiter, until it is
// given up.
func TestWhatHangsOnALease(t *testing.T) {
	bubble(t, func(t *testing.T, s *Store) {
		a, l := driver(t, s)
		var want []string
		check := func(what string) {
			t.Helper()
			renewal, err := l.Renew(t.Context(), nil)
			if err != nil || renewal.Entries != len(want) {
				t.Errorf("%s: %d are counted, want %d; %v", what, renewal.Entries, len(want), err)
			}
			got := []string{}
			if err := l.Held(t.Context(), func(r leasekit.Ref) { got = append(got, fmt.Sprint(r)) }); err != nil {
				t.Error(err)
			}
			slices.Sort(got)
			slices.Sort(want)
			if !slices.Equal(got, want) {
				t.Errorf("%s: %v are named, want %v", what, got, want)
			}
		}
		check("nothing")
		var refs []leasekit.Ref
		for i := range 5 {
			q := lock.Request{ID: lock.HoldID(fmt.Sprint(i)), Resource: lock.Resource(fmt.Sprint("r", i%4)), Mode: lock.Exclusive}
			if _, err := l.Ask(t.Context(), q); err != nil {
				t.Fatal(err)
			}
			refs = append(refs, leasekit.Ref{Resource: q.Resource, ID: q.ID})
			want = append(want, fmt.Sprint(refs[i]))
		}
		check("four holds and a waiter")
		waiter, err := l.Withdraw(t.Context(), leasekit.Withdrawal{Ref: refs[4]})
		if err != nil || !waiter.Found || waiter.Position != 1 || len(waiter.Status.Holders) != 1 {
			t.Errorf("the waiter: %+v, %v", waiter, err)
		}
		for _, i := range []int{1, 3, 0, 2} { // one amid others, the last, the first, the only
			if i == 1 {
				want = slices.DeleteFunc(want, func(s string) bool { return s == fmt.Sprint(refs[4]) })
				check("without the waiter")
			}
			if got, err := l.Withdraw(t.Context(), leasekit.Withdrawal{Ref: refs[i]}); err != nil || !got.Found || got.Position != 0 {
				t.Errorf("a hold: %+v, %v", got, err)
			}
			want = slices.DeleteFunc(want, func(s string) bool { return s == fmt.Sprint(refs[i]) })
			check(fmt.Sprint("without ", refs[i]))
		}
		if got, err := l.Withdraw(t.Context(), leasekit.Withdrawal{Ref: refs[0]}); err != nil || got.Found {
			t.Errorf("again: %+v, %v", got, err)
		}
		shut(t, a)
	})
}

// A waiter that was forced out is told so, once, or gives up; afterwards its id is like
// any other.
func TestForcedOutIsToldOnce(t *testing.T) {
	for name, end := range map[string]func(t *testing.T, l *lease, q lock.Request){
		"told": func(t *testing.T, l *lease, q lock.Request) {
			if _, err := l.Ask(t.Context(), q); !errors.Is(err, lock.ErrNotHolder) {
				t.Errorf("Ask: %v, want ErrNotHolder", err)
			}
		},
		"given up": func(t *testing.T, l *lease, q lock.Request) {
			got, err := l.Withdraw(t.Context(), leasekit.Withdrawal{Ref: leasekit.Ref{Resource: q.Resource, ID: q.ID}})
			if err != nil || got.Found {
				t.Errorf("Withdraw: %+v, %v", got, err)
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T, s *Store) {
				a, l := driver(t, s)
				acquire(t, a, "r", lock.Exclusive)
				q := lock.Request{ID: "q", Resource: "r", Mode: lock.Exclusive}
				if _, err := l.Ask(t.Context(), q); err != nil {
					t.Fatal(err)
				}
				<-forced(t, s, lock.Grant{Resource: "r", ID: "q"}, 0)
				end(t, l, q)
				if got, err := l.Ask(t.Context(), q); err != nil || got.Granted {
					t.Errorf("Ask afterwards: %+v, %v, want a place in the queue", got, err)
				}
				shut(t, a)
			})
		})
	}
}

// However many steps it takes, all that one release or the end of one lease makes free is
// granted in that moment; nobody waits for the store to look at its clock.
func TestAllIsGrantedInTheMoment(t *testing.T) {
	const many = 700 // more than two steps
	bubble(t, func(t *testing.T, s *Store) {
		a, b, c := open(t, s), open(t, s), open(t, s)
		g := acquire(t, a, "shared", lock.Exclusive)
		var wg sync.WaitGroup
		for range many {
			wg.Go(func() { acquire(t, b, "shared", lock.Shared) })
		}
		synctest.Wait()
		time.Sleep(1100 * time.Millisecond)
		if err := a.Release(t.Context(), "shared", g.ID); err != nil {
			t.Fatal(err)
		}
		wg.Wait()
		if now := s.clock(); now != 1100*time.Millisecond {
			t.Errorf("the last of %d readers is in at %v, want 1.1s", many, now)
		}

		for i := range many {
			acquire(t, a, lock.Resource(fmt.Sprint(i)), lock.Exclusive)
		}
		for i := range many {
			wg.Go(func() { acquire(t, c, lock.Resource(fmt.Sprint(i)), lock.Exclusive) })
		}
		synctest.Wait()
		shut(t, a)
		wg.Wait()
		if now := s.clock(); now != 1100*time.Millisecond {
			t.Errorf("the last of %d waiters is in at %v, want 1.1s", many, now)
		}
		shut(t, b)
		shut(t, c)
	})
}

// A nearer end makes the store look earlier: at that moment, and not when it had meant
// to look.
func TestANearerEnd(t *testing.T) {
	bubble(t, func(t *testing.T, s *Store) {
		a, l := driver(t, s)
		b := open(t, s)
		g := acquire(t, a, "r", lock.Exclusive)
		next := granted(t, s, b, "r")
		time.Sleep(1050 * time.Millisecond)
		f := forced(t, s, g, 100*time.Millisecond)
		if got, err := l.Renew(t.Context(), []leasekit.Revocation{{Ref: leasekit.Ref{Resource: "r", ID: g.ID}, Grace: 100 * time.Millisecond}}); err != nil || len(got.Revoked) != 0 {
			t.Errorf("Renew: %+v, %v", got, err)
		}
		at(t, "the next one", next, 1150*time.Millisecond)
		at(t, "ForceRelease returned", f, 1150*time.Millisecond)
		shut(t, a)
		shut(t, b)
	})
}

// Who listens when the lease is over already is told at once.
func TestListenAfterTheEnd(t *testing.T) {
	bubble(t, func(t *testing.T, s *Store) {
		a, l := driver(t, s)
		time.Sleep(ttl)
		var got []leasekit.Push
		l.listening = make(chan struct{})
		l.Listen(t.Context(), func(p leasekit.Push) { got = append(got, p) })
		if diff := cmp.Diff([]leasekit.Push{{Kind: leasekit.Over}}, got); diff != "" {
			t.Errorf("pushes (-want +got):\n%s", diff)
		}
		shut(t, a)
	})
}
