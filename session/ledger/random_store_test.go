package ledger

import (
	"context"
	"errors"
	"slices"
	"time"

	"github.com/locksidecar/locksidecar/lock"
)

// complete lets one request to the store return.
func (w *world) complete(i int) {
	x := w.works[i]
	w.works = append(w.works[:i], w.works[i+1:]...)
	current := x.lease == w.lease
	unknown := w.r.IntN(5) == 0
	switch x.kind {
	case "acquire":
		w.answer(x, current, unknown)
	case "clean":
		delete(w.store[x.request.Resource], x.id)
		if x.given {
			w.l.Cleaned()
		}
		if x.done != nil {
			x.done()
		}
	case "release":
		e := w.find(x)
		said := LostReason(0)
		switch {
		case unknown:
			said = Unknown
		case e == nil:
			said = StoreLost
		default:
			delete(w.store[e.res], x.id)
		}
		if x.said = append(x.said, said); !w.next(x) {
			err := w.l.Released(x.hold, x.said)
			if slices.Contains(x.said, StoreLost) != errors.Is(err, ErrLost) {
				w.t.Errorf("Released of %v = %v", x.said, err)
			}
		}
	case "downgrade":
		e := w.find(x)
		if e != nil {
			e.mode = lock.Shared
		} else {
			for p := range x.hold.Parts {
				if p.ID() == x.id {
					x.missing = p
				}
			}
		}
		if unknown || !w.next(x) {
			if unknown {
				x.missing = nil
			}
			_, _ = w.l.Downgraded(x.hold, !unknown && x.missing == nil, x.missing)
		}
	}
}

// find gives what the store has for the id of a request.
func (w *world) find(x *work) *entry {
	for _, holders := range w.store {
		if e := holders[x.id]; e != nil {
			return e
		}
	}
	return nil
}

// next goes on with the next of those that are held together.
func (w *world) next(x *work) bool {
	if len(x.rest) == 0 {
		return false
	}
	x.id, x.lease, x.rest = x.rest[0].id, x.rest[0].lease, x.rest[1:]
	w.begin(x)
	return true
}

func (w *world) answer(x *work, current, unknown bool) {
	q := x.request
	var err error
	var g lock.Grant
	switch {
	case !current:
		err = lock.ErrLeaseLost
	case x.grant != nil:
		g = *x.grant
	case w.free(q.Resource, q.Mode) && w.r.IntN(8) > 0:
		w.store[q.Resource][q.ID] = &entry{res: q.Resource, mode: q.Mode, lease: w.lease}
		g = lock.Grant{ID: q.ID, Resource: q.Resource, Mode: q.Mode, Fence: lock.Fence(w.ids)}
		if w.r.IntN(3) == 0 { // the answer takes a while
			x.grant = &g
			w.works = append(w.works, x)
			return
		}
		if x.stopped && unknown {
			err = lock.ErrUnavailable
		}
	case x.stopped && unknown:
		err = lock.ErrUnavailable
	case x.stopped:
		err = &lock.HeldError{Cause: context.Canceled}
	case q.Try:
		err = &lock.HeldError{Cause: lock.ErrHeld}
	case w.r.IntN(4) == 0:
		err = lock.ErrNotHolder
	default: // it waits on
		w.works = append(w.works, x)
		return
	}
	w.l.Answered(x.hold, x.id, x.lease, g, err)
}

// finish ends the session, lets the store answer everything, and looks at what is
// left.
func (w *world) finish() {
	if w.r.IntN(2) == 0 {
		w.l.Wind(Stopping)
		w.carry()
		w.now += 3 * time.Second
		w.look()
	}
	w.carry()
	w.l.Close()
	w.carry()
	for range 1000 {
		if len(w.works) == 0 {
			break
		}
		w.complete(0)
		w.carry()
	}
	switch {
	case w.ended != 1:
		w.t.Errorf("the session ended %d times", w.ended)
	case w.farewells != 0:
		w.t.Errorf("%d more farewells were promised than came", w.farewells)
	case len(w.works) > 0 || len(w.callers) > 0 || w.l.Waits() > 0:
		w.t.Errorf("%d requests and %d callers are left", len(w.works), len(w.callers))
	case w.l.Size() != 0 || w.l.given != 0 || w.l.Kept() != 0 || len(w.l.asks)+len(w.l.keys)+len(w.l.claims)+len(w.l.dues)+len(w.l.parts) != 0:
		w.t.Errorf("left: size %d, kept %d, %v %v %v", w.l.Size(), w.l.Kept(), w.l.asks, w.l.keys, w.l.claims)
	}
	for res, holders := range w.store {
		for id := range holders {
			w.t.Errorf("%s of %s is left in the store", id, res)
		}
	}
	if _, _, err := w.l.Acquire(&Ask{Resource: "a"}); !errors.Is(err, ErrClosed) {
		w.t.Errorf("Acquire after the end = %v", err)
	}
}
