package redislock

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/locksidecar/locksidecar/internal/testengine"
	"github.com/locksidecar/locksidecar/lock"
)

// What a dead sidecar left is cleared away by another one's heartbeats, though
// nobody asks for those resources any more; many dead sidecars in little time.
// Issue 9, 3.12.
func TestDeadLeasesAreClearedAway(t *testing.T) {
	s := testengine.New(t, testengine.Redis)
	b := openAt(t, s.URL()+noGrace)
	t.Cleanup(func() { _ = b.Close() })
	_, living := sidecar(t, s.URL()+noGrace, 30*time.Second)
	hold(t, living, "mine")
	const leases = 100
	for i := range leases {
		l, err := b.OpenLease(t.Context(), lock.LeaseOptions{TTL: 2 * time.Second})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = l.Close(context.Background()) })
		hold(t, l, lock.Resource(fmt.Sprintf("r%d", i)))
	}
	eventually(t, "nothing is left of the dead leases", func() error {
		if err := beat(t.Context(), living); err != nil {
			return err
		}
		keys, err := b.client.Keys(t.Context(), "*").Result()
		if err != nil {
			return err
		}
		// config, last, mark, leases; lock and list of the living; the reaper's mark
		if len(keys) > 7 {
			return fmt.Errorf("%d keys", len(keys))
		}
		return nil
	})
}

// What a dead sidecar left is cleared away also in buckets that no living sidecar
// uses, soon and not a bucket at a time.
func TestUnusedBucketsAreClearedAway(t *testing.T) {
	s := testengine.New(t, testengine.RedisCluster)
	road := testengine.Through(t, s)
	_, mortal := sidecar(t, road.URL()+noGrace, 3*time.Second)
	many(t, 2000, func(i int) error {
		_, err := mortal.Acquire(t.Context(), exclusive(lock.Resource(fmt.Sprintf("left-%d", i))))
		return errors.Join(err, beatNow(t, mortal, i))
	})
	b, _ := sidecar(t, s.URL()+noGrace, 5*time.Minute)
	road.Inject(testengine.Cut)
	eventually(t, "nothing is left of the dead lease", func() error {
		var mu sync.Mutex
		var left []string
		err := b.client.(*redis.ClusterClient).ForEachMaster(t.Context(), func(ctx context.Context, c *redis.Client) error {
			found, err := leftoversOn(ctx, c, "left-")
			mu.Lock()
			defer mu.Unlock()
			left = append(left, found...)
			return err
		})
		if err == nil && len(left) > 0 {
			err = fmt.Errorf("%d, such as %s", len(left), left[0])
		}
		return err
	})
}

// beatNow renews a lease while many holds are taken.
func beatNow(t *testing.T, l lock.Lease, i int) error {
	if i%200 != 0 {
		return nil
	}
	return beat(t.Context(), l)
}

// What dead sidecars left is cleared away when the memory is full, too.
func TestFullMemoryIsClearedOfTheDead(t *testing.T) {
	s := testengine.New(t, testengine.Redis)
	road := testengine.Through(t, s)
	_, mortal := sidecar(t, road.URL()+noGrace, 4*time.Second)
	b, living := sidecar(t, s.URL()+noGrace, 5*time.Minute)
	for i := range 100 {
		hold(t, mortal, lock.Resource(fmt.Sprintf("left-%d", i)))
	}
	hold(t, living, "mine")
	for name, value := range map[string]string{"maxmemory": "1mb", "maxmemory-policy": "noeviction"} {
		if err := b.client.ConfigSet(t.Context(), name, value).Err(); err != nil {
			t.Fatal(err)
		}
	}
	road.Inject(testengine.Cut)
	eventually(t, "nothing is left of the dead lease", func() error {
		if _, err := try(t, living, "new"); !errors.Is(err, lock.ErrUnavailable) {
			t.Fatalf("a new lock with full memory: got %v, want ErrUnavailable", err)
		}
		left, err := leftoversOn(t.Context(), b.client.(*redis.Client), "left-")
		if err == nil && len(left) > 0 {
			err = fmt.Errorf("%d, such as %s", len(left), left[0])
		}
		return err
	})
}

// A lease that was found dead is cleared away although the server's clock is set
// back in between, and is over for its sidecar.
func TestFoundDeadIsFinal(t *testing.T) {
	s := testengine.New(t, testengine.RedisFakeTime)
	b, l := sidecar(t, s.URL()+noGrace, time.Minute)
	hold(t, l, "left")
	testengine.ShiftClock(t, s, time.Hour)
	d := driverOf(t, b, l)
	dead, _ := d.deadIn(t.Context(), 0)
	testengine.ShiftClock(t, s, 0)
	if len(dead) != 1 || dead[0] != string(l.ID()) {
		t.Fatalf("found dead: %v, want %s", dead, l.ID())
	}
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	if err := d.clear(ctx, 0, l.ID(), scriptReap); err != nil {
		t.Errorf("clear: %v", err)
	}
	if err := beat(t.Context(), l); !errors.Is(err, lock.ErrLeaseLost) {
		t.Errorf("Heartbeat: got %v, want ErrLeaseLost", err)
	}
}
