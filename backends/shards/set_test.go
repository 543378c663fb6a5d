package shards

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/locksidecar/locksidecar/lock"
	"github.com/locksidecar/locksidecar/session"
)

// opens tries to open a lease.
func opens(e *env, b lock.Backend) error {
	ctx, cancel := context.WithTimeout(e.t.Context(), ttl)
	defer cancel()
	l, err := b.OpenLease(ctx, lock.LeaseOptions{TTL: ttl})
	if err != nil {
		return err
	}
	return l.Close(e.t.Context())
}

func refused(e *env, b lock.Backend, theirs string) {
	e.t.Helper()
	err := opens(e, b)
	var other *MismatchError
	if !errors.As(err, &other) || !errors.Is(err, lock.ErrUnavailable) || strings.Join(other.Theirs, " ") != theirs {
		e.t.Errorf("OpenLease = %v, want a MismatchError that names [%s]", err, theirs)
	}
}

// unreadable is a store whose records may not be read.
type unreadable struct{ *visitor }

func (unreadable) ReadRecord(context.Context, lock.Resource) (lock.Record, error) {
	return lock.Record{}, lock.ErrUnavailable
}

// TestOtherSet: two sidecars that name different shards: the second one is refused, in whatever order it
// names them, and also when it names one alone.
func TestOtherSet(t *testing.T) {
	bubble(t, func(e *env) {
		of := func(numbers ...int) *Backend {
			b, _ := e.backend(nil, numbers...)
			return b
		}
		if err := opens(e, of(0, 1)); err != nil {
			t.Fatal(err)
		}
		if err := opens(e, of(1, 0)); err != nil {
			t.Errorf("the same shards in another order: %v", err)
		}
		refused(e, of(0, 1, 2), "a b")
		refused(e, of(1, 2), "a b")
		refused(e, e.alone(&visitor{e.stores[0]}, "a"), "a b")
		if err := opens(e, e.alone(&visitor{e.stores[2]}, "c")); err != nil {
			t.Errorf("a store that is no shard: %v", err)
		}
		if err := opens(e, e.alone(unreadable{&visitor{e.stores[0]}}, "a")); err != nil {
			t.Errorf("a store whose record cannot be read: %v", err)
		}
		// The one who was refused has left no trace that stops others.
		if err := opens(e, of(0, 1)); err != nil {
			t.Error(err)
		}
	})
}

// TestFirstUse: the set is founded only when all shards answer; one that has lost everything gets it again.
func TestFirstUse(t *testing.T) {
	bubble(t, func(e *env) {
		b, roads := e.backend(nil, 0, 1, 2)
		roads[2].fault.Store(refuses)
		if err := opens(e, b); err == nil || !strings.Contains(err.Error(), "all must answer") {
			t.Errorf("OpenLease with one shard away = %v", err)
		}
		roads[2].fault.Store(fine)
		if err := opens(e, b); err != nil {
			t.Fatal(err)
		}
		e.stores[1] = e.store()
		again, roads := e.backend(nil, 0, 1, 2)
		roads[2].fault.Store(hangs)
		if err := again.admit(e.t.Context(), again.shards[1]); err != nil {
			t.Fatalf("a shard that has lost everything: %v", err)
		}
		if found, err := again.shards[1].readSet(e.t.Context()); err != nil || !found.Confirmed || len(found.Shards) != 3 {
			t.Errorf("it has %+v, %v", found, err)
		}
	})
}

// TestProposalIsNoSet: who could not propose its set to all shards has founded nothing: it is refused
// where the other shard is away.
func TestProposalIsNoSet(t *testing.T) {
	bubble(t, func(e *env) {
		first, _ := e.backend(nil, 0, 1)
		if err := opens(e, first); err != nil {
			t.Fatal(err)
		}
		second, roads := e.backend(nil, 1, 2)
		refused(e, second, "a b")
		roads[0].fault.Store(refuses)
		if err := opens(e, second); !errors.Is(err, lock.ErrUnavailable) {
			t.Errorf("OpenLease = %v: it has only its own proposal", err)
		}
	})
}

// TestSetIsRenewed: a set does not expire as long as somebody opens leases.
func TestSetIsRenewed(t *testing.T) {
	bubble(t, func(e *env) {
		b, roads := e.backend(nil, 0, 1)
		var last string
		for _, x := range []struct {
			age     time.Duration
			written bool
		}{{0, true}, {renewSet - time.Hour, false}, {renewSet + time.Hour, true}} {
			roads[0].older = x.age
			if err := opens(e, b); err != nil {
				t.Fatal(err)
			}
			found, err := b.shards[0].readSet(e.t.Context())
			if err != nil || len(found.Shards) != 2 || (found.version != last) != x.written {
				t.Errorf("at the age of %s: %+v, %v, was %s; written again: want %t", x.age, found, err, last, x.written)
			}
			last = found.version
		}
	})
}

// TestReplace: the set is replaced on purpose, but not while somebody uses it.
func TestReplace(t *testing.T) {
	bubble(t, func(e *env) {
		list := func(numbers ...int) (all []Shard) {
			for _, i := range numbers {
				all = append(all, Shard{Name: string(rune('a' + i)), Backend: e.stores[i]})
			}
			return all
		}
		replaced := func(all []Shard) {
			t.Helper()
			if err := Replace(e.t.Context(), all); err != nil {
				t.Fatal(err)
			}
			sets, err := Sets(e.t.Context(), all)
			if err != nil || Agree(all, sets) != nil {
				t.Errorf("Sets = %v, %v, %v", sets, err, Agree(all, sets))
			}
		}
		s := e.sidecar(0, 1)
		a := s.app()
		s.take(a, s.named(0))
		if err := Replace(e.t.Context(), list(0, 1, 2)); err == nil || !strings.Contains(err.Error(), "in use") {
			t.Errorf("Replace while somebody has a lock = %v", err)
		}
		a.Close()
		time.Sleep(ttl)
		replaced(list(0, 1, 2))
		b, _ := e.backend(nil, 2, 1, 0)
		if err := opens(e, b); err == nil {
			t.Error("a sidecar of the new set has a lease before those of the old one have noticed it")
		}
		time.Sleep(settleSet)
		if err := opens(e, b); err != nil {
			t.Error(err)
		}
		replaced(list(1))
		time.Sleep(settleSet)
		if err := opens(e, e.alone(&visitor{e.stores[1]}, "b")); err != nil {
			t.Error(err)
		}
		if sets, err := Sets(e.t.Context(), list(0, 1)); err != nil || Agree(list(0, 1), sets) == nil {
			t.Errorf("Sets = %v, %v", sets, err)
		}
	})
}

// TestReplaceBesideASidecar: a sidecar of the old set was not stopped. It had no locks at that moment, and notices that the set is
// another one before the sidecars of the new one grant any.
func TestReplaceBesideASidecar(t *testing.T) {
	bubble(t, func(e *env) {
		old := e.sidecar(0, 1)
		a := old.app()
		list := []Shard{{Name: "a", Backend: e.stores[0]}, {Name: "b", Backend: e.stores[1]}, {Name: "c", Backend: e.stores[2]}}
		if err := Replace(e.t.Context(), list); err != nil {
			t.Fatal(err)
		}
		s := e.sidecar(0, 1, 2)
		name := s.named(2)
		s.take(s.app(), name)
		if _, err := a.Acquire(e.t.Context(), session.AcquireRequest{Resource: name, Mode: lock.Exclusive}); err == nil {
			t.Errorf("broken law: a sidecar of the old set and one of the new one have %s", name)
		}
	})
}

// TestAloneBesideASidecar: a store is to stand alone, and a sidecar of the set that it belonged to was not stopped. What
// the other shards remember does not make it a shard again.
func TestAloneBesideASidecar(t *testing.T) {
	bubble(t, func(e *env) {
		old := e.sidecar(0, 1)
		a, name := old.app(), old.named(1)
		if err := Replace(e.t.Context(), []Shard{{Name: "a", Backend: e.stores[0]}}); err != nil {
			t.Fatal(err)
		}
		b := e.alone(&visitor{e.stores[0]}, "a")
		err := opens(e, b)
		for end := e.clock() + time.Minute; err != nil && e.clock() < end; err = opens(e, b) {
			time.Sleep(time.Second)
		}
		if err != nil {
			t.Fatal(err)
		}
		if _, err := a.Acquire(e.t.Context(), session.AcquireRequest{Resource: name, Mode: lock.Exclusive}); err == nil {
			t.Errorf("broken law: a sidecar of the old set grants %s, which who uses the other store alone may have", name)
		}
		time.Sleep(time.Minute)
		if err := opens(e, b); err != nil {
			t.Errorf("the store is a shard again: %v", err)
		}
	})
}

// TestSwappedNames: two sidecars give the same stores the same names, but not each the same one: the second one is
// refused, and so is a store that has two names.
func TestSwappedNames(t *testing.T) {
	bubble(t, func(e *env) {
		as := func(a, b, c int) lock.Backend {
			all, err := New([]Shard{{Name: "a", Backend: e.stores[a]}, {Name: "b", Backend: e.stores[b]}, {Name: "c", Backend: e.stores[c]}}, Options{Clock: e.now})
			if err != nil {
				t.Fatal(err)
			}
			return all
		}
		refused := func(b lock.Backend) {
			t.Helper()
			var other *MismatchError
			if err := opens(e, b); !errors.As(err, &other) || !strings.Contains(err.Error(), "is the same store as shard") {
				t.Errorf("OpenLease = %v, want a MismatchError", err)
			}
		}
		refused(as(0, 1, 1))
		time.Sleep(2 * keepProposal)
		if err := opens(e, as(0, 1, 2)); err != nil {
			t.Fatal(err)
		}
		refused(as(1, 0, 2))
		refused(as(0, 1, 1))
		swapped := []Shard{{Name: "b", Backend: e.stores[0]}, {Name: "a", Backend: e.stores[1]}, {Name: "c", Backend: e.stores[2]}}
		if sets, err := Sets(e.t.Context(), swapped); err == nil {
			t.Errorf("Sets = %v", sets)
		}
	})
}

// TestFoundedBesideOthers: a store becomes a shard while a sidecar uses it alone, and somebody has a lock there.
func TestFoundedBesideOthers(t *testing.T) {
	bubble(t, func(e *env) {
		l, err := e.alone(&visitor{e.stores[0]}, "a").OpenLease(e.t.Context(), lock.LeaseOptions{TTL: ttl})
		if err != nil {
			t.Fatal(err)
		}
		if _, err := l.Acquire(e.t.Context(), lock.Request{ID: lock.NewHoldID(), Resource: "orders/42", Mode: lock.Exclusive}); err != nil {
			t.Fatal(err)
		}
		b, _ := e.backend(nil, 0, 1)
		if err := opens(e, b); err == nil || !strings.Contains(err.Error(), `shard a is in use: somebody has "orders/42"`) {
			t.Errorf("OpenLease = %v", err)
		}
		if err := l.Close(e.t.Context()); err != nil {
			t.Fatal(err)
		}
		if err := opens(e, b); err != nil {
			t.Error(err)
		}
	})
}

// TestAloneNotices: a sidecar that uses a store alone ends its lease when the store has become a shard, also where it could not read
// that at first.
func TestAloneNotices(t *testing.T) {
	for name, unread := range map[string]bool{"it becomes one": false, "it is one": true} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(e *env) {
				r := &road{visitor: &visitor{e.stores[0]}}
				b := e.alone(r, "a")
				open := func() lock.Lease {
					l, err := b.OpenLease(e.t.Context(), lock.LeaseOptions{TTL: lock.MaxTTL})
					if err != nil {
						t.Fatal(err)
					}
					return l
				}
				found := func() {
					set, _ := e.backend(nil, 0, 1)
					if err := opens(e, set); err != nil {
						t.Fatal(err)
					}
				}
				var l lock.Lease
				if unread {
					found()
					r.mute.Store(true)
					l = open()
					r.mute.Store(false)
				} else {
					l = open()
					found()
				}
				time.Sleep(lookAlone + lookSet)
				if _, err := l.Heartbeat(e.t.Context()); !errors.Is(err, lock.ErrLeaseLost) {
					t.Errorf("Heartbeat = %v: the store is a shard", err)
				}
			})
		})
	}
}

// TestPick: names are spread evenly, a shard more moves only names to itself, and every version
// picks the same.
func TestPick(t *testing.T) {
	of := func(names ...string) *Backend {
		b := &Backend{}
		for _, n := range names {
			b.shards = append(b.shards, &shard{name: n, seed: seed(n)})
		}
		return b
	}
	three, four := of("redis://a:6379", "redis://b:6379", "redis://c:6379"), of("redis://a:6379", "redis://b:6379", "redis://c:6379", "redis://d:6379")
	count := map[int]int{}
	const n = 20_000
	for i := range n {
		r := lock.Resource(fmt.Sprintf("customer/%d", i))
		before, after := three.pick(r), four.pick(r)
		if count[after]++; after != before && after != 3 {
			t.Fatalf("%s moves from %d to %d", r, before, after)
		}
	}
	for i := range 4 {
		if share := float64(count[i]) / n; share < 0.23 || share > 0.27 {
			t.Errorf("shard %d has %.1f %% of the names, want a quarter", i, 100*share)
		}
	}
	for r, want := range golden {
		if got := three.of(lock.Resource(r)).name; got != want {
			t.Errorf("%q lives at %s, and did at %s before: every version must pick the same", r, got, want)
		}
	}
}

// golden is where some names live.
var golden = map[string]string{
	"orders/42":    "redis://c:6379",
	"a":            "redis://c:6379",
	"b":            "redis://a:6379",
	"customer/1":   "redis://b:6379",
	"größe/ü":      "redis://a:6379",
	"NS/orders/42": "redis://a:6379",
}
