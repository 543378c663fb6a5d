package redislock

import (
	"context"
	"math/rand/v2"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/locksidecar/locksidecar/backends/leasekit"
	"github.com/locksidecar/locksidecar/lock"
)

// Listen implements leasekit.Driver. Messages may be lost whenever the connection
// is: after each new subscription all waiters ask again.
//
// In a Cluster it is an ordinary channel, which the nodes pass on to each other:
// one connection a sidecar. Sharded channels would take one a slot. So nobody knows
// there which server has sent a message, and a grant makes the waiter ask.
func (d *driver) Listen(ctx context.Context, push func(leasekit.Push)) {
	var beside sync.WaitGroup
	defer beside.Wait()
	beside.Go(func() { d.chores(ctx) })
	beside.Go(func() { d.reapDead(ctx) })
	beside.Go(func() { d.checkLater(ctx) })
	for ctx.Err() == nil {
		d.listenOnce(ctx, push)
		select {
		case <-time.After(20*time.Millisecond + rand.N(80*time.Millisecond)): //nolint:gosec // not a secret
		case <-ctx.Done():
		}
	}
}

// listenOnce reads from one subscription until it fails, or probe has found it dead.
func (d *driver) listenOnce(ctx context.Context, push func(leasekit.Push)) {
	before := d.present()
	e := &ear{sub: d.b.client.Subscribe(ctx, d.b.keys.channel+string(d.id))}
	e.ask(d.b.clock()) // whether it is subscribed
	d.ear.Store(e)
	defer d.ear.Store(nil)
	defer e.close()
	defer context.AfterFunc(ctx, e.close)()
	for {
		msg, err := e.sub.ReceiveTimeout(ctx, 0)
		if err != nil {
			return
		}
		e.asked.Store(0)
		switch m := msg.(type) {
		case *redis.Subscription:
			if before != d.present() {
				return // it is not certain who is at the other end
			}
			d.pushOnce.Do(func() { close(d.subscribed) })
			push(leasekit.Push{Kind: leasekit.Missed})
		case *redis.Message:
			if p, ok := parsePush(m.Payload); ok {
				if p.Kind == leasekit.Granted && (!d.believes(before) || d.asked.is(p.ID, d.over(d.slots[0]))) {
					p.Kind = leasekit.Woken
				}
				push(p)
			}
		}
	}
}

// ear is one subscription while it is listened to. Nothing to hear is normal, but a dead connection
// sounds the same, so the server is asked from time to time for something to hear.
type ear struct {
	sub   *redis.PubSub
	asked atomic.Int64 // when, on the clock; 0: something was heard since
	last  atomic.Int64 // when it was asked last
}

// restPause is after how long the server is asked again while nothing of the lease is in the store,
// so that nothing can be pushed. Otherwise that is done with each heartbeat.
const restPause = 15 * time.Second

func (e *ear) close() { _ = e.sub.Close() }

func (e *ear) ask(now time.Duration) {
	e.asked.Store(int64(now))
	e.last.Store(int64(now))
}

// listens has the subscription looked after, if it is time. It is called when the process is awake
// anyway: after a heartbeat. busy tells that something may be pushed.
func (d *driver) listens(busy bool) {
	e := d.ear.Load()
	if e != nil && (busy || e.asked.Load() != 0 || d.b.clock()-time.Duration(e.last.Load()) >= restPause) {
		leasekit.Ring(d.probes)
	}
}

// probe ends a subscription on which the server has not answered, or asks it again.
func (d *driver) probe(ctx context.Context) {
	e := d.ear.Load()
	if e == nil {
		return
	}
	now := d.b.clock()
	switch asked := time.Duration(e.asked.Load()); {
	case asked == 0:
		e.ask(now)
		if e.sub.Ping(ctx) != nil {
			e.close()
		}
	case now-asked > d.b.cfg.timeout:
		e.close()
	}
}

// present is the server at the end of the only road; nil in a Cluster.
func (d *driver) present() *presence {
	if len(d.slots) > 1 {
		return nil
	}
	return d.b.only.current.Load()
}

// believes tells whether a grant that a server has published is as good as an
// answer: that server is at the end of the road still, and is trusted. Where it can
// have been a replica meanwhile, only the answer to a request tells.
func (d *driver) believes(by *presence) bool {
	s := d.slots[0]
	return !d.b.cfg.failsOver() && d.b.cfg.replicas == 0 && by != nil && by == d.present() && s.trusts(by) && d.kept(s) == 0
}

// parsePush reads a message that a script has published: "g ID FENCE" granted,
// "r ID MICROSECONDS RESOURCE" revoked, "x ID" forced out of the queue, "c ID" somebody
// stands behind it.
func parsePush(payload string) (leasekit.Push, bool) {
	kind, rest, _ := strings.Cut(payload, " ")
	id, rest, _ := strings.Cut(rest, " ")
	p := leasekit.Push{Ref: leasekit.Ref{ID: lock.HoldID(id)}}
	switch kind {
	case "g":
		f, err := parseFence(rest)
		p.Kind, p.Fence = leasekit.Granted, f
		return p, err == nil
	case "x":
		p.Kind = leasekit.Woken
		return p, true
	case "c":
		p.Kind = leasekit.Contended
		return p, true
	case "r":
		text, resource, _ := strings.Cut(rest, " ")
		micros, err := strconv.ParseInt(text, 10, 64)
		p.Kind, p.Resource, p.Grace = leasekit.Revoked, lock.Resource(resource), time.Duration(micros)*time.Microsecond
		return p, err == nil
	}
	return p, false
}
