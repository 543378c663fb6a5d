package mysql

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	"github.com/locksidecar/locksidecar/backends/sqllock"
	"github.com/locksidecar/locksidecar/internal/testengine"
	"github.com/locksidecar/locksidecar/lock"
)

// Many sidecars end, as when all are replaced by a new version. For a minute the keeper asks with each of its rounds whether
// anything is left of them: with a request or two for all, and not with one for each. What comes in late is cleared away.
func TestManyEndedLeases(t *testing.T) {
	t.Parallel()
	eachKind(t, testManyEndedLeases)
}

func testManyEndedLeases(t testing.TB, s testengine.Server) {
	const ended, rounds = 40, 3
	url := own(t, s, "ended_")
	var sweeps, observed atomic.Int64
	keeper := openWith(t, url, func(command string, _ time.Duration, _ error) {
		switch command {
		case "sweep":
			sweeps.Add(1)
		case "observe":
			observed.Add(1)
		}
	})
	t.Cleanup(func() { _ = keeper.Close() })
	keepAlive(t, t.Context(), leaseFor(t, keeper, 5*time.Second))
	b := openAt(t, url)
	t.Cleanup(func() { _ = b.Close() })
	var last lock.LeaseID
	for range ended {
		l := leaseFor(t, b, time.Minute)
		last = l.ID()
		if err := l.Close(context.WithoutCancel(t.Context())); err != nil {
			t.Fatal(err)
		}
	}
	after := func(n int64) {
		t.Helper()
		n += observed.Load()
		eventually(t, "the keeper makes its rounds", func() error {
			if observed.Load() < n {
				return errors.New("it does not")
			}
			return nil
		})
	}
	eventually(t, "each was swept", func() error {
		if n := sweeps.Load(); n < ended {
			return fmt.Errorf("%d were", n)
		}
		return nil
	})
	after(2) // what was under way is over
	sweptBefore, observedBefore := sweeps.Load(), observed.Load()
	after(rounds)
	if swept, all := sweeps.Load()-sweptBefore, observed.Load()-observedBefore; swept < 1 || swept > 3*all {
		t.Errorf("the keeper has sent %d requests in %d rounds for %d leases that are over", swept, all, ended)
	}
	// Nothing but a request that began before the end can do this, and no test makes one wait in the server for so long.
	execute(t, b, "INSERT INTO {lock} (name, fence, crowd) VALUES ('late', 1, 1)")
	execute(t, b, "INSERT INTO {note} (name, id, lease, kind, era) VALUES ('late', 'late', ?, 1, 0)", []byte(last))
	eventually(t, "what came late is cleared away", func() error {
		if n := number(t, b, "SELECT COUNT(*) FROM {note}"); n > 0 {
			return fmt.Errorf("there are %d notes", n)
		}
		return nil
	})
}

// sweptBy opens a sidecar that becomes the keeper. waited counts its requests that have waited for a row, in vain, to clear something
// away, and rounds those of the keeper.
func sweptBy(t testing.TB, url string) (b *store, waited, rounds *atomic.Int64) {
	t.Helper()
	waited, rounds = new(atomic.Int64), new(atomic.Int64)
	b = openWith(t, url, func(command string, took time.Duration, err error) {
		switch {
		case command == "observe":
			rounds.Add(1)
		case command == "sweep" && Class(err) == sqllock.Blocked && took > lockWait/2:
			waited.Add(1)
		}
	})
	t.Cleanup(func() { _ = b.Close() })
	keepAlive(t, t.Context(), leaseFor(t, b, 5*time.Second))
	return b, waited, rounds
}

// mortal opens a lease that lives until it is to die.
func mortal(t testing.TB, url string, ttl time.Duration) (l lock.Lease, die func()) {
	t.Helper()
	b := openAt(t, url)
	t.Cleanup(func() { _ = b.Close() })
	l = leaseFor(t, b, ttl)
	ctx, cancel := context.WithCancel(t.Context())
	alive := keepAlive(t, ctx, l)
	die = func() {
		cancel()
		<-alive
	}
	t.Cleanup(die)
	return l, die
}

// A sidecar is dead, and an app of it is frozen in a transaction with the guards of many locks. The keeper waits for a few of them,
// and not for each: what that sidecar has had otherwise is free, and soon so is what another one has had that has died since.
func TestSweepBesideManyLockedRows(t *testing.T) {
	t.Parallel()
	eachKind(t, testSweepBesideManyLockedRows)
}

func testSweepBesideManyLockedRows(t testing.TB, s testengine.Server) {
	const locked, free, few = 60, 240, 24
	url := own(t, s, "lockedrows_")
	b, waited, _ := sweptBy(t, url)
	dead, die := mortal(t, url, 2*time.Second)
	other, dieToo := mortal(t, url, 2*time.Second)
	hold(t, other, "other")
	tx := newApp(t, b, "").begin(9)
	for i := range locked + free {
		g := hold(t, dead, lock.Resource(fmt.Sprintf("r%03d", i)))
		if i%((locked+free)/locked) == 0 && !tx.guarded(g.Guard) {
			t.Fatal("the guard of the holder did not find its hold")
		}
	}
	left := func(l lock.Lease) int64 {
		return number(t, b, "SELECT COUNT(*) FROM {lock} WHERE x_lease=?", []byte(l.ID()))
	}
	die()
	eventually(t, "what nobody has locked is cleared away", func() error {
		if n := left(dead); n > locked {
			return fmt.Errorf("%d are left", n)
		}
		return nil
	})
	eventually(t, "the keeper waits for a row", func() error {
		if waited.Load() == 0 {
			return errors.New("it does not")
		}
		return nil
	})
	dieToo()
	eventually(t, "the other lease is over", func() error {
		if number(t, b, "SELECT ended FROM {lease} WHERE id=?", []byte(other.ID())) == 0 {
			return errors.New("it lives")
		}
		return nil
	})
	before := waited.Load()
	eventually(t, "what it had is cleared away", func() error {
		if left(other) > 0 {
			return errors.New("it is there")
		}
		return nil
	})
	if n := waited.Load() - before; n > few {
		t.Errorf("the keeper has waited for %d rows before it came to the next lease", n)
	}
	if n := left(dead); n != locked {
		t.Errorf("%d rows are left, and %d are locked", n, locked)
	}
	tx.rollBack()
	eventually(t, "the rest is cleared away", func() error {
		if n := left(dead); n > 0 {
			return fmt.Errorf("%d are left", n)
		}
		return nil
	})
}

// To clear away what an app has locked takes the keeper longer than the pause between two of its rounds, each of which has it done
// again. It comes to the leases of which nothing was left all the same.
func TestSweepOfManyBesideALockedRow(t *testing.T) {
	t.Parallel()
	eachKind(t, testSweepOfManyBesideALockedRow)
}

func testSweepOfManyBesideALockedRow(t testing.TB, s testengine.Server) {
	url := own(t, s, "lockedrow_")
	b, waited, rounds := sweptBy(t, url)
	mortal(t, url, lock.MinTTL) // so that the rounds come often
	closed, _ := mortal(t, url, time.Minute)
	dead, die := mortal(t, url, time.Second)
	g := hold(t, dead, "r")
	if err := closed.Close(context.WithoutCancel(t.Context())); err != nil {
		t.Fatal(err)
	}
	more := func(what string, n *atomic.Int64) {
		t.Helper()
		least := n.Load() + 4
		eventually(t, what, func() error {
			if n.Load() < least {
				return errors.New("it does not")
			}
			return nil
		})
	}
	more("the keeper makes its rounds", rounds)
	tx := newApp(t, b, "").begin(10)
	if !tx.guarded(g.Guard) {
		t.Fatal("the guard of the holder did not find its hold")
	}
	die()
	more("the keeper waits for the row", waited)
	// See TestManyEndedLeases. The guard may keep what is older than its row from being inserted.
	execute(t, b, "INSERT INTO {lock} (name, fence, crowd) VALUES ('late', UNIX_TIMESTAMP()*1000000, 1)")
	execute(t, b, "INSERT INTO {note} (name, id, lease, kind, era) VALUES ('late', 'late', ?, 1, 0)", []byte(closed.ID()))
	eventually(t, "what came late is cleared away", func() error {
		if n := number(t, b, "SELECT COUNT(*) FROM {note}"); n > 0 {
			return fmt.Errorf("there are %d notes", n)
		}
		return nil
	})
	tx.rollBack()
}
