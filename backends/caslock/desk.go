package caslock

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/locksidecar/locksidecar/backends/leasekit"
	"github.com/locksidecar/locksidecar/lock"
)

// desk is where the requests of this sidecar about one resource meet. It carries them out
// one transaction at a time, all that have come meanwhile together. So they do not overtake
// each other's transactions, and thousands who wait for one resource share their trips.
type desk struct {
	waiting []*op
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
	if d, mine := b.enter(name, ops); mine && !b.serve(name, d) { // usually that was all
		b.routines.Go(func() {
			for empty := false; !empty; {
				empty = b.serve(name, d)
			}
		})
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
		d = &desk{}
		b.desks[name] = d
	}
	d.waiting = append(d.waiting, ops...)
	return d, mine
}

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

// serve carries out one batch, and tells whether the desk is empty, and closed.
func (b *Backend) serve(name lock.Resource, d *desk) (empty bool) {
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
	ops = slices.DeleteFunc(ops, func(o *op) bool {
		over := o.ctx != nil && o.ctx.Err() != nil
		if over {
			o.notSent()
		}
		return over
	})
	more := false
	if len(ops) > 0 {
		s, err := b.transact(b.background, name, ops)
		for _, o := range ops {
			if err != nil {
				o.err = b.unavailable(o.kind.String(), err)
			}
			close(o.done)
		}
		more = err == nil && s.more
	}
	b.deskMu.Lock()
	defer b.deskMu.Unlock()
	if more {
		d.waiting = append(d.waiting, &op{kind: opSettle, done: make(chan struct{})})
	}
	if len(d.waiting) == 0 {
		delete(b.desks, name)
		return true
	}
	return false
}
