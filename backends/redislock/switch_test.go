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

	"github.com/locksidecar/locksidecar/internal/testengine"
	"github.com/locksidecar/locksidecar/lock"
)

// relay leads to one server after the other, as a name in DNS or a load balancer may.
type relay struct {
	ln     net.Listener
	target atomic.Value

	mu    sync.Mutex
	conns []net.Conn
	wg    sync.WaitGroup
}

func newRelay(t testing.TB, target string) *relay {
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
func TestServerThatWasSeenBefore(t *testing.T) { again(t, testServerThatWasSeenBefore) }

func testServerThatWasSeenBefore(t testing.TB) {
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
func copyData(t testing.TB, from, to string) {
	t.Helper()
	c := openAt(t, "redis://"+to)
	defer func() { _ = c.Close() }()
	if err := plain(t, from).ConfigSet(t.Context(), "repl-diskless-sync-delay", "0").Err(); err != nil { // else Redis waits for more replicas
		t.Fatal(err)
	}
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

// Servers that are no place for locks: Sentinels of Redis and of Valkey are no data
// servers, and without a run_id a restart cannot be noticed. Issue 9, 3.8.
func TestWhoIsAtTheOtherEnd(t *testing.T) {
	r := newRoad(nil)
	for _, mode := range []string{"redis_mode", "server_mode"} {
		if err := r.found(nil, map[string]string{mode: "sentinel", "run_id": "1"}, time.Now()); err != nil || r.current.Load() != nil {
			t.Errorf("%s=sentinel was taken for a data server (%v)", mode, err)
		}
	}
	if err := r.found(nil, map[string]string{"redis_mode": "standalone"}, time.Now()); !errors.Is(err, errNoRunID) {
		t.Errorf("a server without run_id: got %v, want a refusal", err)
	}
}

// A grant that comes by push is believed only from the server that is trusted.
// Issue 9, 3.12.
func TestPushIsBelievedFromTheTrustedServerOnly(t *testing.T) {
	again(t, testPushIsBelievedFromTheTrustedServerOnly)
}

func testPushIsBelievedFromTheTrustedServerOnly(t testing.TB) {
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

// Three faults: a waiter is forced out of the queue and does not hear of it, the next one
// is granted, and a replica that knows neither takes over. There the waiter stands in front
// of the holder, who waits: so the holder is told that its hold is lost.
func TestHolderWhoWaitsOnTheNewServer(t *testing.T) { again(t, testHolderWhoWaitsOnTheNewServer) }

func testHolderWhoWaitsOnTheNewServer(t testing.TB) {
	s := testengine.New(t, testengine.Redis)
	first, _ := sidecar(t, s.URL()+noGrace, 30*time.Second)
	_, a := sidecar(t, s.URL()+noGrace, 30*time.Second)
	forcedOut, held := testengine.Through(t, s), testengine.Through(t, s)
	_, w := sidecar(t, forcedOut.URL()+noGrace, 30*time.Second)
	_, b := sidecar(t, held.URL()+noGrace, 30*time.Second)
	ctx, cancel := context.WithCancel(t.Context())
	var waits sync.WaitGroup
	defer waits.Wait()
	defer cancel()
	queued := func(l lock.Lease, waiters int) (lock.HoldID, <-chan lock.Grant) {
		q, granted := exclusive("r"), make(chan lock.Grant, 1)
		waits.Go(func() {
			if g, err := l.Acquire(ctx, q); err == nil {
				granted <- g
			}
		})
		eventually(t, "it stands in the queue", func() error {
			st, err := first.Get(t.Context(), "r")
			if err == nil && len(st.Waiters) != waiters {
				err = errors.New("not yet")
			}
			return err
		})
		return q.ID, granted
	}
	g := hold(t, a, "r")
	gone, _ := queued(w, 1)
	_, granted := queued(b, 2)
	fork := testengine.Nodes(t, testengine.ForkRedis(t, s))[0].Addr()

	forcedOut.Mute("subscribe")
	if err := first.ForceRelease(t.Context(), "r", gone, 0); err != nil {
		t.Fatal(err)
	}
	if err := a.Release(t.Context(), "r", g.ID); err != nil {
		t.Fatal(err)
	}
	got := <-granted
	held.Retarget(fork)
	held.Inject(testengine.Sever)
	var news []lock.Event
	eventually(t, "a heartbeat is answered", func() (err error) {
		news, err = b.Heartbeat(t.Context())
		return err
	})
	if len(news) != 1 || news[0].Kind != lock.Vanished || news[0].ID != got.ID {
		t.Errorf("Heartbeat: got %+v, want that %s has vanished", news, got.ID)
	}
}

// The way leads to another server, which says no more than that the lease is over, and back to the
// first. Its mark is as old as before, and all the same nothing is granted for a TTL: others may have
// been granted something meanwhile. Issue 11.
func TestGraceAfterALeaseThatWasLostElsewhere(t *testing.T) {
	again(t, testGraceAfterALeaseThatWasLostElsewhere)
}

func testGraceAfterALeaseThatWasLostElsewhere(t testing.TB) {
	s := testengine.New(t, testengine.Redis)
	way := testengine.Through(t, s)
	b, l := sidecar(t, way.URL()+noGrace, 30*time.Second)
	fork := testengine.ForkRedis(t, s)
	there := openAt(t, fork.URL()+noGrace)
	defer func() { _ = there.Close() }()
	if n, err := there.client.ZRem(t.Context(), there.keys.buckets[0].leases, string(l.ID())).Result(); n != 1 || err != nil {
		t.Fatalf("the fork has %d of the lease, want 1 (%v)", n, err)
	}
	const grace = 5 * time.Minute
	b.cfg.grace = grace
	p := &b.pasts[0]
	p.mu.Lock()
	p.since -= 2 * grace // it has long been at work
	p.mu.Unlock()
	lead := func(to testengine.Server) {
		way.Retarget(testengine.Nodes(t, to)[0].Addr())
		way.Inject(testengine.Sever)
	}
	lead(fork)
	eventually(t, "the lease is over on the fork", func() error {
		if err := beat(t.Context(), l); !errors.Is(err, lock.ErrLeaseLost) {
			return fmt.Errorf("Heartbeat: got %w, want ErrLeaseLost", err)
		}
		return nil
	})
	lead(s)
	eventually(t, "the first server answers", func() error { return b.Ping(t.Context()) })
	next, err := b.OpenLease(t.Context(), lock.LeaseOptions{TTL: 30 * time.Second, Sidecar: "next"})
	if err == nil {
		swallow(next)
		_ = next.Close(t.Context())
	}
	if !errors.Is(err, lock.ErrUnavailable) || !strings.Contains(err.Error(), "granted again in") {
		t.Errorf("OpenLease: got %v, want that locks are granted again later", err)
	}
}
