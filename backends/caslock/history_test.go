package caslock

import (
	"errors"
	"slices"
	"testing"
	"time"

	"github.com/locksidecar/locksidecar/backends/leasekit"
	"github.com/locksidecar/locksidecar/lock"
)

// The store goes back to a backup, and others change so much before the next heartbeat that its revision is larger than
// before. A hold that was granted after the backup is told as lost, though the number of holds is the same.
func TestBackupThatWasPassedBy(t *testing.T) {
	m := newMemory()
	_, l, _, _ := sidecar(t, m, time.Minute)
	_, rival, _, _ := sidecar(t, m, time.Minute)
	old, q := request("old"), request("r")
	if _, err := l.Acquire(t.Context(), old); err != nil {
		t.Fatal(err)
	}
	restore := m.backup()
	if _, err := l.Heartbeat(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := l.Release(t.Context(), "old", old.ID); err != nil {
		t.Fatal(err)
	}
	if _, err := l.Acquire(t.Context(), q); err != nil {
		t.Fatal(err)
	}
	restore()
	if _, err := rival.Acquire(t.Context(), request("r")); err != nil {
		t.Fatalf("the backup has nobody there: %v", err)
	}
	m.mu.Lock()
	m.revision += 100
	m.mu.Unlock()
	news, err := l.Heartbeat(t.Context())
	if err != nil || len(news) != 1 || news[0].Kind != lock.Vanished || news[0].ID != q.ID {
		t.Errorf("%+v, %v; want that the hold has vanished", news, err)
	}
}

// A heartbeat that has had no answer, and one that was carried out beside another, are no sign of a backup.
func TestBeatWithoutAnswer(t *testing.T) {
	m := newMemory()
	b, kit, r, _ := sidecar(t, m, time.Minute)
	l := b.leases[string(kit.ID())]
	r.mu.Lock()
	r.copy = func(x Txn) bool {
		m.do(x)
		return true
	}
	r.mu.Unlock()
	if _, err := l.Renew(t.Context(), nil); !errors.Is(err, lock.ErrUnavailable) {
		t.Fatalf("a heartbeat without an answer: %v", err)
	}
	r.mu.Lock()
	r.copy = nil
	r.mu.Unlock()
	for range 2 {
		if renewal, err := l.Renew(t.Context(), nil); err != nil || renewal.Stranger {
			t.Errorf("%+v, %v", renewal, err)
		}
	}
}

// The store goes back to a backup, with its revision. Fences go on growing: at a sidecar that notices it, and at one that is new, after
// a heartbeat of the first.
func TestFencesAfterABackup(t *testing.T) {
	for _, fresh := range []bool{false, true} {
		m := newMemory()
		b, l, _, _ := sidecar(t, m, time.Minute)
		fence := func(l lock.Lease) lock.Fence {
			q := request("r")
			g, err := l.Acquire(t.Context(), q)
			if err != nil {
				t.Fatal(err)
			}
			if err := l.Release(t.Context(), "r", q.ID); err != nil {
				t.Fatal(err)
			}
			return g.Fence
		}
		fence(l)
		restore := m.backup()
		m.mu.Lock()
		m.revision += 1000
		m.mu.Unlock()
		before := fence(l)
		restore()
		b.wall = func() time.Time { return time.Now().Add(time.Minute) } // which these changes would take at least
		if fresh {
			if _, err := l.Heartbeat(t.Context()); err != nil {
				t.Fatal(err)
			}
			_, l, _, _ = sidecar(t, m, time.Minute)
		}
		for range 2 {
			after := fence(l)
			if after <= before {
				t.Errorf("broken law: fence %d after %d; by a new sidecar: %v", after, before, fresh)
			}
			before = after
		}
	}
}

// The store goes back to a backup, in which the lease has an earlier version. When that is known, the first trip of a release says again what is
// given up.
func TestReleaseAfterABackup(t *testing.T) {
	m := newMemory()
	b, kit, r, _ := sidecar(t, m, time.Minute)
	l := b.leases[string(kit.ID())]
	q := request("r")
	mustHave(t, kit, q)
	restore := m.backup()
	if _, err := kit.Heartbeat(t.Context()); err != nil {
		t.Fatal(err)
	}
	if _, err := l.Withdraw(t.Context(), leasekit.Withdrawal{Ref: leasekit.Ref{Resource: "r", ID: "no such"}, Unsure: true}); err != nil { // which writes the lease's key
		t.Fatal(err)
	}
	restore()
	if _, err := kit.Heartbeat(t.Context()); err != nil {
		t.Fatal(err)
	}
	other := request("other")
	mustHave(t, kit, other)
	r.mu.Lock()
	r.copy = func(x Txn) bool {
		if slices.ContainsFunc(x.Then, func(w Write) bool { return !w.Delete && w.Key == forcedKey(l.id, "r", string(q.ID)) }) {
			m.do(x)
		}
		return true // and it has no answer
	}
	r.mu.Unlock()
	if err := kit.Release(t.Context(), "r", q.ID); !errors.Is(err, lock.ErrUnavailable) {
		t.Fatal(err)
	}
	r.mu.Lock()
	r.copy = nil
	r.mu.Unlock()
	if _, marked := m.do(Txn{Read: []Range{{Key: forcedKey(l.id, "r", string(q.ID))}}}).Reads[0].one(); !marked {
		t.Error("nobody but its sidecar knows that it was given up")
	}
}
