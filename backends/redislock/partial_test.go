package redislock

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/locksidecar/locksidecar/backends/leasekit"
	"github.com/locksidecar/locksidecar/internal/testengine"
	"github.com/locksidecar/locksidecar/lock"
)

// partialCluster is a Cluster whose nodes go on without each other.
func partialCluster(t testing.TB) testengine.Server {
	t.Helper()
	s := testengine.New(t, testengine.RedisCluster)
	for _, n := range testengine.Nodes(t, s) {
		goesOnAlone(t, n)
	}
	return s
}

// goesOnAlone sets what a node forgets when it is started again.
func goesOnAlone(t testing.TB, n testengine.Node) {
	t.Helper()
	c := openAt(t, "redis://"+n.Addr())
	defer func() { _ = c.Close() }()
	if err := c.client.ConfigSet(t.Context(), "cluster-require-full-coverage", "no").Err(); err != nil {
		t.Fatal(err)
	}
}

// nodeOf is the node of a Cluster that has a key.
func nodeOf(t testing.TB, s testengine.Server, b *Backend, key string) testengine.Node {
	t.Helper()
	master, err := b.client.(*redis.ClusterClient).MasterForKey(t.Context(), key)
	if err != nil {
		t.Fatal(err)
	}
	for _, n := range testengine.Nodes(t, s) {
		if n.Addr() == master.Options().Addr {
			return n
		}
	}
	t.Fatalf("no node is at %s", master.Options().Addr)
	return nil
}

// elsewhere is a resource whose bucket another node has.
func elsewhere(t testing.TB, s testengine.Server, b *Backend, n testengine.Node, from int) lock.Resource {
	t.Helper()
	for i := from; i < from+1000; i++ {
		r := lock.Resource(fmt.Sprintf("elsewhere-%d", i))
		if nodeOf(t, s, b, b.keys.buckets[b.keys.bucketOf(r)].leases).Addr() != n.Addr() {
			return r
		}
	}
	t.Fatal("every resource is on that node")
	return ""
}

// A sidecar starts, and locks what it can reach, while the node is down that says
// how the data is laid out, and is refused what it cannot reach.
func TestLeaseWithoutTheNodeOfTheConfig(t *testing.T) {
	t.Parallel() // it has servers of its own, and waits
	again(t, testLeaseWithoutTheNodeOfTheConfig)
}

func testLeaseWithoutTheNodeOfTheConfig(t testing.TB) {
	s := partialCluster(t)
	url := s.URL() + noGrace + "&timeout=300ms"
	b, _ := sidecar(t, url, 5*time.Minute)
	n := nodeOf(t, s, b, b.keys.config)
	r := elsewhere(t, s, b, n, 0)
	start := testengine.Crash(t, n, testengine.KeepData)

	fresh, l := sidecar(t, url, 5*time.Minute)
	eventually(t, "it locks what can be reached", func() error {
		if err := beat(t.Context(), l); err != nil {
			return err
		}
		g, err := try(t, l, r)
		if err == nil {
			err = l.Release(t.Context(), r, g.ID)
		}
		return err
	})
	if fresh.checked.Load() {
		t.Error("the layout counts as checked")
	}

	start()
	eventually(t, "the layout is checked", func() error {
		if err := beat(t.Context(), l); err != nil {
			return err
		}
		if !fresh.checked.Load() {
			return errors.New("not yet")
		}
		return nil
	})
}

// So it does whichever node is down: the lease is not opened in a bucket that
// cannot be reached.
func TestLeaseWithoutAnyOneNode(t *testing.T) {
	t.Parallel() // it has servers of its own, and waits
	again(t, testLeaseWithoutAnyOneNode)
}

func testLeaseWithoutAnyOneNode(t testing.TB) {
	s := partialCluster(t)
	url := s.URL() + noGrace + "&timeout=300ms"
	b, _ := sidecar(t, url, 5*time.Minute)
	for _, n := range testengine.Nodes(t, s) {
		r := elsewhere(t, s, b, n, 0)
		start := testengine.Crash(t, n, testengine.KeepData)
		_, l := sidecar(t, url, 5*time.Minute)
		eventually(t, "it locks what can be reached without "+n.Addr(), func() error {
			g, err := try(t, l, r)
			if err == nil {
				err = l.Release(t.Context(), r, g.ID)
			}
			return err
		})
		start()
		goesOnAlone(t, n)
	}
}

// A node that is silent, in place of one that refuses connections, holds up nobody for
// longer than a session waits for its lease and for a heartbeat.
func TestSilentNode(t *testing.T) {
	t.Parallel() // it has servers of its own, and waits
	again(t, testSilentNode)
}

func testSilentNode(t testing.TB) {
	s := partialCluster(t)
	const ttl = 9 * time.Second
	url := s.URL() + noGrace + "&timeout=300ms"
	b, _ := sidecar(t, url, 5*time.Minute)
	road := testengine.Through(t, s)
	_, l := sidecar(t, road.URL()+noGrace+"&timeout=300ms", 5*time.Minute)
	n := nodeOf(t, s, b, b.keys.config)
	var kept lock.Resource
	for i := 0; kept == ""; i++ {
		if r := elsewhere(t, s, b, n, i); b.keys.bucketOf(r) >= maxPipeline {
			kept = r
		}
	}
	hold(t, l, kept)
	for i := range 400 { // in all buckets
		r := lock.Resource(fmt.Sprintf("used-%d", i))
		g := hold(t, l, r)
		if err := release(t.Context(), l, r, g.ID); err != nil {
			t.Fatal(err)
		}
	}
	for range 2 {
		eventually(t, "a heartbeat is answered", func() error { return beat(t.Context(), l) })
	}
	testengine.Pause(t, n)
	road.Inject(testengine.Sever) // new connections are not answered either
	inTime := func(limit time.Duration, do func(ctx context.Context) error) error {
		ctx, cancel := context.WithTimeout(t.Context(), limit)
		defer cancel()
		return do(ctx)
	}
	for waited := 0; ; {
		start := time.Now()
		err := inTime(ttl/3, func(ctx context.Context) error { return beat(ctx, l) })
		if err == nil {
			break
		}
		if time.Since(start) > ttl/90 { // else a connection of the others was cut, too
			waited++
		}
		if waited == 3 {
			t.Fatalf("the lease ends although its hold is on another node: %v", err)
		}
	}
	for try := 1; ; try++ { // each in a process of its own, as it were
		fresh := openAt(t, s.URL()+noGrace+"&timeout=600ms")
		var opened lock.Lease
		err := inTime(2*ttl, func(ctx context.Context) (err error) {
			opened, err = fresh.OpenLease(ctx, lock.LeaseOptions{TTL: 2 * ttl, Sidecar: "fresh"})
			return err
		})
		if err == nil {
			_ = inTime(time.Second, opened.Close) // one node is silent
		}
		_ = fresh.Close()
		if err == nil {
			return
		}
		if try == 4 {
			t.Fatalf("no lease is opened: %v", err)
		}
	}
}

// An answer that has come is one, although the Cluster client did not wait for those of
// all nodes.
func TestAnswerBesideASilentNode(t *testing.T) {
	c := newCmd(t.Context(), "evalsha", "", nil, nil)
	c.SetVal(int64(1))
	c.SetErr(context.DeadlineExceeded)
	if r := replyOf(c); r.err != nil || r.val != int64(1) {
		t.Errorf("%+v", r)
	}
	c = newCmd(t.Context(), "evalsha", "", nil, nil)
	c.SetErr(context.DeadlineExceeded)
	if r := replyOf(c); !errors.Is(r.err, context.DeadlineExceeded) {
		t.Errorf("%+v", r)
	}
}

// Who could not check the layout, and finds another one later, grants nothing more
// and lets the lease end.
func TestOtherLayoutIsRefusedLater(t *testing.T) { again(t, testOtherLayoutIsRefusedLater) }

func testOtherLayoutIsRefusedLater(t testing.TB) {
	s := partialCluster(t)
	url := s.URL() + noGrace + "&timeout=300ms"
	b, _ := sidecar(t, url, 5*time.Minute)
	n := nodeOf(t, s, b, b.keys.config)
	r := elsewhere(t, s, b, n, 0)
	// Another kind of sidecar was there first.
	if err := b.client.Set(t.Context(), b.keys.config, "version=1 buckets=64", 0).Err(); err != nil {
		t.Fatal(err)
	}
	start := testengine.Crash(t, n, testengine.KeepData)
	_, l := sidecar(t, url, 5*time.Minute)
	g := hold(t, l, r)
	start()
	eventually(t, "the lease is not renewed", func() error {
		err := beat(t.Context(), l)
		if !errors.Is(err, lock.ErrUnavailable) {
			return fmt.Errorf("Heartbeat: %w", err)
		}
		if _, err := try(t, l, "another"); !errors.Is(err, lock.ErrUnavailable) {
			return fmt.Errorf("a try: %w", err)
		}
		return nil
	})
	if err := l.Release(t.Context(), r, g.ID); err != nil {
		t.Errorf("Release: %v", err)
	}
}

// twoNodes gives the nodes of two resources, each on a node of its own; the bucket of
// the first comes first.
func twoNodes(t testing.TB, s testengine.Server, b *Backend) (r [2]lock.Resource, n [2]testengine.Node) {
	t.Helper()
	for i := 0; n[1] == nil && i < 1000; i++ {
		name := lock.Resource(fmt.Sprintf("of-two-%d", i))
		bucket := b.keys.bucketOf(name)
		at := nodeOf(t, s, b, b.keys.buckets[bucket].leases)
		switch {
		case i == 0 || n[0] == nil:
			r[0], n[0] = name, at
		case at.Addr() != n[0].Addr() && bucket > b.keys.bucketOf(r[0]):
			r[1], n[1] = name, at
		case at.Addr() != n[0].Addr(): // try to begin with this one
			r[0], n[0] = name, at
		}
	}
	if n[1] == nil {
		t.Fatal("all is on one node")
	}
	return r, n
}

// A node fails on which the lease has holds: what another node says of a forced
// release is told all the same, though the heartbeat does not count.
func TestNewsBesideANodeThatFails(t *testing.T) { again(t, testNewsBesideANodeThatFails) }

func testNewsBesideANodeThatFails(t testing.TB) {
	s := partialCluster(t)
	url := s.URL() + noGrace + "&timeout=300ms"
	b, _ := sidecar(t, url, 5*time.Minute)
	r, n := twoNodes(t, s, b)
	road := testengine.Through(t, s)
	_, l := sidecar(t, road.URL()+noGrace+"&timeout=300ms", 5*time.Minute)
	forced := hold(t, l, r[0])
	hold(t, l, r[1])
	road.Mute("subscribe")
	defer func() { _ = road.Heal() }()
	testengine.Crash(t, n[1], testengine.KeepData)
	eventually(t, "it is forced", func() error {
		ctx, cancel := context.WithTimeout(t.Context(), 200*time.Millisecond)
		defer cancel()
		if err := b.ForceRelease(ctx, r[0], forced.ID, time.Hour); !errors.Is(err, context.DeadlineExceeded) {
			return fmt.Errorf("ForceRelease: %w", err)
		}
		return nil
	})
	eventually(t, "the holder is told", func() error {
		news, err := l.Heartbeat(t.Context())
		if !errors.Is(err, lock.ErrUnavailable) {
			t.Fatalf("Heartbeat without a node that has holds: %v", err)
		}
		if len(news) != 1 || news[0].Kind != lock.Revoked || news[0].ID != forced.ID {
			return fmt.Errorf("news: %+v", news)
		}
		return nil
	})
}

// A comparison that ends in the middle, because another node fails, makes no server
// trusted: what it has found so far nobody acts on.
func TestHalfAComparisonTrustsNobody(t *testing.T) {
	t.Parallel() // it has servers of its own, and waits
	again(t, testHalfAComparisonTrustsNobody)
}

func testHalfAComparisonTrustsNobody(t testing.TB) {
	s := partialCluster(t)
	url := s.URL() + noGrace + "&timeout=300ms"
	b, l := sidecar(t, url, 5*time.Minute)
	r, n := twoNodes(t, s, b)
	d := driverOf(t, b, l)
	for _, r := range r {
		eventually(t, "granted", func() error {
			a, err := d.Ask(t.Context(), exclusive(r))
			if err == nil && !a.Granted {
				err = errors.New("not granted")
			}
			return err
		})
	}
	testengine.Restart(t, n[0], testengine.KeepData)
	eventually(t, "the stranger is noticed", func() error {
		news, err := d.Renew(t.Context(), nil)
		if err == nil && !news.Stranger {
			err = errors.New("no stranger")
		}
		return err
	})
	start := testengine.Crash(t, n[1], testengine.KeepData)
	found := 0
	if err := d.Held(t.Context(), func(leasekit.Ref) { found++ }); !errors.Is(err, lock.ErrUnavailable) || found == 0 {
		t.Fatalf("Held without the second node: %v, %d found", err, found)
	}
	_, _ = d.Renew(t.Context(), nil)
	slot := d.slots[b.keys.bucketOf(r[0])]
	if slot.trusted.Load() != nil {
		t.Error("the new server is trusted, although the comparison failed")
	}
	start()
	eventually(t, "all is compared and trusted", func() error {
		news, err := d.Renew(t.Context(), nil)
		if err == nil && news.Stranger {
			err = d.Held(t.Context(), func(leasekit.Ref) {})
		}
		if err == nil && slot.trusted.Load() == nil {
			err = errors.New("not trusted")
		}
		return err
	})
}
