package caslock

import (
	"testing"
	"time"
)

// TestBackupsInWorlds is TestWorlds with a store that goes back to a backup now and then, of a few seconds before. Others may have changed more by then than
// was lost. Whoever has had a heartbeat since then relies on nothing that another one has, fences go on growing, and nothing is left in the end.
func TestBackupsInWorlds(t *testing.T) { worlds(t, 6, func(w *world) { w.backups = true }) }

// permits is 1 where apps ask for permits, too.
func (w *world) permits() int {
	if w.backups {
		return 1
	}
	return 0
}

// goesBack has the store go back to a backup, and waits until all sidecars have noticed.
func (w *world) goesBack(side []*worldSidecar) {
	restore := w.m.backup()
	time.Sleep(w.upTo(5 * time.Second))
	w.mu.Lock()
	w.m.mu.Lock()
	was := w.m.revision
	w.m.mu.Unlock()
	restore()
	w.m.mu.Lock()
	lost := was - w.m.revision
	if w.r.Intn(2) == 0 {
		w.m.revision = was + w.r.Int63n(100)
	}
	w.m.mu.Unlock()
	w.history++
	w.back, w.known = time.Now(), time.Time{}
	w.note("the store goes back by %d changes", lost)
	w.counts["back"]++
	w.mu.Unlock()
	w.m.cut()
	for all := false; !all; {
		time.Sleep(100 * time.Millisecond)
		w.mu.Lock()
		all = true
		for _, s := range side {
			all = all && (s.renewed.After(w.back) || time.Since(s.renewed) > 2*worldTTL)
		}
		if all {
			w.known = time.Now()
		}
		w.mu.Unlock()
	}
}

// ignorant tells whether some sidecar did not know yet that the store went back when something was asked for. w.mu is held.
func (w *witness) ignorant(asked time.Time) bool {
	return !w.back.IsZero() && (w.known.IsZero() || !asked.After(w.known))
}

// proves notes that a heartbeat was answered: what its sidecar has now, it has alone. w.mu is held.
func (w *witness) proves(s *worldSidecar) {
	if w.back.IsZero() {
		return
	}
	now := time.Now()
	for id, h := range w.relied {
		if h.by != s || !w.relies(h, now) || !w.proven(h) {
			continue
		}
		for other, o := range w.relied {
			if o.root == h.root || o.r != h.r || !w.relies(o, now) || !w.proven(o) {
				continue
			}
			if o.mode.Excludes(h.mode) || h.mode.Limit() > 0 && o.slot == h.slot {
				w.Errorf("broken law: after a heartbeat %s of %s has %s, and %s of %s", h.mode, id, h.r, o.mode, other)
			}
		}
	}
}
