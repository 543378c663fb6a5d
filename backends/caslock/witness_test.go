package caslock

import (
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/locksidecar/locksidecar/lock"
)

// witness knows what somebody in a world relies on, and finds what breaks a law.
type witness struct {
	*testing.T

	mu      sync.Mutex
	relied  map[lock.HoldID]*reliance
	lost    map[lock.HoldID]bool // that somebody was told of
	atOnce  map[lock.HoldID]bool // by their roots: so that who has it is told afterwards
	over    map[lock.HoldID]bool // by their roots: somebody has asked for their end, which may come at any time
	fences  map[lock.Resource]lock.Fence
	handles []handed
	counts  map[string]int
	back    time.Time // when the store last went back to a backup
	known   time.Time // since when all know it
	notes   []string
}

func newWitness(t *testing.T) *witness {
	return &witness{
		T: t, relied: make(map[lock.HoldID]*reliance), lost: make(map[lock.HoldID]bool), atOnce: make(map[lock.HoldID]bool), over: make(map[lock.HoldID]bool),
		fences: make(map[lock.Resource]lock.Fence), counts: make(map[string]int),
	}
}

// reliance is what somebody may rely on: as long as the lease of its sidecar lives, or until a time.
type reliance struct {
	r     lock.Resource
	root  lock.HoldID // as it was granted: who attaches it has the same hold
	mode  lock.Mode
	slot  int
	by    *worldSidecar // nil: nobody has it
	until time.Time     // it is kept
	asked time.Time
	at    time.Time // when it was granted
}

type handed struct {
	g    lock.Grant
	key  lock.HandleKey
	root lock.HoldID
}

// note says what happens, for a world that fails. w.mu is held.
func (w *witness) note(format string, args ...any) {
	w.notes = append(w.notes, time.Now().Format("04:05.000 ")+fmt.Sprintf(format, args...))
}

// told is news of a loss. w.mu is held.
func (w *witness) told(ev lock.Event) {
	if ev.Kind != lock.Revoked && ev.Kind != lock.Vanished {
		return
	}
	w.note("told %d of %s until %s", ev.Kind, ev.ID, ev.Until)
	w.lost[ev.ID] = true
	if h := w.relied[ev.ID]; h != nil {
		h.by = nil
	}
}

// relies tells whether somebody does, at a moment. w.mu is held.
func (w *witness) relies(h *reliance, now time.Time) bool {
	return now.Before(h.until) || h.by != nil && !w.atOnce[h.root] && now.Before(h.by.renewed.Add(worldTTL))
}

// proven tells whether the store has what somebody relies on, as far as its sidecar can know: a heartbeat was answered since the store went
// back, and this was asked for since then, or granted before that heartbeat. w.mu is held.
func (w *witness) proven(h *reliance) bool {
	return w.back.IsZero() || h.by != nil && h.by.renewed.After(w.back) && (h.asked.After(w.back) || h.by.renewed.After(h.at))
}

// got notes a grant; false: it came when the lease was over. w.mu is held.
func (w *witness) got(s *worldSidecar, g lock.Grant, root lock.HoldID, asked time.Time) (h *reliance, ok bool) {
	now := time.Now()
	if !now.Before(s.renewed.Add(worldTTL)) {
		return nil, false
	}
	h = &reliance{r: g.Resource, root: root, mode: g.Mode, slot: g.Fence.Slot(), by: s, asked: asked, at: now}
	w.counts[g.Mode.String()]++
	w.note("%s granted %s of %s to %s, root %s, slot %d, until %s", s.l.ID(), g.Mode, g.Resource, g.ID, root, g.Fence.Slot(), g.Until)
	roots := map[lock.HoldID]bool{root: true}
	for id, o := range w.relied {
		switch {
		case !w.relies(o, now):
			if o.by == nil || o.by.dead {
				delete(w.relied, id)
			}
		case o.root == root || o.r != g.Resource || !w.proven(o) || !w.proven(h):
		case o.mode.Excludes(g.Mode):
			w.Errorf("broken law: %s of %s is granted beside %s of %s, kept for %s", g.Mode, g.ID, o.mode, id, o.until.Sub(now))
		case o.slot == h.slot && g.Mode.Limit() > 0:
			w.Errorf("broken law: slot %d of %s is that of %s", h.slot, g.ID, id)
		default:
			roots[o.root] = true
		}
	}
	if limit := g.Mode.Limit(); limit > 0 && len(roots) > limit {
		w.Errorf("broken law: %d permits of %d", len(roots), limit)
	}
	if w.relied[g.ID] = h; w.lost[g.ID] { // the news was quicker
		h.by = nil
	}
	return h, true
}

// lets notes that somebody relies on a hold no more. w.mu is not held.
func (w *witness) lets(id lock.HoldID, until time.Time) (there bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	h := w.relied[id]
	if h == nil || h.by == nil {
		return false
	}
	w.note("%s is let go, until %s", id, until.Format("04:05.000"))
	h.by = nil
	if !until.IsZero() && !w.over[h.root] {
		h.until = until
	}
	return true
}
