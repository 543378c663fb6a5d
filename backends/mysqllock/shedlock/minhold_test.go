package shedlock

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/locksidecar/locksidecar/internal/testengine"
	"github.com/locksidecar/locksidecar/lock"
)

// keeping takes with a MinHold what must be free.
func keeping(t testing.TB, l lock.Lease, r lock.Resource, least time.Duration) lock.Grant {
	t.Helper()
	q := request(r)
	q.Try, q.MinHold = true, least
	g, err := l.Acquire(t.Context(), q)
	if err != nil {
		t.Fatalf("Acquire of what is free: %v", err)
	}
	return g
}

// lasts is for how long ShedLock's row is locked, from when it was.
func lasts(t testing.TB, s testengine.Server, r lock.Resource) time.Duration {
	t.Helper()
	us := scan[int64](t, s.URL(), 0, "SELECT TIMESTAMPDIFF(MICROSECOND, locked_at, lock_until) FROM shedlock WHERE name=?", string(r))
	return time.Duration(us) * time.Microsecond
}

// TestMinHoldBesideShedLock: a hold with a MinHold keeps ShedLock out until that is over and no longer, whether it is
// held, released, or ends with its lease; a forced release ends that.
func TestMinHoldBesideShedLock(t *testing.T) {
	onEach(t, testengine.Shared, func(t testing.TB, s testengine.Server) {
		const least, ttl = 20 * time.Minute, 10 * time.Minute
		b, l := sidecar(t, s.URL(), ttl)
		_, closes := sidecar(t, s.URL(), ttl)
		r, closed, longer := unique(t), unique(t), unique(t)
		is := func(r lock.Resource, want time.Duration, when string) {
			t.Helper()
			if got := lasts(t, s, r); got < want || got > want+time.Minute {
				t.Errorf("%s, ShedLock's row is locked for %s, want %s", when, got, want)
			}
			if shedLocks(t, s, r, time.Second) {
				t.Errorf("%s, ShedLock gets the lock", when)
			}
		}
		g := keeping(t, l, r, least)
		is(r, least, "held")
		if err := beat(t.Context(), l); err != nil {
			t.Fatal(err)
		}
		is(r, least, "after a heartbeat")
		gl := keeping(t, l, longer, 5*time.Minute)
		is(longer, ttl, "held for longer than the MinHold")
		for _, of := range []lock.Grant{g, gl} {
			if err := l.Release(t.Context(), of.Resource, of.ID); err != nil {
				t.Fatal(err)
			}
		}
		is(r, least, "released")
		is(longer, 5*time.Minute, "released")
		if err := beat(t.Context(), l); err != nil {
			t.Fatal(err)
		}
		is(longer, 5*time.Minute, "after the next heartbeat")
		gc := keeping(t, closes, closed, least)
		if err := closes.Close(t.Context()); err != nil {
			t.Fatal(err)
		}
		is(closed, least, "when the lease is closed")
		for _, of := range []lock.Grant{g, gl, gc} {
			if st := get(t, b, of.Resource); len(st.Holders) != 1 || st.Holders[0].ID != of.ID || st.Holders[0].Kept <= 0 {
				t.Errorf("Get has %+v", st)
			}
			if err := b.ForceRelease(t.Context(), of.Resource, of.ID, 0); err != nil {
				t.Error(err)
			}
			if !shedLocks(t, s, of.Resource, time.Second) {
				t.Error("ShedLock does not get what is kept no more")
			}
		}
	})
}

// TestMinHoldRefusedByShedLock: a request with a MinHold that ShedLock is in the way of keeps nobody out, whether it does not wait,
// gives up, or ends with its lease.
func TestMinHoldRefusedByShedLock(t *testing.T) {
	onEach(t, testengine.Shared, func(t testing.TB, s testengine.Server) {
		_, l := sidecar(t, s.URL(), 10*time.Minute)
		b, closes := sidecar(t, s.URL(), 10*time.Minute)
		r := unique(t)
		if !shedLocks(t, s, r, time.Hour) {
			t.Fatal("a new lock is not free")
		}
		nobody := func(when string) {
			t.Helper()
			for _, h := range get(t, b, r).Holders {
				if h.ID != "" {
					t.Errorf("%s, %+v is left", when, h)
				}
			}
		}
		waits := func(ctx context.Context, l lock.Lease) chan error {
			q, done := request(r), make(chan error, 1)
			q.MinHold = time.Hour
			go func() { _, err := l.Acquire(ctx, q); done <- err }()
			eventually(t, "the request waits behind ShedLock", func() error {
				if st := get(t, b, r); len(st.Waiters) != 1 || st.Waiters[0].ID != q.ID {
					return errors.New("it does not")
				}
				return nil
			})
			return done
		}
		q := request(r)
		q.Try, q.MinHold = true, time.Hour
		if _, err := l.Acquire(t.Context(), q); !errors.Is(err, lock.ErrHeld) {
			t.Errorf("try: %v", err)
		}
		nobody("after a try")
		ctx, cancel := context.WithCancel(t.Context())
		done := waits(ctx, l)
		cancel()
		if err := <-done; err == nil {
			t.Error("granted while ShedLock has it")
		}
		nobody("after a wait")
		done = waits(t.Context(), closes)
		if err := closes.Close(t.Context()); err != nil {
			t.Error(err)
		}
		if err := <-done; err == nil {
			t.Error("granted while ShedLock has it")
		}
		nobody("after the end of the lease")
		exec(t, s.URL(), "UPDATE shedlock SET lock_until=locked_at WHERE name=?", string(r))
		g := keeping(t, l, r, time.Second)
		if err := l.Release(t.Context(), r, g.ID); err != nil {
			t.Error(err)
		}
	})
}

// TestMinHoldUnheard: a sidecar is cut off before it hears that it got the lock, so nobody has it. That keeps
// others out for a TTL, and not for the MinHold.
func TestMinHoldUnheard(t *testing.T) {
	onEach(t, testengine.Shared, func(t testing.TB, s testengine.Server) {
		const ttl = time.Minute
		road := testengine.Through(t, s)
		_, l := sidecar(t, road.URL(), ttl)
		q := request(unique(t))
		q.Try, q.MinHold = true, time.Hour
		lost := road.LoseReply("/"+string(q.ID), testengine.HoldReplies)
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error, 1)
		go func() { _, err := l.Acquire(ctx, q); done <- err }()
		<-lost
		if got := lasts(t, s, q.Resource); got < ttl || got > ttl+time.Second {
			t.Errorf("ShedLock's row is locked for %s, want %s", got, ttl)
		}
		cancel()
		if err := road.Heal(); err != nil {
			t.Fatal(err)
		}
		<-done //nolint:errcheck // either is right
	})
}

// TestMinHoldForcedAndClosed: the sidecar ends while the grace of a forced release runs, which it knows of. That keeps
// ShedLock out no longer.
func TestMinHoldForcedAndClosed(t *testing.T) {
	onEach(t, testengine.Shared, func(t testing.TB, s testengine.Server) {
		const ttl = 10 * time.Minute
		_, l := sidecar(t, s.URL(), ttl)
		b, _ := sidecar(t, s.URL(), ttl)
		g := keeping(t, l, unique(t), time.Hour)
		ctx, cancel := context.WithCancel(t.Context())
		forced := make(chan error, 1)
		go func() { forced <- b.ForceRelease(ctx, g.Resource, g.ID, time.Hour) }()
		defer func() {
			cancel()
			<-forced //nolint:errcheck // it is given up
		}()
		eventually(t, "the holder knows of it", func() error {
			select {
			case ev := <-l.Events():
				if ev.Kind != lock.Revoked || ev.ID != g.ID {
					t.Errorf("event %+v", ev)
				}
				return nil
			default:
				return errors.New("it does not")
			}
		})
		if err := l.Close(t.Context()); err != nil {
			t.Fatal(err)
		}
		if !shedLocks(t, s, g.Resource, time.Second) {
			t.Error("ShedLock does not get what is kept no more")
		}
	})
}
