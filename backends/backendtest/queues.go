package backendtest

import (
	"context"
	"errors"
	"sync/atomic"
	"time"

	"github.com/locksidecar/locksidecar/lock"
)

// testFIFO queues writers of three sidecars. Fences tell the order in which the
// store granted them, whatever the order in which goroutines run.
func testFIFO(e *env) {
	ss := e.sidecars(3)
	r := e.name("r")
	g := e.acquire(ss[0], r, lock.Exclusive)
	n := 9
	if e.deaf {
		n = 3 // each is late
	}
	var ws []*waiter
	for i := range n {
		ws = append(ws, e.queue(ss[i*5%3], r, lock.Exclusive))
	}
	var want []lock.HoldID
	for _, w := range ws {
		want = append(want, w.q.ID)
	}
	e.holds(ss[1].b, r, []lock.HoldID{g.ID}, want)
	e.release(ss[0], g)
	last := g.Fence
	for i, w := range ws {
		g := w.granted()
		if g.Fence <= last {
			e.Errorf("broken law: waiter %d has fence %d, the one before it %d", i, g.Fence, last)
		}
		last = g.Fence
		e.holds(ss[2].b, r, want[i:i+1], want[i+1:])
		e.release(w.s, g)
	}
}

func testReadersTogether(e *env) {
	a, b := e.sidecar(), e.sidecar()
	r := e.name("r")
	g := e.acquire(a, r, lock.Exclusive)
	reader1, reader2, reader3 := e.queue(a, r, lock.Shared), e.queue(b, r, lock.Shared), e.queue(a, r, lock.Shared)
	writer := e.queue(b, r, lock.Exclusive)
	reader4, reader5 := e.queue(a, r, lock.Shared), e.queue(b, r, lock.Shared)
	e.release(a, g)
	g1, g2, g3 := reader1.granted(), reader2.granted(), reader3.granted() // none has released yet
	e.holds(b.b, r, []lock.HoldID{g1.ID, g2.ID, g3.ID}, []lock.HoldID{writer.q.ID, reader4.q.ID, reader5.q.ID})
	e.release(b, g2)
	e.release(a, g1)
	writer.blocked()
	e.release(a, g3)
	gw := writer.granted()
	e.holds(a.b, r, []lock.HoldID{gw.ID}, []lock.HoldID{reader4.q.ID, reader5.q.ID})
	e.release(b, gw)
	g4, g5 := reader4.granted(), reader5.granted()
	e.release(a, g4)
	e.release(b, g5)
}

func testWriterBlocksLaterReaders(e *env) {
	a, b := e.sidecar(), e.sidecar()
	r := e.name("r")
	g := e.acquire(a, r, lock.Shared)
	writer := e.queue(b, r, lock.Exclusive)
	e.refused(a, r, lock.Shared)
	reader := e.queue(a, r, lock.Shared)
	e.holds(b.b, r, []lock.HoldID{g.ID}, []lock.HoldID{writer.q.ID, reader.q.ID})

	// When the writer gives up, the reader behind it needs to wait no longer.
	writer.cancel()
	writer.failed(context.Canceled)
	g2 := reader.granted()
	writer = e.queue(b, r, lock.Exclusive)
	reader = e.queue(a, r, lock.Shared)
	e.release(a, g)
	e.release(a, g2)
	gw := writer.granted()
	reader.blocked()
	e.release(b, gw)
	e.release(a, reader.granted())
}

// testWriterNotStarved keeps readers coming, so that there is always one that
// holds, and one more that wants to.
func testWriterNotStarved(e *env) {
	ss := e.sidecars(2)
	r := e.name("r")
	first := e.acquire(ss[0], r, lock.Shared)
	var stop atomic.Bool
	var reads atomic.Int64
	var readers []chan struct{}
	for i := range 6 {
		done := make(chan struct{})
		readers = append(readers, done)
		e.tasks.Go(func() {
			defer close(done)
			s := ss[i%2]
			for !stop.Load() {
				q := request(r, lock.Shared)
				err := persist(e.ctx, func() error { _, err := s.Acquire(e.ctx, q); return err })
				if err != nil {
					if e.ctx.Err() == nil {
						e.Errorf("Acquire by a reader: %v", err)
					}
					return
				}
				time.Sleep(3 * time.Millisecond)
				reads.Add(1)
				if err := e.leave(s, r, q.ID); err != nil && e.ctx.Err() == nil {
					e.Errorf("Release by a reader: %v", err)
				}
			}
		})
	}
	defer func() { // also when the test fails
		stop.Store(true)
		for _, done := range readers {
			<-done
		}
	}()
	e.eventually("the readers read", func() bool { return reads.Load() > 20 })
	e.release(ss[0], first)
	for range 3 {
		before := reads.Load()
		w := e.start(ss[1], request(r, lock.Exclusive))
		e.release(ss[1], w.granted())
		e.eventually("the readers read again", func() bool { return reads.Load() > before+12 })
	}
}

func testCancel(e *env) {
	a, b := e.sidecar(), e.sidecar()
	r := e.name("r")
	g := e.acquire(a, r, lock.Exclusive)
	w1, w2, w3 := e.queue(a, r, lock.Exclusive), e.queue(b, r, e.shared()), e.queue(a, r, lock.Exclusive)
	w2.cancel()
	err := w2.failed(context.Canceled)
	var held *lock.HeldError
	if !errors.As(err, &held) {
		e.Fatalf("a cancelled wait ends with %v, want a HeldError", err)
	}
	position := 2
	if !e.ordered() {
		position = 0
	}
	if held.Position != position || len(held.Status.Holders) != 1 || held.Status.Holders[0].ID != g.ID {
		e.Errorf("a cancelled wait says position %d behind %+v, want position %d behind %s", held.Position, held.Status.Holders, position, g.ID)
	}
	e.holds(b.b, r, []lock.HoldID{g.ID}, []lock.HoldID{w1.q.ID, w3.q.ID})
	if err := b.Release(e.ctx, r, w2.q.ID); !errors.Is(err, lock.ErrNotHolder) {
		e.Errorf("Release of a cancelled waiter: got %v, want ErrNotHolder", err)
	}
	w1.cancel()
	w1.failed(context.Canceled)
	e.release(a, g)
	e.release(a, w3.granted())
	e.holds(b.b, r, nil, nil)

	// A call that is over before it begins leaves nothing behind either.
	g = e.acquire(a, r, lock.Exclusive)
	over, cancel := context.WithCancel(e.ctx)
	cancel()
	if _, err := b.Acquire(over, request(r, lock.Exclusive)); !errors.Is(err, context.Canceled) {
		e.Errorf("Acquire with a context that is over: %v", err)
	}
	e.holds(b.b, r, []lock.HoldID{g.ID}, nil)
	e.release(a, g)
}

func testTimeout(e *env) {
	a, b := e.sidecar(), e.sidecar()
	r := e.name("r")
	g := e.acquire(a, r, e.shared())
	start := time.Now() // before the deadline is set
	ctx, cancel := context.WithTimeout(e.ctx, 100*time.Millisecond)
	defer cancel()
	_, err := b.Acquire(ctx, request(r, lock.Exclusive))
	var held *lock.HeldError
	if !errors.Is(err, context.DeadlineExceeded) || !errors.As(err, &held) {
		e.Fatalf("Acquire past its deadline: got %v, want a HeldError with DeadlineExceeded", err)
	}
	took := time.Since(start)
	if took < 100*time.Millisecond {
		e.Errorf("a wait of 100 ms took %s", took)
	}
	if took > slack {
		e.slow("a wait of 100 ms took %s", took)
	}
	position := 1
	if !e.ordered() {
		position = 0
	}
	if held.Position != position || len(held.Status.Holders) != 1 || held.Status.Holders[0].ID != g.ID || held.Status.Holders[0].Sidecar != a.name {
		e.slow("a wait that timed out, perhaps before it was sent, says position %d behind %+v, want position %d behind %s on %s", held.Position, held.Status.Holders, position, g.ID, a.name)
	}
	e.holds(b.b, r, []lock.HoldID{g.ID}, nil)
	e.noGhost(a, g)
}

// noGhost releases the only hold of a resource and checks that no waiter that
// has given up is in the way of others.
func (e *env) noGhost(s *sidecar, g lock.Grant) {
	e.Helper()
	if e.sharing() {
		e.release(s, e.acquire(s, g.Resource, lock.Shared))
	}
	e.release(s, g)
	e.release(s, e.acquire(s, g.Resource, e.shared()))
}
