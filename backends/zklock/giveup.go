package zklock

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/locksidecar/locksidecar/backends/zklock/zksession"
	"github.com/locksidecar/locksidecar/lock"
)

// giveUp takes the request back and returns a HeldError with why, or that this
// is not known to have worked.
func (a *attempt) giveUp(ctx context.Context, why error) error {
	l, e := a.l, a.e
	ctx = context.WithoutCancel(ctx)
	held := &lock.HeldError{Cause: why, Status: lock.Status{Resource: a.q.Resource}}
	l.mu.Lock()
	if len(e.nodes) == 0 && !e.unsure && !e.out {
		e.forget() // nothing was asked for yet
		l.mu.Unlock()
		return held
	}
	mine := ""
	if len(e.nodes) > 0 {
		mine = e.nodes[len(e.nodes)-1]
	}
	l.mu.Unlock()

	// Who was in the way is only for people, so it is asked for before, but no
	// failure to learn it matters.
	queue := zksession.Children(e.path)
	asked := mine != "" && !l.seat.overdue()
	if asked {
		asked = e.session().Do(ctx, queue) == nil
	}
	if _, err := e.release(ctx); err != nil {
		return l.failed(fmt.Sprintf("give up %q", string(a.q.Resource)), err)
	}
	if !asked {
		return held
	}
	nodes := parseNodes(queue.Children)
	if st, n, err := l.b.headOf(ctx, l.seat, a.q.Resource, e.path, nodes); err == nil {
		held.Status = st
		if i := slices.IndexFunc(nodes, func(n node) bool { return n.name == mine }); i >= n && !a.q.Try {
			held.Position = i - n + 1
		}
	}
	return held
}

// try asks for a grant without a wait. It looks first, so that most of those who
// are refused leave no trace in the queue.
func (a *attempt) try(ctx context.Context) (lock.Grant, error) {
	l, e := a.l, a.e
	l.mu.Lock()
	fresh := len(e.nodes) == 0 && !e.unsure && !e.held
	l.mu.Unlock()
	if ctx.Err() != nil && fresh {
		return lock.Grant{}, a.giveUp(ctx, context.Cause(ctx))
	}
	ctx = context.WithoutCancel(ctx)
	if fresh {
		var st lock.Status
		taken := false
		err := insist(ctx, func() (err error) { st, taken, err = a.look(ctx); return err })
		switch {
		case err != nil:
			_, err = a.recover(err)
			return lock.Grant{}, err
		case taken:
			return lock.Grant{}, a.giveUpTry(st)
		}
	}
	for {
		v, err := a.ask(ctx)
		l.mu.Lock()
		out, held := e.out, e.held
		l.mu.Unlock()
		switch {
		case err != nil:
			return lock.Grant{}, err
		case out:
			return lock.Grant{}, lock.ErrNotHolder
		case held:
			return a.grant(), nil
		case !v.again:
			return lock.Grant{}, a.giveUp(ctx, lock.ErrHeld)
		}
	}
}

func (a *attempt) giveUpTry(st lock.Status) error {
	a.l.mu.Lock()
	defer a.l.mu.Unlock()
	a.e.forget()
	return &lock.HeldError{Cause: lock.ErrHeld, Status: st}
}

// look finds out whether a try would be refused, without taking a place. The
// server that is asked may lag behind the leader: that it is free is checked
// when a place was taken, and that it is taken is asked for again after a sync.
func (a *attempt) look(ctx context.Context) (st lock.Status, taken bool, err error) {
	inTheWay := func(nodes []node, downgraded bool) bool {
		j := blocker(nodes, len(nodes), a.q.Mode == lock.Shared)
		return j > 0 || j == 0 && (!downgraded || a.q.Mode != lock.Shared)
	}
	children, err := a.list(ctx)
	if err != nil || !inTheWay(parseNodes(children), false) {
		return st, false, err
	}
	queue := zksession.Children(a.e.path)
	if err := a.e.session().Do(ctx, zksession.Sync(a.e.path), queue); err != nil {
		return st, false, err
	}
	if queue.Err != nil && !errors.Is(queue.Err, zksession.ErrNoNode) {
		return st, false, queue.Err
	}
	nodes := parseNodes(queue.Children)
	if !inTheWay(nodes, false) {
		return st, false, nil
	}
	st, _, err = a.l.b.headOf(ctx, a.l.seat, a.q.Resource, a.e.path, nodes)
	if err != nil {
		return st, false, err
	}
	downgraded := len(st.Holders) > 0 && st.Holders[0].ID == nodes[0].id && !nodes[0].shared && st.Holders[0].Mode == lock.Shared
	return st, inTheWay(nodes, downgraded), nil
}
