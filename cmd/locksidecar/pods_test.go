package main

import (
	"crypto/rand"
	"encoding/hex"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/locksidecar/locksidecar/internal/testengine"
	"github.com/locksidecar/locksidecar/localapi/podid"
)

// hexOf is a new name of so many bytes.
func hexOf(n int) string {
	b := make([]byte, n)
	_, _ = rand.Read(b)
	return hex.EncodeToString(b)
}

// testNode is a node of Kubernetes as far as an agent sees it: cgroups as the kubelet makes them, and
// what the driver writes down.
type testNode struct {
	t       *testing.T
	root    string
	folder  podid.Folder
	sockets string // a folder for each pod
	socket  string // of the agent itself
}

func newTestNode(t *testing.T) *testNode {
	t.Helper()
	if os.Getuid() != 0 {
		t.Skip("needs root to make cgroups")
	}
	for _, root := range []string{"/sys/fs/cgroup", "/sys/fs/cgroup/unified"} {
		var of unix.Statfs_t
		if unix.Statfs(root, &of) == nil && of.Type == unix.CGROUP2_SUPER_MAGIC {
			dir := socketDir(t)
			n := &testNode{t: t, root: root, folder: podid.Folder(dir), sockets: filepath.Join(dir, "sockets"), socket: filepath.Join(dir, "s")}
			if err := os.Mkdir(n.sockets, 0o755); err != nil {
				t.Fatal(err)
			}
			return n
		}
	}
	t.Skip("there is no cgroup v2")
	return nil
}

// pod makes the cgroup of a container of a new pod. account is NAMESPACE/NAME; empty: nothing is said of the pod.
func (n *testNode) pod(name, account string) (cgroup string) {
	n.t.Helper()
	h := hexOf(16)
	uid := strings.Join([]string{h[:8], h[8:12], h[12:16], h[16:20], h[20:]}, "-")
	container := filepath.Join(n.root, "kubepods", "pod"+uid, hexOf(32))
	if err := os.MkdirAll(container, 0o755); err != nil {
		n.t.Skip("cannot make cgroups: ", err)
	}
	n.t.Cleanup(func() {
		eventually(n.t, "the cgroup is empty", func() bool { return !errors.Is(os.Remove(container), unix.EBUSY) })
		_ = os.Remove(filepath.Dir(container))
		_ = os.Remove(filepath.Join(n.root, "kubepods")) // unless others are there
	})
	if namespace, serviceAccount, ok := strings.Cut(account, "/"); ok {
		if err := n.folder.Write(podid.Said{UID: uid, Namespace: namespace, Name: name, ServiceAccount: serviceAccount}); err != nil {
			n.t.Fatal(err)
		}
		if err := os.Mkdir(filepath.Join(n.sockets, uid), 0o755); err != nil {
			n.t.Fatal(err)
		}
	}
	return container
}

// socketOf is the socket that is found in a container: that of the pod, or the agent's own where nothing was said of the
// pod.
func (n *testNode) socketOf(cgroup string) string {
	n.t.Helper()
	below := strings.TrimPrefix(cgroup, filepath.Join(n.root, "kubepods", "pod"))
	pod, _, _ := strings.Cut(below, "/")
	folder := filepath.Join(n.sockets, pod)
	if _, err := os.Stat(folder); err != nil {
		return n.socket
	}
	socket := filepath.Join(folder, filepath.Base(n.socket))
	eventually(n.t, "the pod has a socket", func() bool { _, err := os.Stat(socket); return err == nil })
	return socket
}

// agent starts the sidecar of the node in a container.
func (n *testNode) agent(cgroup string, args ...string) *program {
	n.t.Helper()
	p := n.begin(cgroup, args...)
	eventually(n.t, "the agent serves", func() bool {
		select {
		case <-p.exited:
			n.t.Fatalf("the agent ended with status %d: %s", p.code, p.err)
		default:
		}
		return strings.Contains(p.out.String(), "curl ")
	})
	return p
}

// in runs a command of the program in a container, to its end.
func (n *testNode) in(cgroup string, args ...string) result {
	n.t.Helper()
	p := n.start(cgroup, args...)
	p.wait()
	return result{p.out.String(), p.err.String(), p.code}
}

func (n *testNode) start(cgroup string, args ...string) *program {
	n.t.Helper()
	return launchIn(n.t, 0, cgroup, binary, append([]string{args[0], "--socket", n.socketOf(cgroup)}, args[1:]...)...)
}

// holds starts who holds a lock for long, in a container.
func (n *testNode) holds(cgroup, resource string) *program {
	n.t.Helper()
	p := n.start(cgroup, "run", resource, "--", "sh", "-c", "echo held; exec sleep 600")
	eventually(n.t, "it has "+resource, func() bool { return p.out.String() == "held\n" })
	return p
}

// TestPods: one sidecar serves the pods of a node. Each namespace has locks of its own, and no
// pod reaches those of another one, also as root; who is not allowed, or not known, has none.
func TestPods(t *testing.T) {
	n := newTestNode(t)
	self := n.pod("agent", "")
	n.agent(self, "--allow-service-account", "shop/*,shop-eu/orders,bank/default", "--space-of", "shop-eu=shop", "--max-sessions-per-uid", "2")
	shop, second, eu := n.pod("orders-1", "shop/orders"), n.pod("orders-2", "shop/other"), n.pod("orders-3", "shop-eu/orders")
	bank := n.pod("ledger", "bank/default")
	held := n.holds(shop, "a")
	if got := n.in(bank, "run", "--wait", "0", "a", "--", "true"); got.code != 0 {
		t.Errorf("the lock of that name in another namespace: %+v", got)
	}
	for _, pod := range []string{second, eu} {
		if got := n.in(pod, "run", "--wait", "0", "a", "--", "true"); got.code != exitNotGot || !strings.Contains(got.err, `"a" is not free`) {
			t.Errorf("the lock of a namespace that is shared: %+v", got)
		}
	}
	for _, args := range [][]string{{"list"}, {"list", "shop/"}, {"get", "shop/a"}, {"get", "../shop/a"}, {"deadlocks", "--tree"}, {"outcomes"}} {
		if got := n.in(bank, args...); strings.Contains(got.out, "orders-1") || strings.Contains(got.err, "orders-1") {
			t.Errorf("bank %q: %+v", args, got)
		}
	}
	for _, pod := range []string{shop, bank} { // as root
		if got := n.in(pod, "release", "--force", "a"); got.code != exitFailure || !strings.Contains(got.err, "is not one of this sidecar's admins") {
			t.Errorf("force: %+v", got)
		}
	}
	for _, c := range []struct{ what, cgroup, want string }{
		{"a service account that may not", n.pod("intruder", "shop-eu/default"), "its service account is not among those that may: default of namespace shop-eu"},
		{"a pod of which the kubelet has said nothing", n.pod("unknown", ""), "no such file or directory"},
	} {
		if got := n.in(c.cgroup, "list"); got.code != exitFailure || !strings.Contains(got.err, c.want) {
			t.Errorf("%s: %+v", c.what, got)
		}
	}
	if got := cli(t, "list", "--socket", n.socket); got.code != exitFailure || !strings.Contains(got.err, "is not in the kubelet's cgroup") {
		t.Errorf("in no pod: %+v", got)
	}
	// Limits are those of a pod.
	n.holds(shop, "b")
	if got := n.in(shop, "run", "c", "--", "true"); got.code == 0 || !strings.Contains(got.err, "at most 2 sessions per pod") {
		t.Errorf("a third session of the pod: %+v", got)
	}
	if got := n.in(second, "run", "c", "--", "true"); got.code != 0 {
		t.Errorf("another pod of the namespace: %+v", got)
	}
	// Who is in the agent's container sees all, and may force. Metrics count by namespace.
	if got := n.in(self, "get", "shop/a"); !strings.Contains(got.out, "pod:shop/orders-1") {
		t.Errorf("the agent's own container: %+v", got)
	}
	metrics := launchIn(t, 0, self, "curl", "-sS", "--unix-socket", n.socket, "http://locksidecar/metrics")
	metrics.wait()
	if got := metrics.out.String(); !strings.Contains(got, `locksidecar_principal_holds{principal="namespace:shop"} 2`) || strings.Contains(got, "orders-1") ||
		// Whoever reaches --http-addr sees the same: of names, no more than whose they are.
		!strings.Contains(got, `locksidecar_failed_acquires_total{pattern="shop/*",result="held"} 2`) || strings.Contains(got, "shop/a") {
		t.Errorf("metrics: %s%s", got, metrics.err)
	}
	if got := n.in(self, "release", "--force", "shop/a"); got.code != 0 {
		t.Errorf("force in the agent's own container: %+v", got)
	}
	if held.wait(); held.code == 0 {
		t.Error("the lock was not taken")
	}
}

// TestPodInAPod: a container that makes cgroups with the name of another pod below its own is taken for what it is.
func TestPodInAPod(t *testing.T) {
	n := newTestNode(t)
	n.agent(n.pod("agent", ""), "--allow-service-account", "*/*")
	shop, bank := n.pod("orders", "shop/orders"), n.pod("ledger", "bank/ledger")
	n.holds(shop, "a")
	whole := strings.TrimPrefix(shop, n.root) // with the kubelet's cgroup
	for _, below := range []string{whole, strings.TrimPrefix(whole, "/kubepods"), "/" + filepath.Base(shop)} {
		inner := bank + below
		if err := os.MkdirAll(inner, 0o755); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			for dir := inner; dir != bank; dir = filepath.Dir(dir) {
				eventually(t, "the cgroup is empty", func() bool { return !errors.Is(os.Remove(dir), unix.EBUSY) })
			}
		})
		if got := n.in(inner, "list"); got.code != 0 || strings.Contains(got.out, "orders") {
			t.Errorf("%s: %+v", below, got)
		}
		if got := n.in(inner, "run", "--wait", "0", "a", "--", "true"); got.code != 0 {
			t.Errorf("%s: %+v", below, got)
		}
	}
}

// TestPodIsKilled: what a container holds goes to the next pod of the node when the container is killed.
func TestPodIsKilled(t *testing.T) {
	n := newTestNode(t)
	n.agent(n.pod("agent", ""), "--allow-service-account", "*/*", "--ttl", "5m")
	first, second := n.pod("first", "shop/a"), n.pod("second", "shop/a")
	held := n.holds(first, "a")
	next := n.start(second, "run", "--wait", "4m", "a", "--", "true")
	eventually(t, "the second waits", func() bool {
		return strings.Contains(n.in(second, "get", "a").out, "pod:shop/second")
	})
	if err := os.WriteFile(filepath.Join(first, "cgroup.kill"), []byte("1"), 0); err != nil {
		t.Fatal(err)
	}
	begin := time.Now()
	next.wait()
	if next.code != 0 || time.Since(begin) > time.Minute { // and no TTL
		t.Errorf("status %d after %s: %s", next.code, time.Since(begin), next.err)
	}
	held.wait()
}

// TestAgentIsReplaced: a new agent starts beside the old one and takes its socket. Who holds a lock at
// the old one keeps it while that drains; everybody else reaches the new one, and the end of the old
// one takes no socket away.
func TestAgentIsReplaced(t *testing.T) {
	n := newTestNode(t)
	allow := append(onStore(t, testengine.Redis), "--allow-service-account", "shop/*", "--drain", "5m")
	old := n.agent(n.pod("agent-1", ""), append(allow, "--name", "old")...)
	pod := n.pod("orders", "shop/orders")
	done := filepath.Join(string(n.folder), "done")
	work := n.start(pod, "run", "a", "--", "sh", "-c", "echo held; until [ -e "+done+" ]; do sleep 0.1; done")
	eventually(t, "the work has begun", func() bool { return work.out.String() == "held\n" })
	now := n.agent(n.pod("agent-2", ""), append(allow, "--name", "new")...)
	if got := n.in(pod, "info"); !strings.Contains(got.out, "new") {
		t.Errorf("who serves: %+v", got)
	}
	eventually(t, "the old one has seen it", func() bool { return strings.Contains(old.err.String(), "the socket was removed or replaced") })
	old.signal(syscall.SIGTERM)
	eventually(t, "the old one drains", func() bool { return strings.Contains(old.err.String(), "waiting for apps to finish") })
	if got := n.in(pod, "run", "--wait", "1m", "b", "--", "true"); got.code != 0 {
		t.Errorf("while the old one drains: %+v", got)
	}
	if err := os.WriteFile(done, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if work.wait(); work.code != 0 {
		t.Errorf("the work ended with %d: %s", work.code, work.err)
	}
	old.wait()
	if old.code != 0 {
		t.Errorf("the old one ended with %d: %s", old.code, old.err)
	}
	if got := n.in(pod, "run", "--wait", "1m", "b", "--", "true"); got.code != 0 {
		t.Errorf("after the end of the old one: %+v", got)
	}
	now.signal(syscall.SIGKILL)
	now.wait()
	n.agent(n.pod("agent-3", ""), allow...) // in place of one that was killed
	if got := n.in(pod, "run", "--wait", "1m", "b", "--", "true"); got.code != 0 {
		t.Errorf("after the third one began: %+v", got)
	}
}

// TestAgentWithoutAStore: a new agent that cannot grant locks leaves the socket to the one that can,
// and where there is none, apps can connect and wait.
func TestAgentWithoutAStore(t *testing.T) {
	n := newTestNode(t)
	allow := []string{"--allow-service-account", "shop/*"}
	pod, second := n.pod("orders", "shop/orders"), n.pod("agent-2", "")
	noStore := append(allow, "--store", "redis://127.0.0.1:1", "--name", "new")
	old := n.agent(n.pod("agent-1", ""), append(append(onStore(t, testengine.Redis), allow...), "--name", "old")...)
	now := n.begin(second, noStore...)
	eventually(t, "the new one waits", func() bool {
		return strings.Contains(now.err.String(), "it is replaced when locks can be granted here")
	})
	for range 3 {
		if got := n.in(pod, "info"); !strings.Contains(got.out, "old") {
			t.Errorf("who serves: %+v", got)
		}
	}
	now.signal(syscall.SIGTERM)
	if now.wait(); now.code != 0 {
		t.Errorf("it ended with %d", now.code)
	}
	if got := n.in(pod, "run", "--wait", "1m", "a", "--", "true"); got.code != 0 {
		t.Errorf("after its end: %+v", got)
	}
	old.signal(syscall.SIGKILL)
	old.wait()
	n.agent(second, noStore...)
}

// TestPodFlags: what a sidecar of a node must be told, and what means nothing to it.
func TestPodFlags(t *testing.T) {
	pod := []string{"--principal", "pod", "--space", "namespace", "--allow-service-account", "shop/*"}
	for _, c := range []struct {
		args []string
		want string
	}{
		{[]string{"--principal", "pod"}, "it needs --space namespace"},
		{[]string{"--space", "namespace"}, "--space namespace needs --principal pod"},
		{[]string{"--principal", "pod", "--space", "unit"}, "--space unit needs --principal unit"},
		{pod[:4], "it needs --allow-service-account"},
		{append(pod, "--allow-uid", "0"), "--allow-uid, --allow-gid and --admin-uid mean nothing"},
		{append(pod, "--admin-uid", "0"), "mean nothing with it"},
		{append(pod, "--admin-unit", "web.service"), "--admin-unit means nothing without --principal unit"},
		{append(pod, "--allow-service-account", "shop"), `"shop" is not NAMESPACE/NAME`},
		{append(pod, "--allow-service-account", "shop/a/b"), `"shop/a/b" is not NAMESPACE/NAME`},
		{append(pod, "--sockets-folder", "/"+strings.Repeat("x", 70)), "the socket of a pod: the path is 118 bytes long, at most 107 are possible"},
		{append(pod, "--space-of", "shop=/"), "shop cannot have all spaces"},
		{append(pod, "--space-of", "Shop=x"), "is no name of a namespace"},
		{append(pod, "--space-of", "shop"), "is not NAMESPACE=SPACE"},
		{[]string{"--allow-service-account", "shop/*"}, "means nothing without --principal pod"},
		{[]string{"--max-sessions-per-space", "5"}, "--max-sessions-per-space means nothing without --space unit or --space namespace"},
		{[]string{"--max-watches-per-space", "5"}, "--max-watches-per-space means nothing without --space unit or --space namespace"},
		{[]string{"--max-holds-per-service-account", "5"}, "--max-holds-per-service-account means nothing without --principal pod"},
		{[]string{"--principal", "unit", "--space", "unit", "--max-connections-per-service-account", "5"}, "--max-connections-per-service-account means nothing without --principal pod"},
		{append(pod, "--max-holds-per-space", "-1"), "--max-holds-per-space is -1: must be at least 0"},
		{append(pod, "--max-detached-per-service-account", "-1"), "--max-detached-per-service-account is -1: must be at least 0"},
	} {
		if got := cli(t, append([]string{"serve", "--socket", filepath.Join(socketDir(t), "s")}, c.args...)...); got.code != exitUsage || !strings.Contains(got.err, c.want) {
			t.Errorf("%q: %+v", c.args, got)
		}
	}
}
