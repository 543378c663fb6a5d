package arbiter

import (
	"context"
	"fmt"
	"time"

	"github.com/locksidecar/locksidecar/lock"
)

// ForceRelease implements lock.Backend. Where id is one of several readers that share a
// hold, or has it or waits beside others, only that one is taken out; else the hold or place in
// the store is.
func (b *Backend) ForceRelease(ctx context.Context, r lock.Resource, id lock.HoldID, grace time.Duration) error {
	for _, l := range b.all() {
		f := l.force(r, id, grace)
		if f == nil {
			continue
		}
		switch {
		case f.err != nil:
			return fmt.Errorf("force release: %w", f.err)
		case f.inStore != "":
			return b.Backend.ForceRelease(ctx, r, f.inStore, grace)
		case f.gone == nil:
			return nil
		}
		select {
		case <-f.gone:
			return nil
		case <-ctx.Done():
			return fmt.Errorf("force release: %w: grace is not over: %w", lock.ErrUnavailable, context.Cause(ctx))
		}
	}
	st, err := b.look(ctx, r)
	if err != nil {
		return fmt.Errorf("force release: %w", err)
	}
	inStore, turned := st[id]
	switch {
	case !turned:
		inStore = id
	case inStore == "":
		return fmt.Errorf("force release: %w", lock.ErrNotHolder)
	}
	return b.Backend.ForceRelease(ctx, r, inStore, grace)
}

// forced is a forced release under way.
type forced struct {
	inStore lock.HoldID   // not empty: this is to be forced in the store
	gone    chan struct{} // closed when the hold is; nil: it is
	err     error
}

// lookLimit ends a look for which nobody may wait any more. Drivers give up far sooner.
const lookLimit = time.Minute

// turned are the holds in the store that are not what they seem, by the id that an app has: "" where who had
// it first has it no more.
type turned map[lock.HoldID]lock.HoldID

// looks are those at one resource, for forced releases: one at a time. Who comes while one is under way waits for the
// next, together with all others who come meanwhile. So thousands that are forced at once do not each read what all of them have.
type looks struct {
	next *look
}

// look is one of them.
type look struct {
	over chan struct{} // closed when the others are known
	all  turned
	err  error
}

// look reads what the store has after it was called.
func (b *Backend) look(ctx context.Context, r lock.Resource) (turned, error) {
	b.mu.Lock()
	if b.closed {
		b.mu.Unlock()
		return nil, fmt.Errorf("%w: the connection to it is closed", lock.ErrUnavailable)
	}
	q, busy := b.looks[r]
	if !busy {
		q = new(looks)
		b.looks[r] = q
	}
	if q.next == nil {
		q.next = &look{over: make(chan struct{})}
	}
	l := q.next
	if !busy {
		b.tasks.Go(func() { b.lookAll(context.WithoutCancel(ctx), r, q) }) // others may wait for it when this one does not any more
	}
	b.mu.Unlock()
	select {
	case <-l.over:
		return l.all, l.err
	case <-ctx.Done():
		return nil, fmt.Errorf("%w: %w", lock.ErrUnavailable, context.Cause(ctx))
	}
}

// lookAll looks for as long as somebody waits for it.
func (b *Backend) lookAll(ctx context.Context, r lock.Resource, q *looks) {
	for {
		b.mu.Lock()
		l := q.next
		if q.next = nil; l == nil {
			delete(b.looks, r)
			b.mu.Unlock()
			return
		}
		b.mu.Unlock()
		limit, cancel := context.WithTimeout(ctx, lookLimit)
		ignore := context.AfterFunc(b.ctx, cancel) //nolint:contextcheck // whichever ends first
		st, err := b.Backend.Get(limit, r)
		ignore()
		cancel()
		l.all, l.err = turnedOf(&st), err
		close(l.over)
	}
}

// turnedOf finds what a local hand-on has changed since the store was told.
func turnedOf(st *lock.Status) turned {
	all := make(turned)
	for _, h := range st.Holders {
		if t := h.Owner.Turn; t != nil && !h.Owner.Parked() && t.LockID != h.ID {
			all[t.LockID], all[h.ID] = h.ID, ""
		}
	}
	return all
}
