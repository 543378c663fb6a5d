package zklock

import (
	"encoding/binary"
	"net"
	"strings"
	"sync"
	"testing"

	"github.com/locksidecar/locksidecar/internal/faultproxy"
	"github.com/locksidecar/locksidecar/internal/testengine"
)

// road is a proxy of one client's own before all servers of an ensemble, which knows the
// packets of ZooKeeper.
type road struct {
	*faultproxy.Proxy

	mu      sync.Mutex
	mute    bool // events do not come through
	deaf    bool // nothing comes through to the client
	lost    bool // nothing comes through to the server
	request func(op int32, body string) action
}

// action is what happens to a request.
type action = faultproxy.Verdict

const (
	pass      = faultproxy.Pass
	drop      = faultproxy.Drop
	cutAfter  = faultproxy.CutAfter
	cutBefore = faultproxy.CutBefore
)

// Numbers of requests.
const (
	opMulti     int32 = 14
	opCreate    int32 = 15 // create2
	opContainer int32 = 19
	opDelete    int32 = 2
)

// newRoad makes a road to the servers of a URL, and gives the URL by it.
func newRoad(t testing.TB, url string) (*road, string) {
	t.Helper()
	r := &road{}
	var routes []faultproxy.Route
	for to := range strings.SplitSeq(strings.TrimPrefix(url, "zk://"), ",") {
		routes = append(routes, faultproxy.Route{Listen: net.JoinHostPort(faultproxy.OwnLoopback(), "0"), Target: to})
	}
	p, err := faultproxy.New(t.Context(), routes, faultproxy.Options{Framing: testengine.ZooKeeperFraming, Judge: r.judge})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = p.Close() }) // never fails
	r.Proxy = p
	return r, "zk://" + strings.Join(p.Addrs(), ",")
}

// judge says what happens to a packet. The first one is about the session.
func (r *road) judge(m faultproxy.Message) action {
	const length, number = 4, 4
	r.mu.Lock()
	f, mute, deaf, lost := r.request, r.mute, r.deaf, r.lost
	r.mu.Unlock()
	body := m.Bytes[length:]
	switch {
	case m.Direction == faultproxy.ToClient:
		event := !m.First && len(body) >= number && int32(binary.BigEndian.Uint32(body)) == -1
		if deaf || mute && event {
			return drop
		}
		return pass
	case lost:
		return drop
	case f == nil || m.First || len(body) < number+4:
		return pass
	default:
		return f(int32(binary.BigEndian.Uint32(body[number:])), string(body[number+4:]))
	}
}

// sever ends all connections.
func (r *road) sever() { r.Inject(faultproxy.Sever) }

// set changes what happens on the road.
func (r *road) set(f func(*road)) {
	r.mu.Lock()
	defer r.mu.Unlock()
	f(r)
}

// once makes an action for the first request that is of an op and has a word in
// its body. The channel is closed when it has come.
func (r *road) once(op int32, word string, do action) <-chan struct{} {
	seen, judge := onceCut(op, word, do)
	r.set(func(r *road) { r.request = judge })
	return seen
}

// onceCut judges requests as once does.
func onceCut(op int32, word string, do action) (seen <-chan struct{}, judge func(op int32, body string) action) {
	came := make(chan struct{})
	var once sync.Once
	return came, func(o int32, body string) action {
		a := pass
		if o == op && strings.Contains(body, word) {
			once.Do(func() { a = do; close(came) })
		}
		return a
	}
}
