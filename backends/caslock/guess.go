package caslock

import "github.com/locksidecar/locksidecar/lock"

// This file is about requests that take one trip in place of two, because what a transaction would read can be told before:
// who asks for a resource guesses that nobody has it, and who releases one knows what it has written there itself, when it was
// the only one. The write has the conditions that it would have after reading. So where a guess is wrong nothing changes, and the request
// goes the usual way.

// sole is a hold beside which there was nobody when it was written.
type sole struct {
	member  member
	head    head
	version int64 // of the head, and of the entry of the hold
}

// guess is what one request finds, and what it writes if that is so.
type guess struct {
	name  lock.Resource
	o     *op
	s     *state
	txn   Txn
	falls uint64 // of the store that were known
}

// mostTaken is of how many resources a Backend knows that others have them.
const mostTaken = 4096

// guess tells what a request finds; nil: that cannot be told.
func (b *Backend) guess(name lock.Resource, ops []*op) *guess {
	if len(ops) != 1 {
		return nil
	}
	o := ops[0]
	b.mu.Lock()
	defer b.mu.Unlock()
	l := b.leases[o.lease]
	if l == nil || l.version == 0 || b.history.based < b.history.falls {
		return nil
	}
	has, known := l.soles[name]
	var conds []Cond // first the one about the head
	switch {
	case o.kind == opAsk && o.span == 0 && !known && !b.taken[name] && b.base.version > 0:
		conds = []Cond{
			{Key: headKey(name)}, {Key: baseKey, Version: b.base.version}, {Key: entryKey(o.lease, name, o.id)},
			{Key: forcedKey(o.lease, name, o.id)}, {Key: keptKey(name, o.id)},
		}
	case o.kind == opRemove && known && has.member.ID == o.id && !o.unsure && !o.tried:
		// A store that went back to a backup may have the hold of another under this version of the head, but not this entry.
		conds = []Cond{{Key: headKey(name), Version: has.version}, {Key: entryKey(o.lease, name, o.id), Version: has.version}}
	default:
		return nil
	}
	conds = append(conds, Cond{Key: leaseKey(o.lease), Version: l.version})
	g := &guess{name: name, o: o, s: newState(name, has.head, b.base.value, b.wall().UnixMicro(), ops), falls: b.history.falls}
	g.s.leases[o.lease] = true
	if known {
		m := has.member
		g.s.members[o.names()] = &m
	}
	g.s.fill(nil, true)
	g.s.apply(o)
	g.txn = g.s.txn(conds)
	return g
}

// wrong notes that a guess was, or that nobody knows: somebody may have the resource, or stand there.
func (b *Backend) wrong(g *guess) {
	g.o.reset()
	b.mu.Lock()
	defer b.mu.Unlock()
	if l := b.leases[g.o.lease]; l != nil {
		delete(l.soles, g.name)
	}
	if g.o.kind != opAsk {
		return
	}
	if len(b.taken) >= mostTaken {
		clear(b.taken)
	}
	b.taken[g.name] = true
}

// forgetGuesses forgets what a store had that went back. b.mu is held.
func (b *Backend) forgetGuesses() {
	b.base.value, b.base.version = 0, 0
	clear(b.taken)
	for _, l := range b.leases {
		clear(l.soles)
		l.observer.Forget() // a version that comes again is another beat
	}
}

// sawBase notes where fences begin.
func (b *Backend) sawBase(value, version int64) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.base.value, b.base.version = value, version
}

// sawHead notes whether somebody has a resource, or stands there.
func (b *Backend) sawHead(name lock.Resource, kv KV) {
	if kv.Version > 0 {
		return
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	delete(b.taken, name)
}

// noteSole notes who is the only one at a resource after a write.
func (b *Backend) noteSole(s *state, ops []*op, revision int64) {
	m := s.sole(ops)
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, l := range b.leases {
		delete(l.soles, s.name)
	}
	if m == nil {
		if s.head.Holders+s.head.Waiters == 0 {
			delete(b.taken, s.name)
		}
	} else if l := b.leases[m.Lease]; l != nil {
		l.soles[s.name] = sole{*m, s.head, revision}
	}
}

// sole is the hold beside which there is nobody, if a request for it has written it now; else nil. What another one has granted by the way
// does not count: a store that went back to a backup may do the same again, while others stand there.
func (s *state) sole(ops []*op) *member {
	if s.head.Holders != 1 || s.head.Waiters > 0 || s.head.Mode.Limit() > 0 || len(s.forced) > 0 {
		return nil
	}
	for _, o := range ops {
		m := s.members[o.names()]
		w, wrote := s.writes[entryKey(o.lease, s.name, o.id)]
		if (o.came || o.kind == opDowngrade) && m != nil && m.held() && !m.out && wrote && !w.Delete {
			return m
		}
	}
	return nil
}

// forgetSole: others have done something to a hold, or stand behind it.
func (l *lease) forgetSole(name lock.Resource) {
	l.b.mu.Lock()
	defer l.b.mu.Unlock()
	delete(l.soles, name)
}
