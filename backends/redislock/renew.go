package redislock

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/locksidecar/locksidecar/backends/leasekit"
	"github.com/locksidecar/locksidecar/lock"
)

// Renew implements leasekit.Driver: one request, in a Cluster one a bucket in use,
// sent together.
func (d *driver) Renew(ctx context.Context, acks []leasekit.Revocation) (leasekit.Renewal, error) {
	select {
	case d.beatTurn <- struct{}{}:
		defer func() { <-d.beatTurn }()
	case <-ctx.Done():
		return leasekit.Renewal{}, unavailable("renew", context.Cause(ctx))
	}
	if d.b.foreign.Load() {
		return leasekit.Renewal{}, unavailable("renew", errLayout)
	}
	sent := d.b.clock()
	open, calls := d.beat()
	failed := d.acknowledge(ctx, acks)
	if errors.Is(failed, lock.ErrLeaseLost) {
		return leasekit.Renewal{}, failed
	}
	if d.b.cfg.replicas > 0 { // no Cluster: there is one call
		calls[0].reply = d.b.run(ctx, &d.b.sender, scriptHeartbeat, calls[0].keys, calls[0].args...)
	} else {
		_ = d.b.runTogether(ctx, scriptHeartbeat, calls) // each call has its own error
	}
	var news leasekit.Renewal
	var silence error // of buckets that nothing depends on
	var silent []*slot
	alive, lost := 0, false
	for n, s := range open {
		switch err := d.renewed1(ctx, s, calls[n].reply, sent, &news); {
		case err == nil:
			alive++
		case s.empty() && len(d.slots) > 1: // nothing of the lease depends on that server
			silent = append(silent, s)
			lost = lost || err == lock.ErrLeaseLost //nolint:errorlint // made here
			silence = err
		case err == lock.ErrLeaseLost: //nolint:errorlint // made here
			return leasekit.Renewal{}, err
		default:
			failed = cmp.Or(failed, unavailable("renew", err))
		}
	}
	if news.Stranger {
		leasekit.Ring(d.looks)
	}
	if len(silent) < len(open) { // else these are the last ones
		for _, s := range silent {
			s.open.Store(false) // a request that comes meanwhile opens it again
		}
	}
	switch {
	case failed != nil:
		return news, failed
	case alive == 0 && lost:
		return leasekit.Renewal{}, lock.ErrLeaseLost
	case alive == 0:
		return leasekit.Renewal{}, unavailable("renew", silence)
	}
	d.mu.Lock()
	d.renewed = max(d.renewed, sent)
	d.mu.Unlock()
	d.closeIdle(ctx, open, alive)
	d.settle()
	d.listens(news.Entries != 0)
	return news, nil
}

// beat begins a heartbeat: which buckets it goes to.
func (d *driver) beat() ([]*slot, []call) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.beats++
	forget := "0"
	if now := d.b.clock(); now-d.forgot > forgetEvery {
		d.forgot, forget = now, "1"
	}
	var open []*slot
	var calls []call
	for _, s := range d.slots {
		if !s.open.Load() {
			continue
		}
		asks := s.asks.Load()
		s.quiet = s.quiet && asks == s.asked && s.users.Load() == 0 // until the answer says otherwise
		s.asked = asks
		k := &d.b.keys.buckets[s.index]
		open = append(open, s)
		calls = append(calls, call{
			keys: []string{k.leases, k.mine + string(d.id), k.revoked + string(d.id), k.reaper, k.records, k.recordEnds},
			args: []any{string(d.id), d.ttl.Microseconds(), d.sweeps(s.index), forget},
		})
	}
	return open, calls
}

// renewed1 takes the answer for one bucket.
func (d *driver) renewed1(ctx context.Context, s *slot, r reply, sent time.Duration, news *leasekit.Renewal) error {
	switch {
	case redis.HasErrorPrefix(r.err, "TRYAGAIN"):
		return d.renewMoving(ctx, s, news)
	case r.err != nil:
		return r.err
	case r.val == nil:
		return lock.ErrLeaseLost
	case r.copies < d.b.cfg.replicas:
		return fmt.Errorf("%d replicas have the heartbeat, %d must", r.copies, d.b.cfg.replicas)
	}
	fields, _ := r.val.([]any)
	if len(fields) != 6 {
		return fmt.Errorf("Redis answered %v", r.val) //nolint:staticcheck // a name
	}
	by, err := d.b.look(s.index, r, "0", "-1", sent)
	if err != nil {
		return err
	}
	d.meet(s, by, news)
	d.looked(findingOf(s.index, fields[5]))
	n, _ := fields[3].(int64)
	s.quiet = n == 0 && s.asks.Load() == s.asked && s.users.Load() == 0
	if !s.quiet {
		s.idle = d.b.clock()
	}
	if news.Entries >= 0 {
		news.Entries += int(n)
	}
	pairs, _ := fields[4].([]any)
	for i := 0; i+1 < len(pairs); i += 2 {
		r, id := parseMember(word(pairs, i))
		micros, err := strconv.ParseFloat(word(pairs, i+1), 64)
		if err != nil {
			return fmt.Errorf("grace: %w", err)
		}
		news.Revoked = append(news.Revoked, leasekit.Revocation{
			Ref: leasekit.Ref{Resource: r, ID: id}, Grace: time.Duration(micros) * time.Microsecond,
		})
	}
	return nil
}

// meet compares who has answered with who is trusted. A stranger becomes trusted
// at the heartbeat after its memory was compared: by then its result was acted on.
//
// Model: failover.STRANGER.
func (d *driver) meet(s *slot, by *server, news *leasekit.Renewal) {
	s.last = by
	switch {
	case by.same(s.trusted.Load()):
	case by.same(s.compared):
		s.trusted.Store(by)
	default:
		s.trusted.Store(nil)
		s.compared = nil
		news.Stranger = true
	}
}

// renewMoving is the heartbeat of a bucket whose keys move to another node right
// now: the lease lives, and the news come when they have moved.
func (d *driver) renewMoving(ctx context.Context, s *slot, news *leasekit.Renewal) error {
	k := &d.b.keys.buckets[s.index]
	r := d.b.run(ctx, d.b.client, scriptRenew, []string{k.leases}, string(d.id), d.ttl.Microseconds())
	switch {
	case r.err != nil:
		return r.err
	case r.val == nil:
		return lock.ErrLeaseLost
	}
	s.quiet = false
	news.Entries = -1
	return nil
}

// settle has the servers told that the grace is over, where nobody has told them yet. So a sidecar that
// starts later need not wait. It also has them told where a mark is in doubt, and asked where it may be, in case a request
// for that was lost.
func (d *driver) settle() {
	now := d.b.clock()
	for i := range d.b.pasts {
		if d.b.pasts[i].untold(d.grace, now) || d.b.cfg.grace != 0 && d.b.pasts[i].unsettled() {
			leasekit.Ring(d.looks)
		}
	}
}

// closeIdle closes buckets in which nothing has been for a TTL, but for one: the first if
// it can, whose heartbeats look for dead leases for all.
func (d *driver) closeIdle(ctx context.Context, open []*slot, alive int) {
	now := d.b.clock()
	for _, s := range slices.Backward(open) {
		if alive > 1 && s.open.Load() && s.empty() && now-s.idle > d.ttl {
			d.closeSlot(ctx, s)
			alive--
		}
	}
}

// acknowledge tells the store which revocations are known: from now on it counts
// their grace. Where the keys of a bucket move to another node right now, it cannot
// be told: a heartbeat names these again once the keys have moved.
func (d *driver) acknowledge(ctx context.Context, acks []leasekit.Revocation) (failed error) {
	calls := make([]call, 0, len(acks))
	for _, a := range acks {
		k := &d.b.keys.buckets[d.b.keys.bucketOf(a.Resource)]
		calls = append(calls, call{
			keys: []string{k.leases, k.lock + string(a.Resource), k.revoked + string(d.id)},
			args: []any{string(d.id), string(a.ID), member(a.Resource, a.ID), a.Grace.Microseconds()},
		})
	}
	_ = d.b.runAll(ctx, scriptAck, calls) // each call has its own error
	for _, c := range calls {
		switch {
		case redis.HasErrorPrefix(c.err, "TRYAGAIN"):
		case c.err != nil:
			failed = unavailable("acknowledge forced release", c.err)
		case c.val == int64(-1):
			return lock.ErrLeaseLost
		}
	}
	return failed
}

// Held implements leasekit.Driver. The answers must be of the very servers that
// have answered the last heartbeat.
func (d *driver) Held(ctx context.Context, each func(leasekit.Ref)) error {
	select {
	case d.beatTurn <- struct{}{}:
		defer func() { <-d.beatTurn }()
	case <-ctx.Done():
		return unavailable("compare", context.Cause(ctx))
	}
	var read []*slot
	for _, s := range d.slots {
		if !s.open.Load() {
			continue
		}
		if err := d.heldIn(ctx, s, each); err != nil {
			return unavailable("compare", err) // nothing of it will be acted on
		}
		read = append(read, s)
	}
	for _, s := range read {
		s.compared = s.last
	}
	return nil
}

const heldPage = 256

func (d *driver) heldIn(ctx context.Context, s *slot, each func(leasekit.Ref)) error {
	from := "-"
	for {
		cmd := newCommand(ctx, "zrangebylex", d.b.keys.buckets[s.index].mine+string(d.id), from, "+", "limit", 0, heldPage)
		if err := d.b.client.Process(ctx, cmd); err != nil {
			return err
		}
		if s.last == nil || cmd.by == nil || cmd.by != s.last.by {
			return errAnotherServer
		}
		page, err := cmd.StringSlice()
		if err != nil {
			return err
		}
		for _, m := range page {
			r, id := parseMember(m)
			each(leasekit.Ref{Resource: r, ID: id})
		}
		if len(page) < heldPage {
			return nil
		}
		from = "(" + page[len(page)-1]
	}
}

// Waiting implements leasekit.Sorter.
func (d *driver) Waiting(ctx context.Context, holds []leasekit.Hold) ([]leasekit.Ref, error) {
	select {
	case d.beatTurn <- struct{}{}:
		defer func() { <-d.beatTurn }()
	case <-ctx.Done():
		return nil, unavailable("compare", context.Cause(ctx))
	}
	calls := make([]call, len(holds))
	for i, r := range holds {
		k := &d.b.keys.buckets[d.b.keys.bucketOf(r.Resource)]
		calls[i] = call{keys: []string{k.lock + string(r.Resource)}, args: []any{string(r.ID)}}
	}
	if err := d.b.runAll(ctx, scriptHolds, calls); err != nil {
		return nil, unavailable("compare", err)
	}
	var waiting []leasekit.Ref
	for i, c := range calls {
		if s := d.slots[d.b.keys.bucketOf(holds[i].Resource)]; s.last == nil || c.by == nil || c.by != s.last.by {
			return nil, unavailable("compare", errAnotherServer)
		}
		fence, held := c.val.(string)
		if has, err := parseFence(fence); !held || err != nil || has.Slot() != holds[i].Fence.Slot() {
			waiting = append(waiting, holds[i].Ref)
		}
	}
	return waiting, nil
}
