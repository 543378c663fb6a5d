package redislock

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/locksidecar/locksidecar/backends/backendtest"
	"github.com/locksidecar/locksidecar/backends/leasekit"
	"github.com/locksidecar/locksidecar/internal/testengine"
	"github.com/locksidecar/locksidecar/lock"
)

// A release that believes to be alone deletes nobody else's hold. Issue 9, 3.3.
func TestReleaseBesideOtherReaders(t *testing.T) { again(t, testReleaseBesideOtherReaders) }

func testReleaseBesideOtherReaders(t testing.TB) {
	s := testengine.Shared(t, testengine.Redis)
	b, l := sidecar(t, s.URL()+noGrace, 30*time.Second)
	_, other := sidecar(t, s.URL()+noGrace, 30*time.Second)
	g := hold(t, l, "beside")
	if err := l.Downgrade(t.Context(), "beside", g.ID); err != nil {
		t.Fatal(err)
	}
	q := exclusive("beside")
	q.Mode = lock.Shared
	if _, err := other.Acquire(t.Context(), q); err != nil {
		t.Fatal(err)
	}
	d := driverOf(t, b, l)
	d.slots[0].open.Store(true)
	w := leasekit.Withdrawal{Ref: leasekit.Ref{Resource: "beside", ID: g.ID}, Mode: lock.Exclusive, Proven: true}
	if _, err := d.Withdraw(t.Context(), w); err != nil {
		t.Fatal(err)
	}
	if st, err := b.Get(t.Context(), "beside"); err != nil || len(st.Holders) != 1 || st.Holders[0].ID != q.ID {
		t.Errorf("the other reader's hold: %+v, %v", st, err)
	}
}

// The way leads to a replica that does not know the lease, and back. A replica does not say that a lease is over.
func TestReplicaEndsNoLease(t *testing.T) { again(t, testReplicaEndsNoLease) }

func testReplicaEndsNoLease(t testing.TB) {
	s, other := testengine.New(t, testengine.Redis), testengine.New(t, testengine.Redis)
	way := testengine.Through(t, s)
	b, l := sidecar(t, way.URL()+noGrace, 5*time.Minute)
	g := hold(t, l, "r")
	if err := plain(t, testengine.Nodes(t, other)[0].Addr()).Do(t.Context(), "replicaof", "127.0.0.1", 1).Err(); err != nil { // of a master that is not there
		t.Fatal(err)
	}
	before := b.only.current.Load()
	lead := func(to testengine.Server) {
		way.Retarget(testengine.Nodes(t, to)[0].Addr())
		way.Inject(testengine.Sever)
	}
	lead(other)
	eventually(t, "the sidecar is at the replica", func() error {
		if err := b.Ping(t.Context()); err != nil {
			return err
		}
		if b.only.current.Load() == before {
			return errors.New("not yet")
		}
		return nil
	})
	describes := l.(*backendtest.TimedLease).Lease.(lock.Contender).Describe
	for what, err := range map[string]error{
		"a request":            failure(try(t, l, "another")),
		"a downgrade":          l.Downgrade(t.Context(), g.Resource, g.ID),
		"a note of who has it": describes(t.Context(), g.Resource, g.ID, ""),
		"a release":            l.Release(t.Context(), g.Resource, g.ID),
	} {
		if !errors.Is(err, lock.ErrUnavailable) {
			t.Errorf("%s at a replica: got %v, want ErrUnavailable", what, err)
		}
	}
	lead(s)
	eventually(t, "the lease lives", func() error {
		err := beat(t.Context(), l)
		if errors.Is(err, lock.ErrLeaseLost) {
			t.Fatal(err)
		}
		return err
	})
}

// The replica knows the lease, and lags behind since. It does not say that a hold is not there, either.
func TestReplicaEndsNoHold(t *testing.T) { again(t, testReplicaEndsNoHold) }

func testReplicaEndsNoHold(t testing.TB) {
	s := testengine.New(t, testengine.Redis)
	w := &wayBack{TB: t, way: testengine.Through(t, s)}
	w.b, w.first = sidecar(t, w.way.URL()+noGrace, 5*time.Minute)
	other := testengine.ForkRedis(t, s)
	g := hold(t, w.first, "r")
	if err := plain(t, testengine.Nodes(t, other)[0].Addr()).Do(t.Context(), "replicaof", "127.0.0.1", 1).Err(); err != nil { // of a master that is not there
		t.Fatal(err)
	}
	before := w.b.only.current.Load()
	w.lead(other)
	w.meets(before)
	describes := w.first.(*backendtest.TimedLease).Lease.(lock.Contender).Describe
	for what, err := range map[string]error{
		"a downgrade":          w.first.Downgrade(t.Context(), g.Resource, g.ID),
		"a note of who has it": describes(t.Context(), g.Resource, g.ID, ""),
	} {
		if !errors.Is(err, lock.ErrUnavailable) {
			t.Errorf("%s at a replica that lacks the hold: got %v, want ErrUnavailable", what, err)
		}
	}
	w.lead(s)
	for range 2 { // the first one compares
		eventually(t, "the lease lives", func() error {
			news, err := w.first.Heartbeat(t.Context())
			if len(news) > 0 {
				t.Fatalf("it is told: %+v", news)
			}
			return err
		})
	}
	if err := release(t.Context(), w.first, g.Resource, g.ID); err != nil {
		t.Errorf("release: %v", err)
	}
}

func failure[T any](_ T, err error) error { return err }

// A tombstone lives as long as a late copy can be carried out. Issue 9, 3.12.
func TestTombstoneLivesForTheTTL(t *testing.T) { again(t, testTombstoneLivesForTheTTL) }

func testTombstoneLivesForTheTTL(t testing.TB) {
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

// A wait that ends between two steps of one request leaves nothing in the queue.
func TestWaitEndsBetweenSteps(t *testing.T) { again(t, testWaitEndsBetweenSteps) }

func testWaitEndsBetweenSteps(t testing.TB) {
	s := testengine.Shared(t, testengine.Redis)
	_, dying := sidecar(t, s.URL()+noGrace, 10*time.Second)
	many(t, 500, func(int) error {
		q := exclusive("steps")
		q.Mode = lock.Shared
		_, err := acquire(t.Context(), dying, q)
		return err
	})
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	b, err := Open(s.URL()+noGrace, func(what string, _ time.Duration, _ error) {
		if what == "acquire" {
			cancel()
		}
	})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = b.Close() }()
	l, err := b.OpenLease(t.Context(), lock.LeaseOptions{TTL: 30 * time.Second})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = l.Close(t.Context()) }()
	eventually(t, "the readers' lease is over", func() error {
		st, err := b.Get(t.Context(), "steps")
		if err == nil && len(st.Holders) > 0 {
			err = fmt.Errorf("%d readers", len(st.Holders))
		}
		return err
	})
	if _, err := l.Acquire(ctx, exclusive("steps")); !errors.Is(err, context.Canceled) || errors.Is(err, lock.ErrUnavailable) {
		t.Errorf("Acquire: got %v, want that its wait has ended", err)
	}
	if st, err := b.Get(t.Context(), "steps"); err != nil || len(st.Waiters)+len(st.Holders) != 0 {
		t.Errorf("left: %d holders, %d waiters, %v", len(st.Holders), len(st.Waiters), err)
	}
}

// An id is given up in a bucket that the lease has closed: a copy of its request
// that arrives after the bucket was opened again is not carried out.
func TestGivenUpInAClosedBucket(t *testing.T) { again(t, testGivenUpInAClosedBucket) }

func testGivenUpInAClosedBucket(t testing.TB) {
	s := testengine.Shared(t, testengine.Redis)
	b, l := sidecar(t, s.URL()+noGrace, 30*time.Second)
	d, q := driverOf(t, b, l), exclusive("closed-bucket")
	w, err := d.Withdraw(t.Context(), leasekit.Withdrawal{Ref: leasekit.Ref{Resource: q.Resource, ID: q.ID}, Unsure: true})
	if err != nil || w.Found {
		t.Fatalf("Withdraw: %+v, %v", w, err)
	}
	if a, err := d.Ask(t.Context(), q); !errors.Is(err, lock.ErrNotHolder) {
		t.Errorf("the late copy: got %+v, %v, want ErrNotHolder", a, err)
	}
}

// A request that reaches the driver after Close, for a bucket that was not in use,
// does not make the lease known again.
func TestClosedLeaseOpensNoBucket(t *testing.T) { again(t, testClosedLeaseOpensNoBucket) }

func testClosedLeaseOpensNoBucket(t testing.TB) {
	s := testengine.Shared(t, testengine.RedisCluster)
	b, l := sidecar(t, s.URL()+noGrace, 30*time.Second)
	d := driverOf(t, b, l)
	d.id = lock.NewLeaseID()
	if _, err := d.Ask(t.Context(), exclusive("before-close")); err != nil {
		t.Fatal(err)
	}
	if err := d.Close(t.Context()); err != nil {
		t.Fatal(err)
	}
	q := exclusive("after-close")
	if a, err := d.Ask(t.Context(), q); !errors.Is(err, lock.ErrLeaseLost) {
		t.Errorf("a request after Close: got %+v, %v, want ErrLeaseLost", a, err)
	}
	if st, err := b.Get(t.Context(), q.Resource); err != nil || len(st.Holders) > 0 {
		t.Errorf("left: %+v, %v", st, err)
	}
}

// A node that does not answer holds up no release on the others.
func TestCloseBesideAPausedNode(t *testing.T) {
	t.Parallel() // it has servers of its own, and waits
	again(t, testCloseBesideAPausedNode)
}

func testCloseBesideAPausedNode(t testing.TB) {
	s := testengine.New(t, testengine.RedisCluster)
	b, l := sidecar(t, s.URL()+noGrace, 5*time.Minute)
	cluster := b.client.(*redis.ClusterClient)
	at := map[string][]lock.Resource{}
	for i := range 60 {
		r := lock.Resource(fmt.Sprintf("r-%d", i))
		hold(t, l, r)
		c, err := cluster.MasterForKey(t.Context(), b.keys.buckets[b.keys.bucketOf(r)].leases)
		if err != nil {
			t.Fatal(err)
		}
		at[c.Options().Addr] = append(at[c.Options().Addr], r)
	}
	other, _ := sidecar(t, s.URL()+noGrace, 5*time.Minute)
	paused := testengine.Nodes(t, s)[0]
	resume := testengine.Pause(t, paused)
	defer resume()
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
	defer cancel()
	if err := l.Close(ctx); !errors.Is(err, lock.ErrUnavailable) {
		t.Errorf("Close: got %v, want ErrUnavailable for the node that is paused", err)
	}
	resume() // else the others answer nothing either, before long
	kept := 0
	for addr, rs := range at {
		if addr == paused.Addr() {
			continue
		}
		for _, r := range rs {
			var st lock.Status
			eventually(t, "the node answers", func() (err error) { st, err = other.Get(t.Context(), r); return err })
			kept += len(st.Holders)
		}
	}
	if kept != 0 {
		t.Errorf("%d holds are left on nodes that answer", kept)
	}
}
