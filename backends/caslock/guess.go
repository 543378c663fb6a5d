package caslock

import (
	"context"
	"errors"

	"github.com/locksidecar/locksidecar/lock"
)

// This file is about requests that take one trip in place of two, because what a transaction would read can be told before:
// who asks for a resource guesses that nobody has it, and who releases one knows what it has written there itself, when it was
// the only one. The write has the conditions that it would have after reading. So where a guess is wrong nothing changes, and the request
// goes the usual way.

// sole is a hold beside which there was nobody when it was written.
type sole struct {
	member  member
	head    head
	version int64 // of the head
}

// guess is what one request finds, and what it writes if that is so.
type guess struct {
	name lock.Resource
	o    *op
	s    *state
	txn  Txn
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
		l.guessed[lock.HoldID(o.id)] = b.history.revision
	case o.kind == opRemove && known && has.member.ID == o.id && !o.unsure && !o.tried:
		conds = []Cond{{Key: headKey(name), Version: has.version}}
	default:
		return nil
	}
	conds = append(conds, Cond{Key: leaseKey(o.lease), Version: l.version})
	g := &guess{name: name, o: o, s: newState(name, has.head, b.base.value, b.wall().UnixMicro(), ops)}
	g.s.leases[o.lease] = true
	if known {
		m := has.member
		g.s.members[o.names()] = &m
	}
	g.s.fill(nil, true)
	o.reset()
	g.s.apply(o)
	g.txn = g.s.txn(conds)
	return g
}

// right notes that a guess was, and so its request is carried out.
func (b *Backend) right(ctx context.Context, g *guess, r Result) (*state, error) {
	b.settle(g.s, []*op{g.o}, r.Revision)
	if h := b.told(); g.o.kind == opAsk && h.based < h.falls { // its fence may be one that there was before
		return nil, b.undo(ctx, g)
	}
	return g.s, nil
}

// undo takes back what was granted, before anybody is told of it. The request begins again then.
func (b *Backend) undo(ctx context.Context, g *guess) error {
	for {
		_, err := b.transact(ctx, g.name, []*op{{kind: opRemove, id: g.o.id, lease: g.o.lease}})
		switch {
		case err == nil:
			return errOvertaken
		case !errors.Is(err, errOvertaken):
			return err
		}
	}
}

// wrong notes that a guess was: somebody has the resource, or stands there.
func (b *Backend) wrong(g *guess) {
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

// guessed forgets what a push of a grant had to be held against.
func (b *Backend) guessed(g *guess) {
	if g == nil {
		return
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if l := b.leases[g.o.lease]; l != nil {
		delete(l.guessed, lock.HoldID(g.o.id))
	}
}

// tooOld tells whether a grant that was pushed is of a store that went back to a backup while the lease asked for it: its
// fence may be one that there was before.
func (l *lease) tooOld(id lock.HoldID, version int64) bool {
	l.b.mu.Lock()
	defer l.b.mu.Unlock()
	revision, guessed := l.guessed[id]
	return guessed && version <= revision
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
func (b *Backend) noteSole(s *state, revision int64) {
	var only *member
	if s.head.Holders == 1 && s.head.Waiters == 0 && s.head.Mode.Limit() == 0 && len(s.forced) == 0 {
		for _, m := range s.members {
			if m.held() && !m.out {
				only = m
			}
		}
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, l := range b.leases {
		delete(l.soles, s.name)
	}
	switch l := b.leases[leaseOf(only)]; {
	case l != nil:
		l.soles[s.name] = sole{*only, s.head, revision}
	case s.head.Holders+s.head.Waiters == 0:
		delete(b.taken, s.name)
	}
}

func leaseOf(m *member) string {
	if m == nil {
		return ""
	}
	return m.Lease
}

// forgetSole: others have done something to a hold, or stand behind it.
func (l *lease) forgetSole(name lock.Resource) {
	l.b.mu.Lock()
	defer l.b.mu.Unlock()
	delete(l.soles, name)
}
