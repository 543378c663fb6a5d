package ledger

import (
	"time"

	"github.com/locksidecar/locksidecar/lock"
)

// Detach takes a hold off its session: it is to be detached in the store as its Exit says, and
// Released is to be told what the store has said. Errors as for Release, and
// *lock.InvalidError: it cannot be detached.
func (l *Ledger) Detach(id lock.HoldID, x Exit) (*Hold, error) {
	h := l.lives(id)
	switch {
	case h == nil:
		return nil, l.missing(id)
	case !h.detachable:
		return nil, &lock.InvalidError{Field: "lock_id", Problem: "is that of a hold that was not acquired with detachable"}
	case h.busy:
		return nil, &lock.InvalidError{Field: "lock_id", Problem: "is that of a hold that is being downgraded"}
	case h.unsure: // its handle must say in what mode it is
		return nil, &lock.InvalidError{Field: "lock_id", Problem: "is that of a hold whose downgrade the store has not confirmed: downgrade it again first"}
	}
	x.former = h.handle
	h.count, h.exit = 1, &x
	return l.takeOff(h, nil).Hold, nil
}

// HandleOf is the key of the handle by which a hold that lives is attached; "": it is not.
func (l *Ledger) HandleOf(id lock.HoldID) lock.HandleKey {
	if h := l.lives(id); h != nil {
		return h.handle
	}
	return ""
}

// SetEnd moves the moment at which the time of an attached hold is over.
func (l *Ledger) SetEnd(id lock.HoldID, end time.Duration) {
	h := l.lives(id)
	if h == nil || h.handle == "" {
		return
	}
	h.end = end
	l.limit(h)
}
