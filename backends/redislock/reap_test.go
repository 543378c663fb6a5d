package redislock

import (
	"context"
	"errors"
	"fmt"
	"strings"
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
func TestDeadLeasesAreClearedAway(t *testing.T) { again(t, testDeadLeasesAreClearedAway) }

func testDeadLeasesAreClearedAway(t testing.TB) {
	s := testengine.New(t, testengine.Redis)
	b := openAt(t, s.URL()+noGrace)
	t.Cleanup(func() { _ = b.Close() })
	_, living := sidecar(t, s.URL()+noGrace, 30*time.Second)
	hold(t, living, "mine")
	const leases = 100
	for i := range leases {
		l, err := b.OpenLease(t.Context(), lock.LeaseOptions{TTL: 5 * time.Second})
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
		// config, last, leases; lock and list of the living; the reaper's mark
		if len(keys) > 6 {
			return fmt.Errorf("%d keys", len(keys))
		}
		return nil
	})
}

// What a dead sidecar left is cleared away also in buckets that no living sidecar
// uses, soon and not a bucket at a time.
func TestUnusedBucketsAreClearedAway(t *testing.T) {
	t.Parallel() // it has servers of its own, and waits
	again(t, testUnusedBucketsAreClearedAway)
}

func testUnusedBucketsAreClearedAway(t testing.TB) {
	s := testengine.New(t, testengine.RedisCluster)
	road := testengine.Through(t, s)
	_, mortal := sidecar(t, road.URL()+noGrace, 10*time.Second)
	many(t, 2000, func(i int) error {
		_, err := acquire(t.Context(), mortal, exclusive(lock.Resource(fmt.Sprintf("left-%d", i))))
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
func beatNow(t testing.TB, l lock.Lease, i int) error {
	if i%200 != 0 {
		return nil
	}
	return beat(t.Context(), l)
}

// What dead sidecars left is cleared away when the memory is full, too.
func TestFullMemoryIsClearedOfTheDead(t *testing.T) {
	t.Parallel() // it has servers of its own, and waits
	again(t, testFullMemoryIsClearedOfTheDead)
}

func testFullMemoryIsClearedOfTheDead(t testing.TB) {
	s := testengine.New(t, testengine.Redis)
	road := testengine.Through(t, s)
	_, mortal := sidecar(t, road.URL()+noGrace, 10*time.Second)
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
func TestFoundDeadIsFinal(t *testing.T) { again(t, testFoundDeadIsFinal) }

func testFoundDeadIsFinal(t testing.TB) {
	s := testengine.New(t, testengine.RedisFakeTime)
	b, l := sidecar(t, s.URL()+noGrace, time.Minute)
	hold(t, l, "left")
	testengine.ShiftClock(t, s, time.Hour)
	d := driverOf(t, b, l)
	f := d.findDead(t.Context(), 0)
	testengine.ShiftClock(t, s, 0)
	if f.lease != string(l.ID()) {
		t.Fatalf("found dead: %+v, want %s", f, l.ID())
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

// An idle sidecar makes one request a beat, and so does one with holds. The heartbeat runs four
// commands in Redis, as many as that of the first edition. The push connection is asked for a sign of life
// with a heartbeat where there are holds, and else seldom. Issue 9, its last line.
func TestIdleSidecarAsksOnceABeat(t *testing.T) { again(t, testIdleSidecarAsksOnceABeat) }

func testIdleSidecarAsksOnceABeat(t testing.TB) {
	s := testengine.New(t, testengine.Redis)
	b, l := sidecar(t, s.URL()+noGrace, 5*time.Second)
	costOfBeats(t, b, l, 0)
	hold(t, l, "one")
	costOfBeats(t, b, l, 1)
}

func costOfBeats(t testing.TB, b *Backend, l lock.Lease, pings int) {
	t.Helper()
	const beats = 10
	eventually(t, "ten heartbeats are ten requests", func() error {
		if err := b.client.ConfigResetStat(t.Context()).Err(); err != nil {
			return err
		}
		for range beats { // for longer than a sidecar leaves dead leases alone
			time.Sleep(300 * time.Millisecond)
			if err := beat(t.Context(), l); err != nil {
				return err
			}
		}
		calls, err := commandCalls(t.Context(), b.client)
		switch asked := calls["evalsha"] + calls["eval"]; {
		case err != nil:
			return err
		case asked != beats:
			return fmt.Errorf("%d requests in %d heartbeats: %v", asked, beats, calls)
		}
		if n := calls["ping"]; n < pings || n > pings*beats {
			return fmt.Errorf("%d pings in %d heartbeats", n, beats)
		}
		inside := 0
		for _, name := range []string{"time", "zrangebyscore", "zadd", "info", "get", "zcard", "zrange", "zrem", "zscore", "set"} {
			inside += calls[name]
		}
		if inside != 4*beats { // a new connection makes one more
			return fmt.Errorf("%d commands in %d heartbeats: %v", inside, beats, calls)
		}
		return nil
	})
}

// commandCalls is how often each command was called, also by scripts.
func commandCalls(ctx context.Context, c redis.UniversalClient) (map[string]int, error) {
	text, err := c.Info(ctx, "commandstats").Result()
	calls := make(map[string]int)
	for name, stats := range parseInfo(text) {
		var n int
		if _, err := fmt.Sscanf(stats, "calls=%d,", &n); err == nil {
			calls[strings.TrimPrefix(name, "cmdstat_")] = n
		}
	}
	return calls, err
}

// openBackend is a backend that lives as long as the test.
func openBackend(t testing.TB, url string) *Backend {
	t.Helper()
	b := openAt(t, url)
	t.Cleanup(func() { _ = b.Close() })
	return b
}

// findsDead sends heartbeats until one has found a dead lease.
func findsDead(t testing.TB, d *driver, dead *driver) (f finding) {
	t.Helper()
	eventually(t, "a heartbeat finds the dead lease", func() error {
		if _, err := d.Renew(t.Context(), nil); err != nil {
			return err
		}
		select {
		case f = <-d.found:
			return nil
		default:
			return errors.New("it has found none")
		}
	})
	if f.ours && f.lease != string(dead.id) {
		t.Fatalf("found %q, want %q", f.lease, dead.id)
	}
	return f
}

// The heartbeat of a sidecar finds what a killed one has left, and while one sidecar
// clears it away, the others do nothing.
func TestHeartbeatFindsTheDead(t *testing.T) { again(t, testHeartbeatFindsTheDead) }

func testHeartbeatFindsTheDead(t testing.TB) {
	s := testengine.New(t, testengine.Redis)
	b := openBackend(t, s.URL()+noGrace)
	living := []*driver{lone(t, b, time.Minute), lone(t, b, time.Minute)}
	killed := lone(t, b, time.Minute)
	if a, err := killed.Ask(t.Context(), exclusive("left")); err != nil || !a.Granted {
		t.Fatalf("Ask: %+v, %v", a, err)
	}
	dies(t, killed)
	eventually(t, "one of them has the turn", func() error {
		found := []finding{findsDead(t, living[0], killed), findsDead(t, living[1], killed)}
		if found[0].ours == found[1].ours {
			return fmt.Errorf("they have found %+v", found)
		}
		for i, f := range found {
			living[i].reap(t.Context(), f) // one of them finds nothing to do
		}
		return nil
	})
	for _, d := range living {
		if _, err := d.Renew(t.Context(), nil); err != nil {
			t.Fatal(err)
		}
		select {
		case f := <-d.found:
			t.Errorf("found when all was cleared away: %+v", f)
		default:
		}
	}
	if left, err := leftoversOn(t.Context(), b.client.(*redis.Client), "left"); err != nil || len(left) > 0 {
		t.Errorf("left: %v, %v", left, err)
	}
}

// dies makes the next heartbeat of a lease its last.
func dies(t testing.TB, d *driver) {
	t.Helper()
	d.ttl = 100 * time.Millisecond
	if _, err := d.Renew(t.Context(), nil); err != nil {
		t.Fatal(err)
	}
}

// A heartbeat is good although Redis refuses what is for the dead.
func TestHeartbeatWithoutReaping(t *testing.T) { again(t, testHeartbeatWithoutReaping) }

func testHeartbeatWithoutReaping(t testing.TB) {
	s := testengine.New(t, testengine.Redis)
	addr := strings.TrimPrefix(s.URL(), "redis://")
	root := plain(t, addr)
	rights := func(words ...any) {
		t.Helper()
		if err := root.Do(t.Context(), append([]any{"acl", "setuser", "some"}, words...)...).Err(); err != nil {
			t.Fatal(err)
		}
	}
	rights("on", ">secret", "~*", "&*", "+@all")
	d := lone(t, openBackend(t, "redis://some:secret@"+addr+noGrace), time.Minute)
	dead := lone(t, openBackend(t, s.URL()+noGrace), time.Minute)
	dies(t, dead)
	rights("-set")
	if f := findsDead(t, d, dead); f.ours {
		t.Error("it has the turn without the right to take it")
	}
	rights("+set")
	if f := findsDead(t, d, dead); !f.ours {
		t.Error("it does not have the turn")
	}
}

// A lease that is opened again in a bucket in which it was over is left alone by who has
// found it dead there: it may be given locks.
func TestReopenedLeaseIsNotClearedAway(t *testing.T) { again(t, testReopenedLeaseIsNotClearedAway) }

func testReopenedLeaseIsNotClearedAway(t testing.TB) {
	s := testengine.New(t, testengine.Redis)
	b := openBackend(t, s.URL()+noGrace)
	d, again := lone(t, b, time.Minute), lone(t, b, time.Minute)
	for _, r := range []lock.Resource{"", "held"} {
		dies(t, again)
		f := findsDead(t, d, again)
		again.slots[0].open.Store(false)
		again.ttl, again.renewed = time.Minute, b.clock()
		if err := again.openSlot(t.Context(), again.slots[0]); err != nil {
			t.Fatal(err)
		}
		if r != "" {
			if a, err := again.Ask(t.Context(), exclusive(r)); err != nil || !a.Granted {
				t.Fatalf("Ask: %+v, %v", a, err)
			}
		}
		ctx, cancel := context.WithTimeout(t.Context(), patience)
		defer cancel()
		if err := d.clear(ctx, 0, lock.LeaseID(f.lease), scriptReap); err != nil {
			t.Errorf("clear with %q: %v", r, err)
		}
		if _, err := again.Renew(t.Context(), nil); err != nil {
			t.Fatalf("heartbeat of who lives again with %q: %v", r, err)
		}
	}
}

// The bucket that is kept open when a lease has nothing in any is the first, if it can be.
func TestFirstBucketIsKeptOpen(t *testing.T) { again(t, testFirstBucketIsKeptOpen) }

func testFirstBucketIsKeptOpen(t testing.TB) {
	s := testengine.Shared(t, testengine.RedisCluster)
	d := lone(t, openBackend(t, s.URL()+noGrace), time.Minute)
	for _, i := range []int{5, 63} {
		eventually(t, "a bucket is opened", func() error { return d.openSlot(t.Context(), d.slots[i]) })
	}
	eventually(t, "one bucket is open", func() error {
		for _, s := range d.slots {
			s.idle = d.b.clock() - 2*d.ttl // that long ago something was there
		}
		if _, err := d.Renew(t.Context(), nil); err != nil {
			return err
		}
		var open []int
		for i, s := range d.slots {
			if s.open.Load() {
				open = append(open, i)
			}
		}
		if len(open) != 1 || open[0] != 0 {
			return fmt.Errorf("open: %v", open)
		}
		return nil
	})
}
