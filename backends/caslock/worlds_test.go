package caslock

import (
	"context"
	"errors"
	"fmt"
	"math/rand"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/locksidecar/locksidecar/arbiter"
	"github.com/locksidecar/locksidecar/lock"
)

// TestWorlds has apps take, keep and detach a few locks at random, in fake time, while sidecars die, answers are lost, and copies of
// requests arrive up to half a minute late. Wall clocks are wrong by up to a day. Nobody is let in beside what somebody relies on, or what is
// kept, and nothing is left in the end. CASLOCK_WORLDS is how many worlds there are; a failure names its seed, which CASLOCK_WORLD runs again.
func TestWorlds(t *testing.T) { worlds(t, 12, func(*world) {}) }

// TestTurnsInWorlds is TestWorlds with sidecars that hand locks on among their apps, and park them. Some of them are cut off, or hear nothing, for
// seconds. In the end one more sidecar asks for each lock while the others go on, and has it soon.
func TestTurnsInWorlds(t *testing.T) { worlds(t, 4, func(w *world) { w.turns = true }) }

func worlds(t *testing.T, n int, of func(*world)) {
	first := rand.Int63()
	if set, err := strconv.Atoi(os.Getenv("CASLOCK_WORLDS")); err == nil {
		n = set
	}
	if seed, err := strconv.ParseInt(os.Getenv("CASLOCK_WORLD"), 10, 64); err == nil {
		n, first = 1, seed
	}
	for i := range n {
		seed := first + int64(i)
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := &world{witness: newWitness(t), m: newMemory(), r: rand.New(rand.NewSource(seed))}
				of(w)
				w.run()
			})
		})
	}
}

const (
	worldTTL  = 3 * time.Second
	worldTime = 3 * time.Minute
	latest    = 30 * time.Second // a copy arrives no later
)

type world struct {
	*witness
	m *memory

	r      *rand.Rand // w.mu guards it
	healed bool       // and this
	turns  bool       // sidecars hand locks on, and park them

	backups bool // the store goes back to a backup now and then
	history int  // how often it did
}

type worldSidecar struct {
	b       *Backend
	front   lock.Backend // b, or an arbiter before it
	l       lock.Lease
	silent  time.Time // until when its requests have no answer, with w.turns
	r       *road
	stop    context.CancelFunc
	ctx     context.Context
	renewed time.Time // before the last heartbeat with an answer was sent
	dead    bool
	done    sync.WaitGroup
}

func (w *world) intn(n int) int {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.r.Intn(n)
}

func (w *world) upTo(d time.Duration) time.Duration { return time.Duration(w.intn(int(d))) + 1 }

func (w *world) run() {
	born := time.Now().Add(-time.Hour)
	side := make([]*worldSidecar, 4)
	for i := range side {
		side[i] = w.sidecar(born)
	}
	for end := time.Now().Add(worldTime); time.Now().Before(end); {
		time.Sleep(w.upTo(15 * time.Second))
		if w.backups && w.intn(2) == 0 {
			w.goesBack(side)
			continue
		}
		i := w.intn(len(side))
		w.end(side[i], w.intn(3) == 0)
		side[i] = w.sidecar(born)
	}
	w.mu.Lock()
	w.healed = true
	w.mu.Unlock()
	if w.turns {
		w.starvesNobody(born)
	}
	for _, s := range side {
		s.stop()
		s.done.Wait()
		if w.intn(2) == 0 {
			w.end(s, true)
		}
	}
	last := w.sidecar(born)
	last.stop() // only its heartbeats go on
	last.done.Wait()
	time.Sleep(3 * time.Minute)
	for _, s := range side {
		w.end(s, true)
	}
	time.Sleep(time.Minute)
	w.end(last, true)
	synctest.Wait()
	for _, f := range w.m.do(Txn{Read: []Range{all("own/", 0), all(duePrefix, 0), all(linePrefix, 0), all(headPrefix, 0), all(handlePrefix, 0), all(deadPrefix, 0)}}).Reads {
		for _, kv := range f.KVs {
			w.Errorf("left: %q %s", kv.Key, kv.Value)
		}
	}
	w.Logf("%v", w.counts)
	if w.Failed() {
		w.Logf("what happened:\n%s", strings.Join(w.notes, "\n"))
	}
}

// sidecar starts one, with apps.
func (w *world) sidecar(born time.Time) *worldSidecar {
	s := &worldSidecar{r: &road{m: w.m}}
	s.r.copy = func(x Txn) bool { return w.passes(s, x) }
	s.b = Open(slow{s.r, w}, Options{Timeout: 500 * time.Millisecond, Clock: func() time.Duration { return time.Since(born) }})
	wrong := w.upTo(48*time.Hour) - 24*time.Hour
	if w.backups {
		wrong = 0 // fences begin with the time of day after that
	}
	s.b.wall = func() time.Time { return time.Now().Add(wrong) }
	s.front = s.b
	if w.turns {
		s.front = arbiter.New(s.b, arbiter.Options{Turns: []int{3, 20, arbiter.MaxTurns}[w.intn(3)], Park: w.upTo(2 * time.Second), Clock: s.b.clock})
	}
	var err error
	for {
		sent := time.Now()
		if s.l, err = s.front.OpenLease(context.Background(), lock.LeaseOptions{TTL: worldTTL, Sidecar: "w"}); err == nil {
			s.renewed = sent
			break
		}
		time.Sleep(100 * time.Millisecond)
	}
	s.ctx, s.stop = context.WithCancel(context.Background())
	beats, stop := context.WithCancel(context.Background())
	var others sync.WaitGroup
	others.Go(func() { w.hears(s) })
	others.Go(func() {
		for beats.Err() == nil {
			sent := time.Now()
			news, err := s.l.Heartbeat(beats)
			w.mu.Lock()
			if err != nil {
				w.note("%s heartbeat: %v", s.l.ID(), err)
			}
			for _, ev := range news { // also with an error
				w.told(ev)
			}
			if err == nil {
				s.renewed = sent
				w.proves(s)
			}
			w.mu.Unlock()
			select {
			case <-beats.Done():
			case <-time.After(time.Second):
			}
		}
	})
	apps := 3
	if w.turns && w.healed {
		apps = 0
	} else if w.turns {
		apps = 1 + w.intn(8)
		others.Go(func() { w.disturbs(beats, s) })
	}
	for range apps {
		s.done.Go(func() {
			for s.ctx.Err() == nil {
				w.app(s)
			}
		})
	}
	w.Cleanup(func() { w.end(s, false); stop(); others.Wait() })
	return s
}

// slow is a road on which requests and answers take their time, so those of several sidecars meet.
type slow struct {
	*road
	w *world
}

func (s slow) Do(ctx context.Context, x Txn) (Result, error) {
	time.Sleep(s.w.upTo(20 * time.Millisecond))
	r, err := s.road.Do(ctx, x)
	time.Sleep(s.w.upTo(20 * time.Millisecond))
	return r, err
}

// passes tells whether a request is not carried out now, or has no answer.
func (w *world) passes(s *worldSidecar, x Txn) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	if s.dead {
		return true
	}
	if w.healed || s.l == nil {
		return false
	}
	if time.Now().Before(s.silent) {
		if w.r.Intn(4) == 0 {
			w.m.do(x)
		}
		return true
	}
	switch k := w.r.Intn(100); {
	case k < 3: // its answer is lost
		w.m.do(x)
		return true
	case k < 6: // it comes late
		w.copies(x)
		return true
	case k < 8: // it is lost
		return true
	case k < 10 && len(x.Then) > 0: // and comes a second time
		w.copies(x)
	}
	return false
}

// copies has a request arrive some time, unless the connections of now are cut before that.
func (w *world) copies(x Txn) {
	history := w.history
	time.AfterFunc(time.Duration(w.r.Intn(int(latest))), func() {
		w.mu.Lock()
		defer w.mu.Unlock()
		if w.history == history {
			w.m.do(x)
		}
	})
}

func (w *world) hears(s *worldSidecar) {
	for ev := range s.l.Events() {
		w.mu.Lock()
		w.told(ev)
		w.mu.Unlock()
	}
}

func (w *world) end(s *worldSidecar, clean bool) {
	w.mu.Lock()
	was := s.dead
	w.note("%s ends, clean %t", s.l.ID(), clean)
	s.dead = s.dead || !clean
	w.mu.Unlock()
	s.stop()
	s.done.Wait()
	if clean && !was {
		w.mu.Lock()
		for _, h := range w.relied {
			if h.by == s {
				h.by = nil
			}
		}
		w.mu.Unlock()
	}
	if err := s.l.Close(context.Background()); err == nil || !errors.Is(err, lock.ErrLeaseLost) {
		_ = s.front.Close()
	}
	w.mu.Lock()
	s.dead = true
	w.mu.Unlock()
}

// app does something once.
func (w *world) app(s *worldSidecar) {
	most := 4 * time.Second
	if w.turns {
		most = 400 * time.Millisecond
	}
	time.Sleep(w.upTo(most / 2))
	ctx, cancel := context.WithTimeout(s.ctx, w.upTo(20*time.Second))
	defer cancel()
	q := request(lock.Resource("r" + strconv.Itoa(w.intn(2))))
	w.mu.Lock()
	calm := w.turns && w.healed
	w.mu.Unlock()
	if !calm && !w.backups {
		switch w.intn(10) {
		case 0:
			w.force(ctx, s)
			return
		case 1:
			w.move(ctx, s)
			return
		}
	}
	plain := calm || w.backups || w.turns && w.intn(20) > 0
	w.mu.Lock()
	var was handed
	if plain && !calm { // in the end all of a sidecar are one cohort, which could go on for ever
		q.Mode, q.Try = []lock.Mode{lock.Exclusive, lock.Exclusive, lock.Shared, lock.Permits(2)}[w.r.Intn(3+w.permits())], w.r.Intn(4) == 0
	} else if plain {
		q.Mode = lock.Exclusive
	} else if n := len(w.handles); n > 0 && w.r.Intn(3) == 0 {
		was = w.handles[w.r.Intn(n)]
		q.Resource, q.Mode, q.Handle = was.g.Resource, was.g.Mode, was.key
	} else {
		q.Mode = []lock.Mode{lock.Exclusive, lock.Exclusive, lock.Shared, lock.Permits(2)}[w.r.Intn(4)]
		q.Try, q.Detachable = w.r.Intn(4) == 0, w.r.Intn(3) == 0
		if w.r.Intn(3) == 0 {
			q.MinHold = time.Duration(w.r.Intn(int(20 * time.Second)))
		}
	}
	w.mu.Unlock()
	asked := time.Now()
	g, err := s.l.Acquire(ctx, q)
	for errors.Is(err, lock.ErrUnavailable) && ctx.Err() == nil {
		g, err = s.l.Acquire(ctx, q)
	}
	if err != nil {
		w.gone(s, q.Resource, q.ID, err)
		return
	}
	w.mu.Lock()
	root := g.ID
	if q.Handle != "" {
		root = was.root
	}
	h, ok := w.got(s, g, root, asked)
	if ok && q.Handle == "" {
		if g.Mode == lock.Exclusive && g.Fence <= w.fences[q.Resource] && !w.ignorant(asked) {
			w.Errorf("broken law: fence %d after %d", g.Fence, w.fences[q.Resource])
		}
		w.fences[q.Resource] = max(w.fences[q.Resource], g.Fence)
		h.until = asked.Add(q.MinHold)
	} else if ok {
		w.counts["attached"]++
		for _, o := range w.relied { // it goes on as this one, too
			if o.root == root && o.until.After(h.until) && !w.over[root] {
				h.until = o.until
			}
		}
	}
	w.mu.Unlock()
	if !ok {
		w.gone(s, q.Resource, q.ID, lock.ErrUnavailable)
		return
	}
	select {
	case <-time.After(w.upTo(most)):
	case <-s.ctx.Done():
	}
	if q.Detachable && w.intn(2) == 0 {
		w.detach(s, g)
		return
	}
	w.lets(g.ID, time.Time{})
	w.gone(s, q.Resource, q.ID, lock.ErrUnavailable)
}

// force forces the release of a hold that somebody relies on, or that is kept.
func (w *world) force(ctx context.Context, s *worldSidecar) {
	w.mu.Lock()
	var of lock.HoldID
	for id := range w.relied { // any of them
		if of == "" || id < of {
			of = id
		}
	}
	h, grace := w.relied[of], time.Duration(w.r.Intn(2))*2*time.Second
	if w.turns { // at once, those of its cohort may be granted it until the news arrives
		grace = time.Second
	}
	if h == nil {
		w.mu.Unlock()
		return
	}
	w.note("%s forces %s, root %s, grace %s", s.l.ID(), of, h.root, grace)
	w.over[h.root], w.atOnce[h.root] = true, w.atOnce[h.root] || grace == 0
	for _, o := range w.relied {
		if o.root == h.root { // it may be over from now on; but where there is a grace, who has it relies on it until told
			o.until = time.Time{}
		}
	}
	w.handles = slices.DeleteFunc(w.handles, func(o handed) bool { return o.root == h.root })
	w.mu.Unlock()
	if err := s.front.ForceRelease(ctx, h.r, of, grace); err == nil {
		w.mu.Lock()
		w.counts["forced"]++
		w.mu.Unlock()
	}
}

// move moves the end of a detached hold, or ends it.
func (w *world) move(ctx context.Context, s *worldSidecar) {
	w.mu.Lock()
	if len(w.handles) == 0 {
		w.mu.Unlock()
		return
	}
	i, ttl, sent := w.r.Intn(len(w.handles)), time.Duration(0), time.Now()
	of := w.handles[i]
	if w.r.Intn(3) > 0 {
		ttl = lock.MinDetach + time.Duration(w.r.Intn(int(20*time.Second)))
	}
	w.note("%s moves %s to %s", s.l.ID(), of.root, ttl)
	w.atOnce[of.root] = w.atOnce[of.root] || ttl == 0
	for _, o := range w.relied {
		if o.root == of.root { // it may be so from now on
			o.until = time.Time{}
		}
	}
	w.handles = slices.Delete(w.handles, i, i+1)
	w.mu.Unlock()
	_, err := s.b.SetHandle(ctx, of.g.Resource, of.key, ttl)
	w.mu.Lock()
	defer w.mu.Unlock()
	w.note("%s has moved %s to %s: %v", s.l.ID(), of.root, ttl, err)
	w.over[of.root] = w.over[of.root] || err != nil || ttl == 0
	if w.over[of.root] {
		return
	}
	w.counts["moved"]++
	for _, o := range w.relied {
		if o.root == of.root {
			o.until = sent.Add(ttl)
		}
	}
	w.handles = append(w.handles, of)
}

func (w *world) detach(s *worldSidecar, g lock.Grant) {
	key, ttl := lock.NewSecret().Key(), lock.MinDetach+w.upTo(20*time.Second)
	w.mu.Lock()
	h := w.relied[g.ID]
	w.mu.Unlock()
	if !w.lets(g.ID, time.Time{}) { // lost
		w.gone(s, g.Resource, g.ID, lock.ErrUnavailable)
		return
	}
	w.mu.Lock()
	h.until = time.Time{} // its min_hold may end from now on
	w.mu.Unlock()
	sent := time.Now()
	err := lock.ErrUnavailable
	for errors.Is(err, lock.ErrUnavailable) && !w.isDead(s) {
		err = s.l.(lock.Detacher).Detach(context.Background(), g.Resource, g.ID, key, ttl)
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if err != nil || w.over[h.root] || !time.Now().Before(sent.Add(ttl)) {
		h.until = time.Time{}
		return
	}
	w.counts["detached"]++
	h.until = sent.Add(ttl)
	w.relied[g.ID] = h
	w.handles = append(w.handles, handed{g, key, g.ID})
	if len(w.handles) > 4 {
		w.handles = w.handles[1:]
	}
}

// gone gives up what an error may have left.
func (w *world) gone(s *worldSidecar, r lock.Resource, id lock.HoldID, err error) {
	for errors.Is(err, lock.ErrUnavailable) && !w.isDead(s) {
		err = s.l.Release(context.Background(), r, id)
	}
}

func (w *world) isDead(s *worldSidecar) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return s.dead
}
