package caslock

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/locksidecar/locksidecar/backends/leasekit"
	"github.com/locksidecar/locksidecar/lock"
)

// These tests are about guesses, see guess.go, whose answer is lost, that meet a store which went back to a backup, or are
// made beside other requests.

// writesHead tells whether a transaction changes a resource.
func writesHead(x Txn, r lock.Resource) bool {
	return slices.ContainsFunc(x.Then, func(w Write) bool { return w.Key == headKey(r) })
}

// backTo gives what has a store go back to a backup, and the last grant before that, of the lock "r", which nobody has then.
func backTo(t *testing.T, m *memory, b *Backend, l lock.Lease) (g lock.Grant, restore func()) {
	t.Helper()
	first, second := request("r"), request("r")
	mustHave(t, l, first)
	if err := l.Release(t.Context(), "r", first.ID); err != nil {
		t.Fatal(err)
	}
	restore = m.backup()
	m.mu.Lock()
	m.revision += 1000
	m.mu.Unlock()
	g, err := l.Acquire(t.Context(), second)
	if err != nil {
		t.Fatal(err)
	}
	if err := l.Release(t.Context(), "r", second.ID); err != nil {
		t.Fatal(err)
	}
	b.wall = func() time.Time { return time.Now().Add(time.Minute) } // which these changes would take at least
	return g, restore
}

// pushAgain tells a lease of an entry when its request waits, or is granted.
func pushAgain(t *testing.T, l *lease, kv KV) {
	_, id := refOf(strings.TrimPrefix(kv.Key, entriesOf(l.id)))
	for end := time.Now().Add(patience); time.Now().Before(end); time.Sleep(time.Millisecond) {
		l.mu.Lock()
		a := l.asked[lock.HoldID(id)]
		rests := a == nil || a.waits && !a.busy
		l.mu.Unlock()
		if rests {
			m := l.b.store.(*counting).m
			m.mu.Lock()
			defer m.mu.Unlock()
			for w := range m.watches {
				if strings.HasPrefix(kv.Key, w.prefix) {
					w.news <- kv
				}
			}
			return
		}
	}
	t.Errorf("the request neither waits nor is granted in %s", patience)
}

// The store goes back to a backup just before a lock is asked for, and the grant has no answer. Who asks again does not get
// that one, whose fence there may have been before; nor does who asks after somebody whose time was over.
func TestGuessWithoutAnswerAfterABackup(t *testing.T) {
	for what, late := range map[string]bool{"asked again": false, "asked again after one that was not sent": true} {
		t.Run(what, func(t *testing.T) {
			m := newMemory()
			b, kit, r, _ := sidecar(t, m, time.Minute)
			l := b.leases[string(kit.ID())]
			before, restore := backTo(t, m, b, kit)
			q, lost := request("r"), false
			r.mu.Lock()
			r.copy = func(x Txn) bool {
				if !lost && writesHead(x, "r") {
					restore()
					lost = m.do(x).Done
					return true
				}
				return false
			}
			r.mu.Unlock()
			if _, err := l.Ask(t.Context(), q); !errors.Is(err, lock.ErrUnavailable) || !lost {
				t.Fatalf("%v; carried out: %t", err, lost)
			}
			if late {
				if _, err := l.Ask(ended(t), q); !errors.Is(err, leasekit.ErrNotSent) {
					t.Fatal(err)
				}
			}
			a, err := l.Ask(t.Context(), q)
			if err != nil || !a.Granted || a.Fence <= before.Fence {
				t.Errorf("broken law: fence %d after %d, %v", a.Fence, before.Fence, err)
			}
			again, err := l.Ask(t.Context(), q)
			if err != nil || !again.Granted || again.Fence != a.Fence {
				t.Errorf("asked again: %+v, %v; want fence %d", again, err, a.Fence)
			}
		})
	}
}

// ended is a context of an app whose time is over.
func ended(t *testing.T) context.Context {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	return ctx
}

// A request is not sent, because its app's time is over. Of the first one nothing is remembered. What waits in the queue is looked after as before: others of
// its sidecar may ask for it again.
func TestWhatIsKnownOfARequestThatIsNotSent(t *testing.T) {
	m := newMemory()
	b, kit, _, _ := sidecar(t, m, time.Minute)
	l := b.leases[string(kit.ID())]
	mustHave(t, kit, request("r"))
	for what, waits := range map[string]bool{"of one that waits": true, "of a new one": false} {
		q := request("r")
		if waits {
			if a, err := l.Ask(t.Context(), q); err != nil || a.Granted {
				t.Fatalf("%+v, %v", a, err)
			}
		}
		if _, err := l.Ask(ended(t), q); !errors.Is(err, leasekit.ErrNotSent) {
			t.Fatal(err)
		}
		l.mu.Lock()
		if a := l.asked[q.ID]; (a != nil) != waits || waits && (!a.waits || a.busy) {
			t.Errorf("%s: %+v", what, a)
		}
		l.mu.Unlock()
	}
}

// A grant has no answer. Who asks again has it, with its fence: nobody else was let in between.
func TestGuessWithoutAnswer(t *testing.T) {
	m := newMemory()
	b, kit, r, _ := sidecar(t, m, time.Minute)
	l := b.leases[string(kit.ID())]
	mustHave(t, kit, request("warm"))
	q, revision := request("r"), int64(0)
	r.mu.Lock()
	r.copy = func(x Txn) bool {
		if revision == 0 && writesHead(x, "r") {
			revision = m.do(x).Revision
			return true
		}
		return false
	}
	r.mu.Unlock()
	if _, err := l.Ask(t.Context(), q); !errors.Is(err, lock.ErrUnavailable) || revision == 0 {
		t.Fatalf("%v, at %d", err, revision)
	}
	a, err := l.Ask(t.Context(), q)
	kv, _ := m.do(Txn{Read: []Range{{Key: entryKey(l.id, "r", string(q.ID))}}}).Reads[0].one()
	if err != nil || !a.Granted || kv.Version != revision || a.Fence != decode[entry](kv).fence() {
		t.Errorf("%+v, %v; the entry has version %d of %d", a, err, kv.Version, revision)
	}
}

// The store goes back to a backup that has not the hold of a lease, and another takes the lock with the very revision that the hold
// had. When the lease releases it, the other one keeps it.
func TestGuessOfAReleaseAfterABackup(t *testing.T) {
	m := newMemory()
	b, kit, _, _ := sidecar(t, m, time.Minute)
	_, other, _, _ := sidecar(t, m, time.Minute)
	mustHave(t, kit, request("warm"))
	restore := m.backup()
	mine, theirs := request("r"), request("r")
	mustHave(t, kit, mine)
	b.mu.Lock()
	version := b.leases[string(kit.ID())].soles["r"].version
	b.mu.Unlock()
	if version == 0 {
		t.Fatal("it is not known that nobody else is there, so nothing is guessed")
	}
	restore()
	p := place{ID: string(theirs.ID), Lease: string(other.ID()), Mode: lock.Exclusive, granted: granted{From: 1}}
	eventually(t, "another has it with that revision", func() bool {
		m.mu.Lock()
		m.revision = version - 1
		m.mu.Unlock()
		return m.do(Txn{Then: []Write{
			{Key: headKey("r"), Value: encode(head{Mode: lock.Exclusive, Holders: 1, Front: 2, Next: 2})}, {Key: lineKey("r", 1), Value: encode(p)},
			{Key: entryKey(p.Lease, "r", p.ID), Value: encode(entry{Seq: 1, granted: p.granted})},
		}}).Revision == version
	})
	if err := kit.Release(t.Context(), "r", mine.ID); !errors.Is(err, lock.ErrNotHolder) {
		t.Errorf("the release of what the backup has not: %v", err)
	}
	if st, err := b.Get(t.Context(), "r"); err != nil || len(st.Holders) != 1 || st.Holders[0].ID != theirs.ID {
		t.Errorf("broken law: who has the lock: %+v, %v", st, err)
	}
	try := request("r")
	try.Try = true
	if _, err := kit.Acquire(t.Context(), try); !errors.Is(err, lock.ErrHeld) {
		t.Errorf("broken law: two have it: %v", err)
	}
}

// A batch of requests is overtaken, and made again beside the release of a hold, which is marked as given up. That says nothing about another
// release in the batch, of what nobody has.
func TestMarkOfAnother(t *testing.T) {
	m := newMemory()
	b, kit, r, _ := sidecar(t, m, time.Minute)
	_, other, _, _ := sidecar(t, m, time.Minute)
	lease := string(kit.ID())
	mine, theirs := request("r"), request("r")
	mine.Mode, theirs.Mode = lock.Shared, lock.Shared
	mustHave(t, kit, mine)
	overtaken := false
	r.mu.Lock()
	r.copy = func(x Txn) bool {
		if !overtaken && writesHead(x, "r") {
			overtaken = true
			mustHave(t, other, theirs)
		}
		return false
	}
	r.mu.Unlock()
	none := &op{kind: opRemove, id: "none", lease: lease}
	asks := &op{kind: opAsk, id: "asks", lease: lease, place: place{ID: "asks", Lease: lease, Mode: lock.Shared}}
	gives := &op{kind: opRemove, id: string(mine.ID), lease: lease}
	if _, err := b.transact(t.Context(), "r", []*op{none, asks}); !errors.Is(err, errOvertaken) {
		t.Fatalf("the batch was not overtaken: %v", err)
	}
	if _, err := b.transact(t.Context(), "r", []*op{none, asks, gives}); err != nil {
		t.Fatal(err)
	}
	if none.found || !gives.found || !asks.held() {
		t.Errorf("found what nobody has: %t, and what is given up: %t; who asks has it: %t", none.found, gives.found, asks.held())
	}
}

// The lock is asked for at another server, with more changes, that has the same data. The grant is taken back, and the lock is asked for again:
// fences may have to begin elsewhere. What is known of other holds is forgotten.
func TestGuessAtAnotherServer(t *testing.T) {
	m := newMemory()
	b, kit, r, _ := sidecar(t, m, time.Minute)
	l := b.leases[string(kit.ID())]
	mustHave(t, kit, request("warm"))
	grants := 0
	r.mu.Lock()
	r.copy = func(x Txn) bool {
		if writesHead(x, "r") && slices.ContainsFunc(x.Then, func(w Write) bool { return !w.Delete && strings.HasPrefix(w.Key, entriesOf(l.id)) }) {
			if grants++; grants == 1 { // on its way there
				m.mu.Lock()
				m.server = "another"
				m.revision += 1000
				m.mu.Unlock()
			}
		}
		return false
	}
	r.mu.Unlock()
	q := request("r")
	a, err := l.Ask(t.Context(), q)
	r.mu.Lock()
	if err != nil || !a.Granted || grants < 2 {
		t.Errorf("%+v, %v, after %d grants", a, err, grants)
	}
	r.mu.Unlock()
	b.mu.Lock()
	if _, known := l.soles["warm"]; known || len(l.soles) != 1 {
		t.Errorf("of holds beside which there is nobody it is known: %v", l.soles)
	}
	b.mu.Unlock()
	b.fell()
	b.mu.Lock()
	defer b.mu.Unlock()
	if len(l.soles) > 0 || b.base.version > 0 {
		t.Errorf("after a backup it is known where fences begin, at %d, and of holds: %v", b.base.version, l.soles)
	}
}

// A hold that another request has granted by the way is not released by a guess: a store that went back to a backup may do
// the same again, while others stand there.
func TestGrantedByTheWay(t *testing.T) {
	m := newMemory()
	b, kit, _, _ := sidecar(t, m, time.Minute)
	l := b.leases[string(kit.ID())]
	first, second := request("r"), request("r")
	mustHave(t, kit, first)
	if a, err := l.Ask(t.Context(), second); err != nil || a.Granted {
		t.Fatalf("%+v, %v", a, err)
	}
	if err := kit.Release(t.Context(), "r", first.ID); err != nil {
		t.Fatal(err)
	}
	if st, err := b.Get(t.Context(), "r"); err != nil || len(st.Holders) != 1 || st.Holders[0].ID != second.ID {
		t.Fatalf("%+v, %v", st, err)
	}
	b.mu.Lock()
	if len(l.soles) > 0 {
		t.Errorf("its release would be guessed: %v", l.soles)
	}
	b.mu.Unlock()

	s := newState("r", head{Mode: lock.Exclusive, Holders: 1}, 0, 0, nil)
	o := &op{kind: opAsk, id: "asked again", lease: l.id}
	granted := &member{place: place{ID: o.id, Lease: l.id, granted: granted{From: 1}}, seq: 1}
	s.members[o.names()] = granted
	s.write(granted)
	if s.sole([]*op{o}) != nil {
		t.Error("nor is one that was granted where who waits has asked again")
	}
	if o.came = true; s.sole([]*op{o}) != granted {
		t.Error("one that has come now is not known")
	}
}

// A push is as good as an answer for who waits and asks for nothing at that moment. It is not where an answer is under way or was
// lost, nor of a grant that was taken back.
func TestPushThatIsEnough(t *testing.T) {
	m := newMemory()
	b, kit, _, _ := sidecar(t, m, time.Minute)
	l := b.leases[string(kit.ID())]
	for _, c := range []struct {
		a      *asked
		enough bool
	}{
		{nil, true}, // the lease has it, or has given it up
		{&asked{waits: true, above: 9}, true},
		{&asked{waits: true, above: 10}, false},
		{&asked{above: 9}, false},
		{&asked{waits: true, busy: true}, false},
		{&asked{waits: true, open: true}, false},
		{&asked{waits: true, lasts: true}, false},
	} {
		id := lock.NewHoldID()
		if c.a != nil {
			l.mu.Lock()
			l.asked[id] = c.a
			l.mu.Unlock()
		}
		enough := l.grantedByPush(leasekit.Ref{Resource: "r", ID: id}, 10, 1)
		l.mu.Lock()
		if _, fresh := l.fresh[id]; enough != c.enough || fresh != (enough && c.a != nil) || (l.asked[id] == nil) != enough {
			t.Errorf("%+v: enough %t, shown with the next heartbeat %t", c.a, enough, fresh)
		}
		delete(l.asked, id)
		delete(l.fresh, id)
		l.mu.Unlock()
	}
}

// A copy of an earlier request may arrive yet, so the release writes the key of the lease, too, with what it had. No guess does that.
func TestUnsureReleaseIsNotGuessed(t *testing.T) {
	m := newMemory()
	b, kit, r, _ := sidecar(t, m, time.Minute)
	l := b.leases[string(kit.ID())]
	q := request("r")
	withoutAnswer(t, l, r, q)
	if a, err := l.Ask(t.Context(), q); err != nil || !a.Granted {
		t.Fatalf("%+v, %v", a, err)
	}
	read := func() KV {
		kv, _ := m.do(Txn{Read: []Range{{Key: leaseKey(l.id)}}}).Reads[0].one()
		return kv
	}
	before := read()
	w, err := l.Withdraw(t.Context(), leasekit.Withdrawal{Ref: leasekit.Ref{Resource: "r", ID: q.ID}, Unsure: true})
	if after := read(); err != nil || !w.Found || after.Version <= before.Version || string(after.Value) != string(before.Value) {
		t.Errorf("%+v, %v: the lease has %q after %q, in version %d after %d", w, err, after.Value, before.Value, after.Version, before.Version)
	}
}

// A grant is taken back, and its request waits then. A push of that grant is not enough to have the lock; one of the next grant is.
func TestPushOfWhatWasTakenBack(t *testing.T) {
	m := newMemory()
	b, kit, _, _ := sidecar(t, m, time.Minute)
	l := b.leases[string(kit.ID())]
	q := request("r")
	a := l.asks(q)
	o := &op{kind: opAsk, id: string(q.ID), lease: l.id, place: place{ID: string(q.ID), Lease: l.id, Mode: q.Mode}}
	if b.submit("r", o); o.err != nil || o.queued || o.version <= a.above {
		t.Fatalf("%v; it waits: %t; version %d, asked after %d", o.err, o.queued, o.version, a.above)
	}
	if err := l.takeBack(t.Context(), "r", a, o); err != nil {
		t.Fatal(err)
	}
	if st, err := b.Get(t.Context(), "r"); err != nil || len(st.Holders) > 0 {
		t.Errorf("it was taken back: %+v, %v", st, err)
	}
	l.answered(a, &op{queued: true})
	ref := leasekit.Ref{Resource: "r", ID: q.ID}
	if l.grantedByPush(ref, o.version, o.fence()) {
		t.Error("broken law: a late push of it is enough, though others may have the lock")
	}
	if !l.grantedByPush(ref, o.version+1, o.fence()+1) {
		t.Error("a push of the next grant is not enough")
	}
}
