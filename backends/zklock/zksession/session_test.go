package zksession

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/locksidecar/locksidecar/internal/testengine"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(testengine.Main(m)) }

var world = []ACL{{Perms: AllPerms, Scheme: "world", ID: "anyone"}}

// patience is how long tests wait for what must come.
const patience = time.Minute

// open opens a session that lives as long as the test. It waits for answers, and lives without any, for
// longer than a busy machine stands still.
func open(t *testing.T, url string, change func(*Config)) *Session {
	t.Helper()
	hosts, _, _ := strings.Cut(strings.TrimPrefix(url, "zk://"), "/")
	cfg := Config{Addrs: strings.Split(hosts, ","), SessionTimeout: 30 * time.Second, Timeout: 10 * time.Second}
	if change != nil {
		change(&cfg)
	}
	s, err := Open(t.Context(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), time.Second)
		defer cancel()
		_ = s.Close(ctx)
	})
	return s
}

// must carries out a call that has to succeed.
func must(t *testing.T, s *Session, c *Call) *Call {
	t.Helper()
	if err := errors.Join(s.Do(t.Context(), c), c.Err); err != nil {
		t.Fatalf("%s: %v", c, err)
	}
	return c
}

// TestCalls sends every kind of request.
func TestCalls(t *testing.T) {
	s := open(t, testengine.Shared(t, testengine.ZooKeeper).URL(), nil)
	const dir = "/calls"
	parent := Create(dir, nil, world, Container)
	first := Create(dir+"/a-", []byte("one"), world, EphemeralSequential)
	list, missing, made := Children(dir), Get(dir+"/missing"), Get(dir+"/a-0000000000")
	if err := s.Do(t.Context(), parent, first, list, missing, Sync(dir), made); err != nil {
		t.Fatal(err)
	}
	if first.Stat.Czxid != made.Stat.Czxid {
		t.Errorf("made by transaction %d, which the create gives as %d", made.Stat.Czxid, first.Stat.Czxid)
	}
	if parent.Err != nil || first.Err != nil || first.Path != dir+"/a-0000000000" || made.Stat.EphemeralOwner != s.ID() || made.Stat.Czxid == 0 {
		t.Errorf("create: %v, %v, %q, %+v", parent.Err, first.Err, first.Path, made.Stat)
	}
	if list.Err != nil || fmt.Sprint(list.Children) != "[a-0000000000]" {
		t.Errorf("children: %v, %v", list.Children, list.Err)
	}
	if !errors.Is(missing.Err, ErrNoNode) {
		t.Errorf("get of nothing: %v", missing.Err)
	}

	set, get, stale := Set(first.Path, []byte("two"), 0), Get(first.Path), Set(first.Path, nil, 0)
	if err := s.Do(t.Context(), set, get, stale); err != nil {
		t.Fatal(err)
	}
	if set.Err != nil || set.Stat.Version != 1 || string(get.Data) != "two" || !errors.Is(stale.Err, ErrBadVersion) {
		t.Errorf("set: %v, %+v; get: %q; stale: %v", set.Err, set.Stat, get.Data, stale.Err)
	}

	b, c := Create(dir+"/b-", nil, world, EphemeralSequential), Create(dir+"/c-", nil, world, EphemeralSequential)
	must(t, s, Multi(b, c))
	if b.Path != dir+"/b-0000000001" || c.Path != dir+"/c-0000000002" {
		t.Errorf("multi made %q and %q", b.Path, c.Path)
	}
	good, bad := Delete(b.Path, AnyVersion), Delete(dir+"/missing", AnyVersion)
	none := Multi(good, bad)
	after := Children(dir)
	if err := s.Do(t.Context(), none, after); err != nil {
		t.Fatal(err)
	}
	if !errors.Is(none.Err, ErrNoNode) || !errors.Is(bad.Err, ErrNoNode) || good.Err == nil || len(after.Children) != 3 {
		t.Errorf("a transaction that fails: %v, %v, %v; then %v", none.Err, good.Err, bad.Err, after.Children)
	}
	exists, gone := Create(dir, nil, world, Persistent), Delete(b.Path, AnyVersion)
	if err := s.Together(t.Context(), exists, gone); err != nil || !errors.Is(exists.Err, ErrNodeExists) || gone.Err != nil {
		t.Error(err, exists.Err, gone.Err)
	}
}

// events collects what a session tells.
type events struct {
	mu  sync.Mutex
	all []Event
}

func (e *events) add(ev Event) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.all = append(e.all, ev)
}

// take waits for one event and forgets it.
func (e *events) take(t *testing.T, want Event) {
	t.Helper()
	for end := time.Now().Add(patience); time.Now().Before(end); time.Sleep(5 * time.Millisecond) {
		e.mu.Lock()
		got := e.all
		if len(got) > 0 {
			e.all = nil
		}
		e.mu.Unlock()
		switch {
		case len(got) == 1 && got[0] == want:
			return
		case len(got) > 0:
			t.Fatalf("got %v, want %v once", got, want)
		}
	}
	t.Fatalf("never heard of %v", want)
}

// TestWatches: they work, and go on working on the next connection, where also
// what was missed is told.
func TestWatches(t *testing.T) {
	t.Parallel()
	server := testengine.Shared(t, testengine.ZooKeeper)
	road := testengine.Through(t, server)
	var told events
	back := make(chan struct{}, 10)
	s := open(t, road.URL(), func(c *Config) { c.OnEvent, c.OnReconnect = told.add, func() { back <- struct{}{} } })
	other := open(t, server.URL(), nil)
	must(t, other, Create("/watched", nil, world, Ephemeral))
	must(t, s, Watch("/watched"))
	must(t, other, Set("/watched", []byte("x"), AnyVersion))
	told.take(t, Event{Path: "/watched"})
	must(t, s, Watch("/watched"))
	road.Inject(testengine.Sever)
	must(t, other, Delete("/watched", AnyVersion))
	select {
	case <-back:
	case <-time.After(patience):
		t.Fatal("it does not connect again")
	}
	told.take(t, Event{Path: "/watched", Deleted: true})
	if s.Err() != nil {
		t.Error(s.Err())
	}
}

// TestChangesBesideWatches: however soon a node is changed after it was read and watched, or
// before that, a change that the answer does not show is told.
func TestChangesBesideWatches(t *testing.T) {
	t.Parallel()
	url := testengine.Shared(t, testengine.ZooKeeper).URL()
	told := make(chan struct{}, 1000)
	s := open(t, url, func(c *Config) { c.OnEvent = func(Event) { told <- struct{}{} } })
	other := open(t, url, nil)
	must(t, other, Create("/quick", nil, world, Ephemeral))
	for i := range 200 {
		var beside sync.WaitGroup
		watch, again, set := Watch("/quick"), Watch("/quick"), Set("/quick", []byte{byte(i)}, AnyVersion)
		var failed error
		beside.Go(func() { failed = other.Do(t.Context(), set) })
		err := s.Together(t.Context(), watch, again)
		beside.Wait()
		if err := errors.Join(err, failed, watch.Err, again.Err, set.Err); err != nil {
			t.Fatal(err)
		}
		if watch.Stat.Version == set.Stat.Version && again.Stat.Version == set.Stat.Version {
			must(t, other, Set("/quick", nil, AnyVersion)) // both came after the change, so there will be another
		}
		select {
		case <-told:
		case <-time.After(patience):
			t.Fatalf("change %d is not told", i)
		}
		for len(told) > 0 {
			<-told
		}
	}
}

// TestLostAnswer: a request whose answer does not come is unknown; what a Sync
// and a read find afterwards is final.
func TestLostAnswer(t *testing.T) {
	t.Parallel()
	server := testengine.Shared(t, testengine.ZooKeeper)
	road := testengine.Through(t, server)
	s := open(t, road.URL(), func(c *Config) { c.Timeout = 2 * time.Second })
	for i := range 5 {
		first, second := fmt.Sprintf("/lost%d", i), fmt.Sprintf("/lost%dx", i)
		unheard := func() error {
			road.Inject(testengine.HoldReplies)
			return s.Do(t.Context(), Create(first, nil, world, Ephemeral))
		}
		err := unheard()
		for end := time.Now().Add(patience); errors.Is(err, ErrNotSent) && time.Now().Before(end); err = unheard() {
			if err := road.Heal(); err != nil { // the machine was so busy that there was no connection
				t.Fatal(err)
			}
			_ = s.Do(t.Context(), Get("/"))
		}
		if !errors.Is(err, ErrLost) {
			t.Fatalf("got %v, want ErrLost", err)
		}
		ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
		err = s.Do(ctx, Create(second, nil, world, Ephemeral))
		cancel()
		if !errors.Is(err, ErrLost) && !errors.Is(err, ErrNotSent) {
			t.Fatalf("got %v, want ErrLost or ErrNotSent", err)
		}
		if err := road.Heal(); err != nil {
			t.Fatal(err)
		}
		road.Inject(testengine.Sever)
		look := func() (one, two error) {
			for end := time.Now().Add(patience); ; {
				sync, a, b := Sync("/"), Get(first), Get(second)
				err := s.Do(t.Context(), sync, a, b)
				if err == nil {
					return a.Err, b.Err
				}
				if time.Now().After(end) {
					t.Fatal(err)
				}
			}
		}
		one, two := look()
		if one != nil {
			t.Fatalf("the node whose answer was lost: %v", one)
		}
		time.Sleep(50 * time.Millisecond)
		if _, later := look(); errors.Is(later, ErrNoNode) != errors.Is(two, ErrNoNode) {
			t.Errorf("after the sync it is %v, later %v", two, later)
		}
	}
}

// TestReconnect: calls under way are lost, later ones go over the next connection,
// and a watch tells what has happened in between.
func TestReconnect(t *testing.T) {
	t.Parallel()
	s := testengine.Shared(t, testengine.ZooKeeper)
	road := testengine.Through(t, s)
	events, reconnects := make(chan Event, 10_000), make(chan struct{}, 10) // room for all: OnEvent must not block
	a := open(t, road.URL(), func(c *Config) {
		c.Timeout = 5 * time.Second // for which it waits in vain twice
		c.OnEvent = func(ev Event) { events <- ev }
		c.OnReconnect = func() { reconnects <- struct{}{} }
	})
	var nodes, watches []*Call
	for i := range 3000 { // more than one packet of watches
		nodes = append(nodes, Create(fmt.Sprintf("/reconnect-%040d", i), nil, world, Ephemeral))
		watches = append(watches, Watch(fmt.Sprintf("/reconnect-%040d", i)))
	}
	if err := a.Together(t.Context(), nodes...); err != nil {
		t.Fatal(err)
	}
	if err := a.Together(t.Context(), watches...); err != nil {
		t.Fatal(err)
	}
	const changed, deleted = "/reconnect-0000000000000000000000000000000000000007", "/reconnect-0000000000000000000000000000000000002999"
	road.Inject(testengine.HoldReplies)
	lost := Set(deleted, nil, AnyVersion)
	if err := a.Do(t.Context(), lost); !errors.Is(err, ErrLost) || !errors.Is(lost.Err, ErrLost) {
		t.Errorf("without an answer: %v, %v", err, lost.Err)
	}
	unsent := Get("/")
	if err := a.Do(t.Context(), unsent); !errors.Is(err, ErrNotSent) {
		t.Errorf("without a connection: %v", err)
	}
	b := open(t, s.URL(), nil)
	if err := b.Do(t.Context(), Set(changed, nil, AnyVersion), Delete(deleted, AnyVersion)); err != nil {
		t.Fatal(err)
	}
	if err := road.Heal(); err != nil {
		t.Fatal(err)
	}
	road.Inject(testengine.Sever)
	got := map[Event]bool{}
	for len(got) < 2 {
		select {
		case ev := <-events:
			got[ev] = true
		case <-time.After(patience):
			t.Fatalf("events %v", got)
		}
	}
	if !got[Event{Path: changed}] || !got[Event{Path: deleted, Deleted: true}] {
		t.Errorf("events %v", got)
	}
	<-reconnects
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := a.Do(ctx, Get("/")); err != nil && !errors.Is(err, ErrLost) && !errors.Is(err, ErrNotSent) {
		t.Errorf("with a context that is over: %v", err)
	}
	if err := a.Do(t.Context(), Get("/")); err != nil {
		t.Error(err)
	}
}

// TestOpenFails: nobody listens, or whoever does says nothing.
func TestOpenFails(t *testing.T) {
	road := testengine.Through(t, testengine.Shared(t, testengine.ZooKeeper))
	for _, f := range []testengine.Fault{testengine.HoldAll, testengine.Cut} {
		road.Inject(f)
		addr := strings.TrimPrefix(road.URL(), "zk://")
		if s, err := Open(t.Context(), Config{Addrs: []string{addr}, SessionTimeout: time.Second, Timeout: 100 * time.Millisecond}); err == nil {
			t.Errorf("fault %d: a session %v", f, s)
		}
	}
}

// TestSlowClose: a server with thousands of nodes to delete needs longer than the
// library waits for it.
func TestSlowClose(t *testing.T) {
	t.Parallel()
	road := testengine.Through(t, testengine.Shared(t, testengine.ZooKeeper))
	s := open(t, road.URL(), nil)
	road.Delay(600 * time.Millisecond) // each way
	if err := s.Close(t.Context()); err != nil {
		t.Errorf("Close: %v", err)
	}
}

// TestCloseIsNoOtherRequest: a session with many nodes ends in one large transaction, so its
// end may take longer than any other request may. How long it is waited for its caller says.
func TestCloseIsNoOtherRequest(t *testing.T) {
	t.Parallel()
	road := testengine.Through(t, testengine.Shared(t, testengine.ZooKeeper))
	s := open(t, road.URL(), nil)
	s.cfg.Timeout = 200 * time.Millisecond
	road.Delay(400 * time.Millisecond) // each way
	if err := s.Close(t.Context()); err != nil {
		t.Errorf("Close: %v", err)
	}
}

// TestWriteFails: the library must not hear of it, see link.Write.
func TestWriteFails(t *testing.T) {
	raw, peer := net.Pipe()
	_ = peer.Close()
	l := newLink(&Session{}, raw, raw)
	l.greeted = true
	if n, err := l.Write(make([]byte, 20)); n != 20 || err != nil {
		t.Errorf("%d, %v", n, err)
	}
	if _, err := l.Read(make([]byte, 1)); err == nil {
		t.Error("the connection can still be read")
	}
	select {
	case <-l.gone:
	default:
		t.Error("the connection is not at its end")
	}
}

// TestChase: what follows a create finds the node, wherever the connection ends.
func TestChase(t *testing.T) {
	t.Parallel()
	road := testengine.Through(t, testengine.Shared(t, testengine.ZooKeeper))
	s := open(t, road.URL(), nil)
	lost := 0
	for i := range 50 {
		dir := fmt.Sprintf("/chase-%x-%d", s.ID(), i)
		parent, node, list := Create(dir, nil, world, Container), Create(dir+"/n-", nil, world, EphemeralSequential), Children(dir)
		if i%5 == 4 {
			road.InjectAfter(testengine.ToServer, int64(30*i%170), testengine.Sever)
		}
		switch err := s.Chase(t.Context(), parent, node, list); {
		case errors.Is(err, ErrLost) || errors.Is(err, ErrNotSent):
			lost++
		case err != nil || node.Err != nil:
			t.Errorf("%d: %v, %v", i, err, node.Err)
		case node.Stat.Czxid == 0 || fmt.Sprint(list.Children) != "[n-0000000000]":
			t.Errorf("%d: created by %d, children %v", i, node.Stat.Czxid, list.Children)
		}
	}
	if lost > 20 {
		t.Errorf("%d of 50 were lost", lost)
	}
	missing, list := Create("/chase/no/parent-", nil, world, EphemeralSequential), Children("/chase/no")
	eventually := time.Now().Add(20 * time.Second) // the last connection may have ended
	for errors.Is(missing.Err, ErrLost) || missing.Err == nil {
		missing, list = Create("/chase/no/parent-", nil, world, EphemeralSequential), Children("/chase/no")
		if err := s.Chase(t.Context(), missing, list); err != nil && time.Now().After(eventually) {
			t.Fatal(err)
		}
	}
	if !errors.Is(missing.Err, ErrNoNode) || !errors.Is(list.Err, ErrNoNode) {
		t.Errorf("below nothing: %v, %v", missing.Err, list.Err)
	}
}
