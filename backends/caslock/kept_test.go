package caslock

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/locksidecar/locksidecar/lock"
)

// clocked opens a sidecar whose wall clock is wrong by so much, in a bubble of fake time. Its lease is renewed until end is called, which
// ends everything of it without a word.
func clocked(t *testing.T, m *memory, wrong time.Duration) (b *Backend, l lock.Lease, end func()) {
	t.Helper()
	born := time.Now().Add(-time.Hour)
	r := &road{m: m}
	b = Open(r, Options{Timeout: 100 * time.Millisecond, Clock: func() time.Duration { return time.Since(born) }})
	b.wall = func() time.Time { return time.Now().Add(wrong) }
	l, err := b.OpenLease(t.Context(), lock.LeaseOptions{TTL: 3 * time.Second, Sidecar: t.Name()})
	if err != nil {
		t.Fatal(err)
	}
	go func() {
		for range l.Events() {
		}
	}()
	ctx, cancel := context.WithCancel(context.Background())
	beats := make(chan struct{})
	go func() {
		defer close(beats)
		for ctx.Err() == nil {
			_, _ = l.Heartbeat(ctx)
			select {
			case <-ctx.Done():
			case <-time.After(time.Second):
			}
		}
	}()
	ended := false
	end = func() {
		if ended {
			return
		}
		ended = true
		r.mu.Lock()
		r.copy = func(Txn) bool { return true } // nothing arrives any more
		r.mu.Unlock()
		cancel()
		<-beats
		_ = l.Close(context.Background())
		if err := b.Close(); err != nil {
			t.Error(err)
		}
	}
	t.Cleanup(end)
	return b, l, end
}

func keeping(r lock.Resource, d time.Duration) lock.Request {
	q := request(r)
	q.MinHold = d
	return q
}

func mustHave(t *testing.T, l lock.Lease, q lock.Request) lock.Grant {
	t.Helper()
	g, err := l.Acquire(t.Context(), q)
	if err != nil {
		t.Fatal(err)
	}
	return g
}

// isTaken tells whether a try is refused.
func isTaken(t *testing.T, l lock.Lease, r lock.Resource) bool {
	t.Helper()
	q := request(r)
	q.Try = true
	_, err := l.Acquire(t.Context(), q)
	if err == nil {
		err = l.Release(t.Context(), r, q.ID)
		if err != nil {
			t.Fatal(err)
		}
		return false
	}
	if !errors.Is(err, lock.ErrHeld) {
		t.Fatal(err)
	}
	return true
}

// takenFor waits until a resource is free, and says for how long it was not.
func takenFor(t *testing.T, l lock.Lease, r lock.Resource) time.Duration {
	t.Helper()
	began := time.Now()
	for isTaken(t, l, r) {
		if time.Since(began) > 100*time.Hour {
			t.Fatal("it is never over")
		}
		time.Sleep(time.Second)
	}
	return time.Since(began)
}

// The sidecar that had the hold dies, and so does the one that keeps the clock. Those that are left count on, whatever their
// wall clocks say.
func TestKeptWhateverClocksDo(t *testing.T) {
	for what, wrong := range map[string]time.Duration{"right": 0, "a day ahead": 24 * time.Hour, "a day behind": -24 * time.Hour} {
		t.Run(what, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				m := newMemory()
				_, _, endKeeper := clocked(t, m, 0)
				_, l, endHolder := clocked(t, m, wrong)
				mustHave(t, l, keeping("r", time.Hour))
				_, left, _ := clocked(t, m, wrong)
				time.Sleep(10 * time.Second)
				endHolder()
				time.Sleep(10 * time.Minute)
				endKeeper()
				time.Sleep(10 * time.Minute)
				const passed = 20*time.Minute + 10*time.Second
				if took := takenFor(t, left, "r"); took < time.Hour-passed || took > time.Hour-passed+30*time.Second {
					t.Errorf("it was free %s after the grant, want an hour", took+passed)
				}
			})
		})
	}
}

// A job that comes once an hour finds nobody's lock whose time is over, though there was no sidecar meanwhile. One that comes too soon
// finds it.
func TestKeptWhileThereIsNobody(t *testing.T) {
	for what, c := range map[string]struct {
		end  func(l lock.Lease, end func())
		late time.Duration
	}{
		"its sidecar ends":  {func(l lock.Lease, _ func()) { time.Sleep(time.Minute); _ = l.Close(context.Background()) }, 30 * time.Second},
		"which was quicker": {func(l lock.Lease, _ func()) { time.Sleep(time.Millisecond); _ = l.Close(context.Background()) }, 30 * time.Second},
		"its sidecar dies":  {func(_ lock.Lease, end func()) { time.Sleep(time.Minute); end() }, time.Hour / 2},
		"and that at once":  {func(_ lock.Lease, end func()) { end() }, time.Hour/2 + 30*time.Second},
	} {
		t.Run(what, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				m := newMemory()
				_, l, gone := clocked(t, m, 0)
				synctest.Wait() // it is the keeper
				mustHave(t, l, keeping("r", time.Hour/2))
				c.end(l, gone)
				time.Sleep(20 * time.Minute)
				_, early, gone := clocked(t, m, 0)
				time.Sleep(30 * time.Second)
				if !isTaken(t, early, "r") {
					t.Error("broken law: it was kept for 20 minutes, want half an hour")
				}
				gone()
				time.Sleep(40 * time.Minute)
				_, late, _ := clocked(t, m, 0)
				if took := takenFor(t, late, "r"); took > c.late {
					t.Errorf("it was free %s after the next job came, an hour later", took)
				}
			})
		})
	}
}

// A sidecar reads what is to be counted, and is frozen. When it goes on, another one keeps the clock: it counts nothing any more.
func TestFrozenKeeperOfTheClock(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := newMemory()
		b, _, _ := clocked(t, m, 0)
		_, l, _ := clocked(t, m, 0)
		mustHave(t, l, keeping("old", time.Hour))
		time.Sleep(10*time.Second + 300*time.Millisecond) // so that nobody else ticks at that moment
		kv, _ := m.do(Txn{Read: []Range{{Key: clockKey}}}).Reads[0].one()
		stale, _, ticked, err := b.tick(t.Context(), kv)
		if err != nil || !ticked {
			t.Fatal(ticked, err)
		}
		kv, _ = m.do(Txn{Read: []Range{{Key: clockKey}}}).Reads[0].one()
		if _, _, ticked, err = b.tick(t.Context(), kv); err != nil || !ticked {
			t.Fatal(ticked, err)
		}
		q := keeping("new", time.Hour)
		m.mu.Lock()
		before := len(m.keys)
		m.mu.Unlock()
		mustHave(t, l, q)
		key := dueKey(0, "new", string(q.ID))
		if done, err := b.countOnce(t.Context(), stale, []KV{{Key: key}}); err != nil || done {
			t.Errorf("it is counted on a clock that was not the last one: %t, %v", done, err)
		}
		time.Sleep(10 * time.Second)
		k := keptOf(m.do(Txn{Read: []Range{{Key: keptKey("new", string(q.ID))}}}).Reads[0].KVs[0])
		if clock := decode[int64](m.do(Txn{Read: []Range{{Key: clockKey}}}).Reads[0].KVs[0]); k.Ends-clock < (time.Hour-30*time.Second).Microseconds() || k.Ends-clock > time.Hour.Microseconds() {
			t.Errorf("it ends at %d, and it is %d", k.Ends, clock)
		}
		if err := b.ForceRelease(t.Context(), "new", q.ID, 0); err != nil {
			t.Error(err)
		}
		time.Sleep(time.Minute)
		m.mu.Lock()
		defer m.mu.Unlock()
		if len(m.keys) > before {
			t.Errorf("something is left: %q", m.keys)
		}
	})
}

// The time of what is kept is counted between what another request reads and what it writes. Nothing is left of it all the same.
func TestCountedWhileItEnds(t *testing.T) {
	m := newMemory()
	b, l, r, _ := sidecar(t, m, time.Minute)
	keeper, _, _, _ := sidecar(t, m, time.Minute)
	q := keeping("r", time.Hour)
	mustHave(t, l, q)
	counted := false
	r.mu.Lock()
	r.copy = func(x Txn) bool {
		if len(x.Then) > 0 && len(x.If) > 0 && x.If[0].Key == headKey("r") && !counted {
			counted = true
			if _, err := keeper.endDue(t.Context()); err != nil {
				t.Error(err)
			}
		}
		return false
	}
	r.mu.Unlock()
	if err := b.ForceRelease(t.Context(), "r", q.ID, 0); err != nil || !counted {
		t.Fatal(err, counted)
	}
	if left := m.do(Txn{Read: []Range{all(duePrefix, 0)}}).Reads[0].KVs; len(left) > 0 {
		t.Errorf("left: %+v", left)
	}
}

// A sidecar finds no other one, an hour after the last one. Before it keeps the clock, another one does, and counts the time of what is
// kept since. The first one does not set the clock any more.
func TestSomebodyElseWasQuicker(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := newMemory()
		_, l, end := clocked(t, m, 0)
		synctest.Wait()
		mustHave(t, l, keeping("before", 2*time.Hour))
		_ = l.Close(context.Background())
		end()
		time.Sleep(time.Hour)
		alone, _, _ := clocked(t, m, 0)
		quick, l, _ := clocked(t, m, 0)
		q := keeping("r", time.Hour/2)
		mustHave(t, l, q)
		if _, err := quick.endDue(t.Context()); err != nil {
			t.Fatal(err)
		}
		if _, err := alone.endDue(t.Context()); err != nil {
			t.Fatal(err)
		}
		if !isTaken(t, l, "r") {
			t.Error("broken law: what is kept is over at once")
		}
		k := keptOf(m.do(Txn{Read: []Range{{Key: keptKey("r", string(q.ID))}}}).Reads[0].KVs[0])
		clock := decode[int64](m.do(Txn{Read: []Range{{Key: clockKey}}}).Reads[0].KVs[0])
		if left := time.Duration(k.Ends-clock) * time.Microsecond; k.Ends == 0 || left < time.Hour/2-time.Second {
			t.Errorf("broken law: it lasts for another %s, want half an hour", left)
		}
	})
}

// overtaken is a road on which something happens before an answer arrives.
type overtaken struct {
	*road
	before func(Txn)
}

func (o overtaken) Do(ctx context.Context, x Txn) (Result, error) {
	r, err := o.road.Do(ctx, x)
	o.before(x)
	return r, err
}

// The news that a request was granted arrives before the answer that it waits. It is kept all the same.
func TestKeptThoughThePushIsQuicker(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := newMemory()
		_, rival, _ := clocked(t, m, 0)
		first, q := request("r"), keeping("r", time.Hour)
		mustHave(t, rival, first)
		released, born := false, time.Now().Add(-time.Hour)
		b := Open(overtaken{&road{m: m}, func(x Txn) {
			for _, w := range x.Then {
				if _, id := refOf(w.Key); id == string(q.ID) && !released {
					released = true
					if err := rival.Release(t.Context(), "r", first.ID); err != nil {
						t.Error(err)
					}
					time.Sleep(time.Millisecond) // the push has arrived
				}
			}
		}}, Options{Timeout: time.Second, Clock: func() time.Duration { return time.Since(born) }})
		l, err := b.OpenLease(t.Context(), lock.LeaseOptions{TTL: lock.MaxTTL})
		if err != nil {
			t.Fatal(err)
		}
		mustHave(t, l, q)
		if !released {
			t.Fatal("nobody has released it meanwhile")
		}
		if err := l.Release(t.Context(), "r", q.ID); err != nil {
			t.Fatal(err)
		}
		if !isTaken(t, rival, "r") {
			t.Error("broken law: nobody is kept out")
		}
		if err := l.Close(context.Background()); err != nil {
			t.Error(err)
		}
		if err := b.Close(); err != nil {
			t.Error(err)
		}
	})
}

// An older sidecar ends the lease of a hold, and takes out what is the lease's. Others are kept out. When it forces a release of what is
// kept, which it takes for a hold that somebody has, that ends.
func TestKeptBesideOlderSidecars(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := newMemory()
		_, l, end := clocked(t, m, 0)
		q := keeping("r", time.Hour)
		mustHave(t, l, q)
		end()
		lease := string(l.ID())
		for _, key := range []string{leaseKey(keptLease), beatKey(keptLease)} {
			older(t, m, key, func(i *leaseInfo) {
				if i.ttl() < 365*24*time.Hour {
					t.Errorf("an older sidecar ends the lease of what is kept after %s", i.ttl())
				}
			})
		}
		e := decode[entry](m.do(Txn{Read: []Range{{Key: entryKey(lease, "r", string(q.ID))}}}).Reads[0].KVs[0])
		older(t, m, headKey("r"), func(h *olderHead) {
			if h.Mode == lock.Exclusive || h.Mode == lock.Shared || h.Holders != 2 {
				t.Errorf("an older sidecar reads %+v, and takes them for what they are not", h)
			}
			h.Holders--
		})
		m.do(Txn{Then: []Write{
			{Key: lineKey("r", e.Seq), Delete: true}, {Key: entryKey(lease, "r", string(q.ID)), Delete: true},
			{Key: leaseKey(lease), Delete: true}, {Key: beatKey(lease), Delete: true},
		}})
		b, l, _ := clocked(t, m, 0)
		if !isTaken(t, l, "r") {
			t.Error("broken law: nobody is kept out")
		}
		if st, err := b.Get(t.Context(), "r"); err != nil || len(st.Holders) != 1 || st.Holders[0].Kept == 0 || string(st.Holders[0].Lease) != lease {
			t.Errorf("%+v, %v", st, err)
		}
		m.do(Txn{Then: []Write{{Key: forcedKey(keptLease, "r", string(q.ID)), Value: encode(forced{Grace: 1e9})}}})
		if took := takenFor(t, l, "r"); took > 30*time.Second {
			t.Errorf("what an older sidecar has forced was free after %s", took)
		}
		time.Sleep(10 * time.Second)
		if left := m.do(Txn{Read: []Range{all("own/", 0), all(duePrefix, 0), all(linePrefix, 0), all(headPrefix, 0)}}); left.Reads[0].Count+left.Reads[1].Count+left.Reads[2].Count+left.Reads[3].Count > 0 {
			t.Errorf("something is left: %+v", left.Reads)
		}
	})
}

// An older sidecar hands the lock on to who waits with a min_hold. The sidecar that is granted it sees to that.
func TestKeptAfterAnOlderSidecarHasGranted(t *testing.T) {
	m := newMemory()
	b, l, _, _ := sidecar(t, m, time.Minute)
	first, waits := request("r"), keeping("r", time.Hour)
	mustHave(t, l, first)
	done := make(chan error, 1)
	go func() {
		_, err := l.Acquire(t.Context(), waits)
		done <- err
	}()
	eventually(t, "it waits", func() bool {
		st, err := b.Get(t.Context(), "r")
		return err == nil && len(st.Waiters) == 1
	})
	lease := string(l.ID())
	base := decode[int64](m.do(Txn{Read: []Range{{Key: baseKey}}}).Reads[0].KVs[0])
	e := decode[entry](m.do(Txn{Read: []Range{{Key: entryKey(lease, "r", string(waits.ID))}}}).Reads[0].KVs[0])
	was := decode[entry](m.do(Txn{Read: []Range{{Key: entryKey(lease, "r", string(first.ID))}}}).Reads[0].KVs[0])
	grants := granted{From: base + 1}
	m.do(Txn{Then: []Write{
		{Key: headKey("r"), Value: encode(olderHead{Mode: lock.Exclusive, Holders: 1, Front: e.Seq + 1, Next: e.Seq + 1})},
		{Key: lineKey("r", was.Seq), Delete: true}, {Key: entryKey(lease, "r", string(first.ID)), Delete: true},
		{Key: lineKey("r", e.Seq), Value: encode(olderPlace{ID: string(waits.ID), Lease: lease, Mode: lock.Exclusive, From: grants.From})},
		{Key: entryKey(lease, "r", string(waits.ID)), Value: encode(entry{Seq: e.Seq, granted: grants})},
	}})
	if err := <-done; err != nil {
		t.Fatal(err)
	}
	if err := l.Release(t.Context(), "r", waits.ID); err != nil {
		t.Fatal(err)
	}
	if !isTaken(t, l, "r") {
		t.Error("broken law: nobody is kept out")
	}
	if err := b.ForceRelease(t.Context(), "r", waits.ID, time.Hour); err != nil {
		t.Error(err)
	}
	if isTaken(t, l, "r") {
		t.Error("a forced release ends it at once")
	}
}
