package caslock

import (
	"context"
	"errors"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/locksidecar/locksidecar/backends/leasekit"
	"github.com/locksidecar/locksidecar/lock"
)

// counting counts the transactions of requests that apps make, and does something after one was carried out and before it is answered.
type counting struct {
	*road
	trips atomic.Int64
	after atomic.Pointer[func(Txn)]
}

func (c *counting) Do(ctx context.Context, x Txn) (Result, error) {
	r, err := c.road.Do(ctx, x)
	if len(x.If) > 0 && strings.HasPrefix(x.If[0].Key, headPrefix) || len(x.Read) > 0 && strings.HasPrefix(x.Read[0].Key, headPrefix) {
		c.trips.Add(1)
	}
	if after := c.after.Load(); after != nil {
		(*after)(x)
	}
	return r, err
}

// Who takes a lock that nobody has, and gives it back while nobody waits, needs a trip for each, whatever its name.
func TestTripsOfAPair(t *testing.T) {
	m := newMemory()
	c := &counting{road: &road{m: m}}
	_, l := opened(t, c, Options{Timeout: patience})
	pair := func(name lock.Resource, mode lock.Mode) (acquire, release int64) {
		q := request(name)
		q.Mode = mode
		before := c.trips.Load()
		if a, err := l.Ask(t.Context(), q); err != nil || !a.Granted {
			t.Fatalf("%+v, %v", a, err)
		}
		between := c.trips.Load()
		w, err := l.Withdraw(t.Context(), leasekit.Withdrawal{Ref: leasekit.Ref{Resource: name, ID: q.ID}})
		if err != nil || !w.Found {
			t.Fatalf("%+v, %v", w, err)
		}
		return between - before, c.trips.Load() - between
	}
	pair("first", lock.Exclusive) // with which fences begin
	for _, name := range []lock.Resource{"first", "first", "second"} {
		for _, mode := range []lock.Mode{lock.Exclusive, lock.Shared} {
			if acquire, release := pair(name, mode); acquire != 1 || release != 1 {
				t.Errorf("%s, %v: %d trips to take it, %d to give it back", name, mode, acquire, release)
			}
		}
	}
	if n := len(l.soles) + len(l.b.taken); n != 0 {
		t.Errorf("%d things are remembered of locks that nobody has", n)
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	for key := range m.kvs {
		for _, prefix := range []string{headPrefix, linePrefix, ownPrefix(l.id)} {
			if strings.HasPrefix(key, prefix) {
				t.Errorf("left in the store: %q", key)
			}
		}
	}
}

// Others take the lock, or stand behind it, between a guess and its trip. Nobody holds beside another one, those that wait are
// granted, and who is refused hears of who has it.
func TestWrongGuess(t *testing.T) {
	m := newMemory()
	b, kit, _, _ := sidecar(t, m, time.Minute)
	_, other, _, _ := sidecar(t, m, time.Minute)
	l := b.leases[string(kit.ID())]
	warm := request("warm")
	mustHave(t, kit, warm)

	theirs, try := request("r"), request("r")
	mustHave(t, other, theirs)
	try.Try = true
	var held *lock.HeldError
	if _, err := l.Ask(t.Context(), try); !errors.As(err, &held) || len(held.Status.Holders) != 1 || held.Status.Holders[0].ID != theirs.ID {
		t.Errorf("a try: %v, %+v", err, held)
	}
	if !b.taken["r"] {
		t.Error("that others have it is not remembered, so each try writes")
	}
	if err := other.Release(t.Context(), "r", theirs.ID); err != nil {
		t.Fatal(err)
	}

	mine, waiter := request("r"), request("r")
	mustHave(t, kit, mine) // in two trips
	if _, sole := l.soles["r"]; !sole || b.taken["r"] {
		t.Error("it is not known that nobody else is there")
	}
	granted := make(chan error, 1)
	go func() {
		_, err := other.Acquire(t.Context(), waiter)
		granted <- err
	}()
	eventually(t, "somebody waits", func() bool {
		st, err := b.Get(t.Context(), "r")
		return err == nil && len(st.Waiters) == 1
	})
	if err := kit.Release(t.Context(), "r", mine.ID); err != nil {
		t.Fatal(err)
	}
	if err := <-granted; err != nil {
		t.Error(err)
	}
	if st, err := b.Get(t.Context(), "r"); err != nil || len(st.Holders) != 1 || st.Holders[0].ID != waiter.ID || len(st.Waiters) != 0 {
		t.Errorf("%+v, %v", st, err)
	}
	if err := other.Release(t.Context(), "r", waiter.ID); err != nil {
		t.Error(err)
	}
}

// A release that finds somebody waiting has marked the hold with its first trip: also where the answer is lost and nothing is
// heard of the sidecar any more, who waits is granted at once, and not after the TTL.
func TestWrongGuessWithoutAnswer(t *testing.T) {
	m := newMemory()
	b, kit, r, silence := sidecar(t, m, 10*time.Minute)
	_, other, _, _ := sidecar(t, m, 10*time.Minute)
	warm, mine, waiter := request("warm"), request("r"), request("r")
	mustHave(t, kit, warm)
	mustHave(t, kit, mine)
	if _, sole := b.leases[string(kit.ID())].soles["r"]; !sole {
		t.Fatal("it is not known that nobody else is there, so nothing is guessed")
	}
	granted := make(chan error, 1)
	go func() {
		_, err := other.Acquire(t.Context(), waiter)
		granted <- err
	}()
	eventually(t, "somebody waits", func() bool {
		st, err := b.Get(t.Context(), "r")
		return err == nil && len(st.Waiters) == 1
	})
	silence()
	sent := 0
	r.mu.Lock()
	r.copy = func(x Txn) bool { // only the first trip arrives
		about := len(x.Read) > 0 && x.Read[0].Key == headKey("r") || len(x.If) > 0 && x.If[0].Key == headKey("r")
		if about {
			sent++
		}
		return about && sent > 1
	}
	r.mu.Unlock()
	ctx, cancel := context.WithTimeout(t.Context(), time.Second)
	defer cancel()
	_ = kit.Release(ctx, "r", mine.ID) // nobody answers
	select {
	case err := <-granted:
		if err != nil {
			t.Error(err)
		}
	case <-time.After(patience):
		t.Error("who waits is not granted")
	}
}

// The lease is over, of which the sidecar has not heard: nothing is granted to it.
func TestGuessOfALeaseThatIsOver(t *testing.T) {
	m := newMemory()
	b, kit, _, _ := sidecar(t, m, time.Minute)
	l := b.leases[string(kit.ID())]
	warm := request("warm")
	mustHave(t, kit, warm)
	m.do(Txn{Then: []Write{{Key: leaseKey(l.id), Delete: true}, {Key: beatKey(l.id), Delete: true}}})
	if a, err := l.Ask(t.Context(), request("r")); !errors.Is(err, lock.ErrLeaseLost) {
		t.Errorf("%+v, %v", a, err)
	}
}

// Somebody waits when a hold is written. Its release does not leave that one behind, nor a mark of a forced release.
func TestReleaseOfWhatIsNotAlone(t *testing.T) {
	m := newMemory()
	b, kit, r, _ := sidecar(t, m, time.Minute)
	_, other, _, _ := sidecar(t, m, time.Minute)
	mine, waiter := request("r"), request("r")
	mustHave(t, kit, mine)
	granted := make(chan error, 1)
	go func() {
		_, err := other.Acquire(t.Context(), waiter)
		granted <- err
	}()
	eventually(t, "somebody waits", func() bool {
		st, err := b.Get(t.Context(), "r")
		return err == nil && len(st.Waiters) == 1
	})
	if err := errors.Join(kit.Downgrade(t.Context(), "r", mine.ID), kit.Release(t.Context(), "r", mine.ID)); err != nil {
		t.Fatal(err)
	}
	if st, err := b.Get(t.Context(), "r"); err != nil || len(st.Holders) != 1 || st.Holders[0].ID != waiter.ID {
		t.Errorf("the release has not granted it: %+v, %v", st, err)
	}
	if err := errors.Join(<-granted, other.Release(t.Context(), "r", waiter.ID)); err != nil {
		t.Fatal(err)
	}
	forced := request("f")
	mustHave(t, kit, forced)
	r.mu.Lock()
	r.muted = true // the lease does not hear of what comes
	r.mu.Unlock()
	ended := make(chan error, 1)
	go func() { ended <- b.ForceRelease(t.Context(), "f", forced.ID, patience) }()
	eventually(t, "its release is forced", func() bool {
		m.mu.Lock()
		defer m.mu.Unlock()
		_, marked := m.kvs[forcedKey(string(kit.ID()), "f", string(forced.ID))]
		return marked
	})
	if err := errors.Join(kit.Downgrade(t.Context(), "f", forced.ID), kit.Release(t.Context(), "f", forced.ID), <-ended); err != nil {
		t.Fatal(err)
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	for key := range m.kvs {
		if strings.HasPrefix(key, ownPrefix(string(kit.ID()))) {
			t.Errorf("left in the store: %q", key)
		}
	}
}

// The store goes back to a backup, another sidecar notices it and gives fences a new start, and others change so much before the
// lease asks again that its sidecar does not notice. Its fence is larger than that of the other one all the same.
func TestGuessAfterANewStart(t *testing.T) {
	m := newMemory()
	b, kit, r, _ := sidecar(t, m, time.Minute)
	o, other, _, _ := sidecar(t, m, time.Minute)
	first, theirs, mine := request("r"), request("r"), request("r")
	mustHave(t, kit, first)
	if err := kit.Release(t.Context(), "r", first.ID); err != nil {
		t.Fatal(err)
	}
	restore := m.backup()
	m.mu.Lock()
	m.revision += 10
	m.mu.Unlock()
	if _, err := other.Heartbeat(t.Context()); err != nil {
		t.Fatal(err)
	}
	r.mu.Lock() // none of its requests arrives now
	restore()
	o.wall = func() time.Time { return time.Now().Add(time.Hour) }
	theirs.MinHold = time.Millisecond // so it reads where fences begin
	g, err := other.Acquire(t.Context(), theirs)
	if err != nil {
		t.Fatal(err)
	}
	if err := other.Release(t.Context(), "r", theirs.ID); err != nil {
		t.Fatal(err)
	}
	eventually(t, "nobody has it", func() bool {
		m.mu.Lock()
		defer m.mu.Unlock()
		_, there := m.kvs[headKey("r")]
		return !there
	})
	m.mu.Lock()
	m.revision += 100
	m.mu.Unlock()
	r.mu.Unlock()
	if b.fallen() > 0 {
		t.Fatal("the sidecar has noticed it")
	}
	if after, err := kit.Acquire(t.Context(), mine); err != nil || after.Fence <= g.Fence {
		t.Errorf("broken law: fence %d after %d, %v", after.Fence, g.Fence, err)
	}
}

// The store goes back to a backup just before a lock is asked for, and tells of the grant before it answers. That grant is taken back. The
// next one has a larger fence than all before; where another sidecar is faster, there is none.
func TestGuessAfterABackup(t *testing.T) {
	for what, taken := range map[string]bool{"nobody else asks": false, "another sidecar is faster": true} {
		t.Run(what, func(t *testing.T) { guessAfterABackup(t, taken) })
	}
}

func guessAfterABackup(t *testing.T, taken bool) {
	m := newMemory()
	c := &counting{road: &road{m: m}}
	b := Open(c, Options{Timeout: patience})
	kit, err := b.OpenLease(t.Context(), lock.LeaseOptions{TTL: time.Minute, Sidecar: t.Name()})
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := errors.Join(kit.Close(context.Background()), b.Close()); err != nil {
			t.Error(err)
		}
	}()
	_, other, _, _ := sidecar(t, m, time.Minute)
	before, restore := backTo(t, m, b, kit)
	back := sync.OnceFunc(restore)
	c.mu.Lock()
	c.copy = func(x Txn) bool {
		if writesHead(x, "r") {
			back() // so nothing else shows it before
		}
		return false
	}
	c.mu.Unlock()
	l := b.leases[string(kit.ID())]
	grants, theirs := 0, request("r")
	var first KV // the entry that was written
	var late sync.WaitGroup
	defer late.Wait()
	after := func(x Txn) {
		for _, w := range x.Then {
			switch {
			case !strings.HasPrefix(w.Key, entriesOf(l.id)):
			case !w.Delete:
				if grants++; grants == 1 {
					first, _ = m.do(Txn{Read: []Range{{Key: w.Key}}}).Reads[0].one()
				} else {
					late.Go(func() { pushAgain(t, l, first) })
				}
				time.Sleep(50 * time.Millisecond) // in which the push comes
			case taken && grants == 1:
				mustHave(t, other, theirs)
			}
		}
	}
	c.after.Store(&after)
	limit := patience
	if taken {
		limit = time.Second
	}
	ctx, cancel := context.WithTimeout(t.Context(), limit)
	defer cancel()
	g, err := kit.Acquire(ctx, request("r"))
	switch {
	case taken && err == nil:
		t.Errorf("broken law: two hold it, with the fence %d", g.Fence)
	case !taken && (err != nil || g.Fence <= before.Fence):
		t.Errorf("broken law: fence %d after %d, %v", g.Fence, before.Fence, err)
	}
	if grants < 2 && !taken {
		t.Errorf("%d grants: none was guessed, and taken back", grants)
	}
}
