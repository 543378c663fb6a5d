package session

import (
	"container/list"
	"context"
	"slices"
	"sync"
	"time"

	"github.com/locksidecar/locksidecar/lock"
)

// loose are the holds that were detached through this sidecar, as far as they are not known to be
// over, for the limits of them. What was released through another sidecar, or by who could not be answered, is found
// out only when a limit is reached.
type loose struct {
	mu    sync.Mutex
	of    map[lock.HandleKey]*looseHold
	by    map[Share]*list.List // of *looseHold, in the order in which they were detached; those of shares with a limit
	sweep int                  // how many there may be before those whose time is over are looked for
}

type looseHold struct {
	key      lock.HandleKey
	in       []spot
	resource lock.Resource // "": it is about to be detached
	fence    lock.Fence
	until    time.Duration // on the clock
}

// spot is where a hold stands among those of a share.
type spot struct {
	of Share
	at *list.Element
}

const (
	// maxChecks is how many the store is asked about before a hold is refused, the oldest first.
	maxChecks = 16
	// firstSweep is when those whose time is over are looked for at first; later, when there are twice as many as were left.
	firstSweep = 64
)

// allowance is how many a share may have.
type allowance struct {
	of   Share
	most int
}

// detaches takes room for a hold of a session under that key, or gives a *LimitError. was is the key that
// the hold had before: under that it has its room already, if it was detached here.
func (m *Manager) detaches(ctx context.Context, s *Session, key, was lock.HandleKey) error {
	var rooms []allowance
	for _, u := range s.usages {
		if most := m.o.Limits.of(u.of.Level).Detached; most > 0 {
			rooms = append(rooms, allowance{u.of, most})
		}
	}
	full := m.loose.reserve(rooms, key, was, m.o.Clock())
	if full == nil {
		return nil
	}
	lock.Blocking(ctx)
	ctx, cancel := context.WithTimeout(ctx, answerLimit)
	defer cancel()
	for range rooms { // each of them may be full
		if m.tidy(ctx, full.of) == 0 {
			break
		}
		if full = m.loose.reserve(rooms, key, was, m.o.Clock()); full == nil {
			return nil
		}
	}
	return &LimitError{Limit: "detached holds per " + full.of.Kind(), Max: full.most}
}

// tidy asks the store about some holds of a share, and tells how many of them are over.
func (m *Manager) tidy(ctx context.Context, of Share) (over int) {
	for _, h := range m.loose.oldest(of, maxChecks) {
		st, err := m.o.Backend.Get(ctx, h.resource)
		if err == nil && !slices.ContainsFunc(st.Holders, func(o lock.Holding) bool { return o.Fence == h.fence }) {
			m.loose.drop(h.key)
			over++
		}
	}
	return over
}

// reserve notes a key, or gives who has no room for it.
func (l *loose) reserve(rooms []allowance, key, was lock.HandleKey, now time.Duration) (full *allowance) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.of == nil {
		l.of, l.by, l.sweep = make(map[lock.HandleKey]*looseHold), make(map[Share]*list.List), firstSweep
	}
	if len(l.of) >= l.sweep {
		for _, h := range l.of {
			l.expire(h, now)
		}
		l.sweep = max(firstSweep, 2*len(l.of))
	}
	for i := range rooms {
		if !l.hasRoom(rooms[i], was, now) {
			return &rooms[i]
		}
	}
	h := &looseHold{key: key, in: make([]spot, 0, len(rooms))}
	for _, r := range rooms {
		all := l.by[r.of]
		if all == nil {
			all = list.New()
			l.by[r.of] = all
		}
		h.in = append(h.in, spot{r.of, all.PushBack(h)})
	}
	l.of[key] = h
	return nil
}

// hasRoom tells whether a share may have one more. l.mu is held.
func (l *loose) hasRoom(r allowance, was lock.HandleKey, now time.Duration) bool {
	all := l.by[r.of]
	if all == nil {
		return true
	}
	if h := l.of[was]; h != nil && slices.ContainsFunc(h.in, func(in spot) bool { return in.of == r.of }) {
		r.most++
	}
	if all.Len() < r.most {
		return true
	}
	for _, h := range holdsOf(all, all.Len()) {
		l.expire(h, now)
	}
	return all.Len() < r.most
}

// holdsOf gives the first n of a line.
func holdsOf(all *list.List, n int) []*looseHold {
	first := make([]*looseHold, 0, n)
	for e := all.Front(); e != nil && len(first) < n; e = e.Next() {
		first = append(first, e.Value.(*looseHold)) //nolint:forcetypeassert // only reserve adds
	}
	return first
}

// expire forgets a hold if its time is over. l.mu is held.
func (l *loose) expire(h *looseHold, now time.Duration) {
	if h.resource != "" && h.until <= now {
		l.remove(h)
	}
}

// remove forgets a hold. l.mu is held.
func (l *loose) remove(h *looseHold) {
	delete(l.of, h.key)
	for _, in := range h.in {
		all := l.by[in.of]
		if all.Remove(in.at); all.Len() == 0 {
			delete(l.by, in.of)
		}
	}
}

// oldest gives up to n of a share's, which go to the end of the line: the next time others are
// looked at.
func (l *loose) oldest(of Share, n int) []looseHold {
	l.mu.Lock()
	defer l.mu.Unlock()
	all := l.by[of]
	if all == nil {
		return nil
	}
	var some []looseHold
	for _, h := range holdsOf(all, n) {
		for _, in := range h.in {
			if in.of == of {
				all.MoveToBack(in.at)
			}
		}
		if h.resource != "" {
			some = append(some, *h)
		}
	}
	return some
}

// set notes what a key is of, if it was detached here, and until when.
func (l *loose) set(key lock.HandleKey, r lock.Resource, f lock.Fence, until time.Duration) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if h := l.of[key]; h != nil {
		h.resource, h.fence, h.until = r, f, until
	}
}

// drop forgets a hold that is over.
func (l *loose) drop(key lock.HandleKey) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if h := l.of[key]; h != nil {
		l.remove(h)
	}
}
