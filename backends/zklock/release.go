package zklock

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/locksidecar/locksidecar/backends/zklock/zksession"
	"github.com/locksidecar/locksidecar/lock"
)

// Release implements lock.Lease.
func (l *lease) Release(ctx context.Context, r lock.Resource, id lock.HoldID) error {
	e, err := l.find("release", r, id)
	if err != nil {
		return err
	}
	there, err := e.release(context.WithoutCancel(ctx))
	switch {
	case err != nil:
		return l.failed(fmt.Sprintf("release %q", string(r)), err)
	case !there:
		return lock.ErrNotHolder
	}
	return nil
}

// find finds what the lease has or may have in the store. Without an entry there
// is nothing: whatever was asked for without an answer has one.
func (l *lease) find(what string, r lock.Resource, id lock.HoldID) (*entry, error) {
	if l.isLost() {
		return nil, lock.ErrLeaseLost
	}
	l.mu.Lock()
	e := l.entries[id]
	l.mu.Unlock()
	switch {
	case e == nil || e.q.Resource != r:
		return nil, lock.ErrNotHolder
	case l.seat.overdue():
		return nil, fmt.Errorf("%s %q: %w", what, string(r), errOverdue)
	}
	return e, nil
}

// release removes the request's nodes and then forgets it, and says whether
// there were any.
func (e *entry) release(ctx context.Context) (there bool, err error) {
	l := e.l
	e.begin()
	e.turn.Lock()
	defer e.turn.Unlock()
	there, err = e.remove(ctx)
	e.finish(err)
	if err != nil && l.isLost() {
		err = lock.ErrLeaseLost
	}
	return there, err
}

// begin makes calls of Acquire return, and lets the news that the node is gone
// pass.
func (e *entry) begin() {
	e.l.mu.Lock()
	defer e.l.mu.Unlock()
	e.out = true
	e.wake()
}

// finish forgets the request unless the outcome of its release is unknown.
func (e *entry) finish(err error) {
	e.l.mu.Lock()
	defer e.l.mu.Unlock()
	if err != nil {
		e.unheard = true
		return
	}
	e.forget()
}

// remove deletes the request's nodes. It has its turn.
func (e *entry) remove(ctx context.Context) (there bool, err error) {
	l := e.l
	l.mu.Lock()
	names, unsure, unheard := slices.Clone(e.nodes), e.unsure, e.unheard
	l.mu.Unlock()
	if unsure {
		err := insist(ctx, func() (err error) { _, names, err = e.search(ctx); return err })
		if err != nil {
			return false, err
		}
	}
	there, lost, err := l.seat.remove(ctx, e.path, names)
	// When an answer was lost and they are not there any more, that was the answer,
	// unless a release before this one may have deleted them.
	return there || lost && !unheard, err
}

// search looks for nodes that were made by a create without an answer, in the
// order in which a create makes them. What it finds, and does not find, is final:
// the sync is sent when nothing of ours is on its way any more (zksession.Sync). A
// create that came to a server by a connection before this one was done before, or
// is refused there, because the session has moved; and the sync makes this server
// know everything that was done before.
func (e *entry) search(ctx context.Context) (children, names []string, err error) {
	l := e.l
	sync, queue := zksession.Sync(l.b.tree.leases()), zksession.Children(e.path)
	if err := e.session().Do(ctx, sync, queue); err != nil {
		return nil, nil, err
	}
	if err := errors.Join(sync.Err, queue.Err); err != nil && !errors.Is(err, zksession.ErrNoNode) {
		return nil, nil, err
	}
	for _, c := range queue.Children {
		if !strings.HasPrefix(c, idPrefix(e.q.ID)) {
			continue
		}
		if _, request := parseNode(c); request {
			names = append(names, c)
		} else { // its guard
			names = append([]string{c}, names...)
		}
	}
	return queue.Children, names, nil
}

// remove deletes the nodes of one request, and says whether there were any. When
// there were none, lost says that one of ours may have deleted them unheard.
func (t *seat) remove(ctx context.Context, path string, names []string) (there, lost bool, err error) {
	err = insist(ctx, func() (err error) {
		there, err = t.removeOnce(ctx, path, names)
		lost = lost || errors.Is(err, zksession.ErrLost)
		return err
	})
	return there, lost && err == nil, err
}

func (t *seat) removeOnce(ctx context.Context, path string, names []string) (there bool, err error) {
	var calls []*zksession.Call
	for _, n := range names {
		calls = append(calls, zksession.Delete(path+"/"+n, zksession.AnyVersion))
	}
	switch len(calls) {
	case 0:
		return false, nil
	case 1:
		if err := t.s.Do(ctx, calls...); err != nil {
			return false, err
		}
	default: // as one, so that nobody sees the one without the other
		all := zksession.Multi(calls...)
		if err := t.s.Do(ctx, all); err != nil {
			return false, err
		}
		if all.Err != nil { // one of them is gone already
			return t.removeSome(ctx, path, names)
		}
	}
	if err := calls[0].Err; errors.Is(err, zksession.ErrNoNode) {
		return false, nil
	}
	return calls[0].Err == nil, calls[0].Err
}

// removeSome deletes those of the nodes of a request that are there.
func (t *seat) removeSome(ctx context.Context, path string, names []string) (there bool, err error) {
	var calls []*zksession.Call
	for _, n := range names {
		calls = append(calls, zksession.Delete(path+"/"+n, zksession.AnyVersion))
	}
	if err := t.s.Do(ctx, calls...); err != nil {
		return false, err
	}
	for _, c := range calls {
		switch {
		case c.Err == nil:
			there = true
		case !errors.Is(c.Err, zksession.ErrNoNode):
			err = errors.Join(err, c.Err)
		}
	}
	return there, err
}

// Downgrade implements lock.Lease. The node keeps its place and its name, so
// Curator's readers behind it go on waiting; ours read the mark.
func (l *lease) Downgrade(ctx context.Context, r lock.Resource, id lock.HoldID) error {
	e, err := l.find("downgrade", r, id)
	if err != nil {
		return err
	}
	e.turn.Lock()
	defer e.turn.Unlock()
	for {
		l.mu.Lock()
		if !e.held || e.out {
			l.mu.Unlock()
			return lock.ErrNotHolder
		}
		if e.shared() {
			l.mu.Unlock()
			return nil
		}
		rec := e.rec
		rec.Downgraded = true
		set := zksession.Set(e.node(), rec.encode(), e.version)
		get := zksession.Get(e.node())
		l.mu.Unlock()
		err := e.session().Do(context.WithoutCancel(ctx), set)
		if err == nil && errors.Is(set.Err, zksession.ErrBadVersion) { // somebody has written another mark
			if err = e.session().Do(context.WithoutCancel(ctx), get); err == nil {
				err = get.Err
			}
			if err == nil {
				l.mu.Lock()
				e.saw(get.Data, get.Stat)
				l.mu.Unlock()
				continue
			}
		} else if err == nil {
			err = set.Err
		}
		switch {
		case errors.Is(err, zksession.ErrNoNode):
			return lock.ErrNotHolder
		case err != nil:
			return l.failed(fmt.Sprintf("downgrade %q", string(r)), err)
		}
		l.mu.Lock()
		e.rec, e.version = rec, set.Stat.Version
		l.mu.Unlock()
		return nil
	}
}
