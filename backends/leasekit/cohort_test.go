package leasekit

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/locksidecar/locksidecar/lock"
)

// cohort is for several, or not.
type cohort struct{ stays bool }

func (c cohort) Stay() bool { return c.stays }

// Who asks for several may go, and the place stays in the queue for the next Acquire.
func TestPlaceStaysForOthers(t *testing.T) {
	for _, when := range []string{"in the queue", "before it is asked again"} {
		t.Run(when, func(t *testing.T) {
			bubble(t, func(k *kit) {
				k.f.change(func() { k.f.taken["r"] = true })
				ctx, cancel := context.WithCancel(k.t.Context())
				q := k.request("r")
				q.Cohort = cohort{stays: true}
				done := k.begins(ctx, q)
				synctest.Wait()
				if when != "in the queue" {
					k.f.on("ask", func(ctx context.Context, _ func()) error { return errors.Join(ErrNotSent, ctx.Err()) })
					k.f.push(Push{Kind: Woken, Ref: Ref{"r", q.ID}})
				}
				cancel()
				k.is("Acquire", (<-done).err, lock.ErrUnavailable)
				if !k.f.has(q.ID) || k.f.count("withdraw") != 0 {
					t.Error("it has lost its place")
				}
				k.f.on("ask", nil)
				next := k.begins(k.t.Context(), q)
				synctest.Wait()
				k.f.change(func() { k.f.free("r") })
				if r := <-next; r.err != nil || r.g.ID != q.ID {
					t.Errorf("who stays gets %+v, %v", r.g, r.err)
				}
			})
		})
	}
}

func TestLastOfACohortGivesUp(t *testing.T) {
	bubble(t, func(k *kit) {
		k.f.change(func() { k.f.taken["r"] = true })
		ctx, cancel := context.WithTimeout(k.t.Context(), time.Second)
		defer cancel()
		q := k.request("r")
		q.Cohort = cohort{}
		_, err := k.Acquire(ctx, q)
		k.is("Acquire", err, context.DeadlineExceeded)
		if k.f.has(q.ID) {
			t.Error("its place is left")
		}
	})
}

// That somebody stands behind a hold is told once, by Events alone, and after what is
// more urgent.
func TestContendedIsAHint(t *testing.T) {
	bubble(t, func(k *kit) {
		g := k.acquire("r")
		other := k.acquire("o")
		for range 2 {
			k.f.push(Push{Kind: Contended, Ref: Ref{ID: g.ID}})
		}
		k.f.push(Push{Kind: Contended, Ref: Ref{ID: "unknown"}})
		k.f.push(Push{Kind: Contended, Ref: Ref{ID: other.ID}})
		if err := k.Release(k.t.Context(), "o", other.ID); err != nil {
			t.Fatal(err)
		}
		k.same("Heartbeat", k.beat())
		k.same("Events", k.events(), lock.Event{Kind: lock.Contended, Resource: "r", ID: g.ID})
		k.f.push(Push{Kind: Contended, Ref: Ref{ID: g.ID}})
		k.same("Events later", k.events())
		if len(k.f.acks) != 0 {
			t.Errorf("acknowledged: %+v", k.f.acks)
		}
	})
}

// A driver that pushes no such news has nothing to describe.
func TestNoTeller(t *testing.T) {
	bubble(t, func(k *kit) {
		if lock.TellsContended(k.Lease) {
			t.Error("it says that it tells")
		}
		k.is("Describe", k.Describe(k.t.Context(), "r", "id", ""), lock.ErrUnsupported)
	})
}

// deafDriver could tell, and knows that nothing will arrive.
type deafDriver struct{ Driver }

func (deafDriver) Deaf() bool                                  { return true }
func (deafDriver) Describe(context.Context, Ref, string) error { return nil }
func (deafDriver) Guards(q lock.Request) bool                  { return q.Guard != lock.WithoutGuard }

func TestWhatADriverMayBe(t *testing.T) {
	l := &Lease{d: deafDriver{}}
	if lock.TellsContended(l) {
		t.Error("it says that it tells")
	}
	if !l.Guards(lock.Request{}) || l.Guards(lock.Request{Guard: lock.WithoutGuard}) {
		t.Error("the driver knows which requests have guards")
	}
	if (&Lease{d: nil}).Guards(lock.Request{}) {
		t.Error("a driver without guards has some")
	}
}

// keepingDriver knows MinHold, or says why it does not.
type keepingDriver struct {
	Driver
	not error
}

func (d keepingDriver) KeepsMinHold() error { return d.not }

// TestWhoKeepsMinHold: a driver that does not know MinHold is not asked for one.
func TestWhoKeepsMinHold(t *testing.T) {
	why := NoMinHold("why")
	for d, want := range map[Driver]error{deafDriver{}: lock.ErrUnsupported, keepingDriver{not: why}: why, keepingDriver{}: nil} {
		l := &Lease{d: d}
		if err := l.keeps(lock.Request{MinHold: lock.MaxMinHold}); !errors.Is(err, want) || want == nil && err != nil {
			t.Errorf("%T: got %v, want %v", d, err, want)
		}
		for _, wrong := range []time.Duration{-1, lock.MaxMinHold + 1} {
			if err := l.keeps(lock.Request{MinHold: wrong}); !errors.Is(err, lock.ErrInvalid) {
				t.Errorf("%T with %s: got %v, want ErrInvalid", d, wrong, err)
			}
		}
		if err := l.keeps(lock.Request{}); err != nil {
			t.Errorf("%T without a MinHold: got %v", d, err)
		}
	}
}
