package localapi

import (
	"sync"

	"github.com/locksidecar/locksidecar/session"
)

// tally counts what each share has of something, and knows its limits. It has no lock of its own.
type tally struct {
	what  string
	most  [session.Levels]int // of each share of a level; 0: no limit
	taken map[session.Share]int
}

func newTally(what string, most [session.Levels]int) tally {
	return tally{what: what, most: most, taken: make(map[session.Share]int)}
}

// full gives the first of some shares that may not have n more, and the error for it; nil: all may. Of what may
// be large, who has nothing yet may have one, however large.
func (t *tally) full(of []session.Share, n int) (session.Share, *session.LimitError) {
	for _, share := range of {
		most, has := t.most[share.Level], t.taken[share]
		if most > 0 && has > 0 && has+n > most {
			return share, &session.LimitError{Limit: t.what + ofOne(share), Max: most}
		}
	}
	return session.Share{}, nil
}

// add counts n more of each share, or less.
func (t *tally) add(of []session.Share, n int) {
	for _, share := range of {
		if t.taken[share] += n; t.taken[share] == 0 {
			delete(t.taken, share)
		}
	}
}

// ofOne is the end of the name of a limit that each share has for itself.
func ofOne(share session.Share) string {
	switch kind := share.Kind(); {
	case share.Principal().Name() == strangers:
		return " of all who are not known"
	case kind != "uid":
		return " of one " + kind
	default:
		return " of one user"
	}
}

// shared is a tally of things that are taken and given back one by one.
type shared struct {
	mu sync.Mutex
	tally
}

// take takes one, which give gives back. *session.LimitError: who asks has its share already.
func (s *shared) take(of []session.Share) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if _, full := s.full(of, 1); full != nil {
		return full
	}
	s.add(of, 1)
	return nil
}

func (s *shared) give(of []session.Share) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.add(of, -1)
}
