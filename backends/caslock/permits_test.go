package caslock

import (
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/locksidecar/locksidecar/lock"
)

// olderHead and olderPlace are what sidecars wrote that knew nothing of permits: what else there is, they forget.
type olderHead struct {
	Mode    lock.Mode `json:"mode"`
	Holders int       `json:"holders"`
	Waiters int       `json:"waiters"`
	Front   int64     `json:"front"`
	Next    int64     `json:"next"`
}

type olderPlace struct {
	ID      string    `json:"id"`
	Lease   string    `json:"lease"`
	Sidecar string    `json:"sidecar,omitempty"`
	Mode    lock.Mode `json:"mode"`
	Owner   string    `json:"owner,omitempty"`
	Fence   int64     `json:"fence,omitempty"`
	From    int64     `json:"from,omitempty"`
	Since   int64     `json:"since"`
	Several bool      `json:"several,omitempty"`
}

// older has an older sidecar write a key as it has read it, changed by f.
func older[T any](t *testing.T, m *memory, key string, f func(*T)) {
	t.Helper()
	kv, there := m.do(Txn{Read: []Range{{Key: key}}}).Reads[0].one()
	if !there {
		t.Fatalf("there is no %q", key)
	}
	var v T
	if err := json.Unmarshal(kv.Value, &v); err != nil {
		t.Fatal(err)
	}
	f(&v)
	m.do(Txn{Then: []Write{{Key: key, Value: encode(v)}}})
}

func permit(r lock.Resource, n int) lock.Request {
	q := request(r)
	q.Mode = lock.Permits(n)
	return q
}

// An older sidecar writes the head of a resource whose permits others have: it forgets the slots. They are read where they stand.
func TestPermitsBesideOlderSidecars(t *testing.T) {
	const limit = 2*page/2 + 3 // more than one request reads
	m := newMemory()
	_, l, _, _ := sidecar(t, m, time.Minute)
	free := map[int]lock.HoldID{}
	for slot := range limit {
		q := permit("r", limit)
		g, err := l.Acquire(t.Context(), q)
		if err != nil || g.Fence.Slot() != slot {
			t.Fatalf("slot %d, %v; want %d", g.Fence.Slot(), err, slot)
		}
		if slot%250 == 1 {
			free[slot] = q.ID
		}
	}
	older(t, m, headKey("r"), func(h *olderHead) {
		if h.Mode == lock.Exclusive || h.Mode == lock.Shared || h.Mode == lock.Permits(limit) {
			t.Errorf("an older sidecar reads mode %d, with which it may let somebody in", h.Mode)
		}
	})
	q := permit("r", limit)
	q.Try = true
	if _, err := l.Acquire(t.Context(), q); !errors.Is(err, lock.ErrHeld) {
		t.Errorf("broken law: one permit too many: %v", err)
	}
	for slot, id := range free {
		older(t, m, headKey("r"), func(*olderHead) {})
		if err := l.Release(t.Context(), "r", id); err != nil {
			t.Fatal(err)
		}
		older(t, m, headKey("r"), func(*olderHead) {})
		if g, err := l.Acquire(t.Context(), permit("r", limit)); err != nil || g.Fence.Slot() != slot {
			t.Errorf("broken law: slot %d, %v; want %d, which alone is free", g.Fence.Slot(), err, slot)
		}
	}
}

// An older sidecar grants what waits for a permit: for it, that is a lock. Nobody else is let in beside it.
func TestPermitThatAnOlderSidecarGrants(t *testing.T) {
	m := newMemory()
	b, l, _, _ := sidecar(t, m, time.Minute)
	first, waits := request("r"), permit("r", 2)
	if _, err := l.Acquire(t.Context(), first); err != nil {
		t.Fatal(err)
	}
	got := make(chan lock.Grant, 1)
	go func() {
		g, err := l.Acquire(t.Context(), waits)
		if err != nil {
			t.Error(err)
		}
		got <- g
	}()
	eventually(t, "it waits", func() bool {
		st, err := b.Get(t.Context(), "r")
		return err == nil && len(st.Waiters) == 1
	})
	lease, base := string(l.ID()), decode[int64](m.do(Txn{Read: []Range{{Key: baseKey}}}).Reads[0].KVs[0])
	var e entry
	older(t, m, entryKey(lease, "r", string(waits.ID)), func(old *entry) { e = *old })
	was := decode[entry](m.do(Txn{Read: []Range{{Key: entryKey(lease, "r", string(first.ID))}}}).Reads[0].KVs[0])
	var p olderPlace
	older(t, m, lineKey("r", e.Seq), func(old *olderPlace) { p = *old })
	if p.Mode != lock.Exclusive {
		t.Errorf("an older sidecar reads mode %d", p.Mode)
	}
	p.From = base + 1
	m.do(Txn{Then: []Write{
		{Key: headKey("r"), Value: encode(olderHead{Mode: lock.Exclusive, Holders: 1, Front: e.Seq + 1, Next: e.Seq + 1})},
		{Key: lineKey("r", was.Seq), Delete: true}, {Key: entryKey(lease, "r", string(first.ID)), Delete: true},
		{Key: lineKey("r", e.Seq), Value: encode(p)},
		{Key: entryKey(lease, "r", string(waits.ID)), Value: encode(entry{Seq: e.Seq, granted: granted{From: p.From}})},
	}})
	g := <-got
	for _, mode := range []lock.Mode{lock.Permits(2), lock.Permits(3), lock.Shared, lock.Exclusive} {
		q := request("r")
		q.Mode, q.Try = mode, true
		if _, err := l.Acquire(t.Context(), q); !errors.Is(err, lock.ErrHeld) {
			t.Errorf("broken law: beside the permit, mode %d: %v", mode, err)
		}
	}
	key := detach(t, l, waits, time.Hour)
	q := attaching("r", key)
	if q.Mode = g.Mode; q.Mode != lock.Permits(2) {
		t.Errorf("granted is mode %d", g.Mode)
	}
	if got, err := l.Acquire(t.Context(), q); err != nil || got.Fence != g.Fence {
		t.Errorf("attached, by a handle that says it is a permit: %+v, %v", got, err)
	}
	if err := l.(lock.Detacher).Detach(t.Context(), "r", q.ID, key, 0); err != nil {
		t.Error(err)
	}
	if isTaken(t, l, "r") {
		t.Error("it has ended")
	}
}

// More permits are free at once than one write has fences for. All who wait are granted, in their order, and with fences that grow.
func TestManyPermitsAtOnce(t *testing.T) {
	const n = 3 * fenceStep
	m := newMemory()
	b, l, _, _ := sidecar(t, m, time.Minute)
	first := request("r")
	if _, err := l.Acquire(t.Context(), first); err != nil {
		t.Fatal(err)
	}
	grants := make([]chan lock.Fence, n)
	for i := range grants {
		grants[i] = make(chan lock.Fence, 1)
		go func() {
			g, err := l.Acquire(t.Context(), permit("r", n))
			if err != nil {
				t.Error(err)
			}
			grants[i] <- g.Fence
		}()
		eventually(t, fmt.Sprint(i, " wait"), func() bool {
			h := decode[head](m.do(Txn{Read: []Range{{Key: headKey("r")}}}).Reads[0].KVs[0])
			return h.Waiters == i+1
		})
	}
	if err := l.Release(t.Context(), "r", first.ID); err != nil {
		t.Fatal(err)
	}
	var before lock.Fence
	for slot, grant := range grants {
		f := <-grant
		if f.Slot() != slot || f <= before || f/lock.FenceRange == before/lock.FenceRange {
			t.Errorf("broken law: fence %d with slot %d after %d, want slot %d", f, f.Slot(), before, slot)
		}
		before = f
	}
	if st, err := b.Get(t.Context(), "r"); err != nil || len(st.Holders) != n {
		t.Errorf("%d hold, %v", len(st.Holders), err)
	}
}

// A lease is over that has permits, and waits for more. Who waits behind it is granted them, and it is not, not even for a moment.
func TestNothingIsGrantedToTheDead(t *testing.T) {
	m := newMemory()
	var written []string // of the dead, as granted
	b, l, r, _ := sidecar(t, m, time.Minute)
	_, dead, _, silence := sidecar(t, m, time.Minute)
	r.mu.Lock()
	r.copy = func(x Txn) bool {
		for _, w := range x.Then {
			e := decode[entry](KV{Value: w.Value})
			if strings.HasPrefix(w.Key, entriesOf(string(dead.ID()))) && e.held() {
				written = append(written, w.Key)
			}
		}
		return false
	}
	r.mu.Unlock()
	const n = 8
	for range n {
		if _, err := dead.Acquire(t.Context(), permit("r", n)); err != nil {
			t.Fatal(err)
		}
	}
	waiting := func(l lock.Lease, n int) {
		go func() { _, _ = l.Acquire(t.Context(), permit("r", 8)) }()
		eventually(t, "it waits", func() bool {
			st, err := b.Get(t.Context(), "r")
			return err == nil && len(st.Waiters) == n
		})
	}
	waiting(l, 1)
	waiting(dead, 2)
	waiting(l, 3)
	silence()
	id := string(dead.ID())
	m.do(Txn{Then: []Write{{Key: leaseKey(id), Delete: true}, {Key: beatKey(id), Delete: true}, {Key: deadKey(id)}}})
	eventually(t, "both are granted", func() bool {
		st, err := b.Get(t.Context(), "r")
		return err == nil && len(st.Holders) == 2 && len(st.Waiters) == 0
	})
	r.mu.Lock()
	defer r.mu.Unlock()
	if len(written) > 0 {
		t.Errorf("granted to a lease that is over: %q", written)
	}
}
