package backendtest

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/locksidecar/locksidecar/arbiter"
	"github.com/locksidecar/locksidecar/lock"
	"github.com/locksidecar/locksidecar/session"
)

// pods are whole sidecars, each with one session of an app.
type pods struct {
	e    *env
	each []pod
	end  func()
}

type pod struct {
	*session.Session
	looks lock.Backend // what the sidecar sees
}

// pods starts n of them. Each has what wrap makes of a backend of its own.
func (e *env) pods(n int, wrap func(lock.Backend) lock.Backend) *pods {
	e.Helper()
	ctx, stop := context.WithCancel(context.Background())
	var running sync.WaitGroup
	p := &pods{e: e, end: func() {
		stop()
		running.Wait()
	}}
	for i := range n {
		b := wrap(e.open())
		m, err := session.New(session.Options{
			Backend: b, TTL: longTTL, LostGrace: time.Second, Sidecar: fmt.Sprint("pod-", i), Clock: e.clock,
		})
		if err != nil {
			e.Fatal(err)
		}
		running.Go(func() { _ = m.Run(ctx) }) // it has no error
		s, err := m.Everybody().Open(e.ctx, session.OpenRequest{Liveness: session.Stream, Name: fmt.Sprint("app-", i), Peer: session.Peer{UID: 1000}})
		if err != nil {
			e.Fatal(err)
		}
		p.each = append(p.each, pod{s, b})
	}
	return p
}

// owner is one line of work at one of the pods.
type owner struct {
	pod
	name   string
	held   session.Grant
	waited chan struct{} // closed when it has its answer
	grant  session.Grant
	err    error
}

func (o *owner) request(r lock.Resource, mode lock.Mode) session.AcquireRequest {
	return session.AcquireRequest{Resource: string(r), Mode: mode, Wait: session.Forever, Owner: o.name, Guard: lock.WithoutGuard}
}

// holder makes an owner that holds something.
func (p *pods) holder(i int, name string, r lock.Resource, mode lock.Mode) *owner {
	p.e.Helper()
	o := &owner{pod: p.each[i%len(p.each)], name: name}
	var err error
	if o.held, err = o.Acquire(p.e.ctx, o.request(r, mode)); err != nil {
		p.e.Fatalf("%s: acquire %q: %v", name, r, err)
	}
	return o
}

// waits lets an owner wait, and returns when that is seen.
func (p *pods) waits(o *owner, r lock.Resource, mode lock.Mode) {
	p.e.Helper()
	o.waited = make(chan struct{})
	p.e.tasks.Go(func() {
		defer close(o.waited)
		o.grant, o.err = o.Acquire(p.e.ctx, o.request(r, mode))
	})
	p.e.eventually(o.name+" waits", func() bool {
		st, err := o.looks.Get(p.e.ctx, r)
		if err != nil {
			return false
		}
		for _, w := range st.Waiters {
			if w.Owner.Label == o.name {
				return true
			}
		}
		return false
	})
	time.Sleep(2 * time.Millisecond) // who asks next is younger
}

// broken checks that of a circle the one who asked last is told, and nobody else: all others
// get what they wait for, when that one lets go.
func (p *pods) broken(all []*owner, last *owner) {
	p.e.Helper()
	<-last.waited
	var dead *session.DeadlockError
	if !errors.As(last.err, &dead) || len(dead.Cycle) != len(all) {
		p.e.Fatalf("the one who asked last got %v", last.err)
	}
	var letGo sync.WaitGroup
	for _, o := range all {
		letGo.Go(func() {
			<-o.waited
			if o != last && o.err != nil {
				p.e.Errorf("%s got %v beside the one who asked last", o.name, o.err)
			}
			for _, g := range []session.Grant{o.grant, o.held} {
				if g.LockID == "" {
					continue
				}
				if _, err := o.Release(p.e.ctx, g.LockID, ""); err != nil {
					p.e.Errorf("%s: release: %v", o.name, err)
				}
			}
		})
	}
	letGo.Wait()
}

// ring makes a circle of n owners: each holds something, and waits for what the next has.
func (p *pods) ring(n int) (all []*owner) {
	p.e.Helper()
	name := func(i int) lock.Resource { return p.e.name(fmt.Sprintf("%d-%d", n, i%n)) }
	for i := range n {
		all = append(all, p.holder(i, fmt.Sprintf("owner-%d-%d", n, i), name(i), lock.Exclusive))
	}
	for i, o := range all {
		p.waits(o, name(i+1), lock.Exclusive)
	}
	return all
}

// testDeadlock: circles of two, three and five owners at three sidecars are found and broken,
// and one of readers and a writer, in which one waits only in a queue.
func testDeadlock(e *env) {
	p := e.pods(3, func(b lock.Backend) lock.Backend { return b })
	defer p.end()
	var rings [][]*owner
	for _, n := range []int{2, 3, 5} {
		rings = append(rings, p.ring(n))
	}
	if e.sharing() && e.ordered() {
		r, h := e.name("read"), e.name("written")
		first, reader, writer := p.holder(0, "first", r, lock.Shared), p.holder(1, "reader", h, lock.Exclusive), &owner{pod: p.each[2], name: "writer"}
		p.waits(writer, r, lock.Exclusive)
		p.waits(reader, r, lock.Shared)
		p.waits(first, h, lock.Shared)
		rings = append(rings, []*owner{writer, reader, first})
	}
	for _, all := range rings {
		p.broken(all, all[len(all)-1])
	}
}

// testDeadlockOfPermits: who waits for a permit waits for nobody in particular, and in vain where
// all who have one wait for what he has.
func testDeadlockOfPermits(e *env) {
	p := e.pods(3, func(b lock.Backend) lock.Backend { return b })
	defer p.end()
	r, x, m := e.name("permits"), e.name("x"), lock.Permits(2)
	one, two, last := p.holder(0, "one", r, m), p.holder(1, "two", r, m), p.holder(2, "last", x, lock.Exclusive)
	p.waits(one, x, lock.Exclusive)
	p.waits(two, x, lock.Exclusive)
	p.waits(last, r, m)
	<-last.waited
	var dead *session.DeadlockError
	if !errors.As(last.err, &dead) || len(dead.Cycle) != 4 { // a circle over one of the permits, and over the other
		e.Fatalf("the one who asked last got %v", last.err)
	}
	for _, o := range []*owner{last, one, two} {
		<-o.waited
		if o != last && o.err != nil {
			e.Errorf("%s got %v beside the one who asked last", o.name, o.err)
		}
		for _, g := range []session.Grant{o.grant, o.held} {
			if g.LockID == "" {
				continue
			}
			if _, err := o.Release(e.ctx, g.LockID, ""); err != nil {
				e.Errorf("%s: release: %v", o.name, err)
			}
		}
	}
}

// testArbiterDeadlock: also those are found who wait behind others of their sidecar, which has
// one place in the store for all of them.
func testArbiterDeadlock(e *env) {
	p := e.pods(3, func(b lock.Backend) lock.Backend {
		return arbiter.New(b, arbiter.Options{Turns: arbiter.MaxTurns, Clock: e.clock})
	})
	defer p.end()
	var all, before []*owner
	name := func(i int) lock.Resource { return e.name(fmt.Sprint(i % len(p.each))) }
	for i := range p.each {
		all = append(all, p.holder(i, fmt.Sprint("owner-", i), name(i), lock.Exclusive))
	}
	for i, o := range all {
		other := &owner{pod: o.pod, name: fmt.Sprint("other-", i)} // holds nothing, and is what the store shows
		p.waits(other, name(i+1), lock.Exclusive)
		p.waits(o, name(i+1), lock.Exclusive)
		before = append(before, other)
	}
	var others sync.WaitGroup
	for _, other := range before {
		others.Go(func() {
			<-other.waited
			if other.err != nil {
				e.Errorf("%s got %v", other.name, other.err)
			} else if _, err := other.Release(e.ctx, other.grant.LockID, ""); err != nil {
				e.Errorf("%s: release: %v", other.name, err)
			}
		})
	}
	p.broken(all, all[len(all)-1])
	others.Wait()
}
