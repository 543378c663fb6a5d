package session

import "sync/atomic"

// Level says how many have limits together. The narrowest comes first.
type Level uint8

// Who has limits.
const (
	OfPrincipal Level = iota
	OfAccount         // the pods of one service account of Kubernetes
	OfSpace           // all of one space; not those of everybody's
	Levels            // how many there are
)

// Share names who has limits together.
type Share struct {
	Level Level
	who   Principal // of OfPrincipal
	name  string    // of the account; of the space, and that of the principal, what stands before names there
}

// Shares are those whose limits a peer in the space counts for, the narrowest first: itself, its service
// account and the space, as far as it has them. sp is nil where that cannot be told.
func (p Peer) Shares(sp *Space) []Share {
	all := make([]Share, 1, Levels)
	all[0] = Share{Level: OfPrincipal, who: p.Who()}
	if p.Account != "" {
		all = append(all, Share{Level: OfAccount, name: p.Account})
	}
	if sp == nil {
		return all
	}
	all[0].name = sp.prefix
	if !sp.Whole() {
		all = append(all, sp.share())
	}
	return all
}

// share is that of the whole space.
func (sp *Space) share() Share { return Share{Level: OfSpace, name: sp.prefix} }

// Kind is the word for those who have limits together: that of the principal, "service account" or "space".
func (h Share) Kind() string {
	switch h.Level {
	case OfAccount:
		return "service account"
	case OfSpace:
		return "space"
	default:
		return h.who.Kind()
	}
}

// Principal is whose the share is, of OfPrincipal.
func (h Share) Principal() Principal { return h.who }

// Quota bounds what several principals have together. 0: only the other limits do.
type Quota struct {
	Sessions int
	Holds    int // as Limits.HoldsPerUID counts
	Waiters  int // as Limits.WaitersPerSession counts
	Detached int // as Limits.DetachedPerUID counts
	InFlight int // as Limits.InFlightPerUID counts
}

func (q Quota) least() int { return min(q.Sessions, q.Holds, q.Waiters, q.Detached, q.InFlight) }

// of is the quota of each share of a level.
func (l *Limits) of(level Level) Quota {
	switch level {
	case OfAccount:
		return l.PerAccount
	case OfSpace:
		return l.PerSpace
	default:
		return Quota{Sessions: l.SessionsPerUID, Holds: l.HoldsPerUID, Detached: l.DetachedPerUID, InFlight: l.InFlightPerUID}
	}
}

// usage is what the sessions of one share have together, also what those that have ended have left to be released.
type usage struct {
	of                    Share
	sessions              int         // m.mu is held
	ended                 atomic.Bool // it has none, and has left something
	holds, waits, flights bounded
	onlyLooks             bounded      // in flight in the room that only looks have
	kept, letting         atomic.Int64 // letting: of what is in flight, what only lets go
}

// bounded is a count with a limit.
type bounded struct {
	atomic.Int64
	most int64 // 0: no limit
}

// take counts n more if that is not more than most; 0: there is no limit.
func (b *bounded) take(n, most int64) bool {
	if b.Add(n) > most && most > 0 {
		b.Add(-n)
		return false
	}
	return true
}

// demand is what is asked of each share.
type demand struct {
	what string
	of   func(*usage) *bounded
	n    int64
	room func(i int, most int64) int64 // how much of a limit there is for who asks, of the share that is number i
}

func (d *demand) giveBack(all []*usage) {
	for _, u := range all {
		d.of(u).Add(-d.n)
	}
}

// takeAll takes what is asked for of all usages or of none. *LimitError: one has no room. Wider ones are not touched
// then, so that who has used up its own share takes nothing from others for a moment either.
func takeAll(all []*usage, d *demand) *LimitError {
	for i, u := range all {
		b := d.of(u)
		if b.take(d.n, d.room(i, b.most)) {
			continue
		}
		d.giveBack(all[:i])
		return &LimitError{Limit: d.what + " per " + u.of.Kind(), Max: int(b.most)}
	}
	return nil
}

// whole is the room of who may have all of a limit.
func whole(_ int, most int64) int64 { return most }

// reserve takes room for n more holds, and for one more request that waits and is in flight, where there is some. The
// errors are for what there is none for. s.mu is held; what is not needed is given back when the session is settled.
func reserve(s *Session, n int32) (full, busy *LimitError) {
	if full = takeAll(s.usages, &demand{"holds", func(u *usage) *bounded { return &u.holds }, int64(n), whole}); full == nil {
		s.counted.size += n
	}
	if busy = takeAll(s.usages, &demand{"waiters", func(u *usage) *bounded { return &u.waits }, 1, whole}); busy != nil {
		return full, busy
	}
	s.counted.waits++
	s.space.m.waiters.Add(1)
	return full, takeOff(s, 0)
}

// usagesFor are those of a session that is to be opened, if all of them have room for it. m.mu is held.
func (m *Manager) usagesFor(shares []Share) ([]*usage, *LimitError) {
	for _, of := range shares {
		u, most := m.usages[of], m.o.Limits.of(of.Level).Sessions
		if u != nil && most > 0 && u.sessions >= most {
			return nil, &LimitError{Limit: "sessions per " + of.Kind(), Max: most}
		}
	}
	all := m.usagesOf(shares)
	for _, u := range all {
		u.sessions++
		u.ended.Store(false)
	}
	return all, nil
}

// usagesOf are those of some shares. Who does not need them any more calls sweep. m.mu is held.
func (m *Manager) usagesOf(shares []Share) []*usage {
	all := make([]*usage, 0, len(shares))
	for _, of := range shares {
		u := m.usages[of]
		if u == nil {
			u = &usage{of: of}
			q := m.o.Limits.of(of.Level)
			u.holds.most, u.waits.most, u.flights.most = int64(q.Holds), int64(q.Waiters), int64(q.InFlight)
			u.onlyLooks.most = looksOf(u.flights.most)
			m.usages[of] = u
		}
		all = append(all, u)
	}
	return all
}

// leaves counts one hold for whose limits a session counts, until it is released, whether or not the session has
// ended. It does not keep the session.
func leaves(s *Session) (gone func()) {
	m, all := s.space.m, s.usages
	for _, u := range all {
		u.holds.Add(1)
	}
	return func() {
		for _, u := range all {
			u.holds.Add(-1)
		}
		if anyOver(all) {
			m.wg.Go(func() { // the mutex of a janitor may be held
				m.mu.Lock()
				defer m.mu.Unlock()
				m.sweep(all)
			})
		}
	}
}

// recount counts what a session has. s.mu is held.
func recount(s *Session) {
	m := s.space.m
	if s.counted.follow(levelsOf(s), m, s.usages); anyOver(s.usages) {
		m.mu.Lock()
		defer m.mu.Unlock()
		m.sweep(s.usages)
	}
}

// left tells that there is something that is not over.
func (u *usage) left() bool {
	return u.holds.Load() > 0 || u.flights.Load() > 0 || u.onlyLooks.Load() > 0
}

// anyOver tells that one of them, at least, is to be forgotten.
func anyOver(all []*usage) bool {
	for _, u := range all {
		if u.ended.Load() && !u.left() {
			return true
		}
	}
	return false
}

// sweep forgets those of the usages that have no session and have left nothing. m.mu is held.
func (m *Manager) sweep(all []*usage) {
	for _, u := range all {
		u.ended.Store(u.sessions == 0)
		if u.sessions == 0 && !u.left() && m.usages[u.of] == u {
			delete(m.usages, u.of)
		}
	}
}

// each tells what each share of a level has: sessions, and what counts for the limit of holds.
func (m *Manager) each(level Level, f func(of Share, sessions, holds int)) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for of, u := range m.usages {
		if of.Level == level {
			f(of, u.sessions, int(u.holds.Load()))
		}
	}
}

// EachPrincipal tells what each principal that has a name has here: sessions, and what counts
// for Limits.HoldsPerUID.
func (m *Manager) EachPrincipal(f func(name string, sessions, holds int)) {
	m.each(OfPrincipal, func(of Share, sessions, holds int) {
		if of.who.name != "" {
			f(of.who.name, sessions, holds)
		}
	})
}

// EachAccount tells the same of each service account.
func (m *Manager) EachAccount(f func(name string, sessions, holds int)) {
	m.each(OfAccount, func(of Share, sessions, holds int) { f(of.name, sessions, holds) })
}
