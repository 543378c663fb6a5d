package embedded

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/locksidecar/locksidecar/lock"
)

// forced forces a release and gives when ForceRelease has returned.
func forced(t *testing.T, s *Store, g lock.Grant, grace time.Duration) <-chan time.Duration {
	done := make(chan time.Duration, 1)
	go func() {
		if err := s.ForceRelease(t.Context(), g.Resource, g.ID, grace); err != nil {
			t.Errorf("ForceRelease: %v", err)
		}
		done <- s.clock()
	}()
	synctest.Wait()
	return done
}

// granted acquires and gives when that was.
func granted(t *testing.T, s *Store, l lock.Lease, r lock.Resource) <-chan time.Duration {
	done := make(chan time.Duration, 1)
	go func() {
		acquire(t, l, r, lock.Exclusive)
		done <- s.clock()
	}()
	synctest.Wait()
	return done
}

// at checks a moment that one of the two above gives.
func at(t *testing.T, what string, done <-chan time.Duration, want time.Duration) {
	t.Helper()
	if got := <-done; got != want {
		t.Errorf("%s at %s, want %s", what, got, want)
	}
}

func told(t *testing.T, l lock.Lease, want lock.Event) {
	t.Helper()
	if diff := cmp.Diff(want, <-l.Events()); diff != "" {
		t.Errorf("event (-want +got):\n%s", diff)
	}
}

func revoked(g lock.Grant, until time.Duration) lock.Event {
	return lock.Event{Kind: lock.Revoked, Resource: g.Resource, ID: g.ID, Until: until}
}

// Law 2: grace counts from when the holder's sidecar was told, and of several
// graces the shortest counts.
func TestGraceEndsOnTheMoment(t *testing.T) {
	bubble(t, func(t *testing.T, s *Store) {
		a, b := open(t, s), open(t, s)
		g := acquire(t, a, "r", lock.Exclusive)
		next := granted(t, s, b, "r")
		first := forced(t, s, g, 5*time.Second)
		told(t, a, revoked(g, 5*time.Second))
		time.Sleep(time.Second)
		second := forced(t, s, g, 2*time.Second)
		told(t, a, revoked(g, 3*time.Second))
		third := forced(t, s, g, 4*time.Second) // longer than what is left
		at(t, "granted", next, 3*time.Second)
		for _, f := range []<-chan time.Duration{first, second, third} {
			at(t, "ForceRelease returned", f, 3*time.Second)
		}
		shut(t, a)
		shut(t, b)
	})
}

// Law 2 with a holder's sidecar that cannot be reached: a grace that is shorter
// than the silence hands nothing on before the sidecar knows it.
func TestGraceWaitsForTheHolder(t *testing.T) {
	bubble(t, func(t *testing.T, s *Store) {
		v := &visitor{Store: s}
		v.asleep.Store(true)
		a, err := v.OpenLease(t.Context(), lock.LeaseOptions{TTL: ttl})
		if err != nil {
			t.Fatal(err)
		}
		b := open(t, s)
		g := acquire(t, a, "r", lock.Exclusive)
		next := granted(t, s, b, "r")
		f := forced(t, s, g, 500*time.Millisecond)
		time.Sleep(3 * time.Second)
		select {
		case <-next:
			t.Fatal("granted beside a holder that knows of nothing")
		default:
		}
		for range 2 { // the first brings the news, the second acknowledges
			news, err := a.Heartbeat(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff([]lock.Event{revoked(g, 3500*time.Millisecond)}, news); diff != "" {
				t.Errorf("news (-want +got):\n%s", diff)
			}
		}
		at(t, "granted", next, 3500*time.Millisecond)
		at(t, "ForceRelease returned", f, 3500*time.Millisecond)
		shut(t, a)
		shut(t, b)
	})
}

// A holder whose sidecar never answers blocks as long as its lease lives, and
// no longer.
func TestGraceEndsWithTheLease(t *testing.T) {
	bubble(t, func(t *testing.T, s *Store) {
		a, b := open(t, s), open(t, s)
		g := acquire(t, a, "r", lock.Exclusive)
		next := granted(t, s, b, "r")
		f := forced(t, s, g, time.Hour)
		time.Sleep(ttl / 2)
		if err := beat(t.Context(), b); err != nil {
			t.Fatal(err)
		}
		at(t, "granted", next, ttl)
		at(t, "ForceRelease returned", f, ttl)
		shut(t, a)
		shut(t, b)
	})
}

// Grace 0 hands on at once, whether or not the holder's sidecar listens; its next
// heartbeat tells it.
func TestGraceZero(t *testing.T) {
	bubble(t, func(t *testing.T, s *Store) {
		a, b := open(t, s), open(t, s)
		g := acquire(t, a, "r", lock.Exclusive)
		next := granted(t, s, b, "r")
		at(t, "ForceRelease returned", forced(t, s, g, 0), 0)
		at(t, "granted", next, 0)
		for range 2 {
			news, err := a.Heartbeat(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff([]lock.Event{revoked(g, 0)}, news); diff != "" {
				t.Errorf("news (-want +got):\n%s", diff)
			}
		}
		if err := a.Release(t.Context(), "r", g.ID); !errors.Is(err, lock.ErrNotHolder) {
			t.Errorf("Release: %v, want ErrNotHolder", err)
		}
		shut(t, a)
		shut(t, b)
	})
}

// A grace that was promised is not cut short by a force that waits for its
// acknowledgement, and a release ends both.
func TestReleaseWithinGrace(t *testing.T) {
	bubble(t, func(t *testing.T, s *Store) {
		a := open(t, s)
		g := acquire(t, a, "r", lock.Exclusive)
		f := forced(t, s, g, time.Hour)
		told(t, a, revoked(g, time.Hour))
		if err := a.Downgrade(t.Context(), "r", g.ID); err != nil {
			t.Errorf("Downgrade: %v", err)
		}
		acquire(t, a, "r", lock.Shared)
		time.Sleep(time.Second)
		if err := a.Release(t.Context(), "r", g.ID); err != nil {
			t.Errorf("Release: %v", err)
		}
		at(t, "ForceRelease returned", f, time.Second)
		shut(t, a)
	})
}

// A waiter that is forced out is not queued again, also where the push that
// tells it is lost and it asks again by itself.
func TestForcedWaiterStaysOut(t *testing.T) {
	for name, asleep := range map[string]bool{"told": false, "push lost": true} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T, s *Store) {
				v := &visitor{Store: s}
				v.asleep.Store(asleep)
				b, err := v.OpenLease(t.Context(), lock.LeaseOptions{TTL: ttl})
				if err != nil {
					t.Fatal(err)
				}
				a := open(t, s)
				acquire(t, a, "r", lock.Exclusive)
				q := lock.Request{ID: "q", Resource: "r", Mode: lock.Exclusive}
				ended := make(chan error)
				go func() { _, err := b.Acquire(t.Context(), q); ended <- err }()
				synctest.Wait()
				if err := s.ForceRelease(t.Context(), "r", "q", time.Hour); err != nil {
					t.Fatal(err)
				}
				if err := <-ended; !errors.Is(err, lock.ErrNotHolder) {
					t.Errorf("Acquire: %v, want ErrNotHolder", err)
				}
				if st, err := s.Get(t.Context(), "r"); err != nil || len(st.Waiters) != 0 {
					t.Errorf("Get: %+v, %v", st, err)
				}
				shut(t, a)
				shut(t, b)
			})
		})
	}
}

// A grant that is forced before its Acquire has returned was told to nobody, so
// nothing waits for a grace: not even where the answer to the request is lost.
func TestForcedBeforeTold(t *testing.T) {
	bubble(t, func(t *testing.T, s *Store) {
		v := &visitor{Store: s}
		a, err := v.OpenLease(t.Context(), lock.LeaseOptions{TTL: ttl})
		if err != nil {
			t.Fatal(err)
		}
		v.deaf.Store(true)
		q := lock.Request{ID: "q", Resource: "r", Mode: lock.Exclusive}
		if _, err := a.Acquire(t.Context(), q); !errors.Is(err, lock.ErrUnavailable) {
			t.Errorf("Acquire: %v, want ErrUnavailable", err)
		}
		v.deaf.Store(false)
		f := forced(t, s, lock.Grant{Resource: "r", ID: "q"}, time.Hour)
		if _, err := a.Acquire(t.Context(), q); !errors.Is(err, lock.ErrNotHolder) {
			t.Errorf("Acquire again: %v, want ErrNotHolder", err)
		}
		at(t, "ForceRelease returned", f, 0)
		shut(t, a)
	})
}

// Whoever forces many and reads no events holds nobody up, and misses nothing.
func TestSlowReaderOfEvents(t *testing.T) {
	bubble(t, func(t *testing.T, s *Store) {
		a := open(t, s)
		const n = 100
		var all []lock.Grant
		for i := range n {
			g := acquire(t, a, lock.Resource(fmt.Sprint(i)), lock.Exclusive)
			if err := s.ForceRelease(t.Context(), g.Resource, g.ID, 0); err != nil {
				t.Fatal(err)
			}
			all = append(all, g)
		}
		for _, g := range all {
			told(t, a, revoked(g, 0))
		}
		for _, g := range all {
			if err := s.ForceRelease(t.Context(), g.Resource, g.ID, 0); !errors.Is(err, lock.ErrNotHolder) {
				t.Errorf("ForceRelease again: %v", err)
			}
		}
		shut(t, a)
	})
}

// ForceRelease returns when its ctx ends, and the hold ends all the same.
func TestForceReleaseGivenUp(t *testing.T) {
	bubble(t, func(t *testing.T, s *Store) {
		a := open(t, s)
		g := acquire(t, a, "r", lock.Exclusive)
		over, cancel := context.WithCancel(t.Context())
		cancel()
		for range 50 { // what is gone at once is told as gone
			if err := s.ForceRelease(over, "r2", acquire(t, a, "r2", lock.Shared).ID, 0); err != nil {
				t.Fatalf("ForceRelease: %v", err)
			}
			<-a.Events()
		}
		if err := s.ForceRelease(over, "r", g.ID, time.Second); !errors.Is(err, context.Canceled) || !errors.Is(err, lock.ErrUnavailable) {
			t.Errorf("ForceRelease: %v, want Canceled and ErrUnavailable", err)
		}
		told(t, a, revoked(g, time.Second))
		at(t, "granted", granted(t, s, a, "r"), time.Second)
		shut(t, a)
	})
}

// A waiter that is taken out of the queue is told at that moment.
func TestForcedWaiterIsToldAtOnce(t *testing.T) {
	bubble(t, func(t *testing.T, s *Store) {
		a, b := open(t, s), open(t, s)
		acquire(t, a, "r", lock.Exclusive)
		done := make(chan error, 1)
		go func() {
			_, err := b.Acquire(t.Context(), lock.Request{ID: "waiter", Resource: "r", Mode: lock.Exclusive})
			done <- err
		}()
		synctest.Wait()
		began := time.Now()
		if err := s.ForceRelease(t.Context(), "r", "waiter", 0); err != nil {
			t.Fatal(err)
		}
		if err := <-done; !errors.Is(err, lock.ErrNotHolder) || time.Since(began) != 0 {
			t.Errorf("%v after %v", err, time.Since(began))
		}
		shut(t, a)
		shut(t, b)
	})
}
