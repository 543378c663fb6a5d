package zklock

import (
	"context"
	"errors"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/locksidecar/locksidecar/backends/leasekit"
	"github.com/locksidecar/locksidecar/internal/testengine"
	"github.com/locksidecar/locksidecar/lock"
)

// TestForcedWaiterIsGranted: whoever forces a waiter out of the queue is slow, and
// finds it granted. Its app has its grace as any holder.
func TestForcedWaiterIsGranted(t *testing.T) {
	const grace = 3 * time.Second
	eachLayout(t, func(t testing.TB, url, options string) {
		way, through := newRoad(t, url)
		forcer := openAt(t, through+options)
		t.Cleanup(func() { _ = forcer.Close() })
		_, l := sidecar(t, url+options, 15*time.Second)
		b, o := sidecar(t, url+options, 15*time.Second)
		holder := live(t, l)
		live(t, o)
		for _, m := range []lock.Mode{lock.Exclusive, lock.Shared} {
			r := unique()
			first := hold(t, o, r, lock.Exclusive)
			w := queue(t, b, l, request(r, m))
			q := request(r, lock.Exclusive)
			next := queue(t, b, o, q)
			id := listed(t, b, r)[1]

			seen, pass := make(chan struct{}), make(chan struct{})
			var once sync.Once
			way.set(func(w *road) {
				w.request = func(op int32, body string) action {
					if (op == opDelete || op == opMulti) && strings.Contains(body, string(id)) {
						once.Do(func() { close(seen); <-pass })
					}
					return 0
				}
			})
			forced := make(chan error, 1)
			go func() { forced <- forcer.ForceRelease(context.WithoutCancel(t.Context()), r, id, grace) }()
			<-seen
			if m == lock.Shared { // granted though its place in the queue is the same
				if err := o.Downgrade(t.Context(), r, first.ID); err != nil {
					t.Fatal(err)
				}
			} else {
				release(t, o, first)
			}
			g := w.granted()
			close(pass)
			if told := holder.revoked(g.ID, lock.BootTime()+time.Hour); told.until < told.at+grace/2 {
				t.Errorf("%s: the holder was left %s of a grace of %s", m, told.until-told.at, grace)
			}
			if m == lock.Shared {
				release(t, o, first)
			}
			release(t, o, next.grantedAfter(holder, g.ID))
			if err := <-forced; err != nil {
				t.Errorf("ForceRelease: %v", err)
			}
		}
	})
}

// listed are the ids of holders and waiters.
func listed(t testing.TB, b *Backend, r lock.Resource) (ids []lock.HoldID) {
	t.Helper()
	st, err := b.Get(t.Context(), r)
	if err != nil {
		t.Fatal(err)
	}
	for _, h := range append(st.Holders, st.Waiters...) {
		ids = append(ids, h.ID)
	}
	return ids
}

// TestMissingWaiterHoldsUpNobody: a waiter was forced out of the queue, and the
// connection ends with the very question why its node is gone. The next one of that
// sidecar is granted by the next recheck, and does not wait for a heartbeat.
func TestMissingWaiterHoldsUpNobody(t *testing.T) {
	eachLayout(t, func(t testing.TB, url, options string) {
		way, road := newRoad(t, url)
		b, l := sidecar(t, road+options, 15*time.Second) // no heartbeats
		b2, l2 := sidecar(t, url+options, 15*time.Second)
		live(t, l2)
		r := unique()
		g := hold(t, l2, r, lock.Exclusive)
		first, next := request(r, lock.Exclusive), request(r, lock.Exclusive)
		forced := queue(t, b, l, first)
		w := queue(t, b, l, next)
		cut := way.once(opMulti, "", cutBefore)
		if err := b2.ForceRelease(t.Context(), r, first.ID, 0); err != nil {
			t.Fatal(err)
		}
		release(t, l2, g)
		<-cut
		w.granted()
		<-forced.done
		if !errors.Is(forced.err, lock.ErrNotHolder) {
			t.Errorf("who was forced out: %v", forced.err)
		}
	})
}

// TestForcedAtOnceByWhoIsGone: no watch of the holder's tells anything, and whoever
// took its hold away at once is gone the moment that this is done. The holder's next
// heartbeat tells.
func TestForcedAtOnceByWhoIsGone(t *testing.T) {
	eachLayout(t, func(t testing.TB, url, options string) {
		way, through := newRoad(t, url)
		broken, forcers := newRoad(t, url)
		forcer := openAt(t, forcers+options)
		t.Cleanup(func() { _ = forcer.Close() })
		_, l := sidecar(t, through+options, 15*time.Second)
		b, _ := sidecar(t, url+options, 15*time.Second)
		g := hold(t, l, unique(), lock.Exclusive)
		time.Sleep(2 * lastsAfter) // so that the watch is set, and not what it tells is lost on the way
		way.set(func(r *road) { r.mute = true })
		if err := forcer.Ping(t.Context()); err != nil {
			t.Fatal(err)
		}
		gone := false
		broken.set(func(r *road) {
			r.request = func(op int32, body string) action {
				switch {
				case gone:
					return drop
				case (op == opDelete || op == opMulti) && strings.Contains(body, string(g.ID)):
					gone = true // after this one
				}
				return pass
			}
		})
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan struct{})
		go func() { defer close(done); _ = forcer.ForceRelease(ctx, g.Resource, g.ID, 0) }()
		eventually(t, "the hold is gone", func() error {
			if len(listed(t, b, g.Resource)) > 0 {
				return errors.New("it is not")
			}
			return nil
		})
		cancel()
		<-done
		news, err := l.Heartbeat(t.Context())
		if err != nil || len(news) != 1 || news[0].Kind != lock.Revoked || news[0].ID != g.ID || news[0].Until != 0 {
			t.Errorf("the next heartbeat: %+v, %v", news, err)
		}
	})
}

// TestGraceOfWhoReadsNoEvents: no event is ever read. A heartbeat tells of the forced
// release, and only then the grace begins; that it is over is told until the hold is
// released.
func TestGraceOfWhoReadsNoEvents(t *testing.T) {
	const grace = 300 * time.Millisecond
	eachLayout(t, func(t testing.TB, url, options string) {
		_, l := sidecar(t, url+options, 15*time.Second)
		b, _ := sidecar(t, url+options, 15*time.Second)
		g := hold(t, l, unique(), lock.Exclusive)
		forced, _ := force(t, b, g, grace)
		select {
		case err := <-forced:
			t.Fatalf("ForceRelease before the holder knew: %v", err)
		case <-time.After(2 * grace):
		}
		told := lock.BootTime()
		heartbeat := func() []lock.Event {
			t.Helper()
			news, err := l.Heartbeat(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			return news
		}
		if news := heartbeat(); len(news) != 1 || news[0].Kind != lock.Revoked || news[0].ID != g.ID {
			t.Fatalf("news: %+v", news)
		}
		if err := <-forced; err != nil || lock.BootTime() < told+grace {
			t.Errorf("ForceRelease %s after the holder knew: %v", lock.BootTime()-told, err)
		}
		if news := heartbeat(); len(news) != 1 {
			t.Errorf("news when the grace is over: %+v", news)
		}
		if err := l.Release(t.Context(), g.Resource, g.ID); !errors.Is(err, lock.ErrNotHolder) {
			t.Errorf("Release: %v", err)
		}
		if news := heartbeat(); len(news) != 0 {
			t.Errorf("news after the release: %+v", news)
		}
	})
}

// TestForcedReleaseKeepsNoLeaseAlive: the lease of a sidecar ends for want of heartbeats while
// a forced release waits that was asked for there. That goes on without the lease.
func TestForcedReleaseKeepsNoLeaseAlive(t *testing.T) { again(t, testForcedReleaseKeepsNoLeaseAlive) }

func testForcedReleaseKeepsNoLeaseAlive(t testing.TB) {
	url := testengine.Shared(t, testengine.ZooKeeper).URL() + "/forced-silent"
	b := openAt(t, url)
	t.Cleanup(func() { _ = b.Close() })
	_, holder := sidecar(t, url, 30*time.Second)
	other, waiter := sidecar(t, url, 30*time.Second)
	forced := hold(t, holder, "forced", lock.Exclusive)
	beside := request("beside", lock.Exclusive)
	eventually(t, "a lease lasts until it holds something", func() error { // the machine may be busy
		_, err := newLease(t, b, 2*time.Second).Acquire(t.Context(), beside)
		return err
	})
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- b.ForceRelease(ctx, forced.Resource, forced.ID, time.Hour) }()
	defer cancel()
	var describing sync.WaitGroup
	describing.Go(func() { // the hold changes hands, and who waits for its end looks each time
		for ctx.Err() == nil {
			_ = holder.Lease.(lock.Contender).Describe(ctx, forced.Resource, forced.ID, request("forced", lock.Exclusive).Owner)
			leasekit.Sleep(ctx, 50*time.Millisecond)
		}
	})
	queue(t, other, waiter, request(beside.Resource, lock.Exclusive)).granted()
	select {
	case err := <-done:
		t.Fatalf("ForceRelease ends with the lease: %v", err)
	default:
	}
	release(t, holder, forced)
	if err := <-done; err != nil {
		t.Errorf("ForceRelease: %v", err)
	}
	cancel()
	describing.Wait()
}

// TestForcedOutUnheard: a waiter is forced out of the queue while its sidecar is cut off, and has
// not heard that it is there. It does not come back.
func TestForcedOutUnheard(t *testing.T) {
	t.Parallel()
	s := testengine.Shared(t, testengine.ZooKeeper)
	for name, beats := range map[string]bool{"Before": true, "After": false} {
		subtest(t, "Heartbeat"+name, func(t testing.TB) {
			way, url := newRoad(t, s.URL())
			_, l := sidecar(t, url, 30*time.Second)
			b, other := sidecar(t, s.URL(), 30*time.Second)
			g := hold(t, other, unique(), lock.Exclusive)
			q := request(g.Resource, lock.Exclusive)
			way.set(func(r *road) {
				r.request = func(op int32, body string) action {
					if op != opCreate || !strings.Contains(body, string(q.ID)) {
						return pass
					}
					way.Shut(hosts(s.URL())[0])
					return cutAfter
				}
			})
			if g, err := l.Acquire(t.Context(), q); !errors.Is(err, lock.ErrUnavailable) {
				t.Fatalf("Acquire without an answer: %+v, %v", g, err)
			}
			if err := b.ForceRelease(t.Context(), q.Resource, q.ID, 0); err != nil {
				t.Fatal(err)
			}
			way.Shut("")
			way.set(func(r *road) { r.request = nil })
			if beats {
				eventually(t, "a heartbeat hears of it", func() error { return beat(t.Context(), l) })
			}
			eventually(t, "the store answers", func() error {
				ctx, cancel := context.WithTimeout(t.Context(), time.Second)
				defer cancel()
				g, err := l.Acquire(ctx, q)
				switch {
				case errors.Is(err, lock.ErrUnavailable):
					return err
				case !errors.Is(err, lock.ErrNotHolder):
					t.Errorf("Acquire of who was forced out: %+v, %v", g, err)
				}
				return nil
			})
			if all := listed(t, b, g.Resource); len(all) != 1 {
				t.Errorf("beside the holder there are %v", all)
			}
		})
	}
}
