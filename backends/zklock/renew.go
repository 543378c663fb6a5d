package zklock

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/locksidecar/locksidecar/backends/leasekit"
	"github.com/locksidecar/locksidecar/backends/zklock/zksession"
	"github.com/locksidecar/locksidecar/lock"
)

// Renew implements leasekit.Driver: one write, however many holds there are. What
// others have done to nodes of the lease stands in the node of the lease, which a
// heartbeat writes: it meets another version there than it has left, and reads the
// nodes that are named there. No watch has to come through for that.
func (d *driver) Renew(ctx context.Context, acks []leasekit.Revocation) (leasekit.Renewal, error) {
	select {
	case d.beats <- struct{}{}:
		defer func() { <-d.beats }()
	case <-ctx.Done():
		return leasekit.Renewal{}, unavailable("renew", context.Cause(ctx))
	}
	late, missing := d.set.Overdue(), d.takeMissing()
	if err := d.set.Beat(ctx, d.leaseNode.beat); err != nil {
		d.mu.Lock()
		d.missing = append(d.missing, missing...)
		d.mu.Unlock()
		return leasekit.Renewal{}, d.renewFailed(err)
	}
	d.explained(ctx, missing)
	if late { // waiters have not asked for anything meanwhile
		d.advanceAll()
	}
	if err := d.acknowledgeAll(ctx, acks); err != nil {
		return leasekit.Renewal{}, d.renewFailed(err)
	}
	news := leasekit.Renewal{Entries: -1}
	told, more := d.news()
	if err := d.review(ctx, told, more); err != nil {
		d.leaseNode.hear(leaseRecord{Forced: told, More: more})
		return leasekit.Renewal{}, d.renewFailed(err)
	}
	leasekit.Ring(d.renewed)
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, s := range d.spots {
		if grace, revoked := s.rec.unknown(); revoked && s.name != "" {
			news.Revoked = append(news.Revoked, leasekit.Revocation{Ref: s.Ref, Grace: grace})
		}
	}
	return news, nil
}

func (d *driver) renewFailed(err error) error {
	switch {
	case errors.Is(err, zksession.ErrExpired), errors.Is(err, lock.ErrLeaseLost), d.set.Err() != nil:
		return lock.ErrLeaseLost
	case errors.Is(err, lock.ErrUnavailable):
		return err
	}
	return unavailable("renew", err)
}

// maxAcks is how many acknowledgements are under way at a time: the next heartbeat
// stands behind them.
const maxAcks = 64

func (d *driver) acknowledgeAll(ctx context.Context, acks []leasekit.Revocation) error {
	var all sync.WaitGroup
	errs := make([]error, len(acks))
	free := make(chan struct{}, maxAcks)
	for i, a := range acks {
		free <- struct{}{}
		all.Go(func() {
			errs[i] = d.acknowledge(ctx, a)
			<-free
		})
	}
	all.Wait()
	for _, err := range errs {
		if err != nil {
			return err
		}
	}
	return nil
}

// acknowledge writes into the node of a hold that its sidecar knows that the release
// is forced: from now on its grace counts, here and for all who read that.
func (d *driver) acknowledge(ctx context.Context, a leasekit.Revocation) error {
	d.mu.Lock()
	s := d.spots[a.ID]
	d.mu.Unlock()
	if s == nil || a.Grace == 0 {
		return nil
	}
	until := d.b.clock() + a.Grace // for those who read it, it is over later
	err := insist(ctx, func() error {
		return d.rewrite(ctx, s, func(r *record) bool {
			ms := toMillis(a.Grace)
			if r.Known != nil && *r.Known <= ms {
				return false
			}
			if r.Known = &ms; r.Revoked == nil {
				r.Revoked = &ms
			}
			return true
		})
	})
	if errors.Is(err, lock.ErrNotHolder) {
		return nil
	}
	if err == nil {
		d.endAt(s, until)
	}
	return err
}

// endAt ends a hold when its grace is over, whether or not whoever forced that is
// still there.
func (d *driver) endAt(s *spot, until time.Duration) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if s.name == "" || s.ends != 0 && s.ends <= until {
		return
	}
	s.ends = until
	d.do(func(ctx context.Context) {
		for pause := until - d.b.clock(); leasekit.Sleep(ctx, pause); {
			pause = d.recheck
			d.mu.Lock()
			over, left := s.name == "" || s.gone, until-d.b.clock()
			d.mu.Unlock()
			switch {
			case over:
				return
			case left > 0: // timers count on another clock
				pause = left
			case !d.set.Overdue() && d.end(ctx, s):
				return
			}
		}
	})
}

// end deletes the nodes of a hold whose grace is over. Its holder knows.
func (d *driver) end(ctx context.Context, s *spot) bool {
	d.mu.Lock()
	remove := d.removal(s)
	s.leaving = true
	d.mu.Unlock()
	var there bool
	err := insist(ctx, func() (err error) { there, err = remove(ctx); return err })
	d.mu.Lock()
	defer d.mu.Unlock()
	if s.leaving = false; err != nil {
		return false
	}
	if s.name != "" {
		s.gone = true
		d.removed(s, there)
	}
	return true
}

// news takes what others have noted in the node of the lease.
func (d *driver) news() (told []forcedNode, all bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	told, all = d.leaseNode.news()
	d.oust(told) // find looks here or there
	return told, all
}

// oust notes which requests were forced out whose nodes are not known. d.mu is held.
func (d *driver) oust(told []forcedNode) {
	for _, f := range told {
		name := f.Node[strings.LastIndexByte(f.Node, '/')+1:]
		n, _ := parseNode(name)
		if s := d.spots[n.id]; s != nil && s.unsure && f.Node == s.l.path+"/"+name {
			s.outed = true
		}
	}
}

// review reads nodes of ours that others have noted in the node of the lease; all of
// them where there was more than could be noted, or that was deleted by hand. It was
// written after that, so what is read here of those that are named is not older.
func (d *driver) review(ctx context.Context, told []forcedNode, all bool) error {
	grace := make(map[string]int64, len(told))
	for _, f := range told {
		if g, again := grace[f.Node]; !again || f.Grace < g {
			grace[f.Node] = f.Grace
		}
	}
	if len(told) == 0 && !all {
		return nil
	}
	spots := slices.DeleteFunc(d.placed(), func(s seen) bool {
		_, named := grace[s.path]
		return !named && !all
	})
	if all { // other sessions may have made some of them since, which this one has not seen
		if err := d.leaseNode.s.Do(ctx, zksession.Barrier()); err != nil {
			return fmt.Errorf("read own holds: %w", err)
		}
	}
	calls, err := d.read(ctx, spots)
	if err != nil {
		return fmt.Errorf("read own holds: %w", err)
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	for i, s := range spots {
		switch c := calls[i]; {
		case s.node != s.path:
		case errors.Is(c.Err, zksession.ErrNoNode):
			d.deleted(s.spot)
		default:
			d.saw(s.spot, c)
			if ms, named := grace[s.path]; named && (s.rec.Revoked == nil || *s.rec.Revoked > ms) {
				s.rec.Revoked = &ms // it was overwritten since
				d.tellRevoked(s.spot)
			}
		}
	}
	return nil
}
