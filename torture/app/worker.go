package app

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"time"

	"github.com/locksidecar/locksidecar/client"
	"github.com/locksidecar/locksidecar/torture/history"
)

// worker is one thread of an app: it takes one lock after the other.
type worker struct {
	*app
	rand   *rand.Rand
	number int
	name   string // its owner in the sidecar
	next   int    // the resource that it has to get before it ends
	sent   int    // letters
}

func newWorker(a *app, i int) *worker {
	return &worker{
		app: a, number: i, name: fmt.Sprintf("%s/%d", a.Name, i), next: i,
		rand: rand.New(rand.NewPCG(a.Seed, uint64(i))), //nolint:gosec // choices that can be made again; i is small
	}
}

// work takes locks until all faults are over, and then each once more.
func (w *worker) work(ctx context.Context) {
	for ctx.Err() == nil && !w.isOver() {
		w.once(ctx)
		pause(ctx, w.upTo(20*time.Millisecond))
	}
	for last := w.next + len(w.Resources); w.next < last && ctx.Err() == nil; {
		if w.take(ctx, wish{resource: w.Resources[w.next%len(w.Resources)], wait: forever}) {
			w.next++
		}
	}
	for ctx.Err() == nil && !w.take(ctx, wish{several: w.Resources, wait: forever}) { // and all at once
		pause(ctx, again)
	}
}

// wish is an acquire and what becomes of it.
type wish struct {
	resource string
	several  []string // in place of resource: all of them, or none
	shared   bool
	wait     time.Duration // forever, client.NoWait, or how long
	cancel   time.Duration // gives up after this time; 0: does not
	maxHold  time.Duration
	minHold  time.Duration
	limit    int           // it is to be one of so many permits; 0: it is not
	detach   bool          // handed on by a handle, in the end
	enter    bool          // once more, where it is held
	turn     bool          // into a shared one, in the middle
	busy     time.Duration // how long it is held
	linger   time.Duration // after a loss, before it is acknowledged
}

const forever time.Duration = 0

func (w *worker) once(ctx context.Context) {
	if w.Letters != "" && w.chance(50) && w.answer(ctx) {
		return
	}
	q := wish{
		resource: w.Resources[w.rand.IntN(len(w.Resources))],
		shared:   w.chance(40),
		busy:     w.upTo(15 * time.Millisecond),
		linger:   w.upTo(300 * time.Millisecond),
	}
	if w.Stays && w.chance(50) {
		q.linger = w.upTo(2 * time.Second) // over the end of the lease
	}
	switch n := w.rand.IntN(100); {
	case n < 20:
		q.wait = client.NoWait
	case n < 45:
		q.wait = 10*time.Millisecond + w.upTo(1500*time.Millisecond)
	case n < 60:
		q.cancel = time.Millisecond + w.upTo(300*time.Millisecond)
	}
	switch n := w.rand.IntN(100); {
	case n < 5:
		q.busy = 500*time.Millisecond + w.upTo(2500*time.Millisecond) // over some heartbeats
	case n < 25:
		q.busy = w.upTo(250 * time.Millisecond)
	case n < 50 && w.Stays:
		q.busy = 2*time.Second + w.upTo(4*time.Second)
	}
	if w.chance(8) {
		q.maxHold = 100*time.Millisecond + w.upTo(400*time.Millisecond)
	}
	q.enter = w.chance(15)
	q.turn = !q.shared && w.chance(15)
	switch n := w.rand.IntN(100); {
	case n < 10 && w.MinHold && q.maxHold == 0 && !q.enter:
		q.minHold = 100*time.Millisecond + w.upTo(600*time.Millisecond)
	case n >= 85 && w.Letters != "" && q.maxHold == 0 && !q.enter:
		q.detach = true
	}
	switch n := w.rand.IntN(100); {
	case n < 15:
		w.takeSeveral(ctx, q)
	case n < 35 && w.Permits != "":
		w.takePermit(ctx, q)
	default:
		w.take(ctx, q)
	}
}

// takeSeveral takes, in place of a lock, two or more in any order, all of them or none.
func (w *worker) takeSeveral(ctx context.Context, q wish) {
	q.several = slices.Clone(w.Resources)
	if w.Permits != "" {
		q.several = append(q.several, w.Permits) // as a whole
	}
	w.rand.Shuffle(len(q.several), func(i, j int) { q.several[i], q.several[j] = q.several[j], q.several[i] })
	const least, most = 2, 3
	q.several = q.several[:least+w.rand.IntN(most-least+1)]
	q.resource, q.minHold, q.detach, q.enter = "", 0, false, false
	w.take(ctx, q)
}

// permits is how many there are.
const permits = 2

// takePermit takes, in place of a lock, mostly one of the permits, and now and then their resource as a whole.
func (w *worker) takePermit(ctx context.Context, q wish) {
	q.resource = w.Permits
	if w.chance(80) {
		q.limit, q.shared, q.enter, q.turn = permits, false, false, false
	}
	w.take(ctx, q)
}

// chance is true so many times of a hundred.
func (w *worker) chance(percent int) bool { return w.rand.IntN(100) < percent }

// upTo is some time shorter than d.
func (w *worker) upTo(d time.Duration) time.Duration { return time.Duration(w.rand.Int64N(int64(d))) }

// take takes a lock and gives it back; it reports whether it had it.
func (w *worker) take(ctx context.Context, q wish) bool {
	s := w.open(ctx)
	if s == nil {
		return false
	}
	o := client.AcquireOptions{Wait: q.wait, MaxHold: q.maxHold, MinHold: q.minHold, Limit: q.limit, Owner: w.name, Reentrant: q.enter, Detachable: q.detach}
	if q.shared {
		o.Mode = client.Shared
	}
	actx, cancel := context.WithCancel(ctx)
	defer cancel()
	if q.cancel != 0 {
		actx, cancel = context.WithTimeout(ctx, q.cancel)
		defer cancel()
	}
	call := history.Now()
	var l *client.Lock
	var err error
	if q.several != nil {
		l, err = s.AcquireAll(actx, q.several, o)
	} else {
		l, err = s.Acquire(actx, q.resource, o)
	}
	at := history.Now()
	if err != nil {
		w.refused(ctx, q, err)
		return false
	}
	h := &hold{worker: w, wish: q, s: s, l: l}
	r := h.record(history.Granted, at)
	r.Call, r.Shared, r.Fence, r.Until, r.Keep = call, q.shared, l.Fence, h.until(at), q.minHold
	r.Limit, r.Slot = q.limit, l.Slot
	r.Parts = w.parts(q, l)
	w.write(r)
	if q.limit != 0 && (l.Slot < 0 || l.Slot >= q.limit) {
		w.wrong(fmt.Sprintf("a permit of %d has the slot %d", q.limit, l.Slot))
	}
	h.live(ctx)
	return r.Until != 0
}

// parts are those of several that were granted at once: what was asked for, each once.
func (w *worker) parts(q wish, l *client.Lock) (all []history.Part) {
	var names []string
	for _, p := range l.Parts {
		all = append(all, history.Part{Resource: p.Resource, Lock: p.ID, Fence: p.Fence})
		names = append(names, p.Resource)
	}
	if asked := slices.Sorted(slices.Values(q.several)); !slices.Equal(asked, names) {
		w.wrong(fmt.Sprintf("who asked for all of %q has %q", asked, names))
	}
	return all
}

// refused judges a refusal: whether it can be.
func (w *worker) refused(ctx context.Context, q wish, err error) {
	r := history.Record{Kind: history.Refused, At: history.Now(), Resource: cmp.Or(q.resource, strings.Join(q.several, ", ")), Err: err.Error()}
	switch {
	case errors.Is(err, client.ErrLockHeld):
		if q.wait != client.NoWait {
			r.Kind = history.Wrong
		}
	case errors.Is(err, client.ErrWaitTimeout):
		if q.wait <= 0 {
			r.Kind = history.Wrong
		}
	case errors.Is(err, context.DeadlineExceeded): // cancelled by us
		if q.cancel == 0 {
			r.Kind = history.Wrong
		}
	case errors.Is(err, client.ErrStoreUnavailable), errors.Is(err, client.ErrLockLost):
		// The store does not answer; an administrator has taken us out of the queue.
	case errors.Is(err, client.ErrStreamEnded), errors.Is(err, client.ErrNoSidecar), errors.Is(err, client.ErrDraining),
		errors.Is(err, client.ErrSessionClosed), errors.Is(err, client.ErrSessionNotFound):
		// The sidecar was stopped or killed, or our session has ended.
	case ctx.Err() != nil:
	default:
		r.Kind = history.Wrong
	}
	w.write(r)
	if q.wait != client.NoWait || !errors.Is(err, client.ErrLockHeld) {
		pause(ctx, again)
	}
}

// hold is a lock that a worker has.
type hold struct {
	*worker
	wish
	l       *client.Lock
	s       *client.Session
	written time.Duration // when a look was written down
	chain   string        // of what is attached: the lock of its first grant; else empty
	handle  *letter       // by which it is attached; nil: it is not
}

func (h *hold) record(k history.Kind, at time.Duration) history.Record {
	r := history.Record{Kind: k, At: at, Lock: h.l.ID, Resource: h.l.Resource, Chain: h.chain}
	if k == history.Granted && h.handle != nil {
		r.Handle = h.handle.name()
	}
	return r
}

// until is until when a look at the hold finds it good; at is from before the look.
// 0: it is over.
func (h *hold) until(at time.Duration) time.Duration {
	if v := h.l.ValidFor(); v > 0 {
		return at + v
	}
	return 0
}

// look looks at the hold and writes down what it sees; it reports whether it is good.
func (h *hold) look(ctx context.Context, k history.Kind) bool {
	const enough = 10 * time.Millisecond
	at := history.Now()
	until := h.until(at)
	if until == 0 {
		h.lost(ctx)
		return false
	}
	if k != history.Checked || at-h.written > enough {
		h.written = at
		r := h.record(k, at)
		r.Until = until
		h.write(r)
	}
	return true
}

// lost writes down a loss, waits, and acknowledges it.
func (h *hold) lost(ctx context.Context) {
	at := history.Now()
	r := h.record(history.Lost, at)
	err := h.l.Err()
	var lost *client.LostError
	if errors.As(err, &lost) {
		r.Reason = lost.Reason
		if h.several != nil { // the one that was lost, where it is known
			r.Resource = lost.Resource
		}
		if left := lost.GraceLeft(); left > 0 {
			r.Until = at + left
		}
	}
	if err == nil {
		r.Kind, r.Err = history.Wrong, "a hold that is good for no time is not lost"
	}
	h.write(r)
	pause(ctx, h.linger)
	for range h.l.Count() {
		h.release(ctx)
	}
}

// live works under the lock and lets go of it.
func (h *hold) live(ctx context.Context) {
	end := history.Now() + h.busy
	if h.enter && !h.again(ctx) {
		return
	}
	if !h.sleep(ctx, end-h.busy/2) || h.turn && !h.downgrade(ctx) {
		return
	}
	if h.handle != nil && h.chance(20) {
		h.extend(ctx, h.handle)
	}
	if !h.sleep(ctx, end) {
		return
	}
	if h.detach && !h.isOver() {
		h.handOn(ctx)
		return
	}
	for h.l.Count() > 1 { // the hold is ours until the last
		h.release(ctx)
		if !h.look(ctx, history.Checked) {
			return
		}
	}
	if h.look(ctx, history.Leaving) {
		h.release(ctx)
	}
}

// again enters the hold once more; it reports whether the hold is still good.
func (h *hold) again(ctx context.Context) bool {
	o := client.AcquireOptions{Owner: h.name, Reentrant: true}
	if h.shared {
		o.Mode = client.Shared
	}
	upgrade := h.shared && h.chance(30)
	if upgrade {
		o.Mode = client.Exclusive
	}
	call := history.Now()
	l, err := h.s.Acquire(ctx, h.l.Resource, o)
	switch {
	case err != nil:
		w := wish{resource: h.l.Resource}
		if !upgrade || !errors.Is(err, client.ErrUpgradeRefused) {
			h.refused(ctx, w, err)
		}
	case l != h.l: // the first was lost meanwhile: this one is a hold of its own
		at := history.Now()
		other := &hold{worker: h.worker, wish: wish{shared: o.Mode == client.Shared}, s: h.s, l: l}
		r := other.record(history.Granted, at)
		r.Call, r.Shared, r.Fence, r.Until = call, other.shared, l.Fence, other.until(at)
		h.write(r)
		other.live(ctx)
	case upgrade:
		h.write(history.Record{Kind: history.Wrong, At: history.Now(), Err: "a shared hold was entered as an exclusive one"})
	}
	return h.look(ctx, history.Checked)
}

// sleep works until a moment, and looks at the hold now and then. False: it is over.
func (h *hold) sleep(ctx context.Context, end time.Duration) bool {
	const every = 25 * time.Millisecond
	for {
		left := end - history.Now()
		if left <= 0 || h.isOver() || ctx.Err() != nil {
			return h.look(ctx, history.Checked)
		}
		t := time.NewTimer(min(left, every))
		select {
		case <-t.C:
		case <-h.l.Lost():
		}
		t.Stop()
		if !h.look(ctx, history.Checked) {
			return false
		}
	}
}

// downgrade makes the hold a shared one.
func (h *hold) downgrade(ctx context.Context) bool {
	if !h.look(ctx, history.Checked) {
		return false
	}
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	asks := h.record(history.Downgrading, 0)
	asks.At = history.Now()
	h.write(asks)
	r := h.record(history.Downgraded, 0)
	r.Call = asks.At
	err := h.l.Downgrade(ctx)
	r.At = history.Now()
	if err != nil {
		r.Err = err.Error()
	}
	h.write(r)
	h.shared = true
	return h.look(ctx, history.Checked)
}

// release releases the hold, or a count of it, and waits for the answer.
func (h *hold) release(ctx context.Context) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 5*time.Second)
	defer cancel()
	last := h.l.Count() <= 1
	r := h.record(history.Left, 0)
	r.Call = history.Now()
	err := h.l.Release(ctx)
	r.At = history.Now()
	if err != nil {
		r.Err = err.Error()
	}
	if last {
		h.write(r)
	}
}
