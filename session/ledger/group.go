package ledger

import (
	"slices"
	"time"

	"github.com/locksidecar/locksidecar/lock"
)

// Part is one of the resources that are asked for together.
type Part struct {
	Resource lock.Resource // in the store
	Name     string        // for the app
}

// PartGrant is one of the resources of a Grant of several.
type PartGrant struct {
	Resource string // without the namespace
	LockID   lock.HoldID
	Fence    lock.Fence
	Guard    *lock.Guard
}

// group is several resources that are held together, or not at all. Each is a hold of
// its own in the store. They are asked for one after the other, in the order of the
// parts: where that is the same for everybody, two groups never wait for each other.
//
// The head is the hold that is asked for, and in the end the last one. It has the
// callers, the counts and the news for the app, under its id. The others follow it:
// they were granted before, and nobody outside knows them.
type group struct {
	parts []Part
	taken []*Hold // those that follow, in the order of the parts
	head  *Hold
	lost  *Hold // of a lost group: the one that is told
}

// untaken is how many parts were neither granted nor asked for.
func (g *group) untaken() int { return len(g.parts) - len(g.taken) - 1 }

// follows tells that h is a part of a group, and not its head.
func (h *Hold) follows() bool { return h.group != nil && h.group.head != h }

// Parts gives the holds of a group that is complete, or h alone.
func (h *Hold) Parts(yield func(*Hold) bool) {
	if h.group != nil {
		for _, f := range h.group.taken {
			if !yield(f) {
				return
			}
		}
	}
	yield(h)
}

// Name is that of the resource, for the app.
func (h *Hold) Name() string { return h.name }

// sameResources tells whether a repeated request is for what h is for.
func (h *Hold) sameResources(a *Ask) bool {
	if h.group == nil {
		return len(a.Parts) == 0 && h.key.Resource == a.Resource
	}
	return slices.Equal(h.group.parts, a.Parts)
}

// form makes h the first part of a group.
func (l *Ledger) form(h *Hold, parts []Part) {
	h.group = &group{parts: parts, head: h}
	l.untaken += h.group.untaken()
}

// advance asks for the next part of a group whose head was granted, for the same
// callers. It reports false when that was the last.
func (l *Ledger) advance(h *Hold) bool {
	g := h.group
	if g == nil || g.untaken() == 0 {
		return false
	}
	l.untaken--
	g.taken = append(g.taken, h)
	l.succeed(h)
	h.tag = nil
	return true
}

// succeed asks for the first part that was not taken, in place of h, which was the head.
func (l *Ledger) succeed(h *Hold) {
	g := h.group
	p := g.parts[len(g.taken)]
	next := &Hold{
		key: Key{p.Resource, h.key.Owner}, name: p.Name, mode: h.mode, direct: h.direct, wish: h.wish,
		state: asking, try: true, id: l.o.NewID(), tag: h.tag, group: g, calls: h.calls, claims: h.claims, began: h.began, number: h.number,
	}
	next.due.hold = next
	h.calls, h.claims = nil, nil
	for c := next.calls; c != nil; c = c.next {
		c.hold = next
		next.try = next.try && c.try
	}
	for _, c := range next.claims {
		c.hold = next
	}
	g.head = next
	l.asks[next.id] = next
	l.emit(Effect{Kind: Request, Hold: next, ID: next.id})
}

// restart asks for all parts again: one was lost before the last was granted.
func (l *Ledger) restart(g *group) {
	h := g.head
	delete(l.asks, h.id)
	l.unregister(h)
	h.state = over
	l.stop(h)
	l.disband(g)
	l.untaken += g.untaken()
	l.succeed(h)
}

// disband gives back what a group has before its head is granted.
func (l *Ledger) disband(g *group) {
	l.untaken -= g.untaken()
	l.dropFollowers(g.head)
}

// dropFollowers gives back all parts but the head.
func (l *Ledger) dropFollowers(h *Hold) {
	if h.group == nil {
		return
	}
	for _, f := range h.group.taken {
		l.forget(f)
		l.unregister(f)
		f.state = over
		l.clean(f, l.state == Closed)
	}
	h.group.taken = nil
}

// loseGroup ends a group one of whose holds is lost. The app is told once. What the
// store still has of it is kept from others for a grace, too.
func (l *Ledger) loseGroup(h *Hold, reason LostReason, until time.Duration) {
	g := h.group
	switch {
	case g.head.state == held:
	case reason == Forced:
		l.fail(g.head, &LostError{Lost{LockID: h.id, Resource: h.name, Fence: h.fence, Reason: reason}})
		return
	default:
		l.restart(g)
		return
	}
	alone := reason == Forced || reason == StoreLost || reason == ShardExpired // the store knows nothing of the others
	if g.lost = h; !alone {
		g.lost = g.head
	}
	for p := range g.head.Parts {
		if p == h || !alone {
			l.lapse(p, reason, until, reason.ours())
		} else {
			l.lapse(p, reason, max(until, l.at.Now+l.o.LostGrace), true)
		}
		if p != g.head && p.state == grace {
			if l.parts == nil {
				l.parts = make(map[lock.HoldID]*Hold)
			}
			l.parts[p.id] = p
		}
	}
	l.tell(g.head, reason)
}

// partsOf is what a grant says of a group.
func partsOf(h *Hold) []PartGrant {
	if h.group == nil {
		return nil
	}
	parts := make([]PartGrant, 0, len(h.group.parts))
	for p := range h.Parts {
		parts = append(parts, PartGrant{Resource: p.name, LockID: p.id, Fence: p.fence, Guard: p.guard})
	}
	return parts
}
