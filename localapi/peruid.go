package localapi

import (
	"sync"

	"github.com/locksidecar/locksidecar/session"
)

// perUID counts what each user has of something.
type perUID struct {
	what string
	max  int

	mu    sync.Mutex
	taken map[uint32]int
}

func newPerUID(what string, limit int) *perUID {
	return &perUID{what: what, max: limit, taken: make(map[uint32]int)}
}

// take takes one for uid, which give gives back. *session.LimitError: it has its
// share already.
func (p *perUID) take(uid uint32) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.taken[uid] >= p.max {
		return &session.LimitError{Limit: p.what, Max: p.max}
	}
	p.taken[uid]++
	return nil
}

func (p *perUID) give(uid uint32) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.taken[uid]--; p.taken[uid] == 0 {
		delete(p.taken, uid)
	}
}
