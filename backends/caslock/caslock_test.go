package caslock

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/locksidecar/locksidecar/backends/leasekit"
	"github.com/locksidecar/locksidecar/lock"
)

const patience = time.Minute

func eventually(t *testing.T, what string, f func() bool) {
	t.Helper()
	for end := time.Now().Add(patience); !f(); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("waited %s in vain until %s", patience, what)
		}
	}
}

// sidecar opens a backend with a lease of its own. silence has none of its requests answered
// any more.
func sidecar(t *testing.T, m *memory, ttl time.Duration) (b *Backend, l lock.Lease, r *road, silence func()) {
	t.Helper()
	r = &road{m: m}
	b = Open(r, Options{Timeout: 100 * time.Millisecond})
	l, err := b.OpenLease(t.Context(), lock.LeaseOptions{TTL: ttl, Sidecar: t.Name()})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = l.Close(context.Background()) // it may be silent
		if err := b.Close(); err != nil {
			t.Error(err)
		}
	})
	return b, l, r, func() {
		r.mu.Lock()
		defer r.mu.Unlock()
		r.deaf = make(chan struct{})
	}
}

func request(r lock.Resource) lock.Request {
	return lock.Request{ID: lock.NewHoldID(), Resource: r, Mode: lock.Exclusive}
}

// A request that was given up because it had no answer arrives once more. It changes nothing.
func TestLateCopy(t *testing.T) {
	m := newMemory()
	b, kit, r, _ := sidecar(t, m, time.Minute)
	l := b.leases[string(kit.ID())]
	for what, grants := range map[string]bool{"of a grant": true, "of a place in the queue": false} {
		name := lock.Resource(what)
		if !grants {
			if _, err := kit.Acquire(t.Context(), request(name)); err != nil {
				t.Fatal(err)
			}
		}
		var copied Txn
		r.mu.Lock()
		r.copy = func(x Txn) bool {
			about := slices.ContainsFunc(x.Then, func(w Write) bool { return w.Key == headKey(name) }) // and no one of the lease's own
			if about {
				copied = x
			}
			return about // and is not carried out now
		}
		r.mu.Unlock()
		q := request(name)
		if _, err := l.Ask(t.Context(), q); !errors.Is(err, lock.ErrUnavailable) {
			t.Fatalf("%s: %v", what, err)
		}
		r.mu.Lock()
		r.copy = nil
		r.mu.Unlock()
		if _, err := l.Withdraw(t.Context(), leasekit.Withdrawal{Ref: leasekit.Ref{Resource: name, ID: q.ID}, Unsure: true}); err != nil {
			t.Fatal(err)
		}
		if m.do(copied).Done {
			t.Errorf("a late copy %s was carried out", what)
		}
	}
}

// A sidecar reads that a lock is free. Before it writes, another takes the lock and lets it go, so that
// the write is carried out as if nothing had happened. Its fence is larger all the same, and everybody reads the
// same one: who was granted, who asks again, and who looks.
func TestFenceOfALateWrite(t *testing.T) {
	m := newMemory()
	b, late, r, _ := sidecar(t, m, time.Minute)
	_, other, _, _ := sidecar(t, m, time.Minute)
	var between lock.Grant
	r.mu.Lock()
	r.copy = func(x Txn) bool {
		if len(x.Then) > 0 && between.ID == "" {
			q := request("r")
			var err error
			if between, err = other.Acquire(t.Context(), q); err == nil {
				err = other.Release(t.Context(), "r", q.ID)
			}
			if err != nil {
				t.Errorf("the other one: %v", err)
			}
		}
		return false
	}
	r.mu.Unlock()
	q := request("r")
	g, err := late.Acquire(t.Context(), q)
	if err != nil || between.ID == "" || g.Fence <= between.Fence {
		t.Fatalf("broken law: fence %d after %d: %v", g.Fence, between.Fence, err)
	}
	again, err := late.Acquire(t.Context(), q)
	if err != nil || again.Fence != g.Fence {
		t.Errorf("asked again: fence %d, %v; want %d", again.Fence, err, g.Fence)
	}
	if err := late.Downgrade(t.Context(), "r", q.ID); err != nil {
		t.Error(err)
	}
	if st, err := b.Get(t.Context(), "r"); err != nil || len(st.Holders) != 1 || st.Holders[0].Fence != g.Fence {
		t.Errorf("shown is %+v, %v; want fence %d", st, err, g.Fence)
	}
}

// Another server answers a heartbeat, or the same one with less than before: what the two
// sides have is compared.
func TestServerWithOtherData(t *testing.T) {
	for what, change := range map[string]func(*memory){
		"another server": func(m *memory) { m.server = "another" },
		"a backup":       func(m *memory) { m.revision -= 10 },
	} {
		m := newMemory()
		m.revision = 100
		_, l, _, _ := sidecar(t, m, time.Minute)
		q := request("r")
		if _, err := l.Acquire(t.Context(), q); err != nil {
			t.Fatal(err)
		}
		m.mu.Lock()
		for _, k := range append([]string(nil), m.keys...) {
			if k == headKey("r") || k == lineKey("r", 0) || k == entryKey(string(l.ID()), "r", string(q.ID)) {
				m.write(Write{Key: k, Delete: true})
			}
		}
		// Something else is there: the numbers are equal.
		m.write(Write{Key: entryKey(string(l.ID()), "other", "x"), Value: encode(entry{granted: granted{Fence: 1}})})
		change(m)
		m.mu.Unlock()
		news, err := l.Heartbeat(t.Context())
		if err != nil || len(news) != 1 || news[0].Kind != lock.Vanished || news[0].ID != q.ID {
			t.Errorf("%s: %+v, %v; want that the hold has vanished", what, news, err)
		}
	}
}

// The keeper falls silent, and so does another lease. A third one takes the keeper's place, and
// ends both, though nobody waits for what they hold.
func TestKeeperIsReplaced(t *testing.T) {
	m := newMemory()
	_, keeper, _, silence := sidecar(t, m, lock.MinTTL)
	eventually(t, "there is a keeper", func() bool {
		kv, _ := m.do(Txn{Read: []Range{{Key: keeperKey}}}).Reads[0].one()
		return decode[keeperInfo](kv).Lease == string(keeper.ID())
	})
	_, dead, _, _ := sidecar(t, m, lock.MinTTL) // which sends no heartbeat
	if _, err := dead.Acquire(t.Context(), request("r")); err != nil {
		t.Fatal(err)
	}
	silence()
	b, l, _, _ := sidecar(t, m, time.Minute)
	eventually(t, "nothing of them is left", func() bool {
		if _, err := l.Heartbeat(t.Context()); err != nil {
			t.Fatal(err)
		}
		r := m.do(Txn{Read: []Range{all("own/", 0), all(leasePrefix, 0), all(deadPrefix, 0), {Key: keeperKey}}})
		kv, _ := r.Reads[3].one()
		return len(r.Reads[0].KVs) == 0 && len(r.Reads[1].KVs) == 2 && len(r.Reads[2].KVs) == 0 && decode[keeperInfo](kv).Lease == string(l.ID())
	})
	if st, err := b.Get(t.Context(), "r"); err != nil || len(st.Holders) > 0 {
		t.Errorf("%+v, %v", st, err)
	}
}

// Records whose time is over are deleted; one that was written again since then is not.
func TestRecordsAreForgotten(t *testing.T) {
	m := newMemory()
	b, _, _, _ := sidecar(t, m, time.Minute)
	for _, w := range []struct {
		name    lock.Resource
		after   string
		version string
		keep    time.Duration
	}{{"short", "", "v1", lock.MinKeep}, {"again", "", "v1", lock.MinKeep}, {"again", "v1", "v2", time.Hour}} {
		if err := b.WriteRecord(t.Context(), w.name, w.after, lock.Record{Version: w.version}, w.keep); err != nil {
			t.Fatal(err)
		}
	}
	eventually(t, "the record is deleted, and the key of its end", func() bool {
		r := m.do(Txn{Read: []Range{all(recordPrefix, 0), all(endPrefix, 0)}})
		return len(r.Reads[0].KVs) == 1 && len(r.Reads[1].KVs) == 1
	})
	if rec, err := b.ReadRecord(t.Context(), "again"); err != nil || rec.Version != "v2" {
		t.Errorf("%+v, %v", rec, err)
	}
}

// Records are deleted as fast as they can come to their ends: the keeper does not wait until its
// next round while there are more.
func TestManyRecordsAreForgotten(t *testing.T) {
	m := newMemory()
	for i := range 3000 { // with one round in two seconds that is two minutes
		name := lock.Resource(fmt.Sprint(i))
		rec := record{Version: "v1", Ends: int64(1 + i/3)}
		m.do(Txn{Then: []Write{{Key: recordKey(name), Value: encode(rec)}, {Key: endKey(name, rec.Ends)}}})
	}
	sidecar(t, m, time.Minute)
	eventually(t, "no record is left", func() bool {
		r := m.do(Txn{Read: []Range{all(recordPrefix, 0), all(endPrefix, 0)}})
		return len(r.Reads[0].KVs)+len(r.Reads[1].KVs) == 0
	})
}

// A heartbeat acknowledges forced releases. Others who come and go at these locks all the time do not hold it
// up, and many take a few requests. Where one of them has changed meanwhile, the others are acknowledged, and that one
// as it is now.
func TestHeartbeatBesideBusyLocks(t *testing.T) {
	m := newMemory()
	b, kit, r, _ := sidecar(t, m, time.Minute)
	rival, busy, _, _ := sidecar(t, m, time.Minute)
	l := b.leases[string(kit.ID())]
	const n = 5 * ackedTogether
	force := func(ref leasekit.Ref, grace time.Duration) {
		o := &op{kind: opForce, id: string(ref.ID), lease: l.id, grace: grace}
		if rival.submit(ref.Resource, o); o.err != nil {
			t.Error(o.err)
		}
	}
	for i := range n {
		q := request(lock.Resource(fmt.Sprintf("r%04d", i)))
		if _, err := kit.Acquire(t.Context(), q); err != nil {
			t.Fatal(err)
		}
		force(leasekit.Ref{Resource: q.Resource, ID: q.ID}, time.Hour)
	}
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	news, err := l.Renew(ctx, nil)
	if err != nil || len(news.Revoked) != n {
		t.Fatalf("%d forced releases, %v", len(news.Revoked), err)
	}
	changed := news.Revoked[n/2]
	var requests, writes atomic.Int32
	r.mu.Lock()
	r.copy = func(x Txn) bool {
		if slices.ContainsFunc(x.Read, func(r Range) bool { return strings.HasPrefix(r.Key, forcedOf(l.id)) }) ||
			slices.ContainsFunc(x.Then, func(w Write) bool { return strings.HasPrefix(w.Key, forcedOf(l.id)) }) {
			requests.Add(1) // beside it, it looks after leases
		}
		for _, c := range x.If {
			if name, is := strings.CutPrefix(c.Key, headPrefix); is && len(x.Then) > 0 { // somebody is faster
				ref := leasekit.Ref{Resource: lock.Resource(name), ID: lock.NewHoldID()}
				o := &op{kind: opAsk, id: string(ref.ID), lease: string(busy.ID()), place: place{ID: string(ref.ID), Lease: string(busy.ID()), Mode: lock.Exclusive}}
				rival.submit(ref.Resource, o)
			}
		}
		for _, w := range x.Then {
			if w.Key == forcedKey(l.id, changed.Resource, string(changed.ID)) && writes.Add(1) == 1 {
				force(changed.Ref, time.Minute)
			}
		}
		return false
	}
	r.mu.Unlock()
	if _, err := l.Renew(ctx, news.Revoked); err != nil {
		t.Fatalf("the heartbeat: %v", err)
	}
	if most := int32(2*n/ackedTogether + 2*ackedTogether + 3); requests.Load() > most {
		t.Errorf("%d requests, want at most %d", requests.Load(), most)
	}
	news, err = l.Renew(ctx, nil)
	if err != nil || len(news.Revoked) != 1 || news.Revoked[0].Ref != changed.Ref || news.Revoked[0].Grace != time.Minute {
		t.Errorf("to be acknowledged still: %+v, %v", news.Revoked, err)
	}
}

// A sidecar closes its lease, and ends before it has taken out what the lease had. Who forces that to be released is told that
// nobody has it.
func TestForceOfWhatTheDeadHaveLeft(t *testing.T) {
	m := newMemory()
	b, dead, r, _ := sidecar(t, m, time.Minute)
	held, taken, waits := request("held"), request("taken"), request("taken")
	for _, q := range []lock.Request{held, taken, waits} {
		if _, err := b.leases[string(dead.ID())].Ask(t.Context(), q); err != nil {
			t.Fatal(err)
		}
	}
	over := false // r.mu guards it
	r.mu.Lock()
	r.copy = func(x Txn) (lost bool) {
		lost = over
		over = over || slices.ContainsFunc(x.Then, func(w Write) bool { return w.Delete && w.Key == leaseKey(string(dead.ID())) })
		return lost
	}
	r.mu.Unlock()
	if err := dead.Close(t.Context()); err == nil {
		t.Error("what the lease had was taken out")
	}
	admin := Open(&road{m: m}, Options{Timeout: time.Second})
	defer admin.Close()
	for _, q := range []lock.Request{held, waits} {
		for _, grace := range []time.Duration{0, time.Hour} {
			if err := admin.ForceRelease(t.Context(), q.Resource, q.ID, grace); !errors.Is(err, lock.ErrNotHolder) {
				t.Errorf("%s: %v; want ErrNotHolder", q.Resource, err)
			}
		}
	}
}

// Who waits is granted the lock, and somebody forces the release of that at once, before its sidecar knows of either. Who asks again is told that it
// was taken away: it does not come into the queue once more, as one whose release is forced.
func TestForcedBeforeItsGrantIsKnown(t *testing.T) {
	m := newMemory()
	b, kit, r, _ := sidecar(t, m, time.Minute)
	l := b.leases[string(kit.ID())]
	admin, rival, _, _ := sidecar(t, m, time.Minute)
	r.mu.Lock()
	r.muted = true
	r.mu.Unlock()
	theirs, q := request("r"), request("r")
	mustHave(t, rival, theirs)
	if a, err := l.Ask(t.Context(), q); err != nil || a.Granted {
		t.Fatalf("behind another: %+v, %v", a, err)
	}
	if err := rival.Release(t.Context(), "r", theirs.ID); err != nil {
		t.Fatal(err)
	}
	if err := admin.ForceRelease(t.Context(), "r", q.ID, 0); err != nil {
		t.Fatal(err)
	}
	if a, err := l.Ask(t.Context(), q); !errors.Is(err, lock.ErrNotHolder) {
		t.Errorf("its release was forced: %+v, %v", a, err)
	}
	if news, err := kit.Heartbeat(t.Context()); err != nil || len(news) > 0 {
		t.Errorf("the heartbeat tells %+v, %v", news, err)
	}
	nothingLeft(t, m)
}

// Somebody deletes the head of a lock by hand, and another one takes it. Who has waited before is answered all the same when it asks again.
func TestHeadDeletedByHand(t *testing.T) {
	m := newMemory()
	b, kit, r, _ := sidecar(t, m, time.Minute)
	l := b.leases[string(kit.ID())]
	_, rival, _, _ := sidecar(t, m, time.Minute)
	mustHave(t, rival, request("warm"))
	ask := func(q lock.Request, granted bool) {
		t.Helper()
		if a, err := l.Ask(t.Context(), q); err != nil || a.Granted != granted {
			t.Fatalf("%+v, %v; want granted: %t", a, err, granted)
		}
	}
	first, second, third, waiting := request("r"), request("r"), request("r"), request("r")
	ask(first, true)
	ask(second, false)
	ask(third, false)
	ask(waiting, false)
	for _, q := range []lock.Request{first, second} {
		if err := kit.Release(t.Context(), "r", q.ID); err != nil {
			t.Fatal(err)
		}
	}
	ask(third, true)
	m.do(Txn{Then: []Write{{Key: headKey("r"), Delete: true}}})
	mustHave(t, rival, request("r"))
	ask(request("r"), false) // which stands in front of the third now
	requests := 0
	r.mu.Lock()
	r.copy = func(x Txn) bool {
		if len(x.Read) > 0 && x.Read[0].Key == headKey("r") {
			requests++
		}
		return false
	}
	r.mu.Unlock()
	ctx, cancel := context.WithTimeout(t.Context(), patience/10)
	defer cancel()
	if a, err := l.Ask(ctx, waiting); err != nil || a.Granted || requests > 1 {
		t.Errorf("asked again: %+v, %v, after %d tries", a, err, requests)
	}
}

// A heartbeat tells of all forced releases, also where there are more than one request reads,
// and most of them are known already.
func TestManyForcedReleases(t *testing.T) {
	m := newMemory()
	b, kit, _, _ := sidecar(t, m, time.Minute)
	l := b.leases[string(kit.ID())]
	for i := range page + 1 {
		f := forced{Grace: time.Hour.Microseconds(), Known: time.Hour.Microseconds()}
		if i == page { // the last one is news
			f.Known = 0
		}
		m.do(Txn{Then: []Write{{Key: forcedKey(l.id, lock.Resource(fmt.Sprintf("r%04d", i)), "x"), Value: encode(f)}}})
	}
	r, err := l.Renew(t.Context(), nil)
	if err != nil || len(r.Revoked) != 1 || r.Revoked[0].Resource != lock.Resource(fmt.Sprintf("r%04d", page)) {
		t.Errorf("%+v, %v", r.Revoked, err)
	}
}
