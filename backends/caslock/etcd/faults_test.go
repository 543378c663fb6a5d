package etcd

import (
	"context"
	"errors"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"

	"github.com/locksidecar/locksidecar/backends/backendtest"
	"github.com/locksidecar/locksidecar/backends/caslock"
	"github.com/locksidecar/locksidecar/internal/testengine"
	"github.com/locksidecar/locksidecar/lock"
)

const patience = 60 * time.Second

var eventually, beat = backendtest.Eventually, backendtest.Beat

func openAt(t *testing.T, url string) *caslock.Backend {
	t.Helper()
	b, err := Open(url, nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = b.Close() })
	return b
}

// sidecar opens a backend and a lease that live as long as the test.
func sidecar(t *testing.T, url string, ttl time.Duration) (*caslock.Backend, lock.Lease) {
	t.Helper()
	b := openAt(t, url)
	var l lock.Lease
	eventually(t, "a lease is opened", func() (err error) {
		l, err = b.OpenLease(t.Context(), lock.LeaseOptions{TTL: ttl, Sidecar: t.Name()})
		return err
	})
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
		defer cancel()
		_ = l.Close(ctx) // the server may be gone
	})
	return b, l
}

func request(r lock.Resource) lock.Request {
	return lock.Request{ID: lock.NewHoldID(), Resource: r, Mode: lock.Exclusive, Owner: lock.Owner{Session: "test"}.Encode()}
}

// hold takes a lock, whatever members do.
func hold(t *testing.T, l lock.Lease, r lock.Resource) lock.Grant {
	t.Helper()
	q := request(r)
	var g lock.Grant
	eventually(t, "it is granted", func() (err error) {
		g, err = l.Acquire(t.Context(), q)
		return err
	})
	return g
}

func release(t *testing.T, l lock.Lease, g lock.Grant) {
	t.Helper()
	eventually(t, "it is released", func() error {
		if err := l.Release(t.Context(), g.Resource, g.ID); !errors.Is(err, lock.ErrNotHolder) { // a request without an answer did it
			return err
		}
		return nil
	})
}

// Each member in turn is killed, or stands still, that of the sidecar and the leader among
// them. The lease and its holds go on with the others.
func TestAMemberIsLost(t *testing.T) {
	t.Parallel()
	s := testengine.New(t, testengine.EtcdCluster)
	_, l := sidecar(t, s.URL()+"?timeout=1s", 2*time.Minute)
	kept := hold(t, l, "kept")
	for i, n := range testengine.Nodes(t, s) {
		for what, fault := range map[string]func() func(){
			"killed":       func() func() { return testengine.Crash(t, n, testengine.KeepData) },
			"stands still": func() func() { return testengine.Pause(t, n) },
		} {
			repair := fault()
			eventually(t, "a heartbeat is answered while a member is "+what, func() error { return beat(t.Context(), l) })
			release(t, l, hold(t, l, "other"))
			repair()
			t.Logf("member %d %s", i, what)
		}
	}
	if err := l.Release(t.Context(), kept.Resource, kept.ID); err != nil {
		t.Errorf("the hold is not there: %v", err)
	}
}

// Callers that give up do not turn the store to another member: those who still wait for an answer of
// this one would lose it. A member that had its time to answer is left.
func TestOnlySilenceTurnsToAnotherMember(t *testing.T) {
	t.Parallel()
	var addrs []string
	for range 2 { // connections are made, and nobody answers
		silent, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		defer silent.Close()
		addrs = append(addrs, silent.Addr().String())
	}
	cfg, err := parseURL("etcd://" + strings.Join(addrs, ","))
	if err != nil {
		t.Fatal(err)
	}
	s := newStore(cfg)
	defer s.Close()
	ask := func(ctx context.Context) (at int) {
		if _, err := s.Do(ctx, caslock.Txn{Read: []caslock.Range{{Key: "k"}}}); err == nil {
			t.Error("somebody has answered")
		}
		s.mu.Lock()
		defer s.mu.Unlock()
		return s.at
	}
	gone, cancel := context.WithCancel(t.Context())
	cancel()
	late, cancel := context.WithTimeout(t.Context(), 10*time.Millisecond)
	defer cancel()
	for what, ctx := range map[string]context.Context{"is gone": gone, "had no more time": late} {
		if at := ask(ctx); at != 0 {
			t.Errorf("member %d is asked after a caller that %s", at, what)
		}
	}
	silence, cancel := context.WithTimeoutCause(t.Context(), 10*time.Millisecond, caslock.ErrNoAnswer)
	defer cancel()
	if at := ask(silence); at != 1 {
		t.Errorf("member %d is asked after a silence", at)
	}
}

// A member without a majority grants nothing, renews nothing and tells nothing.
func TestMinority(t *testing.T) {
	t.Parallel()
	s := testengine.New(t, testengine.EtcdCluster)
	nodes := testengine.Nodes(t, s)
	b, l := sidecar(t, "etcd://"+nodes[0].Addr()+"?timeout=500ms", 2*time.Minute)
	g := hold(t, l, "r")
	thaw1, thaw2 := testengine.Pause(t, nodes[1]), testengine.Pause(t, nodes[2])
	for what, f := range map[string]func() error{
		"Acquire":   func() error { _, err := l.Acquire(t.Context(), request("other")); return err },
		"Heartbeat": func() error { return beat(t.Context(), l) },
		"Get":       func() error { _, err := b.Get(t.Context(), "r"); return err },
		"Release":   func() error { return l.Release(t.Context(), "no such", g.ID) },
	} {
		ctx := time.Now()
		if err := f(); err == nil || errors.Is(err, lock.ErrLeaseLost) {
			t.Errorf("%s at a member without a majority: %v after %s", what, err, time.Since(ctx))
		}
	}
	thaw1()
	thaw2()
	eventually(t, "a heartbeat is answered", func() error { return beat(t.Context(), l) })
	release(t, l, g)
}

// A leader stands still and is replaced. What its majority has decided meanwhile, it knows as soon
// as it goes on: it does not renew a lease that is over.
func TestLeaderOfBefore(t *testing.T) {
	t.Parallel()
	s := testengine.New(t, testengine.EtcdCluster)
	nodes := testengine.Nodes(t, s)
	client := stranger(t, s)
	var leader testengine.Node
	var rest []string
	eventually(t, "there is a leader", func() error {
		leader, rest = nil, nil
		for _, n := range nodes {
			st, err := client.Status(t.Context(), "http://"+n.Addr())
			if err != nil {
				return err
			}
			if st.Leader == st.Header.MemberId {
				leader = n
			} else {
				rest = append(rest, n.Addr())
			}
		}
		if leader == nil {
			return errors.New("nobody leads")
		}
		return nil
	})
	_, old := sidecar(t, "etcd://"+leader.Addr()+"?timeout=1s", 3*time.Second)
	before := hold(t, old, "r")
	b, l := sidecar(t, "etcd://"+strings.Join(rest, ",")+"?timeout=1s", 2*time.Minute)
	thaw := testengine.Pause(t, leader)
	after := hold(t, l, "r")
	if after.Fence <= before.Fence {
		t.Errorf("the fence %d after %d", after.Fence, before.Fence)
	}
	thaw()
	eventually(t, "the lease is known to be over", func() error {
		switch err := beat(t.Context(), old); {
		case err == nil:
			t.Fatal("a lease was renewed that is over")
		case !errors.Is(err, lock.ErrLeaseLost):
			return err
		}
		return nil
	})
	st, err := b.Get(t.Context(), "r")
	if err != nil || len(st.Holders) != 1 || st.Holders[0].ID != after.ID {
		t.Errorf("%+v, %v", st, err)
	}
	release(t, l, after)
}

// With authentication on, the sidecar needs no more than its prefix, and says what it lacks.
func TestUserWithPassword(t *testing.T) {
	t.Parallel()
	s, ctx := testengine.New(t, testengine.Etcd), t.Context()
	authenticate(t, s)

	as := func(user string) string { return strings.Replace(s.URL(), "etcd://", "etcd://"+user, 1) }
	_, l := sidecar(t, as("sidecar:s%40cret@"), time.Minute)
	release(t, l, hold(t, l, "r"))
	for url, want := range map[string]string{
		as("sidecar:wr0ng@"):              "authentication failed",
		as(""):                            "user and a password",
		as("sidecar:s%40cret@") + "/apps": "may not read and write",
	} {
		_, err := openAt(t, url).OpenLease(ctx, lock.LeaseOptions{TTL: time.Minute})
		if !errors.Is(err, lock.ErrUnavailable) || !strings.Contains(err.Error(), want) || strings.Contains(err.Error(), "wr0ng") {
			t.Errorf("%v; want an error with %q", err, want)
		}
	}
}

// A watch that a user may not have says so, and tells nobody that it has begun.
func TestWatchIsRefused(t *testing.T) {
	t.Parallel()
	s := testengine.New(t, testengine.Etcd)
	authenticate(t, s)
	apps := storeAt(t, "sidecar:s%40cret@"+testengine.Nodes(t, s)[0].Addr(), "/apps?timeout=20s")
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	err := apps.Watch(ctx, "x", func() { t.Error("it has begun") }, func(caslock.KV) {})
	if err == nil || !strings.Contains(err.Error(), "permission denied") {
		t.Error(err)
	}
}

// An error says why a member cannot be reached.
func TestWhyAMemberIsNotReached(t *testing.T) {
	t.Parallel()
	s := testengine.Shared(t, testengine.Etcd)
	road, _ := tlsRoad(t, testengine.Nodes(t, s)[0].Addr())
	closed, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	closed.Close()
	for url, want := range map[string]string{
		"etcd://" + closed.Addr().String(): "connection refused",
		"etcd://" + road:                   "error reading server preface",
		"etcds://" + road:                  "certificate signed by unknown authority",
	} {
		b := openAt(t, url+"?timeout=1s")
		eventually(t, "it says "+want, func() error {
			err := b.Ping(t.Context())
			if !errors.Is(err, lock.ErrUnavailable) || !strings.Contains(err.Error(), "no answer in time") {
				t.Fatalf("%s: %v", url, err)
			}
			if !strings.Contains(err.Error(), want) {
				return err
			}
			return nil
		})
	}
}

// authenticate makes users, and turns authentication on. It gives a client that may do everything.
func authenticate(t *testing.T, s testengine.Server) *clientv3.Client {
	t.Helper()
	c, ctx := stranger(t, s), t.Context()
	must := func(_ any, err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	must(c.UserAdd(ctx, "root", "root"))
	must(c.RoleAdd(ctx, "root"))
	must(c.UserGrantRole(ctx, "root", "root"))
	must(c.RoleAdd(ctx, "locks"))
	must(c.RoleGrantPermission(ctx, "locks", "/locksidecar/", clientv3.GetPrefixRangeEnd("/locksidecar/"), clientv3.PermissionType(clientv3.PermReadWrite)))
	must(c.UserAdd(ctx, "sidecar", "s@cret"))
	must(c.UserGrantRole(ctx, "sidecar", "locks"))
	must(c.AuthEnable(ctx))
	root, err := clientv3.New(clientv3.Config{Endpoints: c.Endpoints(), Username: "root", Password: "root", DialTimeout: 10 * time.Second, Logger: zap.NewNop()})
	must(nil, err)
	t.Cleanup(func() { _ = root.Close() })
	return root
}

// A password changes, at a server that has one address. The sidecar finds the new one in its file, and
// goes on.
func TestPasswordChanges(t *testing.T) {
	t.Parallel()
	s := testengine.New(t, testengine.Etcd)
	root := authenticate(t, s)
	file := filepath.Join(t.TempDir(), "password")
	write := func(password string) {
		if err := os.WriteFile(file, []byte(password), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write("s@cret")
	_, l := sidecar(t, strings.Replace(s.URL(), "etcd://", "etcd://sidecar@", 1)+"?timeout=20s&password-file="+file, 2*time.Minute)
	g := hold(t, l, "r")
	if _, err := root.UserChangePassword(t.Context(), "sidecar", "an0ther"); err != nil {
		t.Fatal(err)
	}
	if err := beat(t.Context(), l); !errors.Is(err, lock.ErrUnavailable) {
		t.Errorf("a heartbeat with the password of before: %v", err)
	}
	write("an0ther")
	eventually(t, "a heartbeat is answered", func() error { return beat(t.Context(), l) })
	release(t, l, g)
}

// A token ends before its time, as all do when a server restarts, and one with a signature every few
// minutes. No app hears of it.
func TestTokenEnds(t *testing.T) {
	t.Parallel()
	s := testengine.New(t, testengine.Etcd)
	root := authenticate(t, s)
	_, l := sidecar(t, strings.Replace(s.URL(), "etcd://", "etcd://sidecar:s%40cret@", 1)+"?timeout=30s", 2*time.Minute)
	release(t, l, hold(t, l, "r"))
	if _, err := root.UserChangePassword(t.Context(), "sidecar", "s@cret"); err != nil { // which voids the tokens
		t.Fatal(err)
	}
	q := request("r")
	if _, err := l.Acquire(t.Context(), q); err != nil {
		t.Fatalf("the first request with a token that is void: %v", err)
	}
	if err := l.Release(t.Context(), q.Resource, q.ID); err != nil {
		t.Error(err)
	}
}
