package leasekit

import (
	"context"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/locksidecar/locksidecar/lock"
)

// The keeper ends a lease that is silent for its TTL: not earlier, and at most a quarter later.
// It leaves those alone that beat, its own too.
func TestKeeperEndsTheSilent(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSky()
		k := s.watch(t, "keeper", time.Minute)
		lives := s.watch(t, "lives", ttl)
		sleep(maxPause) // until both are seen
		if r, keeps := k.Keeps(); !keeps || r != s.keeper {
			t.Fatalf("the first is not the keeper: %+v, %+v", r, s.keeper)
		}
		last := s.now()
		if _, err := s.beat("dead", 4*time.Second); err != nil {
			t.Fatal(err)
		}
		sleep(time.Hour)
		between(t, "it is ended", s.whenEnded("dead")-last, 4*time.Second, 4*time.Second+maxPause)
		if n := k.ends.Load(); n != 1 || s.whenEnded("lives")+s.whenEnded("keeper") > 0 {
			t.Errorf("a lease was ended that beats, or one twice: %d requests", n)
		}
		k.SawKeeper(KeeperRound{Lease: "the one before", Round: 1}) // which comes late
		if _, keeps := k.Keeps(); !keeps {
			t.Error("a late answer says who is the keeper")
		}
		if n := lives.rounds.Load() + lives.tries.Load() + lives.ends.Load(); n > 0 {
			t.Errorf("who is not the keeper has sent %d requests", n)
		}
	})
}

// A lease is ended no earlier than a TTL after somebody has read its beat, though nobody has
// for long: neither where the store has had no keeper, nor where the beat has no TTL that is one.
func TestSilenceIsObserved(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSky()
		for id, ttl := range map[string]time.Duration{"dead": ttl, "odd": 0} {
			if _, err := s.beat(id, ttl); err != nil {
				t.Fatal(err)
			}
		}
		sleep(time.Hour)
		began := s.now()
		s.watch(t, "keeper", time.Minute)
		sleep(time.Hour)
		between(t, "it is ended", s.whenEnded("dead")-began, ttl, ttl+maxPause)
		between(t, "one without a TTL is ended", s.whenEnded("odd")-began, lock.MinTTL, lock.MinTTL+maxPause)
	})
}

// An observer that was frozen wakes up with looks that are old. It ends no lease that was
// renewed meanwhile, and observes it for a whole TTL again.
func TestFrozenObserver(t *testing.T) {
	for what, freeze := range map[string]func(*watcher){
		"it was frozen, and its clock went on": func(w *watcher) {
			thaw := w.freeze()
			sleep(time.Hour)
			thaw()
		},
		"its clock has jumped": func(w *watcher) { w.ahead.Store(int64(time.Hour)) },
	} {
		synctest.Test(t, func(t *testing.T) {
			s := newSky()
			w := s.watch(t, "keeper", lock.MaxTTL)
			sleep(maxPause)
			if _, err := s.beat("other", ttl); err != nil {
				t.Fatal(err)
			}
			sleep(maxPause)  // it is seen
			w.fails("round") // so no other beat is
			if _, err := s.beat("other", ttl); err != nil {
				t.Fatal(err)
			}
			freeze(w)
			last := s.now()
			if _, err := s.beat("other", ttl); err != nil {
				t.Fatalf("%s: it was ended before: %v", what, err)
			}
			sleep(ttl / 2)
			if s.whenEnded("other") > 0 || w.ends.Load() == 0 {
				t.Errorf("%s: it was ended by an old look (%d tries)", what, w.ends.Load())
			}
			w.fails("nothing")
			began := s.now()
			sleep(time.Hour)
			between(t, what+": it is ended", s.whenEnded("other")-last, ttl, began-last+ttl+maxPause)
		})
	}
}

// A keeper that is dead or frozen is replaced, whatever its TTL: when another one has heard
// the same of it for its TTL, or for three of its longest pauses. The one who takes its place ends the others
// as soon as it has observed them for their TTL.
func TestKeeperIsReplaced(t *testing.T) {
	for what, ttls := range map[string]struct{ keeper, silence time.Duration }{
		"a short TTL": {4 * time.Second, 4 * time.Second},
		"a long TTL":  {lock.MaxTTL, 3 * maxPause},
	} {
		synctest.Test(t, func(t *testing.T) {
			s := newSky()
			k := s.watch(t, "keeper", ttls.keeper)
			next := s.watch(t, "next", ttl)
			sleep(ttls.keeper + ttl)
			k.silent.Store(true)
			thaw := k.freeze()
			froze := s.now()
			if _, err := s.beat("dead", ttl); err != nil {
				t.Fatal(err)
			}
			for _, keeps := next.Keeps(); !keeps; _, keeps = next.Keeps() {
				sleep(time.Second / 10)
				if s.now() > froze+time.Hour {
					t.Fatalf("%s: the keeper is not replaced", what)
				}
			}
			replaced := s.now()
			between(t, what+": it is replaced", replaced-froze, ttls.silence-maxPause, max(ttls.silence, ttl/3)+ttl/3+time.Second/10)
			sleep(time.Hour)
			between(t, what+": the dead one is ended", s.whenEnded("dead")-replaced, ttl-time.Second/10, ttl+maxPause)
			if s.whenEnded("keeper") == 0 || s.whenEnded("next") > 0 {
				t.Errorf("%s: the keeper is not ended, or the next one is", what)
			}
			// The frozen one finds with its next round that it is the keeper no more.
			k.rounds.Store(0)
			thaw()
			sleep(time.Hour)
			if _, keeps := k.Keeps(); keeps || k.rounds.Load() > 1 {
				t.Errorf("%s: it goes on as the keeper, with %d rounds", what, k.rounds.Load())
			}
			if _, keeps := next.Keeps(); !keeps {
				t.Errorf("%s: there is no keeper", what)
			}
		})
	}
}

// Of many who see that the keeper has gone one takes its place, and it alone reads all leases.
func TestOneKeeper(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSky()
		k := s.watch(t, "keeper", lock.MaxTTL)
		var all []*watcher
		for i := range 20 {
			all = append(all, s.watch(t, fmt.Sprint(i), ttl))
		}
		s.mu.Lock()
		s.ended["keeper"] = s.now() // it has left
		delete(s.beats, "keeper")
		s.mu.Unlock()
		k.silent.Store(true)
		defer k.freeze()()
		sleep(ttl / 3) // nobody waits for the end of a silence
		keepers, readers := 0, 0
		for _, w := range all {
			if _, keeps := w.Keeps(); keeps {
				keepers++
			}
			if w.rounds.Load() > 0 {
				readers++
			}
		}
		if keepers != 1 || readers != 1 {
			t.Errorf("%d keepers, and %d who read all leases", keepers, readers)
		}
	})
}

// A sidecar hears of the keeper with its heartbeats. Between two of them the keeper is not
// silent, so a sidecar whose TTL is long does not try to take its place each time.
func TestKeeperIsNotDoubtedBetweenHeartbeats(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSky()
		s.watch(t, "keeper", lock.MinTTL)
		w := s.watch(t, "other", lock.MaxTTL)
		sleep(time.Hour)
		if n := w.tries.Load(); n > 0 {
			t.Errorf("%d tries to take the place of a keeper that lives", n)
		}
	})
}

// What has no answer comes again: the place of the keeper is taken, its rounds go on, and
// leases are ended, whether the lost request was carried out or not.
func TestObserverHasNoAnswer(t *testing.T) {
	for _, carried := range []bool{false, true} {
		for _, kind := range []string{"take over", "round", "end"} {
			synctest.Test(t, func(t *testing.T) {
				s := newSky()
				s.carried = carried
				if _, err := s.beat("dead", ttl); err != nil {
					t.Fatal(err)
				}
				w := s.watch(t, "keeper", time.Minute, kind)
				sleep(2 * time.Minute)
				w.fails("nothing")
				mended := s.now()
				sleep(time.Hour)
				if kind == "take over" && carried { // its next heartbeat tells
					mended = 0
				}
				if at := s.whenEnded("dead"); at == 0 || at > mended+time.Minute/3+ttl+maxPause {
					t.Errorf("%s without an answer, carried out %v: ended at %s, mended at %s", kind, carried, at, mended)
				}
				if _, keeps := w.Keeps(); !keeps || s.whenEnded("keeper") > 0 {
					t.Errorf("%s without an answer, carried out %v: the keeper is gone", kind, carried)
				}
			})
		}
	}
}

// Who waits looks at the leases in its way. When nobody looks at one any more it is forgotten,
// however many come and go.
func TestLeasesAreForgotten(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSky()
		s.watch(t, "keeper", ttl)
		w := s.watch(t, "waits", ttl)
		for i := range 100 {
			w.Saw(Beat{Lease: fmt.Sprint(i), TTL: ttl, Number: 1}) // which left at once
		}
		sleep(ttl + 2*maxPause)
		w.mu.Lock()
		defer w.mu.Unlock()
		if len(w.seen) > 0 || w.ends.Load() > 0 {
			t.Errorf("%d leases are remembered, and %d requests sent", len(w.seen), w.ends.Load())
		}
	})
}

// ending is an Observed that tells of each lease that is to be ended.
type ending struct {
	Observed
	ends func(Beat) error
}

func (e ending) End(_ context.Context, b Beat) error { return e.ends(b) }

// Two leases are over. The answer to the request that ends the first one shows that the store went back to a backup: beats come
// again, and those that were read before say nothing. The other one is not ended by its old beat.
func TestForgottenWhileOthersEnd(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		began, ended := time.Now(), 0
		var o *Observer
		o = NewObserver(ending{ends: func(Beat) error { ended++; o.Forget(); return nil }}, ObserverOptions{
			ID: "waits", TTL: ttl, MostRound: maxPause, Clock: func() time.Duration { return time.Since(began) },
		})
		for range 2 {
			for _, id := range []string{"a", "b"} {
				o.Saw(Beat{Lease: id, TTL: ttl, Number: 1})
			}
			sleep(ttl / 2)
		}
		o.endOver(t.Context())
		if ended != 1 {
			t.Errorf("%d leases were ended, want 1", ended)
		}
	})
}

// Who waits ends the lease in its way itself, just as soon as the keeper would.
func TestObserverBesideTheKeeper(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSky()
		k := s.watch(t, "keeper", lock.MaxTTL)
		w := s.watch(t, "waits", lock.MaxTTL)
		k.silent.Store(true)
		defer k.freeze()()
		for id, looks := range map[string][]time.Duration{
			"looked at often":   {0, ttl - time.Second},
			"looked at seldom":  {0, ttl},
			"without an answer": {0, ttl - time.Second},
		} {
			if _, err := s.beat(id, ttl); err != nil {
				t.Fatal(err)
			}
			s.mu.Lock()
			b := s.beats[id]
			s.mu.Unlock()
			began := s.now()
			w.fails("nothing")
			if id == "without an answer" {
				w.fails("end")
				time.AfterFunc(ttl+LeastRound/2, func() { w.fails("nothing") })
			}
			for _, at := range looks {
				sleep(began + at - s.now())
				w.Saw(b)
			}
			sleep(time.Minute)
			between(t, id+": it is ended", s.whenEnded(id)-began, ttl, ttl+LeastRound)
		}
	})
}

// Where the keeper rests for longer than the TTL of those that live, it does not try to end them
// between its rounds.
func TestManyShortLeases(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSky()
		k := s.watch(t, "keeper", ttl)
		for end := s.now() + 20*time.Second; s.now() < end; sleep(lock.MinTTL / 3) {
			for i := range 1000 {
				if _, err := s.beat(fmt.Sprint(i), lock.MinTTL); err != nil {
					t.Fatal(err)
				}
			}
		}
		if n := k.ends.Load(); n > 0 {
			t.Errorf("%d tries to end a lease that lives", n)
		}
		last := s.now()
		sleep(time.Minute)
		between(t, "the dead are ended", s.whenEnded("7")-last, lock.MinTTL, 2*maxPause)
	})
}

// The keeper rests while it is alone, and where there are many: a second for 500.
func TestKeeperRests(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSky()
		k := s.watch(t, "keeper", 2*time.Second)
		k.rounds.Store(0)
		sleep(time.Minute)
		between(t, "rounds alone", time.Duration(k.rounds.Load()), 55, 75)
		for i := range 500 {
			if _, err := s.beat(fmt.Sprint(i), lock.MaxTTL); err != nil {
				t.Fatal(err)
			}
		}
		sleep(2 * time.Second)
		k.rounds.Store(0)
		sleep(time.Minute)
		between(t, "rounds of many", time.Duration(k.rounds.Load()), 55, 75)
	})
}
