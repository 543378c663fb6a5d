package redislock

import (
	"errors"
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	"github.com/locksidecar/locksidecar/backends/backendtest"
	"github.com/locksidecar/locksidecar/backends/leasekit"
	"github.com/locksidecar/locksidecar/internal/testengine"
	"github.com/locksidecar/locksidecar/lock"
)

// inGrace is a server that has long been at work when a sidecar comes, and is restarted by restart. Then no app gets a lock
// there until over. Another server has granted locks meanwhile.
type inGrace struct {
	testengine.Server
	b         *Backend
	l         lock.Lease
	elsewhere lock.Lease // at the other server
	granted   chan lock.Grant
}

// newInGrace has the sidecar come by a road to the server. see sees its requests (see Open).
func newInGrace(t testing.TB, road func(testengine.Server) string, see func(what string, took time.Duration, err error)) *inGrace {
	t.Helper()
	s, other := testengine.New(t, testengine.Redis), testengine.New(t, testengine.Redis)
	longAtWork(t, s, backGrace)
	c := &inGrace{Server: s, granted: make(chan lock.Grant, 1)}
	_, c.elsewhere = sidecar(t, other.URL()+noGrace, backGrace)
	var err error
	if c.b, err = Open(patient(road(s)+withBackGrace), see); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.b.Close() })
	eventually(t, "a lease is opened", func() (err error) {
		c.l, err = c.b.OpenLease(t.Context(), lock.LeaseOptions{TTL: backGrace, Sidecar: "waits"})
		return err
	})
	t.Cleanup(func() { _ = c.l.Close(t.Context()) })
	return c
}

func straight(s testengine.Server) string { return s.URL() }

func (c *inGrace) restart(t testing.TB) {
	t.Helper()
	testengine.Restart(t, c.Server, testengine.KeepData)
	for range 3 { // the first one compares
		eventually(t, "the lease lives", func() error { return beat(t.Context(), c.l) })
	}
}

// ask asks for the lock of whose grant granted tells.
func (c *inGrace) ask(t testing.TB) {
	go func() {
		if g, err := acquire(t.Context(), c.l, exclusive("r")); err == nil {
			c.granted <- g
		}
	}()
}

// askInStore is ask, and the store has granted it.
func (c *inGrace) askInStore(t testing.TB) {
	t.Helper()
	c.ask(t)
	eventually(t, "the store has granted it", func() error {
		st, err := c.b.Get(t.Context(), "r")
		if err == nil && len(st.Holders) == 0 {
			err = errors.New("not yet")
		}
		return err
	})
}

// over ends the time in which no app gets a lock.
func (c *inGrace) over(t testing.TB) {
	t.Helper()
	p := &c.b.pasts[0]
	if left, _ := p.left(backGrace, c.b.clock()); left <= 0 {
		t.Fatal("the app may have got it already")
	}
	p.mu.Lock()
	p.since -= backGrace
	p.mu.Unlock()
}

// wantLarger wants a grant with a larger fence than the one before, which is also the one in the store.
func (c *inGrace) wantLarger(t testing.TB, before lock.Grant) {
	t.Helper()
	select {
	case g := <-c.granted:
		if g.Fence <= before.Fence {
			t.Errorf("broken law: the fence is %d, and was %d before", g.Fence, before.Fence)
		}
		if st, err := c.b.Get(t.Context(), "r"); err != nil || len(st.Holders) != 1 || st.Holders[0].Fence != g.Fence {
			t.Errorf("the store has %+v (%v), and the app has %d", st.Holders, err, g.Fence)
		}
	case <-time.After(patience):
		t.Fatal("it is not granted")
	}
}

// A lock is granted in the store while no app gets any, because another server may have granted others. Such a one was granted
// later, there, and so has a larger fence. The app that gets the lock after it has one that is larger still (promise 2).
func TestFenceOfAGrantThatWasKeptBack(t *testing.T) { again(t, testFenceOfAGrantThatWasKeptBack) }

func testFenceOfAGrantThatWasKeptBack(t testing.TB) {
	c := newInGrace(t, straight, nil)
	c.restart(t)
	c.askInStore(t)
	before := hold(t, c.elsewhere, "r")
	c.over(t)
	c.wantLarger(t, before)
}

// So it is where the answer comes when that time is over.
func TestFenceOfAGrantWithALateAnswer(t *testing.T) { again(t, testFenceOfAGrantWithALateAnswer) }

func testFenceOfAGrantWithALateAnswer(t testing.TB) {
	var stops atomic.Bool
	answered, goOn := make(chan struct{}), make(chan struct{})
	c := newInGrace(t, straight, func(what string, _ time.Duration, _ error) {
		if what == "acquire" && stops.CompareAndSwap(true, false) {
			close(answered)
			<-goOn
		}
	})
	c.restart(t)
	stops.Store(true)
	c.ask(t)
	<-answered
	before := hold(t, c.elsewhere, "r")
	c.over(t)
	close(goOn)
	c.wantLarger(t, before)
}

// So it is where the grant comes by push, before the sidecar has taken note of the answer.
func TestFenceOfAGrantBeforeTheAnswer(t *testing.T) { again(t, testFenceOfAGrantBeforeTheAnswer) }

func testFenceOfAGrantBeforeTheAnswer(t testing.TB) {
	var stops atomic.Bool
	answered, goOn := make(chan struct{}), make(chan struct{})
	var road *testengine.Proxy
	c := newInGrace(t, func(s testengine.Server) string { road = testengine.Through(t, s); return road.URL() },
		func(what string, _ time.Duration, _ error) {
			if what == "acquire" && stops.CompareAndSwap(true, false) {
				close(answered)
				<-goOn
			}
		})
	hb, holder := sidecar(t, c.URL()+noGrace, backGrace)
	marker, held := hold(t, c.l, "marker"), hold(t, holder, "r")
	c.restart(t)

	grace := time.Hour
	listens := func() { // what was pushed before that has come, too
		t.Helper()
		eventually(t, "a push comes", func() error {
			grace -= time.Second
			message := fmt.Sprintf("r %s %d marker", marker.ID, grace.Microseconds())
			if err := hb.client.Publish(t.Context(), hb.keys.channel+string(c.l.ID()), message).Err(); err != nil {
				return err
			}
			select {
			case <-c.l.Events():
				return nil
			case <-time.After(100 * time.Millisecond):
				return errors.New("not yet")
			}
		})
	}
	listens()

	stops.Store(true)
	c.ask(t)
	<-answered
	road.Mute("subscribe")
	if err := release(t.Context(), holder, "r", held.ID); err != nil {
		t.Fatal(err)
	}
	before := hold(t, c.elsewhere, "r")
	c.over(t)
	if err := road.Heal(); err != nil {
		t.Fatal(err)
	}
	listens()
	close(goOn)
	c.wantLarger(t, before)
}

// So it is where the request for another fence does not reach the server: the next one asks for it, too.
func TestFenceOfAGrantWhoseRequestWasLost(t *testing.T) {
	again(t, testFenceOfAGrantWhoseRequestWasLost)
}

func testFenceOfAGrantWhoseRequestWasLost(t testing.TB) {
	var road *testengine.Proxy
	var lost atomic.Int64
	c := newInGrace(t, func(s testengine.Server) string { road = testengine.Through(t, s); return road.URL() },
		func(what string, _ time.Duration, err error) {
			if what == "acquire" && err != nil {
				lost.Add(1)
			}
		})
	c.restart(t)
	c.askInStore(t)
	before := hold(t, c.elsewhere, "r")
	road.Inject(testengine.Cut)
	c.over(t)
	enough := lost.Load() + 2 // one may be under way since before that
	eventually(t, "a request is lost", func() error {
		if n := lost.Load(); n < enough {
			return fmt.Errorf("%d are lost, of %d", n, enough)
		}
		return nil
	})
	if err := road.Heal(); err != nil {
		t.Fatal(err)
	}
	c.wantLarger(t, before)
}

// Nothing is kept of a hold that was granted by push, and that the store has lost since.
func TestEarlyForgetsWhatIsLost(t *testing.T) { again(t, testEarlyForgetsWhatIsLost) }

func testEarlyForgetsWhatIsLost(t testing.TB) {
	s := testengine.New(t, testengine.Redis)
	_, holder := sidecar(t, s.URL()+noGrace, backGrace)
	way := testengine.Through(t, s)
	b := openAt(t, patient(way.URL()+noGrace))
	defer func() { _ = b.Close() }()
	d := lone(t, b, backGrace)
	l := leasekit.Start(t.Context(), d, leasekit.Options{ID: d.id, TTL: d.ttl, Clock: b.clock, Opened: d.renewed, Recheck: time.Hour, Unproven: true, Tells: true})
	defer func() { _ = l.Close(t.Context()) }()
	<-d.subscribed
	fork := testengine.ForkRedis(t, s)
	held, granted := hold(t, holder, "r"), make(chan lock.Grant, 1)
	go func() {
		if g, err := acquire(t.Context(), l, exclusive("r")); err == nil {
			granted <- g
		}
	}()
	eventually(t, "it waits", func() error {
		st, err := b.Get(t.Context(), "r")
		if err == nil && len(st.Waiters) == 0 {
			err = errors.New("not yet")
		}
		return err
	})
	if err := release(t.Context(), holder, "r", held.ID); err != nil {
		t.Fatal(err)
	}
	var g lock.Grant
	select {
	case g = <-granted:
	case <-time.After(patience):
		t.Fatal("it is not granted")
	}
	if !d.asked.some.Load() {
		t.Fatal(backendtest.Busy(errors.New("it was not granted by push")))
	}
	way.Retarget(testengine.Nodes(t, fork)[0].Addr())
	way.Inject(testengine.Sever)
	eventually(t, "the hold is lost", func() error {
		news, err := l.Heartbeat(t.Context())
		for _, e := range news {
			if e.Kind == lock.Vanished && e.ID == g.ID {
				return nil
			}
		}
		return errors.Join(errors.New("not yet"), err)
	})
	if d.asked.some.Load() {
		t.Errorf("it is noted still: %v", d.asked.over)
	}
}

// What was asked for before a past was over may have its fence from then.
func TestEarly(t *testing.T) {
	var e early
	for i, c := range []struct {
		note, over uint64
		want       bool
	}{
		{0, 0, false}, // nothing is handed to an app
		{0, 1, true},
		{1, 1, false},
		{1, 2, true},
		{2, 0, false},
	} {
		e.note("a", c.note)
		if got := e.is("a", c.over); got != c.want {
			t.Errorf("%d: %v, want %v", i, got, c.want)
		}
		if e.is("b", c.over) {
			t.Errorf("%d: what was not asked for is in it", i)
		}
	}
	e.forget("b")
	if !e.is("a", 3) {
		t.Error("it was forgotten with another one")
	}
	e.forget("a")
	if e.is("a", 3) || e.some.Load() {
		t.Error("it is in it still")
	}
}

// Who asks for it gets another fence for what is granted already, and nothing else of it changes.
func TestScriptsGiveAnotherFence(t *testing.T) {
	s := newStill(t)
	s.open("aa")
	s.open("bb")
	again := func(lease, id, mode, try string) string {
		return s.run(scriptAcquire, s.of(lease), resource, lease, id, mode, "w", try)
	}
	s.want(s.acquire("aa", "1", "P3"), "T+0")
	s.at(second)
	s.want(again("aa", "1", "P3", "2"), "T+1s+0")
	s.want(s.acquire("aa", "1", "P3"), "T+1s+0")
	s.want(again("aa", "1", "P3", "3"), "T+1s+1+0")
	s.has("lock", "h1=P3 T+1s+1+0 T aa 0 - w, m=P3, s=100")
	s.want(again("bb", "2", "X", "3"), "[HELD T+1s 1 P3 T+1s+1+0 T aa 0 - w]")
	s.want(again("bb", "2", "X", "2"), "[WAIT 9000]")
	s.has("queue", "2=T+1s+2")
	s.want(s.force("aa", "1", 5*second), "9000")
	s.want(s.ack("aa", "1", 5*second), "1")
	s.want(again("aa", "1", "P3", "2"), "T+1s+3+0")
	s.has("lock", "f=1 1, h1=P3 T+1s+3+0 T aa T+6s 5000000 w, m=P3, s=100")
	s.want(s.release("aa", "1"), "1")
	s.want(again("bb", "2", "X", "2"), "T+1s+5")
	s.has("lock", "h2=X T+1s+5 T+1s bb 0 - w, m=X")
}
