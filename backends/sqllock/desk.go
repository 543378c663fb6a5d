package sqllock

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/locksidecar/locksidecar/backends/leasekit"
	"github.com/locksidecar/locksidecar/lock"
)

// desk is where the requests of this sidecar about one resource meet. It carries them
// out one transaction at a time, all that have come meanwhile together. So thousands
// who wait for one resource share their trips, and a row that an app has locked by its
// guard keeps one connection busy, and not all.
type desk struct {
	name    lock.Resource
	waiting []*op
	served  bool // somebody carries requests out
	frozen  bool // the row was locked for long: do not wait for it any more
	pause   time.Duration
}

const (
	// batch is how many requests one transaction carries out.
	batch = 128
	// tryTime is how long a try asks again because of a row that is locked.
	tryTime = time.Second
	// leaveTime is how long leave to wait for a row is waited for.
	leaveTime = 100 * time.Millisecond

	leastPause, mostPause = 2 * time.Millisecond, 100 * time.Millisecond
	awayPause             = time.Second // while the store does not answer
)

var errHasty = errors.New("somebody has locked the row")

// submit carries requests about one resource out. It returns when they are done, or,
// for requests with a ctx, when that ends and they were not sent.
func (b *Backend) submit(ctx context.Context, name lock.Resource, ops ...*op) {
	now := b.clock()
	for _, o := range ops {
		o.done, o.since, o.from = make(chan struct{}), now, lock.From(ctx)
	}
	d, mine := b.enter(name, ops)
	lock.Queued(ctx)
	if mine && !b.serve(d) { // usually that was all
		b.routines.Go(func() { b.attend(d) })
	}
	for _, o := range ops {
		select {
		case <-o.done:
			continue
		default:
		}
		select {
		case <-o.done:
		case <-ctx.Done():
			b.leave(d, o, context.Cause(ctx))
		}
	}
}

// enter puts requests on a desk. mine: the caller must serve it.
func (b *Backend) enter(name lock.Resource, ops []*op) (d *desk, mine bool) {
	b.deskMu.Lock()
	defer b.deskMu.Unlock()
	d = b.desks[name]
	if d == nil {
		d = &desk{name: name}
		b.desks[name] = d
	}
	for _, o := range ops {
		d.waiting = slices.DeleteFunc(d.waiting, o.overtakes)
	}
	d.waiting = append(d.waiting, ops...)
	mine, d.served = !d.served, true
	return d, mine
}

// overtakes tells whether a request in nobody's name need not be carried out any more before
// this one, which is about the same id: it is the same, or the sidecar has changed its mind. So
// a row that is locked for long does not gather what is to be done with it again and again.
func (o *op) overtakes(w *op) bool {
	same := o.kind == w.kind && o.grace <= w.grace
	return w.orphan && w.id == o.id && w.lease == o.lease && (same || o.kind == opAsk || o.kind == opRemove)
}

// leave takes a request off the desk whose caller waits no longer. Where it is being
// carried out at this moment, the end of that is waited for, which is bounded by the
// time limits of the connection.
func (b *Backend) leave(d *desk, o *op, cause error) {
	b.deskMu.Lock()
	o.left = cause
	if i := slices.Index(d.waiting, o); i >= 0 {
		d.waiting = slices.Replace(d.waiting, i, i+1, o.parting()...)
	}
	b.deskMu.Unlock()
	<-o.done
}

// parting ends a request whose caller has left, and that is not being carried out. What
// ends a hold stays in nobody's name, and is done when it can be. b.deskMu is held.
func (o *op) parting() []*op {
	switch o.kind {
	case opAsk, opAttach:
		o.fail(fmt.Errorf("%w: %w", leasekit.ErrNotSent, o.left))
		return nil
	case opDetach, opHandle: // whoever asked asks again
		o.fail(fmt.Errorf("somebody has locked the row: %w", o.left))
		return nil
	default:
		o.fail(fmt.Errorf("somebody has locked the row: %w", o.left))
		return []*op{o.again()}
	}
}

// again is a request in nobody's name.
func (o *op) again() *op {
	return &op{
		kind: o.kind, id: o.id, lease: o.lease, of: o.of, mode: o.mode, unsure: o.unsure, grace: o.grace,
		since: o.since, done: make(chan struct{}), orphan: true,
	}
}

// post has a request carried out in the background.
func (b *Backend) post(name lock.Resource, o *op) {
	o.done, o.since, o.orphan = make(chan struct{}), b.clock(), true
	if d, mine := b.enter(name, []*op{o}); mine {
		b.routines.Go(func() { b.attend(d) })
	}
}

// attend serves a desk until it is empty.
func (b *Backend) attend(d *desk) {
	for !b.serve(d) {
		b.deskMu.Lock()
		pause := d.pause
		b.deskMu.Unlock()
		if pause > 0 {
			leasekit.Sleep(b.background, pause)
		}
	}
}

// serve carries out one batch, and tells whether the desk is empty, and closed.
func (b *Backend) serve(d *desk) (empty bool) {
	ops := b.next(d)
	var later []*op
	var err error
	if len(ops) > 0 {
		later, err = b.carryOut(d, ops)
	}
	b.deskMu.Lock()
	defer b.deskMu.Unlock()
	for i := len(later) - 1; i >= 0; i-- {
		if later[i].left != nil {
			later = slices.Replace(later, i, i+1, later[i].parting()...)
		}
	}
	pause := d.pause
	d.pause, d.frozen = 0, false
	switch {
	case len(later) == 0:
	case err == nil:
		d.waiting = append(d.waiting, later...)
	default:
		d.waiting = append(later, d.waiting...)
	}
	if err != nil || len(later) == len(ops) && len(d.waiting) == len(later) {
		most := mostPause
		if err != nil && !b.d.Class(err).Again() {
			most = awayPause
		}
		d.pause = min(max(2*pause, leastPause), most)
		d.frozen = b.d.Class(err) == Blocked
	}
	if len(d.waiting) == 0 {
		d.served = false
		delete(b.desks, d.name)
		return true
	}
	return false
}

// next takes the requests of the next batch, and lets those go that nobody waits for.
func (b *Backend) next(d *desk) []*op {
	b.deskMu.Lock()
	defer b.deskMu.Unlock()
	if b.background.Err() != nil {
		for _, o := range d.waiting {
			o.fail(errors.New("the store is closed"))
		}
		d.waiting = nil
		return nil
	}
	n := min(len(d.waiting), batch)
	ops := slices.Clone(d.waiting[:n])
	d.waiting = slices.Delete(d.waiting, 0, n)
	return slices.DeleteFunc(ops, func(o *op) bool {
		over := o.ctx != nil && o.ctx.Err() != nil
		if over {
			o.fail(fmt.Errorf("%w: %w", leasekit.ErrNotSent, context.Cause(o.ctx)))
		}
		return over
	})
}

func (o *op) fail(err error) {
	o.err = err
	close(o.done)
}

// carryOut carries out a batch. What is to be tried again is given back, with the
// error that was the reason.
//
//nolint:contextcheck,nolintlint // a batch is of many requests, and has the backend's context; contextcheck reads this, and nolintlint does not see it
func (b *Backend) carryOut(d *desk, ops []*op) (later []*op, err error) {
	ctx := context.WithValue(b.background, lock.FromKey{}, ops[0].from)
	wait := !d.frozen && patient(ops) && b.mayWait(ctx)
	if wait {
		defer b.patient.Leave()
	}
	if len(ops) == 1 && wait {
		if done, later, err := b.quick(ctx, d.name, ops[0]); done {
			return later, err
		}
	}
	asked := b.strangers.Load()
	s, later, err := b.transact(ctx, d.name, ops, wait)
	if errors.Is(err, errNoRow) {
		later, err = b.absent(ctx, d.name, ops, errors.Is(err, errKept))
		return later, err
	}
	if err != nil {
		for _, o := range ops {
			if o.blocked != nil && wait && b.d.Class(err) == Blocked {
				o.blocked.Store(true)
			}
		}
		return b.failed(d.name, ops, err), err
	}
	b.known.add(d.name, s.busy())
	b.after(d.name, s, asked)
	for _, o := range ops {
		if !slices.Contains(later, o) {
			close(o.done)
		}
	}
	if len(later) > 0 { // an app has locked them
		return b.failed(d.name, later, errHasty), nil
	}
	if s.more {
		return []*op{{kind: opSettle, done: make(chan struct{})}}, nil
	}
	return nil, nil
}

// mayWait gives leave to wait for a row, which some connections are always kept from.
// Usually somebody gives it back within a few milliseconds. Where all that have it wait
// for rows, the row is asked for without it: that costs more trips.
func (b *Backend) mayWait(ctx context.Context) bool {
	ctx, cancel := context.WithTimeout(ctx, leaveTime)
	defer cancel()
	return b.patient.Enter(ctx)
}

// absent is for a resource without a row. kept: the server may lack it.
func (b *Backend) absent(ctx context.Context, name lock.Resource, ops []*op, kept bool) (later []*op, err error) {
	for _, o := range ops { // where nothing is, there is nothing to do
		if o.kind == opAsk || o.unsure || o.lease != "" {
			later = append(later, o)
			continue
		}
		switch o.kind {
		case opForce:
			o.err = notForced(kept)
		case opHandle:
			o.err = lock.ErrNoHandle
		default:
		}
		close(o.done)
	}
	if len(later) == 0 {
		return nil, nil
	}
	if err := b.create(ctx, name); err != nil {
		return b.failed(name, later, err), err
	}
	return later, nil
}

// failed answers the requests of a batch that failed, but for those that are tried
// again.
func (b *Backend) failed(name lock.Resource, ops []*op, err error) (later []*op) {
	again := b.d.Class(err).Again() || errors.Is(err, errHasty)
	held := false
	if again && slices.ContainsFunc(ops, func(o *op) bool { return o.try }) {
		held = b.looksHeld(name)
	}
	for _, o := range ops {
		switch {
		case again && o.try && (held || b.clock()-o.since > tryTime):
			o.fail(lock.ErrHeld)
		case again && !o.hasty:
			later = append(later, o)
		case again:
			o.fail(errHasty)
		default:
			if o.kind == opRemove { // it may have come half the way, and others wait
				later = append(later, o.again())
			}
			o.fail(b.unavailable(o.kind.String(), err))
		}
	}
	return later
}

// looksHeld tells, without a lock, whether somebody has a resource.
func (b *Backend) looksHeld(name lock.Resource) bool {
	st, err := b.Get(b.background, name)
	return err == nil && len(st.Holders)+len(st.Waiters) > 0
}

// after does what follows from a transaction that was committed.
func (b *Backend) after(name lock.Resource, s *state, asked uint64) {
	for _, e := range s.events {
		e.name = name
		b.log.add(e)
	}
	for _, e := range s.granted {
		ref := leasekit.Ref{Resource: name, ID: e.ID}
		if l := b.local(e.Value.lease); l != nil {
			l.heard(leasekit.Push{Kind: leasekit.Granted, Ref: ref, Fence: fenceOf(e.Value.fence)}, asked, e.Value.at)
		} else {
			b.bells.ring(lock.LeaseID(e.Value.lease))
		}
	}
	for _, c := range s.contended {
		if l := b.local(c.lease); l != nil {
			l.contended(leasekit.Ref{Resource: name, ID: c.id})
		} else {
			b.bells.ring(lock.LeaseID(c.lease))
		}
	}
	for _, lease := range s.told {
		if l := b.local(lease); l != nil {
			leasekit.Ring(l.rang)
		} else {
			b.bells.ring(lock.LeaseID(lease))
		}
	}
}

// quick carries out what takes one trip where nobody else is there. done: it is
// answered.
func (b *Backend) quick(ctx context.Context, name lock.Resource, o *op) (done bool, later []*op, err error) {
	known, busy := b.known.get(name)
	switch {
	case o.kind == opAsk && o.fresh && o.mode == lock.Exclusive && o.least == 0 && !busy:
		done, err = b.takeFree(ctx, name, o, known)
	case o.kind == opRemove && o.plain && !busy:
		done, err = b.giveBack(ctx, name, o)
	}
	if err != nil {
		if b.d.Class(err).Again() { // the long way is for that
			return false, nil, nil
		}
		return true, b.failed(name, []*op{o}, err), err
	}
	if done {
		close(o.done)
	}
	return done, nil, nil
}

func (b *Backend) takeFree(ctx context.Context, name lock.Resource, o *op, known bool) (done bool, err error) {
	q, n, id, lease, owner, trusted := b.sql, []byte(name), []byte(o.id), []byte(o.lease), []byte(o.owner), []byte(b.trusted())
	stmts := []Statement{{SQL: q.take, Args: []any{id, lease, owner, n, lease, trusted}, Count: true, Often: true}}
	if !known { // all or nothing: where one is blocked, the other must not have granted
		first := Statement{SQL: q.first, Args: []any{n, id, lease, owner, lease, trusted}, Count: true}
		stmts = []Statement{{SQL: "START TRANSACTION"}, stmts[0], first, {SQL: "COMMIT"}}
	}
	res, err := b.pool.Do(ctx, "acquire", stmts...)
	if err != nil {
		return false, err
	}
	for i, r := range res {
		if stmts[i].Count && r.Affected > 0 {
			o.fence, o.at = r.Value, r.Value
			b.known.add(name, false)
			b.log.add(event{what: "acquire", name: name, id: o.id, lease: o.lease, fence: o.fence})
			return true, nil
		}
	}
	b.known.add(name, true)
	return false, nil
}

func (b *Backend) giveBack(ctx context.Context, name lock.Resource, o *op) (done bool, err error) {
	q, n := b.sql, []byte(name)
	give := Statement{SQL: q.give, Args: []any{n, []byte(o.id), []byte(o.lease)}, Count: true, Often: true}
	batch := []Statement{give}
	if !q.w.LateReads {
		batch = []Statement{{SQL: "START TRANSACTION"}, {SQL: q.lockX, Args: []any{n}, Ignore: true}, give, {SQL: "COMMIT"}}
	}
	res, err := b.pool.Do(ctx, "release", batch...)
	if err != nil {
		return false, err
	}
	given := res[len(batch)/2]
	if given.Affected == 0 {
		return false, nil
	}
	o.found = true
	b.log.add(event{what: "release", name: name, id: o.id, lease: o.lease, fence: given.Value})
	return true, nil
}
