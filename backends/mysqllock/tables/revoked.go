package tables

import (
	"context"
	"time"

	"github.com/locksidecar/locksidecar/lock"
)

// This file is about what a lease does when the release of a hold is forced.

// markKey is a hold whose release is forced.
type markKey struct {
	name lock.Resource
	id   string
}

// revoke takes the news that the release of a hold of this lease is forced. The
// grace counts from now on. It reports whether that is news for the holder, who is
// to be told before it is acknowledged.
func (l *lease) revoke(r lock.Resource, id lock.HoldID, grace time.Duration) (ev lock.Event, ok bool) {
	now := l.b.clock()
	l.mu.Lock()
	e := l.entries[id]
	if e != nil && (!e.revoked || grace == 0 && e.until != 0 || grace > 0 && now+grace < e.until) {
		e.revoked, e.until, ok = true, 0, true
		if grace > 0 {
			e.until = now + grace
		}
		ev = e.event(id)
	}
	l.mu.Unlock()
	switch {
	case e == nil: // nobody relies on it any more
		l.keeper.endAt(markKey{r, string(id)}, now)
		l.keeper.acknowledgeSoon(r, id, grace)
	case ok && grace > 0:
		l.keeper.endAt(markKey{r, string(id)}, now+grace)
	}
	return ev, ok
}

// event tells that the release of a hold is forced. l.mu is held.
func (e *entry) event(id lock.HoldID) lock.Event {
	return lock.Event{Kind: lock.Revoked, Resource: e.resource, ID: id, Until: e.until}
}

// revocations are the holds of the lease whose release is forced and that have
// not been released.
func (l *lease) revocations() (news []lock.Event) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for id, e := range l.entries {
		if e.revoked && !e.out {
			news = append(news, e.event(id))
		}
	}
	return news
}

// endAt notes when the grace of a forced release is over. The earliest counts.
func (k *keeper) endAt(m markKey, at time.Duration) {
	k.mu.Lock()
	was, known := k.marks[m]
	sooner := !known || at < was
	if sooner {
		k.marks[m] = at
	}
	k.mu.Unlock()
	if sooner {
		poke(k.look)
	}
}

// forceDue ends holds whose grace is over, and says when the next one is due.
// Usually whoever forced the release has done it.
func (k *keeper) forceDue(ctx context.Context) (next time.Duration) {
	clock := k.l.b.clock
	next = clock() + mostPause
	k.mu.Lock()
	var due []markKey
	for m, at := range k.marks {
		if at <= clock() {
			due = append(due, m)
			delete(k.marks, m)
		} else {
			next = min(next, at)
		}
	}
	k.mu.Unlock()
	for _, m := range due {
		if k.l.b.endForced(ctx, m.name, m.id, true) != nil {
			at := clock() + leastPause
			k.endAt(m, at)
			next = min(next, at)
		}
	}
	return next
}

// acknowledgeSoon has it written down that this sidecar knows of a forced release,
// after it has told the holder: from then on others count the grace, too. Without a
// grace there is nothing to count.
func (k *keeper) acknowledgeSoon(r lock.Resource, id lock.HoldID, grace time.Duration) {
	micros := grace.Microseconds()
	if micros == 0 {
		return
	}
	k.noteAck(markKey{r, string(id)}, micros)
	poke(k.toAck)
}

func (k *keeper) noteAck(m markKey, micros int64) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if was, known := k.acks[m]; !known || micros < was {
		k.acks[m] = micros
	}
}

// acknowledge writes acknowledgements until ctx ends. The app may keep the row of
// the resource locked for long, so one that fails is tried again after the others.
func (k *keeper) acknowledge(ctx context.Context) {
	const patience = 100 * time.Millisecond
	again := time.NewTimer(patience)
	defer again.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-again.C:
		case <-k.toAck:
		}
		k.mu.Lock()
		acks := k.acks
		k.acks = make(map[markKey]int64)
		k.mu.Unlock()
		for m, micros := range acks {
			if k.l.b.acknowledge(ctx, m, string(k.l.id), micros) != nil {
				k.noteAck(m, micros)
				again.Reset(patience)
			}
		}
	}
}
