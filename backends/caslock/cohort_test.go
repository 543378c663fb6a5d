package caslock

import (
	"errors"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/locksidecar/locksidecar/lock"
)

// stays is a cohort.
type stays struct{}

func (stays) Stay() bool { return false }

// together is a request that stands for several apps.
func together(r lock.Resource, mode lock.Mode) lock.Request {
	q := request(r)
	q.Mode, q.Cohort = mode, stays{}
	return q
}

// contended waits until a lease is told that somebody stands behind its requests.
func contended(t *testing.T, l lock.Lease, ids ...lock.HoldID) {
	t.Helper()
	left := make(map[lock.HoldID]bool)
	for _, id := range ids {
		left[id] = true
	}
	for len(left) > 0 {
		select {
		case ev := <-l.Events():
			if ev.Kind != lock.Contended || !left[ev.ID] {
				t.Fatalf("told of %+v, want the contention of %v", ev, left)
			}
			delete(left, ev.ID)
		case <-time.After(patience):
			t.Fatalf("never told that somebody stands behind %v", left)
		}
	}
}

// told are the keys by which leases were told.
func (m *memory) told(t *testing.T, leases ...lock.Lease) (n int) {
	t.Helper()
	for _, l := range leases {
		n += len(m.do(Txn{Read: []Range{all(toldOf(string(l.ID())), 0)}}).Reads[0].KVs)
	}
	return n
}

// Whoever comes behind a request that stands for several apps tells its lease: who waits, and whose try is refused. That
// is told once, and goes with the request.
func TestToldOfWhoComes(t *testing.T) {
	m := newMemory()
	_, a, _, _ := sidecar(t, m, time.Minute)
	_, b, way, _ := sidecar(t, m, time.Minute)
	try := func(l lock.Lease, r lock.Resource) {
		t.Helper()
		q := request(r)
		q.Try = true
		if _, err := l.Acquire(t.Context(), q); !errors.Is(err, lock.ErrHeld) {
			t.Fatalf("try: %v, want ErrHeld", err)
		}
	}

	held := together("r", lock.Exclusive)
	mustHave(t, a, held)
	try(a, "r") // its own
	if n := m.told(t, a); n > 0 {
		t.Errorf("it is told of itself: %d keys", n)
	}
	try(b, "r")
	contended(t, a, held.ID)
	writes := 0
	way.mu.Lock()
	way.copy = func(x Txn) bool {
		writes += len(x.Then)
		return false
	}
	way.mu.Unlock()
	try(b, "r")
	way.mu.Lock()
	way.copy = nil
	way.mu.Unlock()
	if writes > 0 {
		t.Errorf("the second try writes %d keys", writes)
	}
	if n := m.told(t, a); n != 1 {
		t.Errorf("%d keys tell of it, want 1", n)
	}
	if err := a.Release(t.Context(), "r", held.ID); err != nil {
		t.Fatal(err)
	}

	// Readers have it together, and all of them are told.
	readers := []lock.Request{together("s", lock.Shared), together("s", lock.Shared)}
	for _, q := range readers {
		mustHave(t, a, q)
	}
	beside := together("s", lock.Shared)
	mustHave(t, b, beside)
	granted := make(chan error, 1)
	writer := together("s", lock.Exclusive)
	go func() {
		_, err := b.Acquire(t.Context(), writer)
		granted <- err
	}()
	contended(t, a, readers[0].ID, readers[1].ID)
	if diff := cmp.Diff(2, m.told(t, a, b)); diff != "" {
		t.Errorf("keys that tell of it (-want +got):\n%s", diff)
	}
	for _, q := range readers {
		if err := a.Release(t.Context(), "s", q.ID); err != nil {
			t.Fatal(err)
		}
	}
	if err := b.Release(t.Context(), "s", beside.ID); err != nil {
		t.Fatal(err)
	}
	if err := <-granted; err != nil {
		t.Fatal(err)
	}
	mine := make(chan error, 1)
	behind := request("s")
	go func() {
		_, err := a.Acquire(t.Context(), behind)
		mine <- err
	}()
	contended(t, b, writer.ID) // which waited when it came
	if err := b.Release(t.Context(), "s", writer.ID); err != nil {
		t.Fatal(err)
	}
	if err := <-mine; err != nil {
		t.Fatal(err)
	}
	if err := a.Release(t.Context(), "s", behind.ID); err != nil {
		t.Fatal(err)
	}
	if n := m.told(t, a, b); n > 0 {
		t.Errorf("%d keys are left", n)
	}
}

// What a lease was told while it could not hear, it hears with its next heartbeat.
func TestToldWithTheHeartbeat(t *testing.T) {
	m := newMemory()
	_, a, way, _ := sidecar(t, m, time.Minute)
	_, b, _, _ := sidecar(t, m, time.Minute)
	way.mu.Lock()
	way.muted = true
	way.mu.Unlock()
	held := together("r", lock.Exclusive)
	mustHave(t, a, held)
	granted := make(chan error, 1)
	behind := request("r")
	go func() {
		_, err := b.Acquire(t.Context(), behind)
		granted <- err
	}()
	eventually(t, "it is told", func() bool { return m.told(t, a) == 1 })
	select {
	case ev := <-a.Events():
		t.Fatalf("it has heard %+v", ev)
	default:
	}
	if _, err := a.Heartbeat(t.Context()); err != nil {
		t.Fatal(err)
	}
	contended(t, a, held.ID)
	if err := a.Release(t.Context(), "r", held.ID); err != nil {
		t.Fatal(err)
	}
	if err := <-granted; err != nil {
		t.Fatal(err)
	}
	if err := b.Release(t.Context(), "r", behind.ID); err != nil {
		t.Fatal(err)
	}
}

// A lease that ends leaves nothing of what it was told.
func TestToldBeforeTheEnd(t *testing.T) {
	m := newMemory()
	_, a, _, _ := sidecar(t, m, time.Minute)
	_, b, _, _ := sidecar(t, m, time.Minute)
	for _, r := range []lock.Resource{"tried", "waited for"} {
		mustHave(t, a, together(r, lock.Exclusive))
	}
	q := request("tried")
	q.Try = true
	if _, err := b.Acquire(t.Context(), q); !errors.Is(err, lock.ErrHeld) {
		t.Fatal(err)
	}
	granted := make(chan error, 1)
	behind := request("waited for")
	go func() {
		_, err := b.Acquire(t.Context(), behind)
		granted <- err
	}()
	eventually(t, "it is told of both", func() bool { return m.told(t, a) == 2 })
	if err := a.Close(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := <-granted; err != nil {
		t.Fatal(err)
	}
	if err := b.Release(t.Context(), "waited for", behind.ID); err != nil {
		t.Fatal(err)
	}
	if n := m.told(t, a, b); n > 0 {
		t.Errorf("%d keys are left", n)
	}
}

// More readers of other sidecars have a lock than its head names. Who waits for it, or is refused, tells all of them, and each once.
func TestToldOfMany(t *testing.T) {
	const n = 3*maxLast + 1
	m := newMemory()
	_, writer, _, _ := sidecar(t, m, time.Minute)
	_, refused, _, _ := sidecar(t, m, time.Minute)
	readers, leases := make([]lock.Request, n), make([]lock.Lease, n)
	have := func(r lock.Resource) {
		for i := range readers {
			if leases[i] == nil {
				_, leases[i], _, _ = sidecar(t, m, time.Minute)
			}
			readers[i] = together(r, lock.Shared)
			mustHave(t, leases[i], readers[i])
		}
		if err := leases[0].Release(t.Context(), r, readers[0].ID); err != nil { // so the head has room
			t.Fatal(err)
		}
	}
	release := func(r lock.Resource) {
		for i, q := range readers[1:] {
			contended(t, leases[i+1], q.ID)
			if err := leases[i+1].Release(t.Context(), r, q.ID); err != nil {
				t.Fatal(err)
			}
		}
	}
	have("waits")
	q := together("waits", lock.Exclusive)
	granted := make(chan error, 1)
	go func() {
		_, err := writer.Acquire(t.Context(), q)
		granted <- err
	}()
	eventually(t, "all were told", func() bool { return m.told(t, leases...) == n-1 })
	release("waits")
	if err := <-granted; err != nil {
		t.Fatal(err)
	}

	have("refused")
	for range 2 {
		try := request("refused")
		try.Try = true
		if _, err := refused.Acquire(t.Context(), try); !errors.Is(err, lock.ErrHeld) {
			t.Fatalf("try: %v, want ErrHeld", err)
		}
		eventually(t, "all were told", func() bool { return m.told(t, leases...) == n-1 })
	}
	release("refused")
	eventually(t, "nothing is left of that", func() bool { return m.told(t, leases...) == 0 })
}
