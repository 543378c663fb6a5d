package ledger

import (
	"cmp"
	"slices"
	"sort"
	"time"

	"github.com/locksidecar/locksidecar/lock"
)

// losses are those that nobody has acknowledged, in the order in which they were
// told, and the latest of those that somebody has.
type losses struct {
	order []*Hold // by seq
	known map[lock.HoldID]*Hold
	seq   uint64
	acked memory[*Hold]
}

func (ls *losses) add(h *Hold) {
	if ls.known == nil {
		ls.known = make(map[lock.HoldID]*Hold)
	}
	ls.seq++
	h.seq = ls.seq
	ls.known[h.id] = h
	ls.order = append(ls.order, h)
}

func (ls *losses) remove(h *Hold) {
	delete(ls.known, h.id)
	i := sort.Search(len(ls.order), func(i int) bool { return ls.order[i].seq >= h.seq })
	ls.order = append(ls.order[:i], ls.order[i+1:]...)
}

// Loss gives the first loss that is not acknowledged and was told after seq, and
// its own.
func (l *Ledger) Loss(seq uint64) (Lost, uint64, bool) {
	order := l.losses.order
	i := sort.Search(len(order), func(i int) bool { return order[i].seq > seq })
	if i == len(order) {
		return Lost{}, seq, false
	}
	return lostOf(order[i]), order[i].seq, true
}

// lostOf is what the app is told of a lost hold.
func lostOf(h *Hold) Lost {
	told := h
	if h.group != nil && h.group.lost != nil {
		told = h.group.lost
	}
	lost := Lost{LockID: h.id, Resource: told.name, Fence: told.fence, Reason: h.reason}
	if told.state == grace {
		lost.GraceEnd = told.graceEnd
	}
	return lost
}

// GraceEnd is when the last grace of a loss that is not acknowledged ends; 0: there is none.
func (l *Ledger) GraceEnd(id lock.HoldID) (end time.Duration) {
	h := l.losses.known[id]
	if h == nil {
		return 0
	}
	for p := range h.Parts {
		if p.state == grace {
			end = max(end, p.graceEnd)
		}
	}
	return end
}

// lose ends a hold that nobody released, and tells the app, who has at most until
// that moment before others may be let in: less when the store may end the lease
// before.
//
// Model: told.LOSE.
func (l *Ledger) lose(h *Hold, reason LostReason, until time.Duration) {
	if h.group != nil {
		l.loseGroup(h, reason, until)
		return
	}
	l.lapse(h, reason, until, reason.ours())
	l.tell(h, reason)
}

// lapse ends a hold that nobody released. ours: the sidecar decides when others are
// let in.
func (l *Ledger) lapse(h *Hold, reason LostReason, until time.Duration, ours bool) {
	claims := h.claims
	l.forget(h)
	h.state, h.reason, h.guard = over, reason, nil
	if reason == TakenOver { // a copy of its request would take it back
		l.keepIDs(h, claims)
	}
	h.graceEnd = max(l.at.Now, min(until, l.at.Kept))
	if ours || h.graceEnd > l.at.Now { // else the store counts it no more
		h.state = grace
		l.graces++
		l.dues.set(&h.due, h.graceEnd)
	} else {
		l.unregister(h)
		if reason == Forced || reason == TakenOver { // the driver may still remember it, and a copy of its request may come
			l.clean(h, false)
		}
	}
}

// tell tells the app of a loss.
func (l *Ledger) tell(h *Hold, reason LostReason) {
	l.losses.add(h)
	l.emit(Effect{Kind: Tell, Hold: h, Reason: reason})
}

// settle ends the grace of a lost hold: the store is told, if it is not done
// already.
func (l *Ledger) settle(h *Hold) {
	if h.state != grace {
		return
	}
	l.ungrace(h)
	l.clean(h, false)
	l.closeIfDone()
}

// outlast ends a grace whose time is over. With a lease that is over the store has
// ended the hold by itself, maybe ten thousand at once.
func (l *Ledger) outlast(h *Hold) {
	if h.reason != LeaseExpired {
		l.settle(h)
		return
	}
	l.ungrace(h)
	l.closeIfDone()
}

func (l *Ledger) ungrace(h *Hold) {
	if h.follows() {
		delete(l.parts, h.id)
		l.unregister(h)
	}
	h.state = over
	l.dues.remove(&h.due)
	l.graces--
}

// hasten makes all graces end at that moment at the latest, and tells it.
func (l *Ledger) hasten(end time.Duration) {
	for _, h := range slices.Clone(l.losses.order) {
		for p := range h.Parts {
			if p.state == grace && p.graceEnd > end {
				l.tellAgain(p, end)
			}
		}
	}
}

// tellAgain tells a loss with a shorter grace. Of a group the shortest is told.
func (l *Ledger) tellAgain(h *Hold, end time.Duration) {
	h.graceEnd = end
	l.dues.set(&h.due, end)
	if g := h.group; g != nil {
		if h != g.lost {
			if end >= lostOf(g.head).GraceEnd {
				return
			}
			g.lost = h
		}
		h = g.head
	}
	l.losses.remove(h)
	l.losses.add(h)
	l.emit(Effect{Kind: Tell, Hold: h})
}

// acknowledge is for a release of a hold that does not live: when it was lost,
// who releases knows now, and has stopped its work. Others who entered the same
// hold may still work: the loss stays until all counts are released.
//
// Model: told.ACKNOWLEDGE.
func (l *Ledger) acknowledge(id lock.HoldID) error {
	err := l.missing(id)
	if h := l.losses.known[id]; h != nil {
		if h.count--; h.count > 0 {
			return err
		}
		l.losses.remove(h)
		l.losses.acked.put(string(id), h)
		l.freeIDs(h)
		l.unregister(h)
		for p := range h.Parts {
			l.settle(p)
		}
	}
	return err
}

// missing says what became of a hold.
func (l *Ledger) missing(id lock.HoldID) error {
	if h := l.losses.known[id]; h != nil {
		return &LostError{lostOf(h)}
	}
	if h, ok := l.losses.acked.get(string(id)); ok {
		return &LostError{lostOf(h)}
	}
	if l.state == Closed {
		return ErrClosed
	}
	return lock.ErrNotHolder
}

// LeaseOver ends what hangs on a lease: holds are lost, with the grace for which
// the store keeps others out by itself, and requests go to the next lease.
func (l *Ledger) LeaseOver(lease Lease, reason LostReason, m Moment) {
	l.at = m
	var again []*Hold
	for _, h := range l.asks {
		switch {
		case h.lease != lease:
		case h.state == held:
			l.lose(h, reason, m.Kept)
		case h.state == asking:
			again = append(again, h)
		}
	}
	slices.SortFunc(again, func(a, b *Hold) int { return cmp.Compare(a.number, b.number) })
	for _, h := range again {
		if h.state == asking && h.lease == lease { // else its group has begun again
			l.askAgain(h)
		}
	}
}

// News is what the store says of one hold, or of one for which it is asked. What
// it has said before changes nothing, unless it makes the grace shorter.
func (l *Ledger) News(e lock.Event) {
	reason, until := StoreLost, time.Duration(0)
	switch e.Kind {
	case lock.Revoked:
		reason, until = Forced, e.Until
	case lock.Expired:
		reason, until = ShardExpired, e.Until
	}
	if h := l.asks[e.ID]; h != nil && h.handle != "" && e.Kind == lock.Revoked && e.Until == 0 {
		reason = TakenOver
	}
	if h := l.asks[e.ID]; h != nil {
		if h.state == held {
			l.lose(h, reason, until)
		} else { // the grant is on its way
			h.reason = reason
		}
		return
	}
	h := l.losses.known[e.ID]
	if h == nil {
		h = l.parts[e.ID]
	}
	if h == nil || h.state != grace || reason != StoreLost && until >= h.graceEnd {
		return
	}
	l.tellAgain(h, max(l.at.Now, until))
	if reason == StoreLost {
		l.ungrace(h)
		l.closeIfDone()
	}
}
