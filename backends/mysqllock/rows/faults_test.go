package rows

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/locksidecar/locksidecar/internal/testengine"
	"github.com/locksidecar/locksidecar/lock"
)

const patience = 20 * time.Second

// onEach runs a test on both kinds of server.
func onEach(t *testing.T, f func(t *testing.T, s testengine.Server)) {
	for _, kind := range kinds {
		t.Run(kind.String(), func(t *testing.T) {
			t.Parallel()
			f(t, testengine.Shared(t, kind))
		})
	}
}

// alone does the same on servers of the test's own.
func alone(t *testing.T, f func(t *testing.T, s testengine.Server)) {
	for _, kind := range kinds {
		t.Run(kind.String(), func(t *testing.T) {
			t.Parallel()
			f(t, testengine.New(t, kind))
		})
	}
}

const noGrace = "?restart-grace=0s"

// sidecar opens a backend and a lease that live as long as the test.
func sidecar(t *testing.T, url string, ttl time.Duration) (*Backend, *lease) {
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
	return b, l.(*lease)
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
		time.Sleep(10 * time.Millisecond)
	}
}

func name(t *testing.T) lock.Resource { return lock.Resource(t.Name()) }

func request(r lock.Resource, m lock.Mode) lock.Request {
	return lock.Request{ID: lock.NewHoldID(), Resource: r, Mode: m, Owner: lock.Owner{Session: "test"}.Encode()}
}

func hold(t *testing.T, l *lease, r lock.Resource) lock.Grant {
	t.Helper()
	g, err := l.Acquire(t.Context(), request(r, lock.Exclusive))
	if err != nil {
		t.Fatalf("Acquire: %v", err)
	}
	return g
}

func held(t *testing.T, l *lease, r lock.Resource, m lock.Mode) {
	t.Helper()
	q := request(r, m)
	q.Try = true
	if g, err := l.Acquire(t.Context(), q); !errors.Is(err, lock.ErrHeld) {
		t.Fatalf("try of what is held: got %+v, %v; want ErrHeld", g, err)
	}
}

// waiting is an Acquire under way.
type waiting struct {
	q     lock.Request
	done  chan struct{}
	grant lock.Grant
	err   error
}

// queue begins to acquire and returns when the server has the request waiting.
func queue(t *testing.T, b *Backend, l *lease, q lock.Request) *waiting {
	t.Helper()
	w := &waiting{q: q, done: make(chan struct{})}
	ctx := t.Context()
	go func() {
		defer close(w.done)
		w.grant, w.err = l.Acquire(ctx, q)
	}()
	eventually(t, "the request waits", func() error {
		st, err := b.Get(t.Context(), q.Resource)
		if err == nil && len(st.Waiters) == 0 {
			err = errors.New("nobody waits")
		}
		return err
	})
	return w
}

func (w *waiting) wait(t *testing.T) {
	t.Helper()
	select {
	case <-w.done:
	case <-time.After(patience):
		t.Fatal("Acquire does not return")
	}
}

func (w *waiting) granted(t *testing.T) lock.Grant {
	t.Helper()
	w.wait(t)
	if w.err != nil {
		t.Fatalf("Acquire: %v", w.err)
	}
	return w.grant
}

// connection is the number of the link that a hold or waiter has on the server.
func connection(t *testing.T, b *Backend, id lock.HoldID) int64 {
	t.Helper()
	link := scanOne[string](t, url(b), "SELECT link FROM locksidecar_row_hold WHERE id=?", []byte(id))
	n, err := b.connectionOf(t.Context(), b.pool, link)
	if err != nil || n == 0 {
		t.Fatalf("the link of %s is connection %d, %v", id, n, err)
	}
	return n
}

func url(b *Backend) string {
	return fmt.Sprintf("mysql://%s@%s/%s", b.cfg.User, b.cfg.Addrs[0], b.cfg.Database)
}

func event(t *testing.T, l *lease, want lock.Event) {
	t.Helper()
	select {
	case ev := <-l.Events():
		if ev != want {
			t.Errorf("got the event %+v, want %+v", ev, want)
		}
	case <-time.After(patience):
		t.Errorf("no event %+v", want)
	}
}

// isLost is nil when the lease knows that it is.
func isLost(t *testing.T, l *lease) error {
	switch err := beat(t.Context(), l); {
	case errors.Is(err, lock.ErrLeaseLost):
		return nil
	case err == nil:
		return errors.New("a heartbeat is answered")
	default:
		return fmt.Errorf("heartbeat: %w", err)
	}
}

// A link that the server ends is the end of the hold, and told at once: long
// before anybody would ask.
func TestKilledHold(t *testing.T) {
	onEach(t, func(t *testing.T, s testengine.Server) {
		b, l := sidecar(t, s.URL()+noGrace, 10*time.Minute)
		_, other := sidecar(t, s.URL()+noGrace, 10*time.Minute)
		r := name(t)
		kept, g := hold(t, l, r+"/kept"), hold(t, l, r)
		w := queue(t, b, other, request(r, lock.Exclusive))
		exec(t, s.URL(), fmt.Sprintf("KILL %d", connection(t, b, g.ID)))
		event(t, l, lock.Event{Kind: lock.Vanished, Resource: r, ID: g.ID})
		if next := w.granted(t); next.Fence <= g.Fence {
			t.Errorf("fence %d after %d", next.Fence, g.Fence)
		}
		if err := l.Release(t.Context(), r, g.ID); !errors.Is(err, lock.ErrNotHolder) {
			t.Errorf("Release of what vanished: %v", err)
		}
		if err := beat(t.Context(), l); err != nil {
			t.Errorf("Heartbeat: %v", err)
		}
		held(t, other, kept.Resource, lock.Exclusive)
		if err := l.Release(t.Context(), kept.Resource, kept.ID); err != nil {
			t.Errorf("Release of another hold: %v", err)
		}
	})
}

// A link may end while an answer is on its way on it. Then the driver notices,
// and closes the socket, often before the watcher of idle sockets does.
func TestKilledInHeartbeat(t *testing.T) {
	onEach(t, func(t *testing.T, s testengine.Server) {
		b, l := sidecar(t, s.URL()+noGrace, 10*time.Minute)
		r := name(t)
		for range 8 {
			g := hold(t, l, r)
			n := connection(t, b, g.ID)
			ctx, cancel := context.WithCancel(t.Context())
			beaten := make(chan error, 1)
			go func() {
				var err error
				for ctx.Err() == nil && err == nil {
					err = beat(t.Context(), l)
				}
				beaten <- err
			}()
			exec(t, s.URL(), fmt.Sprintf("KILL %d", n))
			event(t, l, lock.Event{Kind: lock.Vanished, Resource: r, ID: g.ID})
			cancel()
			if err := <-beaten; err != nil {
				t.Errorf("Heartbeat: %v", err)
			}
			if t.Failed() {
				return
			}
		}
	})
}

// The release finds out by itself that the link is gone, also when it is quicker
// than the news.
func TestReleaseOfKilledHold(t *testing.T) {
	onEach(t, func(t *testing.T, s testengine.Server) {
		b, l := sidecar(t, s.URL()+noGrace, 10*time.Minute)
		r := name(t)
		for range 5 {
			g := hold(t, l, r)
			n := connection(t, b, g.ID)
			killed := make(chan struct{})
			go func() {
				defer close(killed)
				exec(t, s.URL(), fmt.Sprintf("KILL %d", n))
			}()
			err := l.Release(t.Context(), r, g.ID)
			<-killed
			if err != nil && !errors.Is(err, lock.ErrNotHolder) {
				t.Errorf("Release of a hold whose link is killed: %v", err)
			}
			if st, err := b.Get(t.Context(), r); err != nil || len(st.Holders) > 0 {
				t.Errorf("after the release there is %+v, %v", st, err)
			}
		}
	})
}

// The link of the lease is the lease: without it all holds end, and those who
// wait for them go on.
func TestKilledLease(t *testing.T) {
	onEach(t, func(t *testing.T, s testengine.Server) {
		_, l := sidecar(t, s.URL()+noGrace, 10*time.Minute)
		b, other := sidecar(t, s.URL()+noGrace, 10*time.Minute)
		r := name(t)
		hold(t, l, r)
		blocked := hold(t, other, r+"/blocked")
		own := queue(t, b, l, request(blocked.Resource, lock.Exclusive))
		w := queue(t, b, other, request(r, lock.Exclusive))
		n, err := b.connectionOf(t.Context(), b.pool, l.main.token)
		if err != nil {
			t.Fatal(err)
		}
		exec(t, s.URL(), fmt.Sprintf("KILL %d", n))
		w.granted(t)
		if own.wait(t); !errors.Is(own.err, lock.ErrLeaseLost) {
			t.Errorf("a wait ended with %v, want ErrLeaseLost", own.err)
		}
		eventually(t, "the lease is lost", func() error { return isLost(t, l) })
		if _, err := l.Acquire(t.Context(), request(r+"/new", lock.Exclusive)); !errors.Is(err, lock.ErrLeaseLost) {
			t.Errorf("Acquire: got %v, want ErrLeaseLost", err)
		}
	})
}

// A wait survives whatever happens to its statement and to its link.
func TestKilledWait(t *testing.T) {
	onEach(t, func(t *testing.T, s testengine.Server) {
		b, l := sidecar(t, s.URL()+noGrace, 10*time.Minute)
		_, other := sidecar(t, s.URL()+noGrace, 10*time.Minute)
		r := name(t)
		g := hold(t, l, r)
		w := queue(t, b, other, request(r, lock.Exclusive))
		first := connection(t, b, w.q.ID)
		exec(t, s.URL(), fmt.Sprintf("KILL QUERY %d", first))
		time.Sleep(20 * time.Millisecond) // it would end soon after
		exec(t, s.URL(), fmt.Sprintf("KILL %d", first))
		eventually(t, "it waits on another connection", func() error {
			if link := scanOne[string](t, s.URL(), "SELECT link FROM locksidecar_row_hold WHERE id=?", []byte(w.q.ID)); link != "" {
				switch n, err := b.connectionOf(t.Context(), b.pool, link); {
				case err != nil:
					return err
				case n == 0 || n == first:
					return fmt.Errorf("it is connection %d", n)
				}
			}
			return nil
		})
		select {
		case <-w.done:
			t.Fatalf("the wait is over: %v", w.err)
		default:
		}
		// Longer than one statement waits.
		time.Sleep(linkWait + linkWait/2)
		if err := l.Release(t.Context(), r, g.ID); err != nil {
			t.Fatal(err)
		}
		w.granted(t)
	})
}

// A machine that vanishes from the network leaves nothing for longer than its
// lease, and does not take the silence for a loss.
func TestPartition(t *testing.T) {
	onEach(t, func(t *testing.T, s testengine.Server) {
		road := testengine.Through(t, s)
		const ttl = 2 * time.Second
		_, l := sidecar(t, road.URL()+noGrace, ttl)
		b, other := sidecar(t, s.URL()+noGrace, 10*time.Minute)
		r := name(t)
		g := hold(t, l, r)
		renewed := time.Now()
		if err := beat(t.Context(), l); err != nil {
			t.Fatal(err)
		}
		road.Inject(testengine.HoldAll)
		w := queue(t, b, other, request(r, lock.Exclusive))
		ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
		defer cancel()
		if err := beat(ctx, l); !errors.Is(err, lock.ErrUnavailable) || errors.Is(err, lock.ErrLeaseLost) {
			t.Errorf("Heartbeat without an answer: %v", err)
		}
		next := w.granted(t)
		if took := time.Since(renewed); took < ttl {
			t.Errorf("granted %s after a heartbeat of a lease of %s", took, ttl)
		}
		if next.Fence <= g.Fence {
			t.Errorf("fence %d after %d", next.Fence, g.Fence)
		}
		if err := road.Heal(); err != nil {
			t.Fatal(err)
		}
		// The links ended one after the other, so that of the lease may just live.
		eventually(t, "the sidecar is told", func() error {
			select {
			case ev := <-l.Events():
				if want := (lock.Event{Kind: lock.Vanished, Resource: r, ID: g.ID}); ev != want {
					t.Errorf("got the event %+v, want %+v", ev, want)
				}
				return nil
			default:
			}
			return isLost(t, l)
		})
	})
}

// A network that comes back within the TTL has cost nothing.
func TestShortSilence(t *testing.T) {
	onEach(t, func(t *testing.T, s testengine.Server) {
		road := testengine.Through(t, s)
		_, l := sidecar(t, road.URL()+noGrace, 30*time.Second)
		_, other := sidecar(t, s.URL()+noGrace, 10*time.Minute)
		r := name(t)
		g := hold(t, l, r)
		for range 2 {
			road.Inject(testengine.HoldAll)
			ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
			if err := beat(ctx, l); !errors.Is(err, lock.ErrUnavailable) {
				t.Errorf("Heartbeat without an answer: %v", err)
			}
			cancel()
			if err := road.Heal(); err != nil {
				t.Fatal(err)
			}
			eventually(t, "a heartbeat is answered", func() error { return beat(t.Context(), l) })
		}
		held(t, other, r, lock.Shared)
		if err := l.Release(t.Context(), r, g.ID); err != nil {
			t.Errorf("Release: %v", err)
		}
	})
}

// A sidecar whose connections are all cut, as by its end, holds nothing: what it
// had is free at once, and what it waited for after one wait of a statement.
func TestCut(t *testing.T) {
	onEach(t, func(t *testing.T, s testengine.Server) {
		road := testengine.Through(t, s)
		dead, l := sidecar(t, road.URL()+noGrace, 10*time.Minute)
		b, other := sidecar(t, s.URL()+noGrace, 10*time.Minute)
		r := name(t)
		hold(t, l, r)
		blocker := hold(t, other, r+"/blocker")
		queue(t, dead, l, request(blocker.Resource, lock.Exclusive))
		w := queue(t, b, other, request(r, lock.Exclusive))
		start := time.Now()
		road.Inject(testengine.Cut)
		w.granted(t)
		if took := time.Since(start); took > patience/2 { // of minutes that its lease had
			t.Errorf("a hold of a sidecar that was cut was free only after %s", took)
		}
		eventually(t, "the waiter is gone", func() error {
			st, err := b.Get(t.Context(), blocker.Resource)
			if err == nil && len(st.Waiters) > 0 {
				err = errors.New("it waits")
			}
			return err
		})
		if err := other.Release(t.Context(), blocker.Resource, blocker.ID); err != nil {
			t.Fatal(err)
		}
		hold(t, other, blocker.Resource)
		eventually(t, "the lease is lost", func() error { return isLost(t, l) })
	})
}

// The answer to the request that got the row is lost: asking again gets it, or
// the lease is lost with its connections, and nothing is left.
func TestCutInAcquire(t *testing.T) {
	onEach(t, func(t *testing.T, s testengine.Server) {
		for _, at := range []string{"NOWAIT", "row_fence", "COMMIT"} {
			road := testengine.Through(t, s)
			_, l := sidecar(t, road.URL()+noGrace, 10*time.Minute)
			_, other := sidecar(t, s.URL()+noGrace, 10*time.Minute)
			q := request(name(t), lock.Exclusive)
			sprung := road.LoseReply(at, testengine.Sever)
			_, err := l.Acquire(t.Context(), q)
			if at == "COMMIT" {
				err = l.Release(t.Context(), q.Resource, q.ID)
			}
			<-sprung
			if err != nil && !errors.Is(err, lock.ErrUnavailable) && !errors.Is(err, lock.ErrLeaseLost) && !errors.Is(err, lock.ErrNotHolder) {
				t.Errorf("cut after %s: %v", at, err)
			}
			g := hold(t, other, q.Resource)
			if err := other.Release(t.Context(), q.Resource, g.ID); err != nil {
				t.Error(err)
			}
		}
	})
}

// A primary that was made a replica keeps nobody's lock: the new primary does
// not know of it.
func TestReadOnly(t *testing.T) {
	alone(t, func(t *testing.T, s testengine.Server) {
		b, l := sidecar(t, s.URL()+noGrace, 10*time.Minute)
		hold(t, l, "r")
		exec(t, s.URL(), "SET GLOBAL read_only=1")
		if err := beat(t.Context(), l); !errors.Is(err, lock.ErrLeaseLost) {
			t.Errorf("Heartbeat on a replica: got %v, want ErrLeaseLost", err)
		}
		if _, err := b.OpenLease(t.Context(), lock.LeaseOptions{TTL: time.Second}); !errors.Is(err, lock.ErrUnavailable) || !strings.Contains(err.Error(), "read_only") {
			t.Errorf("OpenLease on a replica: got %v, want ErrUnavailable because of read_only", err)
		}
		exec(t, s.URL(), "SET GLOBAL read_only=0")
		_, l = sidecar(t, s.URL()+noGrace, 10*time.Minute)
		hold(t, l, "r")
	})
}

// A server that was started lately grants nothing until holders from before must
// have noticed.
func TestRestartGrace(t *testing.T) {
	alone(t, func(t *testing.T, s testengine.Server) {
		testengine.Restart(t, s, testengine.KeepData)
		b := openAt(t, s.URL())
		defer func() { _ = b.Close() }()
		for ttl, refused := range map[time.Duration]bool{lock.MinTTL: false, lock.MaxTTL: true} {
			var err error
			eventually(t, "the server's start is long enough ago", func() error {
				var l lock.Lease
				if l, err = b.OpenLease(t.Context(), lock.LeaseOptions{TTL: ttl}); err == nil {
					_ = l.Close(t.Context())
				}
				if refused {
					return nil
				}
				return err
			})
			if refused && (!errors.Is(err, lock.ErrUnavailable) || !strings.Contains(err.Error(), "started lately")) {
				t.Errorf("OpenLease right after a start: got %v, want ErrUnavailable", err)
			}
		}
	})
}

// No setting of the server's administrator changes anything.
func TestOddSettings(t *testing.T) {
	alone(t, func(t *testing.T, s testengine.Server) {
		exec(t, s.URL(), "SET GLOBAL sql_mode='ANSI_QUOTES,NO_BACKSLASH_ESCAPES,PIPES_AS_CONCAT'; SET GLOBAL time_zone='-11:00'; "+
			"SET GLOBAL innodb_lock_wait_timeout=50; SET GLOBAL wait_timeout=1; SET GLOBAL autocommit=0; "+
			"SET GLOBAL TRANSACTION ISOLATION LEVEL SERIALIZABLE")
		b, l := sidecar(t, s.URL()+noGrace, 30*time.Second)
		_, other := sidecar(t, s.URL()+noGrace, 30*time.Second)
		r := lock.Resource(`odd "name" 'x' \' ü`)
		g := hold(t, l, r)
		if age := time.Since(time.UnixMicro(int64(g.Fence / lock.FenceRange))); age < -time.Minute || age > time.Minute {
			t.Errorf("a fence is %s old", age)
		}
		w := queue(t, b, other, request(r, lock.Shared))
		time.Sleep(1500 * time.Millisecond) // longer than the server's wait_timeout
		if st, err := b.Get(t.Context(), r); err != nil || len(st.Holders) != 1 || st.Holders[0].Age > time.Minute {
			t.Errorf("Get: %+v, %v", st, err)
		}
		if err := l.Release(t.Context(), r, g.ID); err != nil {
			t.Error(err)
		}
		w.granted(t)
	})
}

// beat sends one heartbeat, for its outcome alone.
func beat(ctx context.Context, l lock.Lease) error {
	_, err := l.Heartbeat(ctx)
	return err
}
