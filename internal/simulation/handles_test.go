package simulation

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/locksidecar/locksidecar/lock"
	"github.com/locksidecar/locksidecar/session"
)

// detached is for how long holds are detached, and handles extended. It is always the same: so a
// request that arrives late makes no time shorter.
const detached = 1500 * time.Millisecond

// letter is what an app hands on with a handle.
type letter struct {
	handle, resource string
	mode             lock.Mode
	fence            lock.Fence
}

func (n letter) String() string { return fmt.Sprintf("%v %s, fence %d", n.mode, n.resource, n.fence) }

// post gives a letter to all apps.
func (w *world) post(n letter) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.letters = append(w.letters, n)
}

// pick takes a letter, or reads one and leaves it to others too.
func (a *app) pick() (n letter, found bool) {
	first, leaves := a.dice(1<<16), a.dice(3) == 0
	a.w.mu.Lock()
	defer a.w.mu.Unlock()
	if len(a.w.letters) == 0 {
		return n, false
	}
	i := first % len(a.w.letters)
	n = a.w.letters[i]
	if !leaves {
		a.w.letters = slices.Delete(a.w.letters, i, i+1)
	}
	return n, true
}

// answer does something with a handle that some app has sent.
func (l *life) answer() {
	n, found := l.a.pick()
	if !found || !l.p.answers() {
		return
	}
	switch kind := l.a.dice(10); {
	case kind < 7:
		l.attach(n)
	case kind < 9:
		l.extend(n)
	default:
		l.free(n)
	}
}

// attach takes over what is detached, works under it, and releases it, detaches it again, or keeps it.
func (l *life) attach(n letter) {
	a, before := l.a, l.a.w.now()
	q := session.AcquireRequest{Handle: n.handle, Mode: lock.Exclusive, Owner: "0"}
	g, err := l.acquire(q)
	if !l.p.answers() {
		return
	}
	a.w.log("%v attaches %v: %s %d, %v", l, n, g.LockID, g.Fence, err)
	if err != nil {
		l.noHandle("Acquire", n, err)
		return
	}
	if g.Fence != n.fence || g.Resource != n.resource || g.Mode != n.mode {
		a.w.witness.complains("%v: what is attached is %+v, and was %v", l, g, n)
	}
	a.w.witness.attached(l, n, before)
	if !l.granted(q, g) {
		return
	}
	stays := a.w.storms(a.upTo(800 * time.Millisecond))
	switch kind := a.dice(10); {
	case stays && kind < 3:
		l.detach(g, n.handle)
	case stays && kind < 5:
		l.mu.Lock()
		defer l.mu.Unlock()
		l.keeps = append(l.keeps, kept{g.Resource, g.LockID})
	default:
		l.release(g.Resource, g.LockID, "")
	}
}

// detach hands a hold on by a handle. old is that by which it is attached; "": it is not.
func (l *life) detach(g session.Grant, old string) {
	w := l.a.w
	if !l.p.answers() {
		return
	}
	before, relied := w.now(), w.witness.detaches(g, old)
	d, err := l.s.Detach(context.Background(), g.LockID, detached)
	if err != nil || !l.p.answers() { // it may be released at any time now
		w.witness.gives(g.Fence)
	}
	if !l.p.answers() {
		return
	}
	w.log("%v detaches %s: %v", l, g.LockID, err)
	var lost *session.LostError
	switch {
	case err == nil:
		w.witness.worthless(old)
		w.witness.detached(g, d.Handle, before+detached)
		w.post(letter{handle: d.Handle, resource: g.Resource, mode: g.Mode, fence: g.Fence})
	case errors.Is(err, session.ErrSessionClosed), errors.Is(err, lock.ErrUnavailable), errors.As(err, &lost):
	case errors.Is(err, lock.ErrNotHolder) && !relied:
	default:
		w.witness.complains("%v: Detach of %s = %v", l, g.LockID, err)
	}
}

// extend gives a detached hold more time.
func (l *life) extend(n letter) {
	before := l.a.w.now()
	d, err := l.p.manager.Everybody().ExtendHandle(context.Background(), n.handle, detached)
	if !l.p.answers() {
		return
	}
	l.a.w.log("%v extends %v: %v", l, n, err)
	if err != nil {
		l.noHandle("ExtendHandle", n, err)
		return
	}
	if d.Fence != n.fence {
		l.a.w.witness.complains("%v: what is extended has fence %d, and was %v", l, d.Fence, n)
	}
	l.a.w.witness.promises(n.resource, n.fence, promise{mode: n.mode, until: before + detached, handle: n.handle})
	l.a.w.post(n)
}

// free ends a detached hold.
func (l *life) free(n letter) {
	l.a.w.witness.gives(n.fence)
	err := l.p.manager.Everybody().ReleaseHandle(context.Background(), n.handle)
	if !l.p.answers() {
		return
	}
	l.a.w.log("%v frees %v: %v", l, n, err)
	if err != nil {
		l.noHandle("ReleaseHandle", n, err)
		return
	}
	l.a.w.witness.worthless(n.handle)
}

// noHandle checks an error that is told of a handle.
func (l *life) noHandle(what string, n letter, err error) {
	var lost *session.LostError
	switch {
	case errors.Is(err, lock.ErrNoHandle):
		l.a.w.witness.missed(l, n)
	case errors.Is(err, context.Canceled), errors.Is(err, lock.ErrUnavailable), errors.Is(err, lock.ErrNotHolder), errors.Is(err, session.ErrSessionClosed), errors.As(err, &lost):
	default:
		l.a.w.witness.complains("%v: %s of %v = %v", l, what, n, err)
	}
}

// promise is that the store keeps others out, whoever has the hold.
type promise struct {
	mode   lock.Mode
	until  time.Duration // true time
	handle string        // by which it can be attached; "": it has a min_hold
}

// promises are what the store has promised, by resource and fence, and what has ended that. They
// belong to the witness, and stand under its mutex.
type promises struct {
	of     map[string]map[lock.Fence]promise
	chains map[lock.Fence]bool // that were detached once: several have them, one after the other
	forced map[lock.Fence]bool

	forcedIDs map[lock.HoldID]bool // the same, also of who was granted only then
	given     map[lock.Fence]bool  // released, or about to be
	unsure    map[lock.Fence]bool  // about to be detached again, or released if that fails

	doomed map[string]bool          // handles that may be worth nothing
	gone   map[string]time.Duration // and those that are, since when

	keys    map[lock.HandleKey]lock.Fence
	holders map[lock.Fence][]lock.HoldID // who has attached it, in the order of the store
	taken   map[lock.HoldID]bool         // from whom it was taken over
}

func newPromises() promises {
	return promises{
		of: map[string]map[lock.Fence]promise{}, chains: map[lock.Fence]bool{}, forced: map[lock.Fence]bool{}, forcedIDs: map[lock.HoldID]bool{}, given: map[lock.Fence]bool{}, unsure: map[lock.Fence]bool{},
		doomed: map[string]bool{}, gone: map[string]time.Duration{},
		keys: map[lock.HandleKey]lock.Fence{}, holders: map[lock.Fence][]lock.HoldID{}, taken: map[lock.HoldID]bool{},
	}
}

// promises notes that the store keeps a hold until a moment at least.
func (w *witness) promises(resource string, f lock.Fence, p promise) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.promise(resource, f, p)
}

// least notes that a hold has a min_hold.
func (w *witness) least(g session.Grant, until time.Duration) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if !w.kept.forcedIDs[g.LockID] {
		w.promise(g.Resource, g.Fence, promise{mode: g.Mode, until: until})
	}
}

// promise is promises. It is worth nothing where somebody has forced the hold, or has released what
// was detached. w.mu is held.
func (w *witness) promise(resource string, f lock.Fence, p promise) {
	if w.kept.forced[f] || p.handle != "" && (w.kept.given[f] || w.kept.unsure[f]) {
		return
	}
	all := w.kept.of[resource]
	if all == nil {
		all = map[lock.Fence]promise{}
		w.kept.of[resource] = all
	}
	p.until = max(p.until, all[f].until)
	all[f] = p
}

// detached notes that a hold was detached.
func (w *witness) detached(g session.Grant, handle string, until time.Duration) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.seen.detached++
	w.kept.chains[g.Fence], w.kept.unsure[g.Fence] = true, false
	if !w.kept.forcedIDs[g.LockID] {
		w.promise(g.Resource, g.Fence, promise{mode: g.Mode, until: until, handle: handle})
	}
}

// entersKept complains where a grant breaks a promise. w.mu is held.
func (w *witness) entersKept(l *life, g session.Grant) {
	for f, p := range w.kept.of[g.Resource] {
		if f != g.Fence && (p.mode != lock.Shared || g.Mode != lock.Shared) && w.now() < p.until {
			w.complain("%s of %s: %v granted to %v, and the store keeps %d (%v) until %v", g.LockID, g.Resource, g.Mode, l, f, p.mode, p.until)
		}
	}
}

// forcing is the moment before a hold is forced, whose fence is 0 where the store has not granted it yet.
func (w *witness) forcing(id lock.HoldID, f lock.Fence) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.kept.forcedIDs[id] = true
	if f == 0 {
		f = w.fences[id]
	}
	w.kept.forced[f] = true
	for _, all := range w.kept.of {
		delete(all, f)
	}
}

// gives is the moment before somebody releases what was detached.
func (w *witness) gives(f lock.Fence) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.give(f)
}

// give is gives. w.mu is held.
func (w *witness) give(f lock.Fence) {
	w.kept.given[f] = true
	w.unkeep(f)
}

// unkeep ends the promise of what is detached. w.mu is held.
func (w *witness) unkeep(f lock.Fence) {
	for _, all := range w.kept.of {
		if all[f].handle != "" {
			delete(all, f)
		}
	}
}

// detaches is the moment before an app detaches a hold: until that is answered, nothing is promised. It reports whether the app relied on
// the hold until now.
func (w *witness) detaches(g session.Grant, old string) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.kept.doomed[old], w.kept.unsure[g.Fence] = true, true
	w.unkeep(g.Fence)
	b := w.users[g.Resource][g.LockID]
	if b == nil {
		return false
	}
	delete(w.users[g.Resource], g.LockID)
	return !b.told && w.now() < b.until && !w.atOnce[g.LockID]
}

// worthless notes that a handle is worth nothing any more.
func (w *witness) worthless(handle string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if handle != "" {
		w.kept.gone[handle] = w.now()
	}
}

// attached complains where a handle is worth something that cannot be.
func (w *witness) attached(l *life, n letter, before time.Duration) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.seen.attached++
	if since, found := w.kept.gone[n.handle]; found && since < before {
		w.complain("%v has attached %v, whose handle is worth nothing since %v", l, n, since)
	}
}

// missed complains where a handle is worth nothing that should be.
func (w *witness) missed(l *life, n letter) {
	w.mu.Lock()
	defer w.mu.Unlock()
	p := w.kept.of[n.resource][n.fence]
	if p.handle == n.handle && !w.kept.doomed[n.handle] && w.now() < p.until {
		w.complain("%v is told that there is no %v, which the store keeps until %v", l, n, p.until)
	}
}

// keyed is the moment at which the store has detached a hold.
func (w *witness) keyed(key lock.HandleKey, id lock.HoldID) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.kept.keys[key] = w.fences[id]
}

// tookOver is the moment at which the store gives what a handle names to another one, or ends it: who had
// it is not told before.
func (w *witness) tookOver(key lock.HandleKey, id lock.HoldID) {
	w.mu.Lock()
	defer w.mu.Unlock()
	f := w.kept.keys[key]
	for _, other := range w.kept.holders[f] {
		if other != id {
			w.atOnce[other], w.kept.taken[other] = true, true
		}
	}
	if id != "" && !slices.Contains(w.kept.holders[f], id) {
		w.kept.holders[f] = append(w.kept.holders[f], id)
	}
}
