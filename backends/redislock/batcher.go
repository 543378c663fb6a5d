package redislock

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/locksidecar/locksidecar/lock"
)

const (
	// maxBatch bounds what one round trip carries.
	maxBatch = 64
	// linger is for how long the answer to a request that was sent is waited for
	// although the caller's ctx has ended: mostly it comes, and nothing is unknown.
	linger = time.Second
)

var (
	errNotSent = errors.New("not sent")
	errCut     = errors.New("sent, and not waited for")
)

// batcher sends the requests of many callers for one bucket. A caller that finds it
// free sends its request itself, with no goroutine in between. Those that come
// while a request is on its way wait, and go together in the next round trip. So
// one caller pays for nothing but its own request, and many callers share trips,
// system calls and wake-ups. Requests are carried out in the order in which they came.
type batcher struct {
	sender
	timeout time.Duration // of a request
	knows   atomic.Bool   // the server has carried out scriptAcquire

	mu      sync.Mutex
	busy    bool
	waiting []*ticket
	sending sync.WaitGroup
	trips   sync.Pool // *batch, to be used again
	tickets sync.Pool // *ticket
}

// ticket is a request that waits.
type ticket struct {
	cmd   redis.Cmder
	sent  bool          // under batcher.mu
	ready chan struct{} // gets a value when cmd has its answer
}

// batch is what goes together.
type batch struct {
	tickets []*ticket
	cmds    []redis.Cmder
}

// Process sends a request and waits for its answer. The error is also the
// command's, except these two, after which the command must not be looked at:
//
//	errNotSent: ctx ended before.
//	errCut: it was sent, and ctx has ended a while ago.
func (b *batcher) Process(ctx context.Context, cmd redis.Cmder) error {
	if ctx.Err() != nil {
		return errNotSent
	}
	b.mu.Lock()
	if !b.busy {
		b.busy = true
		b.mu.Unlock()
		lock.Queued(ctx)
		err := b.alone(ctx, cmd)
		b.pass()
		return err
	}
	t := b.ticket(cmd)
	b.waiting = append(b.waiting, t)
	b.mu.Unlock()
	lock.Queued(ctx)
	select {
	case <-t.ready:
		b.again(t)
		return cmd.Err()
	case <-ctx.Done():
	}
	b.mu.Lock()
	sent := t.sent
	if !sent {
		for i, other := range b.waiting {
			if other == t {
				b.waiting = slices.Delete(b.waiting, i, i+1)
				break
			}
		}
	}
	b.mu.Unlock()
	if !sent {
		b.again(t)
		return errNotSent
	}
	timer := time.NewTimer(linger)
	defer timer.Stop()
	select {
	case <-t.ready:
		b.again(t)
		return cmd.Err()
	case <-timer.C:
		return errCut
	}
}

// alone sends one request in the caller's goroutine. A request that is cut short
// costs its connection, so that takes a while.
func (b *batcher) alone(ctx context.Context, cmd redis.Cmder) error {
	free := context.WithoutCancel(ctx)
	if end, ok := ctx.Deadline(); ok && time.Until(end)+linger < b.timeout {
		var cancel context.CancelFunc
		free, cancel = context.WithDeadline(free, end.Add(linger))
		defer cancel()
	}
	return b.sender.Process(free, cmd)
}

func (b *batcher) ticket(cmd redis.Cmder) *ticket {
	t, used := b.tickets.Get().(*ticket)
	if !used {
		t = &ticket{ready: make(chan struct{}, 1)}
	}
	t.cmd = cmd
	return t
}

// again lets a ticket be used again that nobody else knows any more.
func (b *batcher) again(t *ticket) {
	t.cmd, t.sent = nil, false
	b.tickets.Put(t)
}

// send carries out a batch. Each command has its own answer or error after it.
func (b *batcher) send(batch *batch) {
	for _, t := range batch.tickets {
		batch.cmds = append(batch.cmds, t.cmd)
	}
	b.trip(context.Background(), batch.cmds) // a batch is of many callers; the driver's timeout bounds it
	b.pass()
	for _, t := range batch.tickets {
		t.ready <- struct{}{}
	}
	clear(batch.tickets)
	clear(batch.cmds)
	batch.tickets, batch.cmds = batch.tickets[:0], batch.cmds[:0]
	b.trips.Put(batch)
}

// pass lets the next batch go, or leaves the batcher free.
func (b *batcher) pass() {
	b.mu.Lock()
	defer b.mu.Unlock()
	n := min(len(b.waiting), maxBatch)
	if n == 0 {
		b.busy = false
		return
	}
	next, used := b.trips.Get().(*batch)
	if !used {
		next = new(batch)
	}
	next.tickets = append(next.tickets, b.waiting[:n]...)
	b.waiting = slices.Delete(b.waiting, 0, n)
	for _, t := range next.tickets {
		t.sent = true
	}
	b.sending.Go(func() { b.send(next) })
}

// unavailable makes any error of the driver an unknown outcome.
func unavailable(what string, err error) error {
	return fmt.Errorf("%s: %w: %w", what, lock.ErrUnavailable, err)
}
