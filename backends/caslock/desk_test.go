package caslock

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/locksidecar/locksidecar/backends/leasekit"
	"github.com/locksidecar/locksidecar/lock"
)

// busy is a road to a store that carries out one request at a time, each of which takes a millisecond.
type busy struct {
	*road
	server         chan struct{} // has a value while it works
	requests, most *atomic.Int32
	under          atomic.Int32
}

func (r *busy) Do(ctx context.Context, x Txn) (Result, error) {
	r.requests.Add(1)
	if n := r.under.Add(1); n > r.most.Load() {
		r.most.Store(n)
	}
	defer r.under.Add(-1)
	r.server <- struct{}{}
	time.Sleep(time.Millisecond)
	<-r.server
	return r.road.Do(ctx, x)
}

func newBusy(m *memory) *busy {
	return &busy{road: &road{m: m}, server: make(chan struct{}, 1), requests: new(atomic.Int32), most: new(atomic.Int32)}
}

// opened is a sidecar on a road.
func opened(t *testing.T, s Store, o Options) (*Backend, *lease) {
	t.Helper()
	born := time.Now().Add(-time.Hour)
	o.Clock = func() time.Duration { return time.Since(born) }
	b := Open(s, o)
	kit, err := b.OpenLease(t.Context(), lock.LeaseOptions{TTL: time.Minute, Sidecar: t.Name()})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = kit.Close(context.Background())
		if err := b.Close(); err != nil {
			t.Error(err)
		}
	})
	return b, b.leases[string(kit.ID())]
}

// Thousands ask for locks of their own at the same moment. The store does not get all of that at once, and a heartbeat waits
// behind none of those that do not yet have their turn.
func TestHeartbeatBesideABurst(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newBusy(newMemory())
		_, l := opened(t, r, Options{Timeout: 2 * time.Second})
		var apps sync.WaitGroup
		const n = 5000
		for i := range n {
			apps.Go(func() {
				a, err := l.Ask(t.Context(), request(lock.Resource(fmt.Sprint(i))))
				if err != nil || !a.Granted {
					t.Errorf("%+v, %v", a, err)
				}
			})
		}
		time.Sleep(500 * time.Millisecond)
		sent := time.Now() // two trips, because so much was granted since the last heartbeat
		if _, err := l.Renew(t.Context(), nil); err != nil || time.Since(sent) > 4*turns*time.Millisecond {
			t.Errorf("the heartbeat took %s: %v", time.Since(sent), err)
		}
		apps.Wait()
		if most := r.most.Load(); most > turns+8 { // and the observer
			t.Errorf("the store had %d requests at a time", most)
		}
	})
}

// The store falls silent. Who waits for a turn then waits no longer than its app.
func TestNoTurnAtASilentStore(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := &road{m: newMemory()}
		_, l := opened(t, r, Options{Timeout: 2 * time.Second})
		deaf := make(chan struct{})
		r.mu.Lock()
		r.deaf = deaf
		r.mu.Unlock()
		var apps sync.WaitGroup
		began := time.Now()
		var notSent atomic.Int32
		const n, wait = 1000, 100 * time.Millisecond
		for i := range n {
			apps.Go(func() {
				ctx, cancel := context.WithTimeout(t.Context(), wait)
				defer cancel()
				_, err := l.Ask(ctx, request(lock.Resource(fmt.Sprint(i))))
				switch late := time.Since(began) - wait; {
				case errors.Is(err, leasekit.ErrNotSent) && late <= 0:
					notSent.Add(1)
				case !errors.Is(err, lock.ErrUnavailable) || late > 2*time.Second:
					t.Errorf("after %s: %v", time.Since(began), err)
				}
			})
		}
		apps.Wait()
		if got := notSent.Load(); got != n-turns {
			t.Errorf("%d were not sent, want %d", got, n-turns)
		}
		close(deaf)
	})
}

// Very many sidecars come to one lock at the same moment, and most of what they send is overtaken. They do not wear the store out with that,
// and the one that has the lock can release it meanwhile.
func TestManySidecarsAtOneLock(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		first := newBusy(newMemory())
		_, holder := opened(t, first, Options{Timeout: 2 * time.Second})
		held := request("r")
		if _, err := holder.Ask(t.Context(), held); err != nil {
			t.Fatal(err)
		}
		const n = 200
		leases := make([]*lease, n)
		for i := range leases {
			r := newBusy(first.m)
			r.server, r.requests = first.server, first.requests
			_, leases[i] = opened(t, r, Options{Timeout: 2 * time.Second})
		}
		first.requests.Store(0)
		var apps sync.WaitGroup
		for _, l := range leases {
			apps.Go(func() {
				q := request("r")
				for {
					_, err := l.Ask(t.Context(), q)
					if err == nil {
						return
					}
					if !errors.Is(err, lock.ErrUnavailable) {
						t.Error(err)
						return
					}
				}
			})
		}
		time.Sleep(100 * time.Millisecond)
		began := time.Now()
		if _, err := holder.Withdraw(t.Context(), leasekit.Withdrawal{Ref: leasekit.Ref{Resource: "r", ID: held.ID}}); err != nil {
			t.Error(err)
		}
		t.Logf("released in %s", time.Since(began))
		if took := time.Since(began); took > 2*time.Second {
			t.Errorf("the release took %s", took)
		}
		apps.Wait()
		t.Logf("%d requests for %d sidecars, in %s", first.requests.Load(), n, time.Since(began))
		if got := first.requests.Load(); got > 50*n {
			t.Errorf("%d requests for %d sidecars", got, n)
		}
	})
}

// Others overtake a request again and again. It ends with its app's time all the same, also where that ends while a transaction is
// under way.
func TestOvertakenAgainAndAgain(t *testing.T) {
	t.Run("ends in a pause", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			const wait = 5 * time.Second
			ctx, cancel := context.WithTimeout(t.Context(), wait)
			defer cancel()
			began := time.Now()
			if n := overtake(ctx, t, func(int) {}); n < crowded {
				t.Errorf("it was overtaken %d times", n)
			}
			if took := time.Since(began); took > wait+trips {
				t.Errorf("it ended after %s", took)
			}
		})
	})
	t.Run("ends in a trip", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			var ended time.Time
			overtake(ctx, t, func(n int) {
				if n == 20 { // the next pause is up to longest
					ended = time.Now()
					cancel()
				}
			})
			if took := time.Since(ended); took > trips {
				t.Errorf("it ended %s after its app's time", took)
			}
		})
	})
}

// trips are more than those of one transaction on a lagging road.
const trips = 50 * time.Millisecond

// outrun is a road on which others are faster than each transaction about the resource r.
type outrun struct {
	lagging
	n         int
	overtaken func(n int)
}

func (r *outrun) Do(ctx context.Context, x Txn) (Result, error) {
	if len(x.Then) > 0 && len(x.If) > 0 && x.If[0].Key == headKey("r") && r.n < 1000 {
		r.n++
		w := Write{Key: headKey("r"), Value: encode(head{Mode: lock.Exclusive, Next: int64(r.n)})}
		if kv, there := r.m.do(Txn{Read: []Range{{Key: w.Key}}}).Reads[0].one(); there {
			w.Value = kv.Value
		}
		r.m.do(Txn{Then: []Write{w}})
		r.overtaken(r.n)
	}
	return r.lagging.Do(ctx, x)
}

// overtake asks on such a road until ctx ends, and tells how often others were faster.
func overtake(ctx context.Context, t *testing.T, overtaken func(n int)) int {
	t.Helper()
	r := &outrun{lagging: lagging{&road{m: newMemory()}}, overtaken: overtaken}
	_, l := opened(t, r, Options{Timeout: 2 * time.Second})
	if _, err := l.Ask(ctx, request("r")); !errors.Is(err, leasekit.ErrNotSent) {
		t.Errorf("ask: %v", err)
	}
	return r.n
}

// Others overtake again and again what takes a grant back. That goes on without the app, whose time is over.
func TestTakingBackIsOvertaken(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const wait = time.Second
		r := &outrun{lagging: lagging{&road{m: newMemory()}}, overtaken: func(int) {}, n: 1000}
		b, l := opened(t, r, Options{Timeout: 2 * time.Second})
		q := request("r")
		a := l.asks(q)
		o := &op{kind: opAsk, id: string(q.ID), lease: l.id, place: place{ID: string(q.ID), Lease: l.id, Mode: q.Mode}}
		if b.submit("r", o); o.err != nil || !o.held() {
			t.Fatalf("%+v, %v", o.granted, o.err)
		}
		r.n = 0
		ctx, cancel := context.WithTimeout(t.Context(), wait)
		defer cancel()
		began := time.Now()
		err := l.takeBack(ctx, "r", a, o)
		if took := time.Since(began); !errors.Is(err, lock.ErrUnavailable) || took > wait+trips || took < wait {
			t.Errorf("it ended after %s: %v", took, err)
		}
		time.Sleep(time.Minute)
		if st, err := b.Get(t.Context(), "r"); err != nil || len(st.Holders) > 0 {
			t.Errorf("%+v, %v", st, err)
		}
	})
}

// Others overtake again and again what is done for an app or an administrator about a lock that somebody else has, who may be dead. That ends with the
// time of who has asked for it, too.
func TestOvertakenOnBehalfOfAnApp(t *testing.T) {
	for what, c := range map[string]struct {
		dead bool
		do   func(ctx context.Context, b *Backend, l *lease, held *op) error
		want error
	}{
		"a try sweeps what the dead have": {true, func(ctx context.Context, _ *Backend, l *lease, _ *op) error {
			q := request("r")
			q.Try = true
			_, err := l.Ask(ctx, q)
			return err
		}, lock.ErrHeld},
		"a release is forced": {false, func(ctx context.Context, b *Backend, _ *lease, held *op) error {
			return b.ForceRelease(ctx, "r", lock.HoldID(held.id), time.Hour)
		}, lock.ErrUnavailable},
		"a forced release ends what the dead have": {true, func(ctx context.Context, b *Backend, _ *lease, held *op) error {
			return b.awaitForced(ctx, "r", lock.HoldID(held.id), held.lease)
		}, leasekit.ErrNotSent},
	} {
		t.Run(what, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				const wait = time.Second
				m, q := newMemory(), request("r")
				var theirs road
				theirs.m = m
				_, holder := opened(t, &theirs, Options{Timeout: 2 * time.Second})
				if _, err := holder.Ask(t.Context(), q); err != nil {
					t.Fatal(err)
				}
				if c.dead { // and nobody has swept after it yet
					theirs.mu.Lock()
					theirs.copy = func(Txn) bool { return true }
					theirs.mu.Unlock()
					m.do(Txn{Then: []Write{{Key: leaseKey(holder.id), Delete: true}, {Key: beatKey(holder.id), Delete: true}}})
				}
				r := &outrun{lagging: lagging{&road{m: m}}, overtaken: func(int) {}}
				b, l := opened(t, r, Options{Timeout: 2 * time.Second})
				ctx, cancel := context.WithTimeout(t.Context(), wait)
				defer cancel()
				began := time.Now()
				err := c.do(ctx, b, l, &op{id: string(q.ID), lease: holder.id})
				if took := time.Since(began); !errors.Is(err, c.want) || took > wait+trips || r.n < crowded {
					t.Errorf("overtaken %d times, and ended after %s: %v", r.n, took, err)
				}
			})
		})
	}
}
