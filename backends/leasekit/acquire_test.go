package leasekit

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/locksidecar/locksidecar/lock"
)

func TestPushWakes(t *testing.T) {
	for name, p := range map[string]Push{
		"Woken":   {Kind: Woken},
		"Missed":  {Kind: Missed},
		"Granted": {Kind: Granted, Fence: 7},
	} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(k *kit) {
				k.f.change(func() { k.f.taken["r"] = true })
				q := k.request("r")
				done := k.begins(k.t.Context(), q)
				time.Sleep(time.Millisecond)
				k.f.change(func() { k.f.free("r") })
				p := p
				if p.Kind != Missed {
					p.ID = q.ID
				}
				k.f.push(p)
				r := <-done
				if r.err != nil || r.at != time.Millisecond {
					t.Errorf("Acquire: %+v", r)
				}
				want := 2
				if p.Kind == Granted {
					want = 1
				}
				if n := k.f.count("ask"); n != want {
					t.Errorf("asked %d times, want %d", n, want)
				}
			})
		})
	}
}

// The push arrives before the answer that says "queued".
func TestPushOvertakesTheAnswer(t *testing.T) {
	for _, kind := range []PushKind{Woken, Granted, Missed} {
		bubble(t, func(k *kit) {
			k.f.change(func() { k.f.taken["r"] = true })
			k.f.on("ask", once(slow(time.Second)))
			q := k.request("r")
			done := k.begins(k.t.Context(), q)
			k.f.change(func() { k.f.free("r") })
			k.f.push(Push{Kind: kind, Ref: Ref{ID: q.ID}, Fence: 1})
			if r := <-done; r.err != nil || r.at != time.Second {
				t.Errorf("%d: Acquire: %+v", kind, r)
			}
		})
	}
}

func TestRetryFindsTheGrantAndThePlace(t *testing.T) {
	bubble(t, func(k *kit) {
		q := k.request("r")
		k.f.on("ask", once(mute))
		_, err := k.Acquire(k.t.Context(), q)
		k.is("Acquire", err, lock.ErrUnavailable)
		g, err := k.Acquire(k.t.Context(), q)
		if err != nil || g.Fence != 1 {
			t.Errorf("Acquire again: %+v, %v", g, err)
		}
		if again, err := k.Acquire(k.t.Context(), q); err != nil || again != g {
			t.Errorf("Acquire of what is held: %+v, %v", again, err)
		}
		wrong := q
		wrong.Mode = lock.Shared
		_, err = k.Acquire(k.t.Context(), wrong)
		k.is("another mode", err, lock.ErrInvalid)

		w := k.request("r")
		k.f.on("ask", once(mute))
		_, err = k.Acquire(k.t.Context(), w)
		k.is("Acquire of a waiter", err, lock.ErrUnavailable)
		done := k.begins(k.t.Context(), w)
		if err := k.Release(k.t.Context(), "r", g.ID); err != nil {
			t.Error(err)
		}
		if r := <-done; r.err != nil {
			t.Error(r.err)
		}
		k.same("Heartbeat", k.beat())
		if n := k.f.count("held"); n != 0 {
			t.Errorf("compared %d times", n)
		}
	})
}

func TestTryLeavesNothing(t *testing.T) {
	bubble(t, func(k *kit) {
		k.f.change(func() { k.f.taken["r"] = true })
		q := k.request("r")
		q.Try = true
		_, err := k.Acquire(k.t.Context(), q)
		k.is("try", err, lock.ErrHeld)
		k.mu.Lock()
		if len(k.entries) != 0 {
			t.Errorf("%d entries are left", len(k.entries))
		}
		k.mu.Unlock()
	})
}

// TestTryAfterALostAnswer: a try whose first answer was lost, and that finds a hold that another sidecar may have parked, is refused.
// It does not ask again by the id that was given up with it: the store would say that somebody has taken it away.
func TestTryAfterALostAnswer(t *testing.T) {
	bubble(t, func(k *kit) {
		k.f.change(func() {
			k.f.taken["r"] = true
			k.f.holders = []lock.Holding{{ID: "parked", Lease: "another", Cohort: true}}
		})
		q := k.request("r")
		q.Try = true
		k.f.on("ask", once(down))
		_, err := k.Acquire(k.t.Context(), q)
		k.is("the first", err, lock.ErrUnavailable)
		_, err = k.Acquire(k.t.Context(), q)
		k.is("the second", err, lock.ErrHeld)
		if n := k.f.count("ask"); n != 2 {
			t.Errorf("asked %d times", n)
		}
		q = k.request("r")
		q.Try = true
		_, err = k.Acquire(k.t.Context(), q)
		k.is("another", err, lock.ErrHeld)
		if n := k.f.count("ask"); n <= 3 {
			t.Error("it did not wait for what may be parked")
		}
	})
}

func TestGiveUp(t *testing.T) {
	bubble(t, func(k *kit) {
		k.f.change(func() { k.f.taken["r"] = true })
		ctx, cancel := context.WithTimeout(k.t.Context(), time.Second)
		defer cancel()
		q := k.request("r")
		_, err := k.Acquire(ctx, q)
		k.is("Acquire", err, context.DeadlineExceeded)
		var held *lock.HeldError
		if !errors.As(err, &held) || held.Status.Resource != "r" || k.f.has(q.ID) {
			t.Errorf("Acquire: %v; in the store: %v", err, k.f.has(q.ID))
		}
	})
}

// The store falls silent during the wait: the caller is not held up, knows that
// the outcome is unknown, and a copy of the request that is still on its way finds
// that it was given up.
func TestGiveUpWithoutAnswer(t *testing.T) {
	bubble(t, func(k *kit) {
		k.f.change(func() { k.f.taken["r"] = true })
		ctx, cancel := context.WithTimeout(k.t.Context(), time.Second)
		defer cancel()
		q := k.request("r")
		done := k.begins(ctx, q)
		k.f.on("withdraw", hang)
		r := <-done
		k.is("Acquire", r.err, lock.ErrUnavailable)
		if late := r.at - time.Second; late > giveUpTime {
			t.Errorf("the wait ended %s late", late)
		}
		k.f.on("withdraw", nil)
		if err := k.Release(k.t.Context(), "r", q.ID); err != nil && !errors.Is(err, lock.ErrNotHolder) {
			t.Errorf("Release: %v", err)
		}
		if w := k.f.ended[len(k.f.ended)-1]; !w.Unsure {
			t.Errorf("the release that follows is sent as %+v", w)
		}
		_, err := k.f.Ask(k.t.Context(), q) // the late copy
		k.is("the late copy", err, lock.ErrNotHolder)
		k.same("Heartbeat", k.beat())
	})
}

// A request is given up, and the answer to that is lost; then it is asked for again, when
// the lock is free. It is not granted: a copy of the giving up may still be on its way, and
// would end the hold that the caller relies on.
func TestAskedForWhileItIsGivenUp(t *testing.T) {
	bubble(t, func(k *kit) {
		k.f.change(func() { k.f.taken["r"] = true })
		q := k.request("r")
		q.Try = true
		k.f.on("ask", once(mute))
		_, err := k.Acquire(k.t.Context(), q)
		k.is("the first try", err, lock.ErrUnavailable)
		var copied func() // of the giving up
		k.f.on("withdraw", func(_ context.Context, do func()) error { copied = do; return errSilent })
		_, err = k.Acquire(k.t.Context(), q)
		k.is("the second try", err, lock.ErrUnavailable)
		k.f.change(func() { k.f.taken["r"] = false })
		asked := k.f.count("ask")
		_, err = k.Acquire(k.t.Context(), q)
		k.is("the third try, in the same silence", err, lock.ErrUnavailable)
		k.f.on("withdraw", nil)
		_, err = k.Acquire(k.t.Context(), q)
		k.is("the fourth try", err, lock.ErrHeld)
		copied()
		if k.f.count("ask") != asked {
			t.Error("it was asked for again")
		}
		k.same("Heartbeat", k.beat())
	})
}

// A release takes a waiter out of the queue, and its Acquire does not queue again.
func TestReleaseEndsTheWait(t *testing.T) {
	bubble(t, func(k *kit) {
		k.f.change(func() { k.f.taken["r"] = true })
		q := k.request("r")
		done := k.begins(k.t.Context(), q)
		if err := k.Release(k.t.Context(), "r", q.ID); err != nil {
			t.Errorf("Release: %v", err)
		}
		k.is("Acquire", (<-done).err, lock.ErrNotHolder)
		if k.f.has(q.ID) {
			t.Error("it is in the queue again")
		}
	})
}

// A failover lost the place in the queue: the waiter asks for another.
func TestVanishedWaiterAsksAgain(t *testing.T) {
	bubble(t, func(k *kit) {
		k.f.change(func() { k.f.taken["r"] = true })
		q := k.request("r")
		done := k.begins(k.t.Context(), q)
		k.f.lose(q.ID)
		k.same("Heartbeat", k.beat())
		synctest.Wait()
		if !k.f.has(q.ID) {
			t.Fatal("it is not in the queue")
		}
		k.f.change(func() { k.f.free("r") })
		if r := <-done; r.err != nil {
			t.Error(r.err)
		}
	})
}

func TestReleaseReplyLost(t *testing.T) {
	bubble(t, func(k *kit) {
		g := k.acquire("r")
		k.f.on("withdraw", once(mute))
		k.is("Release", k.Release(k.t.Context(), "r", g.ID), lock.ErrUnavailable)
		k.is("Release again", k.Release(k.t.Context(), "r", g.ID), lock.ErrNotHolder)
		k.is("on another resource", k.Release(k.t.Context(), "s", g.ID), lock.ErrNotHolder)
	})
}

// Proven is only what the last heartbeats show.
func TestProven(t *testing.T) {
	bubble(t, func(k *kit) {
		a, b, c := k.acquire("a"), k.acquire("b"), k.acquire("c")
		release := func(g lock.Grant) bool {
			if err := k.Release(k.t.Context(), g.Resource, g.ID); err != nil {
				t.Errorf("Release: %v", err)
			}
			return k.f.ended[len(k.f.ended)-1].Proven
		}
		k.f.on("renew", slow(3*time.Second))
		k.beat() // counts from before it was sent
		time.Sleep(ttl - 3*time.Second - time.Nanosecond)
		if !release(a) {
			t.Error("the lease is not proven within its TTL")
		}
		time.Sleep(time.Nanosecond)
		if release(b) {
			t.Error("the lease is proven after its TTL")
		}
		k.f.on("renew", nil)
		k.beat()
		k.f.on("downgrade", down)
		k.is("Downgrade", k.Downgrade(k.t.Context(), "c", c.ID), lock.ErrUnavailable)
		if release(c) {
			t.Error("a hold with a request unanswered is proven")
		}
	})
}

func TestDowngrade(t *testing.T) {
	bubble(t, func(k *kit) {
		g := k.acquire("r")
		if err := k.Downgrade(k.t.Context(), "r", g.ID); err != nil {
			t.Errorf("Downgrade: %v", err)
		}
		k.f.lose(g.ID)
		k.is("Downgrade of what is gone", k.Downgrade(k.t.Context(), "r", g.ID), lock.ErrNotHolder)
		k.same("Heartbeat", k.beat())
	})
}

// A downgrade that the store does not have leaves the hold as it was.
func TestDowngradeUnsupported(t *testing.T) {
	bubble(t, func(k *kit) {
		q := k.request("r")
		k.f.change(func() { k.f.stays = true })
		if _, err := k.Acquire(k.t.Context(), q); err != nil {
			t.Fatal(err)
		}
		k.is("Downgrade", k.Downgrade(k.t.Context(), "r", q.ID), lock.ErrUnsupported)
		if _, err := k.Acquire(k.t.Context(), q); err != nil {
			t.Errorf("a retry of the request for the hold: %v", err)
		}
	})
}

// A grant that has come by push when the lease ends is worth nothing.
func TestGrantAtTheEnd(t *testing.T) {
	bubble(t, func(k *kit) {
		k.f.change(func() { k.f.taken["r"] = true })
		q := k.request("r")
		done := k.begins(k.t.Context(), q)
		k.mu.Lock() // both come before the waiter goes on
		e := k.entries[q.ID]
		e.pushed = &Push{Kind: Granted, Ref: Ref{ID: q.ID}, Fence: 1}
		e.wake()
		k.loseOnce.Do(func() { close(k.lost) }) // as Lose does, which takes the mutex
		k.mu.Unlock()
		k.is("Acquire", (<-done).err, lock.ErrLeaseLost)
	})
}

// Close while everything is under way ends everything, with nobody left behind.
func TestCloseDuringEverything(t *testing.T) {
	bubble(t, func(k *kit) {
		k.f.change(func() { k.f.taken["queue"] = true })
		forced := k.acquire("forced")
		k.f.force(forced.ID, time.Minute)
		k.f.push(Push{Kind: Revoked, Ref: Ref{"forced", forced.ID}, Grace: time.Minute}) // nobody reads it
		lost := k.acquire("lost")
		var wg sync.WaitGroup
		call := func(what string, f func() error) {
			wg.Go(func() {
				if err := f(); !errors.Is(err, lock.ErrLeaseLost) {
					t.Errorf("%s: %v", what, err)
				}
			})
		}
		for i := range 3 {
			q := k.request("queue")
			call(fmt.Sprint("waiter ", i), func() error { _, err := k.Acquire(k.t.Context(), q); return err })
		}
		synctest.Wait()
		k.f.lose(lost.ID)
		k.f.change(func() { k.f.stranger = true })
		late := func(_ context.Context, do func()) error { time.Sleep(time.Second); do(); return nil }
		for _, op := range []string{"ask", "withdraw", "held", "downgrade"} {
			k.f.on(op, late)
		}
		call("Acquire", func() error { _, err := k.Acquire(k.t.Context(), k.request("free")); return err })
		call("Heartbeat", func() error { _, err := k.Heartbeat(k.t.Context()); return err })
		call("Downgrade", func() error { return k.Downgrade(k.t.Context(), "lost", lost.ID) })
		synctest.Wait()
		if err := k.Close(k.t.Context()); err != nil {
			t.Errorf("Close: %v", err)
		}
		if _, open := <-k.Events(); open {
			t.Error("Events is open")
		}
		k.is("Close again", k.Close(k.t.Context()), lock.ErrLeaseLost)
		wg.Wait()
		<-k.Lost()
	})
}

// A copy of a request that was repeated with success arrives after the release.
func TestLateCopyOfARepeatedRequest(t *testing.T) {
	bubble(t, func(k *kit) {
		q := k.request("r")
		k.f.on("ask", once(down))
		_, err := k.Acquire(k.t.Context(), q)
		k.is("Acquire", err, lock.ErrUnavailable)
		if _, err := k.Acquire(k.t.Context(), q); err != nil {
			t.Fatal(err)
		}
		k.same("Heartbeat", k.beat())
		if err := k.Release(k.t.Context(), "r", q.ID); err != nil {
			t.Error(err)
		}
		_, err = k.f.Ask(k.t.Context(), q)
		k.is("the late copy", err, lock.ErrNotHolder)
	})
}

// The same after a retry that was refused; where that cannot be told to the store,
// the outcome is unknown.
func TestLateCopyOfARefusedRequest(t *testing.T) {
	bubble(t, func(k *kit) {
		q := k.request("r")
		q.Try = true
		k.f.on("ask", once(down))
		k.f.on("withdraw", once(down))
		_, err := k.Acquire(t.Context(), q)
		k.is("Acquire without an answer", err, lock.ErrUnavailable)
		k.f.change(func() { k.f.taken["r"] = true })
		_, err = k.Acquire(t.Context(), q)
		k.is("a retry that cannot be given up", err, lock.ErrUnavailable)
		_, err = k.Acquire(t.Context(), q)
		k.is("a retry", err, lock.ErrHeld)
		k.f.change(func() { delete(k.f.taken, "r") })
		_, err = k.f.Ask(t.Context(), q)
		k.is("the late copy", err, lock.ErrNotHolder)
	})
}

// A waiter is granted, and the grant is forced at once before it has gone on: it
// does not stand in the queue a second time.
func TestForcedAtOnceBeforeAcquireReturns(t *testing.T) {
	bubble(t, func(k *kit) {
		k.f.change(func() { k.f.taken["r"] = true })
		k.f.on("ask", once(slow(time.Second)))
		q := k.request("r")
		done := k.begins(k.t.Context(), q)
		k.f.change(func() { k.f.free("r") })
		k.f.push(Push{Kind: Granted, Ref: Ref{ID: q.ID}, Fence: 1})
		k.f.force(q.ID, 0)
		k.f.change(func() { k.f.taken["r"] = true }) // by the next one
		k.f.push(Push{Kind: Revoked, Ref: Ref{"r", q.ID}})
		time.Sleep(2 * time.Second)
		if k.f.has(q.ID) {
			t.Error("it is in the queue again")
		}
		k.f.change(func() { k.f.free("r") })
		r := <-done
		k.is("Acquire", r.err, lock.ErrNotHolder)
		if r.at != time.Second {
			t.Errorf("Acquire returned at %s", r.at)
		}
	})
}

// Promise 8: all pushes are lost, and a waiter finds its grant by asking, not later
// than Recheck.
func TestLostPush(t *testing.T) {
	bubble(t, func(k *kit) {
		k.f.change(func() { k.f.taken["r"] = true })
		for range 50 {
			start := k.clock()
			q := k.request("r")
			done := k.begins(k.t.Context(), q)
			k.f.change(func() { k.f.free("r") })
			r := <-done
			if r.err != nil || r.at-start > RecheckOf(ttl) {
				t.Errorf("after %s: %v", r.at-start, r.err)
			}
			k.f.change(func() { delete(k.f.entries, q.ID) })
		}
	})
}
