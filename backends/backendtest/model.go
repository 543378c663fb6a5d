package backendtest

import (
	"errors"
	"math/rand/v2"
	"slices"

	"github.com/locksidecar/locksidecar/backends/queue"
	"github.com/locksidecar/locksidecar/lock"
)

// testModel takes one random step after the other, and after each the store must
// have the same holders and the same queue as package queue.
func testModel(e *env) {
	const steps = 150
	ss := e.sidecars(2)
	m := &modelled{e: e, ss: ss, r: e.name("r"), rand: rand.New(rand.NewPCG(e.seed(), 0))}
	for range steps {
		m.step()
		m.compare()
	}
	for all := m.all(); len(all) > 0; all = m.all() {
		m.end(all[m.rand.IntN(len(all))])
		m.compare()
	}
}

// modelled is a resource in the store beside its model.
type modelled struct {
	e     *env
	ss    []*sidecar
	r     lock.Resource
	rand  *rand.Rand
	model queue.Queue[*waiter]
}

type modelEntry = queue.Entry[*waiter]

func (m *modelled) all() []*modelEntry {
	return slices.AppendSeq(slices.Collect(m.model.Holders()), m.model.Waiters())
}

func (m *modelled) step() {
	all := m.all()
	n := m.rand.IntN(10)
	switch {
	case len(all) == 0 || n < 5 && len(all) < 12:
		m.come()
	case n < 6 && m.e.limits.Downgrade == "":
		m.downgrade()
	default:
		m.end(all[m.rand.IntN(len(all))])
	}
}

// come asks for a hold, and waits until the store has it.
func (m *modelled) come() {
	e := m.e
	e.Helper()
	modes := e.modes()
	if e.limits.Permits == "" {
		modes = append(modes, lock.Permits(2), lock.Permits(3))
	}
	mode := modes[m.rand.IntN(len(modes))]
	if s := m.ss[m.rand.IntN(len(m.ss))]; m.model.Clashes(queue.RoomOf(mode)) {
		e.otherLimit(s, m.r, mode, false)
		return
	}
	q := request(m.r, mode)
	if e.limits.MinHold == "" && m.rand.IntN(4) == 0 {
		q.MinHold = longHold
	}
	w := e.start(m.ss[m.rand.IntN(len(m.ss))], q)
	entry := &modelEntry{ID: w.q.ID, Value: w}
	m.model.Put(entry, queue.RoomOf(mode))
	if entry.Held() {
		w.granted()
	} else {
		w.queued()
	}
}

// end ends a hold or a wait in one of several ways.
func (m *modelled) end(entry *modelEntry) {
	e, w := m.e, entry.Value
	e.Helper()
	switch {
	case w.kept, m.rand.IntN(4) == 0:
		if err := m.ss[m.rand.IntN(len(m.ss))].b.ForceRelease(e.ctx, m.r, entry.ID, 0); err != nil {
			e.Fatalf("ForceRelease: %v", err)
		}
		if entry.Waiting() {
			w.failed(lock.ErrNotHolder)
		} else {
			e.notHolder("Release of what was forced", w.s.Release(e.ctx, m.r, entry.ID))
		}
	case entry.Waiting():
		w.cancel()
		w.wait()
		if errors.Is(w.err, lock.ErrUnavailable) { // nobody has said that it is given up
			if err := e.leave(w.s, m.r, entry.ID); err != nil && !errors.Is(err, lock.ErrNotHolder) {
				e.Fatalf("Release of a waiter: %v", err)
			}
		}
	default:
		if err := w.s.Release(e.ctx, m.r, entry.ID); err != nil {
			e.Fatalf("Release: %v", err)
		}
		if w.kept = w.q.MinHold > 0; w.kept {
			return
		}
	}
	m.model.Remove(entry)
	m.grant()
}

// downgrade turns an exclusive hold into a shared one.
func (m *modelled) downgrade() {
	e := m.e
	e.Helper()
	for entry := range m.model.Holders() {
		if entry.Room() != queue.One || entry.Value.kept { // shared, or a permit, or nobody's
			return
		}
		if err := entry.Value.s.Downgrade(e.ctx, m.r, entry.ID); err != nil {
			e.Fatalf("Downgrade: %v", err)
		}
		m.model.Downgrade(entry)
	}
	m.grant()
}

func (m *modelled) grant() {
	for entry := m.model.Next(); entry != nil; entry = m.model.Next() {
		entry.Value.granted()
	}
}

func (m *modelled) compare() {
	m.e.Helper()
	var holders, waiters []lock.HoldID
	for entry := range m.model.Holders() {
		holders = append(holders, entry.ID)
	}
	for entry := range m.model.Waiters() {
		waiters = append(waiters, entry.ID)
	}
	st := m.e.holds(m.ss[0].b, m.r, holders, waiters)
	slots := map[int]bool{}
	for _, h := range st.Holders {
		if n := h.Mode.Limit(); n > 0 {
			if slot := h.Fence.Slot(); slots[slot] || slot >= n {
				m.e.Fatalf("slot %d of %d is not its own", slot, n)
			}
			slots[h.Fence.Slot()] = true
		}
		if kept := m.model.Find(h.ID).Value.kept; kept != (h.Kept > 0) {
			m.e.Fatalf("the store keeps %s for %s; it is kept: %t", h.ID, h.Kept, kept)
		}
		if want := m.model.Find(h.ID).Room().Mode(); h.Mode != want {
			m.e.Fatalf("the store has %s as %s, want %s", h.ID, h.Mode, want)
		}
	}
}
