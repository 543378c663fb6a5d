package redislock

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/locksidecar/locksidecar/internal/testengine"
	"github.com/locksidecar/locksidecar/lock"
)

// A forced release whose message is lost is told by the next heartbeat, and its
// grace counts from then. Issue 9, 3.1.
func TestForcedReleaseWithoutPush(t *testing.T) { again(t, testForcedReleaseWithoutPush) }

func testForcedReleaseWithoutPush(t testing.TB) {
	s := testengine.Shared(t, testengine.Redis)
	road := testengine.Through(t, s)
	_, holder := sidecar(t, road.URL()+noGrace, 30*time.Second)
	b, other := sidecar(t, s.URL()+noGrace, 30*time.Second)
	const r, grace = "forced-without-push", 300 * time.Millisecond
	g := hold(t, holder, r)
	road.Mute("subscribe")
	defer func() { _ = road.Heal() }()

	forceInVain(t, b, g, 4*grace, grace)
	if _, err := try(t, other, r); !errors.Is(err, lock.ErrHeld) {
		t.Fatalf("a try while the holder knows nothing: got %v, want ErrHeld", err)
	}
	told := lock.BootTime()
	news, err := holder.Heartbeat(t.Context())
	if err != nil || len(news) != 1 || news[0].Kind != lock.Revoked || news[0].ID != g.ID {
		t.Fatalf("Heartbeat: got %+v, %v, want the news that %s is revoked", news, err, g.ID)
	}
	if left := news[0].Until - told; left < grace {
		t.Errorf("the holder has %s left, want the whole grace of %s", left, grace)
	}
	eventually(t, "the revocation is acknowledged and the lock free", func() error {
		if err := beat(t.Context(), holder); err != nil {
			return err
		}
		_, err := try(t, other, r)
		return err
	})
	if now := lock.BootTime(); now < news[0].Until {
		t.Errorf("granted %s before the end that the holder was told", news[0].Until-now)
	}
}

// A retry does not find a hold whose forced release is over. Issue 9, 3.1.
func TestRetryAfterForcedRelease(t *testing.T) { again(t, testRetryAfterForcedRelease) }

func testRetryAfterForcedRelease(t testing.TB) {
	s := testengine.Shared(t, testengine.Redis)
	b, l := sidecar(t, s.URL()+noGrace, 30*time.Second)
	swallow(l)
	q := exclusive("retry-after-force")
	if _, err := l.Acquire(t.Context(), q); err != nil {
		t.Fatal(err)
	}
	// The one who forces goes away, so that nobody takes the hold out.
	forceInVain(t, b, lock.Grant{Resource: q.Resource, ID: q.ID}, time.Second, 3*time.Second)
	d := driverOf(t, b, l)
	eventually(t, "a retry is refused", func() error {
		a, err := d.Ask(t.Context(), q)
		if errors.Is(err, lock.ErrNotHolder) {
			return nil
		}
		return fmt.Errorf("granted: %+v, %w", a, err)
	})
}

// A shorter grace is told and acknowledged like the first one; a longer one
// changes nothing. Issue 9, 3.12.
func TestShorterGraceIsTold(t *testing.T) { again(t, testShorterGraceIsTold) }

func testShorterGraceIsTold(t testing.TB) {
	s := testengine.Shared(t, testengine.Redis)
	b, l := sidecar(t, s.URL()+noGrace, 30*time.Second)
	g := hold(t, l, "shorter")
	force := func(grace time.Duration) { forceInVain(t, b, g, 2*time.Second, grace) }
	told := func() time.Duration {
		t.Helper()
		select {
		case e := <-l.Events():
			return e.Until - lock.BootTime()
		case <-time.After(patience):
			t.Fatal("the holder was not told")
			return 0
		}
	}
	force(time.Hour)
	if left := told(); left < 50*time.Minute {
		t.Errorf("told that %s are left of an hour", left)
	}
	force(2 * time.Hour)
	force(time.Minute)
	if left := told(); left > time.Minute || left < 30*time.Second {
		t.Errorf("told that %s are left of a minute", left)
	}
	if err := beat(t.Context(), l); err != nil {
		t.Fatal(err)
	}
	if st, err := b.Get(t.Context(), "shorter"); err != nil || len(st.Holders) != 1 || !st.Holders[0].Revoked {
		t.Errorf("within its grace the hold is %+v, %v", st, err)
	}
	select {
	case e := <-l.Events():
		t.Errorf("told again: %+v", e)
	default:
	}
}

// A waiter that is forced out leaves the list of its lease. Issue 9, 3.12.
func TestForcedWaiterLeavesNothing(t *testing.T) { again(t, testForcedWaiterLeavesNothing) }

func testForcedWaiterLeavesNothing(t testing.TB) {
	s := testengine.Shared(t, testengine.Redis)
	b, l := sidecar(t, s.URL()+noGrace, 30*time.Second)
	_, other := sidecar(t, s.URL()+noGrace, 30*time.Second)
	hold(t, other, "forced-waiter")
	q := exclusive("forced-waiter")
	done := make(chan error, 1)
	go func() {
		_, err := l.Acquire(t.Context(), q)
		done <- err
	}()
	eventually(t, "it waits and is forced out", func() error {
		return b.ForceRelease(t.Context(), q.Resource, q.ID, time.Hour)
	})
	if err := <-done; !errors.Is(err, lock.ErrNotHolder) {
		t.Errorf("Acquire: got %v, want ErrNotHolder", err)
	}
	if n := b.client.ZCard(t.Context(), b.keys.buckets[0].mine+string(l.ID())).Val(); n != 0 {
		t.Errorf("%d holds and waiters stand in the lease's list", n)
	}
}

// A hold is taken away at once, with grace 0, and the message of it is lost. Another
// request has no answer, so that the number of holds says nothing. The next heartbeat
// tells it all the same, and a late copy of the request for the hold leaves nothing.
func TestForcedAtOnceWithoutPush(t *testing.T) { again(t, testForcedAtOnceWithoutPush) }

func testForcedAtOnceWithoutPush(t testing.TB) {
	s := testengine.Shared(t, testengine.Redis)
	road := testengine.Through(t, s)
	_, holder := sidecar(t, road.URL()+noGrace, 30*time.Second)
	b, other := sidecar(t, s.URL()+noGrace, 30*time.Second)
	const r = "forced-at-once-without-push"
	g := hold(t, holder, r)
	road.Mute("subscribe")
	defer func() { _ = road.Heal() }()
	unsure := exclusive("unanswered-beside-a-force")
	lost := road.LoseReply(string(unsure.ID), testengine.Sever)
	if _, err := holder.Acquire(t.Context(), unsure); !errors.Is(err, lock.ErrUnavailable) {
		t.Fatalf("Acquire without an answer: %v", err)
	}
	<-lost
	if err := b.ForceRelease(t.Context(), r, g.ID, 0); err != nil {
		t.Fatal(err)
	}
	told := func() bool {
		t.Helper()
		news, err := holder.Heartbeat(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		for _, e := range news {
			if e.ID == g.ID && e.Kind == lock.Revoked && e.Until == 0 {
				return true
			}
		}
		return false
	}
	if !told() {
		t.Error("the next heartbeat does not tell it")
	}
	if err := holder.Release(t.Context(), r, g.ID); !errors.Is(err, lock.ErrNotHolder) {
		t.Errorf("Release of what was taken away: %v", err)
	}
	if told() {
		t.Error("it is told after its release")
	}
	if _, err := try(t, other, r); err != nil {
		t.Errorf("the lock is not free: %v", err)
	}
}

// Redis loses its data between two looks of who waits for the end of a forced release. The holder has not heard of that, and
// relies on its hold: nobody is told that it is gone.
func TestForcedAtAServerThatHasLostTheHold(t *testing.T) {
	t.Parallel() // it has servers of its own
	t.Run("restarted", func(t *testing.T) {
		again(t, func(t testing.TB) {
			forcedWhile(t, func(s testengine.Server) { testengine.Restart(t, s, testengine.DropData) })
		})
	})
	t.Run("emptied", func(t *testing.T) {
		again(t, func(t testing.TB) { forcedWhile(t, func(s testengine.Server) { empty(t, s) }) })
	})
}

func forcedWhile(t testing.TB, loses func(testengine.Server)) {
	s := testengine.New(t, testengine.Redis)
	_, holder := sidecar(t, s.URL()+noGrace, lock.MaxTTL)
	g := hold(t, holder, "r")
	looked, goOn := make(chan struct{}), make(chan struct{})
	b, err := Open(patient(s.URL()+noGrace), func(what string, _ time.Duration, _ error) {
		if what == "force_release" {
			looked <- struct{}{}
			<-goOn
		}
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = b.Close() })
	forced := make(chan error, 1)
	go func() { forced <- b.ForceRelease(t.Context(), g.Resource, g.ID, time.Hour) }()
	defer close(goOn)
	for range 2 { // the first answer says whose hold it is
		select {
		case <-looked:
		case err := <-forced:
			t.Fatalf("ForceRelease: %v", err)
		}
		goOn <- struct{}{}
	}
	<-looked
	loses(s)
	eventually(t, "the server answers", func() error { return b.Ping(t.Context()) })
	goOn <- struct{}{}
	for done := false; !done; {
		select {
		case <-looked:
			goOn <- struct{}{}
		case err := <-forced:
			done = true
			if !errors.Is(err, lock.ErrUnavailable) {
				t.Errorf("ForceRelease: %v; want ErrUnavailable", err)
			}
		}
	}
}

func empty(t testing.TB, s testengine.Server) {
	t.Helper()
	emptyNode(t, testengine.Nodes(t, s)[0])
}

func emptyNode(t testing.TB, n testengine.Node) {
	t.Helper()
	if err := plain(t, n.Addr()).FlushAll(t.Context()).Err(); err != nil {
		t.Fatal(err)
	}
}

// So it is with a release that is forced after that, for as long as holders from before may not have heard of it.
func TestForcedWhileTheServerMayLackTheHold(t *testing.T) {
	again(t, testForcedWhileTheServerMayLackTheHold)
}

func testForcedWhileTheServerMayLackTheHold(t testing.TB) {
	s := testengine.New(t, testengine.Redis)
	_, holder := sidecar(t, s.URL()+noGrace, lock.MaxTTL)
	g := hold(t, holder, "r")
	longAtWork(t, s, 5*time.Minute)
	b, _ := sidecar(t, s.URL()+"?restart-grace=5m", lock.MaxTTL)
	if err := b.ForceRelease(t.Context(), g.Resource, lock.NewHoldID(), 0); !errors.Is(err, lock.ErrNotHolder) {
		t.Errorf("ForceRelease of what nobody has: %v; want ErrNotHolder", err)
	}
	empty(t, s)
	for range 2 {
		if err := b.ForceRelease(t.Context(), g.Resource, g.ID, 0); !errors.Is(err, lock.ErrUnavailable) {
			t.Errorf("ForceRelease: %v; want ErrUnavailable", err)
		}
	}
	p := &b.pasts[0]
	p.mu.Lock()
	p.since -= time.Hour
	p.mu.Unlock()
	if err := b.ForceRelease(t.Context(), g.Resource, g.ID, 0); !errors.Is(err, lock.ErrNotHolder) {
		t.Errorf("ForceRelease a grace later: %v; want ErrNotHolder", err)
	}
}

// forceInVain forces a release and gives up waiting for its end, which must not come before that. It
// returns when Redis has carried it out.
func forceInVain(t testing.TB, b *Backend, g lock.Grant, wait, grace time.Duration) {
	t.Helper()
	eventually(t, "Redis has carried it out", func() error {
		ctx, cancel := context.WithTimeout(t.Context(), wait)
		defer cancel()
		err := b.ForceRelease(ctx, g.Resource, g.ID, grace)
		switch {
		case errors.Is(err, lock.ErrUnavailable):
			return err
		case !errors.Is(err, context.DeadlineExceeded):
			t.Fatalf("ForceRelease: got %v, want that it waits", err)
		}
		return nil
	})
}
