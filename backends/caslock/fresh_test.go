package caslock

import (
	"runtime"
	"strconv"
	"sync/atomic"
	"testing"
	"time"

	"github.com/locksidecar/locksidecar/backends/leasekit"
	"github.com/locksidecar/locksidecar/lock"
)

func mustAsk(t *testing.T, l *lease, r lock.Resource) lock.Request {
	t.Helper()
	q := request(r)
	if a, err := l.Ask(t.Context(), q); err != nil || !a.Granted {
		t.Fatalf("%+v, %v", a, err)
	}
	return q
}

// A hold is downgraded, and before that is answered a heartbeat sees what it has written. That is no sign of a backup.
func TestHeartbeatBesideADowngrade(t *testing.T) {
	m := newMemory()
	c := &counting{road: &road{m: m}}
	b, l := opened(t, c, Options{Timeout: patience})
	q := mustAsk(t, l, "r")
	before := b.fallen()
	var once atomic.Bool
	after := func(x Txn) {
		if writesHead(x, "r") && !once.Swap(true) {
			if r, err := l.Renew(t.Context(), nil); err != nil || r.Stranger {
				t.Errorf("a heartbeat beside it: %+v, %v", r, err)
			}
		}
	}
	c.after.Store(&after)
	ref := leasekit.Ref{Resource: q.Resource, ID: q.ID}
	if err := l.Downgrade(t.Context(), ref); err != nil || !once.Load() {
		t.Fatalf("%v; a heartbeat was beside it: %t", err, once.Load())
	}
	c.after.Store(nil)
	if r, err := l.Renew(t.Context(), nil); err != nil || r.Stranger {
		t.Errorf("the next one: %+v, %v", r, err)
	}
	if after := b.fallen(); after != before {
		t.Errorf("the store is said to have gone back %d times", after-before)
	}
}

// The store goes back to a backup in which a hold is not, and which is younger than the last heartbeat, and a downgrade of the hold had no
// answer. The next heartbeat notices it.
func TestBackupAndADowngradeWithoutAnswer(t *testing.T) {
	m := newMemory()
	b, kit, r, _ := sidecar(t, m, time.Minute)
	l := b.leases[string(kit.ID())]
	mustAsk(t, l, "old")
	if renewal, err := l.Renew(t.Context(), nil); err != nil || renewal.Stranger {
		t.Fatalf("%+v, %v", renewal, err)
	}
	restore := m.backup()
	q := mustAsk(t, l, "r")
	r.mu.Lock()
	r.copy = func(x Txn) bool { return writesHead(x, "r") }
	r.mu.Unlock()
	if err := l.Downgrade(t.Context(), leasekit.Ref{Resource: q.Resource, ID: q.ID}); err == nil {
		t.Fatal("it had an answer")
	}
	r.mu.Lock()
	r.copy = nil
	r.mu.Unlock()
	restore()
	m.mu.Lock()
	m.revision += 100
	m.mu.Unlock()
	if renewal, err := l.Renew(t.Context(), nil); err != nil || !renewal.Stranger {
		t.Errorf("%+v, %v", renewal, err)
	}
}

// The store goes back to a backup in which a hold waits still, which is younger than the last heartbeat. Others change more than was lost, and who
// is in front goes once more, so the hold is granted again. A heartbeat beside its downgrade does not take that for what the downgrade has written: others
// may have had the lock in between.
func TestGrantedAgainBesideADowngrade(t *testing.T) {
	m := newMemory()
	c := &counting{road: &road{m: m}}
	_, l := opened(t, c, Options{Timeout: patience})
	_, rival := opened(t, &road{m: m}, Options{Timeout: patience})
	theirs := mustAsk(t, rival, "r")
	q := request("r")
	if a, err := l.Ask(t.Context(), q); err != nil || a.Granted {
		t.Fatalf("behind another: %+v, %v", a, err)
	}
	if r, err := l.Renew(t.Context(), nil); err != nil || r.Stranger {
		t.Fatalf("%+v, %v", r, err)
	}
	restore := m.backup()
	goes := func() {
		if _, err := rival.Withdraw(t.Context(), leasekit.Withdrawal{Ref: leasekit.Ref{Resource: "r", ID: theirs.ID}}); err != nil {
			t.Fatal(err)
		}
	}
	goes()
	if a, err := l.Ask(t.Context(), q); err != nil || !a.Granted {
		t.Fatalf("when it has gone: %+v, %v", a, err)
	}
	restore()
	m.mu.Lock()
	m.revision += 100
	m.mu.Unlock()
	goes()
	var once atomic.Bool
	after := func(x Txn) {
		if writesHead(x, "r") && !once.Swap(true) {
			if r, err := l.Renew(t.Context(), nil); err != nil || !r.Stranger {
				t.Errorf("a heartbeat beside it: %+v, %v", r, err)
			}
		}
	}
	c.after.Store(&after)
	if err := l.Downgrade(t.Context(), leasekit.Ref{Resource: q.Resource, ID: q.ID}); err != nil || !once.Load() {
		t.Fatalf("%v; a heartbeat was beside it: %t", err, once.Load())
	}
}

// The store goes back to a backup, and more was granted since the last heartbeat than one looks at. One heartbeat tells of that, and not each of the
// next ones, too.
func TestBackupAfterManyGrants(t *testing.T) {
	m := newMemory()
	_, l := opened(t, &road{m: m}, Options{Timeout: patience})
	mustAsk(t, l, "first") // with which fences begin
	restore := m.backup()
	for i := range mostShown + 10 {
		mustAsk(t, l, lock.Resource(strconv.Itoa(i)))
	}
	restore()
	for _, told := range []bool{true, false} {
		if r, err := l.Renew(t.Context(), nil); err != nil || r.Stranger != told {
			t.Errorf("%+v, %v; a stranger: %t", r, err, told)
		}
	}
}

// A lock is granted beside the heartbeat that tells of a backup, after that has read what there is. The store goes back once more, to a backup in
// which the request waits, and others overtake its revision. The next heartbeat tells that, too.
func TestGrantedBesideAHeartbeatThatTells(t *testing.T) {
	m := newMemory()
	c := &counting{road: &road{m: m}}
	_, l := opened(t, c, Options{Timeout: patience})
	_, rival := opened(t, &road{m: m}, Options{Timeout: patience})
	theirs, q := mustAsk(t, rival, "r"), request("r")
	if a, err := l.Ask(t.Context(), q); err != nil || a.Granted {
		t.Fatalf("behind another: %+v, %v", a, err)
	}
	restore := m.backup()
	mustAsk(t, l, "lost")
	restore()
	var once atomic.Bool
	after := func(x Txn) {
		if len(x.Then) == 0 || x.Then[0].Key != beatKey(l.id) || once.Swap(true) {
			return
		}
		restore = m.backup()
		if _, err := rival.Withdraw(t.Context(), leasekit.Withdrawal{Ref: leasekit.Ref{Resource: "r", ID: theirs.ID}}); err != nil {
			t.Error(err)
		}
		if a, err := l.Ask(t.Context(), q); err != nil || !a.Granted {
			t.Errorf("beside a heartbeat: %+v, %v", a, err)
		}
	}
	c.after.Store(&after)
	renew := func(told bool) {
		t.Helper()
		if r, err := l.Renew(t.Context(), nil); err != nil || r.Stranger != told {
			t.Errorf("%+v, %v; a stranger: %t", r, err, told)
		}
	}
	renew(true)
	restore()
	m.mu.Lock()
	m.revision += 100
	m.mu.Unlock()
	renew(true)
	renew(false)
}

// More locks are forced at once than one request tells of, and their sidecar hears no push. That they are gone is no sign of a backup.
func TestManyForcedAtOnce(t *testing.T) {
	m := newMemory()
	r := &road{m: m}
	_, l := opened(t, r, Options{Timeout: patience})
	rival, _ := opened(t, &road{m: m}, Options{Timeout: patience})
	r.mu.Lock()
	r.muted = true
	r.mu.Unlock()
	const n = page + 10
	for i := range n {
		q := mustAsk(t, l, lock.Resource(strconv.Itoa(i)))
		o := &op{kind: opForce, id: string(q.ID), lease: l.id}
		if rival.submit(q.Resource, o); o.err != nil {
			t.Fatal(o.err)
		}
	}
	if r, err := l.Renew(t.Context(), nil); err != nil || r.Stranger || len(r.Revoked) != n {
		t.Errorf("%d are told, %v; a stranger: %t", len(r.Revoked), err, r.Stranger)
	}
}

// A hold is downgraded, and before that is answered its release is forced at once, and its sidecar has acknowledged that. That the hold is gone is no
// sign of a backup.
func TestForcedBesideADowngrade(t *testing.T) {
	m := newMemory()
	c := &counting{road: &road{m: m}}
	_, l := opened(t, c, Options{Timeout: patience})
	rival, _ := opened(t, &road{m: m}, Options{Timeout: patience})
	q := mustAsk(t, l, "r")
	ref := leasekit.Ref{Resource: q.Resource, ID: q.ID}
	renew := func(acks ...leasekit.Revocation) leasekit.Renewal {
		t.Helper()
		r, err := l.Renew(t.Context(), acks)
		if err != nil || r.Stranger {
			t.Errorf("%+v, %v", r, err)
		}
		return r
	}
	var once atomic.Bool
	after := func(x Txn) {
		if !writesHead(x, "r") || once.Swap(true) {
			return
		}
		o := &op{kind: opForce, id: string(q.ID), lease: l.id}
		if rival.submit("r", o); o.err != nil {
			t.Error(o.err)
		}
		renew(renew().Revoked...)
	}
	c.after.Store(&after)
	if err := l.Downgrade(t.Context(), ref); err != nil || !once.Load() {
		t.Fatalf("%v; it was forced: %t", err, once.Load())
	}
	renew()
	l.mu.Lock()
	defer l.mu.Unlock()
	if len(l.moving) > 0 {
		t.Errorf("%v are known still", l.moving)
	}
}

// More was granted since the last heartbeat than one request looks at. All of that is forced at once when the first one has read, and the sidecar hears
// no push. That it is gone is no sign of a backup.
func TestManyForcedBesideAHeartbeat(t *testing.T) {
	m := newMemory()
	c := &counting{road: &road{m: m}}
	_, l := opened(t, c, Options{Timeout: patience})
	rival, _ := opened(t, &road{m: m}, Options{Timeout: patience})
	c.mu.Lock()
	c.muted = true
	c.mu.Unlock()
	const n = 3 * shownAtOnce
	held := make([]lock.Request, n)
	for i := range held {
		held[i] = mustAsk(t, l, lock.Resource(strconv.Itoa(i)))
	}
	var once atomic.Bool
	after := func(x Txn) {
		if len(x.Then) == 0 || x.Then[0].Key != beatKey(l.id) || once.Swap(true) {
			return
		}
		for _, q := range held {
			o := &op{kind: opForce, id: string(q.ID), lease: l.id}
			if rival.submit(q.Resource, o); o.err != nil {
				t.Error(o.err)
			}
		}
	}
	c.after.Store(&after)
	for _, told := range []int{0, n} {
		if r, err := l.Renew(t.Context(), nil); err != nil || r.Stranger || len(r.Revoked) != told || !once.Load() {
			t.Errorf("%d are told, want %d, %v; a stranger: %t", len(r.Revoked), told, err, r.Stranger)
		}
	}
}

// A hold is forced at the moment at which its downgrade is answered. Whichever is first, no heartbeat looks for it.
func TestForcedWhenADowngradeIsAnswered(t *testing.T) {
	const n = 100_000
	l := &lease{id: "l", fresh: make(map[lock.HoldID]fresh), moving: make(map[lock.HoldID]bool), asked: make(map[lock.HoldID]*asked)}
	ref := leasekit.Ref{Resource: "r", ID: "h"}
	var began, forced atomic.Int32
	until := func(number *atomic.Int32, i int32) {
		for number.Load() < i {
			runtime.Gosched()
		}
	}
	go func() {
		for i := range int32(n) {
			until(&began, i+1)
			l.forget(ref.ID)
			forced.Store(i + 1)
		}
	}()
	for i := range int32(n) {
		l.granted(ref.Resource, ref.ID, 1, 1)
		l.moves(ref.ID)
		began.Store(i + 1)
		l.moved(ref, &op{version: 2}, true)
		until(&forced, i+1)
		if len(l.fresh)+len(l.moving) > 0 {
			t.Errorf("%d are looked for, and %d are being downgraded", len(l.fresh), len(l.moving))
			began.Store(n)
			until(&forced, n)
			return
		}
	}
}
