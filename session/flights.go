package session

// What is in flight costs memory for as long as the store is silent: a goroutine, and what it has to remember. So each
// share has a limit, all together have one, and a sixteenth of each is for those who have nothing in flight: of the limit
// for principals, of those of several principals together, of a share for sessions. A request for a lock that finds no room
// is refused. What only lets go never is: a quarter more is kept for it, and beyond that it is not waited for. What lets go
// takes nothing of the sixteenth. A look finds an eighth of each limit that nothing else may use: else nobody could see whom
// all wait for that have used up theirs.

// takeOff counts one more request of a session in flight, if it may be. more is what part of each limit is added to it: 0,
// or a quarter. s.mu is held.
func takeOff(s *Session, more int64) *LimitError {
	full := s.space.m.launch(s.usages, s.counted.flights > 0, more)
	if full == nil {
		s.counted.flights++
	}
	return full
}

// launch counts one more request in flight for all usages, the principal's first, and for all apps, or for none of them. has
// tells that the session that asks has some already.
func (m *Manager) launch(all []*usage, has bool, more int64) *LimitError {
	own := func() bool { return all[0].flights.Load() > 1 } // one is that which is asked for
	d := demand{"requests in flight", func(u *usage) *bounded { return &u.flights }, 1, func(i int, most int64) int64 {
		return room(most, i == 0 && has || i > 0 && own(), more, all[i].letting.Load())
	}}
	full := takeAll(all, &d)
	if full == nil && !m.flights.take(1, room(m.flights.most, own(), more, m.letting.Load())) {
		d.giveBack(all)
		full = &LimitError{Limit: "requests in flight of all apps", Max: int(m.flights.most)}
	}
	switch {
	case full != nil:
		full.Do = askLess
	case more > 0:
		m.lets(all, 1)
	}
	return full
}

// lets counts n more among what is in flight that only let go.
func (m *Manager) lets(all []*usage, n int64) {
	m.letting.Add(n)
	for _, u := range all {
		u.letting.Add(n)
	}
}

// askLess is what an app can do that has too many requests in flight.
const askLess = "wait for answers before you ask for more; what you have given up counts until the store has answered"

const (
	// quarter is what more of each limit what lets go may have.
	quarter = 4
	// forLooks is what part of each limit there is besides, for looks alone.
	forLooks = 8
)

// looksOf is how many looks there may be beyond what else may be in flight; 0: there is no limit.
func looksOf(flights int64) int64 {
	if flights == 0 {
		return 0
	}
	return max(1, flights/forLooks)
}

// room is how much of a limit there is for who has something of it, or for who has nothing, where so much of what is in
// flight only lets go.
func room(limit int64, has bool, more, letting int64) int64 {
	switch {
	case limit == 0: // there is none
	case more > 0:
		limit += limit / more
	case has:
		limit -= limit / 16
	default:
		limit += letting
	}
	return limit
}

// errand counts something in flight that only lets go, until landed is called. It reports false where it must not be
// waited for. s.mu is held.
func errand(s *Session) (waits bool) {
	waits = takeOff(s, quarter) == nil
	if waits {
		s.errands++
	}
	return waits
}

// landed ends an errand. s.mu is held.
func landed(s *Session) {
	s.errands--
	s.space.m.lets(s.usages, -1)
}

// fly counts something in flight that may be refused, until land is called.
func fly(s *Session) (land func(), _ error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if full := takeOff(s, 0); full != nil {
		return nil, full
	}
	s.errands++ // as takeOff has counted
	return func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.errands--
		recount(s)
	}, nil
}

// Fly counts something in flight that an app asks of the store without a session, until land is called: a look, or what
// lets go, or keeps what there is. The latter finds a quarter more room.
//
//	*LimitError: there is too much in flight.
func (sp *Space) Fly(p Peer, keeps bool) (land func(), _ error) {
	m, more := sp.m, int64(0)
	if keeps {
		more = quarter
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	all := m.usagesOf(p.Shares(sp))
	counted := func(u *usage) *bounded { return &u.flights }
	ofAll := &m.flights
	full := m.launch(all, all[0].flights.Load() > 0, more)
	if full != nil && !keeps && m.looksOn(all) {
		full, counted, ofAll = nil, looksIn, &m.onlyLooks
	}
	if full != nil {
		m.sweep(all)
		return nil, full
	}
	return func() {
		m.mu.Lock()
		defer m.mu.Unlock()
		ofAll.Add(-1)
		for _, u := range all {
			counted(u).Add(-1)
		}
		if keeps {
			m.lets(all, -1)
		}
		m.sweep(all)
	}, nil
}

func looksIn(u *usage) *bounded { return &u.onlyLooks }

// looksOn counts a look in the room that only looks have, for all usages and for all apps, or for none of them.
func (m *Manager) looksOn(all []*usage) bool {
	d := demand{"looks in flight", looksIn, 1, whole}
	if takeAll(all, &d) != nil {
		return false
	}
	if !m.onlyLooks.take(1, m.onlyLooks.most) {
		d.giveBack(all)
		return false
	}
	return true
}
