package caslock

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/locksidecar/locksidecar/backends/leasekit"
	"github.com/locksidecar/locksidecar/lock"
)

// desk is where the requests of this sidecar about one resource meet. It carries them out
// one transaction at a time, all that have come meanwhile together. So they do not overtake
// each other's transactions, and thousands who wait for one resource share their trips.
type desk struct {
	waiting []*op
	tries   int           // how often other sidecars have overtaken the transaction of those in front
	hurry   chan struct{} // has a value when somebody has come who is not to wait long
}

const (
	// turns is how many desks, and other requests of apps, the store is asked by at a time. A store that gets thousands at once
	// answers none of them in time, and no heartbeat either: those wait for no turn.
	turns = 64
	// A transaction that is overtaken crowded times waits a moment before it begins again: up to a millisecond, and twice as long
	// each time, up to longest. Otherwise hundreds of sidecars at one resource keep each other, and the store, from getting
	// anything done. Who asks for nothing new there, as who releases, waits up to shortly: then others can go on.
	crowded          = 2
	shortly, longest = 20 * time.Millisecond, 4 * time.Second
)

// takeTurn waits for a turn. The error is why ctx has ended.
func (b *Backend) takeTurn(ctx context.Context) error {
	select {
	case b.turns <- struct{}{}:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

func (b *Backend) endTurn() { <-b.turns }

// inTurn is do of a request that is made for an app, and about no resource's head.
func (b *Backend) inTurn(ctx context.Context, command string, t Txn) (Result, error) {
	if err := b.takeTurn(ctx); err != nil {
		return Result{}, err
	}
	defer b.endTurn()
	return b.do(ctx, command, t)
}

// submit carries requests about one resource out. It returns when they are done, or, for
// requests with a ctx, when that ends and they were not sent.
func (b *Backend) submit(name lock.Resource, ops ...*op) {
	if len(ops) == 0 {
		return
	}
	for _, o := range ops {
		o.done = make(chan struct{})
	}
	if d, mine := b.enter(name, ops); mine && !b.serveNow(name, d) { // usually that was all
		b.routines.Go(func() { b.serveAll(name, d) })
	}
	for _, o := range ops {
		if o.ctx == nil {
			<-o.done
			continue
		}
		select {
		case <-o.done:
		case <-o.ctx.Done():
			b.leave(name, o)
			<-o.done // it is being carried out, which is bounded
		}
	}
}

// within carries one request out, and waits for it no longer than until ctx ends: then its
// outcome is unknown. Otherwise the error is that of the request, whose results are there.
func (b *Backend) within(ctx context.Context, name lock.Resource, o *op) error {
	done := make(chan struct{})
	b.routines.Go(func() {
		defer close(done)
		b.submit(name, o)
	})
	select {
	case <-done:
		return o.err
	case <-ctx.Done():
		return b.unavailable(o.kind.String(), context.Cause(ctx))
	}
}

// atATime is how many requests about different resources one lease has under way for its own.
const atATime = 16

// each calls f for all items, some at a time, and gives one of its errors.
func each[T any](items []T, f func(T) error) error {
	todo, failed := make(chan T), make(chan error)
	workers := min(len(items), atATime)
	for range workers {
		go func() {
			var err error
			for item := range todo {
				err = errors.Join(err, f(item))
			}
			failed <- err
		}()
	}
	for _, item := range items {
		todo <- item
	}
	close(todo)
	var err error
	for range workers {
		if one := <-failed; one != nil {
			err = one
		}
	}
	return err
}

// enter puts requests on a desk. mine: the caller must serve it.
func (b *Backend) enter(name lock.Resource, ops []*op) (d *desk, mine bool) {
	b.deskMu.Lock()
	defer b.deskMu.Unlock()
	d = b.desks[name]
	if mine = d == nil; mine {
		d = &desk{hurry: make(chan struct{}, 1)}
		b.desks[name] = d
	}
	d.waiting = append(d.waiting, ops...)
	if slices.ContainsFunc(ops, (*op).hurries) {
		leasekit.Ring(d.hurry)
	}
	return d, mine
}

// hurries tells whether a request is not to wait long where many come together.
func (o *op) hurries() bool { return o.kind != opAsk || o.try }

// leave takes a request off a desk whose caller waits no longer, if it was not sent.
func (b *Backend) leave(name lock.Resource, o *op) {
	b.deskMu.Lock()
	defer b.deskMu.Unlock()
	if d := b.desks[name]; d != nil {
		if i := slices.Index(d.waiting, o); i >= 0 {
			d.waiting = slices.Delete(d.waiting, i, i+1)
			o.notSent()
		}
	}
}

func (o *op) notSent() {
	o.err = fmt.Errorf("%w: %w", leasekit.ErrNotSent, context.Cause(o.ctx))
	close(o.done)
}

// serveNow is serve where it is somebody's turn at once.
func (b *Backend) serveNow(name lock.Resource, d *desk) (empty bool) {
	select {
	case b.turns <- struct{}{}:
		defer b.endTurn()
		return b.serve(name, d)
	default:
		return false
	}
}

// serveAll serves a desk until it is empty.
func (b *Backend) serveAll(name lock.Resource, d *desk) {
	for empty := false; !empty; {
		b.pause(d)
		turn := b.takeTurn(b.background)
		empty = b.serve(name, d) // without a turn the store is closed, and says so
		if turn == nil {
			b.endTurn()
		}
	}
}

// pause waits where others have overtaken those in front again and again.
func (b *Backend) pause(d *desk) {
	for {
		b.deskMu.Lock()
		tries, hurry := d.tries-crowded, slices.ContainsFunc(d.waiting, (*op).hurries)
		b.deskMu.Unlock()
		if tries <= 0 {
			return
		}
		most := min(time.Millisecond<<min(tries, 16), longest)
		if hurry {
			most = min(most, shortly)
		}
		t := time.NewTimer(rand.N(most)) //nolint:gosec // not a secret
		select {
		case <-d.hurry:
			if t.Stop(); hurry { // of who has come before
				continue
			}
		case <-t.C:
			return
		case <-b.background.Done():
			t.Stop()
			return
		}
	}
}

// serve carries out one batch, and tells whether the desk is empty, and closed.
func (b *Backend) serve(name lock.Resource, d *desk) (empty bool) {
	ops := b.batch(d)
	more, overtaken := false, false
	if len(ops) > 0 {
		s, err := b.transact(b.background, name, ops)
		if overtaken = errors.Is(err, errOvertaken); !overtaken {
			for _, o := range ops {
				if err != nil {
					o.err = b.unavailable(o.kind.String(), err)
				}
				close(o.done)
			}
			more = err == nil && s.more
		}
	}
	b.deskMu.Lock()
	defer b.deskMu.Unlock()
	if overtaken {
		d.tries++
		d.waiting = slices.Concat(stillAsked(ops), d.waiting) // whose caller gives up from now on leaves
	} else {
		d.tries = 0
	}
	if more {
		d.waiting = append(d.waiting, &op{kind: opSettle, done: make(chan struct{})})
	}
	if len(d.waiting) == 0 {
		delete(b.desks, name)
		return true
	}
	return false
}

// batch takes those off a desk whom one transaction can carry out.
func (b *Backend) batch(d *desk) []*op {
	b.deskMu.Lock()
	n, keys, reads := 0, 0, 0
	for n < min(len(d.waiting), batch) {
		keys, reads = keys+d.waiting[n].writes(), reads+d.waiting[n].reads()
		if n > 0 && (keys > written || reads > parts) {
			break
		}
		n++
	}
	ops := slices.Clone(d.waiting[:n])
	d.waiting = slices.Delete(d.waiting, 0, n)
	b.deskMu.Unlock()
	return stillAsked(ops)
}

// stillAsked takes those out whose caller has given up.
func stillAsked(ops []*op) []*op {
	return slices.DeleteFunc(ops, func(o *op) bool {
		over := o.ctx != nil && o.ctx.Err() != nil
		if over {
			o.notSent()
		}
		return over
	})
}
