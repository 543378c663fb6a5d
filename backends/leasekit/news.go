package leasekit

import (
	"context"
	"time"

	"github.com/locksidecar/locksidecar/lock"
)

// standing are the revocations under way, as moments. The caller tells them.
func (l *Lease) standing() []lock.Event {
	l.mu.Lock()
	defer l.mu.Unlock()
	var all []lock.Event
	for _, e := range l.forced {
		if e.held {
			all = append(all, e.event())
			l.wasTold(e, e.until)
		}
	}
	return all
}

// wasTold notes that somebody knows of a revocation. l.mu is held.
func (l *Lease) wasTold(e *entry, until time.Duration) {
	if e.until == until && !e.told {
		e.told = true
		Ring(l.ackBell)
	}
}

// tell passes revocations on that came by push. It does nothing that can block but
// for that, so that none waits for the acknowledgement of another.
//
// Model: force.TELL.
func (l *Lease) tell(ctx context.Context) {
	for {
		select {
		case <-l.newsBell:
		case <-l.lost:
			return
		case <-ctx.Done():
			return
		}
		for e, ev := l.next(); e != nil; e, ev = l.next() {
			select {
			case l.events <- ev:
			case <-l.lost:
				return
			case <-ctx.Done():
				return
			}
			if ev.Kind == lock.Contended {
				continue
			}
			l.mu.Lock()
			l.wasTold(e, ev.Until)
			l.mu.Unlock()
		}
	}
}

// next takes what Events has to tell next: revocations come first.
func (l *Lease) next() (*entry, lock.Event) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for len(l.news) > 0 {
		e := l.news[0]
		l.news[0] = nil
		l.news = l.news[1:]
		e.telling = false
		if !e.removed { // not released since
			return e, e.event()
		}
	}
	for len(l.behind) > 0 {
		e := l.behind[0]
		l.behind[0] = nil
		l.behind = l.behind[1:]
		if !e.removed {
			return e, lock.Event{Kind: lock.Contended, Resource: e.Resource, ID: e.ID}
		}
	}
	return nil, lock.Event{}
}

// acknowledge acknowledges what was told. What fails here the next heartbeat does.
func (l *Lease) acknowledge(ctx context.Context) {
	for {
		select {
		case <-l.ackBell:
		case <-l.lost:
			return
		case <-ctx.Done():
			return
		}
		l.mu.Lock()
		due := len(l.due()) > 0
		l.mu.Unlock()
		if due {
			limit, cancel := context.WithTimeout(ctx, l.o.TTL/3)
			_, _ = l.renew(limit)
			cancel()
		}
	}
}
