package caslock

import (
	"errors"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
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

// A request that waits is asked again, and is granted between the two trips of that. The next heartbeat sees whether the store has
// that grant, and not only that the request waits there.
func TestGrantBetweenTwoTrips(t *testing.T) {
	for what, lost := range map[string]bool{"the store has it": false, "the store lacks it": true} {
		t.Run(what, func(t *testing.T) {
			m := newMemory()
			b, kit, r, _ := sidecar(t, m, time.Minute)
			l := b.leases[string(kit.ID())]
			_, rival, _, _ := sidecar(t, m, time.Minute)
			theirs, q := request("r"), request("r")
			mustHave(t, rival, theirs)
			if a, err := l.Ask(t.Context(), q); err != nil || a.Granted {
				t.Fatalf("behind another: %+v, %v", a, err)
			}
			if renewal, err := l.Renew(t.Context(), nil); err != nil || renewal.Stranger {
				t.Fatalf("%+v, %v", renewal, err)
			}
			restore := m.backup()
			between := false
			r.mu.Lock()
			r.copy = func(x Txn) bool {
				if !between && len(x.Then) == 0 && len(x.Read) > 0 && strings.HasPrefix(x.Read[0].Key, lineOf("r")) && x.Read[0].Key != lineOf("r") {
					between = true
					if err := rival.Release(t.Context(), "r", theirs.ID); err != nil {
						t.Error(err)
					}
				}
				return false
			}
			r.mu.Unlock()
			if a, err := l.Ask(t.Context(), q); err != nil || !a.Granted || !between {
				t.Fatalf("granted between two trips (%t): %+v, %v", between, a, err)
			}
			if lost {
				restore()
				m.mu.Lock()
				m.revision += 100
				m.mu.Unlock()
			}
			if renewal, err := l.Renew(t.Context(), nil); err != nil || renewal.Stranger != lost {
				t.Errorf("%+v, %v; a stranger: %t", renewal, err, lost)
			}
		})
	}
}

// The store goes back to a backup, and two heartbeats notice it, as where one acknowledges what another has told. While the first of them
// gives fences a new start, the other one is no proof of what the lease has either: what it has is compared before it counts.
func TestTwoHeartbeatsAfterABackup(t *testing.T) {
	m := newMemory()
	c := &counting{road: &road{m: m}}
	_, l := opened(t, c, Options{Timeout: patience})
	restore := m.backup()
	q := request("r")
	if a, err := l.Ask(t.Context(), q); err != nil || !a.Granted {
		t.Fatalf("%+v, %v", a, err)
	}
	restore()
	reached, goOn := make(chan struct{}), make(chan struct{})
	var stands atomic.Bool
	after := func(x Txn) {
		if len(x.If) == 0 && len(x.Then) == 0 && len(x.Read) == 1 && x.Read[0].Key == baseKey && !stands.Swap(true) {
			close(reached)
			<-goOn
		}
	}
	c.after.Store(&after)
	first := make(chan leasekit.Renewal, 1)
	go func() {
		r, err := l.Renew(t.Context(), nil)
		if err != nil {
			t.Error(err)
		}
		first <- r
	}()
	select {
	case <-reached:
	case <-time.After(patience):
		t.Fatal("the first heartbeat does not give fences a new start")
	}
	second, err := l.Renew(t.Context(), nil)
	if err != nil || !second.Stranger {
		t.Errorf("broken law: a heartbeat beside the one that compares counts: %+v, %v", second, err)
	}
	close(goOn)
	if r := <-first; !r.Stranger {
		t.Errorf("the first: %+v", r)
	}
	if r, err := l.Renew(t.Context(), nil); err != nil || r.Stranger {
		t.Errorf("the next one: %+v, %v", r, err)
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
	none := request("none")
	withoutAnswer(t, l, r, none)
	if _, err := l.Withdraw(t.Context(), leasekit.Withdrawal{Ref: leasekit.Ref{Resource: none.Resource, ID: none.ID}, Unsure: true}); err != nil { // which writes the lease's key
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

// The store goes back to a backup that is younger than the last heartbeat, and others change so much before the next one that its
// revision is larger than before. What was granted after the backup is told as lost with that heartbeat, though the number of holds is the same, and
// though more was granted since the backup came back. The new fences are larger.
func TestBackupSinceTheLastHeartbeat(t *testing.T) {
	const many = shownAtOnce + 10 // more than one request reads
	for what, c := range map[string]struct {
		waits, noticed bool
		beside         int
	}{
		"free in the backup":                        {},
		"free, and more has been granted since":     {beside: many},
		"waiting in the backup":                     {waits: true},
		"waiting in a backup with another revision": {waits: true, noticed: true},
	} {
		t.Run(what, func(t *testing.T) {
			m := newMemory()
			b, l, _, _ := sidecar(t, m, time.Minute)
			_, rival, _, _ := sidecar(t, m, time.Minute)
			old, q, theirs := request("old"), request("r"), request("r")
			if !c.waits {
				mustHave(t, l, old)
			}
			mustHave(t, rival, theirs)
			granted, free := make(chan lock.Grant, 1), func() {
				if err := rival.Release(t.Context(), "r", theirs.ID); err != nil {
					t.Fatal(err)
				}
			}
			ask := func() {
				g, err := l.Acquire(t.Context(), q)
				if err != nil {
					t.Error(err)
				}
				granted <- g
			}
			if c.waits {
				go ask()
				eventually(t, "it waits", func() bool {
					_, waits := m.do(Txn{Read: []Range{{Key: entryKey(string(l.ID()), "r", string(q.ID))}}}).Reads[0].one()
					return waits
				})
			} else {
				free()
			}
			if _, err := l.Heartbeat(t.Context()); err != nil {
				t.Fatal(err)
			}
			restore := m.backup()
			if c.waits {
				free()
			} else {
				ask()
				if err := l.Release(t.Context(), "old", old.ID); err != nil {
					t.Fatal(err)
				}
			}
			g := <-granted
			restore()
			if !c.noticed {
				m.mu.Lock()
				m.revision += 100
				m.mu.Unlock()
			}
			for i := range c.beside {
				mustHave(t, l, request(lock.Resource("beside "+strconv.Itoa(i))))
			}
			b.wall = func() time.Time { return time.Now().Add(time.Minute) }
			news, err := l.Heartbeat(t.Context())
			if err != nil || len(news) != 1 || news[0].Kind != lock.Vanished || news[0].ID != q.ID {
				t.Errorf("%+v, %v; want that the hold has vanished", news, err)
			}
			later := request("later")
			if after := mustHave(t, l, later); time.Duration(after.Fence-g.Fence)*time.Microsecond/lock.FenceRange < 30*time.Second {
				t.Errorf("the fence %d after %d does not begin where it should", after.Fence, g.Fence)
			}
			if news, err := l.Heartbeat(t.Context()); err != nil || len(news) > 0 {
				t.Errorf("the next heartbeat: %+v, %v", news, err)
			}
		})
	}
}

// The store goes back to a backup, and the request that notices it has no answer. The next one tells.
func TestBackupAndALostAnswer(t *testing.T) {
	m := newMemory()
	_, l, way, _ := sidecar(t, m, time.Minute)
	_, rival, _, _ := sidecar(t, m, time.Minute)
	theirs, q := request("r"), request("r")
	old := request("old")
	mustHave(t, l, old)
	mustHave(t, rival, theirs)
	restore := m.backup()
	if err := rival.Release(t.Context(), "r", theirs.ID); err != nil {
		t.Fatal(err)
	}
	mustHave(t, l, q)
	if err := l.Release(t.Context(), "old", old.ID); err != nil {
		t.Fatal(err)
	}
	if _, err := l.Heartbeat(t.Context()); err != nil {
		t.Fatal(err)
	}
	restore()
	m.mu.Lock()
	m.revision += 100
	m.mu.Unlock()
	beats := 0
	way.mu.Lock()
	way.copy = func(x Txn) (lost bool) {
		if !slices.ContainsFunc(x.Then, func(w Write) bool { return w.Key == beatKey(string(l.ID())) }) {
			return false
		}
		if beats++; beats == 2 { // of one heartbeat
			m.do(x)
			return true
		}
		return false
	}
	way.mu.Unlock()
	if _, err := l.Heartbeat(t.Context()); !errors.Is(err, lock.ErrUnavailable) {
		t.Fatalf("a heartbeat without an answer: %v", err)
	}
	news, err := l.Heartbeat(t.Context())
	if err != nil || len(news) != 1 || news[0].Kind != lock.Vanished || news[0].ID != q.ID {
		t.Errorf("%+v, %v; want that the hold has vanished", news, err)
	}
}

// Thousands were granted since the last heartbeat. It looks at some of them, and is not late; the next ones look at the others.
func TestHeartbeatAfterManyGrants(t *testing.T) {
	m := newMemory()
	b, kit, way, _ := sidecar(t, m, time.Minute)
	l := b.leases[string(kit.ID())]
	const n = 2*mostShown + 10
	for i := range n {
		l.granted(lock.Resource(strconv.Itoa(i)), lock.HoldID(strconv.Itoa(i)), int64(i+1), 0)
		key := entryKey(l.id, lock.Resource(strconv.Itoa(i)), strconv.Itoa(i))
		m.mu.Lock()
		m.keys = append(m.keys, key)
		m.kvs[key] = KV{Key: key, Version: int64(i + 1)}
		m.mu.Unlock()
	}
	m.mu.Lock()
	slices.Sort(m.keys)
	m.mu.Unlock()
	var requests atomic.Int32
	way.mu.Lock()
	way.copy = func(x Txn) bool {
		if slices.ContainsFunc(x.Read, func(r Range) bool { return strings.HasPrefix(r.Key, entriesOf(l.id)) && r.End == "" }) {
			requests.Add(1)
		}
		return false
	}
	way.mu.Unlock()
	left := []int{n - mostShown, n - 2*mostShown, 0, 0}
	for i, want := range left {
		requests.Store(0)
		if r, err := l.Renew(t.Context(), nil); err != nil || r.Stranger {
			t.Fatalf("%+v, %v", r, err)
		}
		l.mu.Lock()
		now := len(l.fresh)
		l.mu.Unlock()
		if now != want || requests.Load() > mostShown/shownAtOnce {
			t.Errorf("heartbeat %d made %d requests, and has left %d holds; want %d", i, requests.Load(), now, want)
		}
	}
}

// What a heartbeat has seen, the next one does not look at. What others have taken away is no sign of a backup.
func TestHeartbeatLooksOnce(t *testing.T) {
	m := newMemory()
	b, kit, _, _ := sidecar(t, m, time.Minute)
	other, _, _, _ := sidecar(t, m, time.Minute)
	l := b.leases[string(kit.ID())]
	const n = shownAtOnce + 10
	var qs []lock.Request
	for i := range n {
		qs = append(qs, request(lock.Resource(strconv.Itoa(i))))
		mustHave(t, kit, qs[i])
	}
	if err := kit.Downgrade(t.Context(), qs[0].Resource, qs[0].ID); err != nil {
		t.Fatal(err)
	}
	if err := other.ForceRelease(t.Context(), qs[1].Resource, qs[1].ID, 0); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		if r, err := l.Renew(t.Context(), nil); err != nil || r.Stranger {
			t.Errorf("%+v, %v", r, err)
		}
		if left, _ := l.toShow(); len(left) > 0 {
			t.Errorf("%d holds are looked at again", len(left))
		}
	}
	for _, q := range qs {
		_ = kit.Release(t.Context(), q.Resource, q.ID) // one is gone
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if len(l.fresh) > 0 || len(l.asked) > 0 {
		t.Errorf("%d holds and %d requests are known still", len(l.fresh), len(l.asked))
	}
}

// The store goes back to a backup, and gives a beat the version that an earlier one had. Who has seen that one does not take the lease for one that has
// not been renewed since.
func TestBeatWithAVersionThatComesAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := newMemory()
		_, l := opened(t, &road{m: m}, Options{Timeout: patience})
		_, rival := opened(t, &road{m: m}, Options{Timeout: patience})
		renew := func(l *lease) {
			t.Helper()
			if _, err := l.Renew(t.Context(), nil); err != nil {
				t.Fatal(err)
			}
		}
		next := func(revision int64) {
			m.mu.Lock()
			defer m.mu.Unlock()
			m.revision = revision - 1
		}
		beat := func() leasekit.Beat {
			kv, _ := m.do(Txn{Read: []Range{{Key: beatKey(l.id)}}}).Reads[0].one()
			return beatOf(kv)
		}
		const number = 1000
		restore := m.backup()
		next(number)
		renew(l)
		for range 2 { // as where it waits for a while
			rival.observer.Saw(beat())
			time.Sleep(time.Second)
		}
		renew(rival)
		restore()
		time.Sleep(30 * time.Second)
		renew(rival)
		next(number)
		renew(l)
		if got := beat().Number; got != number {
			t.Fatalf("the beat has the version %d", got)
		}
		rival.observer.Saw(beat())
		time.Sleep(45 * time.Second) // its TTL is a minute
		renew(l)
	})
}
