package session

import (
	"context"
	"slices"
	"sync"
	"time"

	"github.com/locksidecar/locksidecar/lock"
)

// loose are the holds that were detached through this sidecar, as far as they are not known to be
// over, for the limit of them. What was released through another sidecar is found out only
// when the limit is reached.
type loose struct {
	mu sync.Mutex
	of map[lock.HandleKey]*looseHold
	by map[Principal][]*looseHold // in the order in which they were detached
}

type looseHold struct {
	key      lock.HandleKey
	who      Principal
	resource lock.Resource // "": it is about to be detached
	fence    lock.Fence
	until    time.Duration // on the clock
}

// maxChecks is how many the store is asked about before a hold is refused, the oldest first.
const maxChecks = 16

// detaches takes room for a hold of a principal under that key, or gives a *LimitError. was is the key that
// the hold had before: under that it has its room already, if it was detached here.
func (m *Manager) detaches(ctx context.Context, who Principal, key, was lock.HandleKey) error {
	limit := m.o.Limits.DetachedPerUID
	if m.loose.has(who, was) {
		limit++
	}
	if m.loose.reserve(who, key, limit, m.o.Clock()) {
		return nil
	}
	lock.Blocking(ctx)
	ctx, cancel := context.WithTimeout(ctx, answerLimit)
	defer cancel()
	for _, h := range m.loose.oldest(who, maxChecks) {
		st, err := m.o.Backend.Get(ctx, h.resource)
		if err == nil && !slices.ContainsFunc(st.Holders, func(o lock.Holding) bool { return o.Fence == h.fence }) {
			m.loose.drop(h.key)
		}
	}
	if m.loose.reserve(who, key, limit, m.o.Clock()) {
		return nil
	}
	return &LimitError{Limit: "detached holds per " + who.Kind(), Max: m.o.Limits.DetachedPerUID}
}

// has tells whether a principal's hold is known by that key.
func (l *loose) has(who Principal, key lock.HandleKey) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	h := l.of[key]
	return h != nil && h.who == who
}

func (l *loose) reserve(who Principal, key lock.HandleKey, limit int, now time.Duration) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if len(l.by[who]) >= limit {
		for _, h := range l.by[who] {
			if h.resource != "" && h.until <= now {
				delete(l.of, h.key)
			}
		}
		l.tidy(who)
	}
	if len(l.by[who]) >= limit {
		return false
	}
	if l.of == nil {
		l.of, l.by = make(map[lock.HandleKey]*looseHold), make(map[Principal][]*looseHold)
	}
	h := &looseHold{key: key, who: who}
	l.of[key] = h
	l.by[who] = append(l.by[who], h)
	return true
}

// tidy leaves out what is not there any more. l.mu is held.
func (l *loose) tidy(who Principal) {
	var left []*looseHold
	for _, h := range l.by[who] {
		if l.of[h.key] == h {
			left = append(left, h)
		}
	}
	if l.by[who] = left; left == nil {
		delete(l.by, who)
	}
}

// oldest gives up to n of a principal's, which go to the end of the line: the next time others are
// looked at.
func (l *loose) oldest(who Principal, n int) []looseHold {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.tidy(who)
	line := l.by[who]
	n = min(n, len(line))
	l.by[who] = append(line[n:len(line):len(line)], line[:n]...)
	var some []looseHold
	for _, h := range line[:n] {
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
	delete(l.of, key)
}
