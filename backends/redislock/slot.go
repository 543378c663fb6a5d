package redislock

import (
	"context"
	"fmt"
	"strconv"
	"sync/atomic"
	"time"

	"github.com/locksidecar/locksidecar/backends/leasekit"
	"github.com/locksidecar/locksidecar/lock"
)

// slot is a bucket as one lease sees it.
type slot struct {
	index int
	turn  chan struct{} // who opens or closes it; has room for one
	open  atomic.Bool

	asks  atomic.Uint64 // requests so far that may leave something in it
	users atomic.Int64  // requests under way

	trusted atomic.Pointer[server] // the server whose memory is known to be that of the lease
	past    atomic.Uint64          // the version of the bucket's past that is over

	// Of the heartbeats, one at a time.
	last     *server       // who has answered
	compared *server       // whose memory was compared; it is trusted once the result was acted on
	quiet    bool          // nothing was there, and nothing under way, at the last heartbeat
	asked    uint64        // asks then
	idle     time.Duration // when something was there last
}

// server is who has answered for a bucket: a process, in a term as master.
type server struct {
	by  *presence
	run string
	// term changes when the process is promoted; "0" also when its last replica is
	// long gone.
	term string
}

// same tells whether s knows all that t knew.
func (s *server) same(t *server) bool {
	return t != nil && s.by == t.by && s.run == t.run && (s.term == t.term || s.term == "0")
}

// trusts tells whether whoever has answered is trusted with the bucket.
func (s *slot) trusts(by *presence) bool {
	t := s.trusted.Load()
	return t != nil && by != nil && t.by == by
}

// empty tells that nothing of the lease can be in the bucket.
func (s *slot) empty() bool { return s.quiet && s.asks.Load() == s.asked }

// look reads what server.lua says: run id, term, since when; and for how long that is so at least, and by the server's
// clock, where the script tells it. sent is when it was asked.
func (b *Backend) look(i int, r reply, age, clock string, sent time.Duration) (*server, error) {
	fields, _ := r.val.([]any)
	s := &server{by: r.by, run: word(fields, 0), term: word(fields, 1)}
	micros, err := strconv.ParseInt(age, 10, 64)
	byClock, noClock := strconv.ParseInt(clock, 10, 64)
	stamp, noStamp := strconv.ParseInt(word(fields, 2), 10, 64)
	switch {
	case err != nil || noClock != nil || noStamp != nil:
		return nil, fmt.Errorf("Redis answered %v", r.val) //nolint:staticcheck // a name
	case s.run == "":
		return nil, errNoRunID
	case s.by == nil:
		return nil, errAnotherServer
	}
	b.pasts[i].saw(seen{
		mark: s.run + " " + word(fields, 2), stamp: stamp, by: s.by, sent: sent,
		age: time.Duration(micros) * time.Microsecond, clock: time.Duration(byClock) * time.Microsecond, back: byClock < -1,
	}, b.clock())
	return s, nil
}

// doubts tells whether the mark of a bucket is to be replaced.
func (b *Backend) doubts(i int) bool { return b.cfg.grace != 0 && b.pasts[i].doubted() }

// open gives the arguments of the script that makes a lease known in a bucket; "": it only looks.
func (b *Backend) open(i int, id lock.LeaseID, ttl time.Duration) []any {
	mark, age, doubt := b.pasts[i].counted(b.clock())
	args := []any{string(id), ttl.Microseconds(), mark, age.Microseconds()}
	if doubt && b.cfg.grace != 0 {
		args = append(args, "1")
	}
	return args
}

// opened reads what that script says.
func (b *Backend) opened(i int, r reply, sent time.Duration) (*server, error) {
	fields, _ := r.val.([]any)
	return b.look(i, r, word(fields, 3), word(fields, 5), sent)
}

// kept is how long grants of a bucket must still be kept back.
func (d *driver) kept(s *slot) time.Duration {
	p := &d.b.pasts[s.index]
	if s.past.Load() == p.version.Load() { // spares the clock
		return 0
	}
	left, version := p.left(d.grace, d.b.clock())
	if left <= 0 {
		s.past.Store(version)
		return 0
	}
	return left
}

// enter makes sure that the lease is known in a bucket, and that it stays so until
// leave. Heartbeats renew it there.
func (d *driver) enter(ctx context.Context, s *slot) error {
	s.users.Add(1)
	if s.open.Load() {
		return nil
	}
	if err := d.openSlot(ctx, s); err != nil {
		s.users.Add(-1)
		return err
	}
	return nil
}

func (s *slot) leave() { s.users.Add(-1) }

func (d *driver) openSlot(ctx context.Context, s *slot) error {
	lock.Blocking(ctx)
	select {
	case s.turn <- struct{}{}:
		defer func() { <-s.turn }()
	case <-ctx.Done():
		return errNotSent
	}
	if s.open.Load() {
		return nil
	}
	if d.closed.Load() {
		return lock.ErrLeaseLost
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), d.b.cfg.timeout)
	defer cancel()
	k := &d.b.keys.buckets[s.index]
	for {
		d.mu.Lock()
		beats, proven := d.beats, d.b.clock() < d.renewed+d.ttl
		d.mu.Unlock()
		if !proven {
			return fmt.Errorf("open bucket: the lease waits for a heartbeat: %w", lock.ErrUnavailable)
		}
		sent, version := d.b.clock(), d.b.pasts[s.index].version.Load()
		r := d.b.run(ctx, d.b.client, scriptOpen, []string{k.leases, k.mine + string(d.id)}, d.b.open(s.index, d.id, d.ttl)...)
		if r.err != nil {
			return unavailable("open bucket", r.err)
		}
		by, err := d.b.opened(s.index, r, sent)
		if err != nil {
			return unavailable("open bucket", err)
		}
		if d.b.pasts[s.index].version.Load() != version { // so may those of its other buckets be
			leasekit.Ring(d.looks)
		}
		if r.val.([]any)[4] != int64(1) {
			return fmt.Errorf("open bucket: what the lease had there before is not cleared away yet: %w", lock.ErrUnavailable)
		}
		d.mu.Lock()
		// A heartbeat that began meanwhile has renewed the lease elsewhere, not here.
		done := d.beats == beats
		if done {
			s.trusted.Store(by)
			s.last, s.compared, s.quiet, s.idle = by, nil, false, d.b.clock()
			s.open.Store(true)
		}
		d.mu.Unlock()
		if done {
			return nil
		}
	}
}

// closeSlot ends the lease in a bucket in which it has had nothing for a while.
func (d *driver) closeSlot(ctx context.Context, s *slot) {
	select {
	case s.turn <- struct{}{}:
		defer func() { <-s.turn }()
	default:
		return
	}
	s.open.Store(false)
	if s.users.Load() > 0 || !s.empty() {
		s.open.Store(true)
		return
	}
	k := &d.b.keys.buckets[s.index]
	left := d.b.run(ctx, d.b.client, scriptDrop, []string{k.leases, k.mine + string(d.id), k.revoked + string(d.id)}, string(d.id), "")
	if left.err == nil && left.val != int64(0) {
		s.open.Store(true)
	}
}
