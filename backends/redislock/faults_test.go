package redislock

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/locksidecar/locksidecar/internal/testengine"
	"github.com/locksidecar/locksidecar/lock"
)

const patience = 20 * time.Second

// sidecar opens a backend and a lease that live as long as the test.
func sidecar(t *testing.T, url string, ttl time.Duration) (*Backend, lock.Lease) {
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
	return b, l
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

func hold(t *testing.T, l lock.Lease, r lock.Resource) lock.Grant {
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

// One node of a Cluster is enough. Issue 9, 3.12.
func TestEvictingNodeIsRefused(t *testing.T) {
	s := testengine.New(t, testengine.RedisCluster)
	for _, n := range testengine.Nodes(t, s) {
		c := plain(t, n.Addr())
		set := func(memory, policy string) {
			for key, value := range map[string]string{"maxmemory": memory, "maxmemory-policy": policy} {
				if err := c.ConfigSet(t.Context(), key, value).Err(); err != nil {
					t.Fatal(err)
				}
			}
		}
		set("100mb", "allkeys-lru")
		b := openAt(t, s.URL()+noGrace)
		if _, err := b.OpenLease(t.Context(), lock.LeaseOptions{TTL: time.Second}); !errors.Is(err, lock.ErrUnavailable) || !strings.Contains(err.Error(), "evict") {
			t.Errorf("OpenLease while %s evicts: got %v, want ErrUnavailable", n.Addr(), err)
		}
		_ = b.Close()
		set("0", "noeviction")
	}
	sidecar(t, s.URL()+noGrace, time.Second)
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
