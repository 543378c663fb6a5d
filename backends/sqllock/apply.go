package sqllock

import (
	"slices"

	"github.com/locksidecar/locksidecar/backends/queue"
	"github.com/locksidecar/locksidecar/lock"
)

// apply carries out one request.
func (s *state) apply(o *op) {
	if o.lease != "" && !s.lives(o.lease) {
		o.err = lock.ErrLeaseLost
		return
	}
	switch o.kind {
	case opAsk:
		s.ask(o)
	case opRemove:
		s.withdraw(o)
	case opDowngrade:
		s.downgrade(o)
	case opAttach:
		s.attach(o)
	case opDetach:
		s.detach(o)
	case opHandle:
		s.setHandle(o)
	case opForce:
		s.force(o)
	case opEnd:
		s.end(o)
	case opSweep:
		s.sweep(o)
	case opForget:
		s.forget(o.id)
	case opLapse: // what is over was found when the tables were read
	}
}

func (s *state) ask(o *op) {
	e := s.own(o)
	n, noted := s.notes[o.id]
	switch {
	case noted && !n.forced:
		o.err = lock.ErrNotHolder
		if n.known < 0 && n.lease == o.lease { // from now on its sidecar knows
			n.known = 0
			s.remember(o.id, n)
		}
	case s.isLeast(o.id):
		o.err = lock.ErrNotHolder
	case e == nil && s.behind[o.id] == o.lease && o.lease != "":
		o.queued = true
	case e != nil: // asked again, or a copy; where its release is forced, its grace is kept
		s.answer(o, e)
	case s.q.Clashes(queue.RoomOf(o.mode)):
		o.err = errOtherLimit
	case o.try && !s.q.Free(queue.RoomOf(o.mode)):
		o.err = lock.ErrHeld
		if s.kept {
			o.err = errKept
		}
	default:
		e = s.put(o.id, member{lease: o.lease, owner: o.owner, several: o.several, least: o.least}, queue.RoomOf(o.mode))
		if e.Held() {
			s.promoted(e)
		} else {
			s.note("queue", o.id, o.lease, 0, o.mode.String())
			s.contend(e)
		}
		s.answer(o, e)
	}
}

// answer tells who asks what became of the request. A grant that was not told before is not
// told while the server keeps back: the one before may have taken it away since.
func (s *state) answer(o *op, e *entry) {
	o.queued, o.fence = e.Waiting() || s.kept, 0
	switch {
	case !o.queued:
		s.regrant(e)
		o.fence, o.at = e.Value.fence, e.Value.at
	case s.kept && o.try:
		o.err = errKept
	}
}

// withdraw ends what a lease has.
func (s *state) withdraw(o *op) {
	e := s.own(o)
	switch {
	case e != nil:
		s.found(o, e)
		if e.Held() {
			s.note("release", o.id, o.lease, e.Value.fence, "")
		} else {
			s.note("cancel", o.id, o.lease, 0, "")
		}
		s.remove(e)
	case s.behind[o.id] == o.lease:
		o.found = true
		o.position = slices.Index(s.ahead, o.id) + 1
		s.note("cancel", o.id, o.lease, 0, "")
		delete(s.behind, o.id)
		s.drop(o.id, inQueue)
		s.forgetLeast(o.id)
	}
	s.withdrawn(o)
}

// withdrawn remembers of an id that it was given up, where a copy of its request may arrive.
func (s *state) withdrawn(o *op) {
	s.forget(o.id)
	if o.unsure {
		s.remember(o.id, note{lease: o.lease}) // which knows of it
	}
}

func (s *state) found(o *op, e *entry) {
	o.found = true
	if e.Waiting() {
		o.position = s.q.Position(e)
	}
}

func (s *state) downgrade(o *op) {
	e := s.own(o)
	if e == nil || !e.Held() {
		o.err = lock.ErrNotHolder
		return
	}
	if e.Room() == queue.One {
		s.q.Downgrade(e)
		s.shared = true
		if e.Value.ends > 0 {
			s.shareds = append(s.shareds, o.id)
		}
		s.note("downgrade", o.id, o.lease, e.Value.fence, "")
		s.promote()
	}
}

// force begins the end of a hold, or takes out a waiter.
func (s *state) force(o *op) {
	e := s.entries[o.id]
	lease, behind := s.behind[o.id]
	_, noted := s.notes[o.id]
	switch {
	case behind:
		delete(s.behind, o.id)
		s.drop(o.id, inQueue)
		s.forgetLeast(o.id)
		s.forceOut(o, lease)
	case s.isLeast(o.id): // nobody is there to be told
		s.note("force", o.id, "", e.Value.fence, "")
		s.endLeast(e)
		o.found = true
	case e == nil:
		o.err = notForced(s.kept && !noted)
	case e.Waiting():
		lease = e.Value.lease
		s.remove(e)
		s.forceOut(o, lease)
	default:
		s.forceHold(o, e)
	}
}

// notForced is for what is not there. A server that must not grant may lack it, and who holds it may not know that yet.
func notForced(kept bool) error {
	if kept {
		return errKept
	}
	return lock.ErrNotHolder
}

// forceOut has a waiter learn that it is out: when it asks, it is given up.
func (s *state) forceOut(o *op, lease string) {
	o.found = true
	s.remember(o.id, note{lease: lease, known: -1})
	s.told = append(s.told, lease)
	s.note("force", o.id, lease, 0, "")
}

func (s *state) forceHold(o *op, e *entry) {
	if e.Value.ends > 0 { // it counts no more
		e.Value.ends = 0
		s.forgetLeast(o.id)
	}
	n, noted := s.notes[o.id]
	if !noted || o.grace < n.grace { // a longer one changes nothing
		if !noted {
			n = note{lease: e.Value.lease, forced: true, known: -1}
		}
		n.grace = o.grace
		s.remember(o.id, n)
		s.told = append(s.told, e.Value.lease)
		if o.grace > 0 {
			s.note("revoke", o.id, e.Value.lease, e.Value.fence, o.grace.String())
		}
	}
	o.queued = o.grace > 0 // it is still there
	o.found = true
	if o.grace == 0 {
		s.note("force", o.id, e.Value.lease, e.Value.fence, "")
		s.remove(e)
	}
}

// end ends a hold whose grace is over for whoever asks.
func (s *state) end(o *op) {
	e := s.entries[o.id]
	if n := s.notes[o.id]; e == nil || !e.Held() || !n.forced || n.known < 0 {
		return
	}
	s.note("force", o.id, e.Value.lease, e.Value.fence, "")
	s.forget(o.id)
	s.remove(e)
}

// sweep takes out what a lease that is over has left. Where another server has said that it is over, it may live on this one.
func (s *state) sweep(o *op) {
	if s.lives(o.of) {
		o.err = errLives
		return
	}
	e := s.entries[o.id]
	switch {
	case e != nil && e.Value.lease == o.of:
		s.note(s.leases[o.of].of(e.Value.fence), o.id, o.of, e.Value.fence, "")
		s.remove(e)
	case s.behind[o.id] == o.of:
		s.note(s.leases[o.of].of(0), o.id, o.of, 0, "")
		delete(s.behind, o.id)
		s.drop(o.id, inQueue)
		s.forgetLeast(o.id)
	}
	if s.notes[o.id].lease == o.of {
		s.forget(o.id)
	}
}
