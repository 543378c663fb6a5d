// Package backendtest is the conformance suite of the store contract in package
// lock. Every store passes it. So a store needs tests of its own only for how it reaches
// its server, and for what only its server does.
//
// A store's test says
//
//	func TestConformance(t *testing.T) { backendtest.Run(t, harness{…}) }
//
// where the harness opens the store. Not every store can make faults or show its
// internals. So these are separate interfaces, which a harness may
// implement too: [CounterDeleter], [Faulter], [WakeupDropper], [ClockShifter],
// [Switcher], [Apart], [Slower], [Insider], [Restarter], [Failoverer], [Freezer], [CommandCounter], [Lighter], [Quick], [Impatient], [Crowder], [Namer]. Tests that need one of them are skipped without it.
//
// A store that cannot do all of the contract is [Limited]. The tests of what it
// cannot do are skipped, or check that the store refuses it. All other tests do not use it.
//
// The suite uses resource names of its own and leaves nothing behind, so it can
// run on a server that serves others. Only the tests behind Restarter, Failoverer,
// CounterDeleter and CommandCounter expect to have the server to themselves.
package backendtest

import (
	"testing"
	"time"

	"github.com/locksidecar/locksidecar/lock"
)

// Harness is a store under test.
type Harness interface {
	// Open opens the store as one more sidecar would: every backend has its own
	// connections, and all of them see the same locks. It is called many times,
	// also from tests that run at the same time. The suite closes what it gets.
	Open(t testing.TB) lock.Backend

	// TTL is the time to live of leases that are left to die. Tests wait for it
	// to pass, so it should be as short as the store does well: lock.MinTTL to a
	// few seconds.
	TTL() time.Duration

	// Recheck is how late the store may be, on a quiet machine, in handing on
	// what ended by itself (a lease that expired, a grace that is over) or what
	// it was told of by a wake-up that was lost: the period of the bounded
	// re-check. Tests add generous room for a loaded machine.
	Recheck() time.Duration

	// Exceptions names the tests, as they stand in the table of this package,
	// that the store does not pass, each with the reason. An unknown name or an
	// empty reason fails the run.
	Exceptions() map[string]string
}

// CounterDeleter is a Harness that can delete the state from which the store
// takes its next fence for the resource, as an eviction or a careless operator
// would. Holds and waiters need not survive it; tests call it when there are none.
type CounterDeleter interface {
	DeleteCounter(t testing.TB, r lock.Resource)
}

// Faulter is a Harness that can keep the store's answers from one backend.
type Faulter interface {
	// LoseReplies: from its return until heal is called, the requests of b reach
	// the store and are carried out, but no answer comes back; b sees its
	// connections break, or nothing. Whether b's later requests under the same
	// fault still reach the store is left open. b is one that Open returned. heal
	// can be called twice. The harness also heals by t.Cleanup, registered before
	// the fault begins.
	LoseReplies(t testing.TB, b lock.Backend) (heal func())
}

// WakeupDropper is a Harness that can lose the store's wake-up hints.
type WakeupDropper interface {
	// DropWakeups: from its return until restore is called, no wake-up hint and
	// no unasked news reaches b, while its requests are answered as always.
	// restore can be called twice. The harness also restores by t.Cleanup,
	// registered before the fault begins.
	DropWakeups(t testing.TB, b lock.Backend) (restore func())
}

// ClockShifter is a Harness that has servers whose clock can be set.
type ClockShifter interface {
	// OwnClock gives the store on a server of the test's own, and a function that
	// sets the server's clock ahead of the true time by that much, at once, under
	// what is running; 0 puts it right.
	OwnClock(t testing.TB) (h Harness, shift func(by time.Duration))
}

// Switcher is a Harness that can lead backends to another server, which knows
// less.
type Switcher interface {
	// Fork makes a second server with all that the store's server knows at this
	// moment and nothing that it learns later, as a replica that was cut off. lead
	// ends the connections of backends, and leads new ones to the second server, or
	// back to the first. The harness leads all back by t.Cleanup.
	Fork(t testing.TB) (lead func(toFork bool, bs ...lock.Backend))
}

// Apart is a Harness whose server tells all sidecars when some of them are led to it from
// another one: then tests of that must not have others beside them there.
type Apart interface {
	// OwnServer gives the store on a server of the test's own.
	OwnServer(t testing.TB) Harness
}

// Slower is a Harness that can make the road between a backend and the store slow.
type Slower interface {
	// Slow delays what passes, in each direction, by d, from its return until the
	// end of the test.
	Slow(t testing.TB, b lock.Backend, d time.Duration)
}

// Insider is a Harness that can look into the store itself.
type Insider interface {
	// Leftovers lists what the store keeps of resources whose name starts with
	// prefix, in words for people: keys, rows, nodes, members of sets, also those
	// of leases that are over and those that List does not show. Left out is what
	// the store forgets by itself within minutes, and the numbers from which fences
	// grow. A failure to look stands there as well: the suite looks again.
	Leftovers(t testing.TB, prefix string) []string
}

// Restarter is a Harness that can restart the store's server, with or without
// what it knew. Restart returns when the server accepts requests again.
type Restarter interface {
	Restart(t testing.TB)
}

// Failoverer is a Harness whose server has replicas that take over from it.
type Failoverer interface {
	// FailOver ends the server at once, and returns when a replica has taken over that has
	// all of it, or nothing at all.
	FailOver(t testing.TB, hasAll bool)
}

// Quick is a Harness of a store that is quick enough for the tests of large numbers to run
// with the whole of them always. On the others that is done where LOCKSIDECAR_TEST_FULL is set.
type Quick interface {
	Quick() bool
}

// Freezer is a Harness that can stop the store's server where it stands, and let it go on.
type Freezer interface {
	// Freeze returns when nothing is answered any more. thaw can be called twice. The harness
	// also thaws by t.Cleanup, registered before the fault begins.
	Freeze(t testing.TB) (thaw func())
}

// Lighter is a Harness that can say that tests of large numbers are to be a tenth as large,
// because another run of the suite has them in full: the same code, on the same server or another
// of its kind. Where LOCKSIDECAR_TEST_FULL is set, none is lighter.
type Lighter interface {
	Lighter() bool
}

// Impatient is a Harness of a store that may take holds away while their lease lives, and tells their apps: a lock of another
// product beside each hold that gives no sign of life, or a shard that does not answer while others do.
type Impatient interface {
	// Patience is how long after a heartbeat that may be, of a lease with that TTL.
	Patience(ttl time.Duration) time.Duration
}

// Crowder is a Harness of a store on which crowds may be smaller than on others: what depends on their size
// is tested on another store, or by a test of its own. Where LOCKSIDECAR_TEST_FULL is set, they are whole.
type Crowder interface {
	Crowd() int
}

// Namer is a Harness of a store that is made of several: a lease has an id of its own at each.
type Namer interface {
	// LeaseID is that under which Get and List show the lease for a resource.
	LeaseID(l lock.Lease, r lock.Resource) lock.LeaseID
}

// Limited is a Harness of a store that cannot do all that the contract has.
type Limited interface {
	Limits() Limits
}

// Limits are what a store cannot do, each with the reason. Empty: it can.
type Limits struct {
	// Sharing: all locks are exclusive, Acquire of a shared one is ErrUnsupported.
	Sharing string
	// Downgrade is ErrUnsupported.
	Downgrade string
	// Order: waiters are served in no certain order, so Status has them in any, a
	// HeldError has no position, and a shared request may pass a waiting writer.
	Order string
	// Permits: Acquire of one of so many permits is ErrUnsupported.
	Permits string
	// MinHold: Acquire with one is ErrUnsupported.
	MinHold string
	// Detached: Acquire of what can be detached, or by a handle, is ErrUnsupported.
	Detached string
	// LongNames: a name of more than 64 characters is ErrInvalid.
	LongNames string
	// Holds is how many one lease can have; one more is a *lock.LimitError. 0: thousands.
	Holds int
}

// skips gives the reason why a test makes no sense on the store.
func (l Limits) skips(c conformance) string {
	switch {
	case c.shares && l.Sharing != "":
		return "no sharing: " + l.Sharing
	case c.downgrades && l.Downgrade != "":
		return "no downgrade: " + l.Downgrade
	case c.permits && l.Permits != "":
		return "no permits: " + l.Permits
	case c.keeps && l.MinHold != "":
		return "no min_hold: " + l.MinHold
	case c.detaches && l.Detached != "":
		return "no detached holds: " + l.Detached
	case c.orders && l.Order != "":
		return "no order: " + l.Order
	}
	return ""
}

// CommandCounter is a Harness that knows how many requests the store's server
// has carried out so far, for whomever. Asking may count too.
type CommandCounter interface {
	Commands(t testing.TB) int64
}

// conformance is one test of the suite.
type conformance struct {
	name  string
	run   func(*env)
	needs func(Harness) (capability string, has bool) // nil: nothing
	alone bool                                        // not while other tests use the store
	deaf  bool                                        // no push reaches any backend, from the start

	shares, downgrades, orders, permits, keeps, detaches bool // it is of nothing but what Limits has under that name
}

// Run runs the suite on the store behind h. It returns when all tests are done.
func Run(t *testing.T, h Harness) {
	exceptions := h.Exceptions()
	known := make(map[string]bool)
	for _, c := range suite {
		known[c.name] = true
	}
	for name, reason := range exceptions {
		if !known[name] {
			t.Errorf("the harness makes an exception for %q, which is no test of the suite", name)
		}
		if reason == "" {
			t.Errorf("the harness makes an exception for %q without a reason", name)
		}
	}
	var limits Limits
	if l, ok := h.(Limited); ok {
		limits = l.Limits()
	}
	one := func(c conformance) func(*testing.T) {
		return func(t *testing.T) {
			if reason := exceptions[c.name]; reason != "" {
				t.Skip("exception: " + reason)
			}
			if reason := limits.skips(c); reason != "" {
				t.Skip(reason)
			}
			if capability, has := c.capability(h); !has {
				t.Skip("the harness is no " + capability)
			}
			if !c.alone {
				t.Parallel()
			}
			runOne(t, h, limits, c)
		}
	}
	for _, c := range suite {
		if c.alone {
			t.Run(c.name, one(c))
		}
	}
	// A group of their own, so that Run does not return before they are done.
	t.Run("Parallel", func(t *testing.T) {
		for _, c := range suite {
			if !c.alone {
				t.Run(c.name, one(c))
			}
		}
	})
}

// capability tells whether the harness has what the test needs.
func (c conformance) capability(h Harness) (name string, has bool) {
	if c.needs == nil {
		return "", true
	}
	return c.needs(h)
}

func needs[C any](capability string) func(Harness) (string, bool) {
	return func(h Harness) (string, bool) {
		_, has := h.(C)
		return capability, has
	}
}
