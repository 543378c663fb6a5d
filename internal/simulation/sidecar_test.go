package simulation

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"time"

	"github.com/locksidecar/locksidecar/arbiter"
	"github.com/locksidecar/locksidecar/lock"
	"github.com/locksidecar/locksidecar/session"
)

// place is a host with a clock of its own, and one sidecar after the other on it.
type place struct {
	w      *world
	n      int
	rate   float64       // of its clock
	offset time.Duration // of its clock
	born   int           // processes so far

	mu  sync.Mutex
	now *process // nil: there is none at the moment
}

// process is one sidecar from its start to its end.
type process struct {
	*place
	name    string
	manager *session.Manager
	cancel  context.CancelFunc
	ended   chan struct{} // Run has returned

	dead    chan struct{} // kill -9: nothing that it does is seen any more
	die     func()
	frozen  atomic.Int64 // since when, in true time; 0: it runs
	stale   atomic.Bool  // frozen, and what it reads off the clock is old
	froze   atomic.Int64 // how often
	late    atomic.Int64 // timers that were set while it was stale may be late until then
	climate atomic.Pointer[weather]

	mu     sync.Mutex
	rnd    *rand.Rand
	thawed chan struct{} // closed while it runs
}

func (p *process) String() string { return p.name }

// staleness is how much slower time passes for a frozen process that has just read
// the clock. It still passes, or timers that look at it would spin.
const staleness = 16

// longestTimer is how long session sleeps at most without a look at the clock.
const longestTimer = 5 * time.Second

// clock is what the process reads off its host's clock.
func (p *process) clock() time.Duration {
	now := p.w.now()
	if since := time.Duration(p.frozen.Load()); since != 0 && p.stale.Load() {
		now = since + (now-since)/staleness
	}
	return p.offset + time.Duration(float64(now)*p.rate)
}

// true turns a moment on the host's clock into true time.
func (pl *place) true(at time.Duration) time.Duration {
	return time.Duration(float64(at-pl.offset) / pl.rate)
}

// start starts a process; w.calm or the director ends it.
func (pl *place) start() {
	pl.born++
	p := &process{
		place: pl, name: fmt.Sprintf("sidecar %d.%d", pl.n, pl.born), ended: make(chan struct{}), dead: make(chan struct{}),
		rnd: pl.w.dice(), thawed: make(chan struct{}),
	}
	close(p.thawed)
	p.die = sync.OnceFunc(func() { close(p.dead) })
	p.climate.Store(&fair)
	m, err := session.New(session.Options{
		Backend: noting{arbiter.New(backend{p}, p.w.arbiter(p.clock)), p.w}, TTL: pl.w.ttl, Sidecar: p.name, LostGrace: pl.w.lostGrace, Clock: p.clock,
	})
	if err != nil {
		panic(err)
	}
	var ctx context.Context
	ctx, p.cancel = context.WithCancel(context.Background())
	p.manager = m
	go func() {
		defer close(p.ended)
		if err := m.Run(ctx); err != nil {
			pl.w.witness.complains("%v: Run = %v", p, err)
		}
	}()
	pl.mu.Lock()
	pl.now = p
	pl.mu.Unlock()
	pl.w.log("%v starts", p)
}

func (pl *place) current() *process {
	pl.mu.Lock()
	defer pl.mu.Unlock()
	return pl.now
}

// gone takes the process off its place: apps open their sessions at the next one.
func (p *process) gone() {
	p.place.mu.Lock()
	defer p.place.mu.Unlock()
	p.now = nil
}

func (p *process) weather() weather {
	if p.isDead() {
		return cut
	}
	return *p.climate.Load()
}

func (p *process) isDead() bool {
	select {
	case <-p.dead:
		return true
	default:
		return false
	}
}

// passes waits while the process is frozen: nothing comes out of it and nothing goes
// in. It reports false when it is dead, or ctx has ended.
func (p *process) passes(ctx context.Context) bool {
	p.mu.Lock()
	thawed := p.thawed
	p.mu.Unlock()
	select {
	case <-thawed:
		return !p.isDead()
	default:
	}
	select {
	case <-thawed:
		return !p.isDead()
	case <-p.dead:
	case <-ctx.Done():
	}
	return false
}

// answers is passes for an app.
func (p *process) answers() bool { return p.passes(context.Background()) }

func (p *process) freeze(stale bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.thawed = make(chan struct{})
	p.stale.Store(stale)
	p.froze.Add(1)
	p.frozen.Store(int64(max(1, p.w.now())))
	p.w.log("%v freezes (stale: %v)", p, stale)
}

func (p *process) thaw() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.stale.Load() {
		p.late.Store(int64(p.w.now() + longestTimer))
	}
	p.frozen.Store(0)
	close(p.thawed)
	p.w.log("%v goes on", p)
}

func (p *process) chance(of100 int) bool {
	if of100 == 0 {
		return false
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.rnd.IntN(100) < of100
}

func (p *process) upTo(d time.Duration) time.Duration {
	p.mu.Lock()
	defer p.mu.Unlock()
	return time.Duration(p.rnd.Int64N(int64(d) + 1))
}

// crash is kill -9: the process goes on, but nobody sees it, so it can be waited for.
func (p *process) crash() {
	p.w.log("%v is killed", p)
	p.die()
	p.w.tasks.Go(p.stop)
}

// stop ends the process as SIGTERM does, without its drain time.
func (p *process) stop() {
	p.cancel()
	<-p.ended
	p.w.log("%v has ended", p)
}

// drain ends the process as SIGTERM does.
func (p *process) drain(d time.Duration) {
	p.w.log("%v drains for %v", p, d)
	ctx, cancel := context.WithTimeout(context.Background(), d)
	defer cancel()
	if err := p.manager.Drain(ctx); err != nil && !errors.Is(err, context.DeadlineExceeded) {
		p.w.witness.complains("%v: Drain = %v", p, err)
	}
	p.stop()
}

// direct makes things go wrong at a place until the storm is over.
func (pl *place) direct() {
	rnd := pl.w.dice()
	upTo := func(d time.Duration) time.Duration { return time.Duration(rnd.Int64N(int64(d))) }
	for pl.w.storms(upTo(2 * time.Second)) {
		p := pl.current()
		if p == nil {
			pl.start()
			continue
		}
		switch kind := rnd.IntN(100); {
		case kind < 40:
			v := climate[rnd.IntN(len(climate))]
			pl.w.log("%v: weather %+v", p, v)
			p.climate.Store(&v)
			pl.w.storms(upTo(2 * pl.w.ttl))
			pl.w.log("%v: fair", p)
			p.climate.Store(&fair)
		case kind < 65:
			pl.w.witness.count(func(c *counts) { c.freezes++ })
			p.freeze(rnd.IntN(2) == 0)
			pl.w.storms(upTo(pl.w.ttl * 3 / 2))
			p.thaw()
		case kind < 72:
			pl.w.witness.count(func(c *counts) { c.crashes++ })
			p.gone()
			p.crash()
		case kind < 79:
			p.gone()
			limit := upTo(2 * time.Second)
			pl.w.tasks.Go(func() { p.drain(limit) })
		}
	}
	if pl.current() == nil {
		pl.start()
	}
}

const longestGrace = 3 * time.Second

// force is an administrator who takes locks away until the storm is over.
func (w *world) force() {
	rnd := w.dice()
	for w.storms(time.Duration(rnd.Int64N(int64(3 * time.Second)))) {
		p := w.places[rnd.IntN(len(w.places))].current()
		if p == nil || p.frozen.Load() != 0 {
			continue
		}
		resource := w.resource(rnd)
		grace := []time.Duration{0, 300 * time.Millisecond, time.Second, longestGrace}[rnd.IntN(4)]
		limit := time.Duration(rnd.Int64N(int64(4 * time.Second)))
		byID, waiter := rnd.IntN(2) == 0, rnd.IntN(3) == 0
		w.forces.Go(func() {
			ctx, cancel := context.WithTimeout(context.Background(), limit)
			defer cancel()
			var id lock.HoldID
			if byID {
				st, err := p.manager.Everybody().Get(ctx, resource)
				all := st.Holders
				if waiter {
					all = st.Waiters
				}
				if err != nil || len(all) == 0 {
					return
				}
				id = all[0].ID
			}
			taken, err := p.manager.Everybody().ForceRelease(ctx, resource, id, grace)
			w.log("%v forces %s of %s with %v: %v, %v", p, id, resource, grace, taken, err)
			if err != nil && !errors.Is(err, lock.ErrUnavailable) && !errors.Is(err, lock.ErrNotHolder) {
				w.witness.complains("%v: ForceRelease = %v", p, err)
			}
			w.witness.count(func(c *counts) { c.forced += len(taken) })
		})
	}
}
