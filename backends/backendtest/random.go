package backendtest

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"reflect"
	"slices"
	"strconv"
	"sync"
	"time"

	"github.com/locksidecar/locksidecar/lock"
)

// seedVariable repeats the choices of an earlier run of the random tests. How
// the goroutines interleave is not repeated.
const seedVariable = "BACKENDTEST_SEED"

// seed is for random choices: that of an earlier run, or a new one.
func (e *env) seed() uint64 {
	e.Helper()
	seed := uint64(time.Now().UnixNano())
	if s := os.Getenv(seedVariable); s != "" {
		var err error
		if seed, err = strconv.ParseUint(s, 10, 64); err != nil {
			e.Fatalf("%s: %v", seedVariable, err)
		}
	}
	e.Logf("%s=%d", seedVariable, seed)
	return seed
}

// testRandom lets workers on several sidecars do what comes to their minds with
// a few resources, while watchers look on. Each worker only ends its own holds,
// so the witnesses know who may be in.
func testRandom(e *env) {
	seed := e.seed()
	ss := e.sidecars(3)
	var spots []*spot
	for i := range 3 {
		spots = append(spots, &spot{name: e.name(fmt.Sprint(i)), witness: witness{t: e.TB}})
	}
	ctx, stop := context.WithCancel(e.ctx)
	var watchers sync.WaitGroup
	for i, sp := range spots {
		watchers.Go(func() {
			w := watcher{ordered: e.ordered()}
			for ctx.Err() == nil {
				st, err := ss[i%len(ss)].b.Get(ctx, sp.name)
				if errors.Is(err, lock.ErrUnavailable) {
					continue
				}
				if err == nil {
					err = w.look(st)
				}
				if err != nil && ctx.Err() == nil {
					e.Errorf("watching %q: %v", sp.name, err)
					return
				}
				time.Sleep(2 * time.Millisecond)
			}
		})
	}
	const count = 12
	workers := make([]*worker, count)
	var meddling sync.Mutex
	for i := range workers {
		workers[i] = &worker{e: e, s: ss[i%len(ss)], all: ss, spots: spots, meddling: &meddling, rand: rand.New(rand.NewPCG(seed, uint64(i)))}
	}
	e.load(2*loadTime, ss, count, func(_ *sidecar, i int) error { return workers[i%count].step() })
	stop()
	watchers.Wait()
	for _, sp := range spots {
		sp.witness.check()
		e.Logf("%q: %d writes, up to %d readers together", sp.name, sp.witness.writes.Load(), sp.witness.together.Load())
	}
}

// spot is a resource and who is in.
type spot struct {
	name    lock.Resource
	witness witness
}

// worker does one random thing after the other.
type worker struct {
	e     *env
	s     *sidecar
	all   []*sidecar
	spots []*spot
	rand  *rand.Rand

	meddling *sync.Mutex // for two that meddle could mean the same hold
}

func (w *worker) chance(percent int) bool { return w.rand.IntN(100) < percent }

func (w *worker) mode() lock.Mode {
	if w.chance(40) {
		return lock.Exclusive
	}
	return w.e.shared()
}

func (w *worker) step() error {
	switch {
	case w.chance(3):
		return w.visit()
	case w.chance(5):
		return w.meddle()
	default:
		return w.take()
	}
}

// take acquires, perhaps in vain, and ends the hold in one of several ways.
func (w *worker) take() error {
	sp := w.spots[w.rand.IntN(len(w.spots))]
	q := request(sp.name, w.mode())
	q.Try = w.chance(10)
	wait := patience
	if w.chance(40) {
		wait = time.Duration(w.rand.IntN(10)) * time.Millisecond
	}
	ctx, cancel := context.WithTimeout(w.e.ctx, wait)
	defer cancel()
	g, err := w.s.Acquire(ctx, q)
	if errors.Is(err, lock.ErrUnavailable) { // also where a time-out is behind it
		return w.settle(q)
	}
	if q.Try && errors.Is(err, lock.ErrHeld) || wait != patience && errors.Is(err, context.DeadlineExceeded) {
		if w.chance(30) { // nothing is left behind
			return wantNotHolder("release of what was not granted", w.s.Release(w.e.ctx, sp.name, q.ID))
		}
		return nil
	}
	if err != nil {
		return fmt.Errorf("acquire %s: %w", q.Mode, err)
	}
	sp.witness.enter(g)
	mode := g.Mode
	defer func() {
		if mode != 0 {
			sp.witness.exit(mode)
		}
	}()
	if w.chance(20) {
		var again lock.Grant
		if err := w.persist(func() (err error) { again, err = w.s.Acquire(w.e.ctx, q); return err }); err != nil || !reflect.DeepEqual(again, g) {
			return fmt.Errorf("acquire again: got %+v, %w; want %+v", again, err, g)
		}
	}
	if w.chance(30) {
		time.Sleep(time.Duration(w.rand.IntN(2000)) * time.Microsecond)
	}
	if mode == lock.Exclusive && w.e.sharing() && w.e.limits.Downgrade == "" && w.chance(20) {
		sp.witness.downgrade()
		mode = lock.Shared
		if err := w.persist(func() error { return w.s.Downgrade(w.e.ctx, sp.name, q.ID) }); err != nil {
			return fmt.Errorf("downgrade: %w", err)
		}
	}
	sp.witness.exit(mode)
	mode = 0
	return w.end(g)
}

// persist does a request again for as long as the store gives no answer.
func (w *worker) persist(f func() error) error {
	ctx, cancel := context.WithTimeout(w.e.ctx, patience)
	defer cancel()
	return persist(ctx, f)
}

// settle ends a request of which it is not known whether it was granted.
func (w *worker) settle(q lock.Request) error {
	for deadline := time.Now().Add(patience); ; {
		err := w.s.Release(w.e.ctx, q.Resource, q.ID)
		switch {
		case err == nil, errors.Is(err, lock.ErrNotHolder):
			return nil
		case !errors.Is(err, lock.ErrUnavailable), time.Now().After(deadline):
			return fmt.Errorf("release of what may have been granted: %w", err)
		}
	}
}

// end gives up a hold that nobody counts on any more.
func (w *worker) end(g lock.Grant) error {
	other := w.all[w.rand.IntN(len(w.all))]
	switch {
	case w.chance(10):
		unsure, err := w.e.again(func() error { return other.b.ForceRelease(w.e.ctx, g.Resource, g.ID, 0) })
		if err != nil && (!unsure || !errors.Is(err, lock.ErrNotHolder)) {
			return fmt.Errorf("force release: %w", err)
		}
		return wantNotHolder("release of what was forced", w.s.Release(w.e.ctx, g.Resource, g.ID))
	case w.chance(10):
		forced := make(chan error, 1)
		go func() { forced <- other.b.ForceRelease(w.e.ctx, g.Resource, g.ID, patience) }()
		if err := w.e.leave(w.s, g.Resource, g.ID); err != nil {
			return fmt.Errorf("release of what may be forced: %w", err)
		}
		if err := <-forced; err != nil && !errors.Is(err, lock.ErrNotHolder) { // it came too late
			return fmt.Errorf("force release with grace: %w", err)
		}
		return nil
	}
	if err := w.e.leave(w.s, g.Resource, g.ID); err != nil {
		return fmt.Errorf("release: %w", err)
	}
	if w.chance(20) {
		return wantNotHolder("release twice", w.s.Release(w.e.ctx, g.Resource, g.ID))
	}
	return nil
}

// meddle tries to end what belongs to others.
func (w *worker) meddle() error {
	w.meddling.Lock()
	defer w.meddling.Unlock()
	sp := w.spots[w.rand.IntN(len(w.spots))]
	var st lock.Status
	if err := w.persist(func() (err error) { st, err = w.s.b.Get(w.e.ctx, sp.name); return err }); err != nil {
		return fmt.Errorf("get: %w", err)
	}
	for _, h := range slices.Concat(st.Holders, st.Waiters) {
		if h.Lease != w.s.idAt(sp.name) {
			return wantNotHolder("release of another lease's", w.s.Release(w.e.ctx, sp.name, h.ID))
		}
	}
	return wantNotHolder("release of nobody's", w.s.Release(w.e.ctx, sp.name, lock.NewHoldID()))
}

// visit is a short life of another sidecar: it opens a lease, takes what it can
// get at once, begins to wait, and is gone.
func (w *worker) visit() error {
	l, err := w.s.b.OpenLease(w.e.ctx, lock.LeaseOptions{TTL: longTTL, Sidecar: "visitor"})
	if err != nil {
		return fmt.Errorf("open lease: %w", err)
	}
	var tasks sync.WaitGroup
	tasks.Go(func() {
		for range l.Events() { // nobody forces a visitor out
		}
	})
	var leave []func()
	for _, sp := range w.spots {
		q := request(sp.name, w.mode())
		q.Try = true
		g, err := l.Acquire(w.e.ctx, q)
		if err == nil {
			sp.witness.enter(g)
			leave = append(leave, func() { sp.witness.exit(g.Mode) })
		} else if !errors.Is(err, lock.ErrHeld) {
			return errors.Join(fmt.Errorf("acquire by a visitor: %w", err), l.Close(w.e.ctx))
		}
	}
	for _, sp := range w.spots {
		q := request(sp.name, w.mode())
		tasks.Go(func() { _, _ = l.Acquire(w.e.ctx, q) }) // if it is granted, Close ends that too
	}
	time.Sleep(time.Duration(w.rand.IntN(2000)) * time.Microsecond)
	for _, f := range leave {
		f()
	}
	err = l.Close(w.e.ctx)
	tasks.Wait()
	if err != nil {
		return fmt.Errorf("close lease: %w", err)
	}
	return nil
}

func wantNotHolder(what string, err error) error {
	if errors.Is(err, lock.ErrNotHolder) {
		return nil
	}
	return fmt.Errorf("%s: got %w, want ErrNotHolder", what, err)
}

// watcher compares what it sees of a resource with what it saw before.
type watcher struct {
	ordered bool          // the store has a queue
	last    []lock.HoldID // the queue
}

// look checks one status: an exclusive holder is alone, nobody is there twice,
// the queue only grows at its end, and is served from its front.
func (w *watcher) look(st lock.Status) error {
	queue := ids(st.Waiters)
	there := make(map[lock.HoldID]bool)
	for _, h := range slices.Concat(st.Holders, st.Waiters) {
		if there[h.ID] {
			return fmt.Errorf("%s is there twice: %+v", h.ID, st)
		}
		there[h.ID] = true
	}
	for _, h := range st.Holders {
		if h.Mode == lock.Exclusive && len(st.Holders) > 1 {
			return fmt.Errorf("broken law: an exclusive hold is not alone: %+v", st.Holders)
		}
	}
	if !w.ordered {
		return nil
	}
	// Those of the last queue who still wait must be the front of this one.
	var still []lock.HoldID
	firstWaiting := len(w.last)
	for i, id := range w.last {
		if slices.Contains(queue, id) {
			still = append(still, id)
			firstWaiting = min(firstWaiting, i)
		} else if there[id] && i > firstWaiting {
			return fmt.Errorf("%s was granted past %s: queue %v, then %+v", id, w.last[firstWaiting], w.last, st)
		}
	}
	if len(queue) < len(still) || !slices.Equal(queue[:len(still)], still) {
		return fmt.Errorf("the queue was %v and is %v", w.last, queue)
	}
	w.last = queue
	return nil
}
