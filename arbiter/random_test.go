package arbiter

import (
	"context"
	"errors"
	"math/rand/v2"
	"os"
	"strconv"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/locksidecar/locksidecar/lock"
)

// in is who relies on a resource.
type in struct {
	readers, writers int
	last             lock.Fence // of a writer
}

// anything is what apps of several sidecars may do.
type anything struct {
	*house
	sides []*side

	mu     sync.Mutex
	in     map[lock.Resource]*in
	revoke map[lock.HoldID]chan struct{} // closed when the app is told
	grants int
}

// enter notes a grant, and leave that its app relies on it no more.
func (a *anything) enter(g lock.Grant) (told <-chan struct{}, leave func()) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.grants++
	who := a.in[g.Resource]
	if who == nil {
		who = &in{}
		a.in[g.Resource] = who
	}
	count := &who.writers
	if g.Mode == lock.Shared {
		count = &who.readers
	}
	*count++
	if who.writers > 1 || who.writers == 1 && who.readers > 0 {
		a.Errorf("%d writers and %d readers have %s", who.writers, who.readers, g.Resource)
	}
	if g.Mode == lock.Exclusive && g.Fence <= who.last || g.Fence < who.last {
		a.Errorf("broken law: fence %d after %d on %s", g.Fence, who.last, g.Resource)
	}
	if g.Mode == lock.Exclusive {
		who.last = g.Fence
	}
	bell := a.revoke[g.ID]
	if bell == nil {
		bell = make(chan struct{})
		a.revoke[g.ID] = bell
	}
	return bell, func() {
		a.mu.Lock()
		defer a.mu.Unlock()
		*count--
	}
}

// tell is what reads the events of a side.
func (a *anything) tell(e lock.Event) {
	a.mu.Lock()
	defer a.mu.Unlock()
	bell := a.revoke[e.ID]
	if bell == nil {
		bell = make(chan struct{})
		a.revoke[e.ID] = bell
	}
	select {
	case <-bell:
	default:
		close(bell)
	}
}

func (a *anything) step(s *side, r *rand.Rand) {
	q := exclusive()
	q.Resource = lock.Resource([]string{"r", "s"}[r.IntN(2)])
	if r.IntN(3) == 0 {
		q.Mode = lock.Shared
	}
	q.Try, q.Direct = r.IntN(4) == 0, r.IntN(10) == 0
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	if r.IntN(2) == 0 {
		ctx, cancel = context.WithTimeout(ctx, time.Duration(r.IntN(150))*time.Millisecond)
		defer cancel()
	}
	g, err := s.Acquire(ctx, q)
	for errors.Is(err, lock.ErrUnavailable) && ctx.Err() == nil {
		time.Sleep(20 * time.Millisecond)
		g, err = s.Acquire(ctx, q)
	}
	switch {
	case errors.Is(err, lock.ErrUnavailable):
		a.release(s, q)
		return
	case err != nil:
		return
	}
	told, leave := a.enter(g)
	t := time.NewTimer(time.Duration(r.IntN(60)*r.IntN(2)) * time.Millisecond)
	if g.Mode == lock.Exclusive && r.IntN(8) == 0 {
		leave() // it relies on less from here on
		err := s.Downgrade(context.Background(), g.Resource, g.ID)
		for errors.Is(err, lock.ErrUnavailable) {
			time.Sleep(20 * time.Millisecond)
			err = s.Downgrade(context.Background(), g.Resource, g.ID)
		}
		if err == nil {
			<-t.C
		}
		a.release(s, q)
		return
	}
	if other := a.sides[r.IntN(len(a.sides))]; r.IntN(20) == 0 {
		go func() {
			ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
			defer cancel()
			_ = other.b.ForceRelease(ctx, g.Resource, g.ID, time.Second)
		}()
	}
	select {
	case <-t.C:
	case <-told: // and stops in time
	}
	leave()
	a.release(s, q)
}

func (a *anything) release(s *side, q lock.Request) {
	err := s.Release(context.Background(), q.Resource, q.ID)
	for errors.Is(err, lock.ErrUnavailable) {
		time.Sleep(20 * time.Millisecond)
		err = s.Release(context.Background(), q.Resource, q.ID)
	}
	if err != nil && !errors.Is(err, lock.ErrNotHolder) {
		a.Errorf("Release: %v", err)
	}
}

// Whatever apps of three sidecars do, cancel, force, and however often there is no answer: no
// two rely on what excludes each other, fences grow, and in the end nothing is left, here or
// in the store.
func TestAnything(t *testing.T) {
	n := 8
	if s := os.Getenv("ARBITER_WORLDS"); s != "" {
		n, _ = strconv.Atoi(s)
	}
	for i := range n {
		inHouse(t, func(h *house) { anythingIn(h, uint64(i)) })
	}
}

func anythingIn(h *house, seed uint64) {
	r := rand.New(rand.NewPCG(seed, 0))
	a := &anything{house: h, in: make(map[lock.Resource]*in), revoke: make(map[lock.HoldID]chan struct{})}
	o := Options{Turns: []int{0, 2, 5, MaxTurns}[r.IntN(4)], Park: []time.Duration{0, 30 * time.Millisecond, time.Second}[r.IntN(3)]}
	if o.Turns == 0 && o.Park == 0 {
		o.Turns = 3
	}
	var beats sync.WaitGroup
	stop := make(chan struct{})
	for range 3 {
		s := h.side(o)
		s.hear = a.tell
		a.sides = append(a.sides, s)
		s.way.lossy = rand.New(rand.NewPCG(seed, uint64(len(a.sides))))
		beats.Go(func() {
			for {
				select {
				case <-stop:
					return
				case <-time.After(ttl / 3):
				}
				news, err := s.Heartbeat(context.Background())
				if err != nil {
					h.Errorf("Heartbeat: %v", err)
				}
				for _, e := range news {
					a.tell(e)
				}
			}
		})
	}
	var apps sync.WaitGroup
	for i := range 12 {
		s, r := a.sides[i%3], rand.New(rand.NewPCG(seed, uint64(100+i)))
		apps.Go(func() {
			for range 40 {
				a.step(s, r)
			}
		})
	}
	apps.Wait()
	for _, s := range a.sides {
		s.way.heal()
	}
	time.Sleep(10 * time.Second) // and what is parked is free, and what is forced is over
	synctest.Wait()
	for _, s := range a.sides {
		s.mu.Lock()
		if len(s.members)+len(s.stores)+len(s.lines)+len(s.unsure)+len(s.direct)+s.idle != 0 || s.b.Stats().Parked != 0 {
			h.Errorf("left: %d members, %d cohorts on %d resources, %d unsure, %d parked", len(s.members), len(s.stores), len(s.lines), len(s.unsure), s.b.Stats().Parked)
		}
		s.mu.Unlock()
	}
	close(stop)
	beats.Wait()
	for _, s := range a.sides {
		s.close()
	}
	if a.grants < 20 {
		h.Errorf("%d grants", a.grants)
	}
}

func (w *way) heal() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.lossy = nil
}
