package shards

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/locksidecar/locksidecar/lock"
)

const (
	// The pauses between attempts to open a lease at a shard.
	minOpenPause = 50 * time.Millisecond
	maxOpenPause = 2 * time.Second
	// closeTime bounds the farewell to a shard whose lease was given up.
	closeTime = 5 * time.Second
	// silentTime is what is left of it where a shard has not answered for a while.
	silentTime = time.Second
)

// attend opens a lease at one shard, and the next one when that is over.
func (l *Lease) attend(t *seat) {
	for tries := 0; ; tries++ {
		err := l.open(t)
		if err == nil {
			if !l.outlive(t) {
				return
			}
			tries, err = -1, errAway
		}
		l.failed(t, err)
		d := min(minOpenPause<<min(max(tries, 0), 20), maxOpenPause)
		if !l.pause(d/2 + rand.N(d/2)) { //nolint:gosec // spreads attempts, no secret
			return
		}
	}
}

// failed notes why a shard has no lease.
func (l *Lease) failed(t *seat, err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.isLost {
		return
	}
	t.tried = true
	if t.now == nil && !errors.Is(err, errAway) {
		t.why = err
		l.b.tell(News{Shard: t.name, Why: err})
	}
	l.report()
	if other := (*MismatchError)(nil); errors.As(err, &other) { // of no shard it knows whose locks live there
		l.end()
	}
}

// report wakes OpenLease. l.mu is held.
func (l *Lease) report() { ring(l.opened) }

// pause sleeps; it reports false when the lease is over.
func (l *Lease) pause(d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-l.lost:
		return false
	}
}

// outlive waits for the end of the part that has the seat. It reports false when the whole lease is over.
func (l *Lease) outlive(t *seat) bool {
	l.mu.Lock()
	p := t.now
	l.mu.Unlock()
	if p != nil { // else it has ended already
		l.compare(t, p)
	}
	select {
	case <-l.lost:
		return false
	default:
		return true
	}
}

// compare looks from time to time whether a shard belongs to the set still, until the part is over.
func (l *Lease) compare(t *seat, p *part) {
	ticker := time.NewTicker(lookSet)
	defer ticker.Stop()
	for {
		select {
		case <-ticker.C:
		case <-p.ctx.Done():
			return
		}
		ctx, cancel := context.WithTimeout(p.ctx, l.o.TTL)
		found, err := t.readSet(ctx)
		cancel()
		if err == nil {
			err = l.b.compare(t.shard, found)
		}
		if other := (*MismatchError)(nil); errors.As(err, &other) {
			l.b.tell(News{Shard: t.name, Why: err})
			l.mu.Lock()
			l.end()
			l.mu.Unlock()
			return
		}
	}
}

// open opens a lease at a shard and lets it join the others.
func (l *Lease) open(t *seat) error {
	ctx, cancel := context.WithTimeout(l.ctx, l.o.TTL)
	defer cancel()
	if err := l.b.admit(ctx, t.shard); err != nil {
		return err
	}
	opened := l.b.o.Clock()
	inner, err := t.OpenLease(ctx, l.o)
	if err != nil {
		return fmt.Errorf("open lease: %w", err)
	}
	p := &part{seat: t, lease: inner, prompt: lock.TellsBlocking(inner), proven: opened, holds: make(map[lock.HoldID]hold)}
	p.ctx, p.giveUp = context.WithCancelCause(l.ctx)
	l.tasks.Go(func() { l.pump(p) })
	if err := l.join(ctx, p); err != nil {
		farewell, cancel := context.WithTimeout(context.WithoutCancel(ctx), closeTime)
		defer cancel()
		p.giveUp(errAway)
		_ = inner.Close(farewell)
		return err
	}
	l.b.tell(News{Shard: t.name})
	return nil
}

// join counts a part among the others, as soon as it has answered a heartbeat that was sent
// after all that the lease has begun. So it is proven for as long as any of these proves the lease.
func (l *Lease) join(ctx context.Context, p *part) error {
	for {
		l.mu.Lock()
		sent := l.b.o.Clock()
		switch {
		case l.isLost:
			l.mu.Unlock()
			return lock.ErrLeaseLost
		case p.proven >= l.latest:
			p.now, p.why, p.tried = p, nil, true
			p.turn()
			l.parts[p] = struct{}{}
			l.report()
			l.mu.Unlock()
			return nil
		}
		l.mu.Unlock()
		if _, err := p.lease.Heartbeat(ctx); err != nil { // it has no holds, so there are no news
			return fmt.Errorf("first heartbeat: %w", err)
		}
		p.proven = sent // nobody else knows it yet
	}
}

// pump passes the news of a part on.
func (l *Lease) pump(p *part) {
	for e := range p.lease.Events() {
		for _, e := range l.fresh(p, []lock.Event{e}) {
			select {
			case l.events <- e:
			case <-p.ctx.Done():
			}
		}
	}
}

// retire closes the lease of a part that was given up, when the shard keeps nobody out by it any more: until then the
// apps stop their work. It lets the next ones in where the shard is back.
func (l *Lease) retire(p *part) {
	for left := p.until - l.b.o.Clock(); left > 0; left = p.until - l.b.o.Clock() {
		if !l.pause(min(left, time.Second)) {
			return // Close closes it
		}
	}
	ctx, cancel := context.WithTimeout(l.ctx, closeTime)
	defer cancel()
	_ = p.lease.Close(ctx) // what it could not reach ends with the TTL
	l.mu.Lock()
	defer l.mu.Unlock()
	delete(l.parts, p)
	for id, h := range p.holds {
		if h.granted { // else the request may be made again, which must not find what this lease has left
			delete(l.holds, id)
		}
	}
}

// Close implements lock.Lease. A shard that does not answer does not hold up the others.
func (l *Lease) Close(ctx context.Context) error {
	err := error(lock.ErrLeaseLost)
	l.closed.Do(func() {
		l.mu.Lock()
		l.end()
		parts := len(l.parts)
		errs := make(chan error, parts)
		for p := range l.parts {
			limit := closeTime
			if p.over || p.behind != 0 {
				limit = silentTime
			}
			go func() { errs <- p.close(ctx, limit) }()
		}
		l.mu.Unlock()
		l.stop()
		var all []error
		for range parts {
			all = append(all, <-errs)
		}
		err = join(all...)
		l.tasks.Wait()
		close(l.events)
	})
	return err
}

func (p *part) close(ctx context.Context, limit time.Duration) error {
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	if err := p.lease.Close(ctx); err != nil && !errors.Is(err, lock.ErrLeaseLost) {
		return fmt.Errorf("close lease at shard %s: %w", p.name, err)
	}
	return nil
}
