package session

import "sync/atomic"

// user is what the sessions of one principal have together, also what those that have ended have left to be released.
type user struct {
	sessions int          // m.mu is held
	ended    atomic.Bool  // it has none, and has left something
	holds    atomic.Int64 // what counts for Limits.HoldsPerUID
	flights  atomic.Int64 // and for Limits.InFlightPerUID
	space    *usage       // nil: that of everybody
}

// hold counts n more holds, or fewer.
func (u *user) hold(n int64) (now int64) {
	if u.space != nil {
		u.space.holds.Add(n)
	}
	return u.holds.Add(n)
}

// fly counts n more requests in flight, or fewer.
func (u *user) fly(m *Manager, n int64) {
	m.flights.Add(n)
	if u.space != nil {
		u.space.flights.Add(n)
	}
	u.flights.Add(n)
}

// reserve takes room for n more holds, if there is some. full is the error if it is the space that
// has none.
func (u *user) reserve(n int, l Limits) (room bool, full *LimitError) {
	more := int64(n)
	if u.holds.Add(more) > int64(l.HoldsPerUID) {
		u.holds.Add(-more)
		return false, nil
	}
	if u.space == nil {
		return true, nil
	}
	if u.space.holds.Add(more) > int64(l.HoldsPerSpace) && l.HoldsPerSpace > 0 {
		u.space.holds.Add(-more)
		u.holds.Add(-more)
		return false, &LimitError{Limit: "holds per space", Max: l.HoldsPerSpace}
	}
	return true, nil
}

// leaves counts one hold for the user of a session, until it is released, whether or not the session has ended. It does not
// keep the session.
func leaves(s *Session) (gone func()) {
	m, of, u := s.space.m, tenantOf(s), s.user
	u.hold(1)
	return func() {
		if u.hold(-1) == 0 && u.ended.Load() {
			m.wg.Go(func() { // the mutex of a janitor may be held
				m.mu.Lock()
				defer m.mu.Unlock()
				m.sweep(of, u)
			})
		}
	}
}

// recount counts what a session has. s.mu is held.
func recount(s *Session) {
	m, u := s.space.m, s.user
	if s.counted.follow(levelsOf(s), m, u); u.ended.Load() && u.holds.Load() == 0 && u.flights.Load() == 0 {
		m.mu.Lock()
		defer m.mu.Unlock()
		m.sweep(tenantOf(s), u)
	}
}

// sweep forgets a user that has no session and has left nothing, and a space of which that is true of all users. m.mu is held.
func (m *Manager) sweep(of tenant, u *user) {
	u.ended.Store(u.sessions == 0)
	if u.sessions > 0 || u.holds.Load() > 0 || u.flights.Load() > 0 {
		return
	}
	if m.users[of] == u {
		delete(m.users, of)
	}
	if s := u.space; s != nil && m.spaces[of.space] == s && s.sessions == 0 && s.holds.Load() == 0 && s.flights.Load() == 0 {
		delete(m.spaces, of.space)
	}
}
