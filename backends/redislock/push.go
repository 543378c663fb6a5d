package redislock

import (
	"context"
	"errors"
	"math/rand/v2"
	"net"
	"strconv"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/locksidecar/locksidecar/lock"
)

// listen reads the lease's channel until ctx ends. Messages may be lost whenever
// the connection is: after each new subscription all waiters ask again.
//
// In a Cluster it is an ordinary channel, which the nodes pass on to each other:
// one connection a sidecar. Sharded channels would take one a slot.
func (l *lease) listen(ctx context.Context, subscribed func()) {
	for ctx.Err() == nil {
		l.listenOnce(ctx, subscribed)
		select {
		case <-time.After(20*time.Millisecond + rand.N(80*time.Millisecond)): //nolint:gosec // not a secret
		case <-ctx.Done():
		}
	}
}

// listenOnce reads from one subscription until it fails or falls silent.
func (l *lease) listenOnce(ctx context.Context, subscribed func()) {
	push := l.b.client.Subscribe(ctx, l.b.keys.channel+string(l.id))
	closePush := func() { _ = push.Close() }
	defer closePush()
	defer context.AfterFunc(ctx, closePush)()
	asked := false
	for {
		msg, err := push.ReceiveTimeout(ctx, l.recheck)
		var timeout net.Error
		switch {
		case err == nil:
			asked = false
		case errors.As(err, &timeout) && timeout.Timeout() && !asked:
			// Nothing to hear is normal, but a dead connection sounds the same.
			if asked = true; push.Ping(ctx) != nil {
				return
			}
			continue
		default:
			return
		}
		switch m := msg.(type) {
		case *redis.Subscription:
			subscribed()
			l.missed()
		case *redis.Message:
			l.pushed(m.Payload)
		}
	}
}

// missed makes all waiters ask the store again.
func (l *lease) missed() {
	l.mu.Lock()
	close(l.resync)
	l.resync = make(chan struct{})
	l.mu.Unlock()
}

// pushed takes a message that a script published:
// "g ID FENCE" granted, "r ID MILLISECONDS RESOURCE" revoked, "x ID" forced out of the queue.
func (l *lease) pushed(payload string) {
	kind, rest, _ := strings.Cut(payload, " ")
	id, rest, _ := strings.Cut(rest, " ")
	switch kind {
	case "g":
		fence, err := strconv.ParseInt(rest, 10, 64)
		if err != nil {
			return
		}
		l.mu.Lock()
		if e := l.entries[lock.HoldID(id)]; e != nil { // else it was given up at the same time, and its release is on the way
			e.fence = lock.Fence(fence)
			e.wake()
		}
		l.mu.Unlock()
	case "x":
		l.mu.Lock()
		if e := l.entries[lock.HoldID(id)]; e != nil {
			e.out = true
			e.wake()
		}
		l.mu.Unlock()
	case "r":
		ms, resource, _ := strings.Cut(rest, " ")
		grace, err := strconv.ParseInt(ms, 10, 64)
		if err != nil {
			return
		}
		ev := lock.Event{Kind: lock.Revoked, Resource: lock.Resource(resource), ID: lock.HoldID(id)}
		if grace > 0 {
			ev.Until = l.b.servers.clock() + time.Duration(grace)*time.Millisecond
		}
		l.tell(ev)
	}
}
