package redislock

import (
	"context"
	"errors"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/locksidecar/locksidecar/internal/testengine"
	"github.com/locksidecar/locksidecar/lock"
)

// A failover to a replica that knows everything keeps holds, queue and fences.
func TestFailoverKeepsHolds(t *testing.T) { again(t, testFailoverKeepsHolds) }

func testFailoverKeepsHolds(t testing.TB) {
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
func TestFailoverLosesAll(t *testing.T) { again(t, testFailoverLosesAll) }

func testFailoverLosesAll(t testing.TB) {
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
func TestSlowStore(t *testing.T) { again(t, testSlowStore) }

func testSlowStore(t testing.TB) {
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

func TestScriptFlush(t *testing.T) { again(t, testScriptFlush) }

func testScriptFlush(t testing.TB) {
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

func TestEvictingServerIsRefused(t *testing.T) { again(t, testEvictingServerIsRefused) }

func testEvictingServerIsRefused(t testing.TB) {
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
func TestEvictingNodeIsRefused(t *testing.T) { again(t, testEvictingNodeIsRefused) }

func testEvictingNodeIsRefused(t testing.TB) {
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

func TestOtherLayoutIsRefused(t *testing.T) { again(t, testOtherLayoutIsRefused) }

func testOtherLayoutIsRefused(t testing.TB) {
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

// The data is lost, and another kind of sidecar comes first: who had its own layout there is refused as well.
func TestOtherLayoutIsRefusedAfterTheDataIsGone(t *testing.T) {
	again(t, testOtherLayoutIsRefusedAfterTheDataIsGone)
}

func testOtherLayoutIsRefusedAfterTheDataIsGone(t testing.TB) {
	s := testengine.New(t, testengine.Redis)
	b, l := sidecar(t, s.URL()+noGrace, 30*time.Second)
	if err := b.client.FlushAll(t.Context()).Err(); err != nil {
		t.Fatal(err)
	}
	if err := b.client.Set(t.Context(), b.keys.config, "version=1 buckets=64", 0).Err(); err != nil {
		t.Fatal(err)
	}
	if err := beat(t.Context(), l); !errors.Is(err, lock.ErrLeaseLost) {
		t.Fatalf("Heartbeat: got %v, want ErrLeaseLost", err)
	}
	next, err := b.OpenLease(t.Context(), lock.LeaseOptions{TTL: 30 * time.Second})
	if err == nil {
		swallow(next)
		_ = next.Close(t.Context())
	}
	if !errors.Is(err, errLayout) {
		t.Errorf("OpenLease on another layout: got %v, want that it is refused", err)
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

// A server ends connections that were idle, as its option timeout has it: no request fails
// because of that.
func TestIdleConnectionsAreEnded(t *testing.T) {
	s := testengine.New(t, testengine.Redis)
	b, l := sidecar(t, s.URL()+noGrace, 5*time.Minute)
	admin := plain(t, strings.TrimPrefix(s.URL(), "redis://"))
	var g lock.Grant
	for _, step := range []func() error{
		func() (err error) { g, err = try(t, l, "r"); return err },
		func() error { return beat(t.Context(), l) },
		func() error { _, err := b.Get(t.Context(), "r"); return err },
		func() error { return l.Release(t.Context(), "r", g.ID) },
	} {
		if err := admin.ClientKillByFilter(t.Context(), "TYPE", "normal", "SKIPME", "yes").Err(); err != nil {
			t.Fatal(err)
		}
		if err := step(); err != nil {
			t.Error(err)
		}
	}
}

// With wait-replicas nothing counts that a replica does not have. Issue 9, 3.14.
func TestWaitForReplicas(t *testing.T) {
	s := testengine.New(t, testengine.RedisSentinel)
	b, l := sidecar(t, s.URL()+noGrace+"&wait-replicas=1&timeout=600ms", 5*time.Minute)
	g := hold(t, l, "r")
	if err := l.Release(t.Context(), "r", g.ID); err != nil {
		t.Fatal(err)
	}
	if err := beat(t.Context(), l); err != nil {
		t.Fatal(err)
	}
	text, err := b.client.Info(t.Context(), "server").Result()
	if err != nil {
		t.Fatal(err)
	}
	port := parseInfo(text)["tcp_port"]
	for _, n := range testengine.Nodes(t, s) {
		if !strings.HasSuffix(n.Addr(), ":"+port) {
			defer testengine.Pause(t, n)()
		}
	}
	if err := beat(t.Context(), l); !errors.Is(err, lock.ErrUnavailable) {
		t.Errorf("Heartbeat without the replica: got %v, want ErrUnavailable", err)
	}
	if _, err := try(t, l, "r"); !errors.Is(err, lock.ErrUnavailable) {
		t.Errorf("a try without the replica: got %v, want ErrUnavailable", err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Second)
	defer cancel()
	if g, err := l.Acquire(ctx, exclusive("other")); err == nil {
		t.Errorf("granted %+v without the replica", g)
	}
}

// A store that does not answer holds up nobody for longer than the ctx says, but
// for a short while in which the answer may come. Issue 9, 3.11.
func TestFrozenStoreReturnsInTime(t *testing.T) {
	s := testengine.New(t, testengine.Redis)
	_, l := sidecar(t, s.URL()+noGrace+"&timeout=30s", 5*time.Minute)
	resume := testengine.Pause(t, s)
	defer resume()
	const callers = 600
	took := make([]time.Duration, callers)
	var wg sync.WaitGroup
	for i := range callers {
		wg.Go(func() {
			ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
			defer cancel()
			start := time.Now()
			if _, err := l.Acquire(ctx, exclusive(lock.Resource(strconv.Itoa(i)))); err == nil {
				t.Error("granted by a frozen store")
			}
			took[i] = time.Since(start)
		})
	}
	wg.Wait()
	for _, d := range took {
		if d > 15*time.Second {
			t.Fatalf("an Acquire with 100ms returned after %s", d)
		}
	}
}

// Full memory keeps nobody from renewing a lease or giving something up. Issue 9, 3.10.
func TestFullMemory(t *testing.T) { again(t, testFullMemory) }

func testFullMemory(t testing.TB) {
	s := testengine.New(t, testengine.Redis)
	road := testengine.Through(t, s)
	b, l := sidecar(t, road.URL()+noGrace+"&timeout=300ms", 5*time.Minute)
	_, other := sidecar(t, s.URL()+noGrace, 5*time.Minute)
	g := hold(t, l, "held")
	gUnsure := hold(t, l, "unsure")
	road.Inject(testengine.HoldReplies)
	if err := l.Downgrade(t.Context(), "unsure", gUnsure.ID); !errors.Is(err, lock.ErrUnavailable) {
		t.Fatalf("Downgrade without an answer: %v", err)
	}
	_ = road.Heal()
	road.Inject(testengine.Sever)
	for name, value := range map[string]string{"maxmemory": "1mb", "maxmemory-policy": "noeviction"} {
		if err := b.client.ConfigSet(t.Context(), name, value).Err(); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := try(t, other, "new"); !errors.Is(err, lock.ErrUnavailable) {
		t.Fatalf("a new lock with full memory: got %v, want ErrUnavailable", err)
	}
	for range 2 {
		eventually(t, "the lease is renewed", func() error { return beat(t.Context(), l) })
	}
	for what, g := range map[string]lock.Grant{"after an unknown outcome": gUnsure, "of a hold": g} {
		ctx, cancel := context.WithTimeout(t.Context(), patience)
		defer cancel()
		if err := release(ctx, l, g.Resource, g.ID); err != nil {
			t.Errorf("Release %s: %v", what, err)
		}
	}
}
