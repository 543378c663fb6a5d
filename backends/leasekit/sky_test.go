package leasekit

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/locksidecar/locksidecar/lock"
)

// sky is a store with leases, whose beats are observed. Its time is that of the test.
type sky struct {
	mu     sync.Mutex
	start  time.Time
	beats  map[string]Beat
	ended  map[string]time.Duration // when
	keeper KeeperRound
	number int64

	carried bool // requests that have no answer are carried out
}

func newSky() *sky {
	return &sky{start: time.Now(), beats: map[string]Beat{}, ended: map[string]time.Duration{}}
}

func (s *sky) now() time.Duration { return time.Since(s.start) }

func (s *sky) next() int64 {
	s.number++
	return s.number
}

// beat is a heartbeat of a lease, or its opening. The answer has the keeper.
func (s *sky) beat(id string, ttl time.Duration) (KeeperRound, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if _, over := s.ended[id]; over {
		return s.keeper, lock.ErrLeaseLost
	}
	s.beats[id] = Beat{Lease: id, TTL: ttl, Number: s.next()}
	k := s.keeper
	_, over := s.ended[k.Lease]
	k.Over = over
	return k, nil
}

// whenEnded gives when a lease was ended; 0: it was not.
func (s *sky) whenEnded(id string) time.Duration {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.ended[id]
}

// watcher is one sidecar under a sky, with a lease of its own.
type watcher struct {
	*Observer
	s      *sky
	id     string
	ahead  atomic.Int64                  // of its clock
	silent atomic.Bool                   // it sends no heartbeats
	fail   atomic.Pointer[string]        // the kind of its requests that has no answer
	hang   atomic.Pointer[chan struct{}] // its requests wait until that is closed

	rounds, tries, ends atomic.Int32 // requests of each kind
}

const maxPause = 2 * time.Second

// watch has a sidecar observe, with heartbeats three times a TTL, until the test ends. fault is
// its first one.
func (s *sky) watch(t *testing.T, id string, ttl time.Duration, fault ...string) *watcher {
	t.Helper()
	w := &watcher{s: s, id: id}
	for _, kind := range fault {
		w.fails(kind)
	}
	w.Observer = NewObserver(w, ObserverOptions{
		ID: id, TTL: ttl, MostRound: maxPause,
		Clock: func() time.Duration { return s.now() + time.Duration(w.ahead.Load()) },
	})
	var tasks sync.WaitGroup
	ctx, cancel := context.WithCancel(t.Context())
	tasks.Go(func() { w.Run(ctx) })
	tasks.Go(func() {
		for once := true; once || Sleep(ctx, ttl/3); once = false {
			if w.silent.Load() {
				continue
			}
			w.wait(ctx)
			if k, err := s.beat(id, ttl); err == nil {
				w.SawKeeper(k)
			}
		}
	})
	t.Cleanup(func() {
		cancel()
		tasks.Wait()
	})
	synctest.Wait()
	return w
}

// wait waits while the sidecar is frozen.
func (w *watcher) wait(ctx context.Context) {
	if c := w.hang.Load(); c != nil {
		select {
		case <-*c:
		case <-ctx.Done():
		}
	}
}

// freeze stops the sidecar until thaw.
func (w *watcher) freeze() (thaw func()) {
	c := make(chan struct{})
	w.hang.Store(&c)
	return func() {
		w.hang.Store(nil)
		close(c)
	}
}

var errNoAnswer = fmt.Errorf("no answer: %w", lock.ErrUnavailable)

// ask carries a request out, with its faults.
func (w *watcher) ask(ctx context.Context, kind string, request func()) error {
	w.wait(ctx)
	f := w.fail.Load()
	lost := f != nil && *f == kind
	if !lost || w.s.carried {
		w.s.mu.Lock()
		request()
		w.s.mu.Unlock()
	}
	if lost {
		return errNoAnswer
	}
	return nil
}

func (w *watcher) TakeOver(ctx context.Context, seen KeeperRound) (k KeeperRound, err error) {
	w.tries.Add(1)
	err = w.ask(ctx, "take over", func() {
		if own, there := w.s.beats[w.id]; there && seen.Lease == w.s.keeper.Lease && seen.Round == w.s.keeper.Round {
			w.s.keeper = KeeperRound{Lease: w.id, TTL: own.TTL, Round: w.s.next()}
		}
		k = w.s.keeper
	})
	return k, err
}

func (w *watcher) Round(ctx context.Context, _ KeeperRound, saw func(Beat)) (k KeeperRound, err error) {
	w.rounds.Add(1)
	var all []Beat
	err = w.ask(ctx, "round", func() {
		if w.s.keeper.Lease == w.id {
			w.s.keeper.Round = w.s.next()
			for _, b := range w.s.beats {
				all = append(all, b)
			}
		}
		k = w.s.keeper
	})
	if err == nil {
		for _, b := range all {
			saw(b)
		}
	}
	return k, err
}

func (w *watcher) End(ctx context.Context, b Beat) error {
	w.ends.Add(1)
	return w.ask(ctx, "end", func() {
		if w.s.beats[b.Lease].Number == b.Number {
			delete(w.s.beats, b.Lease)
			w.s.ended[b.Lease] = w.s.now()
		}
	})
}

func (w *watcher) fails(kind string) { w.fail.Store(&kind) }

// sleep waits, and then until nobody has anything to do.
func sleep(d time.Duration) {
	time.Sleep(d)
	synctest.Wait()
}

// between fails the test unless from <= d <= to.
func between(t *testing.T, what string, d, from, to time.Duration) {
	t.Helper()
	if d < from || d > to {
		t.Errorf("%s after %s, want %s to %s", what, d, from, to)
	}
}
