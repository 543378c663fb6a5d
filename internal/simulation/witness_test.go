package simulation

import (
	"fmt"
	"sync"
	"time"

	"github.com/locksidecar/locksidecar/lock"
	"github.com/locksidecar/locksidecar/session"
)

// belief is what one app thinks of one hold. Moments are in true time.
type belief struct {
	life   *life
	mode   lock.Mode
	owner  string // who in the app
	counts int
	until  time.Duration // by its own clock it stops then
	limit  time.Duration // its max_hold; 0: none
	told   bool          // that it is lost
	kept   time.Duration // told: others are kept out until then, see speeds
}

// speeds: clocks run at speeds that differ by less than one part in so many. A lease has a
// margin for that. A grace has none: the store counts it on its own clock.
const speeds = 100

// witness is what the locks protect: it knows who relies on which lock, from the
// answer that the app gets to the end that the app knows of.
type witness struct {
	now lock.Clock

	mu        sync.Mutex
	broken    []string // laws
	users     map[string]map[lock.HoldID]*belief
	exclusive map[string]lock.Fence // of the last exclusive grant
	latest    map[string]lock.Fence // of all grants
	fences    map[lock.HoldID]lock.Fence
	over      map[lock.HoldID]bool // told to be lost, before or after its grant arrived
	atOnce    map[lock.HoldID]bool // forced with grace 0, which gives up early notice
	numbers   map[lock.Fence]bool  // of the store, for holds that were forced so
	kept      promises
	seen      counts
}

// counts are what happened in a world, so that a test can tell that worlds are not dull.
type counts struct{ granted, lost, refused, forced, crashes, freezes, detached, attached int }

func newWitness(now lock.Clock) *witness {
	return &witness{
		now: now, users: map[string]map[lock.HoldID]*belief{}, exclusive: map[string]lock.Fence{},
		latest: map[string]lock.Fence{}, fences: map[lock.HoldID]lock.Fence{}, over: map[lock.HoldID]bool{}, atOnce: map[lock.HoldID]bool{},
		numbers: map[lock.Fence]bool{}, kept: newPromises(),
	}
}

// complain notes that a law is broken. w.mu is held.
func (w *witness) complain(format string, args ...any) {
	w.broken = append(w.broken, fmt.Sprintf("at %v: ", w.now())+fmt.Sprintf(format, args...))
}

func (w *witness) complains(format string, args ...any) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.complain(format, args...)
}

// count changes the counts.
func (w *witness) count(f func(*counts)) {
	w.mu.Lock()
	defer w.mu.Unlock()
	f(&w.seen)
}

// granted is the moment at which an app has its grant in hands. It reports false when
// the app knows already that it is worth nothing.
func (w *witness) granted(l *life, g session.Grant, q session.AcquireRequest) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	maxHold := q.MaxHold
	now, until := w.now(), l.p.true(g.Until)
	w.atOnce[g.LockID] = w.atOnce[g.LockID] || w.numbers[g.Fence/lock.FenceRange]
	if w.over[g.LockID] || w.atOnce[g.LockID] || l.ended {
		return false
	}
	if b := w.users[g.Resource][g.LockID]; b != nil {
		if q.Handle == "" && (!q.Reentrant || b.owner != q.Owner) {
			w.complain("%s of %s: %v, owner %s, enters the hold of owner %s, reentrant %v", g.LockID, g.Resource, l, q.Owner, b.owner, q.Reentrant)
		}
		b.counts++
		b.until = max(b.until, until)
		if end := now + maxHold; maxHold != 0 && (b.limit == 0 || end < b.limit) {
			b.limit = end // who enters a hold may make it end sooner, and a client knows that for all who are in
		}
		if b.limit != 0 {
			b.until = min(b.until, b.limit)
		}
		return true
	}
	if now >= until { // valid_for is 0
		return false
	}
	for id, b := range w.users[g.Resource] {
		if b.mode == lock.Shared && g.Mode == lock.Shared || w.atOnce[id] {
			continue
		}
		switch {
		case !b.told && now < b.until:
			w.complain("%s of %s: %v granted to %v beside %v of %v, who relies on it until %v", g.LockID, g.Resource, g.Mode, l, b.mode, b.life, b.until)
		case b.told && now < b.kept:
			w.complain("%s of %s: %v granted to %v, and %v was told that others are kept out until %v", g.LockID, g.Resource, g.Mode, l, b.life, b.kept)
		}
	}
	w.entersKept(l, g)
	again := w.fences[g.LockID] == g.Fence // entered, and whoever had it before has let go meanwhile
	w.fences[g.LockID] = g.Fence
	least := w.exclusive[g.Resource]
	switch {
	case g.Mode != lock.Exclusive:
	case w.kept.chains[g.Fence]: // attached: it has the fence of its grant
		least = w.latest[g.Resource]
	default:
		least = w.latest[g.Resource] + 1
	}
	if !again && g.Fence < least {
		w.complain("%s of %s: fence %d (%v) after %d", g.LockID, g.Resource, g.Fence, g.Mode, w.latest[g.Resource])
	}
	if g.Mode == lock.Exclusive {
		w.exclusive[g.Resource] = max(w.exclusive[g.Resource], g.Fence)
	}
	w.latest[g.Resource] = max(w.latest[g.Resource], g.Fence)
	if w.users[g.Resource] == nil {
		w.users[g.Resource] = map[lock.HoldID]*belief{}
	}
	b := &belief{life: l, mode: g.Mode, owner: q.Owner, counts: 1, until: until}
	switch {
	case maxHold != 0:
		b.limit = now + maxHold
	case g.End != 0:
		b.limit = l.p.true(g.End)
	}
	w.users[g.Resource][g.LockID] = b
	w.seen.granted++
	return true
}

// lost is the moment at which an app reads that a hold is lost.
func (w *witness) lost(l *life, e session.Lost) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.over[e.LockID] = true
	w.seen.lost++
	if b := w.users[e.Resource][e.LockID]; b != nil {
		b.told, b.kept = true, l.p.true(e.GraceEnd)-max(l.p.w.ttl, longestGrace)/speeds
		if e.GraceEnd == 0 {
			b.kept = 0
		}
	}
}

// leaves is the moment before an app releases one count. It reports whether the app
// relied on the hold until now.
func (w *witness) leaves(resource string, id lock.HoldID) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	if f := w.fences[id]; w.kept.chains[f] && !w.kept.taken[id] {
		w.give(f)
	}
	b := w.users[resource][id]
	if b == nil {
		return false
	}
	relied := !b.told && w.now() < b.until && !w.atOnce[id]
	if b.counts--; b.counts == 0 {
		delete(w.users[resource], id)
	}
	return relied
}

// shares is the moment before an app downgrades a hold.
func (w *witness) shares(resource string, id lock.HoldID, f lock.Fence) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if p, found := w.kept.of[resource][f]; found {
		p.mode = lock.Shared
		w.kept.of[resource][f] = p
	}
	if b := w.users[resource][id]; b != nil {
		b.mode = lock.Shared
	}
}

// renewed is the moment at which an app reads until when its holds are valid.
func (w *witness) renewed(l *life, n session.LeaseNews) {
	w.mu.Lock()
	defer w.mu.Unlock()
	until := l.p.true(n.Until)
	for _, users := range w.users {
		for _, b := range users {
			if b.life != l || b.told {
				continue
			}
			b.until = max(b.until, until)
			if b.limit != 0 {
				b.until = min(b.until, b.limit)
			}
		}
	}
}

// ended is the moment at which an app's session is over. By itself: then the app must
// have been told of all its holds.
func (w *witness) ended(l *life, byItself bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for resource, users := range w.users {
		for id, b := range users {
			switch {
			case b.life != l:
			case !byItself:
				delete(users, id)
			case !b.told && !w.atOnce[id] && w.now() < b.until:
				w.complain("%s of %s: the session of %v is over, and nobody has said so of this hold", id, resource, l)
			}
		}
	}
	l.ended = true
}

// forcedAtOnce is the moment before a hold is forced with grace 0. A fence, if it is not
// 0, is that of the hold in the store: all who have it in turn have its number.
func (w *witness) forcedAtOnce(id lock.HoldID, fence lock.Fence) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.atOnce[id] = true
	if fence == 0 {
		return
	}
	w.numbers[fence/lock.FenceRange] = true
	for id, f := range w.fences {
		if f/lock.FenceRange == fence/lock.FenceRange {
			w.atOnce[id] = true
		}
	}
}
