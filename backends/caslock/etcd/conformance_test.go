package etcd

import (
	"bufio"
	"context"
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/goleak"
	"go.uber.org/zap"

	"github.com/locksidecar/locksidecar/backends/backendtest"
	"github.com/locksidecar/locksidecar/backends/backendtest/served"
	"github.com/locksidecar/locksidecar/backends/caslock"
	"github.com/locksidecar/locksidecar/internal/testengine"
	"github.com/locksidecar/locksidecar/lock"
)

func TestMain(m *testing.M) {
	testengine.SideBySide(12)
	goleak.VerifyTestMain(testengine.Main(m))
}

func TestConformance(t *testing.T) {
	for _, c := range []struct {
		name string
		kind *testengine.Kind
	}{{"One", testengine.Etcd}, {"Cluster", testengine.EtcdCluster}} {
		t.Run(c.name, func(t *testing.T) {
			h := newHarness(t, testengine.Shared(t, c.kind))
			h.Light = true       // many small writes to a disk: make test-full has the large numbers
			if c.name == "One" { // which stands for the other
				backendtest.Run(t, freezable{h})
				return
			}
			backendtest.Run(t, h)
		})
	}
}

type harness struct {
	*served.Store
	mu    sync.Mutex
	muted map[lock.Backend]*muted
}

func newHarness(t testing.TB, s testengine.Server) *harness {
	t.Helper()
	h := &harness{muted: make(map[lock.Backend]*muted)}
	h.Store = &served.Store{Server: s, OpenAt: func(t testing.TB, url string) lock.Backend {
		cfg, err := parseURL(url)
		if err != nil {
			t.Fatal(err)
		}
		m := &muted{store: newStore(cfg)}
		b := caslock.Open(m, caslock.Options{Timeout: cfg.timeout})
		h.mu.Lock()
		defer h.mu.Unlock()
		h.muted[b] = m
		return b
	}}
	return h
}

var _ interface {
	backendtest.CounterDeleter
	backendtest.Insider
	backendtest.CommandCounter
} = (*harness)(nil)

// TTL is longer than a loaded machine lets a member wait for its disk.
func (h *harness) TTL() time.Duration { return 2 * time.Second }

// muted is a store whose news can be dropped. Requests and news share a connection, so
// a proxy cannot do that.
type muted struct {
	*store
	silent atomic.Bool
}

func (m *muted) Watch(ctx context.Context, prefix string, ready func(), changed func(caslock.KV)) error {
	return m.store.Watch(ctx, prefix, func() {
		if !m.silent.Load() {
			ready()
		}
	}, func(kv caslock.KV) {
		if !m.silent.Load() {
			changed(kv)
		}
	})
}

// DropWakeups makes the harness a backendtest.WakeupDropper.
func (h *harness) DropWakeups(t testing.TB, b lock.Backend) func() {
	h.mu.Lock()
	m := h.muted[b]
	h.mu.Unlock()
	restore := func() { m.silent.Store(false) }
	t.Cleanup(restore)
	m.silent.Store(true)
	return restore
}

// stranger is a client that knows nothing of us.
func stranger(t testing.TB, s testengine.Server) *clientv3.Client {
	t.Helper()
	var all []string
	for _, n := range testengine.Nodes(t, s) {
		all = append(all, "http://"+n.Addr())
	}
	c, err := clientv3.New(clientv3.Config{Endpoints: all, DialTimeout: 10 * time.Second, Logger: zap.NewNop()})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close() })
	return c
}

// keys are all that are below the usual prefix.
func keys(t testing.TB, s testengine.Server) []string {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	r, err := stranger(t, s).Get(ctx, "/locksidecar/", clientv3.WithPrefix(), clientv3.WithKeysOnly())
	if err != nil {
		return []string{err.Error()}
	}
	var all []string
	for _, kv := range r.Kvs {
		all = append(all, string(kv.Key))
	}
	return all
}

// DeleteCounter makes the harness a backendtest.CounterDeleter.
func (h *harness) DeleteCounter(t testing.TB, _ lock.Resource) {
	if _, err := stranger(t, h.Server).Delete(context.Background(), "/locksidecar/base"); err != nil {
		t.Fatal(err)
	}
}

// Leftovers makes the harness a backendtest.Insider.
func (h *harness) Leftovers(t testing.TB, prefix string) (left []string) {
	for _, k := range keys(t, h.Server) {
		if strings.Contains(k, prefix) {
			left = append(left, fmt.Sprintf("%q", k))
		}
	}
	return left
}

// Commands makes the harness a backendtest.CommandCounter.
func (h *harness) Commands(t testing.TB) int64 {
	t.Helper()
	var total int64
	for _, n := range testengine.Nodes(t, h.Server) {
		q, err := http.NewRequestWithContext(context.Background(), http.MethodGet, "http://"+n.Addr()+"/metrics", nil)
		if err != nil {
			t.Fatal(err)
		}
		q.Close = true
		a, err := http.DefaultClient.Do(q)
		if err != nil {
			t.Fatal(err)
		}
		defer a.Body.Close()
		for lines := bufio.NewScanner(a.Body); lines.Scan(); {
			if name, value, _ := strings.Cut(lines.Text(), "} "); strings.HasPrefix(name, "grpc_server_started_total{") {
				n, _ := strconv.ParseFloat(value, 64)
				total += int64(n)
			}
		}
	}
	return total
}

// freezable is a harness with one server.
type freezable struct{ *harness }

// Freeze makes the harness a backendtest.Freezer.
func (h freezable) Freeze(t testing.TB) func() { return testengine.Pause(t, h.Server) }
