package simulation

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"hash"
	"io"
	"math/rand/v2"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/locksidecar/locksidecar/arbiter"
	"github.com/locksidecar/locksidecar/backends/embedded"
	"github.com/locksidecar/locksidecar/lock"
)

// breakOf is something that no store and no sidecar may do.
type breakOf int

const (
	nothing            breakOf = iota
	answersForTheStore         // a heartbeat without an answer counts
	acknowledgesUnread         // a forced release is acknowledged before the sidecar knows of it
	shortLeases                // the store ends leases sooner than their TTL
	grantsBlindly              // who waits is told that it holds
	lowFences                  // fences fall
	keepsReleased              // what was released stays in the store
	tellsNobody                // apps do not get the news of losses
	slowClock                  // a clock that runs at half the speed, far beyond the margin
	keepsTheDead               // the end of an app does not end its session
	ignoresMinHold             // the store does not know min_hold
	freesDetached              // what is detached is free too soon
	entersUnasked              // an app enters its own hold again, and has not asked for that
)

// world is what one seed makes.
type world struct {
	broken    breakOf
	now       lock.Clock // true time
	store     *embedded.Store
	witness   *witness
	ttl       time.Duration
	lostGrace time.Duration
	resources int
	turns     int           // of arbiters
	park      time.Duration // the same
	places    []*place
	apps      []*app
	calm      chan struct{}  // closed when the storm is over
	tasks     sync.WaitGroup // what belongs to the storm and may outlive it
	forces    sync.WaitGroup // the administrator's requests, also those that outlive the storm

	over atomic.Bool // it was given up

	mu      sync.Mutex
	rnd     *rand.Rand // makes other dice
	letters []letter   // with handles, for whoever finds them
	trace   io.Writer  // nil: nobody reads it
	sum     hash.Hash  // of the trace
}

// result is what one world was like.
type result struct {
	broken []string
	seen   counts
	took   time.Duration // in the world
	sum    string        // of the trace; empty without one
}

// endless is how long no world takes.
const endless = 2 * time.Minute

// giveUp ends a world in which somebody waits for ever.
func (w *world) giveUp() {
	w.witness.complains("the world does not end: somebody waits for ever")
	w.over.Store(true)
	for _, pl := range w.places {
		if p := pl.current(); p != nil {
			p.cancel()
		}
	}
}

// settle is within how long after the storm everybody must be granted: a lease that
// nobody keeps ends, and waiters look again.
func (w *world) settle() time.Duration { return w.ttl + 5*time.Second }

// simulate makes the world of a seed, and watches it to its end. It writes what
// happens to trace, if that is not nil.
func simulate(t *testing.T, seed uint64, broken breakOf, trace io.Writer) (r result) {
	t.Helper()
	defer func() {
		if p := recover(); p != nil { // of synctest: a goroutine is left, or all wait
			fmt.Printf("seed %d: %v\n", seed, p)
			panic(p)
		}
	}()
	load(t, seed)
	synctest.Test(t, func(*testing.T) { r = newWorld(seed, broken, trace).run() })
	return r
}

func newWorld(seed uint64, broken breakOf, trace io.Writer) *world {
	rnd := rand.New(rand.NewPCG(seed, 0))
	w := &world{
		broken: broken, now: lock.GoTime(), rnd: rnd, trace: trace, calm: make(chan struct{}),
		ttl:       []time.Duration{lock.MinTTL, time.Second, 2 * time.Second, 3 * time.Second}[rnd.IntN(4)],
		lostGrace: []time.Duration{200 * time.Millisecond, time.Second, 2 * time.Second}[rnd.IntN(3)],
		resources: 1 + rnd.IntN(3),
	}
	local := rand.New(rand.NewPCG(seed, 1))
	w.turns = []int{0, 2, 5, arbiter.MaxTurns}[local.IntN(4)]
	w.park = []time.Duration{0, 200 * time.Millisecond, time.Second}[local.IntN(3)]
	if trace != nil {
		w.sum = sha256.New()
	}
	w.witness = newWitness(w.now)
	w.store = embedded.New(embedded.WithClock(w.now))
	for n := range 2 + rnd.IntN(2) {
		pl := &place{w: w, n: n, rate: 1 + float64(rnd.IntN(19)-9)/1000, offset: time.Duration(rnd.Int64N(int64(10 * time.Hour)))}
		if broken == slowClock && n == 0 {
			pl.rate = 0.5
		}
		w.places = append(w.places, pl)
	}
	for n := range 3 + rnd.IntN(6) {
		w.apps = append(w.apps, &app{w: w, n: n, place: w.places[rnd.IntN(len(w.places))], steps: 15 + rnd.IntN(25), rnd: w.dice()})
	}
	w.log("seed %d: ttl %v, lost grace %v, %d sidecars, %d apps, %d resources, %d turns, park %v", seed, w.ttl, w.lostGrace, len(w.places), len(w.apps), w.resources, w.turns, w.park)
	return w
}

func (w *world) arbiter(clock lock.Clock) arbiter.Options {
	return arbiter.Options{Turns: w.turns, Park: w.park, Clock: clock}
}

// dice gives a random source of its own.
func (w *world) dice() *rand.Rand {
	w.mu.Lock()
	defer w.mu.Unlock()
	return rand.New(rand.NewPCG(w.rnd.Uint64(), w.rnd.Uint64()))
}

func (w *world) resource(rnd *rand.Rand) string { return string(rune('a' + rnd.IntN(w.resources))) }

func (w *world) log(format string, args ...any) {
	if w.trace == nil {
		return
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	line := fmt.Sprintf("%12v ", w.now()) + fmt.Sprintf(format, args...) + "\n"
	_, _ = io.WriteString(w.sum, line)
	_, _ = io.WriteString(w.trace, line)
}

// sleep reports false when ctx has ended.
func sleep(ctx context.Context, d time.Duration) bool {
	if ctx.Err() != nil {
		return false
	}
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return true
	case <-ctx.Done():
		return false
	}
}

// storms sleeps, or reports false when the storm is over.
func (w *world) storms(d time.Duration) bool {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-w.calm:
		return false
	case <-t.C:
		return true
	}
}

// after does something later. What is left to do at the end of the world is waited for.
func (w *world) after(d time.Duration, f func()) {
	w.tasks.Go(func() {
		time.Sleep(d)
		f()
	})
}

// run is the storm, the calm after it, and the look at what is left.
func (w *world) run() result {
	w.tasks.Add(1)
	watchdog := time.AfterFunc(endless, w.giveUp)
	defer watchdog.Stop()
	for _, pl := range w.places {
		pl.start()
	}
	var directors, apps sync.WaitGroup
	for _, pl := range w.places {
		directors.Go(pl.direct)
	}
	w.forces.Go(w.force)
	for _, a := range w.apps {
		apps.Go(a.run)
	}
	apps.Wait()
	close(w.calm)
	directors.Wait()
	w.log("calm")
	began := w.now()
	for _, a := range w.apps {
		apps.Go(a.letGo)
	}
	apps.Wait()
	if took := w.now() - began; took > w.settle() {
		w.witness.complains("it took %v until all waits were over", took)
	}
	w.forces.Wait() // whom they take from must not be one who is granted for the last time
	for _, a := range w.apps {
		apps.Go(a.finish)
	}
	apps.Wait()
	if !w.over.Load() {
		w.look()
	}
	for _, pl := range w.places {
		pl.current().stop()
	}
	w.tasks.Done()
	w.tasks.Wait()
	if err := w.store.Close(); err != nil {
		w.witness.complains("close store: %v", err)
	}
	w.log("the end: %+v", w.witness.seen)
	r := result{broken: w.witness.broken, seen: w.witness.seen, took: w.now()}
	if w.sum != nil {
		r.sum = hex.EncodeToString(w.sum.Sum(nil))
	}
	return r
}

// look complains about what is left when all apps have gone.
func (w *world) look() {
	time.Sleep(w.settle())
	left, err := w.store.List(context.Background(), "", lock.Page{Limit: lock.MaxPage})
	if err != nil || len(left) > 0 {
		var names []string
		for _, st := range left {
			names = append(names, fmt.Sprintf("%s: holders %+v, waiters %+v", st.Resource, st.Holders, st.Waiters))
		}
		w.witness.complains("left in the store: %s, %v", strings.Join(names, "; "), err)
	}
	for _, pl := range w.places {
		p := pl.current()
		if i := p.manager.Info(); i.Holds != 0 || i.Waiters != 0 || i.Sessions != 0 || !i.Ready {
			w.witness.complains("left in %v: %+v", p, i)
		}
	}
}
