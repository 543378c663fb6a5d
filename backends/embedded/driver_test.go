package embedded

import (
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/locksidecar/locksidecar/backends/leasekit"
	"github.com/locksidecar/locksidecar/lock"
)

// driver opens a lease that gets no pushes, and gives the store's side of it, for
// requests that the kit would not send.
func driver(t *testing.T, s *Store) (lock.Lease, *lease) {
	t.Helper()
	var l *lease
	v := &visitor{Store: s}
	v.asleep.Store(true)
	kit, err := s.OpenThrough(t.Context(), lock.LeaseOptions{TTL: ttl}, s.clock, func(d leasekit.Driver) leasekit.Driver {
		l = d.(*lease)
		return &way{Driver: d, v: v}
	})
	if err != nil {
		t.Fatal(err)
	}
	return kit, l
}

// An acknowledgement counts for the grace that it names and longer ones, and the
// first one counts.
func TestAcknowledgements(t *testing.T) {
	bubble(t, func(t *testing.T, s *Store) {
		a, l := driver(t, s)
		g := acquire(t, a, "r", lock.Exclusive)
		r := leasekit.Ref{Resource: "r", ID: g.ID}
		renew := func(what string, want []leasekit.Revocation, acks ...leasekit.Revocation) {
			t.Helper()
			got, err := l.Renew(t.Context(), acks)
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(leasekit.Renewal{Revoked: want, Entries: 1}, got); diff != "" {
				t.Errorf("%s (-want +got):\n%s", what, diff)
			}
		}
		of := func(grace time.Duration) leasekit.Revocation { return leasekit.Revocation{Ref: r, Grace: grace} }
		forces := []<-chan time.Duration{forced(t, s, g, 9*time.Second)}
		renew("a force", []leasekit.Revocation{of(9 * time.Second)})
		forces = append(forces, forced(t, s, g, 5*time.Second))
		renew("a shorter one, and an acknowledgement of the first", []leasekit.Revocation{of(5 * time.Second)}, of(9*time.Second))
		time.Sleep(time.Second)
		renew("acknowledged", nil, of(5*time.Second))
		forces = append(forces, forced(t, s, g, 7*time.Second))
		renew("a longer one", nil)
		time.Sleep(time.Second)
		renew("acknowledged again", nil, of(5*time.Second))
		for _, f := range forces {
			at(t, "ForceRelease returned", f, 6*time.Second)
		}
		shut(t, a)
	})
}

// A hold that was taken away at once is named until that is acknowledged, or until its
// release; an acknowledgement of the grace that it had before is none.
func TestTakenAwayIsNamed(t *testing.T) {
	bubble(t, func(t *testing.T, s *Store) {
		a, l := driver(t, s)
		first, second := acquire(t, a, "r", lock.Exclusive), acquire(t, a, "other", lock.Exclusive)
		long := forced(t, s, first, time.Hour)
		for _, g := range []lock.Grant{first, second} {
			at(t, "ForceRelease returned", forced(t, s, g, 0), 0)
		}
		at(t, "ForceRelease returned", long, 0)
		of := func(g lock.Grant) leasekit.Ref { return leasekit.Ref{Resource: g.Resource, ID: g.ID} }
		named := func(what string, want int, acks ...leasekit.Revocation) {
			t.Helper()
			got, err := l.Renew(t.Context(), acks)
			if err != nil || len(got.Revoked) != want {
				t.Errorf("%s: %+v, %v, want %d holds", what, got, err, want)
			}
		}
		named("both", 2)
		named("the grace before", 2, leasekit.Revocation{Ref: of(first), Grace: time.Hour})
		named("one acknowledged", 1, leasekit.Revocation{Ref: of(first)})
		if _, err := l.Withdraw(t.Context(), leasekit.Withdrawal{Ref: of(second)}); err != nil {
			t.Fatal(err)
		}
		named("one released", 0)
		shut(t, a)
	})
}

// Who asks again for a hold whose release is forced has it, and its grace: an answer was
// lost, or a copy of the request comes late, when the app knows its grace already.
func TestAskForWhatIsForced(t *testing.T) {
	bubble(t, func(t *testing.T, s *Store) {
		a, l := driver(t, s)
		q := lock.Request{ID: "q", Resource: "r", Mode: lock.Exclusive}
		first, err := l.Ask(t.Context(), q) // its answer is lost
		if err != nil {
			t.Fatal(err)
		}
		f := forced(t, s, lock.Grant{Resource: "r", ID: "q"}, 10*time.Second)
		if g, err := a.Acquire(t.Context(), q); err != nil || g.Fence != first.Fence {
			t.Fatalf("Acquire: %+v, %v", g, err)
		}
		news, err := a.Heartbeat(t.Context())
		if err != nil || len(news) != 1 || news[0].Kind != lock.Revoked || news[0].Until != 10*time.Second {
			t.Fatalf("Heartbeat: %+v, %v", news, err)
		}
		for beats := range 10 { // the first one acknowledges
			time.Sleep(ttl / 3)
			if _, err := a.Heartbeat(t.Context()); err != nil {
				t.Fatal(err)
			}
			if copied, err := l.Ask(t.Context(), q); beats == 0 && (err != nil || !copied.Granted) {
				t.Errorf("a late copy: %+v, %v", copied, err)
			}
		}
		at(t, "ForceRelease returned", f, 10*time.Second)
		shut(t, a)
	})
}

// The id of another lease's hold is not for use.
func TestIDOfAnotherLease(t *testing.T) {
	bubble(t, func(t *testing.T, s *Store) {
		a, b := open(t, s), open(t, s)
		g := acquire(t, a, "r", lock.Shared)
		if _, err := b.Acquire(t.Context(), lock.Request{ID: g.ID, Resource: "r", Mode: lock.Shared}); !errors.Is(err, lock.ErrInvalid) {
			t.Errorf("Acquire: %v, want ErrInvalid", err)
		}
		if err := b.Release(t.Context(), "r", g.ID); !errors.Is(err, lock.ErrNotHolder) {
			t.Errorf("Release: %v, want ErrNotHolder", err)
		}
		shut(t, a)
		shut(t, b)
	})
}

// A lease that ends grants nothing to its own waiters on the way out: the fence of
// the one behind them is the next.
func TestEndGrantsNothingToItself(t *testing.T) {
	bubble(t, func(t *testing.T, s *Store) {
		a, b := open(t, s), open(t, s)
		g := acquire(t, a, "r", lock.Exclusive)
		own := make(chan error, 3)
		for range cap(own) {
			go func() {
				_, err := a.Acquire(t.Context(), lock.Request{ID: lock.NewHoldID(), Resource: "r", Mode: lock.Exclusive})
				own <- err
			}()
		}
		synctest.Wait()
		next := make(chan lock.Grant)
		go func() { next <- acquire(t, b, "r", lock.Exclusive) }()
		synctest.Wait()
		shut(t, a)
		if got := <-next; got.Fence != g.Fence+lock.FenceRange {
			t.Errorf("the fence %d follows %d", got.Fence, g.Fence)
		}
		for range cap(own) {
			if err := <-own; !errors.Is(err, lock.ErrLeaseLost) {
				t.Errorf("a waiter of the lease: %v", err)
			}
		}
		shut(t, b)
	})
}

// A store that is closed ends what its leases run, also if nobody closes them.
func TestCloseOfTheStoreEndsLeases(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := New(WithClock(lock.GoTime()))
		open(t, s)
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	})
}

// Who asks again for what it has attached, and another one has since, does not take it back: it is about to hear that it
// has it no more, and would let go of it.
func TestAttachAgainAfterAnother(t *testing.T) {
	bubble(t, func(t *testing.T, s *Store) {
		a, one := driver(t, s)
		b, two := driver(t, s)
		g, key := acquire(t, a, "r", lock.Exclusive), lock.NewSecret().Key()
		if err := a.(lock.Detacher).Detach(t.Context(), "r", g.ID, key, time.Minute); err != nil {
			t.Fatal(err)
		}
		ask := func(l *lease, id lock.HoldID, want error) {
			t.Helper()
			got, err := l.Ask(t.Context(), lock.Request{ID: id, Resource: "r", Mode: lock.Exclusive, Handle: key})
			if !errors.Is(err, want) || err == nil && (!got.Granted || got.Fence != g.Fence) {
				t.Errorf("attach as %s: %+v, %v; want %v", id, got, err, want)
			}
		}
		ask(one, "first", nil)
		ask(two, "second", nil)
		ask(one, "first", lock.ErrNotHolder)
		ask(two, "second", nil)
		ask(one, "third", nil) // another request may
		// Nor what it has given up, and is detached again.
		if w, err := one.Withdraw(t.Context(), leasekit.Withdrawal{Ref: leasekit.Ref{Resource: "r", ID: "third"}}); err != nil || !w.Found {
			t.Fatal(w, err)
		}
		ask(one, "third", lock.ErrNotHolder)
		if _, err := s.SetHandle(t.Context(), "r", key, 0); err != nil {
			t.Fatal(err)
		}
		shut(t, a)
		shut(t, b)
	})
}
