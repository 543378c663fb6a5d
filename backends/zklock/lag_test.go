package zklock

import (
	"encoding/binary"
	"net"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/go-zookeeper/zk"

	"github.com/locksidecar/locksidecar/internal/faultproxy"
	"github.com/locksidecar/locksidecar/internal/testengine"
	"github.com/locksidecar/locksidecar/lock"
)

// late keeps back the answer to a flush, which a heartbeat ends with.
type late struct {
	mu      sync.Mutex
	armed   bool
	number  []byte        // of the flush
	reached chan struct{} // closed when its answer has come
	goOn    chan struct{} // closed when it may pass
	reads   chan struct{} // closed when something else was asked for behind it
}

func (a *late) judge(m faultproxy.Message) action {
	const opSync = 9
	body := m.Bytes[4:]
	if m.First || len(body) < 8 {
		return pass
	}
	number, op := body[:4], int32(binary.BigEndian.Uint32(body[4:]))
	a.mu.Lock()
	defer a.mu.Unlock()
	switch {
	case !a.armed:
	case m.Direction == faultproxy.ToServer && a.number == nil:
		if op == opSync {
			a.number = append(a.number, number...)
		}
	case m.Direction == faultproxy.ToServer:
		a.armed = false
		close(a.reads)
	case a.number != nil && string(number) == string(a.number):
		close(a.reached)
		a.mu.Unlock()
		<-a.goOn
		a.mu.Lock()
	}
	return pass
}

// TestReviewAtAServerThatLags: a heartbeat has to read all that the lease has. Just then it gets a lock, with a node of another
// session, and the server that is asked does not know that yet. The lock is not taken for lost.
func TestReviewAtAServerThatLags(t *testing.T) { again(t, testReviewAtAServerThatLags) }

func testReviewAtAServerThatLags(t testing.TB) {
	s := testengine.New(t, testengine.ZooKeeperPatient) // its own: a server of others must not stand still
	lead, rest := leader(t, s)
	a := &late{reached: make(chan struct{}), goOn: make(chan struct{}), reads: make(chan struct{})}
	goOn := sync.OnceFunc(func() { close(a.goOn) })
	defer goOn()
	road := func(n testengine.Node, judge func(faultproxy.Message) action) *faultproxy.Proxy {
		route := faultproxy.Route{Listen: net.JoinHostPort(faultproxy.OwnLoopback(), "0"), Target: n.Addr()}
		p, err := faultproxy.New(t.Context(), []faultproxy.Route{route}, faultproxy.Options{Framing: testengine.ZooKeeperFraming, Judge: judge})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { goOn(); _ = p.Close() }) // never fails
		return p
	}
	lags := road(rest[0], a.judge)
	other := road(lead, func(faultproxy.Message) action { return pass })
	other.Shut(lead.Addr())
	b, l := sidecar(t, "zk://"+lags.Addr()+","+other.Addr()+"?timeout=10s", 40*time.Second)
	other.Shut("")
	lags.Shut(rest[0].Addr())
	fillUp(t, l, l.driver.leaseNode.s)
	first := hold(t, l, unique(), lock.Exclusive) // by another session, at the other server
	if err := beat(t.Context(), l); err != nil {
		t.Fatal(err)
	}
	c := stranger(t, "zk://"+lead.Addr())
	if err := c.Delete(l.driver.leaseNode.path, -1); err != nil {
		t.Fatal(err)
	}
	a.mu.Lock()
	a.armed = true
	a.mu.Unlock()
	done := make(chan error, 1)
	go func() { done <- beat(t.Context(), l) }()
	select {
	case <-a.reached:
	case err := <-done:
		t.Fatalf("the heartbeat was not kept back: %v", err)
	}
	resume := testengine.Pause(t, rest[0])
	path, _ := b.tree.lockPath(unique())
	for range 15 { // what it has to take in before the lock
		var work []any
		for range 150 {
			work = append(work, &zk.CreateRequest{Path: "/lag-" + path[strings.LastIndexByte(path, '/')+1:], Acl: zk.WorldACL(zk.PermAll)}, &zk.DeleteRequest{Path: "/lag-" + path[strings.LastIndexByte(path, '/')+1:], Version: -1})
		}
		if _, err := c.Multi(work...); err != nil {
			t.Fatal(err)
		}
	}
	g := hold(t, l, unique(), lock.Exclusive)
	goOn()
	select {
	case <-a.reads:
	case err := <-done:
		t.Fatalf("the heartbeat has read nothing: %v", err)
	}
	resume()
	if err := <-done; err != nil {
		t.Errorf("Heartbeat: %v", err)
	}
	noEvent(t, l)
	for _, g := range []lock.Grant{first, g} {
		if len(nodes(t, b, s.URL(), g.Resource)) != 1 {
			t.Error("it has no node any more")
		}
		release(t, l, g)
		empty(t, b, s.URL(), g.Resource)
	}
}
