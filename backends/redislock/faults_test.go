package redislock

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/locksidecar/locksidecar/internal/testengine"
	"github.com/locksidecar/locksidecar/lock"
)

const patience = 20 * time.Second

// sidecar opens a backend and a lease that live as long as the test.
func sidecar(t *testing.T, url string, ttl time.Duration) (*Backend, *lease) {
	t.Helper()
	b := openAt(t, url)
	t.Cleanup(func() { _ = b.Close() })
	var l lock.Lease
	eventually(t, "a lease is opened", func() (err error) {
		l, err = b.OpenLease(t.Context(), lock.LeaseOptions{TTL: ttl, Sidecar: t.Name()})
		return err
	})
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), 2*time.Second)
		defer cancel()
		_ = l.Close(ctx) // the server may be gone
	})
	return b, l.(*lease)
}

func eventually(t *testing.T, what string, f func() error) {
	t.Helper()
	deadline := time.Now().Add(patience)
	for {
		err := f()
		if err == nil {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("waited %s in vain until %s: %v", patience, what, err)
		}
		time.Sleep(20 * time.Millisecond)
	}
}

func exclusive(r lock.Resource) lock.Request {
	return lock.Request{ID: lock.NewHoldID(), Resource: r, Mode: lock.Exclusive, Owner: lock.Owner{Session: "test"}.Encode()}
}

func hold(t *testing.T, l *lease, r lock.Resource) lock.Grant {
	t.Helper()
	g, err := l.Acquire(t.Context(), exclusive(r))
	if err != nil {
		t.Fatalf("Acquire: %v", err)
	}
	return g
}

const noGrace = "?restart-grace=0s"

// A failover to a replica that knows everything keeps holds, queue and fences.
func TestFailoverKeepsHolds(t *testing.T) {
	s := testengine.New(t, testengine.RedisSentinel)
	_, l := sidecar(t, s.URL()+noGrace, 30*time.Second)
	g := hold(t, l, "kept")
	testengine.FailOver(t, s, testengine.KeepData)
	eventually(t, "the new master answers", func() error { return beat(t.Context(), l) })
	select {
	case e := <-l.Events():
		t.Errorf("event %+v for a hold that the new master knows", e)
	default:
	}
	_, other := sidecar(t, s.URL()+noGrace, 30*time.Second)
	q := exclusive("kept")
	q.Try = true
	if _, err := other.Acquire(t.Context(), q); !errors.Is(err, lock.ErrHeld) {
		t.Errorf("another sidecar's try after the failover: got %v, want ErrHeld", err)
	}
	if err := l.Release(t.Context(), "kept", g.ID); err != nil {
		t.Errorf("Release after the failover: %v", err)
	}
	if g2 := hold(t, other, "kept"); g2.Fence <= g.Fence {
		t.Errorf("fence %d after the failover, %d before", g2.Fence, g.Fence)
	}
}

// A failover to a replica that knows nothing ends the lease.
func TestFailoverLosesAll(t *testing.T) {
	s := testengine.New(t, testengine.RedisSentinel)
	_, l := sidecar(t, s.URL()+noGrace, 30*time.Second)
	hold(t, l, "lost")
	testengine.FailOver(t, s, testengine.DropData)
	deadline := time.Now().Add(patience)
	for {
		err := beat(t.Context(), l)
		if errors.Is(err, lock.ErrLeaseLost) {
			return
		}
		if !errors.Is(err, lock.ErrUnavailable) || time.Now().After(deadline) {
			t.Fatalf("Heartbeat: got %v, want ErrLeaseLost in the end", err)
		}
		time.Sleep(20 * time.Millisecond)
	}
}

// After another server came up, holds that it does not know are reported, and
// those that only it knows are released: a replica that lagged by a grant and a
// release.
func TestMemoriesAreCompared(t *testing.T) {
	s := testengine.New(t, testengine.Redis)
	b, l := sidecar(t, s.URL()+noGrace, 30*time.Second)
	kept, vanished := hold(t, l, "kept"), hold(t, l, "vanished")
	stale := exclusive("stale")
	if _, err := l.Acquire(t.Context(), stale); err != nil {
		t.Fatal(err)
	}
	k := &b.keys.buckets[0]
	for _, key := range []string{k.lock + "vanished"} {
		if err := b.client.Del(t.Context(), key).Err(); err != nil {
			t.Fatal(err)
		}
	}
	if err := b.client.ZRem(t.Context(), k.mine+string(l.id), member("vanished", vanished.ID)).Err(); err != nil {
		t.Fatal(err)
	}
	l.forget(stale.ID) // as if it had been released on the old server only

	if err := beat(t.Context(), l); err != nil {
		t.Fatal(err)
	}
	testengine.Restart(t, s, testengine.KeepData)
	eventually(t, "Redis answers", func() error { return beat(t.Context(), l) })
	select {
	case e := <-l.Events():
		if e.Kind != lock.Vanished || e.ID != vanished.ID || e.Resource != "vanished" {
			t.Errorf("event %+v, want that %s has vanished", e, vanished.ID)
		}
	case <-time.After(patience):
		t.Fatal("no event for the hold that vanished")
	}
	all, err := b.List(t.Context(), "", lock.Page{Limit: 10})
	if err != nil || len(all) != 1 || all[0].Holders[0].ID != kept.ID {
		t.Errorf("after comparing there is %+v (%v), want only %q", all, err, "kept")
	}
}

// A server that was restarted lately hands out nothing until holders from
// before must have noticed.
func TestRestartGrace(t *testing.T) {
	s := testengine.New(t, testengine.Redis)
	_, l := sidecar(t, s.URL()+"?restart-grace=3s", 30*time.Second)
	g := hold(t, l, "r")
	if err := l.Release(t.Context(), "r", g.ID); err != nil {
		t.Fatal(err)
	}
	restarted := time.Now()
	testengine.Restart(t, s, testengine.KeepData)
	eventually(t, "Redis answers", func() error { return beat(t.Context(), l) })
	q := exclusive("r")
	q.Try = true
	if _, err := l.Acquire(t.Context(), q); !errors.Is(err, lock.ErrUnavailable) {
		t.Errorf("try within the grace: got %v, want ErrUnavailable", err)
	}
	hold(t, l, "r")
	if took := time.Since(restarted); took < 3*time.Second {
		t.Errorf("granted %s after the restart, within the grace", took)
	}
}

// FLUSHALL is loss of memory without a restart.
func TestFlushedStoreWaits(t *testing.T) {
	s := testengine.New(t, testengine.Redis)
	b, l := sidecar(t, s.URL()+noGrace, 2*time.Second)
	hold(t, l, "r")
	if err := b.client.FlushAll(t.Context()).Err(); err != nil {
		t.Fatal(err)
	}
	if err := beat(t.Context(), l); !errors.Is(err, lock.ErrLeaseLost) {
		t.Fatalf("Heartbeat after FLUSHALL: got %v, want ErrLeaseLost", err)
	}
	flushed := time.Now()
	_, l2 := sidecarOn(t, b, 2*time.Second)
	if took := time.Since(flushed); took < 2*time.Second {
		t.Errorf("a new lease was opened %s after the store lost its memory, sooner than the TTL", took)
	}
	hold(t, l2, "r")
}

func sidecarOn(t *testing.T, b *Backend, ttl time.Duration) (*Backend, *lease) {
	t.Helper()
	var l lock.Lease
	eventually(t, "a lease is opened", func() (err error) {
		l, err = b.OpenLease(t.Context(), lock.LeaseOptions{TTL: ttl, Sidecar: t.Name()})
		return err
	})
	t.Cleanup(func() { _ = l.Close(context.Background()) })
	return b, l.(*lease)
}

// A store that answers slowly, but within the time limit of a request, makes
// everything slow and nothing wrong.
func TestSlowStore(t *testing.T) {
	s := testengine.Shared(t, testengine.Redis)
	road := testengine.Through(t, s)
	b, l := sidecar(t, road.URL()+noGrace, 30*time.Second)
	_, quick := sidecar(t, s.URL()+noGrace, 30*time.Second)
	road.Delay(200 * time.Millisecond) // in either direction
	defer func() { _ = road.Heal() }()
	g := hold(t, l, "slow")
	if err := beat(t.Context(), l); err != nil {
		t.Errorf("Heartbeat: %v", err)
	}
	q := exclusive("slow")
	q.Try = true
	if _, err := quick.Acquire(t.Context(), q); !errors.Is(err, lock.ErrHeld) {
		t.Errorf("another sidecar's try: got %v, want ErrHeld", err)
	}
	if err := l.Release(t.Context(), "slow", g.ID); err != nil {
		t.Errorf("Release: %v", err)
	}
	if st, err := b.Get(t.Context(), "slow"); err != nil || len(st.Holders) != 0 {
		t.Errorf("after the release there is %+v (%v)", st, err)
	}
}

func TestScriptFlush(t *testing.T) {
	s := testengine.Shared(t, testengine.Redis)
	b, l := sidecar(t, s.URL()+noGrace, 30*time.Second)
	flush := func() {
		if err := b.client.ScriptFlush(t.Context()).Err(); err != nil {
			t.Fatal(err)
		}
	}
	g := hold(t, l, "scripts")
	for _, step := range []func() error{
		func() error { return beat(t.Context(), l) },
		func() error { return l.Downgrade(t.Context(), "scripts", g.ID) },
		func() error { _, err := b.Get(t.Context(), "scripts"); return err },
		func() error { return l.Release(t.Context(), "scripts", g.ID) },
		func() error { g = hold(t, l, "scripts"); return nil },
		func() error { return l.Close(t.Context()) },
	} {
		flush()
		if err := step(); err != nil {
			t.Error(err)
		}
	}
}

// What a dead sidecar left is cleared away by another one's heartbeats, though
// nobody asks for those resources any more.
func TestDeadLeaseIsClearedAway(t *testing.T) {
	s := testengine.New(t, testengine.Redis)
	b, l := sidecar(t, s.URL()+noGrace, time.Second)
	for _, r := range []lock.Resource{"a", "b", "c"} {
		hold(t, l, r)
	}
	_, other := sidecar(t, s.URL()+noGrace, 30*time.Second)
	g := hold(t, other, "mine")
	eventually(t, "nothing is left of the dead lease", func() error {
		if err := beat(t.Context(), other); err != nil {
			return err
		}
		keys, err := b.client.Keys(t.Context(), "*").Result()
		if err != nil {
			return err
		}
		// config, used, last, leases; the lock and the list of the living one; the reaper's mark
		if len(keys) > 7 {
			return errors.New("there are keys left")
		}
		return nil
	})
	if err := other.Release(t.Context(), "mine", g.ID); err != nil {
		t.Error(err)
	}
}

func TestEvictingServerIsRefused(t *testing.T) {
	s := testengine.New(t, testengine.Redis)
	plain := openAt(t, s.URL())
	defer func() { _ = plain.Close() }()
	for key, value := range map[string]string{"maxmemory": "100mb", "maxmemory-policy": "allkeys-lru"} {
		if err := plain.client.ConfigSet(t.Context(), key, value).Err(); err != nil {
			t.Fatal(err)
		}
	}
	b := openAt(t, s.URL()+noGrace)
	defer func() { _ = b.Close() }()
	if _, err := b.OpenLease(t.Context(), lock.LeaseOptions{TTL: time.Second}); !errors.Is(err, lock.ErrUnavailable) {
		t.Errorf("OpenLease on a server that evicts: got %v, want ErrUnavailable", err)
	}
	sidecar(t, s.URL()+noGrace+"&allow-eviction=true", time.Second)
}

func TestOtherLayoutIsRefused(t *testing.T) {
	s := testengine.Shared(t, testengine.Redis)
	b := openAt(t, s.URL()+noGrace+"&prefix=other")
	defer func() { _ = b.Close() }()
	if err := b.client.Set(t.Context(), b.keys.config, "version=1 buckets=64", 0).Err(); err != nil {
		t.Fatal(err)
	}
	if _, err := b.OpenLease(t.Context(), lock.LeaseOptions{TTL: time.Second}); !errors.Is(err, lock.ErrUnavailable) {
		t.Errorf("OpenLease on another layout: got %v, want ErrUnavailable", err)
	}
}

// A copy of a request that arrives after it was given up is not carried out.
func TestLateCopyIsRefused(t *testing.T) {
	s := testengine.Shared(t, testengine.Redis)
	b, l := sidecar(t, s.URL()+noGrace, 30*time.Second)
	q := exclusive("late")
	a := l.attempt(0, q)
	a.e.unsure = true // it was sent and had no answer
	if err := l.Release(t.Context(), q.Resource, q.ID); !errors.Is(err, lock.ErrNotHolder) {
		t.Fatalf("Release: %v", err)
	}
	reply, err := b.run(t.Context(), b.client, scriptAcquire, a.keys, a.args...)
	if fields, ok := reply.([]any); err != nil || !ok || word(fields, 0) != "GONE" {
		t.Errorf("the late copy got %v (%v), want GONE", reply, err)
	}
	hold(t, l, "late") // others are not in the way of that
}

func TestPing(t *testing.T) {
	s := testengine.New(t, testengine.Redis)
	b := openAt(t, s.URL())
	defer func() { _ = b.Close() }()
	if err := b.Ping(t.Context()); err != nil {
		t.Fatal(err)
	}
	testengine.Crash(t, s, testengine.DropData)
	if err := b.Ping(t.Context()); !errors.Is(err, lock.ErrUnavailable) || errors.Is(err, redis.Nil) {
		t.Errorf("Ping of a dead server: got %v, want ErrUnavailable", err)
	}
}

// beat sends one heartbeat, for its outcome alone.
func beat(ctx context.Context, l lock.Lease) error {
	_, err := l.Heartbeat(ctx)
	return err
}
