package tables

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"math"
	"time"

	"github.com/locksidecar/locksidecar/backends/mysqllock/mydb"
	"github.com/locksidecar/locksidecar/lock"
)

// forcePoll is how often ForceRelease looks what has become of the hold.
const forcePoll = 25 * time.Millisecond

// ForceRelease implements lock.Backend.
//
// It writes the grace beside the hold. The holder's sidecar hears of it, tells its
// app, and writes that it knows: from then on the grace counts. Each of those who
// take part counts it on a clock of its own: the holder's sidecar from when it
// heard, the others from after they have read that it did. The first of them for
// whom it is over ends the hold: usually the holder's sidecar; where that is cut
// off, whoever forced the release, or a sidecar that waits.
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
	if err := b.awaitForced(ctx, r, id); err != nil {
		if ctx.Err() != nil {
			return fmt.Errorf("force release %q: %w; it ends by itself %s after the holder's sidecar knows of it, or with its lease", string(r), err, grace)
		}
		return mydb.Unavailable("force release", err)
	}
	return nil
}

// awaitForced waits until a hold is gone whose release is forced, and ends it when
// its grace is over.
func (b *Backend) awaitForced(ctx context.Context, r lock.Resource, id lock.HoldID) error {
	due := time.Duration(math.MaxInt64)
	name := []byte(r)
	for {
		known, there := time.Duration(0), false
		if err := b.query(ctx, "force", func(_ int, rows *sql.Rows) error {
			there = true
			var micros int64
			err := rows.Scan(&micros)
			known = time.Duration(micros) * time.Microsecond
			return err
		}, b.sql.forced, name, []byte(id), name, []byte(id)); err != nil || !there {
			return err
		}
		now := b.clock()
		if known > 0 {
			due = min(due, now+known)
		}
		if now >= due {
			return b.endForced(ctx, r, string(id), false)
		}
		t := time.NewTimer(min(due-now, forcePoll)) // the holder may be quick
		select {
		case <-t.C:
		case <-ctx.Done():
			t.Stop()
			return context.Cause(ctx)
		}
	}
}

// force marks or removes a hold, or removes a waiter.
func (s *state) force(id string, grace time.Duration) (found, gone bool) {
	micros := grace.Microseconds()
	tell := func(m member, kind newsKind) {
		s.news = append(s.news, news{lease: m.lease, id: m.id, kind: kind, name: s.name, grace: micros})
	}
	mark := func(m member) (marked member, changed bool) {
		if m.grace != 0 && m.grace <= micros { // a longer one changes nothing
			return m, false
		}
		m.grace = micros // what its sidecar knows of stays: that counts on
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

// acknowledge notes that the sidecar of a hold knows of a grace.
func (s *state) acknowledge(id, lease string, grace int64) {
	news := func(m member) bool { return m.lease == lease && m.grace != 0 && (m.mark == 0 || m.mark > grace) }
	switch {
	case s.x.id == id && news(s.x):
		s.dirty = true
		s.x.mark, s.newX = grace, newX{kind: xMark}
	case s.own != nil && news(*s.own):
		s.dirty = true
		h := *s.own
		h.mark = grace
		s.marks = append(s.marks, h)
	}
}

// acknowledge writes down that the sidecar of a hold knows of a forced release.
func (b *Backend) acknowledge(ctx context.Context, m markKey, lease string, grace int64) error {
	_, err := b.change(ctx, "acknowledge", subject{name: m.name, id: m.id, hasty: true}, func(s *state) { s.acknowledge(m.id, lease, grace) })
	if errors.Is(err, errNoRow) {
		return nil
	}
	return err
}

// endForced ends a hold whose grace is over. Who is hasty gets an error where the
// row of the resource is locked for long.
func (b *Backend) endForced(ctx context.Context, r lock.Resource, id string, hasty bool) error {
	s, err := b.change(ctx, "force", subject{name: r, id: id, hasty: hasty}, func(s *state) {
		s.clean()
		switch {
		case s.x.id == id && s.x.grace != 0:
			s.note("force", s.x, s.fence, "")
			s.clearX()
		case s.own != nil && s.own.live && s.own.grace != 0:
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
