package session

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"time"

	"github.com/locksidecar/locksidecar/lock"
	"github.com/locksidecar/locksidecar/session/ledger"
)

const (
	// maxReleases bounds the releases that one lease has in flight in the
	// background, at each place: a session with 10,000 holds ends quickly and does not flood
	// the store.
	maxReleases = 64
	// maxRetries bounds those among them that the store did not answer before.
	maxRetries = maxReleases / 2
	// firstTimeout bounds the first try of one, choreTimeout each later one. The store
	// may be silent about a single lock, as a database is while an app's transaction
	// holds the row.
	firstTimeout = time.Second
	choreTimeout = 5 * time.Second
)

// janitor releases in the background what nobody waits for any more, or what
// may have been left behind by a request whose outcome is unknown. It goes on
// until the store answers or the lease is over, so nothing is left behind while
// the sidecar lives; what dies with the lease needs no janitor. A hold that is, or may be,
// detached does not die with the lease: the janitor of the next one goes on with it.
//
// Sessions take turns, and what was not answered comes after what is new, so one
// with ten thousand holds, or with some that the store does not answer for, holds
// up no other.
type janitor struct {
	ctx    context.Context // the life of the lease, not of a call
	lease  lock.Lease
	lost   func()      // is told when the store says that the lease is lost
	heir   func(chore) // goes on with what the end of the lease does not end; it does not block
	logger *logger
	wg     sync.WaitGroup

	mu      sync.Mutex
	fresh   turns
	late    turns   // were not answered once
	failed  []chore // wait for retry, to be late
	retry   *time.Timer
	tries   int // since the store last answered
	workers int
	lates   int     // workers with one that is late
	left    []chore // for the heir
	stopped bool
}

// chore is one id to be released.
type chore struct {
	session  ID
	resource lock.Resource
	id       lock.HoldID
	key      lock.HandleKey // not empty: also where it is detached
	former   lock.HandleKey // not empty: also where it was not detached by that one, and is again what it was
	batch    *batch         // optional
	done     func()         // optional: is called when it is finished
	tried    func()         // optional: is called when it was not answered for the first time
	gone     func()         // optional: is called when it is finished
	late     bool
}

// turns are chores of which each session has one in its turn.
type turns struct {
	of    map[ID][]chore
	order []ID
	n     int
}

func (t *turns) push(c chore) {
	if t.of == nil {
		t.of = make(map[ID][]chore)
	}
	if len(t.of[c.session]) == 0 {
		t.order = append(t.order, c.session)
	}
	t.of[c.session] = append(t.of[c.session], c)
	t.n++
}

func (t *turns) pop() (chore, bool) {
	if t.n == 0 {
		return chore{}, false
	}
	t.n--
	s := t.order[0]
	t.order = t.order[1:]
	c, left := t.of[s][0], t.of[s][1:]
	if len(left) == 0 {
		delete(t.of, s)
	} else {
		t.of[s] = left
		t.order = append(t.order, s)
	}
	return c, true
}

// batch is a number of chores that somebody waits for.
type batch struct {
	left atomic.Int64
	done chan struct{} // closed when all are done, or when the lease is over
}

func newBatch(n int) *batch {
	b := &batch{done: make(chan struct{})}
	b.left.Store(int64(n))
	if n == 0 {
		close(b.done)
	}
	return b
}

// outlives tells whether what is to be released may be there although its lease is over.
func (c chore) outlives() bool { return c.key != "" }

func (c chore) finish() {
	if c.gone != nil {
		c.gone()
	}
	if c.done != nil {
		c.done()
	}
	if c.batch != nil && c.batch.left.Add(-1) == 0 {
		close(c.batch.done)
	}
}

// janitors are those of a lease, one for each place where its resources live: releases at one that does not answer hold up
// none at another.
type janitors struct {
	lease lock.Lease
	all   []*janitor // by number of the place
}

func newJanitors(ctx context.Context, l lock.Lease, lost func(), heir func(chore), logger *logger) *janitors {
	js := &janitors{lease: l}
	for range lock.PlacesOf(l) {
		js.all = append(js.all, newJanitor(ctx, l, lost, heir, logger))
	}
	return js
}

// add takes a chore on and returns at once.
func (js *janitors) add(c chore) { js.all[lock.PlaceOf(js.lease, c.resource)].add(c) }

// stop stops all.
func (js *janitors) stop() {
	for _, j := range js.all {
		j.stop()
	}
}

func newJanitor(ctx context.Context, l lock.Lease, lost func(), heir func(chore), logger *logger) *janitor {
	return &janitor{ctx: ctx, lease: l, lost: lost, heir: heir, logger: logger}
}

// add takes a chore on and returns at once.
func (j *janitor) add(c chore) {
	j.mu.Lock()
	if !j.stopped {
		j.fresh.push(c)
		j.hire()
		j.mu.Unlock()
		return
	}
	j.mu.Unlock()
	c.finish()
	if c.outlives() {
		j.heir(c)
	}
}

// over finishes a chore whose lease is over. j.mu is held.
func (j *janitor) over(c chore) {
	c.finish()
	if c.outlives() {
		j.left = append(j.left, c)
	}
}

// hire sees to it that there are enough workers. j.mu is held.
func (j *janitor) hire() {
	for range min(j.fresh.n+min(j.late.n, maxRetries-j.lates), maxReleases-j.workers) {
		j.workers++
		j.wg.Go(j.work)
	}
}

// next is what a worker does next. j.mu is held.
func (j *janitor) next() (c chore, ok bool) {
	if c, ok = j.fresh.pop(); ok || j.lates == maxRetries {
		return c, ok
	}
	if c, ok = j.late.pop(); ok {
		j.lates++
	}
	return c, ok
}

func (j *janitor) work() {
	j.mu.Lock()
	defer j.mu.Unlock()
	for {
		c, ok := j.next()
		if !ok {
			j.workers--
			return
		}
		j.mu.Unlock()
		unknown := j.do(c)
		j.mu.Lock()
		if c.late {
			j.lates--
		}
		if unknown != nil {
			j.again(c, unknown)
		} else {
			j.tries = 0
		}
	}
}

// release asks the store to release it.
func (c chore) release(ctx context.Context, l lock.Lease) error {
	if c.key == "" {
		return l.Release(ctx, c.resource, c.id)
	}
	err := detach(ctx, l, c.resource, c.id, ledger.Exit{Key: c.key})
	if errors.Is(err, lock.ErrNotHolder) && c.former != "" {
		err = detach(ctx, l, c.resource, c.id, ledger.Exit{Key: c.former})
	}
	return err
}

// do asks the store. Its error: the outcome is unknown.
func (j *janitor) do(c chore) error {
	limit := firstTimeout
	if c.late {
		limit = choreTimeout
	}
	ctx, cancel := context.WithTimeout(context.WithValue(j.ctx, lock.FromKey{}, c.session), limit) // sessions take turns in the store, too
	err := c.release(ctx, j.lease)
	cancel()
	if errors.Is(err, lock.ErrUnavailable) {
		return err
	}
	if errors.Is(err, lock.ErrLeaseLost) {
		j.lost()
		j.mu.Lock()
		defer j.mu.Unlock()
		j.over(c)
		return nil
	}
	c.finish() // released, or not there (any more)
	return nil
}

// again keeps a chore for later. j.mu is held.
func (j *janitor) again(c chore, err error) {
	if j.stopped {
		j.over(c)
		return
	}
	if c.late = true; c.tried != nil {
		c.tried()
		c.tried = nil
	}
	j.failed = append(j.failed, c)
	if j.retry != nil {
		return
	}
	j.logger.Debug("release in the background: will try again", keyResource, c.resource, keyLockID, c.id, keyError, err)
	j.retry = time.AfterFunc(backoff(j.tries, minPause, maxPause), func() {
		j.mu.Lock()
		defer j.mu.Unlock()
		for _, c := range j.failed {
			j.late.push(c)
		}
		j.failed, j.retry = nil, nil
		j.hire()
	})
	j.tries++
}

// stop drops what is left, because the lease is over, or gives it to the heir. The janitor's
// ctx must have ended.
func (j *janitor) stop() {
	j.mu.Lock()
	j.stopped = true
	for _, c := range j.failed {
		j.over(c)
	}
	for _, list := range []*turns{&j.fresh, &j.late} {
		for c, ok := list.pop(); ok; c, ok = list.pop() {
			j.over(c)
		}
	}
	j.failed = nil
	if j.retry != nil {
		j.retry.Stop()
	}
	j.mu.Unlock()
	j.wg.Wait()
	for _, c := range j.left { // nobody adds to it any more
		j.heir(c)
	}
}
