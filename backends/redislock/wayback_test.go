package redislock

import (
	"errors"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/locksidecar/locksidecar/backends/leasekit"
	"github.com/locksidecar/locksidecar/internal/testengine"
	"github.com/locksidecar/locksidecar/lock"
)

// wayBack is how a sidecar comes to a server from another one, where somebody holds a lock who has not heard of that.
type wayBack struct {
	testing.TB
	way   *testengine.Proxy
	b     *Backend
	first lock.Lease
}

// backGrace is as long as the TTL of who holds the lock.
const backGrace = 5 * time.Minute

var withBackGrace = "?restart-grace=" + backGrace.String()

// elsewhere has a sidecar work on a server, and another one hold a lock there, of which the first server knows nothing.
func (w *wayBack) elsewhere(s testengine.Server) {
	w.Helper()
	longAtWork(w, s, backGrace)
	_, holder := sidecar(w, s.URL()+noGrace, backGrace)
	hold(w, holder, "r")
}

func (w *wayBack) lead(to testengine.Server) {
	w.way.Retarget(testengine.Nodes(w, to)[0].Addr())
	w.way.Inject(testengine.Sever)
}

// meets waits until the sidecar knows that another server is at the end of its way.
func (w *wayBack) meets(before *presence) {
	w.Helper()
	eventually(w, "the sidecar has met another server", func() error {
		if err := w.b.Ping(w.Context()); err != nil {
			return err
		}
		if w.b.only.current.Load() == before {
			return errors.New("not yet")
		}
		return nil
	})
}

// loses waits until the lease of the sidecar is lost, because the server where it is now does not know it.
func (w *wayBack) loses() {
	w.Helper()
	eventually(w, "the lease is lost", func() error {
		if err := beat(w.Context(), w.first); !errors.Is(err, lock.ErrLeaseLost) {
			return fmt.Errorf("Heartbeat: got %w, want ErrLeaseLost", err)
		}
		return nil
	})
}

// waits makes sure that the sidecar is granted nothing yet, and so has looked at the server.
func (w *wayBack) waits() {
	w.Helper()
	eventually(w, "it looks at the server", func() error {
		l, err := w.b.OpenLease(w.Context(), lock.LeaseOptions{TTL: backGrace, Sidecar: "first"})
		switch {
		case err == nil:
			swallow(l)
			_ = l.Close(w.Context())
			w.Fatal("who comes from another server is granted locks at once")
		case !strings.Contains(err.Error(), "granted again in"):
			return err
		}
		return nil
	})
}

// newcomerWaits makes sure that who starts now on the server is granted nothing yet.
func (w *wayBack) newcomerWaits(s testengine.Server) {
	w.Helper()
	b := openAt(w, s.URL()+withBackGrace)
	defer func() { _ = b.Close() }()
	l, err := b.OpenLease(w.Context(), lock.LeaseOptions{TTL: backGrace, Sidecar: "newcomer"})
	if err == nil {
		swallow(l)
		if _, err := try(w, l, "r"); err == nil {
			w.Error("broken law: two holders: a newcomer, and one that has not heard of the way back")
		}
		_ = l.Close(w.Context())
	}
	if !errors.Is(err, lock.ErrUnavailable) || !strings.Contains(err.Error(), "granted again in") {
		w.Errorf("a newcomer after the way back: got %v, want that locks are granted again later", err)
	}
}

// A sidecar is led to another server, which says no more than that its lease is over, and back. That is enough to know
// that the first server was there while the other one granted locks.
func TestNewcomerAfterALeaseThatWasLostElsewhere(t *testing.T) {
	again(t, testNewcomerAfterALeaseThatWasLostElsewhere)
}

func testNewcomerAfterALeaseThatWasLostElsewhere(t testing.TB) {
	s, other := testengine.New(t, testengine.Redis), testengine.New(t, testengine.Redis)
	longAtWork(t, s, backGrace)
	w := &wayBack{TB: t, way: testengine.Through(t, s)}
	w.b, w.first = sidecar(t, w.way.URL()+withBackGrace, backGrace)
	w.elsewhere(other)
	w.lead(other)
	w.loses()
	w.lead(s)
	w.waits()
	w.newcomerWaits(s)
}

// A sidecar comes from another server to one that began four minutes ago. There a sidecar has counted since, but has told nobody
// yet. When it tells, nobody may rely on it, because locks were granted on the other server until now.
func TestNewcomerOnAServerThatIsYoung(t *testing.T) { again(t, testNewcomerOnAServerThatIsYoung) }

func testNewcomerOnAServerThatIsYoung(t testing.TB) {
	s, other := testengine.New(t, testengine.RedisFakeTime), testengine.New(t, testengine.Redis)
	b, l := sidecar(t, s.URL()+noGrace, lock.MaxTTL)
	counts := func(by time.Duration) { // as if so long had gone by
		b.pasts[0].mu.Lock()
		b.pasts[0].since -= by
		b.pasts[0].mu.Unlock()
	}
	counts(4 * time.Minute)
	testengine.ShiftClock(t, s, 4*time.Minute)
	w := &wayBack{TB: t, way: testengine.Through(t, s)}
	w.lead(other)
	w.elsewhere(other)
	w.b, w.first = sidecar(t, w.way.URL()+withBackGrace, backGrace)
	w.lead(s)
	w.loses()
	w.waits()
	counts(time.Minute)
	if _, err := driverNamed(b, l.ID()).lookAround(t.Context()); err != nil { // as its chores do then
		t.Fatal(err)
	}
	w.newcomerWaits(s)
}

// The clock of that server was set back since, so it does not say how old the mark is. Who comes from another server asks more than
// once.
func TestNewcomerOnAServerWhoseClockWasSetBack(t *testing.T) {
	again(t, testNewcomerOnAServerWhoseClockWasSetBack)
}

func testNewcomerOnAServerWhoseClockWasSetBack(t testing.TB) {
	s, other := testengine.New(t, testengine.RedisFakeTime), testengine.New(t, testengine.Redis)
	b, l := sidecar(t, s.URL()+noGrace, lock.MaxTTL)
	counts := func(by time.Duration) { // as if so long had gone by
		b.pasts[0].mu.Lock()
		b.pasts[0].since -= by
		b.pasts[0].mu.Unlock()
	}
	counts(4 * time.Minute)
	testengine.ShiftClock(t, s, -time.Hour)
	w := &wayBack{TB: t, way: testengine.Through(t, s)}
	w.lead(other)
	w.elsewhere(other)
	w.b, w.first = sidecar(t, w.way.URL()+withBackGrace, backGrace)
	w.lead(s)
	w.loses()
	for range 3 {
		w.waits()
	}
	counts(time.Minute)
	if _, err := driverNamed(b, l.ID()).lookAround(t.Context()); err != nil { // as its chores do then
		t.Fatal(err)
	}
	w.newcomerWaits(s)
}

// A sidecar comes back from another server, and loses the answer that says how old the mark of the first one is. It asks again.
func TestNewcomerAfterALookThatWasLost(t *testing.T) { again(t, testNewcomerAfterALookThatWasLost) }

func testNewcomerAfterALookThatWasLost(t testing.TB) {
	s := testengine.New(t, testengine.Redis)
	longAtWork(t, s, backGrace)
	w := &wayBack{TB: t, way: testengine.Through(t, s)}
	w.b = openAt(t, w.way.URL()+withBackGrace)
	defer func() { _ = w.b.Close() }()
	d := lone(t, w.b, backGrace) // its chores are done here
	beats := func() (looks bool) {
		t.Helper()
		eventually(t, "a heartbeat is answered", func() error {
			_, err := d.Renew(t.Context(), nil)
			return err
		})
		select {
		case <-d.looks:
			return true
		default:
			return false
		}
	}
	other := testengine.ForkRedis(t, s)
	w.lead(other)
	if !beats() {
		t.Fatal("it does not look at another server")
	}
	if _, err := d.lookAround(t.Context()); err != nil {
		t.Fatal(err)
	}
	_, holder := sidecar(t, other.URL()+noGrace, backGrace)
	hold(t, holder, "r")

	w.lead(s)
	if !beats() {
		t.Fatal("it does not look at the first server again")
	}
	lost := w.way.LoseReply(scriptOpen.code().sha.(string), testengine.Sever)
	if _, err := d.lookAround(t.Context()); err == nil {
		t.Fatal("the answer was not lost")
	}
	<-lost
	eventually(t, "the holds are compared", func() error { return d.Held(t.Context(), func(leasekit.Ref) {}) })
	if beats() {
		if _, err := d.lookAround(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	w.newcomerWaits(s)
}

// The other server is a replica when the sidecar comes there, and becomes a master while it is there. That is a server that
// grants locks, too.
func TestNewcomerAfterAReplicaThatBecameAMaster(t *testing.T) {
	again(t, testNewcomerAfterAReplicaThatBecameAMaster)
}

func testNewcomerAfterAReplicaThatBecameAMaster(t testing.TB) {
	s, other := testengine.New(t, testengine.Redis), testengine.New(t, testengine.Redis)
	longAtWork(t, s, backGrace)
	w := &wayBack{TB: t, way: testengine.Through(t, s)}
	w.b, w.first = sidecar(t, w.way.URL()+withBackGrace, backGrace)
	at := plain(t, testengine.Nodes(t, other)[0].Addr())
	if err := at.Do(t.Context(), "replicaof", "127.0.0.1", 1).Err(); err != nil { // of a master that is not there
		t.Fatal(err)
	}
	before := w.b.only.current.Load()
	w.lead(other)
	eventually(t, "the sidecar is at the replica", func() error {
		if err := beat(t.Context(), w.first); err == nil || errors.Is(err, lock.ErrLeaseLost) {
			t.Fatalf("a heartbeat to a replica: %v", err)
		}
		if w.b.only.current.Load() == before {
			return errors.New("not yet")
		}
		return nil
	})
	if err := at.Do(t.Context(), "replicaof", "no", "one").Err(); err != nil {
		t.Fatal(err)
	}
	w.elsewhere(other)
	w.loses()
	w.lead(s)
	w.waits()
	w.newcomerWaits(s)
}

// leadToReplica leads the sidecar to a replica, which becomes a master then. The sidecar has all its connections before that.
func (w *wayBack) leadToReplica(other testengine.Server) {
	w.Helper()
	at := plain(w, testengine.Nodes(w, other)[0].Addr())
	if err := at.Do(w.Context(), "replicaof", "127.0.0.1", 1).Err(); err != nil { // of a master that is not there
		w.Fatal(err)
	}
	before := w.b.only.current.Load()
	w.lead(other)
	w.meets(before)
	channel := w.b.keys.channel + string(w.first.ID())
	eventually(w, "the sidecar listens at the replica", func() error {
		n, err := at.PubSubNumSub(w.Context(), channel).Result()
		if err == nil && n[channel] == 0 {
			err = errors.New("not yet")
		}
		return err
	})
	if err := at.Do(w.Context(), "replicaof", "no", "one").Err(); err != nil {
		w.Fatal(err)
	}
}

// So it is where an app's request is the first that this master answers, and ends the lease.
func TestNewcomerAfterAMasterThatWasAReplicaHasAnswered(t *testing.T) {
	for name, answer := range map[string]func(w *wayBack, d *driver) error{
		"a heartbeat": func(w *wayBack, _ *driver) error { return beat(w.Context(), w.first) },
		"a request":   func(w *wayBack, _ *driver) error { return failure(try(w, w.first, "another")) },
		"a release": func(w *wayBack, _ *driver) error {
			return w.first.Release(w.Context(), "another", lock.NewHoldID())
		},
		"a downgrade": func(w *wayBack, _ *driver) error {
			return w.first.Downgrade(w.Context(), "another", lock.NewHoldID())
		},
		"a note of who has it": func(w *wayBack, d *driver) error {
			return d.Describe(w.Context(), leasekit.Ref{Resource: "another", ID: lock.NewHoldID()}, "")
		},
		"a detach": func(w *wayBack, d *driver) error {
			how := leasekit.Withdrawal{Ref: leasekit.Ref{Resource: "another", ID: lock.NewHoldID()}}
			return failure(d.Detach(w.Context(), how, lock.Secret("s").Key(), time.Minute))
		},
		"an attach": func(w *wayBack, d *driver) error {
			q := exclusive("another")
			q.Handle = lock.Secret("s").Key()
			return failure(d.Ask(w.Context(), q))
		},
		"that a forced release is known": func(w *wayBack, d *driver) error {
			return d.acknowledge(w.Context(), []leasekit.Revocation{{Ref: leasekit.Ref{Resource: "another", ID: lock.NewHoldID()}}})
		},
		"the end of a handle": func(w *wayBack, d *driver) error {
			return failure(d.b.SetHandle(w.Context(), "another", lock.Secret("s").Key(), 0))
		},
	} {
		t.Run(name, func(t *testing.T) {
			again(t, func(t testing.TB) {
				s, other := testengine.New(t, testengine.Redis), testengine.New(t, testengine.Redis)
				longAtWork(t, s, backGrace)
				w := &wayBack{TB: t, way: testengine.Through(t, s)}
				w.b, w.first = sidecar(t, w.way.URL()+withBackGrace, backGrace)
				d := driverNamed(w.b, w.first.ID())
				d.slots[0].open.Store(true)
				w.leadToReplica(other)
				w.elsewhere(other)
				eventually(t, "it is answered that there is nothing of it", func() error {
					err := answer(w, d)
					for _, no := range []error{lock.ErrLeaseLost, lock.ErrNoHandle} {
						if errors.Is(err, no) {
							return nil
						}
					}
					return fmt.Errorf("got %w", err)
				})
				w.lead(s)
				w.waits()
				w.newcomerWaits(s)
			})
		})
	}
}

// So it is where the sidecar has come back before it takes note of that answer.
func TestNewcomerAfterAnAnswerThatIsReadLate(t *testing.T) {
	again(t, testNewcomerAfterAnAnswerThatIsReadLate)
}

func testNewcomerAfterAnAnswerThatIsReadLate(t testing.TB) {
	s, other := testengine.New(t, testengine.Redis), testengine.New(t, testengine.Redis)
	longAtWork(t, s, backGrace)
	w := &wayBack{TB: t, way: testengine.Through(t, s)}
	var stops atomic.Bool
	answered, goOn := make(chan struct{}), make(chan struct{})
	var err error
	if w.b, err = Open(patient(w.way.URL()+withBackGrace), func(what string, _ time.Duration, _ error) {
		if what == "heartbeat" && stops.CompareAndSwap(true, false) {
			close(answered)
			<-goOn
		}
	}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = w.b.Close() })
	eventually(t, "a lease is opened", func() (err error) {
		w.first, err = w.b.OpenLease(t.Context(), lock.LeaseOptions{TTL: backGrace, Sidecar: "first"})
		return err
	})
	t.Cleanup(func() { _ = w.first.Close(t.Context()) })
	w.leadToReplica(other)
	w.elsewhere(other)
	before, lost := w.b.only.current.Load(), make(chan error, 1)
	stops.Store(true)
	go func() { lost <- beat(t.Context(), w.first) }()
	<-answered
	w.lead(s)
	w.meets(before)
	close(goOn)
	if err := <-lost; !errors.Is(err, lock.ErrLeaseLost) {
		t.Fatalf("Heartbeat: got %v, want ErrLeaseLost", err)
	}
	w.waits()
	w.newcomerWaits(s)
}

// A sidecar starts while all are led to another server. That one answers, but not with its mark: the answer is lost. Then the
// sidecar is led to the first server. It comes from the other one as well.
func TestNewcomerThatHasMetAnotherServer(t *testing.T) { again(t, testNewcomerThatHasMetAnotherServer) }

func testNewcomerThatHasMetAnotherServer(t testing.TB) {
	s, other := testengine.New(t, testengine.Redis), testengine.New(t, testengine.Redis)
	longAtWork(t, s, backGrace)
	w := &wayBack{TB: t, way: testengine.Through(t, s)}
	w.lead(other)
	w.elsewhere(other)
	w.b = openAt(t, w.way.URL()+withBackGrace)
	defer func() { _ = w.b.Close() }()
	lost := w.way.LoseReply(scriptOpen.code().sha.(string), testengine.Sever)
	eventually(t, "the answer is lost", func() error {
		l, err := w.b.OpenLease(t.Context(), lock.LeaseOptions{TTL: backGrace, Sidecar: "first"})
		if err == nil {
			swallow(l)
			_ = l.Close(t.Context())
			t.Fatal("the answer was not lost")
		}
		select {
		case <-lost: // it may be told a moment after that
			return nil
		case <-time.After(time.Second):
			return err
		}
	})
	w.lead(s)
	w.waits()
	w.newcomerWaits(s)
}

// A sidecar comes from another server, which has shown its mark to it last before the first one began. But it has answered
// after that.
func TestNewcomerAfterAnAnswerWithoutAMark(t *testing.T) {
	t.Run("of an app's request", func(t *testing.T) {
		again(t, func(t testing.TB) {
			afterAnAnswer(t, func(w *wayBack, _ testengine.Server) { hold(w, w.first, "another") })
		})
	})
	t.Run("that the lease is over", func(t *testing.T) {
		again(t, func(t testing.TB) {
			afterAnAnswer(t, func(w *wayBack, at testengine.Server) {
				key := w.b.keys.buckets[0].leases
				if err := plain(w, testengine.Nodes(w, at)[0].Addr()).ZRem(w.Context(), key, string(w.first.ID())).Err(); err != nil {
					w.Fatal(err)
				}
				w.loses()
			})
		})
	})
	t.Run("of who it is", func(t *testing.T) {
		again(t, func(t testing.TB) {
			afterAnAnswer(t, func(w *wayBack, at testengine.Server) {
				addr := testengine.Nodes(w, at)[0].Addr()
				dials := w.way.Dials(addr)
				w.way.Inject(testengine.Sever)
				eventually(w, "another connection is made", func() error {
					err := w.b.Ping(w.Context())
					if err == nil && w.way.Dials(addr) == dials {
						err = errors.New("not yet")
					}
					return err
				})
			})
		})
	})
}

func afterAnAnswer(t testing.TB, answers func(w *wayBack, at testengine.Server)) {
	s, other := testengine.New(t, testengine.RedisFakeTime), testengine.New(t, testengine.Redis)
	b, l := sidecar(t, s.URL()+noGrace, lock.MaxTTL)
	passes := func(p *past, by time.Duration) { // as if so long had gone by
		p.mu.Lock()
		defer p.mu.Unlock()
		p.since -= by
		p.asked -= by
	}
	passes(&b.pasts[0], time.Minute)
	testengine.ShiftClock(t, s, time.Minute)
	w := &wayBack{TB: t, way: testengine.Through(t, s)}
	w.lead(other)
	w.elsewhere(other)
	w.b, w.first = sidecar(t, w.way.URL()+withBackGrace, backGrace)
	passes(&w.b.pasts[0], 90*time.Second)
	w.b.only.current.Load().answered.Add(-int64(90 * time.Second))
	answers(w, other)
	w.lead(s)
	w.loses()
	w.waits()
	passes(&b.pasts[0], 4*time.Minute)
	if _, err := driverNamed(b, l.ID()).lookAround(t.Context()); err != nil { // as its chores do then
		t.Fatal(err)
	}
	w.newcomerWaits(s)
}
