package ledger

import "slices"

// How much a session remembers of what is over. It is for requests that are
// overtaken or repeated, so for moments.
const (
	MaxCancelled    = 1024 // ids of acquires that were given up
	MaxReleases     = 256  // ids of releases, with their answers
	MaxAcknowledged = 256  // losses that were acknowledged
	MaxKept         = 256  // holds with a minHold that are over
	MaxAttempts     = 256  // attempts whose hold is over: they may still say how they ended

	MaxReleasedClaims = 64 // of one hold: ids of requests whose counts were released
)

// memory keeps the latest entries by their name. Most sessions never need one, so until its
// first entry it is small.
type memory[T any] struct {
	size int
	*latest[T]
}

type latest[T any] struct {
	known map[string]T
	order []string // a ring, once it is full
	next  int
}

func (m *memory[T]) get(name string) (v T, ok bool) {
	if m.latest != nil {
		v, ok = m.known[name]
	}
	return v, ok
}

func (m *memory[T]) put(name string, v T) {
	if m.latest == nil {
		m.latest = &latest[T]{known: make(map[string]T)}
	}
	if _, ok := m.known[name]; ok {
		m.known[name] = v
		m.refresh(name)
		return
	}
	m.known[name] = v
	if len(m.order) < m.size {
		m.order = append(m.order, name)
		return
	}
	delete(m.known, m.order[m.next])
	m.order[m.next] = name
	m.next = (m.next + 1) % m.size
}

// refresh makes a known name the latest. That is rare, and there are few.
func (l *latest[T]) refresh(name string) {
	last := (l.next + len(l.order) - 1) % len(l.order)
	for i := slices.Index(l.order, name); i != last; {
		after := (i + 1) % len(l.order)
		l.order[i] = l.order[after]
		i = after
	}
	l.order[last] = name
}
