package redislock

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/locksidecar/locksidecar/backends/backendtest"
	"github.com/locksidecar/locksidecar/internal/testengine"
	"github.com/locksidecar/locksidecar/lock"
)

// What a server has decided about a dead lease is final, whatever its clock does.
// Issue 9, 3.7.
func TestClockForwardAndBack(t *testing.T) { again(t, testClockForwardAndBack) }

func testClockForwardAndBack(t testing.TB) {
	s := testengine.New(t, testengine.RedisFakeTime)
	_, l := sidecar(t, s.URL()+noGrace, 30*time.Second)
	hold(t, l, "r")
	testengine.ShiftClock(t, s, time.Hour)
	b, other := sidecar(t, s.URL()+noGrace, 30*time.Second)
	hold(t, other, "r")
	testengine.ShiftClock(t, s, 0)
	if err := beat(t.Context(), l); !errors.Is(err, lock.ErrLeaseLost) {
		t.Errorf("Heartbeat of a lease whose hold was handed on: got %v, want ErrLeaseLost", err)
	}
	if err := beat(t.Context(), other); err != nil {
		t.Errorf("Heartbeat of the lease that has the hold now: %v", err)
	}
	// Nobody goes on asking about what is decided: there were thousands of commands a second.
	before := commands(t, b)
	time.Sleep(2 * time.Second)
	if n := commands(t, b) - before; n > 300 {
		t.Errorf("%d commands in the two seconds after it", n)
	}
}

// commands is how many commands a server has carried out, those of scripts included.
func commands(t testing.TB, b *Backend) int {
	t.Helper()
	text, err := b.client.Info(t.Context(), "commandstats").Result()
	if err != nil {
		t.Fatal(err)
	}
	return commandsOf(text)
}

// The grace after a restart counts from when a living sidecar has noticed it, and
// not by the server's clock. Issue 9, 3.8.
func TestGraceDoesNotBelieveTheServersClock(t *testing.T) {
	t.Parallel() // it has a server of its own, and waits
	again(t, testGraceDoesNotBelieveTheServersClock)
}

func testGraceDoesNotBelieveTheServersClock(t testing.TB) {
	s := testengine.New(t, testengine.RedisFakeTime)
	const grace = 8 * time.Second // longer than a restart takes
	_, l := sidecar(t, s.URL()+"?restart-grace="+grace.String(), 10*time.Minute)
	began := time.Now()
	testengine.Restart(t, s, testengine.KeepData)
	testengine.ShiftClock(t, s, time.Minute)
	eventually(t, "Redis answers", func() error { return beat(t.Context(), l) })
	switch _, err := try(t, l, "r"); {
	case errors.Is(err, lock.ErrUnavailable):
	case time.Since(began) >= grace:
		t.Fatal(backendtest.Busy(errors.New("the grace was over before the try")))
	default:
		t.Errorf("a try within the grace, with the clock a minute ahead: got %v, want ErrUnavailable", err)
	}
	eventually(t, "the lock is granted", func() error {
		if err := beat(t.Context(), l); err != nil {
			return err
		}
		_, err := try(t, l, "r")
		return err
	})
	if took := time.Since(began); took < grace {
		t.Errorf("granted %s after the restart began", took)
	}
	eventually(t, "somebody who comes later need not wait", func() error {
		if err := beat(t.Context(), l); err != nil {
			return err
		}
		b := openAt(t, s.URL()+"?restart-grace="+grace.String())
		defer func() { _ = b.Close() }()
		n, err := b.OpenLease(t.Context(), lock.LeaseOptions{TTL: time.Minute})
		if err == nil {
			_ = n.Close(t.Context())
		}
		return err
	})
}

// A sidecar that starts after a restart must not believe the server's clock about how long ago that
// was: holders from before may not know yet. Issue 9, 3.8.
func TestNewcomerDoesNotBelieveTheServersClock(t *testing.T) {
	t.Parallel() // it has servers of its own, and waits
	for name, by := range map[string]time.Duration{"forward": time.Hour, "back": -time.Hour} {
		t.Run(name, func(t *testing.T) {
			again(t, func(t testing.TB) { testNewcomerDoesNotBelieveTheServersClock(t, by) })
		})
	}
}

func testNewcomerDoesNotBelieveTheServersClock(t testing.TB, by time.Duration) {
	s := testengine.New(t, testengine.RedisFakeTime)
	const grace = 8 * time.Second // longer than a restart takes
	_, l := sidecar(t, s.URL()+noGrace, 10*time.Minute)
	hold(t, l, "r") // its sidecar hears nothing of all that follows
	began := time.Now()
	testengine.Restart(t, s, testengine.DropData)
	grants := func(b *Backend) (lock.Lease, error) {
		n, err := b.OpenLease(t.Context(), lock.LeaseOptions{TTL: time.Minute})
		if err == nil {
			t.Cleanup(func() { _ = n.Close(context.WithoutCancel(t.Context())) })
		}
		return n, err
	}
	open := func() *Backend {
		b := openAt(t, s.URL()+"?restart-grace="+grace.String())
		t.Cleanup(func() { _ = b.Close() })
		return b
	}
	eventually(t, "Redis answers", func() error { return open().Ping(t.Context()) })
	if _, err := grants(open()); !errors.Is(err, lock.ErrUnavailable) {
		t.Errorf("the first one after the restart: got %v, want ErrUnavailable", err)
	}
	testengine.ShiftClock(t, s, by)
	b := open()
	switch _, err := grants(b); {
	case errors.Is(err, lock.ErrUnavailable):
	case time.Since(began) >= grace:
		t.Fatal(backendtest.Busy(errors.New("the grace was over before the newcomer asked")))
	default:
		t.Errorf("broken law: a newcomer within the grace, with the clock set %s: got %v, want ErrUnavailable", by, err)
	}
	var n lock.Lease
	eventually(t, "the newcomer is granted locks", func() (err error) { n, err = grants(b); return err })
	hold(t, n, "r")
	if took := time.Since(began); took < grace {
		t.Errorf("granted %s after the restart began", took)
	}
	// Who comes later need not wait: it was seen that the grace is over.
	if _, err := grants(open()); err != nil {
		t.Errorf("another one after the grace: %v", err)
	}
}
