package redislock

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/locksidecar/locksidecar/backends/leasekit"
	"github.com/locksidecar/locksidecar/internal/testengine"
	"github.com/locksidecar/locksidecar/lock"
)

// try asks once.
func try(t *testing.T, l lock.Lease, r lock.Resource) (lock.Grant, error) {
	t.Helper()
	q := exclusive(r)
	q.Try = true
	return l.Acquire(t.Context(), q)
}

// swallow reads the events of a lease until it is closed.
func swallow(l lock.Lease) {
	go func() {
		for range l.Events() {
		}
	}()
}

// A forced release whose message is lost is told by the next heartbeat, and its
// grace counts from then. Issue 9, 3.1.
func TestForcedReleaseWithoutPush(t *testing.T) {
	s := testengine.Shared(t, testengine.Redis)
	road := testengine.Through(t, s)
	_, holder := sidecar(t, road.URL()+noGrace, 30*time.Second)
	b, other := sidecar(t, s.URL()+noGrace, 30*time.Second)
	const r, grace = "forced-without-push", 300 * time.Millisecond
	g := hold(t, holder, r)
	road.Mute("subscribe")
	defer func() { _ = road.Heal() }()

	ctx, cancel := context.WithTimeout(t.Context(), 4*grace)
	defer cancel()
	if err := b.ForceRelease(ctx, r, g.ID, grace); !errors.Is(err, context.DeadlineExceeded) {
		t.Fatalf("ForceRelease while the holder knows nothing: got %v, want that it waits", err)
	}
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
func TestRetryAfterForcedRelease(t *testing.T) {
	s := testengine.Shared(t, testengine.Redis)
	b, l := sidecar(t, s.URL()+noGrace, 30*time.Second)
	swallow(l)
	q := exclusive("retry-after-force")
	if _, err := l.Acquire(t.Context(), q); err != nil {
		t.Fatal(err)
	}
	// The one who forces goes away, so that nobody takes the hold out.
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	_ = b.ForceRelease(ctx, q.Resource, q.ID, 100*time.Millisecond)
	d := driverOf(t, b, l)
	eventually(t, "a retry is refused", func() error {
		a, err := d.Ask(t.Context(), q)
		if errors.Is(err, lock.ErrNotHolder) {
			return nil
		}
		return fmt.Errorf("granted: %+v, %w", a, err)
	})
}

// driverOf is a driver of a lease that is open already, with the same id.
func driverOf(t *testing.T, b *Backend, l lock.Lease) *driver {
	t.Helper()
	d := &driver{
		b: b, id: l.ID(), ttl: 30 * time.Second, recheck: time.Second,
		beatTurn: make(chan struct{}, 1), more: make(chan lock.Resource, 8), looks: make(chan struct{}, 1),
		subscribed: make(chan struct{}),
	}
	for i := range b.keys.buckets {
		d.slots = append(d.slots, &slot{index: i, turn: make(chan struct{}, 1)})
	}
	d.renewed = b.clock()
	return d
}

// A shorter grace is told and acknowledged like the first one; a longer one
// changes nothing. Issue 9, 3.12.
func TestShorterGraceIsTold(t *testing.T) {
	s := testengine.Shared(t, testengine.Redis)
	b, l := sidecar(t, s.URL()+noGrace, 30*time.Second)
	g := hold(t, l, "shorter")
	force := func(grace time.Duration) {
		ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
		defer cancel()
		_ = b.ForceRelease(ctx, "shorter", g.ID, grace)
	}
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
	if left := told(); left < 59*time.Minute {
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

// relay leads to one server after the other, as a name in DNS or a load balancer may.
type relay struct {
	ln     net.Listener
	target atomic.Value

	mu    sync.Mutex
	conns []net.Conn
	wg    sync.WaitGroup
}

func newRelay(t *testing.T, target string) *relay {
	t.Helper()
	ln, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	r := &relay{ln: ln}
	r.target.Store(target)
	r.wg.Go(r.serve)
	t.Cleanup(func() {
		_ = ln.Close()
		r.sever()
		r.wg.Wait()
	})
	return r
}

func (r *relay) serve() {
	for {
		in, err := r.ln.Accept()
		if err != nil {
			return
		}
		out, err := net.Dial("tcp", r.target.Load().(string))
		if err != nil {
			_ = in.Close()
			continue
		}
		r.mu.Lock()
		r.conns = append(r.conns, in, out)
		r.mu.Unlock()
		for _, way := range [][2]net.Conn{{in, out}, {out, in}} {
			r.wg.Go(func() {
				_, _ = io.Copy(way[0], way[1])
				_ = way[0].Close()
				_ = way[1].Close()
			})
		}
	}
}

func (r *relay) sever() {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, c := range r.conns {
		_ = c.Close()
	}
	r.conns = nil
}

func (r *relay) lead(target string) {
	r.target.Store(target)
	r.sever()
}

// The way leads to another server and back to the first: what happened meanwhile
// on the other is not known there. Issue 9, 3.2.
func TestServerThatWasSeenBefore(t *testing.T) {
	a, b := testengine.New(t, testengine.Redis), testengine.New(t, testengine.Redis)
	addrA, addrB := strings.TrimPrefix(a.URL(), "redis://"), strings.TrimPrefix(b.URL(), "redis://")
	way := newRelay(t, addrA)
	url := "redis://" + way.ln.Addr().String() + noGrace
	_, l := sidecar(t, url, 30*time.Second)
	_, onA := sidecar(t, a.URL()+noGrace, 30*time.Second)
	released := hold(t, l, "released-on-b")

	copyData(t, addrA, addrB)
	way.lead(addrB)
	eventually(t, "the lease lives on B", func() error { return beat(t.Context(), l) })
	if err := l.Release(t.Context(), "released-on-b", released.ID); err != nil {
		t.Fatal(err)
	}
	// The first heartbeat compares; the next one trusts.
	eventually(t, "B is trusted", func() error { return beat(t.Context(), l) })
	granted := hold(t, l, "granted-on-b")

	way.lead(addrA)
	var news []lock.Event
	eventually(t, "the lease lives on A", func() (err error) {
		news, err = l.Heartbeat(t.Context())
		return err
	})
	if len(news) != 1 || news[0].Kind != lock.Vanished || news[0].ID != granted.ID {
		t.Errorf("back on A: got %+v, want that %s has vanished", news, granted.ID)
	}
	eventually(t, "what was released on B is free on A", func() error {
		_, err := try(t, onA, "released-on-b")
		return err
	})
}

// copyData makes one server a replica of another and then independent of it.
func copyData(t *testing.T, from, to string) {
	t.Helper()
	c := openAt(t, "redis://"+to)
	defer func() { _ = c.Close() }()
	host, port, _ := net.SplitHostPort(from)
	if err := c.client.Do(t.Context(), "replicaof", host, port).Err(); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the replica is up to date", func() error {
		text, err := c.client.Info(t.Context(), "replication").Result()
		if err != nil {
			return err
		}
		if parseInfo(text)["master_link_status"] != "up" {
			return errors.New("the link is not up")
		}
		return nil
	})
	if err := c.client.Do(t.Context(), "replicaof", "no", "one").Err(); err != nil {
		t.Fatal(err)
	}
}

// A release that believes to be alone deletes nobody else's hold. Issue 9, 3.3.
func TestReleaseBesideOtherReaders(t *testing.T) {
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

// What a server has decided about a dead lease is final, whatever its clock does.
// Issue 9, 3.7.
func TestClockForwardAndBack(t *testing.T) {
	s := testengine.New(t, testengine.RedisFakeTime)
	_, l := sidecar(t, s.URL()+noGrace, 30*time.Second)
	hold(t, l, "r")
	testengine.ShiftClock(t, s, time.Hour)
	_, other := sidecar(t, s.URL()+noGrace, 30*time.Second)
	hold(t, other, "r")
	testengine.ShiftClock(t, s, 0)
	if err := beat(t.Context(), l); !errors.Is(err, lock.ErrLeaseLost) {
		t.Errorf("Heartbeat of a lease whose hold was handed on: got %v, want ErrLeaseLost", err)
	}
	if err := beat(t.Context(), other); err != nil {
		t.Errorf("Heartbeat of the lease that has the hold now: %v", err)
	}
}

// The grace after a restart counts from when a living sidecar has noticed it, and
// not by the server's clock. Issue 9, 3.8.
func TestGraceDoesNotBelieveTheServersClock(t *testing.T) {
	s := testengine.New(t, testengine.RedisFakeTime)
	_, l := sidecar(t, s.URL()+"?restart-grace=3s", 10*time.Minute)
	testengine.Restart(t, s, testengine.KeepData)
	testengine.ShiftClock(t, s, time.Minute)
	noticed := time.Now()
	eventually(t, "Redis answers", func() error { return beat(t.Context(), l) })
	if _, err := try(t, l, "r"); !errors.Is(err, lock.ErrUnavailable) {
		t.Errorf("a try within the grace, with the clock a minute ahead: got %v, want ErrUnavailable", err)
	}
	eventually(t, "the lock is granted", func() error {
		if err := beat(t.Context(), l); err != nil {
			return err
		}
		_, err := try(t, l, "r")
		return err
	})
	if took := time.Since(noticed); took < 2500*time.Millisecond {
		t.Errorf("granted %s after the restart was noticed", took)
	}
}

// Servers that are no place for locks: Sentinels of Redis and of Valkey are no data
// servers, and without a run_id a restart cannot be noticed. Issue 9, 3.8.
func TestWhoIsAtTheOtherEnd(t *testing.T) {
	r := newRoad(nil)
	for _, mode := range []string{"redis_mode", "server_mode"} {
		if err := r.found(nil, map[string]string{mode: "sentinel", "run_id": "1"}); err != nil || r.current.Load() != nil {
			t.Errorf("%s=sentinel was taken for a data server (%v)", mode, err)
		}
	}
	if err := r.found(nil, map[string]string{"redis_mode": "standalone"}); !errors.Is(err, errNoRunID) {
		t.Errorf("a server without run_id: got %v, want a refusal", err)
	}
}

// A restart that keeps data, while somebody waits: a wait that ends within the
// grace leaves nothing. Issue 9, 3.13.
func TestWaitEndsWithinTheGrace(t *testing.T) {
	s := testengine.New(t, testengine.Redis)
	b, l := sidecar(t, s.URL()+"?restart-grace=2s", 5*time.Minute)
	_, other := sidecar(t, s.URL()+"?restart-grace=2s", 5*time.Minute)
	g := hold(t, other, "r")
	q := exclusive("r")
	waiting := make(chan error, 1)
	go func() {
		_, err := l.Acquire(t.Context(), q)
		waiting <- err
	}()
	eventually(t, "the request is queued", func() error {
		st, err := b.Get(t.Context(), "r")
		if err == nil && len(st.Waiters) != 1 {
			err = errors.New("no waiter")
		}
		return err
	})
	start := testengine.Crash(t, s, testengine.KeepData)
	if err := <-waiting; !errors.Is(err, lock.ErrUnavailable) {
		t.Fatalf("Acquire over a crash: got %v, want ErrUnavailable", err)
	}
	start()
	eventually(t, "Redis answers", func() error { return errors.Join(beat(t.Context(), l), beat(t.Context(), other)) })
	eventually(t, "the wait has ended and was withdrawn", func() error {
		ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
		defer cancel()
		_, err := l.Acquire(ctx, q)
		if errors.Is(err, context.DeadlineExceeded) && !errors.Is(err, lock.ErrUnavailable) {
			return nil
		}
		return fmt.Errorf("got %w", err)
	})
	if err := other.Release(t.Context(), "r", g.ID); err != nil {
		t.Fatal(err)
	}
	if st, err := b.Get(t.Context(), "r"); err != nil || len(st.Waiters)+len(st.Holders) != 0 {
		t.Errorf("left in the store: %+v, %v", st, err)
	}
}

// After a failover nothing is granted for a while, to those who were there and to
// those who come. Issue 9, 3.14.
func TestFailoverGrace(t *testing.T) {
	s := testengine.New(t, testengine.RedisSentinel)
	const grace = "?restart-grace=4s"
	_, l := sidecar(t, s.URL()+grace, 5*time.Minute)
	testengine.FailOver(t, s, testengine.KeepData)
	eventually(t, "the new master answers", func() error { return beat(t.Context(), l) })
	noticed := time.Now()
	fresh := openAt(t, s.URL()+grace)
	defer func() { _ = fresh.Close() }()
	if n, err := fresh.OpenLease(t.Context(), lock.LeaseOptions{TTL: time.Minute}); !errors.Is(err, lock.ErrUnavailable) {
		t.Errorf("a new sidecar after the failover: got %v, want ErrUnavailable", err)
		if err == nil {
			_ = n.Close(t.Context())
		}
	}
	eventually(t, "the lock is granted", func() error {
		if err := beat(t.Context(), l); err != nil {
			return err
		}
		_, err := try(t, l, "r")
		return err
	})
	if took := time.Since(noticed); took < 3*time.Second {
		t.Errorf("granted %s after the failover was noticed", took)
	}
}

// A server that was restarted hands out nothing until holders from before must
// have noticed; one that was emptied neither. Issue 9, 3.8.
func TestEmptiedStoreWaits(t *testing.T) {
	s := testengine.New(t, testengine.Redis)
	b, l := sidecar(t, s.URL(), 2*time.Second)
	hold(t, l, "r")
	flushed := time.Now()
	if err := b.client.FlushAll(t.Context()).Err(); err != nil {
		t.Fatal(err)
	}
	_, l2 := sidecar(t, s.URL(), 2*time.Second) // it does not know that there was anything
	hold(t, l2, "r")
	if took := time.Since(flushed); took < 2*time.Second {
		t.Errorf("granted %s after the store was emptied, sooner than the TTL", took)
	}
	if err := beat(t.Context(), l); !errors.Is(err, lock.ErrLeaseLost) {
		t.Errorf("Heartbeat after FLUSHALL: got %v, want ErrLeaseLost", err)
	}
}

// A grant that comes by push is believed only from the server that is trusted.
// Issue 9, 3.12.
func TestPushIsBelievedFromTheTrustedServerOnly(t *testing.T) {
	s := testengine.Shared(t, testengine.Redis)
	b, l := sidecar(t, s.URL()+noGrace, 30*time.Second)
	d := driverOf(t, b, l)
	now := b.only.current.Load()
	d.slots[0].past.Store(b.pasts[0].version.Load())
	if d.believes(now) {
		t.Error("a server that no heartbeat has looked at is believed")
	}
	d.slots[0].trusted.Store(&server{by: now})
	if !d.believes(now) {
		t.Error("the trusted server is not believed")
	}
	if d.believes(&presence{run: now.run}) || d.believes(nil) {
		t.Error("the same process after another one, or nobody, is believed")
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
