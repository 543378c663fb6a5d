package redislock

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/locksidecar/locksidecar/backends/leasekit"
	"github.com/locksidecar/locksidecar/lock"
)

const (
	// maxBatch bounds what one round trip carries.
	maxBatch = 64
	// linger is for how long the answer to an acquire that was sent is waited for
	// although the caller's ctx has ended: mostly it comes, and nothing is unknown. Nobody waits for that: the app
	// has its answer. To a release or a downgrade the app has none yet, and its time is over.
	linger = time.Second
	// leastLinger is for any other that is alone on its trip: to cut that short costs a connection.
	leastLinger = 100 * time.Millisecond
)

var (
	errNotSent = errors.New("not sent")
	errCut     = errors.New("sent, and not waited for")
)

// batcher sends the requests of many callers for one bucket. A caller that finds it
// free sends its request itself, with no goroutine in between. Those that come
// while a request is on its way wait, and go together in the next round trip. So
// one caller pays for nothing but its own request, and many callers share trips,
// system calls and wake-ups. What comes in one piece from an app (lock.Burst) goes in one trip: its
// first request holds the batcher, and who comes last sends all. Requests are carried out in the order in which they came, save
// that where more wait than a trip takes, those for whom they are take turns.
type batcher struct {
	sender
	timeout time.Duration // of a request

	mu      sync.Mutex
	busy    bool
	held    bool // busy with a trip that is not sent yet: more is to come
	waiting leasekit.Turns[*ticket]
	sending sync.WaitGroup
	ends    func()    // letGo, made once
	trips   sync.Pool // *batch, to be used again
	tickets sync.Pool // *ticket
}

func newBatcher(s sender, timeout time.Duration) *batcher {
	b := &batcher{sender: s, timeout: timeout, waiting: leasekit.Turns[*ticket]{Few: maxBatch}}
	b.ends = b.letGo
	return b
}

// ticket is a request that waits.
type ticket struct {
	cmd   redis.Cmder
	sent  bool          // under batcher.mu
	ready chan struct{} // gets a value when cmd has its answer
	turn  leasekit.Turn[*ticket]
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
//	errCut: it was sent, and ctx has ended; of an acquire, a while ago.
func (b *batcher) Process(ctx context.Context, cmd redis.Cmder) error { return b.process(ctx, cmd, 0) }

// forAcquires is a batcher for acquires.
type forAcquires struct{ *batcher }

// Process is that of the batcher, with time to linger.
func (p forAcquires) Process(ctx context.Context, cmd redis.Cmder) error {
	return p.process(ctx, cmd, linger)
}

// process waits for so long for the answer to what was sent although ctx has ended.
func (b *batcher) process(ctx context.Context, cmd redis.Cmder, lingers time.Duration) error {
	if ctx.Err() != nil {
		return errNotSent
	}
	b.mu.Lock()
	sends := !b.busy || b.held
	if sends && b.waiting.Len() < maxBatch-1 && lock.Later(ctx, b.ends) {
		b.busy, b.held, sends = true, true, false
	}
	if sends {
		b.busy, b.held = true, false
	}
	if sends && b.waiting.Len() == 0 {
		b.mu.Unlock()
		lock.Queued(ctx)
		lock.Blocking(ctx)
		err := b.alone(ctx, cmd, lingers)
		b.pass()
		return err
	}
	t := b.ticket(ctx, cmd)
	b.waiting.Add(&t.turn)
	var all *batch
	if sends {
		all = b.next()
	}
	b.mu.Unlock()
	lock.Queued(ctx)
	lock.Blocking(ctx)
	if _, limited := ctx.Deadline(); all != nil && !limited {
		b.send(all) //nolint:contextcheck,nolintlint // a batch is of many callers
	} else if all != nil {
		b.sending.Go(func() { b.send(all) }) //nolint:contextcheck,nolintlint // a batch is of many callers
	}
	select {
	case <-t.ready:
		b.again(t)
		return cmd.Err()
	case <-ctx.Done():
	}
	b.mu.Lock()
	sent := t.sent
	if !sent {
		b.waiting.Remove(&t.turn)
	}
	b.mu.Unlock()
	if !sent {
		b.again(t)
		return errNotSent
	}
	if lingers == 0 {
		return errCut
	}
	timer := time.NewTimer(lingers)
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
func (b *batcher) alone(ctx context.Context, cmd redis.Cmder, lingers time.Duration) error {
	free := context.WithoutCancel(ctx)
	lingers = max(lingers, leastLinger)
	if end, ok := ctx.Deadline(); ok && time.Until(end)+lingers < b.timeout {
		var cancel context.CancelFunc
		free, cancel = context.WithDeadline(free, end.Add(lingers))
		defer cancel()
	}
	_ = b.sender.Process(free, cmd) // the command has its error
	b.teach(free, cmd)
	return cmd.Err()
}

// teach sends once more what the server has not carried out because it does not know the script (a new server, or
// SCRIPT FLUSH). That is part of the trip: nothing overtakes it.
func (b *batcher) teach(ctx context.Context, cmds ...redis.Cmder) {
	var unknown []redis.Cmder
	var taught []*script
	for _, cmd := range cmds {
		c, runs := cmd.(*command)
		if !runs || c.script == nil || !redis.HasErrorPrefix(c.Err(), "NOSCRIPT") {
			continue
		}
		args := c.Args()
		if !slices.Contains(taught, c.script) { // those after it need not have the text again
			taught = append(taught, c.script)
			args[0], args[1] = "eval", c.script.code().text
		}
		c.Cmd = *redis.NewCmd(ctx, args...)
		c.SetFirstKeyPos(firstKey)
		unknown = append(unknown, c)
	}
	if len(unknown) > 0 {
		b.trip(ctx, unknown)
	}
}

func (b *batcher) ticket(ctx context.Context, cmd redis.Cmder) *ticket {
	t, used := b.tickets.Get().(*ticket)
	if !used {
		t = &ticket{ready: make(chan struct{}, 1)}
		t.turn.Of = t
	}
	t.cmd, t.turn.From = cmd, lock.From(ctx)
	return t
}

// again lets a ticket be used again that nobody else knows any more.
func (b *batcher) again(t *ticket) {
	t.cmd, t.turn.From, t.sent = nil, nil, false
	b.tickets.Put(t)
}

// send carries out a batch. Each command has its own answer or error after it.
func (b *batcher) send(batch *batch) {
	for _, t := range batch.tickets {
		batch.cmds = append(batch.cmds, t.cmd)
	}
	ctx := context.Background() // a batch is of many callers; the driver's timeout bounds it
	b.trip(ctx, batch.cmds)
	b.teach(ctx, batch.cmds...)
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
	b.goOn()
}

// letGo sends what was held for more, unless somebody has.
func (b *batcher) letGo() {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.held {
		b.goOn()
	}
}

// goOn is pass. b.mu is held.
func (b *batcher) goOn() {
	b.held = false
	if b.busy = b.waiting.Len() > 0; b.busy {
		next := b.next()
		b.sending.Go(func() { b.send(next) })
	}
}

// next takes what goes in the next trip. b.mu is held.
func (b *batcher) next() *batch {
	next, used := b.trips.Get().(*batch)
	if !used {
		next = new(batch)
	}
	next.tickets = b.waiting.Take(next.tickets, maxBatch)
	for _, t := range next.tickets {
		t.sent = true
	}
	return next
}

// unavailable makes any error of the driver an unknown outcome.
func unavailable(what string, err error) error {
	return fmt.Errorf("%s: %w: %w", what, lock.ErrUnavailable, err)
}
