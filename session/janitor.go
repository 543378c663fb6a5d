package session

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"time"

	"github.com/locksidecar/locksidecar/lock"
)

const (
	// maxReleases bounds the releases that one lease has in flight in the
	// background: a session with 10,000 holds ends quickly and does not flood
	// the store.
	maxReleases = 64
	// choreTimeout bounds one of them.
	choreTimeout = 5 * time.Second
)

// janitor releases in the background what nobody waits for any more, or what
// may have been left behind by a request whose outcome is unknown. It goes on
// until the store answers or the lease is over, so nothing is left behind while
// the sidecar lives; what dies with the lease needs no janitor.
type janitor struct {
	ctx    context.Context // the life of the lease, not of a call
	lease  lock.Lease
	lost   func() // is told when the store says that the lease is lost
	logger *logger
	wg     sync.WaitGroup

	mu      sync.Mutex
	fresh   []chore
	failed  []chore // wait for retry
	retry   *time.Timer
	tries   int // since the store last answered
	workers int
	stopped bool
}

// chore is one id to be released.
type chore struct {
	resource lock.Resource
	id       lock.HoldID
	batch    *batch // optional
	done     func() // optional: is called when it is finished
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

func (c chore) finish() {
	if c.done != nil {
		c.done()
	}
	if c.batch != nil && c.batch.left.Add(-1) == 0 {
		close(c.batch.done)
	}
}

func newJanitor(ctx context.Context, l lock.Lease, lost func(), logger *logger) *janitor {
	return &janitor{ctx: ctx, lease: l, lost: lost, logger: logger}
}

// add takes a chore on and returns at once.
func (j *janitor) add(c chore) {
	j.mu.Lock()
	defer j.mu.Unlock()
	if j.stopped {
		c.finish()
		return
	}
	j.fresh = append(j.fresh, c)
	j.hire()
}

// hire sees to it that there are enough workers. j.mu is held.
func (j *janitor) hire() {
	for range min(len(j.fresh), maxReleases-j.workers) {
		j.workers++
		j.wg.Go(j.work)
	}
}

func (j *janitor) work() {
	for {
		j.mu.Lock()
		if len(j.fresh) == 0 {
			j.workers--
			j.mu.Unlock()
			return
		}
		c := j.fresh[0]
		j.fresh = j.fresh[1:]
		j.mu.Unlock()

		ctx, cancel := context.WithTimeout(j.ctx, choreTimeout)
		err := j.lease.Release(ctx, c.resource, c.id)
		cancel()
		if errors.Is(err, lock.ErrUnavailable) {
			j.again(c, err)
			continue
		}
		if errors.Is(err, lock.ErrLeaseLost) {
			j.lost()
		}
		// Released, or not there (any more), or over with the lease.
		j.mu.Lock()
		j.tries = 0
		j.mu.Unlock()
		c.finish()
	}
}

// again keeps a chore for later.
func (j *janitor) again(c chore, err error) {
	j.mu.Lock()
	defer j.mu.Unlock()
	if j.stopped {
		c.finish()
		return
	}
	j.failed = append(j.failed, c)
	if j.retry != nil {
		return
	}
	j.logger.Debug("release in the background: will try again", keyResource, c.resource, keyLockID, c.id, keyError, err)
	j.retry = time.AfterFunc(backoff(j.tries, minPause, maxPause), func() {
		j.mu.Lock()
		defer j.mu.Unlock()
		j.fresh = append(j.fresh, j.failed...)
		j.failed, j.retry = nil, nil
		j.hire()
	})
	j.tries++
}

// stop drops what is left, because the lease is over. The janitor's ctx must
// have ended.
func (j *janitor) stop() {
	j.mu.Lock()
	j.stopped = true
	finishAll(j.fresh)
	finishAll(j.failed)
	j.fresh, j.failed = nil, nil
	if j.retry != nil {
		j.retry.Stop()
	}
	j.mu.Unlock()
	j.wg.Wait()
}

func finishAll(chores []chore) {
	for _, c := range chores {
		c.finish()
	}
}
