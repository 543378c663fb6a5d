package caslock

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/locksidecar/locksidecar/lock"
)

func detach(t *testing.T, l lock.Lease, q lock.Request, ttl time.Duration) lock.HandleKey {
	t.Helper()
	key := lock.NewSecret().Key()
	if err := l.(lock.Detacher).Detach(t.Context(), q.Resource, q.ID, key, ttl); err != nil {
		t.Fatal(err)
	}
	return key
}

// attaching is a request for the hold of a key.
func attaching(r lock.Resource, key lock.HandleKey) lock.Request {
	q := request(r)
	q.Handle = key
	return q
}

// nothingLeft waits until nothing is left of any lock.
func nothingLeft(t *testing.T, m *memory) {
	t.Helper()
	eventually(t, "nothing is left", func() bool {
		n := 0
		for _, f := range m.do(Txn{Read: []Range{all("own/", 0), all(duePrefix, 0), all(linePrefix, 0), all(headPrefix, 0), all(handlePrefix, 0)}}).Reads {
			n += f.Count
		}
		return n == 0
	})
}

// The time of a detached hold goes on while it goes from lease to lease, and whatever wall clocks say.
func TestDetachedWhateverClocksDo(t *testing.T) {
	for what, wrong := range map[string]time.Duration{"right": 0, "a day ahead": 24 * time.Hour, "a day behind": -24 * time.Hour} {
		t.Run(what, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				m := newMemory()
				_, _, endKeeper := clocked(t, m, 0)
				_, l, endHolder := clocked(t, m, wrong)
				q := request("r")
				mustHave(t, l, q)
				key := detach(t, l, q, time.Hour)
				b, worker, endWorker := clocked(t, m, wrong)
				time.Sleep(10 * time.Second)
				endHolder()
				g, err := worker.Acquire(t.Context(), attaching("r", key))
				if left := g.Until - b.clock(); err != nil || left < time.Hour-10*time.Second || left > time.Hour {
					t.Errorf("attached for another %s, %v", left, err)
				}
				time.Sleep(20 * time.Minute)
				endKeeper()
				time.Sleep(10 * time.Minute)
				b, left, _ := clocked(t, m, wrong)
				endWorker()
				time.Sleep(10 * time.Second)
				g, err = left.Acquire(t.Context(), attaching("r", key))
				if left := g.Until - b.clock(); err != nil || left < time.Hour/2-20*time.Second || left > time.Hour/2+20*time.Second {
					t.Errorf("attached again for another %s, %v", left, err)
				}
				if err := left.Release(t.Context(), "r", g.ID); err != nil {
					t.Error(err)
				}
				const passed = 30*time.Minute + 20*time.Second
				if took := takenFor(t, left, "r"); took < time.Hour-passed || took > time.Hour-passed+30*time.Second {
					t.Errorf("it was free %s after it was detached, want an hour", took+passed)
				}
				if _, err := left.Acquire(t.Context(), attaching("r", key)); !errors.Is(err, lock.ErrNoHandle) {
					t.Errorf("attached when it was over: %v", err)
				}
				nothingLeft(t, m)
			})
		})
	}
}

// The end of a detached hold is moved. Who has counted the time before ends nothing by that.
func TestExtendedWhileOthersCount(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := newMemory()
		_, l, _ := clocked(t, m, 0)
		b, other, _ := clocked(t, m, 0)
		q := request("r")
		mustHave(t, l, q)
		key := detach(t, l, q, time.Minute)
		waits := make(chan error, 1)
		ctx, cancel := context.WithCancel(t.Context())
		go func() { // it counts, too
			_, err := other.Acquire(ctx, request("r"))
			waits <- err
		}()
		time.Sleep(30 * time.Second)
		if _, err := b.SetHandle(t.Context(), "r", key, time.Hour); err != nil {
			t.Fatal(err)
		}
		time.Sleep(59 * time.Minute)
		g, err := l.Acquire(t.Context(), attaching("r", key))
		if err != nil {
			t.Fatalf("it was to last for an hour: %v", err)
		}
		time.Sleep(10 * time.Minute) // the time is over, and somebody has it
		cancel()
		if err := <-waits; !errors.Is(err, context.Canceled) {
			t.Errorf("broken law: granted beside what is attached: %v", err)
		}
		if err := l.Release(t.Context(), "r", g.ID); err != nil {
			t.Error(err)
		}
		if isTaken(t, other, "r") {
			t.Error("its time is over")
		}
		nothingLeft(t, m)
	})
}

// lagging is a road on which each request takes a while.
type lagging struct{ *road }

func (r lagging) Do(ctx context.Context, x Txn) (Result, error) {
	time.Sleep(10 * time.Millisecond)
	return r.road.Do(ctx, x)
}

// Two move the end of a hold through one sidecar, and one transaction carries out both. What the last one has set counts.
func TestTwoMoveTheEndAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := newMemory()
		_, l, _ := clocked(t, m, 0)
		q := request("r")
		mustHave(t, l, q)
		key := detach(t, l, q, time.Minute)
		born := time.Now().Add(-time.Hour)
		r, writes := &road{m: m}, 0
		r.copy = func(x Txn) bool {
			if len(x.Then) > 0 {
				writes++
			}
			return false
		}
		b := Open(lagging{r}, Options{Timeout: time.Second, Clock: func() time.Duration { return time.Since(born) }})
		defer b.Close()
		var movers sync.WaitGroup
		for _, ttl := range []time.Duration{2 * time.Second, time.Hour} {
			movers.Go(func() {
				if _, err := b.SetHandle(t.Context(), "r", key, ttl); err != nil {
					t.Error(err)
				}
			})
			time.Sleep(time.Millisecond) // they come one after the other
		}
		time.Sleep(5 * time.Millisecond)
		b.submit("r", &op{kind: opSettle}) // while this is under way
		movers.Wait()
		if writes != 1 {
			t.Errorf("%d transactions have moved it, want one", writes)
		}
		time.Sleep(time.Minute)
		if !isTaken(t, l, "r") {
			t.Error("broken law: it is over, and was to last for an hour")
		}
		time.Sleep(time.Hour)
		nothingLeft(t, m)
	})
}

// Somebody has moved the end of a hold, and then it is detached again, as before: a request was repeated. That changes nothing.
func TestDetachedAgainAfterItsEndWasMoved(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := newMemory()
		b, l, _ := clocked(t, m, 0)
		q := request("r")
		mustHave(t, l, q)
		key := detach(t, l, q, 2*time.Second)
		if _, err := b.SetHandle(t.Context(), "r", key, time.Hour); err != nil {
			t.Fatal(err)
		}
		if err := l.(lock.Detacher).Detach(t.Context(), q.Resource, q.ID, key, 2*time.Second); err != nil {
			t.Error(err)
		}
		time.Sleep(time.Minute)
		if !isTaken(t, l, "r") {
			t.Error("broken law: it is over, and was to last for an hour")
		}
		time.Sleep(time.Hour)
		nothingLeft(t, m)
	})
}

// Whoever moves the end of a hold again and again, and takes it over and leaves it, has it counted once, and not at all when it is gone.
func TestEachIsCountedOnce(t *testing.T) {
	m := newMemory()
	b, l, _, _ := sidecar(t, m, time.Minute)
	counted := func(want int) {
		t.Helper()
		if got := b.lapses.Len(); got != want || len(b.lapsing) != want {
			t.Errorf("%d and %d times are counted, want %d", got, len(b.lapsing), want)
		}
	}
	q := request("r")
	mustHave(t, l, q)
	key := detach(t, l, q, time.Hour)
	for range 5 {
		if _, err := b.SetHandle(t.Context(), "r", key, lock.MaxDetach); err != nil {
			t.Fatal(err)
		}
		g, err := l.Acquire(t.Context(), attaching("r", key))
		if err == nil {
			err = l.Release(t.Context(), "r", g.ID)
		}
		if err != nil {
			t.Fatal(err)
		}
		counted(1)
	}
	if _, err := b.SetHandle(t.Context(), "r", key, 0); err != nil {
		t.Fatal(err)
	}
	counted(0)
}

// Each request that changes something is carried out a second time, later: after its lease has given it up, and others have done
// something. It changes nothing any more.
func TestLateCopiesOfDetached(t *testing.T) {
	m := newMemory()
	b, l, r, _ := sidecar(t, m, time.Minute)
	other, rival, _, _ := sidecar(t, m, time.Minute)
	var mu sync.Mutex
	var copies []Txn
	r.mu.Lock()
	r.copy = func(x Txn) bool {
		for _, c := range x.If {
			if c.Key == headKey("r") && len(x.Then) > 0 {
				mu.Lock()
				copies = append(copies, x)
				mu.Unlock()
			}
		}
		return false
	}
	r.mu.Unlock()
	again := func(after string) {
		t.Helper()
		mu.Lock()
		defer mu.Unlock()
		for _, x := range copies {
			if m.do(x).Done {
				t.Errorf("broken law: a late copy was carried out after %s", after)
			}
		}
	}
	q := request("r")
	mustHave(t, l, q)
	key := detach(t, l, q, time.Hour)
	again("a detach")
	g, err := l.Acquire(t.Context(), attaching("r", key))
	if err != nil {
		t.Fatal(err)
	}
	again("an attach")
	if err := l.Release(t.Context(), "r", g.ID); err != nil {
		t.Fatal(err)
	}
	again("the end of an attached one")
	if _, err := b.SetHandle(t.Context(), "r", key, time.Hour/2); err != nil {
		t.Fatal(err)
	}
	again("a move of the end")
	if _, err = rival.Acquire(t.Context(), attaching("r", key)); err != nil {
		t.Fatal(err)
	}
	again("an attach elsewhere")
	if _, err := b.SetHandle(t.Context(), "r", key, 0); err != nil {
		t.Fatal(err)
	}
	again("the end by its handle")
	next := request("r")
	mustHave(t, rival, next)
	again("another hold")
	if st, err := other.Get(t.Context(), "r"); err != nil || len(st.Holders) != 1 || st.Holders[0].ID != next.ID {
		t.Errorf("%+v, %v", st, err)
	}
	if err := rival.Release(t.Context(), "r", next.ID); err != nil {
		t.Error(err)
	}
	if news, err := rival.Heartbeat(t.Context()); err != nil || len(news) != 1 || news[0].Kind != lock.Revoked || news[0].Until != 0 {
		t.Errorf("who had it attached is told %+v, %v", news, err)
	}
	nothingLeft(t, m)
}

// Many attach the same hold at the same time. One has it in the end, and the others are told.
func TestAttachedByMany(t *testing.T) {
	m := newMemory()
	_, l, _, _ := sidecar(t, m, time.Minute)
	q := request("r")
	mustHave(t, l, q)
	key := detach(t, l, q, time.Hour)
	const n = 12
	var granted atomic.Int64
	var done sync.WaitGroup
	for i := range n {
		_, worker, _, _ := sidecar(t, m, time.Minute)
		for range 1 + i%2 { // two of one sidecar
			done.Go(func() {
				switch _, err := worker.Acquire(t.Context(), attaching("r", key)); {
				case err == nil:
					granted.Add(1)
				case !errors.Is(err, lock.ErrNotHolder): // taken over before it was answered
					t.Error(err)
				}
			})
		}
	}
	done.Wait()
	if granted.Load() == 0 {
		t.Error("nobody is told that they have it")
	}
	if h := decode[head](m.do(Txn{Read: []Range{{Key: headKey("r")}}}).Reads[0].KVs[0]); h.Holders != 2 {
		t.Errorf("the head has %d places, want that of who has it, and that of what is kept", h.Holders)
	}
	if line := m.do(Txn{Read: []Range{all(lineOf("r"), 0)}}).Reads[0]; line.Count != 2 {
		t.Errorf("the line has %d places", line.Count)
	}
	b := Open(&road{m: m}, Options{Timeout: time.Second})
	defer b.Close()
	if _, err := b.SetHandle(t.Context(), "r", key, 0); err != nil {
		t.Error(err)
	}
	if isTaken(t, l, "r") {
		t.Error("it has ended")
	}
}

// A hold is attached while the keeper is about to end it, or to count its time, as it was before. Its handle stays.
func TestAttachedWhileItIsCounted(t *testing.T) {
	m := newMemory()
	b, l, _, _ := sidecar(t, m, time.Minute)
	q := request("r")
	mustHave(t, l, q)
	key := detach(t, l, q, time.Hour)
	due := m.do(Txn{Read: []Range{all(duePrefix, 1)}}).Reads[0].KVs
	g, err := l.Acquire(t.Context(), attaching("r", key))
	if err != nil {
		t.Fatal(err)
	}
	kv, _ := m.do(Txn{Read: []Range{{Key: clockKey}}}).Reads[0].one()
	now, _, _, err := b.tick(t.Context(), kv)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := b.countOnce(t.Context(), now, due); err != nil {
		t.Fatal(err)
	}
	o := &op{kind: opLapse, id: string(q.ID), lease: string(l.ID()), key: string(key), ends: 1}
	if b.submit("r", o); o.err != nil {
		t.Fatal(o.err)
	}
	if d, err := b.SetHandle(t.Context(), "r", key, 0); err != nil || d.ID != g.ID {
		t.Errorf("its handle is worth %+v, %v", d, err)
	}
}

// An older sidecar ends what is detached, as a hold, and knows nothing of its handle. That is worth nothing then, and in the end all of
// it is gone.
func TestDetachedThatAnOlderSidecarEnds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := newMemory()
		b, l, _ := clocked(t, m, 0)
		q := request("r")
		mustHave(t, l, q)
		key := detach(t, l, q, time.Hour)
		k := keptOf(m.do(Txn{Read: []Range{{Key: keptKey("r", string(q.ID))}}}).Reads[0].KVs[0])
		m.do(Txn{Then: []Write{
			{Key: headKey("r"), Delete: true}, {Key: lineKey("r", k.Seq), Delete: true}, {Key: keptKey("r", string(q.ID)), Delete: true},
			{Key: forcedKey(keptLease, "r", string(q.ID)), Value: encode(forced{})},
		}})
		if _, err := b.SetHandle(t.Context(), "r", key, time.Hour); !errors.Is(err, lock.ErrNoHandle) {
			t.Errorf("its end was moved: %v", err)
		}
		if _, err := l.Acquire(t.Context(), attaching("r", key)); !errors.Is(err, lock.ErrNoHandle) {
			t.Errorf("it was attached: %v", err)
		}
		if isTaken(t, l, "r") {
			t.Error("it has ended")
		}
		time.Sleep(2 * time.Hour)
		nothingLeft(t, m)

		// It does so when its time was counted already.
		q = request("r")
		mustHave(t, l, q)
		key = detach(t, l, q, time.Hour)
		time.Sleep(time.Minute)
		k = keptOf(m.do(Txn{Read: []Range{{Key: keptKey("r", string(q.ID))}}}).Reads[0].KVs[0])
		m.do(Txn{Then: []Write{{Key: headKey("r"), Delete: true}, {Key: lineKey("r", k.Seq), Delete: true}, {Key: keptKey("r", string(q.ID)), Delete: true}}})
		if _, err := l.Acquire(t.Context(), attaching("r", key)); !errors.Is(err, lock.ErrNoHandle) {
			t.Errorf("it was attached: %v", err)
		}
		time.Sleep(2 * time.Hour)
		nothingLeft(t, m)
	})
}
