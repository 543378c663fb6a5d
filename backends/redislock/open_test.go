package redislock

import (
	"sync"
	"testing"
	"time"

	"github.com/locksidecar/locksidecar/internal/testengine"
)

// A lease whose subscription is not confirmed is handed out while most of its TTL is
// left: it needs no heartbeat before the first request.
func TestLeaseIsHandedOutAlive(t *testing.T) {
	for _, kind := range []*testengine.Kind{testengine.Redis, testengine.RedisCluster} {
		t.Run(kind.String(), func(t *testing.T) {
			road := testengine.Through(t, testengine.Shared(t, kind))
			road.Mute("subscribe")
			defer func() { _ = road.Heal() }()
			const ttl = 8 * time.Second
			_, l := sidecar(t, road.URL()+noGrace+"&timeout=16s", ttl)
			hold(t, l, "first")
			hold(t, l, "second") // in a Cluster: of another bucket
		})
	}
}

// A bucket that is opened long after the last heartbeat lives as long as the next
// heartbeat that does not know of it promises. Issue 9, 3.6.
func TestBucketIsOpenedForTheFullTTL(t *testing.T) { again(t, testBucketIsOpenedForTheFullTTL) }

func testBucketIsOpenedForTheFullTTL(t testing.TB) {
	const ttl = 10 * time.Second
	s := testengine.Shared(t, testengine.RedisCluster)
	b, l := sidecar(t, s.URL()+noGrace, ttl)
	time.Sleep(ttl / 2) // so that the lease has an age
	asked := time.Now()
	hold(t, l, "late")
	k := b.keys.buckets[b.keys.bucketOf("late")]
	expiry, err := b.client.ZScore(t.Context(), k.leases, string(l.ID())).Result()
	if err != nil {
		t.Fatal(err)
	}
	// All nodes of the test are on this machine.
	if left := time.Duration(expiry-float64(asked.UnixMicro())) * time.Microsecond; left < ttl*3/4 {
		t.Errorf("a bucket that was just opened lives for %s, want %s", left, ttl)
	}
}

// The first requests come together, each with a connection of its own: none of them
// ends because another one has found out first who is there.
func TestFirstRequestsTogether(t *testing.T) {
	url := testengine.Shared(t, testengine.Redis).URL() + noGrace
	for range 20 { // two must have asked who is there before one of them is answered
		b := openAt(t, url)
		var all sync.WaitGroup
		for range 8 {
			all.Go(func() {
				if _, err := b.Get(t.Context(), "first"); err != nil {
					t.Error(err)
				}
			})
		}
		all.Wait()
		if err := b.Close(); err != nil {
			t.Error(err)
		}
	}
}

// A heartbeat waits for its turn while another one proves more: what is proven does not go
// back. Issue 9, 3.6.
func TestRenewedNeverGoesBack(t *testing.T) { again(t, testRenewedNeverGoesBack) }

func testRenewedNeverGoesBack(t testing.TB) {
	s := testengine.Shared(t, testengine.Redis)
	b := openAt(t, s.URL()+noGrace)
	defer func() { _ = b.Close() }()
	d := lone(t, b, 5*time.Minute)
	d.beatTurn <- struct{}{}
	done := make(chan error, 1)
	go func() {
		_, err := d.Renew(t.Context(), nil)
		done <- err
	}()
	time.Sleep(100 * time.Millisecond) // it waits, if the machine is not very busy
	proven := b.clock()
	d.mu.Lock()
	d.renewed = proven
	d.mu.Unlock()
	<-d.beatTurn
	if err := <-done; err != nil {
		t.Fatal(err)
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.renewed < proven {
		t.Errorf("broken law: it was renewed at %s, and then at %s", proven, d.renewed)
	}
}
