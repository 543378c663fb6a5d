package leasekit

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/locksidecar/locksidecar/lock"
)

// Law 4, with a second fault: the new server does not answer to the comparison. A
// heartbeat that is sent beside the one that compares does not count before either.
func TestHeartbeatBesideAComparison(t *testing.T) {
	bubble(t, func(k *kit) {
		lost := k.acquire("lost")
		k.f.lose(lost.ID)
		k.f.change(func() { k.f.stranger, k.f.entriesN = true, -1 })
		k.f.on("held", hang)
		beat := func() <-chan error {
			done := make(chan error, 1)
			go func() {
				ctx, cancel := context.WithTimeout(k.t.Context(), ttl/3)
				defer cancel()
				_, err := k.Heartbeat(ctx)
				done <- err
			}()
			return done
		}
		first := beat()
		time.Sleep(ttl / 6)
		second := beat()
		k.is("the heartbeat that compares", <-first, lock.ErrUnavailable)
		k.is("the one beside it", <-second, lock.ErrUnavailable)
		k.f.on("held", nil)
		k.same("Heartbeat", k.beat(), vanished(lost))
		k.same("the next", k.beat())
	})
}

// Of two heartbeats that have reason to compare one does, and both count.
func TestOneComparisonForAll(t *testing.T) {
	bubble(t, func(k *kit) {
		k.acquire("r")
		k.f.change(func() { k.f.stranger = true })
		k.f.on("held", slow(time.Second))
		first := make(chan struct{})
		go func() { k.beat(); close(first) }()
		synctest.Wait()
		k.beat()
		<-first
		if n := k.f.count("held"); n != 1 {
			t.Errorf("compared %d times", n)
		}
	})
}

// The store says in the middle of a comparison that the lease is over: nobody
// waits on.
func TestLeaseLostInAComparison(t *testing.T) {
	bubble(t, func(k *kit) {
		k.f.change(func() { k.f.taken["r"], k.f.stranger = true, true })
		done := k.begins(k.t.Context(), k.request("r"))
		k.f.on("held", func(_ context.Context, do func()) error {
			k.f.change(func() { k.f.over = true })
			do()
			return nil
		})
		start := k.clock()
		_, err := k.Heartbeat(k.t.Context())
		k.is("Heartbeat", err, lock.ErrLeaseLost)
		r := <-done
		k.is("the waiter", r.err, lock.ErrLeaseLost)
		if r.at != start {
			t.Errorf("the waiter ended %s later", r.at-start)
		}
	})
}

// What only the store has cannot be released, because its row is locked: the lease
// lives on, and it is released later.
func TestStrayHoldThatCannotBeReleased(t *testing.T) {
	bubble(t, func(k *kit) {
		k.acquire("r")
		stray := k.request("stray")
		if _, err := k.f.Ask(k.t.Context(), stray); err != nil {
			t.Fatal(err)
		}
		k.f.on("withdraw", func(ctx context.Context, _ func()) error { return hang(ctx, func() {}) })
		for range 4 {
			start := k.clock()
			k.same("Heartbeat", k.beat())
			if took := k.clock() - start; took > 0 {
				t.Errorf("Heartbeat took %s", took)
			}
			time.Sleep(ttl / 3)
		}
		k.f.on("withdraw", nil)
		time.Sleep(ttl)
		k.beat()
		synctest.Wait()
		if k.f.has(stray.ID) {
			t.Error("it is still there")
		}
	})
}

// The store has lost one hold, and has another that is none: the numbers are equal.
func TestLostAndStrayCancelOut(t *testing.T) {
	bubble(t, func(k *kit) {
		lost, kept := k.acquire("lost"), k.acquire("kept")
		stray := k.request("stray")
		k.f.lose(lost.ID)
		if _, err := k.f.Ask(k.t.Context(), stray); err != nil {
			t.Fatal(err)
		}
		var news []lock.Event
		for start := k.clock(); len(news) == 0 && k.clock()-start < (maxCounted+1)*ttl; time.Sleep(ttl / 3) {
			news = k.beat()
		}
		k.same("Heartbeat", news, vanished(lost))
		synctest.Wait()
		if k.f.has(stray.ID) || !k.f.has(kept.ID) {
			t.Error("the stray hold is still there, or the other is not")
		}
		for range 3 * maxCounted {
			k.same("a later one", k.beat())
			time.Sleep(ttl / 3)
		}
		if n := k.f.count("held"); n > 2 {
			t.Errorf("compared %d times", n)
		}
	})
}

// A lease that has nothing compares nothing.
func TestNothingIsComparedOfNothing(t *testing.T) {
	bubble(t, func(k *kit) {
		for range 6 * maxCounted {
			k.beat()
			time.Sleep(ttl / 3)
		}
		if n := k.f.count("held"); n > 0 {
			t.Errorf("compared %d times", n)
		}
	})
}

// A new server has the hold as a waiter still, and others in front of it: it is lost,
// and its place is given up.
func TestHoldThatWaitsOnTheNewServer(t *testing.T) {
	bubble(t, func(k *kit) {
		lost, kept := k.acquire("r"), k.acquire("kept")
		k.f.change(func() {
			k.f.entries[lost.ID].held, k.f.stranger = false, true
			k.f.order = append(k.f.order, lost.ID)
		})
		k.f.on("waiting", once(down))
		if _, err := k.Heartbeat(k.t.Context()); !errors.Is(err, lock.ErrUnavailable) {
			t.Errorf("Heartbeat that cannot compare: %v", err)
		}
		k.same("Heartbeat", k.beat(), vanished(lost))
		synctest.Wait()
		if k.f.has(lost.ID) || !k.f.has(kept.ID) {
			t.Error("its place is still there, or the other hold is not")
		}
		k.same("a later one", k.beat())
		if n := k.f.count("waiting"); n != 2 {
			t.Errorf("asked %d times what waits, want twice: the first had no answer", n)
		}
	})
}

// Law 4: what another server knows is compared before the heartbeat counts, and
// again if that failed.
func TestStrangerIsComparedFirst(t *testing.T) {
	bubble(t, func(k *kit) {
		kept, lost := k.acquire("kept"), k.acquire("lost")
		_ = kept
		k.f.lose(lost.ID)
		k.f.change(func() { k.f.stranger, k.f.entriesN = true, -1 })
		k.f.on("held", down)
		time.Sleep(ttl / 2)
		for range 2 {
			news, err := k.Heartbeat(k.t.Context())
			k.is("Heartbeat", err, lock.ErrUnavailable)
			k.same("Heartbeat", news)
		}
		time.Sleep(ttl / 2)
		k.mu.Lock()
		if k.proven() {
			t.Error("a heartbeat that did not compare renews the lease")
		}
		k.mu.Unlock()
		k.f.on("held", nil)
		k.same("Heartbeat", k.beat(), vanished(lost))
		k.same("the next", k.beat())
		if n := k.f.count("held"); n != 3 {
			t.Errorf("compared %d times", n)
		}
		k.is("Release of what vanished", k.Release(k.t.Context(), "lost", lost.ID), lock.ErrNotHolder)
	})
}

func TestCountThatDiffersIsCompared(t *testing.T) {
	bubble(t, func(k *kit) {
		lost, kept := k.acquire("lost"), k.acquire("kept")
		k.same("Heartbeat", k.beat())
		if n := k.f.count("held"); n != 0 {
			t.Errorf("compared %d times without a reason", n)
		}
		k.f.lose(lost.ID)
		k.same("one too few", k.beat(), vanished(lost))
		k.same("the next", k.beat())
		// A copy of a request that was answered and released arrives.
		stray := k.request("stray")
		if _, err := k.f.Ask(k.t.Context(), stray); err != nil {
			t.Fatal(err)
		}
		k.f.on("withdraw", once(down))
		k.same("one too many", k.beat())
		synctest.Wait()
		k.same("that could not clean up", k.beat())
		synctest.Wait()
		if k.f.has(stray.ID) || !k.f.has(kept.ID) {
			t.Error("the store has the stray hold or lacks the other")
		}
		if n := k.f.count("held"); n != 3 {
			t.Errorf("compared %d times", n)
		}
	})
}

// A hold that changes while memories are compared has not vanished.
func TestChangeDuringAComparison(t *testing.T) {
	bubble(t, func(k *kit) {
		k.f.change(func() { k.f.taken["r"] = true })
		q := k.request("r")
		done := k.begins(k.t.Context(), q)
		k.f.lose(q.ID) // a failover lost the place
		k.f.on("held", slow(2*time.Second))
		k.f.change(func() { k.f.stranger = true })
		beat := make(chan []lock.Event, 1)
		go func() { beat <- k.beat() }()
		synctest.Wait()
		k.f.change(func() { k.f.free("r") })
		k.f.push(Push{Kind: Woken, Ref: Ref{ID: q.ID}}) // it asks again, and is granted
		if r := <-done; r.err != nil {
			t.Error(r.err)
		}
		k.same("Heartbeat", <-beat)
		k.same("the next", k.beat())
	})
}

// Two faults: a grant of the old server is on its way while the new one answers, and
// its memory is compared without it. It is asked for again before anybody has it.
func TestGrantOfTheOldServer(t *testing.T) {
	bubble(t, func(k *kit) {
		k.f.on("ask", once(slow(2*time.Second)))
		q := k.request("r")
		done := k.begins(k.t.Context(), q)
		k.f.lose(q.ID)
		k.f.change(func() { k.f.stranger = true })
		k.same("Heartbeat", k.beat())
		r := <-done
		if r.err != nil {
			t.Fatal(r.err)
		}
		if !k.f.has(q.ID) {
			t.Error("Acquire gives a grant that the new server does not have")
		}
		k.same("Heartbeat after the grant", k.beat())
	})
}

// Two faults: a grant of the old server has come by push, and its Acquire has not gone on yet, while the new one answers. There the
// request waits still, behind somebody else. It is asked for again before anybody has it.
func TestPushOfTheOldServer(t *testing.T) {
	bubble(t, func(k *kit) {
		k.f.change(func() { k.f.taken["r"] = true })
		q, _ := k.waits(k.t.Context())
		k.f.push(Push{Kind: Granted, Ref: Ref{ID: q.ID}, Fence: 7})
		k.f.change(func() { k.f.stranger = true })
		k.same("Heartbeat", k.beat())
		_, err := k.Acquire(k.t.Context(), q)
		k.is("Acquire of what waits on the new server", err, lock.ErrWaiting)
		asked := k.f.count("ask")
		k.f.change(func() { k.f.free("r") })
		k.f.push(Push{Kind: Granted, Ref: Ref{ID: q.ID}, Fence: 9})
		g, err := k.Acquire(k.t.Context(), q)
		k.is("Acquire of what the new server has granted", err, nil)
		if g.Fence != 9 || k.f.count("ask") != asked {
			t.Errorf("fence %d, asked %d times more", g.Fence, k.f.count("ask")-asked)
		}
	})
}

// A downgrade has no answer, at the only server that there was. The next heartbeat counts, though there is none to a comparison either.
func TestHeartbeatAfterADowngradeWithoutAnswer(t *testing.T) {
	bubble(t, func(k *kit) {
		g := k.acquire("r")
		k.f.on("downgrade", hang)
		k.f.on("held", hang)
		ctx, cancel := context.WithTimeout(k.t.Context(), time.Second)
		defer cancel()
		k.is("Downgrade", k.Downgrade(ctx, g.Resource, g.ID), lock.ErrUnavailable)
		ctx, cancel = context.WithTimeout(k.t.Context(), ttl/3)
		defer cancel()
		_, err := k.Heartbeat(ctx)
		k.is("Heartbeat", err, nil)
	})
}

// A hold is downgraded while the memories are compared, so it is left out. That has no answer, or the one of the old server, which may be that there is no
// downgrade. The new one does not have the hold, or has it as a waiter still, and the next heartbeat tells.
func TestDowngradeBesideAComparison(t *testing.T) {
	const late = 2 * time.Second
	silent := func(ctx context.Context, _ func()) error { return hang(ctx, func() {}) }
	for where, waits := range map[string]bool{"gone": false, "waiting": true} {
		for what, c := range map[string]struct {
			before bool
			answer fault
			err    error
			stays  bool
		}{
			"sent before it":               {true, silent, lock.ErrUnavailable, false},
			"sent meanwhile":               {false, silent, lock.ErrUnavailable, false},
			"answered by the one that was": {true, slow(late), nil, false},
			"refused by the one that was":  {true, slow(late), lock.ErrUnsupported, true},
		} {
			t.Run(where+", "+what, func(t *testing.T) {
				bubble(t, func(k *kit) {
					lost := k.acquire("r")
					k.f.change(func() { k.f.stays = c.stays })
					k.f.on("downgrade", c.answer)
					k.f.on("held", slow(late/2))
					downgraded, compared := make(chan error, 1), make(chan []lock.Event, 1)
					downgrade := func() {
						go func() {
							ctx, cancel := context.WithTimeout(k.t.Context(), late)
							defer cancel()
							downgraded <- k.Downgrade(ctx, lost.Resource, lost.ID)
						}()
						synctest.Wait()
					}
					if c.before {
						downgrade()
					}
					if waits {
						k.f.change(func() { k.f.entries[lost.ID].held = false })
					} else {
						k.f.lose(lost.ID)
					}
					k.f.change(func() { k.f.stranger = true })
					go func() { compared <- k.beat() }()
					synctest.Wait()
					if !c.before {
						downgrade()
					}
					k.same("Heartbeat that leaves it out", <-compared)
					k.is("Downgrade", <-downgraded, c.err)
					k.same("the next", k.beat(), vanished(lost))
					k.same("a later one", k.beat())
				})
			})
		}
	}
}

// Two faults: the store is slow, and another server has answered. An app does not wait so long for its downgrades, again and again. What others
// ask for is not asked for again each time.
func TestGrantBesideDowngradesWithoutAnswer(t *testing.T) {
	bubble(t, func(k *kit) {
		held := k.acquire("held")
		k.f.on("downgrade", hang)
		k.f.on("held", slow(time.Second))
		k.f.on("ask", slow(1500*time.Millisecond))
		ctx, cancel := context.WithTimeout(k.t.Context(), 30*time.Second)
		defer cancel()
		downgraded := make(chan struct{})
		go func() {
			defer close(downgraded)
			for ctx.Err() == nil {
				brief, cancel := context.WithTimeout(ctx, time.Second)
				k.is("Downgrade", k.Downgrade(brief, held.Resource, held.ID), lock.ErrUnavailable)
				cancel()
			}
		}()
		synctest.Wait()
		k.f.change(func() { k.f.stranger = true })
		k.same("Heartbeat", k.beat())
		began := k.clock()
		r := <-k.begins(ctx, k.request("r"))
		if took := r.at - began; r.err != nil || took > 2*time.Second {
			t.Errorf("granted after %s: %v", took, r.err)
		}
		cancel()
		<-downgraded
	})
}
