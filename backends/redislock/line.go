package redislock

import (
	"context"
	"sync"

	"github.com/redis/go-redis/v9"
)

// maxBatch bounds what one round trip carries.
const maxBatch = 256

// line sends the requests of many callers for one bucket. A caller that finds it
// free sends its request itself, with no goroutine in between. Those that come
// while a request is on its way wait, and go together in the next round trip,
// which the first of them sends. So one caller pays for nothing but its own
// request, and many callers share trips, system calls and wake-ups.
type line struct {
	client redis.UniversalClient

	mu      sync.Mutex
	busy    bool
	waiting []*ticket
}

// ticket is a request that waits.
type ticket struct {
	cmd   redis.Cmder
	batch []*ticket     // for the one that is to send it, itself first
	ready chan struct{} // closed when batch is set, or cmd has its answer
}

// Process sends a request and waits for its answer. The error is also the
// command's.
func (l *line) Process(ctx context.Context, cmd redis.Cmder) error {
	l.mu.Lock()
	if !l.busy {
		l.busy = true
		l.mu.Unlock()
		err := l.client.Process(ctx, cmd)
		l.pass()
		return err
	}
	t := &ticket{cmd: cmd, ready: make(chan struct{})}
	l.waiting = append(l.waiting, t)
	l.mu.Unlock()
	<-t.ready
	if t.batch != nil {
		l.send(ctx, t.batch)
		l.pass()
		for _, other := range t.batch[1:] {
			close(other.ready)
		}
	}
	return cmd.Err()
}

// send carries out a batch. Each command has its own answer or error after it.
func (l *line) send(ctx context.Context, batch []*ticket) {
	if len(batch) == 1 {
		_ = l.client.Process(ctx, batch[0].cmd)
		return
	}
	pipe := l.client.Pipeline()
	for _, t := range batch {
		_ = pipe.Process(ctx, t.cmd) // only queues it
	}
	_, _ = pipe.Exec(ctx)
}

// pass lets the next batch go, or leaves the line free.
func (l *line) pass() {
	l.mu.Lock()
	n := min(len(l.waiting), maxBatch)
	if n == 0 {
		l.busy = false
		l.mu.Unlock()
		return
	}
	batch := l.waiting[:n:n]
	l.waiting = l.waiting[n:]
	l.mu.Unlock()
	batch[0].batch = batch
	close(batch[0].ready)
}
