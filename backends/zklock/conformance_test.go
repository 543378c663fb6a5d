package zklock

import (
	"errors"
	"io"
	"maps"
	"net"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/go-zookeeper/zk"
	"go.uber.org/goleak"

	"github.com/locksidecar/locksidecar/backends/backendtest"
	"github.com/locksidecar/locksidecar/internal/testengine"
	"github.com/locksidecar/locksidecar/lock"
)

func TestMain(m *testing.M) {
	testengine.SideBySide(12)
	goleak.VerifyTestMain(testengine.Main(m))
}

func TestConformance(t *testing.T) {
	for _, c := range []struct {
		name    string
		kind    *testengine.Kind
		options string
		lighter bool
		except  map[string]string
	}{
		// Large numbers are harder for an ensemble, whose servers send each other what they do.
		{name: "One", kind: testengine.ZooKeeper, lighter: true},
		{name: "Ensemble", kind: testengine.ZooKeeperEnsemble},
		{name: "CuratorLayout", kind: testengine.ZooKeeper, options: "&layout=curator", lighter: true, except: map[string]string{
			"OddNames": "in Curator's layout a resource is a path in ZooKeeper, which not every name can be",
		}},
	} {
		t.Run(c.name, func(t *testing.T) {
			h := &harness{server: testengine.Shared(t, c.kind), options: c.options, lighter: c.lighter, except: c.except, roads: make(map[lock.Backend]*road)}
			if c.name == "One" { // which stands for the others
				backendtest.Run(t, freezable{h})
				return
			}
			backendtest.Run(t, h)
		})
	}
}

// harness gives every backend a road of its own to the server.
type harness struct {
	server  testengine.Server
	options string
	lighter bool
	except  map[string]string

	mu    sync.Mutex
	roads map[lock.Backend]*road
}

func (h *harness) Open(t testing.TB) lock.Backend {
	r, url := newRoad(t, h.server.URL())
	b := openAt(t, url+"?timeout=3s"+h.options)
	b.sweepEvery = time.Second
	h.mu.Lock()
	h.roads[b] = r
	h.mu.Unlock()
	return b
}

// openAt opens a backend at testengine's usual servers, with their tick. Unless url says
// otherwise, it waits for answers for longer than a busy machine stands still.
func openAt(t testing.TB, url string) *Backend {
	t.Helper()
	if !strings.Contains(url, "?") {
		url += "?"
	}
	if !strings.Contains(url, "timeout=") {
		url += "&timeout=3s"
	}
	return open(t, url+"&tick=200ms")
}

func open(t testing.TB, url string) *Backend {
	t.Helper()
	b, err := Open(url, nil)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

func (h *harness) road(b lock.Backend) *road {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.roads[b]
}

// TTL is longer than a loaded machine may let everybody wait.
func (h *harness) TTL() time.Duration     { return 2 * time.Second }
func (h *harness) Recheck() time.Duration { return maxRecheck }

// Lighter makes the harness a backendtest.Lighter.
func (h *harness) Lighter() bool { return h.lighter }

// Crowd makes the harness a backendtest.Crowder. TestManyWaitersOfOneSidecar has 5,000 waiters.
func (h *harness) Crowd() int { return 2000 }

func (h *harness) Exceptions() map[string]string {
	all := maps.Clone(h.except)
	if all == nil {
		all = make(map[string]string)
	}
	return all
}

// DeleteCounter makes the harness a backendtest.CounterDeleter: the numbers of
// nodes are counted by their parent.
func (h *harness) DeleteCounter(t testing.TB, r lock.Resource) {
	path, err := openAt(t, h.server.URL()+"?"+h.options).tree.lockPath(r)
	if err != nil {
		t.Fatal(err)
	}
	c := stranger(t, h.server.URL())
	for {
		err := c.Delete(path, -1)
		if err == nil || errors.Is(err, zk.ErrNoNode) { // the server may have been faster
			return
		}
		if !errors.Is(err, zk.ErrNotEmpty) { // sidecars that have just ended
			t.Fatal(err)
		}
		time.Sleep(10 * time.Millisecond)
	}
}

// LoseReplies makes the harness a backendtest.Faulter.
func (h *harness) LoseReplies(t testing.TB, b lock.Backend) func() {
	r := h.road(b)
	heal := sync.OnceFunc(func() {
		r.set(func(r *road) { r.deaf = false })
		r.sever()
	})
	t.Cleanup(heal)
	r.set(func(r *road) { r.deaf = true })
	return heal
}

// DropWakeups makes the harness a backendtest.WakeupDropper.
func (h *harness) DropWakeups(t testing.TB, b lock.Backend) func() {
	r := h.road(b)
	restore := func() { r.set(func(r *road) { r.mute = false }) }
	t.Cleanup(restore)
	r.set(func(r *road) { r.mute = true })
	return restore
}

// Restart makes the harness a backendtest.Restarter.
func (h *harness) Restart(t testing.TB) { testengine.Restart(t, h.server, testengine.KeepData) }

// freezable is a harness with one server.
type freezable struct{ *harness }

// Freeze makes the harness a backendtest.Freezer.
func (h freezable) Freeze(t testing.TB) func() { return testengine.Pause(t, h.server) }

// Commands makes the harness a backendtest.CommandCounter.
func (h *harness) Commands(t testing.TB) int64 {
	var total int64
	for _, addr := range hosts(h.server.URL()) {
		m := regexp.MustCompile(`Received: (\d+)`).FindStringSubmatch(say(t, addr, "srvr"))
		if m == nil {
			t.Fatalf("%s does not tell what it received", addr)
		}
		n, _ := strconv.ParseInt(m[1], 10, 64)
		total += n
	}
	return total
}

func hosts(url string) []string { return strings.Split(strings.TrimPrefix(url, "zk://"), ",") }

// say is a server's answer to a word of four letters.
func say(t testing.TB, addr, word string) string {
	t.Helper()
	b, err := said(addr, word)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// said is say for a server that may not answer: one that joins the others, or leaves them, ends connections.
func said(addr, word string) (string, error) {
	c, err := net.DialTimeout("tcp", addr, 5*time.Second)
	if err != nil {
		return "", err
	}
	defer c.Close()
	_ = c.SetDeadline(time.Now().Add(5 * time.Second))
	_, _ = io.WriteString(c, word)
	b, err := io.ReadAll(c)
	return string(b), err
}

// stranger is a client that knows nothing of us: the Go library that others use.
func stranger(t testing.TB, url string) *zk.Conn {
	t.Helper()
	c, _, err := zk.Connect(hosts(url), 10*time.Second, zk.WithLogger(quiet{}))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.Close)
	return c
}

type quiet struct{}

func (quiet) Printf(string, ...any) {}
