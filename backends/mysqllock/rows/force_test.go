package rows

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/locksidecar/locksidecar/internal/testengine"
	"github.com/locksidecar/locksidecar/lock"
)

// TestForcedWaiterIsGranted: whoever forces a waiter out of the queue is slow after
// it has written that down, and meanwhile the row is free. The waiter does not get a
// hold that is ended when the slow one goes on.
func TestForcedWaiterIsGranted(t *testing.T) {
	onEach(t, func(t *testing.T, s testengine.Server) {
		b, o := sidecar(t, s.URL()+noGrace, 30*time.Second)
		_, l := sidecar(t, s.URL()+noGrace, 30*time.Second)
		for range 5 { // the waiter's sidecar may see by itself that it is forced
			road := testengine.Through(t, s)
			forcer := openAt(t, road.URL()+noGrace+"&timeout=10s")
			r := name(t) + lock.Resource(lock.NewHoldID())
			first := hold(t, o, r)
			w := queue(t, b, l, request(r, lock.Exclusive))
			marked := road.LoseReply("SET grace=LEAST", testengine.HoldReplies)
			forced := make(chan error, 1)
			go func() { forced <- forcer.ForceRelease(context.WithoutCancel(t.Context()), r, w.q.ID, time.Hour) }()
			<-marked
			if err := o.Release(t.Context(), r, first.ID); err != nil {
				t.Fatal(err)
			}
			w.wait(t)
			if err := road.Heal(); err != nil {
				t.Fatal(err)
			}
			if w.err == nil {
				next := hold(t, o, r)
				t.Fatalf("granted %d, and at the same time %d, though nobody had told of a grace of an hour", w.grant.Fence, next.Fence)
			}
			if !errors.Is(w.err, lock.ErrNotHolder) {
				t.Fatalf("Acquire: %v", w.err)
			}
			if err := <-forced; err != nil {
				t.Errorf("ForceRelease: %v", err)
			}
			if err := o.Release(t.Context(), r, hold(t, o, r).ID); err != nil {
				t.Error(err)
			}
			_ = forcer.Close()
		}
	})
}

// TestForcedWhileAHoldIsSilent: one hold's connection does not answer, so heartbeats
// last until they are given up. The grace of another hold does not count before its
// holder is told.
func TestForcedWhileAHoldIsSilent(t *testing.T) {
	const grace = 300 * time.Millisecond
	onEach(t, func(t *testing.T, s testengine.Server) {
		road := testengine.Through(t, s)
		b, o := sidecar(t, s.URL()+noGrace, 30*time.Second)
		_, l := sidecar(t, road.URL()+noGrace, 30*time.Second)
		for range 3 { // it may be told by an event, before the heartbeat sees it
			r := name(t) + lock.Resource(lock.NewHoldID())
			g := hold(t, l, r)
			w := queue(t, b, o, request(r, lock.Exclusive))
			road.Mute("NOWAIT") // connections of holds
			ctx, cancel := context.WithCancel(context.WithoutCancel(t.Context()))
			forced := make(chan error, 1)
			go func() { forced <- b.ForceRelease(ctx, r, g.ID, grace) }()
			eventually(t, "it is revoked", func() error {
				if scanOne[int](t, s.URL(), "SELECT COUNT(*) FROM locksidecar_row_hold WHERE id=? AND grace IS NOT NULL", []byte(g.ID)) == 0 {
					return errors.New("it is not")
				}
				return nil
			})
			told := make(chan time.Duration, 2)
			go func() {
				if news, _ := l.Heartbeat(ctx); len(news) > 0 {
					told <- lock.BootTime()
				}
			}()
			go func() {
				select {
				case <-l.Events():
					told <- lock.BootTime()
				case <-ctx.Done():
				}
			}()
			w.granted(t)
			if len(told) == 0 {
				t.Error("granted before the holder was told")
			}
			if err := <-forced; err != nil {
				t.Error(err)
			}
			cancel()
			if err := road.Heal(); err != nil {
				t.Fatal(err)
			}
			if err := o.Release(t.Context(), r, w.q.ID); err != nil {
				t.Fatal(err)
			}
		}
	})
}
