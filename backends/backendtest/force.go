package backendtest

import (
	"context"
	"errors"
	"time"

	"github.com/locksidecar/locksidecar/lock"
)

// forcing is a ForceRelease under way.
type forcing struct {
	e     *env
	began time.Time
	done  chan struct{}
	err   error
}

func (e *env) force(ctx context.Context, b lock.Backend, r lock.Resource, id lock.HoldID, grace time.Duration) *forcing {
	f := &forcing{e: e, began: time.Now(), done: make(chan struct{})}
	e.tasks.Go(func() {
		defer close(f.done)
		f.err = b.ForceRelease(ctx, r, id, grace)
	})
	return f
}

// ok waits until ForceRelease has returned nil.
func (f *forcing) ok() {
	f.e.Helper()
	select {
	case <-f.done:
		if f.err != nil {
			f.e.Fatalf("ForceRelease: %v", f.err)
		}
	case <-time.After(patience):
		f.e.goOn()
		f.e.lasting()
		f.e.Fatalf("ForceRelease has not returned after %s", patience)
	}
}

func (f *forcing) pending() {
	f.e.Helper()
	select {
	case <-f.done:
		f.e.lasting()
		f.e.Fatalf("ForceRelease has returned %v while the hold is there", f.err)
	default:
	}
}

// over checks that the grant to w came when the grace was over, no sooner.
func (f *forcing) over(w *waiter, grace time.Duration) lock.Grant {
	f.e.Helper()
	g := w.granted()
	took := w.at.Sub(f.began)
	if took < grace-grace/200 {
		f.e.Errorf("granted %s after a forced release with a grace of %s", took, grace)
	}
	if took > grace+f.e.h.Recheck()+f.e.late()+slack { // it may have to be told first
		f.e.slow("granted only %s after a forced release with a grace of %s", took, grace)
	}
	return g
}

func (e *env) notHolder(what string, err error) {
	e.Helper()
	if !errors.Is(err, lock.ErrNotHolder) {
		e.Errorf("%s: got %v, want ErrNotHolder", what, err)
	}
}

// taken waits for the news that a hold was taken with no grace. A heartbeat that is
// faster than the push says only that it is gone.
func (s *sidecar) taken(id lock.HoldID) lock.Event {
	s.e.Helper()
	return s.notice("the lease is told that the hold was taken", func(n notice) bool {
		return n.ID == id && n.Until == 0
	}).Event
}

func testForceAtOnce(e *env) {
	a, b := e.sidecar(), e.sidecar()
	r, other := e.name("r"), e.name("other")
	g, gOther := e.acquire(a, r, lock.Exclusive), e.acquire(a, other, lock.Exclusive)
	w := e.queue(b, r, lock.Exclusive)
	e.notHolder("ForceRelease of an unknown id", b.b.ForceRelease(e.ctx, r, lock.NewHoldID(), 0))
	e.notHolder("ForceRelease on another resource", b.b.ForceRelease(e.ctx, other, g.ID, 0))
	e.notHolder("ForceRelease on a free resource", b.b.ForceRelease(e.ctx, e.name("free"), g.ID, time.Second))
	w.blocked()

	e.force(e.ctx, b.b, r, g.ID, 0).ok()
	if ev := a.taken(g.ID); ev.Resource != r {
		e.Errorf("the holder got the event %+v", ev)
	}
	g2 := w.granted()
	e.holds(a.b, r, []lock.HoldID{g2.ID}, nil)
	e.notHolder("Release of what was forced", a.Release(e.ctx, r, g.ID))
	e.notHolder("Downgrade of what was forced", a.Downgrade(e.ctx, r, g.ID))
	e.notHolder("ForceRelease again", b.b.ForceRelease(e.ctx, r, g.ID, 0))
	e.holds(a.b, r, []lock.HoldID{g2.ID}, nil)
	e.holds(a.b, other, []lock.HoldID{gOther.ID}, nil)
	e.release(b, g2)
	e.release(a, gOther)

	if !e.sharing() {
		return
	}
	// One of several readers.
	g, g2 = e.acquire(a, r, lock.Shared), e.acquire(b, r, lock.Shared)
	w = e.queue(b, r, lock.Exclusive)
	e.force(e.ctx, a.b, r, g.ID, 0).ok()
	a.taken(g.ID)
	e.holds(b.b, r, []lock.HoldID{g2.ID}, []lock.HoldID{w.q.ID})
	e.release(b, g2)
	e.release(b, w.granted())
}

// testForceGraceUsed: the holder stops within its grace.
func testForceGraceUsed(e *env) {
	a, b := e.sidecar(), e.sidecar()
	r := e.name("r")
	g := e.acquire(a, r, lock.Exclusive)
	w := e.queue(b, r, lock.Exclusive)
	grace := 2 * patience // the test would fail if anybody waited for its end
	f := e.force(e.ctx, b.b, r, g.ID, grace)
	if ev := a.event(lock.Revoked, g.ID); ev.Resource != r || ev.Until == 0 || ev.Until-e.clock() > grace {
		e.Errorf("the holder got the event %+v, want a grace of at most %s", ev, grace)
	}
	for range 5 {
		w.blocked()
		f.pending()
		e.refused(b, r, lock.Exclusive)
	}
	if st := e.holds(b.b, r, []lock.HoldID{g.ID}, []lock.HoldID{w.q.ID}); !st.Holders[0].Revoked {
		e.Errorf("Get does not tell that the release is forced: %+v", st.Holders[0])
	}
	e.release(a, g)
	g2 := w.granted()
	f.ok()
	e.notHolder("Release twice", a.Release(e.ctx, r, g.ID))
	e.holds(b.b, r, []lock.HoldID{g2.ID}, nil)

	// The holder's sidecar stops within the grace.
	w = e.queue(a, r, lock.Exclusive)
	f = e.force(e.ctx, a.b, r, g2.ID, grace)
	b.event(lock.Revoked, g2.ID)
	if err := b.Close(e.ctx); err != nil {
		e.Errorf("Close: %v", err)
	}
	f.ok()
	g = w.granted()

	// Somebody loses patience: a shorter grace counts.
	f = e.force(e.ctx, a.b, r, g.ID, grace)
	a.event(lock.Revoked, g.ID)
	c := e.sidecar()
	w = e.queue(c, r, lock.Exclusive)
	e.force(e.ctx, a.b, r, g.ID, 0).ok()
	f.ok()
	e.release(c, w.granted())
}

// testForceGraceOver: the holder does nothing.
func testForceGraceOver(e *env) {
	a, b := e.sidecar(), e.sidecar()
	r := e.name("r")
	const grace = 500 * time.Millisecond
	g := e.acquire(a, r, lock.Exclusive)
	w := e.queue(b, r, lock.Exclusive)
	f := e.force(e.ctx, b.b, r, g.ID, grace)
	g2 := f.over(w, grace)
	f.ok()
	e.notHolder("Release after the grace", a.Release(e.ctx, r, g.ID))
	e.holds(b.b, r, []lock.HoldID{g2.ID}, nil)

	// Whoever forced it does not wait for the end.
	w = e.queue(a, r, lock.Exclusive)
	ctx, cancel := context.WithCancel(e.ctx)
	f = e.force(ctx, a.b, r, g2.ID, grace)
	b.event(lock.Revoked, g2.ID)
	cancel()
	<-f.done
	e.release(a, f.over(w, grace))
	e.notHolder("Release after the grace", b.Release(e.ctx, r, g2.ID))
	if f.err == nil && w.at.Sub(f.began) < grace {
		e.Error("ForceRelease returned nil before the hold was gone")
	}
}

func testForceWaiter(e *env) {
	a, b := e.sidecar(), e.sidecar()
	r := e.name("r")
	g := e.acquire(a, r, e.shared())
	writer := e.queue(b, r, lock.Exclusive)
	var reader *waiter
	if e.sharing() && e.ordered() {
		reader = e.queue(a, r, lock.Shared)
	}
	last := e.queue(a, r, lock.Exclusive)
	e.force(e.ctx, a.b, r, writer.q.ID, 2*patience).ok() // a waiter needs no grace
	writer.failed(lock.ErrNotHolder)
	holders := []lock.HoldID{g.ID}
	if reader != nil {
		holders = append(holders, reader.granted().ID)
	}
	e.holds(a.b, r, holders, []lock.HoldID{last.q.ID})
	e.notHolder("Release of a waiter that was forced", b.Release(e.ctx, r, writer.q.ID))
	e.notHolder("ForceRelease of a waiter again", a.b.ForceRelease(e.ctx, r, writer.q.ID, 0))
	e.release(a, g)
	if reader != nil {
		e.release(a, reader.grant)
	}
	e.release(a, last.granted())
}

func testForceDead(e *env) {
	b := e.sidecar()
	dead := e.mortal()
	r := e.name("r")
	g := e.acquire(dead, r, lock.Exclusive)
	taken := e.acquire(b, e.name("taken"), lock.Exclusive)
	w := e.queue(dead, taken.Resource, lock.Exclusive)
	dead.ended()
	w.died()
	e.eventually("the store says of both that their lease is over", func() bool { // a heartbeat without an answer may have come late
		return len(e.get(b.b, r).Holders) == 0 && len(e.get(b.b, taken.Resource).Waiters) == 0
	})
	e.notHolder("ForceRelease of a dead holder", b.b.ForceRelease(e.ctx, r, g.ID, 0))
	e.notHolder("ForceRelease of a dead waiter", b.b.ForceRelease(e.ctx, taken.Resource, w.q.ID, 0))
	e.release(b, taken)

	// The lease ends before the grace does.
	dead = e.mortal()
	g = e.acquire(dead, r, lock.Exclusive)
	w = e.queue(b, r, lock.Exclusive)
	f := e.force(e.ctx, b.b, r, g.ID, 2*patience)
	e.release(b, e.inTime(dead, w))
	f.ok()
}
