package main

import (
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/locksidecar/locksidecar/internal/testengine"
)

// begin starts an agent and does not wait until it serves.
func (n *testNode) begin(cgroup string, args ...string) *program {
	n.t.Helper()
	return launchIn(n.t, 0, cgroup, binary, append([]string{"serve", "--socket", n.socket, "--socket-mode", "0666", "--principal", "pod", "--space", "namespace",
		"--pods-folder", string(n.folder), "--sockets-folder", n.sockets}, args...)...)
}

// TestAgentsOfAPrivateStore: two agents whose stores know nothing of each other never serve the same node,
// so that what one has granted the other one does not.
func TestAgentsOfAPrivateStore(t *testing.T) {
	n := newTestNode(t)
	allow := []string{"--allow-service-account", "shop/*", "--store", "embedded:"}
	first := n.agent(n.pod("agent-1", ""), append(allow, "--name", "old")...)
	pod := n.pod("orders", "shop/orders")
	n.holds(pod, "a")
	second := n.begin(n.pod("agent-2", ""), append(allow, "--name", "new")...)
	if second.wait(); second.code != exitFailure || !strings.Contains(second.err.String(), "another sidecar serves this socket") {
		t.Errorf("a second agent on the embedded store: status %d, %s", second.code, second.err)
	}
	if got := n.in(pod, "run", "--wait", "0", "a", "--", "true"); got.code != exitNotGot {
		t.Errorf("broken law: a lock that is held is granted: %+v", got)
	}
	first.signal(syscall.SIGKILL)
	first.wait()
	n.agent(n.pod("agent-3", ""), allow...) // in place of one that was killed
}

// TestAgentIsRolledBack: when the agent that has taken the socket ends, and the one before it was not
// stopped, that one serves again.
func TestAgentIsRolledBack(t *testing.T) {
	for _, end := range []syscall.Signal{syscall.SIGTERM, syscall.SIGKILL} {
		t.Run(end.String(), func(t *testing.T) {
			n := newTestNode(t)
			allow := append(onStore(t, testengine.Redis), "--allow-service-account", "shop/*")
			old := n.agent(n.pod("agent-1", ""), append(allow, "--name", "old")...)
			pod := n.pod("orders", "shop/orders")
			held := n.holds(pod, "a")
			for _, name := range []string{"new", "newer"} { // more than once
				now := n.agent(n.pod("agent-"+name, ""), append(allow, "--name", name)...)
				if got := n.in(pod, "info"); !strings.Contains(got.out, name) {
					t.Errorf("who serves: %+v", got)
				}
				now.signal(end)
				now.wait()
				eventually(t, "the old one serves again", func() bool { return strings.Contains(n.in(pod, "info").out, "old") })
				if got := n.in(pod, "run", "--wait", "1m", "b", "--", "true"); got.code != 0 {
					t.Errorf("at the old one again: %+v", got)
				}
			}
			select {
			case <-held.exited:
				t.Errorf("who held a lock all the time ended with %d: %s", held.code, held.err)
			default:
			}
			old.signal(syscall.SIGTERM)
			held.signal(syscall.SIGTERM)
			if old.wait(); old.code != 0 {
				t.Errorf("it ended with %d: %s", old.code, old.err)
			}
			if left, err := filepath.Glob(filepath.Join(string(n.folder), ".*")); err != nil || len(left) > 0 {
				t.Errorf("left: %q %v", left, err)
			}
		})
	}
}

// TestOldAgentEndsFirst: an agent that cannot grant locks leaves the socket to another one only as long as
// that is there. Then apps can connect to it, and wait.
func TestOldAgentEndsFirst(t *testing.T) {
	n := newTestNode(t)
	allow := []string{"--allow-service-account", "shop/*"}
	pod := n.pod("orders", "shop/orders")
	old := n.agent(n.pod("agent-1", ""), append(append(onStore(t, testengine.Redis), allow...), "--name", "old")...)
	now := n.begin(n.pod("agent-2", ""), append(allow, "--store", "redis://127.0.0.1:1", "--name", "new")...)
	eventually(t, "the new one waits", func() bool {
		return strings.Contains(now.err.String(), "it is replaced when locks can be granted here")
	})
	old.signal(syscall.SIGKILL)
	old.wait()
	eventually(t, "the new one serves", func() bool { return strings.Contains(n.in(pod, "info").out, "new") })
}

// TestNamespaceIsFull: the pods of a namespace, however many, leave room to others, and so do namespaces that
// share names.
func TestNamespaceIsFull(t *testing.T) {
	for _, c := range []struct {
		limits []string
		want   string
	}{
		{[]string{"--max-sessions-per-space", "2"}, "at most 2 sessions per space"},
		{[]string{"--max-sessions", "5"}, "at most 2 sessions per space"},
		{[]string{"--max-holds-per-space", "2"}, "at most 2 holds per space"},
		{[]string{"--max-connections-per-space", "2"}, "at most 2 connections of one space"}, // who has no place tries again, and the log says why
	} {
		t.Run(strings.Join(c.limits, " "), func(t *testing.T) {
			n := newTestNode(t)
			agent := n.agent(n.pod("agent", ""), append(c.limits, "--allow-service-account", "*/*", "--space-of", "shop-eu=shop")...)
			n.holds(n.pod("orders-1", "shop/a"), "a")
			n.holds(n.pod("orders-2", "shop-eu/b"), "b")
			if got := n.in(n.pod("orders-3", "shop/c"), "run", "--wait", "0", "c", "--", "true"); got.code == 0 || !strings.Contains(got.err+agent.err.String(), c.want) {
				t.Errorf("a third pod: %+v", got)
			}
			if got := n.in(n.pod("ledger", "bank/a"), "run", "--wait", "0", "a", "--", "true"); got.code != 0 {
				t.Errorf("another namespace: %+v", got)
			}
		})
	}
}

// TestServiceAccountIsFull: the pods of a service account, however many, have what it may have together. Other
// accounts of the namespace, and accounts of that name elsewhere, are served as before.
func TestServiceAccountIsFull(t *testing.T) {
	held := func(n *testNode, one, two string) {
		n.holds(one, "a")
		n.holds(two, "b")
	}
	for what, c := range map[string]struct {
		fill func(n *testNode, one, two string)
		more []string
		want string
	}{
		"sessions":    {held, nil, "at most 2 sessions per service account"},
		"holds":       {held, nil, "at most 2 holds per service account"},
		"connections": {held, nil, "at most 2 connections of one service account"}, // who has no place tries again, and the log says why
		"waiters": {func(n *testNode, one, two string) {
			n.holds(n.pod("first", "shop/other"), "a")
			for _, pod := range []string{one, two} {
				n.start(pod, "run", "a", "--", "true")
			}
			eventually(n.t, "both wait", func() bool { return strings.Contains(n.in(one, "info", "-o", "json").out, `"waiters": 2`) })
		}, nil, "at most 2 waiters per service account"},
		"detached": {func(n *testNode, one, two string) {
			for _, pod := range []string{one, two} {
				if got := n.in(pod, "detached", "take", "--ttl", "1h", filepath.Base(pod)); got.code != 0 {
					n.t.Fatalf("%+v", got)
				}
			}
		}, []string{"detached", "take", "--ttl", "1h", "c"}, "at most 2 detached holds per service account"},
		"watches": {func(n *testNode, one, two string) {
			for _, pod := range []string{one, two} {
				w := n.start(pod, "watch")
				n.holds(one, filepath.Base(pod))
				eventually(n.t, "it watches", func() bool { return strings.Contains(w.out.String(), filepath.Base(pod)) })
			}
		}, []string{"watch"}, "at most 2 watches of one service account"},
	} {
		t.Run(what, func(t *testing.T) {
			n := newTestNode(t)
			self := n.pod("agent", "")
			agent := n.agent(self, "--allow-service-account", "*/*", "--max-"+what+"-per-service-account", "2")
			c.fill(n, n.pod("orders-1", "shop/a"), n.pod("orders-2", "shop/a"))
			more := c.more
			if more == nil {
				more = []string{"run", "--wait", "0", "c", "--", "true"}
			}
			if got := n.in(n.pod("orders-3", "shop/a"), more...); got.code == 0 || !strings.Contains(got.err+agent.err.String(), c.want) {
				t.Errorf("a third pod: %+v", got)
			}
			for _, account := range []string{"shop/b", "bank/a"} {
				if got := n.in(n.pod("other", account), "run", "--wait", "0", "c", "--", "true"); got.code != 0 {
					t.Errorf("%s: %+v", account, got)
				}
			}
			if what != "holds" {
				return
			}
			metrics := launchIn(t, 0, self, "curl", "-sS", "--unix-socket", n.socket, "http://locksidecar/metrics")
			metrics.wait()
			for _, want := range []string{`locksidecar_service_account_sessions{service_account="shop/a"} 2`, `locksidecar_service_account_holds{service_account="shop/a"} 2`} {
				if !strings.Contains(metrics.out.String(), want+"\n") {
					t.Errorf("the metrics lack %s: %s%s", want, metrics.out, metrics.err)
				}
			}
		})
	}
}

// TestNamesOfBothModes: a sidecar whose namespace is that of Kubernetes has the names of the node's sidecar, so that pods
// of both modes exclude each other.
func TestNamesOfBothModes(t *testing.T) {
	n := newTestNode(t)
	store := []string{"--store", storeURL(testengine.Shared(t, testengine.Redis))}
	shop := "shop-" + hexOf(4) // nobody else's on this Redis
	n.agent(n.pod("agent", ""), append(store, "--allow-service-account", "*/*")...)
	pod := n.pod("orders", shop+"/orders")
	own := serveProgram(t, append(store, "--namespace", shop)...)
	if got := cli(t, "run", "--socket", own.socket, "--wait", "0", "a", "--", "true"); got.code != 0 {
		t.Fatalf("a sidecar of a pod: %+v", got)
	}
	n.holds(pod, "a")
	if got := cli(t, "run", "--socket", own.socket, "--wait", "0", "a", "--", "true"); got.code != exitNotGot {
		t.Errorf("broken law: what a pod of the node holds is granted: %+v", got)
	}
	if got := n.in(n.pod("other", shop+"-eu/default"), "run", "--wait", "0", "a", "--", "true"); got.code != 0 {
		t.Errorf("another namespace: %+v", got)
	}
}
