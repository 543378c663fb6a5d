package shards

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/locksidecar/locksidecar/lock"
)

const (
	// tellings is how many heartbeats tell a loss after its push: more than can be under way at a time.
	tellings = 8
	// minPause is between two heartbeats at a shard that has refused the first one's connection.
	minPause = 10 * time.Millisecond
)

// The proof of a lease is over a TTL after the last heartbeat that all shards have answered, and its
// keeper gives it up a margin earlier, a tenth of the TTL. A shard that does not answer must be given up
// before that, with time for the next heartbeat.
//
// patienceOf is how long after that heartbeat a shard is given up that does not answer, while others do.
func patienceOf(ttl time.Duration) time.Duration { return ttl * 7 / 10 }

// minLag is the smallest lagOf: less than that a busy machine makes a difference by itself.
const minLag = 40 * time.Millisecond

// lagOf is how long at least a shard must have answered less than another one. A sidecar that stood
// still sends a heartbeat first, before it gives up anything.
func lagOf(ttl time.Duration) time.Duration { return max(ttl/20, minLag) }

// beat is the heartbeat at one shard, as a part of one of the lease.
type beat struct {
	*part
	done chan struct{} // closed when the others are set
	news []lock.Event
	err  error
}

// Heartbeat implements lock.Lease. It asks all shards side by side, and waits for those that are not
// given up meanwhile.
func (l *Lease) Heartbeat(ctx context.Context) ([]lock.Event, error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	sent, beats, err := l.beginBeat(ctx)
	if err != nil {
		return nil, err
	}
	var failed []error
	var news []lock.Event
	for _, b := range beats {
		select {
		case <-b.done:
			news = append(news, b.news...)
			if b.err != nil && b.ctx.Err() == nil {
				failed = append(failed, b.explain(b.err))
			}
		case <-b.ctx.Done(): // given up
		case <-ctx.Done():
			failed = append(failed, fmt.Errorf("%w: shard %s: %w", lock.ErrUnavailable, b.name, context.Cause(ctx)))
		}
	}
	return l.endBeat(sent, news, failed)
}

// beginBeat asks all shards. Those that join later have answered a heartbeat that was sent
// after it, see join.
func (l *Lease) beginBeat(ctx context.Context) (sent time.Duration, beats []*beat, err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.isLost {
		return 0, nil, fmt.Errorf("heartbeat: %w", lock.ErrLeaseLost)
	}
	sent = l.b.o.Clock()
	l.latest = max(l.latest, sent)
	for _, t := range l.seats {
		if t.now != nil {
			b := &beat{part: t.now, done: make(chan struct{})}
			beats = append(beats, b)
			l.tasks.Go(func() { l.beat(ctx, b, sent) })
		}
	}
	return sent, beats, nil
}

// beat asks one shard, until it answers, or ctx ends, or the shard is given up.
func (l *Lease) beat(ctx context.Context, b *beat, sent time.Duration) {
	defer close(b.done)
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	defer context.AfterFunc(b.ctx, cancel)() //nolint:contextcheck,nolintlint // what follows has the life of the lease
	for pause := minPause; ; pause = min(2*pause, l.o.TTL/12) {
		var news []lock.Event
		news, b.err = b.lease.Heartbeat(ctx)
		b.news = append(b.news, l.fresh(b.part, news)...)
		switch {
		case b.err == nil:
			l.answered(b.part, sent)
			return
		case errors.Is(b.err, lock.ErrLeaseLost):
			l.lose(b.part, b.err) //nolint:contextcheck,nolintlint // what follows has the life of the lease
			b.err = nil           // its losses are told by the lease
			return
		}
		select {
		case <-time.After(pause):
		case <-ctx.Done():
			return
		}
	}
}

// answered notes that a shard has answered a heartbeat that was sent then.
func (l *Lease) answered(p *part, sent time.Duration) {
	l.mu.Lock()
	defer l.mu.Unlock()
	p.proven = max(p.proven, sent)
	now := l.b.o.Clock()
	newest := p.proven
	for _, t := range l.seats {
		if t.now != nil {
			newest = max(newest, t.now.proven)
		}
	}
	for _, t := range l.seats {
		switch o := t.now; {
		case o == nil:
		case o.proven >= newest:
			o.behind = 0
		case o.behind == 0:
			o.behind = now
		}
	}
}

// fresh leaves out of news what was told by another way, and forgets what they end.
func (l *Lease) fresh(p *part, news []lock.Event) (fresh []lock.Event) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if p.over { // all its holds are told as lost
		return nil
	}
	for _, e := range news {
		if e.Kind == lock.Vanished && l.holds[e.ID] == p {
			l.forget(e.ID)
		}
	}
	return news
}

// endBeat says what a heartbeat has proven.
func (l *Lease) endBeat(sent time.Duration, news []lock.Event, failed []error) ([]lock.Event, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	var left []*loss
	for _, x := range l.losses {
		news = append(news, x.Event)
		if x.beats--; x.beats > 0 || !x.pushed {
			left = append(left, x)
		}
	}
	l.losses = left
	switch {
	case l.isLost:
		return news, fmt.Errorf("heartbeat: %w", lock.ErrLeaseLost)
	case len(failed) > 0:
		return news, fmt.Errorf("heartbeat: %w", join(failed...))
	}
	l.proven = max(l.proven, sent)
	return news, nil
}

// watch gives up shards that do not answer while others do, before the proof of the lease is over.
func (l *Lease) watch() {
	alarm := lock.NewAlarm(l.b.alarm)
	defer alarm.Close()
	for {
		next := l.look()
		due := l.b.o.Clock() + next
		alarm.Reset(next)
		select {
		case <-alarm.C:
		case <-l.lost:
			return
		}
		l.excuse(l.b.o.Clock() - due)
	}
}

// excuse gives all shards time to answer when the sidecar itself stood still for so long.
func (l *Lease) excuse(late time.Duration) {
	if late < lagOf(l.o.TTL) {
		return
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	now := l.b.o.Clock()
	for _, t := range l.seats {
		if t.now != nil && t.now.behind != 0 {
			t.now.behind = now
		}
	}
}

// look gives up what has to be given up, and says in what time to look again.
func (l *Lease) look() time.Duration {
	l.mu.Lock()
	defer l.mu.Unlock()
	now := l.b.o.Clock()
	if left := l.proven + patienceOf(l.o.TTL) - now; left > 0 {
		return left
	}
	lag := lagOf(l.o.TTL)
	for _, t := range l.seats {
		if p := t.now; p != nil && p.behind != 0 && now-p.behind >= lag {
			l.drop(p, p.proven+l.o.TTL, errSilent)
		}
	}
	return lag / 2
}

var errSilent = errors.New("it did not answer to the heartbeat in time, while other shards did")

// lose ends a part whose shard has said that its lease is lost. It reports whether the whole lease is.
func (l *Lease) lose(p *part, why error) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.drop(p, 0, why)
	return l.isLost
}

// drop ends a part. The shard keeps its holds until that moment; 0: it has ended them. l.mu is held.
//
// Where the proof of the whole lease is over, or none of the parts is left, the shard's word is that of
// the store.
func (l *Lease) drop(p *part, until time.Duration, why error) {
	if p.over || l.isLost {
		return
	}
	p.over, p.until = true, until
	p.now, p.why = nil, why
	lost := 0
	for id, h := range p.holds {
		if !h.granted {
			continue
		}
		lost++
		x := &loss{Event: lock.Event{Kind: lock.Expired, Resource: h.resource, ID: id, Until: until}, beats: tellings}
		if until == 0 {
			x.Kind = lock.Vanished
		}
		l.losses = append(l.losses, x)
	}
	p.giveUp(errAway)
	p.ring()
	if until == 0 && (l.b.o.Clock() >= l.proven+l.o.TTL || l.alone()) {
		l.end()
		return
	}
	ring(l.pushed)
	l.b.tell(News{Shard: p.name, Why: why, Holds: lost})
	l.tasks.Go(func() { l.retire(p) })
}

// alone reports whether no part is left. l.mu is held.
func (l *Lease) alone() bool {
	for _, t := range l.seats {
		if t.now != nil {
			return false
		}
	}
	return true
}

// end ends the whole lease. l.mu is held.
func (l *Lease) end() {
	if l.isLost {
		return
	}
	l.isLost = true
	close(l.lost)
	for _, t := range l.seats {
		t.turn()
	}
	for p := range l.parts {
		p.giveUp(lock.ErrLeaseLost)
		p.ring()
	}
}

// turn tells who waits for a shard that it is back, or that the lease is over. Lease.mu is held.
func (t *seat) turn() {
	for _, bell := range t.bells {
		bell.Ring()
	}
}

// ring tells who waits at a part that it is over. Lease.mu is held.
func (p *part) ring() {
	for _, h := range p.holds {
		if h.bell != nil {
			h.bell.Ring()
		}
	}
}

func ring(bell chan struct{}) {
	select {
	case bell <- struct{}{}:
	default:
	}
}

// push tells losses before the next heartbeat does.
func (l *Lease) push() {
	for {
		select {
		case <-l.pushed:
		case <-l.lost:
			return
		}
		for x := l.untold(); x != nil; x = l.untold() {
			select {
			case l.events <- x.Event:
			case <-l.lost:
				return
			}
		}
	}
}

// untold takes a loss that was not pushed yet.
func (l *Lease) untold() *loss {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, x := range l.losses {
		if !x.pushed {
			x.pushed = true
			return x
		}
	}
	return nil
}
