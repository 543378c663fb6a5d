package leasekit

import (
	"context"
	"sync/atomic"
	"testing"
	"testing/synctest"

	"github.com/locksidecar/locksidecar/lock"
)

// counter is a bell that counts how often it was rung.
type counter struct{ n atomic.Int32 }

func (c *counter) Ring() { c.n.Add(1) }

// waits begins a request with a bell, which must wait.
func (k *kit) waits(ctx context.Context) (lock.Request, *counter) {
	k.t.Helper()
	bell := &counter{}
	q := k.request("r")
	q.Bell = bell
	_, err := k.Acquire(ctx, q)
	k.is("Acquire", err, lock.ErrWaiting)
	return q, bell
}

// A request with a bell waits without its Acquire: that goes on when the bell has rung, and
// not before, however often it is called.
func TestBell(t *testing.T) {
	bubble(t, func(k *kit) {
		k.f.change(func() { k.f.taken["r"] = true })
		q, bell := k.waits(k.t.Context())
		asked := k.f.count("ask")
		for range 3 {
			_, err := k.Acquire(k.t.Context(), q)
			k.is("Acquire that nothing has rung for", err, lock.ErrWaiting)
		}
		if bell.n.Load() != 0 || k.f.count("ask") != asked {
			t.Errorf("rung %d times, asked %d times more", bell.n.Load(), k.f.count("ask")-asked)
		}
		k.f.change(func() { k.f.free("r") })
		k.f.push(Push{Kind: Granted, Ref: Ref{ID: q.ID}, Fence: 7})
		synctest.Wait()
		if bell.n.Load() != 1 {
			t.Errorf("rung %d times for a grant", bell.n.Load())
		}
		g, err := k.Acquire(k.t.Context(), q)
		k.is("Acquire", err, nil)
		if g.Fence != 7 || k.f.count("ask") != asked {
			t.Errorf("fence %d, asked %d times more", g.Fence, k.f.count("ask")-asked)
		}
		k.is("Release", k.Release(k.t.Context(), "r", g.ID), nil)
		if len(k.waitsLeft()) != 0 {
			t.Error("it waits still")
		}
	})
}

func (k *kit) waitsLeft() map[lock.HoldID]*entry {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.Lease.waits
}

// A waiter asks again in time, also where no push comes.
func TestBellRingsWithoutAPush(t *testing.T) {
	bubble(t, func(k *kit) {
		k.f.change(func() { k.f.taken["r"] = true })
		q, bell := k.waits(k.t.Context())
		asked, from := k.f.count("ask"), k.clock()
		for bell.n.Load() == 0 && k.clock()-from <= k.o.Recheck {
			Sleep(k.t.Context(), k.o.Recheck/8)
		}
		_, err := k.Acquire(k.t.Context(), q)
		k.is("Acquire", err, lock.ErrWaiting)
		if bell.n.Load() != 1 || k.f.count("ask") != asked+1 {
			t.Errorf("rung %d times, asked %d times more", bell.n.Load(), k.f.count("ask")-asked)
		}
		ended, cancel := context.WithCancel(k.t.Context())
		cancel()
		_, err = k.Acquire(ended, q)
		k.is("Acquire whose ctx has ended", err, context.Canceled)
		if k.f.has(q.ID) || len(k.waitsLeft()) != 0 {
			t.Error("it waits still")
		}
		Sleep(k.t.Context(), 2*k.o.Recheck)
		if bell.n.Load() != 1 {
			t.Error("rung after the end")
		}
	})
}

// The end of the lease rings for all who wait.
func TestBellRingsAtTheEndOfTheLease(t *testing.T) {
	bubble(t, func(k *kit) {
		k.f.change(func() { k.f.taken["r"] = true })
		one, first := k.waits(k.t.Context())
		_, second := k.waits(k.t.Context())
		k.Lose()
		if first.n.Load() != 1 || second.n.Load() != 1 {
			t.Errorf("rung %d and %d times", first.n.Load(), second.n.Load())
		}
		_, err := k.Acquire(k.t.Context(), one)
		k.is("Acquire", err, lock.ErrLeaseLost)
	})
}
