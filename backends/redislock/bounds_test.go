package redislock

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/locksidecar/locksidecar/internal/testengine"
	"github.com/locksidecar/locksidecar/lock"
)

// many runs f for 0…n-1 on a few goroutines.
func many(t *testing.T, n int, f func(i int) error) {
	t.Helper()
	var wg sync.WaitGroup
	next := make(chan int)
	errs := make(chan error, 64)
	for range 64 {
		wg.Go(func() {
			var first error
			for i := range next {
				if err := f(i); err != nil && first == nil {
					first = err
				}
			}
			errs <- first
		})
	}
	for i := range n {
		next <- i
	}
	close(next)
	wg.Wait()
	close(errs)
	for err := range errs {
		if err != nil {
			t.Fatal(err)
		}
	}
}

// longest is the longest time for which one script has kept Redis from everything
// else while f ran, but for so many that took longer.
func longest(t *testing.T, b *Backend, but int, f func()) time.Duration {
	t.Helper()
	ctx := t.Context()
	for name, value := range map[string]string{"slowlog-log-slower-than": "200", "slowlog-max-len": "20000"} {
		if err := b.client.ConfigSet(ctx, name, value).Err(); err != nil {
			t.Fatal(err)
		}
	}
	if err := b.client.Do(ctx, "slowlog", "reset").Err(); err != nil {
		t.Fatal(err)
	}
	f()
	entries, err := b.client.(*redis.Client).SlowLogGet(ctx, -1).Result()
	if err != nil {
		t.Fatal(err)
	}
	all := make([]time.Duration, but+1)
	for _, e := range entries {
		if name := strings.ToLower(e.Args[0]); name == "evalsha" || strings.HasPrefix(name, "z") {
			all = append(all, e.Duration)
		}
	}
	slices.Sort(all)
	return all[len(all)-1-but]
}

// No script keeps Redis longer than a few readers or waiters would, however many
// there are. The limit is a multiple of what is promised, for the machine may be
// busy; before, each of these took from 25 ms to 150 ms. Issue 9, 3.5.
func TestStepsAreBounded(t *testing.T) {
	const n, limit = 5000, 8 * time.Millisecond
	const tries = 5 // where it can be done again; the process may lose the processor
	s := testengine.New(t, testengine.Redis)
	b, l := sidecar(t, s.URL()+noGrace, 5*time.Minute)
	_, other := sidecar(t, s.URL()+noGrace, 5*time.Minute)
	report := func(what string, took, limit time.Duration) {
		t.Helper()
		if took > limit {
			t.Errorf("%s kept Redis for %s", what, took)
		} else {
			t.Logf("%s: at most %s", what, took)
		}
	}
	bounded := func(what string, f func()) {
		t.Helper()
		took := longest(t, b, 0, f)
		for i := 1; i < tries && took > limit; i++ {
			took = min(took, longest(t, b, 0, f))
		}
		report(what, took, limit)
	}
	shared := func() lock.Request {
		q := exclusive("r")
		q.Mode = lock.Shared
		return q
	}

	writer := hold(t, other, "r")
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	var readers sync.WaitGroup
	grants := make([]lock.HoldID, n)
	errs := make([]error, n)
	for i := range n {
		readers.Go(func() {
			g, err := l.Acquire(ctx, shared())
			grants[i], errs[i] = g.ID, err
		})
	}
	eventually(t, "all readers wait", func() error {
		st, err := b.Get(ctx, "r")
		if err == nil && len(st.Waiters) != n {
			err = fmt.Errorf("%d wait", len(st.Waiters))
		}
		return err
	})
	bounded("Get of many waiters", func() {
		if st, err := b.Get(ctx, "r"); err != nil || len(st.Waiters) != n {
			t.Errorf("Get: %d waiters, %v", len(st.Waiters), err)
		}
	})
	bounded("List", func() {
		if all, err := b.List(ctx, "", lock.Page{Limit: 10}); err != nil || len(all) != 1 || len(all[0].Waiters) != n {
			t.Errorf("List: %v", err)
		}
	})
	report("a release that grants many readers", longest(t, b, 0, func() {
		if err := other.Release(ctx, "r", writer.ID); err != nil {
			t.Error(err)
		}
		readers.Wait()
	}), 2*limit)
	if err := errors.Join(errs...); err != nil {
		t.Fatal(err)
	}
	bounded("a try against many readers", func() {
		if _, err := try(t, other, "r"); !errors.Is(err, lock.ErrHeld) {
			t.Errorf("try: %v", err)
		}
	})
	bounded("Get of many holders", func() {
		if st, err := b.Get(ctx, "r"); err != nil || len(st.Holders) != n {
			t.Errorf("Get: %d holders, %v", len(st.Holders), err)
		}
	})
	report("many releases before a waiting writer", longest(t, b, n/100, func() {
		var queued sync.WaitGroup
		queued.Go(func() {
			g, err := other.Acquire(ctx, exclusive("r"))
			if err != nil {
				t.Error(err)
			}
			writer = g
		})
		eventually(t, "the writer waits", func() error {
			_, err := b.Get(ctx, "r")
			return err
		})
		many(t, n, func(i int) error { return l.Release(ctx, "r", grants[i]) })
		queued.Wait()
	}), limit)

	// A sidecar that dies with many waiters.
	road := testengine.Through(t, s)
	_, mortal := sidecar(t, road.URL()+noGrace, 10*time.Second)
	dying, die := context.WithCancel(t.Context())
	defer die()
	for range n {
		readers.Go(func() { _, _ = mortal.Acquire(dying, shared()) })
	}
	eventually(t, "all readers of the mortal wait", func() error {
		st, err := b.Get(ctx, "r")
		if err == nil && len(st.Waiters) != n {
			err = fmt.Errorf("%d wait", len(st.Waiters))
		}
		return errors.Join(err, beat(ctx, mortal))
	})
	road.Inject(testengine.Cut)
	die()
	readers.Wait()
	eventually(t, "the mortal is dead", func() error {
		st, err := b.Get(ctx, "r")
		if err == nil && len(st.Waiters) > 0 {
			err = errors.New("its waiters count")
		}
		return err
	})
	report("a release past many dead waiters", longest(t, b, 0, func() {
		if err := other.Release(ctx, "r", writer.ID); err != nil {
			t.Error(err)
		}
		eventually(t, "the next has the lock", func() error {
			_, err := try(t, l, "r")
			return err
		})
	}), 2*limit)
}

// A tombstone lives as long as a late copy can be carried out. Issue 9, 3.12.
func TestTombstoneLivesForTheTTL(t *testing.T) {
	s := testengine.Shared(t, testengine.Redis)
	road := testengine.Through(t, s)
	b, l := sidecar(t, road.URL()+noGrace+"&timeout=200ms", lock.MaxTTL)
	q := exclusive("late")
	road.Inject(testengine.HoldReplies)
	if _, err := l.Acquire(t.Context(), q); !errors.Is(err, lock.ErrUnavailable) {
		t.Fatalf("Acquire without an answer: %v", err)
	}
	_ = road.Heal()
	road.Inject(testengine.Sever)
	eventually(t, "it is given up", func() error {
		err := l.Release(t.Context(), q.Resource, q.ID)
		if errors.Is(err, lock.ErrNotHolder) {
			err = nil
		}
		return err
	})
	if left := b.client.PTTL(t.Context(), b.keys.buckets[0].gone+"late").Val(); left < lock.MaxTTL-time.Minute {
		t.Errorf("the tombstone lives for %s, the lease for %s", left, lock.MaxTTL)
	}
	if _, err := l.Acquire(t.Context(), q); !errors.Is(err, lock.ErrNotHolder) {
		t.Errorf("a late copy: got %v, want ErrNotHolder", err)
	}
	hold(t, l, "late") // others are not in the way of that
}

// A waiter that is forced out leaves the list of its lease. Issue 9, 3.12.
func TestForcedWaiterLeavesNothing(t *testing.T) {
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

// A store that does not answer holds up nobody for longer than the ctx says, but
// for a short while in which the answer may come. Issue 9, 3.11.
func TestFrozenStoreReturnsInTime(t *testing.T) {
	s := testengine.New(t, testengine.Redis)
	_, l := sidecar(t, s.URL()+noGrace+"&timeout=5s", 5*time.Minute)
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
		if d > 2*time.Second {
			t.Fatalf("an Acquire with 100ms returned after %s", d)
		}
	}
}

// Full memory keeps nobody from renewing a lease or giving something up. Issue 9, 3.10.
func TestFullMemory(t *testing.T) {
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
	if err := l.Release(t.Context(), "unsure", gUnsure.ID); err != nil {
		t.Errorf("Release after an unknown outcome: %v", err)
	}
	if err := l.Release(t.Context(), "held", g.ID); err != nil {
		t.Errorf("Release: %v", err)
	}
}

// A node on which the lease has nothing may fail. Issue 9, 3.4.
func TestNodeWithoutHoldsMayFail(t *testing.T) {
	s := testengine.New(t, testengine.RedisCluster)
	b, l := sidecar(t, s.URL()+noGrace+"&timeout=300ms", 5*time.Minute)
	cluster := b.client.(*redis.ClusterClient)
	owner := func(r lock.Resource) string {
		c, err := cluster.MasterForKey(t.Context(), b.keys.buckets[b.keys.bucketOf(r)].leases)
		if err != nil {
			t.Fatal(err)
		}
		return c.Options().Addr
	}
	g := hold(t, l, "kept")
	var addr string
	for i := range 40 { // somewhere else as well
		r := lock.Resource(fmt.Sprintf("used-%d", i))
		used := hold(t, l, r)
		if err := l.Release(t.Context(), r, used.ID); err != nil {
			t.Fatal(err)
		}
		if at := owner(r); at != owner("kept") {
			addr = at
		}
	}
	for range 2 {
		if err := beat(t.Context(), l); err != nil {
			t.Fatal(err)
		}
	}
	for _, n := range testengine.Nodes(t, s) {
		if n.Addr() == addr {
			testengine.Crash(t, n, testengine.DropData)
		}
	}
	eventually(t, "the lease lives without that node", func() error { return beat(t.Context(), l) })
	if err := l.Release(t.Context(), "kept", g.ID); err != nil {
		t.Errorf("Release: %v", err)
	}
}

// plain is a client of one server.
func plain(t *testing.T, addr string) *redis.Client {
	t.Helper()
	b := openAt(t, "redis://"+addr)
	t.Cleanup(func() { _ = b.Close() })
	return b.client.(*redis.Client)
}

// replicaOf starts a replica of a node of a Cluster.
func replicaOf(t *testing.T, of testengine.Node) {
	t.Helper()
	master := plain(t, of.Addr())
	ports := make([]string, 2)
	for i := range ports {
		ln, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		_, ports[i], _ = net.SplitHostPort(ln.Addr().String())
		_ = ln.Close()
	}
	cmd := exec.Command("redis-server", "--port", ports[0], "--cluster-port", ports[1], "--bind", "127.0.0.1", "--save", "", "--dir", t.TempDir(),
		"--cluster-enabled", "yes", "--cluster-node-timeout", "2000", "--repl-diskless-sync-delay", "0", "--cluster-announce-ip", "127.0.0.1")
	if err := cmd.Start(); err != nil {
		t.Skip(err)
	}
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	})
	replica := plain(t, "127.0.0.1:"+ports[0])
	host, port, _ := net.SplitHostPort(of.Addr())
	id := master.Do(t.Context(), "cluster", "myid").Val().(string)
	nodes := master.ClusterNodes(t.Context()).Val()
	bus := ""
	for line := range strings.Lines(nodes) { // id host:port@bus[,name] flags …
		if strings.HasPrefix(line, id) {
			_, bus, _ = strings.Cut(strings.Fields(line)[1], "@")
			bus, _, _ = strings.Cut(bus, ",")
		}
	}
	eventually(t, "the replica has met the others", func() error { return replica.Do(t.Context(), "cluster", "meet", host, port, bus).Err() })
	eventually(t, "the replica knows its master", func() error { return replica.Do(t.Context(), "cluster", "replicate", id).Err() })
	eventually(t, "the replica is up to date", func() error {
		text, err := replica.Info(t.Context(), "replication").Result()
		if err == nil && parseInfo(text)["master_link_status"] != "up" {
			err = errors.New("the link is not up")
		}
		return err
	})
}

// A Cluster's replica that takes over is found within seconds, and its memory is
// compared, although it was a member of the Cluster before. Issue 9, 3.2 and 3.4.
func TestClusterFailover(t *testing.T) {
	s := testengine.New(t, testengine.RedisCluster)
	b, l := sidecar(t, s.URL()+"?restart-grace=3s&timeout=500ms", 5*time.Minute)
	g := hold(t, l, "r")
	owner, err := b.client.(*redis.ClusterClient).MasterForKey(t.Context(), b.keys.buckets[b.keys.bucketOf("r")].leases)
	if err != nil {
		t.Fatal(err)
	}
	for _, n := range testengine.Nodes(t, s) {
		if n.Addr() == owner.Options().Addr {
			replicaOf(t, n)
			if err := n.Crash(t.Context(), testengine.DropData); err != nil {
				t.Fatal(err)
			}
		}
	}
	crashed := time.Now()
	eventually(t, "the lease lives on the replica", func() error { return beat(t.Context(), l) })
	t.Logf("first good heartbeat %s after the crash", time.Since(crashed))
	i := b.keys.bucketOf("r")
	if left, _ := b.pasts[i].left(3*time.Second, b.clock()); left <= 0 {
		t.Error("no grace after the failover")
	}
	if err := l.Release(t.Context(), "r", g.ID); err != nil {
		t.Errorf("Release of a hold that the replica knows: %v", err)
	}
	eventually(t, "it is granted again", func() error {
		if err := beat(t.Context(), l); err != nil {
			return err
		}
		_, err := try(t, l, "r")
		return err
	})
}
