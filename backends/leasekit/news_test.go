package leasekit

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/locksidecar/locksidecar/lock"
)

// Law 1: the push is lost, and the answer of every heartbeat tells it until the
// hold is released.
func TestNewsStandsUntilReleased(t *testing.T) {
	bubble(t, func(k *kit) {
		g := k.acquire("r")
		k.f.force(g.ID, 4*time.Second)
		time.Sleep(time.Second)
		known := k.clock()
		for range 3 {
			k.same("Heartbeat", k.beat(), revoked(g, known+4*time.Second))
			time.Sleep(time.Second)
		}
		if err := k.Release(k.t.Context(), "r", g.ID); err != nil {
			t.Errorf("Release: %v", err)
		}
		k.same("Heartbeat after the release", k.beat())
	})
}

// Law 2: grace counts from when it was known, and is acknowledged after it was told.
func TestPushIsToldThenAcknowledged(t *testing.T) {
	bubble(t, func(k *kit) {
		g := k.acquire("r")
		time.Sleep(time.Second)
		k.f.force(g.ID, 3*time.Second)
		k.f.push(Push{Kind: Revoked, Ref: Ref{"r", g.ID}, Grace: 3 * time.Second})
		known := k.clock()
		time.Sleep(time.Second) // nobody reads events
		if n := len(k.f.acks); n != 0 {
			t.Errorf("%d acknowledgements before it was told", n)
		}
		k.same("Events", k.events(), revoked(g, known+3*time.Second))
		if len(k.f.acks) != 1 || k.f.acks[0] != (Revocation{Ref: Ref{"r", g.ID}, Grace: 3 * time.Second}) {
			t.Errorf("acknowledged: %+v", k.f.acks)
		}
		k.same("Heartbeat", k.beat(), revoked(g, known+3*time.Second))
		if len(k.f.acks) != 1 {
			t.Errorf("acknowledged again: %+v", k.f.acks)
		}
	})
}

// A hold that was lost is told at once and by each heartbeat, and not as a forced one.
func TestLostHoldIsTold(t *testing.T) {
	bubble(t, func(k *kit) {
		g := k.acquire("r")
		want := lock.Event{Kind: lock.Vanished, Resource: "r", ID: g.ID}
		k.f.push(Push{Kind: Revoked, Ref: Ref{"r", g.ID}, Vanished: true})
		k.same("Events", k.events(), want)
		k.same("Heartbeat", k.beat(), want)
	})
}

func TestShorterForceCountsAndLongerDoesNot(t *testing.T) {
	bubble(t, func(k *kit) {
		g := k.acquire("r")
		force := func(grace time.Duration) []lock.Event {
			k.f.force(g.ID, grace)
			k.f.push(Push{Kind: Revoked, Ref: Ref{"r", g.ID}, Grace: grace})
			return k.events()
		}
		k.same("the first", force(8*time.Second), revoked(g, 8*time.Second))
		time.Sleep(time.Second)
		k.same("a shorter one", force(2*time.Second), revoked(g, 3*time.Second))
		if len(k.f.acks) != 2 || k.f.acks[1].Grace != 2*time.Second {
			t.Errorf("acknowledged: %+v", k.f.acks)
		}
		k.f.push(Push{Kind: Revoked, Ref: Ref{"r", g.ID}, Grace: 9 * time.Second})
		k.same("a longer one", k.events())
		k.same("Heartbeat", k.beat(), revoked(g, 3*time.Second))
		k.same("at once", force(0), revoked(g, 0))
	})
}

func TestLostAcknowledgementIsRepeated(t *testing.T) {
	bubble(t, func(k *kit) {
		g := k.acquire("r")
		k.f.force(g.ID, 5*time.Second)
		k.f.on("renew", down)
		k.f.push(Push{Kind: Revoked, Ref: Ref{"r", g.ID}, Grace: 5 * time.Second})
		k.same("Events", k.events(), revoked(g, 5*time.Second))
		news, err := k.Heartbeat(k.t.Context())
		k.is("Heartbeat", err, lock.ErrUnavailable)
		k.same("news with the error", news, revoked(g, 5*time.Second))
		k.f.on("renew", nil)
		time.Sleep(time.Second)
		k.same("Heartbeat", k.beat(), revoked(g, 5*time.Second))
		if len(k.f.acks) != 1 {
			t.Errorf("acknowledged: %+v", k.f.acks)
		}
	})
}

// A hold that is gone because its grace is over was told already: it has not
// vanished, and its news stands until it is released.
func TestForcedHoldDoesNotVanish(t *testing.T) {
	for _, grace := range []time.Duration{0, 2 * time.Second} {
		bubble(t, func(k *kit) {
			g := k.acquire("r")
			k.f.force(g.ID, grace)
			k.f.push(Push{Kind: Revoked, Ref: Ref{"r", g.ID}, Grace: grace})
			want := revoked(g, grace)
			k.same("Events", k.events(), want)
			time.Sleep(grace + time.Second)
			k.f.lose(g.ID)
			for range 20 { // some of them compare
				k.same("Heartbeat", k.beat(), want)
				time.Sleep(ttl / 3)
			}
			k.is("Release", k.Release(k.t.Context(), "r", g.ID), lock.ErrNotHolder)
			k.same("Heartbeat after the release", k.beat())
		})
	}
}

// Nobody was told of the grant, so there is nobody to be graceful to.
func TestForcedBeforeAcquireReturns(t *testing.T) {
	bubble(t, func(k *kit) {
		q := k.request("r")
		k.f.on("ask", slow(time.Second))
		done := k.begins(k.t.Context(), q)
		k.f.force(q.ID, time.Hour)
		k.f.push(Push{Kind: Revoked, Ref: Ref{"r", q.ID}, Grace: time.Hour})
		k.same("Events", k.events())
		k.is("Acquire", (<-done).err, lock.ErrNotHolder)
		if k.f.has(q.ID) {
			t.Error("the hold is still in the store")
		}
		k.same("Heartbeat", k.beat())
	})
}

func TestForcedWaiterHasNoEvent(t *testing.T) {
	bubble(t, func(k *kit) {
		k.f.change(func() { k.f.taken["r"] = true })
		q := k.request("r")
		done := k.begins(k.t.Context(), q)
		k.f.change(func() { k.f.drop(q.ID); k.f.gone[q.ID] = true })
		k.f.push(Push{Kind: Revoked, Ref: Ref{"r", q.ID}, Grace: time.Second})
		k.same("Events", k.events())
		k.is("Acquire", (<-done).err, lock.ErrNotHolder)
	})
}

func TestReleasedHoldIsNotTold(t *testing.T) {
	bubble(t, func(k *kit) {
		g, g2 := k.acquire("r"), k.acquire("r2")
		for _, g := range []lock.Grant{g2, g} { // the first occupies the channel
			k.f.force(g.ID, time.Minute)
			k.f.push(Push{Kind: Revoked, Ref: Ref{g.Resource, g.ID}, Grace: time.Minute})
			synctest.Wait()
		}
		if err := k.Release(k.t.Context(), "r", g.ID); err != nil {
			t.Error(err)
		}
		k.same("Events", k.events(), revoked(g2, time.Minute))
	})
}

// What is under way may or may not be counted; but not for ever.
func TestRequestsUnderWay(t *testing.T) {
	bubble(t, func(k *kit) {
		k.acquire("r")
		k.f.on("ask", mute)
		_, err := k.Acquire(k.t.Context(), k.request("unsure"))
		k.is("Acquire", err, lock.ErrUnavailable)
		start := k.clock()
		for k.f.count("held") == 0 {
			if k.clock()-start > (maxInexact+1)*ttl {
				t.Fatal("never compared")
			}
			k.same("Heartbeat", k.beat())
			time.Sleep(ttl / 3)
		}
		if took := k.clock() - start; took < maxInexact*ttl {
			t.Errorf("compared after %s", took)
		}
	})
}

// What changes while a heartbeat is on its way is no reason to compare.
func TestChangesDuringAHeartbeat(t *testing.T) {
	for name, during := range map[string]func(k *kit, g lock.Grant) error{
		"a grant": func(k *kit, _ lock.Grant) error {
			_, err := k.Acquire(k.t.Context(), k.request("other"))
			return err
		},
		"a release": func(k *kit, g lock.Grant) error { return k.Release(k.t.Context(), g.Resource, g.ID) },
	} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(k *kit) {
				g := k.acquire("r")
				k.f.on("renew", slow(2*time.Second))
				beat := make(chan error, 1)
				go func() { _, err := k.Heartbeat(k.t.Context()); beat <- err }()
				synctest.Wait()
				if err := during(k, g); err != nil {
					t.Error(err)
				}
				if err := <-beat; err != nil {
					t.Error(err)
				}
				if n := k.f.count("held"); n != 0 {
					t.Errorf("compared %d times", n)
				}
			})
		})
	}
	t.Run("a release that is carried out, and not answered yet", func(t *testing.T) {
		bubble(t, func(k *kit) {
			g := k.acquire("r")
			k.f.on("withdraw", slow(2*time.Second))
			released := make(chan error, 1)
			go func() { released <- k.Release(k.t.Context(), "r", g.ID) }()
			synctest.Wait()
			k.same("Heartbeat", k.beat())
			if n := k.f.count("held"); n != 0 {
				t.Errorf("compared %d times", n)
			}
			if err := <-released; err != nil {
				t.Error(err)
			}
		})
	})
}

// A failover lost the acknowledgement: it is sent again.
func TestAcknowledgementForgottenByTheStore(t *testing.T) {
	bubble(t, func(k *kit) {
		g := k.acquire("r")
		k.f.force(g.ID, 5*time.Second)
		k.beat()
		k.events()
		k.f.force(g.ID, 5*time.Second) // as it was before
		k.beat()
		k.beat()
		if !k.f.entries[g.ID].acked {
			t.Errorf("acknowledged: %+v", k.f.acks)
		}
	})
}

// A shorter force arrives while the acknowledgement of the first is on its way.
func TestShorterForceDuringTheAcknowledgement(t *testing.T) {
	bubble(t, func(k *kit) {
		g := k.acquire("r")
		k.f.on("renew", once(slow(time.Second)))
		force := func(grace time.Duration) {
			k.f.force(g.ID, grace)
			k.f.push(Push{Kind: Revoked, Ref: Ref{"r", g.ID}, Grace: grace})
		}
		force(8 * time.Second)
		k.same("Events", k.events(), revoked(g, 8*time.Second))
		force(3 * time.Second)
		time.Sleep(2 * time.Second)
		k.same("Events", k.events(), revoked(g, 3*time.Second))
		if n := len(k.f.acks); n != 2 || k.f.acks[n-1].Grace != 3*time.Second {
			t.Errorf("acknowledged: %+v", k.f.acks)
		}
	})
}

// Of two heartbeats the later one counts, also where its answer comes first.
func TestHeartbeatsThatOverlap(t *testing.T) {
	bubble(t, func(k *kit) {
		k.f.on("renew", once(slow(3*time.Second)))
		first := make(chan struct{})
		go func() { k.beat(); close(first) }()
		time.Sleep(time.Second)
		k.beat()
		<-first
		k.mu.Lock()
		if k.renewed != time.Second {
			t.Errorf("renewed at %s", k.renewed)
		}
		k.mu.Unlock()
	})
}

// A revoked hold that only the store has is nobody's: it is released, where the
// store does not count, too.
func TestUnknownRevokedHoldIsReleased(t *testing.T) {
	bubble(t, func(k *kit) {
		stray := k.request("stray")
		if _, err := k.f.Ask(k.t.Context(), stray); err != nil {
			t.Fatal(err)
		}
		k.f.change(func() { k.f.entriesN = -1 })
		k.f.force(stray.ID, time.Hour)
		k.same("Heartbeat", k.beat())
		synctest.Wait()
		if k.f.has(stray.ID) {
			t.Error("it is still there")
		}
	})
}

func TestLeaseLostByPush(t *testing.T) {
	bubble(t, func(k *kit) {
		k.f.change(func() { k.f.taken["r"] = true })
		done := k.begins(k.t.Context(), k.request("r"))
		k.f.push(Push{Kind: Over})
		k.is("the waiter", (<-done).err, lock.ErrLeaseLost)
		_, err := k.Heartbeat(k.t.Context())
		k.is("Heartbeat", err, lock.ErrLeaseLost)
	})
}

func TestLeaseLost(t *testing.T) {
	bubble(t, func(k *kit) {
		k.f.change(func() { k.f.taken["r"] = true })
		done := k.begins(k.t.Context(), k.request("r"))
		k.f.change(func() { k.f.over = true })
		_, err := k.Heartbeat(k.t.Context())
		k.is("Heartbeat", err, lock.ErrLeaseLost)
		k.is("the waiter", (<-done).err, lock.ErrLeaseLost)
		k.f.change(func() { k.f.over = false })
		_, err = k.Heartbeat(k.t.Context())
		k.is("Heartbeat, final", err, lock.ErrLeaseLost)
		_, err = k.Acquire(k.t.Context(), k.request("s"))
		k.is("Acquire, final", err, lock.ErrLeaseLost)
		if err := k.Release(k.t.Context(), "r", "x"); !errors.Is(err, lock.ErrLeaseLost) {
			t.Errorf("Release: %v", err)
		}
	})
}

// Law 8: an acknowledgement that hangs does not keep back the news that come
// after it.
func TestNewsWhileAnAcknowledgementHangs(t *testing.T) {
	bubble(t, func(k *kit) {
		a, b := k.acquire("a"), k.acquire("b")
		force := func(g lock.Grant) {
			k.f.force(g.ID, time.Second)
			k.f.push(Push{Kind: Revoked, Ref: Ref{g.Resource, g.ID}, Grace: time.Second})
		}
		k.f.on("renew", hang)
		force(a)
		k.same("Events", k.events(), revoked(a, time.Second))
		force(b)
		k.same("Events, while the acknowledgement hangs", k.events(), revoked(b, time.Second))
	})
}

// Law 2: what nobody was told of is not acknowledged, not even by a heartbeat.
func TestOnlyWhatWasToldIsAcknowledged(t *testing.T) {
	bubble(t, func(k *kit) {
		g := k.acquire("r")
		k.f.force(g.ID, time.Second)
		k.f.push(Push{Kind: Revoked, Ref: Ref{"r", g.ID}, Grace: time.Second}) // nobody reads it
		synctest.Wait()
		k.f.on("renew", hang)
		ctx, cancel := context.WithTimeout(k.t.Context(), ttl/3)
		defer cancel()
		beat := make(chan []lock.Event, 1)
		go func() { news, _ := k.Heartbeat(ctx); beat <- news }()
		synctest.Wait()
		if acks := k.f.acknowledged(); len(acks) != 0 {
			t.Errorf("acknowledged before it was told: %+v", acks)
		}
		k.same("Heartbeat", <-beat, revoked(g, time.Second))
		synctest.Wait()
		if acks := k.f.acknowledged(); len(acks) != 1 {
			t.Errorf("acknowledged after it was told: %+v", acks)
		}
	})
}

// A forced release with grace becomes one without, and the push of that is lost:
// the next heartbeat finds that others may have the lock already. Law 1.
func TestForcedAtOnceAfterGraceWithoutPush(t *testing.T) {
	bubble(t, func(k *kit) {
		g := k.acquire("r")
		k.f.force(g.ID, time.Hour)
		k.same("the first", k.beat(), revoked(g, time.Hour))
		k.f.force(g.ID, 0)
		time.Sleep(time.Second)
		for range 2 {
			k.same("Heartbeat", k.beat(), revoked(g, 0))
		}
		if n := k.f.count("held"); n != 1 {
			t.Errorf("compared %d times, want once", n)
		}
	})
}

// A hold that is taken away at once, with grace 0, is told by heartbeats until the
// lease has acknowledged that; one that the lease does not know is given up.
func TestTakenAwayAtOnceIsAcknowledged(t *testing.T) {
	bubble(t, func(k *kit) {
		g := k.acquire("r")
		k.f.force(g.ID, 0)
		stray := Ref{"stray", lock.NewHoldID()}
		k.f.change(func() { k.f.told = []Revocation{{Ref: Ref{g.Resource, g.ID}}, {Ref: stray}} })
		k.same("Heartbeat", k.beat(), revoked(g, 0))
		synctest.Wait()
		if acks := k.f.acknowledged(); len(acks) != 1 || acks[0].ID != g.ID || acks[0].Grace != 0 {
			t.Errorf("acknowledged %+v, want the hold that was taken away", acks)
		}
		k.f.change(func() {
			if n := len(k.f.ended); n != 1 || k.f.ended[0].Ref != stray || !k.f.ended[0].Unsure {
				t.Errorf("withdrawn %+v, want the one that the lease does not know", k.f.ended)
			}
		})
	})
}
