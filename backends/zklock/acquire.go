package zklock

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"time"

	"github.com/locksidecar/locksidecar/backends/zklock/zksession"
	"github.com/locksidecar/locksidecar/lock"
)

// maxTries bounds how often the ancestors of a place are made.
const maxTries = 5

// Acquire implements lock.Lease.
func (l *lease) Acquire(ctx context.Context, q lock.Request) (lock.Grant, error) {
	if l.isLost() {
		return lock.Grant{}, lock.ErrLeaseLost
	}
	path, err := l.b.tree.lockPath(q.Resource)
	if err != nil {
		return lock.Grant{}, err
	}
	if !validID(q.ID) {
		return lock.Grant{}, &lock.InvalidError{Field: "lock_id", Problem: "must have 1 to 64 letters, digits, - or _"}
	}
	if l.seat.overdue() {
		return lock.Grant{}, fmt.Errorf("acquire %q: %w", string(q.Resource), errOverdue)
	}
	a := &attempt{l: l, q: q, e: l.enter(q, path)}
	if q.Try {
		return a.try(ctx)
	}
	return a.run(ctx)
}

// attempt is one call of Acquire.
type attempt struct {
	l    *lease
	q    lock.Request
	e    *entry
	lost int // answers in a row

	// The forced release of the node that we wait for: whoever forced it may be
	// gone, and so may the holder's sidecar after it has written that it knows. So
	// those who wait delete the node when its time is over.
	revoked      string // path
	revokedUntil time.Duration
}

// verdict is what the store says to a request.
type verdict struct {
	granted bool
	again   bool          // ask again at once
	pause   time.Duration // else ask again after that, or when there is news
}

// run asks the store until the request is granted or there is no use in asking.
func (a *attempt) run(ctx context.Context) (lock.Grant, error) {
	l, e := a.l, a.e
	for {
		l.mu.Lock()
		news, resync := e.news, l.resync
		out, held := e.out, e.held
		l.mu.Unlock()
		switch {
		case l.isLost():
			return lock.Grant{}, lock.ErrLeaseLost
		case out:
			return lock.Grant{}, lock.ErrNotHolder
		case held:
			return a.grant(), nil
		case ctx.Err() != nil:
			return lock.Grant{}, a.giveUp(ctx, context.Cause(ctx))
		}
		v := verdict{pause: l.recheck}
		if !l.seat.overdue() {
			var err error
			if v, err = a.ask(context.WithoutCancel(ctx)); err != nil {
				return lock.Grant{}, err
			}
		}
		if v.granted || v.again {
			continue
		}
		// Spread, so that those who wait for one lock do not all look at once.
		t := time.NewTimer(v.pause + time.Duration(rand.Int64N(int64(v.pause)/8+1))) //nolint:gosec // not a secret
		select {
		case <-news:
		case <-resync:
		case <-t.C:
		case <-l.lost:
		case <-ctx.Done():
		}
		t.Stop()
	}
}

func (a *attempt) grant() lock.Grant {
	a.l.mu.Lock()
	defer a.l.mu.Unlock()
	return lock.Grant{ID: a.q.ID, Resource: a.q.Resource, Mode: a.q.Mode, Fence: a.e.fence}
}

// ask makes sure that the request has a place in the queue, and finds out
// whether it is granted. It is not cut short: the session bounds how long an
// answer may take, and what is cut short is unknown.
func (a *attempt) ask(ctx context.Context) (verdict, error) {
	l, e := a.l, a.e
	e.turn.Lock()
	defer e.turn.Unlock()
	l.mu.Lock()
	out, held, unsure, placed := e.out, e.held, e.unsure, len(e.nodes) > 0
	blocked, names := e.blocked, e.names
	l.mu.Unlock()
	if out || held {
		return verdict{again: true}, nil
	}
	if blocked != "" {
		l.mu.Lock()
		e.watched = false // should that have been missed, it is seen now
		l.mu.Unlock()
		v, there, err := a.peek(ctx, blocked, names)
		switch {
		case err != nil:
			return a.recover(err)
		case there:
			return v, nil
		}
	}
	var children []string
	var err error
	switch {
	case unsure:
		children, err = a.find(ctx)
	case placed:
		children, err = a.list(ctx)
	default:
		children, err = a.create(ctx)
	}
	var v verdict
	if err == nil {
		v, err = a.decide(ctx, children)
	}
	if err == nil {
		a.lost = 0
		return v, nil
	}
	return a.recover(err)
}

// recover says what is to be done after an error. A request that has its place
// stays there, whatever the connection does, as long as the session lives.
func (a *attempt) recover(err error) (verdict, error) {
	l, e := a.l, a.e
	err = l.failed(fmt.Sprintf("acquire %q", string(a.q.Resource)), err)
	if errors.Is(err, lock.ErrLeaseLost) {
		return verdict{}, err
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	var answer zksession.Error
	switch placed := len(e.nodes) > 0; {
	case errors.As(err, &answer) && (placed || e.unsure): // the server would say it again
	case placed && !a.q.Try:
		return verdict{pause: l.recheck}, nil // reconnecting wakes it
	case !placed && !e.unsure:
		e.forget()
	case errors.Is(err, zksession.ErrLost):
		if a.lost++; a.lost < maxLost {
			return verdict{again: true}, nil
		}
	}
	return verdict{}, err
}

// create takes a place in the queue and lists the queue, in one round trip where
// the lock's node is there.
func (a *attempt) create(ctx context.Context) ([]string, error) {
	l, e, t := a.l, a.e, &a.l.b.tree
	var ancestors []*zksession.Call
	if !l.b.isKnown(e.path) {
		ancestors = []*zksession.Call{t.container(e.path)}
	}
	names := []string{e.path + "/" + nodeName(a.q.ID, a.q.Mode)}
	if t.curator {
		names = append(names, e.path+"/"+guardName(a.q.ID))
	}
	if e.room.Load() == nil {
		room, err := l.seat.all.Room(ctx, names...)
		if err != nil {
			return nil, err
		}
		e.room.Store(room)
	}
	for tries := 1; ; tries++ {
		data := e.rec.encode()
		own := zksession.Create(names[0], data, t.acl, zksession.EphemeralSequential)
		queue := zksession.Children(e.path)
		place, nodes := own, []*zksession.Call{own}
		if t.curator {
			guard := zksession.Create(names[1], data, t.acl, zksession.EphemeralSequential)
			nodes = []*zksession.Call{guard, own}
			place = zksession.Multi(nodes...)
		}
		a.setUnsure(true)
		var err error
		if t.curator { // a transaction cannot be followed like that
			err = e.session().Do(ctx, append(ancestors, place)...)
		} else {
			err = e.session().Chase(ctx, append(ancestors, place, queue)...)
		}
		switch {
		case place.Err == nil:
			names = names[:0]
			for _, n := range nodes {
				names = append(names, strings.TrimPrefix(n.Path, e.path+"/"))
			}
			l.b.setKnown(e.path, true)
			l.mu.Lock()
			e.placed(names, l.b.clock())
			var watch *zksession.Call
			if own.Stat.Czxid != 0 {
				e.fence = lock.FenceOf(own.Stat.Czxid)
			} else {
				watch = e.watchCall()
			}
			l.mu.Unlock()
			switch {
			case watch != nil:
				return a.survey(ctx, watch)
			case err != nil:
				return nil, err
			}
			return queue.Children, queue.Err
		case errors.Is(place.Err, zksession.ErrLost):
			return nil, place.Err
		case !errors.Is(place.Err, zksession.ErrNoNode):
			a.setUnsure(false)
			return nil, a.refused(place.Err, ancestors)
		}
		// Its ancestors are not there, or not any more: the server removes those that
		// have been empty for a while.
		a.setUnsure(false)
		l.b.setKnown(e.path, false)
		if tries == maxTries {
			return nil, a.refused(place.Err, ancestors)
		}
		ancestors = t.ancestors(e.path)
	}
}

// survey lists the queue and reads the request's own node at the same time, where
// the create has not told the fence: in a transaction.
func (a *attempt) survey(ctx context.Context, own *zksession.Call) ([]string, error) {
	l, e := a.l, a.e
	queue := zksession.Children(e.path)
	if err := e.session().Together(ctx, queue, own); err != nil {
		return nil, err
	}
	if own.Err == nil {
		l.mu.Lock()
		e.fence = lock.FenceOf(own.Stat.Czxid)
		l.mu.Unlock()
	}
	return queue.Children, queue.Err
}

// refused is why a place could not be taken: in the first place, why an ancestor
// could not be made.
func (a *attempt) refused(err error, ancestors []*zksession.Call) error {
	for _, c := range ancestors {
		if c.Err != nil && !errors.Is(c.Err, zksession.ErrNodeExists) {
			err = c.Err
			break
		}
	}
	if errors.Is(err, zksession.ErrNoChildrenForEphemerals) {
		return &lock.InvalidError{Field: "resource", Problem: "is below a node in ZooKeeper that cannot have others below it"}
	}
	return err
}

func (a *attempt) setUnsure(unsure bool) {
	a.l.mu.Lock()
	defer a.l.mu.Unlock()
	a.e.unsure = unsure
}

// list lists the queue.
func (a *attempt) list(ctx context.Context) ([]string, error) {
	queue := zksession.Children(a.e.path)
	if err := a.e.session().Do(ctx, queue); err != nil {
		return nil, err
	}
	if errors.Is(queue.Err, zksession.ErrNoNode) {
		return nil, nil
	}
	return queue.Children, queue.Err
}

// find looks for the nodes of a create without an answer, and creates them when
// there are none.
func (a *attempt) find(ctx context.Context) ([]string, error) {
	children, names, err := a.e.search(ctx)
	if err != nil {
		return nil, err
	}
	if len(names) == 0 {
		a.setUnsure(false)
		return a.create(ctx)
	}
	a.l.mu.Lock()
	a.e.placed(names, a.l.b.clock())
	a.l.mu.Unlock()
	return children, nil
}

// decide finds out from the queue whether the request is granted, and watches
// the node that it must wait for.
//
// The list may be older than what the leader knows, but not than our own node.
// So nobody can be missing in it who was there before us, and if there is nobody
// in our way, nobody will be.
func (a *attempt) decide(ctx context.Context, children []string) (verdict, error) {
	l, e := a.l, a.e
	l.mu.Lock()
	known := len(e.nodes) > 0
	mine, fence := "", e.fence
	if known {
		mine = e.nodes[len(e.nodes)-1]
	}
	l.mu.Unlock()
	if !known { // it was deleted a moment ago
		return verdict{again: true}, nil
	}
	nodes := parseNodes(children)
	i := slices.IndexFunc(nodes, func(n node) bool { return n.name == mine })
	if i < 0 {
		l.mu.Lock()
		e.missed()
		l.mu.Unlock()
		return verdict{pause: l.recheck}, nil // there will be news
	}
	if fence == 0 {
		if there, err := a.readFence(ctx); !there || err != nil {
			return verdict{pause: l.recheck}, err // there will be news
		}
	}
	j := blocker(nodes, i, a.q.Mode == lock.Shared)
	if j < 0 {
		a.take()
		return verdict{granted: true}, nil
	}
	path, names := e.path+"/"+nodes[j].name, namesOf(children, nodes[j])
	if !a.q.Try {
		l.mu.Lock()
		e.block(path, names)
		l.mu.Unlock()
	}
	v, there, err := a.peek(ctx, path, names)
	if err == nil && !there {
		v.again = true
	}
	return v, err
}

// peek reads the node that the request waits for, and watches it. As long as it
// is there nobody else in the queue matters.
func (a *attempt) peek(ctx context.Context, path string, names []string) (v verdict, there bool, err error) {
	look := zksession.Watch(path)
	if a.q.Try {
		look = zksession.Get(path)
	}
	calls := []*zksession.Call{look}
	if own := a.watchOwn(); own != nil {
		calls = append(calls, own)
	}
	if err := a.e.session().Together(ctx, calls...); err != nil {
		return v, false, err
	}
	switch {
	case errors.Is(look.Err, zksession.ErrNoNode):
		a.l.mu.Lock()
		if a.e.blocked == path {
			a.e.unblock()
		}
		a.l.mu.Unlock()
		return v, false, nil
	case errors.Is(look.Err, zksession.ErrNoAuth): // another's node that we may not read is in our way all the same
	case look.Err != nil:
		return v, false, look.Err
	}
	rec, _ := decodeRecord(look.Data)
	if rec.Downgraded && a.q.Mode == lock.Shared {
		a.take()
		return verdict{granted: true}, true, nil
	}
	v, err = a.mindRevoked(ctx, path, rec, names)
	return v, true, err
}

// readFence reads what a create in a transaction, and one without an answer, did
// not tell.
func (a *attempt) readFence(ctx context.Context) (there bool, err error) {
	l, e := a.l, a.e
	l.mu.Lock()
	if len(e.nodes) == 0 {
		l.mu.Unlock()
		return false, nil
	}
	own := e.watchCall()
	l.mu.Unlock()
	if err := e.session().Do(ctx, own); err != nil {
		return false, err
	}
	if errors.Is(own.Err, zksession.ErrNoNode) {
		return false, nil
	}
	if own.Err != nil {
		return false, own.Err
	}
	l.mu.Lock()
	e.fence = lock.FenceOf(own.Stat.Czxid)
	l.mu.Unlock()
	return true, nil
}

// mindRevoked deletes the node in our way when its forced release is over.
func (a *attempt) mindRevoked(ctx context.Context, path string, rec record, names []string) (verdict, error) {
	l := a.l
	grace, known := rec.known()
	if !known {
		return verdict{pause: l.recheck}, nil
	}
	now := l.b.clock()
	if until := now + grace; a.revoked != path || until < a.revokedUntil {
		a.revoked, a.revokedUntil = path, until
	}
	if left := a.revokedUntil - now; left > 0 {
		return verdict{pause: min(l.recheck, left)}, nil
	}
	if _, _, err := l.seat.remove(ctx, a.e.path, names); err != nil {
		return verdict{}, err
	}
	return verdict{again: true}, nil
}

// take notes the grant.
func (a *attempt) take() {
	l, e := a.l, a.e
	l.mu.Lock()
	defer l.mu.Unlock()
	e.unblock()
	e.held, e.granted = true, l.b.clock()
	l.lasts(e, e.granted)
	if grace, revoked := e.rec.grace(); revoked { // before we knew that it is granted
		e.revoke(grace)
	}
}

// watchOwn is the call that watches the request's own node; nil when it is
// watched already.
func (a *attempt) watchOwn() *zksession.Call {
	a.l.mu.Lock()
	defer a.l.mu.Unlock()
	if a.e.watched || len(a.e.nodes) == 0 {
		return nil
	}
	return a.e.watchCall()
}
