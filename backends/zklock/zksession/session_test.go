package zksession

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/locksidecar/locksidecar/internal/testengine"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(testengine.Main(m)) }

var world = []ACL{{Perms: AllPerms, Scheme: "world", ID: "anyone"}}

// open opens a session that lives as long as the test.
func open(t *testing.T, url string, change func(*Config)) *Session {
	t.Helper()
	hosts, _, _ := strings.Cut(strings.TrimPrefix(url, "zk://"), "/")
	cfg := Config{Addrs: strings.Split(hosts, ","), SessionTimeout: 10 * time.Second, Timeout: time.Second}
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

// TestCalls sends every kind of request, many at a time.
func TestCalls(t *testing.T) {
	s := open(t, testengine.Shared(t, testengine.ZooKeeper).URL(), nil)
	const dir = "/calls"
	parent := Create(dir, nil, world, Container)
	first := Create(dir+"/a-", []byte("one"), world, EphemeralSequential)
	list := Children(dir)
	missing := Get(dir + "/missing")
	if err := s.Do(t.Context(), parent, first, list, missing, Sync(dir)); err != nil {
		t.Fatal(err)
	}
	if parent.Err != nil || first.Err != nil || first.Path != dir+"/a-0000000000" || first.Stat.EphemeralOwner != s.ID() || first.Stat.Czxid == 0 {
		t.Errorf("create: %v, %v, %q, %+v", parent.Err, first.Err, first.Path, first.Stat)
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
	both := Multi(b, c)
	if err := s.Do(t.Context(), both); err != nil || both.Err != nil {
		t.Fatal(err, both.Err)
	}
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
	exists := Create(dir, nil, world, Persistent)
	gone := Delete(b.Path, AnyVersion)
	if err := s.Do(t.Context(), exists, gone); err != nil || !errors.Is(exists.Err, ErrNodeExists) || gone.Err != nil {
		t.Error(err, exists.Err, gone.Err)
	}
}
