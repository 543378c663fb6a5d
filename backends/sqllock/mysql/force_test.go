package mysql

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/locksidecar/locksidecar/internal/testengine"
	"github.com/locksidecar/locksidecar/lock"
)

// The holder's sidecar knows of a forced release, and falls silent. Whoever forced
// it is gone too. Who waits counts the grace and ends the hold, long before the
// lease is over.
func TestWaiterEndsForcedHold(t *testing.T) {
	t.Parallel()
	eachKind(t, func(t testing.TB, s testengine.Server) {
		road := testengine.Through(t, s)
		_, l := sidecar(t, road.URL(), 5*time.Minute)
		b, other := sidecar(t, s.URL(), 5*time.Minute)
		r := unique("r")
		g := hold(t, l, r)
		next := acquire(t, other, exclusive(r))
		const grace = 2 * time.Second
		ctx, cancel := context.WithCancel(t.Context())
		forced := make(chan error, 1)
		go func() { forced <- b.ForceRelease(ctx, r, g.ID, grace) }()
		ev := <-l.Events()
		eventually(t, "the holder's sidecar has acknowledged it", func() error {
			if number(t, b, "SELECT COUNT(*) FROM {note} WHERE name=? AND known=?", []byte(r), grace.Microseconds()) == 0 {
				return errors.New("it has not")
			}
			return nil
		})
		road.Inject(testengine.HoldAll)
		cancel()
		if err := <-forced; !errors.Is(err, context.Canceled) {
			t.Errorf("ForceRelease that was cut short: %v", err)
		}
		next.granted()
		if now := lock.BootTime(); now < ev.Until {
			t.Errorf("granted %s before the grace was over", ev.Until-now)
		}
	})
}

// The release of one of several readers is forced, twice: the shorter grace counts.
func TestForcedReader(t *testing.T) {
	eachKind(t, func(t testing.TB, s testengine.Server) {
		_, l := sidecar(t, s.URL(), 30*time.Second)
		b, other := sidecar(t, s.URL(), 30*time.Second)
		q := exclusive(unique("r"))
		q.Mode = lock.Shared
		g, err := l.Acquire(t.Context(), q)
		if err != nil {
			t.Fatal(err)
		}
		next := acquire(t, other, exclusive(q.Resource))
		forced := make(chan error, 2)
		force := func(grace time.Duration) lock.Event {
			t.Helper()
			go func() { forced <- b.ForceRelease(context.WithoutCancel(t.Context()), q.Resource, g.ID, grace) }()
			select {
			case ev := <-l.Events():
				return ev
			case <-time.After(patience):
				t.Fatalf("the holder is not told of a grace of %s", grace)
				return lock.Event{}
			}
		}
		if ev := force(time.Hour); ev.Until < lock.BootTime()+50*time.Minute {
			t.Errorf("the first event: %+v", ev)
		}
		ev := force(300 * time.Millisecond)
		next.granted()
		if now := lock.BootTime(); now < ev.Until || ev.Until == 0 {
			t.Errorf("granted %s before the grace was over", ev.Until-now)
		}
		for range 2 {
			if err := <-forced; err != nil {
				t.Error(err)
			}
		}
	})
}

// The store loses a hold in the grace of its forced release: others may be granted
// already, so the holder is told.
func TestForcedHoldVanishes(t *testing.T) {
	eachKind(t, func(t testing.TB, s testengine.Server) {
		road := testengine.Through(t, s)
		_, l := sidecar(t, road.URL(), 30*time.Second)
		b, _ := sidecar(t, s.URL(), 30*time.Second)
		g := hold(t, l, unique("r"))
		forced := make(chan error, 1)
		go func() { forced <- b.ForceRelease(context.WithoutCancel(t.Context()), g.Resource, g.ID, time.Hour) }()
		select {
		case ev := <-l.Events():
			if ev.Until < lock.BootTime()+50*time.Minute {
				t.Fatalf("the holder was told %+v", ev)
			}
		case err := <-forced:
			t.Fatalf("ForceRelease, before the holder was told: %v", err)
		case <-time.After(patience):
			t.Fatal("the holder is not told")
		}
		// As on a replica that lacks the grant.
		execute(t, b, "UPDATE {lock} SET x_id=NULL, x_lease=NULL WHERE name=?", []byte(g.Resource))
		road.Inject(testengine.Sever)
		eventually(t, "a heartbeat tells", func() error {
			news, err := l.Heartbeat(t.Context())
			if err == nil && (len(news) != 1 || news[0] != lock.Event{Kind: lock.Revoked, Resource: g.Resource, ID: g.ID}) {
				t.Fatalf("news: %+v", news)
			}
			return err
		})
		if err := <-forced; err != nil {
			t.Error(err)
		}
	})
}
