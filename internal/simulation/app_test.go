package simulation

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"time"

	"github.com/locksidecar/locksidecar/lock"
	"github.com/locksidecar/locksidecar/session"
)

// app is a program that uses locks by one session after the other.
type app struct {
	w     *world
	n     int
	place *place
	steps int
	lives int

	mu  sync.Mutex
	rnd *rand.Rand

	life *life // nil: it has no session
}

// life is one session of an app.
type life struct {
	a    *app
	p    *process
	s    *session.Session
	name string
	ttl  time.Duration
	gone chan struct{} // liveness PROCESS: its end is seen by this
	uses sync.WaitGroup
	read sync.WaitGroup
	quit atomic.Bool // the app has ended it

	ended bool // under witness.mu

	mu     sync.Mutex
	void   map[string]bool // ids of requests that were cancelled or whose hold is released
	grants map[string]kept // by the request's id
	recent []string        // ids of requests
	keeps  []kept
}

type kept struct {
	resource string
	id       lock.HoldID
}

func (l *life) String() string { return l.name }

func (a *app) dice(n int) int {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.rnd.IntN(n)
}

func (a *app) upTo(d time.Duration) time.Duration {
	a.mu.Lock()
	defer a.mu.Unlock()
	return time.Duration(a.rnd.Int64N(int64(d)))
}

// run is the life of the app during the storm.
func (a *app) run() {
	for range a.steps {
		if a.life != nil && (a.life.p.isDead() || a.life.over()) {
			a.leave()
		}
		if a.life == nil && !a.open() {
			time.Sleep(a.upTo(500 * time.Millisecond))
			continue
		}
		l := a.life
		switch kind := a.dice(100); {
		case kind < 60:
			l.uses.Go(func() { l.use(a.request(l)) })
		case kind < 70:
			l.cancel()
		case kind < 76:
			a.die()
			continue
		case kind < 80:
			l.letGo()
		case kind < 95:
			l.uses.Go(l.answer)
		}
		if l.ttl != 0 && a.dice(10) > 0 {
			l.uses.Go(l.keepAlive)
		}
		time.Sleep(a.upTo(600 * time.Millisecond))
	}
}

func (l *life) over() bool {
	select {
	case <-l.s.Done():
		return true
	default:
		return false
	}
}

// open opens a session at the sidecar that runs there now.
func (a *app) open() bool {
	p := a.place.current()
	if p == nil || !p.answers() {
		return false
	}
	a.lives++
	l := &life{a: a, p: p, name: fmt.Sprintf("app %d.%d", a.n, a.lives), void: map[string]bool{}, grants: map[string]kept{}}
	r := session.OpenRequest{Liveness: session.Stream, Name: l.name, Peer: session.Peer{UID: 1000, PID: int32(a.n + 1)}}
	switch a.dice(4) {
	case 0:
		l.ttl = 200*time.Millisecond + a.upTo(2*time.Second)
		r.Liveness, r.TTL = session.TTL, l.ttl
	case 1:
		l.gone = make(chan struct{})
		r.Liveness, r.Peer.Gone = session.Process, l.gone
	}
	s, err := p.manager.Everybody().Open(context.Background(), r)
	if err != nil {
		if !errors.Is(err, session.ErrDraining) {
			a.w.witness.complains("%v: Open = %v", l, err)
		}
		return false
	}
	l.s = s
	a.life = l
	a.w.log("%v opens at %v", l, p)
	l.read.Go(func() { l.listen(s.Events()) })
	return true
}

// listen reads the news of a session to their end.
func (l *life) listen(news *session.Events) {
	for {
		e, err := news.Next(context.Background())
		if !l.p.answers() {
			return // the connection is cut; what the app believes ends by its own clock
		}
		switch {
		case err != nil:
			l.a.w.log("%v: %v", l, err)
			l.a.w.witness.ended(l, !l.quit.Load())
			return
		case l.a.w.broken == tellsNobody && e.Lost != nil:
		case e.Lost != nil:
			l.a.w.log("%v has lost %s of %s (%v), kept until %v", l, e.Lost.LockID, e.Lost.Resource, e.Lost.Reason, l.p.true(e.Lost.GraceEnd))
			l.a.w.witness.lost(l, *e.Lost)
		case e.Lease != nil:
			l.a.w.witness.renewed(l, *e.Lease)
		}
	}
}

// request makes up what an app asks for.
func (a *app) request(l *life) session.AcquireRequest {
	a.mu.Lock()
	defer a.mu.Unlock()
	q := session.AcquireRequest{
		Resource:  a.w.resource(a.rnd),
		Mode:      lock.Exclusive,
		Wait:      time.Duration(a.rnd.IntN(3)) * time.Second,
		Owner:     fmt.Sprint(a.rnd.IntN(2)),
		Reentrant: a.rnd.IntN(4) == 0,
	}
	if a.rnd.IntN(3) == 0 {
		q.Mode = lock.Shared
	}
	if a.rnd.IntN(4) == 0 {
		q.Wait = session.Forever
	}
	if a.rnd.IntN(4) == 0 {
		q.MaxHold = time.Duration(100+a.rnd.IntN(1500)) * time.Millisecond
	}
	if a.rnd.IntN(3) == 0 && q.MaxHold == 0 && !q.Reentrant {
		if a.rnd.IntN(3) == 0 {
			q.MinHold = time.Duration(100+a.rnd.IntN(500)) * time.Millisecond
		} else {
			q.Detachable = true
		}
	}
	if a.rnd.IntN(2) == 0 && !q.Detachable {
		q.RequestID = fmt.Sprint("q", a.rnd.Int32())
		l.mu.Lock()
		l.recent = append(l.recent, q.RequestID)
		l.mu.Unlock()
	}
	return q
}

// use takes a lock, works under it, and lets it go.
func (l *life) use(q session.AcquireRequest) {
	if !l.p.answers() {
		return
	}
	a := l.a
	before, froze := a.w.now(), l.p.froze.Load()
	sent := q
	sent.Reentrant = q.Reentrant || a.w.broken == entersUnasked && q.MinHold == 0 && !q.Detachable
	g, err := l.acquire(sent)
	if !l.p.answers() {
		return
	}
	took := a.w.now() - before
	a.w.log("%v: %v %s for %v: %s %d, %v", l, q.Mode, q.Resource, q.Wait, g.LockID, g.Fence, err)
	if most := q.Wait + q.Wait/50 + 150*time.Millisecond; q.Wait > 0 && took > most && froze == l.p.froze.Load() && before >= time.Duration(l.p.late.Load()) {
		a.w.witness.complains("%v: a wait of %v has taken %v", l, q.Wait, took)
	}
	if err != nil {
		l.refused(q, err)
		return
	}
	if q.MinHold > 0 {
		a.w.witness.least(g, before+q.MinHold)
	}
	if !l.granted(q, g) {
		return
	}
	if q.Detachable && a.w.storms(a.upTo(300*time.Millisecond)) {
		l.detach(g, "")
		return
	}
	if q.Mode == lock.Exclusive && g.Count == 1 && !q.Reentrant && a.dice(8) == 0 {
		a.w.storms(a.upTo(300 * time.Millisecond))
		a.w.witness.shares(g.Resource, g.LockID, g.Fence)
		if !l.p.answers() {
			return
		}
		_, err := l.s.Downgrade(context.Background(), g.LockID)
		a.w.log("%v: downgrade %s: %v", l, g.LockID, err)
	}
	if a.w.storms(a.upTo(800*time.Millisecond)) && q.RequestID == "" && a.dice(5) == 0 {
		l.mu.Lock()
		l.keeps = append(l.keeps, kept{g.Resource, g.LockID})
		l.mu.Unlock()
		return
	}
	l.release(g.Resource, g.LockID, q.RequestID)
}

// granted takes a grant in hands, or gives it back.
func (l *life) granted(q session.AcquireRequest, g session.Grant) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	switch {
	case l.void[q.RequestID]: // Cancel gives it back
		return false
	case l.a.w.witness.granted(l, g, q):
		if q.RequestID != "" {
			l.grants[q.RequestID] = kept{g.Resource, g.LockID}
		}
		return true
	default:
		if q.RequestID != "" {
			l.void[q.RequestID] = true
		}
		if q.Handle != "" {
			l.a.w.witness.gives(g.Fence)
		}
		l.uses.Go(func() { _, _ = l.s.Release(context.Background(), g.LockID, "") })
		return false
	}
}

// acquire asks in one of the ways in which a connection does.
func (l *life) acquire(q session.AcquireRequest) (session.Grant, error) {
	a := l.a
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	if a.dice(6) == 0 { // it gives up
		impatient := a.upTo(2 * time.Second)
		t := time.AfterFunc(impatient, cancel)
		defer t.Stop()
	}
	if a.dice(2) == 0 {
		return l.s.Acquire(ctx, q)
	}
	type answer struct {
		g   session.Grant
		err error
	}
	got := make(chan answer, 1)
	r := l.s.Begin(context.Background(), q, func(g session.Grant, err error) { got <- answer{g, err} })
	l.uses.Go(r.Run)
	select {
	case <-ctx.Done():
		r.GiveUp()
	case one := <-got:
		return one.g, one.err
	}
	one := <-got
	return one.g, one.err
}

// refused checks that an error is one that the contract names.
func (l *life) refused(q session.AcquireRequest, err error) {
	l.a.w.witness.count(func(c *counts) { c.refused++ })
	var held *lock.HeldError
	var lost *session.LostError
	switch {
	case errors.As(err, &held), errors.As(err, &lost), errors.Is(err, lock.ErrUnavailable), errors.Is(err, session.ErrUpgradeRefused), errors.Is(err, session.ErrSessionClosed), errors.Is(err, session.ErrDeadlock):
	default:
		l.a.w.witness.complains("%v: Acquire(%+v) = %v", l, q, err)
	}
}

// release lets go of one count.
func (l *life) release(resource string, id lock.HoldID, requestID string) {
	w := l.a.w
	l.mu.Lock()
	void := requestID != "" && l.void[requestID]
	if !void && requestID != "" {
		l.void[requestID] = true // a Cancel that comes now finds nothing
	}
	l.mu.Unlock()
	if void || !l.p.answers() {
		return
	}
	relied := w.witness.leaves(resource, id)
	left, err := l.s.Release(context.Background(), id, "")
	w.log("%v: release %s of %s: %d, %v", l, id, resource, left, err)
	var lost *session.LostError
	switch {
	case err == nil, errors.Is(err, session.ErrSessionClosed):
	case errors.As(err, &lost):
	case errors.Is(err, lock.ErrNotHolder) && relied:
		w.witness.complains("%v: Release of %s of %s = %v, and nobody has said that it is lost", l, id, resource, err)
	case errors.Is(err, lock.ErrNotHolder):
	default:
		w.witness.complains("%v: Release = %v", l, err)
	}
}

// cancel gives up a request, wherever it is.
func (l *life) cancel() {
	l.mu.Lock()
	if len(l.recent) == 0 {
		l.mu.Unlock()
		return
	}
	id := l.recent[len(l.recent)-1]
	l.recent = l.recent[:len(l.recent)-1]
	done := l.void[id]
	l.void[id] = true
	g, granted := l.grants[id]
	l.mu.Unlock()
	if done {
		return
	}
	l.uses.Go(func() {
		if !l.p.answers() {
			return
		}
		if granted {
			l.a.w.witness.leaves(g.resource, g.id)
		}
		err := l.s.Cancel(context.Background(), id)
		l.a.w.log("%v: cancel %s: %v", l, id, err)
		if err != nil && !errors.Is(err, session.ErrSessionClosed) {
			l.a.w.witness.complains("%v: Cancel = %v", l, err)
		}
	})
}

func (l *life) keepAlive() {
	if !l.p.answers() {
		return
	}
	if _, err := l.s.KeepAlive(); err != nil && !errors.Is(err, session.ErrSessionClosed) {
		l.a.w.witness.complains("%v: KeepAlive = %v", l, err)
	}
}

// letGo releases what the app has kept.
func (l *life) letGo() {
	l.mu.Lock()
	keeps := l.keeps
	l.keeps = nil
	l.mu.Unlock()
	for _, k := range keeps {
		l.uses.Go(func() { l.release(k.resource, k.id, "") })
	}
}

// die ends the app without a word: the sidecar sees the end of its connection.
func (a *app) die() {
	l := a.life
	a.life = nil
	if !l.p.answers() {
		return
	}
	a.w.log("%v dies", l)
	l.quit.Store(true)
	a.w.witness.ended(l, false)
	switch {
	case a.w.broken == keepsTheDead:
	case l.gone != nil && a.dice(2) == 0:
		close(l.gone)
	default:
		l.s.Close()
	}
	a.w.tasks.Go(func() {
		l.uses.Wait()
		l.read.Wait()
	})
}

// leave forgets a session that is over, or out of reach.
func (a *app) leave() {
	l := a.life
	a.life = nil
	a.w.tasks.Go(func() {
		l.uses.Wait()
		l.read.Wait()
	})
}

// letGo is what the app does first after the storm: everybody who waits must be
// granted now.
func (a *app) letGo() {
	if a.life == nil {
		return
	}
	a.life.letGo()
	a.life.uses.Wait()
}

// finish takes each lock once more, and ends the app.
func (a *app) finish() {
	if a.life != nil && (a.life.p.isDead() || a.life.over()) {
		a.leave()
	}
	if a.life != nil { // one with a ttl might end meanwhile
		a.die()
	}
	for !a.open() {
		if a.w.over.Load() {
			return
		}
		time.Sleep(10 * time.Millisecond)
	}
	l := a.life
	for n := range a.w.resources {
		q := session.AcquireRequest{Resource: string(rune('a' + n)), Mode: lock.Exclusive, Wait: a.w.settle()}
		if l.ttl != 0 {
			l.keepAlive()
			q.Wait = min(q.Wait, 100*time.Millisecond)
		}
		g, err := l.s.Acquire(context.Background(), q)
		a.w.log("%v: finally %s: %s %d, %v", l, q.Resource, g.LockID, g.Fence, err)
		if err != nil {
			if l.ttl == 0 {
				a.w.witness.complains("%v: after the storm, Acquire of %s = %v", l, q.Resource, err)
			}
			continue
		}
		if a.w.witness.granted(l, g, q) {
			l.release(q.Resource, g.LockID, "")
		}
	}
	a.die()
}
