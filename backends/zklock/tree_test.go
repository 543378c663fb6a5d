package zklock

import (
	"errors"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/locksidecar/locksidecar/backends/zklock/zksession"
	"github.com/locksidecar/locksidecar/lock"
)

func TestEscape(t *testing.T) {
	for name, want := range map[string]string{
		"orders/42": "orders%2F42", "a%b": "a%25b", ".": "%2E", "..": "%2E%2E", "...": "...", "日本": "日本",
		"🔒": "%F0%9F%94%92", "\ue000": "%EE%80%80", "\ufffd": "%EF%BF%BD", "a b": "a b",
	} {
		if got := escape(name); got != want {
			t.Errorf("escape(%q) = %q, want %q", name, got, want)
		}
	}
	for _, name := range []string{"%", "%2", "%zz", "%2f", "%41", "a/b"} { // no name of ours
		if r, ok := unescape(name); ok {
			t.Errorf("unescape(%q) = %q", name, r)
		}
	}
}

// FuzzEscape: every resource has a name of its own that ZooKeeper takes.
func FuzzEscape(f *testing.F) {
	for _, s := range []string{"a", "orders/42", "%2F", ".", "..", "🔒", "\ufffe", "\u00a0"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		r, err := lock.ParseResource(s)
		if err != nil {
			return
		}
		name := escape(s)
		if problem := checkPart(name); problem != "" || strings.Contains(name, "/") {
			t.Errorf("%q becomes %q: %s", s, name, problem)
		}
		if back, ok := unescape(name); !ok || back != r {
			t.Errorf("%q becomes %q and then %q, %t", s, name, back, ok)
		}
	})
}

func TestLockPath(t *testing.T) {
	own, curator := tree{root: "/app"}, tree{root: "/app", curator: true}
	for _, c := range []struct {
		t       tree
		r, want string
	}{
		{own, "orders/42", "/app/locksidecar/locks/5f/orders%2F42"},
		{tree{}, "a", "/locksidecar/locks/2c/a"},
		{curator, "orders/42", "/app/orders/42"},
		{curator, "zookeeper", "/app/zookeeper"},
		{tree{curator: true}, "orders", "/orders"},
	} {
		if got, err := c.t.lockPath(lock.Resource(c.r)); err != nil || got != c.want {
			t.Errorf("%q: %q, %v; want %q", c.r, got, err, c.want)
		}
	}
	for _, r := range []string{"/a", "a/", "a//b", "a/./b", "..", "🔒", "locksidecar/x", "orders/_c_x-lock-0000000001", "lock-0000000001"} {
		if p, err := curator.lockPath(lock.Resource(r)); !errors.Is(err, lock.ErrInvalid) {
			t.Errorf("%q is at %q in Curator's layout, %v", r, p, err)
		}
	}
	if _, err := (&tree{curator: true}).lockPath("zookeeper/quota"); !errors.Is(err, lock.ErrInvalid) {
		t.Errorf("a lock in ZooKeeper's own nodes: %v", err)
	}
}

func TestAncestors(t *testing.T) {
	kinds := func(t tree, node string) []string {
		var all []string
		for _, c := range t.ancestors(node) {
			all = append(all, c.String())
		}
		return all
	}
	own := tree{root: "/a/b"}
	want := []string{
		zksession.Create("/a", nil, nil, zksession.Persistent).String(),
		zksession.Create("/a/b", nil, nil, zksession.Persistent).String(),
		zksession.Create("/a/b/locksidecar", nil, nil, zksession.Persistent).String(),
		zksession.Create("/a/b/locksidecar/leases", nil, nil, zksession.Container).String(),
	}
	if diff := cmp.Diff(want, kinds(own, own.leases())); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	want = []string{
		zksession.Create("/orders", nil, nil, zksession.Container).String(),
		zksession.Create("/orders/42", nil, nil, zksession.Container).String(),
	}
	if diff := cmp.Diff(want, kinds(tree{curator: true}, "/orders/42")); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}
