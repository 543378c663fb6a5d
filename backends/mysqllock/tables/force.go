package tables

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/locksidecar/locksidecar/backends/mysqllock/mydb"
	"github.com/locksidecar/locksidecar/lock"
)

// ForceRelease implements lock.Backend.
//
// Grace is counted on the clocks of those who take part, each from after the
// mark was there: whoever forces the release ends the hold when grace is over; if
// it is gone by then, the sidecar of the holder does, or one that waits.
func (b *Backend) ForceRelease(ctx context.Context, r lock.Resource, id lock.HoldID, grace time.Duration) error {
	var found, gone bool
	s, err := b.change(ctx, "force", subject{name: r, id: string(id)}, func(s *state) {
		s.clean()
		found, gone = s.force(string(id), grace)
		s.promote()
	})
	switch {
	case errors.Is(err, errNoRow):
		return lock.ErrNotHolder
	case err != nil:
		return mydb.Unavailable("force release", err)
	case !found:
		return lock.ErrNotHolder
	}
	if s.more {
		if err := b.settle(ctx, r); err != nil {
			return mydb.Unavailable("force release", err)
		}
	}
	if gone {
		return nil
	}
	end := b.clock() + grace
	wait := func(ctx context.Context) error {
		for {
			left := end - b.clock()
			if left <= 0 {
				return b.endForced(ctx, r, string(id))
			}
			if there, err := b.holds(ctx, r, id); err == nil && !there {
				return nil
			}
			t := time.NewTimer(min(left, 25*time.Millisecond)) // the holder may be quick
			select {
			case <-t.C:
			case <-ctx.Done():
				t.Stop()
				return context.Cause(ctx)
			}
		}
	}
	if err := wait(ctx); err != nil {
		if ctx.Err() == nil {
			return mydb.Unavailable("force release", err)
		}
		b.routines.Go(func() { _ = wait(b.background) }) // others do it if this fails
		return fmt.Errorf("force release %q: %w; it ends by itself within %s", string(r), err, max(0, end-b.clock()))
	}
	return nil
}

// force marks or removes a hold, or removes a waiter.
func (s *state) force(id string, grace time.Duration) (found, gone bool) {
	micros := grace.Microseconds()
	tell := func(m member, kind newsKind) {
		s.news = append(s.news, news{lease: m.lease, id: m.id, kind: kind, name: s.name, grace: micros})
	}
	mark := func(m member) (marked member, changed bool) {
		if m.mark != 0 && m.grace <= micros { // the earlier one ends first, or about then
			return m, false
		}
		m.mark, m.grace = 1+rand.Int64N(1<<62), micros //nolint:gosec // not a secret
		s.note("revoke", m, m.fence, grace.String())
		tell(m, newsRevoked)
		return m, true
	}
	switch {
	case s.x.id == id:
		s.x.fence = s.fence
		if micros == 0 {
			tell(s.x, newsRevoked)
			s.note("force", s.x, s.fence, "")
			s.clearX()
			return true, true
		}
		if x, changed := mark(s.x); changed {
			s.x, s.newX = x, newX{kind: xMark}
		}
		return true, false
	case s.own != nil && s.own.live:
		if micros == 0 {
			tell(*s.own, newsRevoked)
			s.note("force", *s.own, s.own.fence, "")
			s.removeHold(id)
			return true, true
		}
		if h, changed := mark(*s.own); changed {
			s.marks = append(s.marks, h)
		}
		return true, false
	case s.place != nil && s.waits(s.place.lease):
		tell(*s.place, newsOut)
		s.note("force", *s.place, 0, "")
		s.removeWaiter(s.place.seq)
		return true, true
	}
	return false, false
}

// endForced ends a hold whose grace is over.
func (b *Backend) endForced(ctx context.Context, r lock.Resource, id string) error {
	s, err := b.change(ctx, "force", subject{name: r, id: id}, func(s *state) {
		s.clean()
		switch {
		case s.x.id == id && s.x.mark != 0:
			s.note("force", s.x, s.fence, "")
			s.clearX()
		case s.own != nil && s.own.live && s.own.mark != 0:
			s.note("force", *s.own, s.own.fence, "")
			s.removeHold(id)
		}
		s.promote()
	})
	if errors.Is(err, errNoRow) {
		return nil
	}
	if err == nil && s.more {
		err = b.settle(ctx, r)
	}
	return err
}

// holds reports whether an id holds a resource, and its lease is there.
func (b *Backend) holds(ctx context.Context, r lock.Resource, id lock.HoldID) (bool, error) {
	st, err := b.Get(ctx, r)
	if err != nil {
		return false, err
	}
	for _, h := range st.Holders {
		if h.ID == id {
			return true, nil
		}
	}
	return false, nil
}
