package localapi

import (
	"sync"

	"github.com/locksidecar/locksidecar/session"
)

// perPrincipal counts what each principal has of something.
type perPrincipal struct {
	what string
	max  int

	mu    sync.Mutex
	taken map[session.Principal]int
}

func newPerPrincipal(what string, limit int) *perPrincipal {
	return &perPrincipal{what: what, max: limit, taken: make(map[session.Principal]int)}
}

// take takes one for who, which give gives back. *session.LimitError: it has its
// share already.
func (p *perPrincipal) take(who session.Principal) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.taken[who] >= p.max {
		return &session.LimitError{Limit: p.what + ofOne(who), Max: p.max}
	}
	p.taken[who]++
	return nil
}

func (p *perPrincipal) give(who session.Principal) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.taken[who]--; p.taken[who] == 0 {
		delete(p.taken, who)
	}
}

// ofOne is the end of the name of a limit that each principal has for itself.
func ofOne(who session.Principal) string {
	switch kind := who.Kind(); {
	case who.Name() == strangers:
		return " of all who are not known"
	case kind != "uid":
		return " of one " + kind
	default:
		return " of one user"
	}
}
