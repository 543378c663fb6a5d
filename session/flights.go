package session

// What is in flight costs memory for as long as the store is silent: a goroutine, and what it has to remember. So each
// principal has a share, all together have a limit, and a sixteenth of both is for those who have nothing in flight: of the limit
// for principals, of a share for sessions. A request for a lock that finds no room is refused. What only lets go
// never is: a quarter more is kept for it, and beyond that it is not waited for.

// takeOff counts one more request of a session in flight, if it may be. s.mu is held.
func takeOff(s *Session) *LimitError {
	full := s.space.m.full(s.who, s.user, s.counted.flights > 0, 0)
	if full == nil {
		s.counted.flights++
		s.user.fly(s.space.m, 1)
	}
	return full
}

// full says which limit leaves no room for one more request of a principal. busy tells that the session has some already; more
// is what part of each limit is added to it: 0, or a quarter.
func (m *Manager) full(who Principal, u *user, busy bool, more int) *LimitError {
	l, own := m.o.Limits, u.flights.Load()
	switch {
	case own >= room(l.InFlightPerUID, busy, more):
		return &LimitError{Limit: "requests in flight per " + who.Kind(), Max: l.InFlightPerUID, Do: askLess}
	case u.space != nil && l.InFlightPerSpace > 0 && u.space.flights.Load() >= room(l.InFlightPerSpace, own > 0, more):
		return &LimitError{Limit: "requests in flight per space", Max: l.InFlightPerSpace, Do: askLess}
	case m.flights.Load() >= room(l.InFlight, own > 0, more):
		return &LimitError{Limit: "requests in flight of all apps", Max: l.InFlight, Do: askLess}
	}
	return nil
}

// askLess is what an app can do that has too many requests in flight.
const askLess = "wait for answers before you ask for more; what you have given up counts until the store has answered"

// quarter is what more of each limit what lets go may have.
const quarter = 4

// room is how much of a limit there is for who has something of it, or for who has nothing.
func room(limit int, has bool, more int) int64 {
	switch {
	case more > 0:
		limit += limit / more
	case has:
		limit -= limit / 16
	}
	return int64(limit)
}

// errand counts something in flight that only lets go, until landed is called. It reports false where it must not be
// waited for. s.mu is held.
func errand(s *Session) (waits bool) {
	waits = s.space.m.full(s.who, s.user, false, quarter) == nil
	if waits {
		s.errands++
	}
	return waits
}

// landed ends an errand. s.mu is held.
func landed(s *Session) { s.errands-- }

// fly counts something in flight that may be refused, until land is called.
func fly(s *Session) (land func(), _ error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if full := takeOff(s); full != nil {
		return nil, full
	}
	s.errands++ // as takeOff has counted
	return func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		landed(s)
		recount(s)
	}, nil
}

// Fly counts something in flight that an app asks of the store without a session, until land is called. What only
// lets go, or keeps what there is, finds a quarter more room.
//
//	*LimitError: there is too much in flight.
func (sp *Space) Fly(p Peer, keeps bool) (land func(), _ error) {
	m, of := sp.m, tenant{p.Who(), sp.prefix}
	more := 0
	if keeps {
		more = quarter
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	u := m.users[of]
	if u == nil {
		u = &user{}
		if !sp.Whole() {
			u.space = m.use(sp.prefix)
		}
	}
	if full := m.full(of.who, u, u.flights.Load() > 0, more); full != nil {
		m.sweep(of, u)
		return nil, full
	}
	m.users[of] = u
	u.fly(m, 1)
	return func() {
		m.mu.Lock()
		defer m.mu.Unlock()
		u.fly(m, -1)
		m.sweep(of, u)
	}, nil
}
