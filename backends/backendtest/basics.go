package backendtest

import (
	"errors"
	"reflect"
	"strings"
	"time"

	"github.com/locksidecar/locksidecar/lock"
)

func testExclusive(e *env) {
	a, b := e.sidecar(), e.sidecar()
	if a.ID() == "" || a.ID() == b.ID() {
		e.Errorf("the leases are called %q and %q", a.ID(), b.ID())
	}
	for _, b := range []lock.Backend{a.b, b.b} {
		if err := b.Ping(e.ctx); err != nil {
			e.Errorf("Ping: %v", err)
		}
	}
	r := e.name("r")
	g := e.acquire(a, r, lock.Exclusive)
	for _, s := range []*sidecar{a, b} { // the same sidecar has no right to a second hold either
		for _, m := range e.modes() {
			held := e.refused(s, r, m)
			if held.Position != 0 || held.Status.Resource != r {
				e.Errorf("a refused try says position %d of %q", held.Position, held.Status.Resource)
			}
			if len(held.Status.Holders) != 1 || held.Status.Holders[0].ID != g.ID ||
				held.Status.Holders[0].Sidecar != a.name || held.Status.Holders[0].Owner.PID != 4711 {
				e.Errorf("a refused try names the holders %+v, want %s on %s by pid 4711", held.Status.Holders, g.ID, a.name)
			}
		}
	}
	e.holds(b.b, r, []lock.HoldID{g.ID}, nil)
	e.release(a, g)
	e.holds(b.b, r, nil, nil)
	e.release(b, e.acquire(b, r, lock.Exclusive))
}

func testShared(e *env) {
	a, b := e.sidecar(), e.sidecar()
	r := e.name("r")
	g1 := e.acquire(a, r, lock.Shared)
	g2 := e.acquire(a, r, lock.Shared)
	g3 := e.acquire(b, r, lock.Shared)
	e.holds(b.b, r, []lock.HoldID{g1.ID, g2.ID, g3.ID}, nil)
	e.refused(b, r, lock.Exclusive)
	e.release(a, g1)
	e.release(b, g3)
	e.refused(a, r, lock.Exclusive)
	e.release(a, g2)
	e.release(a, e.acquire(a, r, lock.Exclusive))
}

func testRetryFindsHold(e *env) {
	a := e.sidecar()
	for _, m := range e.modes() {
		q := request(e.name(m.String()), m)
		first, err := a.Acquire(e.ctx, q)
		if err != nil {
			e.Fatalf("Acquire: %v", err)
		}
		for _, q.Try = range []bool{false, true} {
			again, err := a.Acquire(e.ctx, q)
			if err != nil || !reflect.DeepEqual(again, first) {
				e.Errorf("retry (try %t) of a granted request: got %+v, %v; want %+v", q.Try, again, err, first)
			}
		}
		e.release(a, first)
		e.holds(a.b, q.Resource, nil, nil)
	}
}

func testReleaseOnlyOwn(e *env) {
	a, b := e.sidecar(), e.sidecar()
	r, other := e.name("r"), e.name("other")
	g := e.acquire(a, r, lock.Exclusive)
	w := e.queue(b, r, lock.Exclusive)
	gOther := e.acquire(a, other, e.shared())
	notHolder := func(what string, s *sidecar, r lock.Resource, id lock.HoldID) {
		e.Helper()
		if err := s.Release(e.ctx, r, id); !errors.Is(err, lock.ErrNotHolder) {
			e.Errorf("Release %s: got %v, want ErrNotHolder", what, err)
		}
	}
	notHolder("of an unknown id", a, r, lock.NewHoldID())
	notHolder("through another lease", b, r, g.ID)
	notHolder("of another lease's waiter", a, r, w.q.ID)
	notHolder("of another resource", a, other, g.ID)
	notHolder("of what never was locked", a, e.name("never"), g.ID)
	w.blocked()
	e.holds(b.b, r, []lock.HoldID{g.ID}, []lock.HoldID{w.q.ID})
	e.holds(b.b, other, []lock.HoldID{gOther.ID}, nil)

	e.release(a, g)
	g2 := w.granted()
	notHolder("twice, when another has it", a, r, g.ID)
	e.holds(b.b, r, []lock.HoldID{g2.ID}, nil)
	e.release(b, g2)
	notHolder("twice, when it is free", b, r, g2.ID)
	e.release(a, gOther)
}

func testDowngrade(e *env) {
	a, b := e.sidecar(), e.sidecar()
	r := e.name("r")
	g := e.acquire(a, r, lock.Exclusive)
	reader1 := e.queue(b, r, lock.Shared)
	reader2 := e.queue(a, r, lock.Shared)
	writer := e.queue(b, r, lock.Exclusive)
	reader3 := e.queue(a, r, lock.Shared)
	for range 2 { // the second time it is shared already
		if err := a.Downgrade(e.ctx, r, g.ID); err != nil {
			e.Fatalf("Downgrade: %v", err)
		}
	}
	g1, g2 := reader1.granted(), reader2.granted()
	st := e.holds(b.b, r, []lock.HoldID{g.ID, g1.ID, g2.ID}, []lock.HoldID{writer.q.ID, reader3.q.ID})
	for _, h := range st.Holders {
		if h.Mode != lock.Shared {
			e.Errorf("after Downgrade a hold is %s", h.Mode)
		}
		if h.ID == g.ID && h.Fence != g.Fence {
			e.Errorf("Downgrade changed the fence from %d to %d", g.Fence, h.Fence)
		}
	}
	e.refused(b, r, lock.Shared) // the writer was there before
	e.release(a, g)
	e.release(b, g1)
	writer.blocked()
	e.release(a, g2)
	e.release(b, writer.granted())
	e.release(a, reader3.granted())
}

func testDowngradeOnlyOwn(e *env) {
	a, b := e.sidecar(), e.sidecar()
	r := e.name("r")
	g := e.acquire(a, r, lock.Exclusive)
	notHolder := func(what string, s *sidecar, id lock.HoldID) {
		e.Helper()
		if err := s.Downgrade(e.ctx, r, id); !errors.Is(err, lock.ErrNotHolder) {
			e.Errorf("Downgrade %s: got %v, want ErrNotHolder", what, err)
		}
	}
	notHolder("of an unknown id", a, lock.NewHoldID())
	notHolder("through another lease", b, g.ID)
	e.refused(b, r, e.shared())
	e.release(a, g)
	notHolder("of what was released", a, g.ID)
}

// testUnsupported: what the store cannot do it refuses, and changes nothing.
func testUnsupported(e *env) {
	a := e.sidecar()
	r := e.name("r")
	unsupported := func(what string, err, want error) {
		e.Helper()
		if !errors.Is(err, want) {
			e.Errorf("%s: got %v, want %v", what, err, want)
		}
	}
	if !e.sharing() {
		for _, try := range []bool{false, true} {
			q := request(r, lock.Shared)
			q.Try = try
			_, err := a.Acquire(e.ctx, q)
			unsupported("Acquire of a shared lock", err, lock.ErrUnsupported)
		}
		e.holds(a.b, r, nil, nil)
	}
	if e.limits.Permits != "" {
		_, err := a.Acquire(e.ctx, request(r, lock.Permits(2)))
		unsupported("Acquire of a permit", err, lock.ErrUnsupported)
		e.holds(a.b, r, nil, nil)
	}
	if e.limits.MinHold != "" {
		_, err := a.Acquire(e.ctx, keeping(r, lock.Exclusive, time.Second))
		unsupported("Acquire with a MinHold", err, lock.ErrUnsupported)
		e.holds(a.b, r, nil, nil)
	}
	if e.limits.Detached != "" {
		q := request(r, lock.Exclusive)
		q.Detachable = true
		_, err := a.Acquire(e.ctx, q)
		unsupported("Acquire of what can be detached", err, lock.ErrUnsupported)
		q = request(r, lock.Exclusive)
		q.Handle = lock.NewSecret().Key()
		_, err = a.Acquire(e.ctx, q)
		unsupported("Acquire by a handle", err, lock.ErrUnsupported)
		if h, ok := lock.HandlesOf(a.b); ok {
			_, err = h.SetHandle(e.ctx, r, q.Handle, time.Minute)
			unsupported("SetHandle", err, lock.ErrUnsupported)
		}
		e.holds(a.b, r, nil, nil)
	}
	g := e.acquire(a, r, lock.Exclusive)
	if e.limits.Downgrade != "" {
		unsupported("Downgrade", a.Downgrade(e.ctx, r, g.ID), lock.ErrUnsupported)
	}
	if e.limits.LongNames != "" {
		_, err := a.Acquire(e.ctx, request(lock.Resource(strings.Repeat("é", 65)), lock.Exclusive))
		unsupported("Acquire of a long name", err, lock.ErrInvalid)
	}
	st := e.holds(a.b, r, []lock.HoldID{g.ID}, nil)
	if st.Holders[0].Mode != lock.Exclusive {
		e.Errorf("the hold became %s", st.Holders[0].Mode)
	}
	e.release(a, g)
}
