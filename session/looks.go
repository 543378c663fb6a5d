package session

import (
	"context"
	"slices"
	"sync"
	"time"

	"github.com/locksidecar/locksidecar/lock"
)

const (
	// lookRest is how many times its own length a look rests before the next one of
	// the same prefix: where a look takes long, watches look less often.
	lookRest = 3
	// maxLooks is how many prefixes are looked at at a time, and maxOwnLooks how many of one space: so
	// the watches of one leave places to those of others.
	maxLooks    = 4
	maxOwnLooks = 2
)

// looks lets watches share what they see. They look at moments that are the same
// for all watches of an interval, and one of those with the same prefix looks for
// all, so watches cost the store no more than one would. There is no goroutine
// for it: who needs a look and finds none in progress makes it.
type looks struct {
	mu     sync.Mutex
	began  time.Time // the moments count from here
	of     map[looked]*lookers
	busy   chan struct{}           // one place for each look
	places map[string]*placesOfOne // of spaces, by prefix; the one of everybody has all
}

// placesOfOne are those of one space.
type placesOfOne struct {
	watches int
	busy    chan struct{} // one place for each look
}

// looked is what a look is of. The same names are others in another space.
type looked struct{ space, prefix string }

// lookers are the watches of one prefix in one space.
type lookers struct {
	watches int
	places  *placesOfOne  // nil: it may have all
	looking chan struct{} // closed when the look in progress is over; nil: there is none
	latest  *snapshot     // nil: there was none yet
	failed  failedLook
	rest    time.Time // no look begins before
}

// lister lists everything, and tells which parts of the store it lacks; before is what the look before has seen.
type lister func(ctx context.Context, before map[lock.Resource]lock.Status) (map[lock.Resource]lock.Status, *lock.PartialError, error)

type failedLook struct {
	started time.Time
	err     error
}

// snapshot is what one look has seen. Nobody changes it.
type snapshot struct {
	number  int
	started time.Time
	locks   map[lock.Resource]lock.Status
	lacks   *lock.PartialError // nil: all parts of the store have answered
	changes []WatchEvent       // since the snapshot with the number before
}

// after tells what has changed since an earlier snapshot.
func (s *snapshot) after(seen *snapshot) []WatchEvent {
	switch s.number {
	case seen.number:
		return nil
	case seen.number + 1:
		return s.changes
	default:
		return s.since(seen)
	}
}

// since is what after tells of snapshots that do not follow each other.
func (s *snapshot) since(seen *snapshot) []WatchEvent {
	list := changes(seen.locks, s.locks)
	if !slices.Equal(seen.lacks.Names(), s.lacks.Names()) {
		list = slices.Insert(list, 0, WatchEvent{Kind: Missing, Lacks: s.lacks})
	}
	return list
}

func (l *looks) join(sp *Space, prefix string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.of == nil {
		l.began, l.of, l.busy = time.Now(), make(map[looked]*lookers), make(chan struct{}, maxLooks)
		l.places = make(map[string]*placesOfOne)
	}
	key := looked{sp.prefix, prefix}
	if l.of[key] == nil {
		l.of[key] = &lookers{}
		if !sp.Whole() {
			l.of[key].places = l.placesOf(sp)
		}
	}
	l.of[key].watches++
	if own := l.of[key].places; own != nil {
		own.watches++
	}
}

// placesOf gives the places of a space. l.mu is held.
func (l *looks) placesOf(sp *Space) *placesOfOne {
	own := l.places[sp.prefix]
	if own == nil {
		own = &placesOfOne{busy: make(chan struct{}, maxOwnLooks)}
		l.places[sp.prefix] = own
	}
	return own
}

func (l *looks) leave(sp *Space, prefix string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	key := looked{sp.prefix, prefix}
	g := l.of[key]
	if g.watches--; g.watches == 0 {
		delete(l.of, key)
	}
	if own := g.places; own != nil {
		if own.watches--; own.watches == 0 {
			delete(l.places, sp.prefix)
		}
	}
}

// next is the next moment at which watches of that interval look.
func (l *looks) next(interval time.Duration) time.Time {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.began.Add((time.Since(l.began)/interval + 1) * interval)
}

// since gives a snapshot that was started then or later, for a watch that
// has joined. It returns list's error, or the cause of ctx.
func (l *looks) since(ctx context.Context, sp *Space, prefix string, at time.Time, list lister) (*snapshot, error) {
	for {
		l.mu.Lock()
		g := l.of[looked{sp.prefix, prefix}]
		switch {
		case g.latest != nil && !g.latest.started.Before(at):
			defer l.mu.Unlock()
			return g.latest, nil
		case g.failed.err != nil && !g.failed.started.Before(at):
			defer l.mu.Unlock()
			return nil, g.failed.err
		}
		wait := g.looking
		if wait == nil {
			g.looking = make(chan struct{})
		}
		l.mu.Unlock()
		if wait == nil {
			if err := l.look(ctx, g, list); err != nil {
				return nil, err
			}
			continue
		}
		select {
		case <-wait:
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		}
	}
}

// look looks for all of g. Its error is that of ctx: then another one looks.
func (l *looks) look(ctx context.Context, g *lookers, list lister) (err error) {
	var started time.Time
	var locks map[lock.Resource]lock.Status
	var lacks *lock.PartialError
	var failed error
	defer func() {
		l.mu.Lock()
		defer l.mu.Unlock()
		switch {
		case err != nil:
		case failed != nil:
			g.failed = failedLook{started: started, err: failed}
		default:
			s := &snapshot{started: started, locks: locks, lacks: lacks}
			if g.latest != nil {
				s.number, s.changes = g.latest.number+1, s.since(g.latest)
			}
			g.latest = s
		}
		if !started.IsZero() {
			g.rest = time.Now().Add(lookRest * time.Since(started))
		}
		close(g.looking)
		g.looking = nil
	}()
	if err := sleepUntil(ctx, g.rest); err != nil { // nobody else looks, so nobody changes it
		return err
	}
	if g.places != nil {
		if err := takePlace(ctx, g.places.busy); err != nil {
			return err
		}
		defer func() { <-g.places.busy }()
	}
	if err := takePlace(ctx, l.busy); err != nil {
		return err
	}
	defer func() { <-l.busy }()
	started = time.Now()
	var before map[lock.Resource]lock.Status
	if g.latest != nil { // nobody else looks, so nobody changes it
		before = g.latest.locks
	}
	if locks, lacks, failed = list(ctx, before); failed != nil && ctx.Err() != nil {
		return context.Cause(ctx)
	}
	return nil
}

// takePlace waits for a place, which is to be given back, or gives the cause of ctx.
func takePlace(ctx context.Context, places chan struct{}) error {
	select {
	case places <- struct{}{}:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// sleepUntil returns nil at that moment, or the cause of ctx.
func sleepUntil(ctx context.Context, at time.Time) error {
	left := time.Until(at)
	if left <= 0 {
		return nil
	}
	t := time.NewTimer(left)
	defer t.Stop()
	select {
	case <-t.C:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}
