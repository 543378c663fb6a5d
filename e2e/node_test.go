package e2e

import (
	"context"
	_ "embed"
	"fmt"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"
)

//go:embed testdata/node.py
var nodeSource string

const (
	nodeDriver = "node.locksidecar.io"
	nodeDrain  = 8 * time.Second // of the agent
)

// onNode runs node.py on the node.
func onNode(t *testing.T, args ...string) []string {
	t.Helper()
	// The other script is a module of this one.
	script := "cat >/tmp/node.py <<'END_OF_NODE'\n" + nodeSource + "\nEND_OF_NODE\ncat >/tmp/hand.py <<'END_OF_HAND'\n" + handSource +
		"\nEND_OF_HAND\nexec python3 /tmp/node.py " + strings.Join(args, " ")
	return strings.Fields(must(t, "exec", "-n", systemNS, "hand", "--", "sh", "-c", script))
}

// useNode changes the release to one sidecar per node, and back at the end.
func useNode(t *testing.T, kubelet string) {
	t.Helper()
	repository, tag, _ := cutLast(image(0), ":")
	values := valuesFile("locksidecar-e2e-node-values.json", object{
		"mode": "node", "allowModeChange": true,
		"node": object{"allow": []string{appsNS + "/*", optedNS + "/default"}, "kubeletFolder": kubelet},
		"profileDefaults": object{
			"image": object{"repository": repository, "tag": tag}, "drain": nodeDrain.String(),
			"store": object{"url": "redis://" + cluster.redis + "?restart-grace=0s"},
		},
	})
	t.Cleanup(func() {
		if _, err := helm(context.WithoutCancel(t.Context()), installArgs("upgrade", "--set", "allowModeChange=true")...); err != nil {
			t.Error(err)
		} else if err := awaitPolicy(context.WithoutCancel(t.Context())); err != nil {
			t.Error(err)
		}
	})
	if _, err := helm(t.Context(), "upgrade", release, *chart, "--values", values, "--wait", "--timeout", patience.String()); err != nil {
		for _, part := range []string{"agent", "driver"} {
			out, e := kubectl(t.Context(), "logs", "-n", systemNS, "-l", "locksidecar.io/part="+part, "--tail=20")
			t.Logf("%s: %s %v", part, out, e)
		}
		t.Fatal(err)
	}
	if err := poll(func() error {
		for _, ns := range []string{appsNS, optedNS} {
			p := pod{ns: ns, name: "probe", command: []string{"true"}}
			if ns == appsNS {
				p.annotations = injected("")
			}
			out, err := p.dryRun(t.Context())
			if err != nil || !strings.Contains(out, `"driver": "`+nodeDriver+`"`) || strings.Contains(out, "emptyDir") {
				return fmt.Errorf("a pod of %s has no volume of the node: %s %w", ns, out, err)
			}
		}
		return nil
	}); err != nil {
		t.Fatal(err)
	}
}

// ofNode is the pod of a part of the node's sidecar that is not about to end.
func ofNode(t *testing.T, part string) pod {
	t.Helper()
	var name string
	eventually(t, "one pod of the "+part, func() bool {
		var list struct{ Items []status }
		get(t, &list, "pods", "-n", systemNS, "-l", "locksidecar.io/part="+part)
		n := 0
		for _, s := range list.Items {
			if s.Metadata.DeletionTimestamp == "" {
				name = s.Metadata.Name
				n++
			}
		}
		return n == 1
	})
	return pod{ns: systemNS, name: name}
}

// waitsOnNode waits until somebody waits for a lock, in the eyes of the agent, who sees all namespaces.
func waitsOnNode(t *testing.T, ns, resource string) {
	t.Helper()
	agent := ofNode(t, "agent")
	eventually(t, "somebody waits for "+resource, func() bool {
		return strings.Contains(agent.exec(t, "locksidecar", "/locksidecar", "get", "-o", "json", ns+"/"+resource), `"waiters": [
`)
	})
}

// TestNode is one sidecar for all pods of the node.
func TestNode(t *testing.T) {
	kubelet := onNode(t, "kubelet")[0]
	useNode(t, kubelet)
	if out, err := helm(t.Context(), "test", release, "--timeout", patience.String()); err != nil {
		t.Errorf("helm test: %v\n%s", err, out)
	}
	next := idle(t, "node-next", "")
	t.Run("Namespaces", func(t *testing.T) { nodeNamespaces(t, next) })
	t.Run("AppKilled", func(t *testing.T) { nodeAppKilled(t, next) })
	t.Run("HandOff", func(t *testing.T) { nodeHandOff(t, next) })
	t.Run("AgentKilled", func(t *testing.T) { nodeAgentKilled(t) })
	t.Run("AgentUpgraded", func(t *testing.T) { nodeAgentUpgraded(t, next) })
	t.Run("Driver", func(t *testing.T) { nodeDriverKilled(t, kubelet) })
}

// Pods of two namespaces have locks of the same name at the same time, and see none of each other.
func nodeNamespaces(t *testing.T, next pod) {
	p, _ := holder(t, "node-mine", "")
	if s := p.status(t); len(s.Spec.InitContainers) != 0 || len(s.Spec.Containers) != 1 {
		t.Errorf("containers were put in: %+v", s.Spec)
	}
	other := pod{ns: optedNS, name: "node-theirs", command: []string{"sh", "-c", "trap 'exit 0' TERM; while :; do sleep 1; done"}}.start(t)
	other.awaitReady(t)
	if got := next.attempt(t, p.name); got.Event != "held" {
		t.Errorf("in its own namespace: %+v", got)
	}
	if got := other.attempt(t, p.name); got.Event != "granted" {
		t.Errorf("in another namespace: %+v", got)
	}
	ask := func(from pod, path string, more ...string) string {
		return from.exec(t, "app", append([]string{"curl", "-s", "--unix-socket", "/run/locksidecar/locksidecar.sock", "http://locksidecar/v1/" + path}, more...)...)
	}
	if got := ask(next, "locks"); !strings.Contains(got, p.name) {
		t.Errorf("its own namespace lists %s", got)
	}
	for _, path := range []string{"locks", "locks?prefix=" + appsNS, "locks/" + p.name, "locks/" + appsNS + "%2F" + p.name, "locks/..%2F" + appsNS + "%2F" + p.name} {
		if got := ask(other, path); strings.Contains(got, `"holders":[{`) || strings.Contains(got, appsNS+"/"+p.name+`","lock`) {
			t.Errorf("%s of another namespace: %s", path, got)
		}
	}
	for _, name := range []string{p.name, appsNS + "/" + p.name} {
		if got := ask(other, "locks/"+name, "-X", "DELETE"); !strings.Contains(got, "is not one of this sidecar's admins") {
			t.Errorf("force: %s", got)
		}
	}
	if got := next.attempt(t, p.name); got.Event != "held" {
		t.Errorf("it is held no more: %+v", got)
	}
	stranger := pod{ns: systemNS, name: "node-stranger", command: []string{"sleep", "infinity"}, annotations: injected("")}.start(t)
	stranger.awaitReady(t)
	if got := ask(stranger, "locks"); !strings.Contains(got, "its service account is not among those that may") {
		t.Errorf("a namespace that may not: %s", got)
	}
}

// The container of an app is killed.
func nodeAppKilled(t *testing.T, next pod) {
	var free []time.Duration
	for i := range rounds {
		p, first := holder(t, fmt.Sprintf("node-app-killed-%d", i), "")
		k := next.begin(t, p.name)
		waitsOnNode(t, appsNS, p.name)
		at := do(t, "KILL", p, "app")
		got := k.granted()
		free = append(free, got.time().Sub(at))
		if got.Fence <= first.Fence {
			t.Errorf("fence %d after %d", got.Fence, first.Fence)
		}
	}
	within(t, "freeing the lock", median(free), 0, soon)
	t.Logf("free after %s", free)
}

// Two pods take turns. The store is not asked for each turn.
func nodeHandOff(t *testing.T, next pod) {
	second := idle(t, "node-second", "")
	agent := ofNode(t, "agent")
	granted := func() (n int) {
		var s struct{ Status struct{ PodIP string } }
		get(t, &s, "pod", "-n", systemNS, agent.name)
		text := hand.exec(t, "app", "curl", "-s", "http://"+s.Status.PodIP+":24737/metrics")
		found := regexp.MustCompile(`(?m)^locksidecar_local_grants_total (\d+)`).FindStringSubmatch(text)
		if found == nil {
			t.Fatalf("no such metric: %s", text)
		}
		n, _ = strconv.Atoi(found[1])
		return n
	}
	before := granted()
	const turns = 10
	takers := make([]*taker, 0, 2*turns)
	for range turns {
		takers = append(takers, next.begin(t, "node-turns"), second.begin(t, "node-turns"))
	}
	for _, k := range takers {
		k.granted()
	}
	if n := granted() - before; n == 0 {
		t.Error("each turn asked the store")
	} else {
		t.Logf("%d of %d turns did not ask the store", n, 2*turns)
	}
}

// The agent is killed: whoever has a lock is told at once, and a new session has it after a TTL at most.
func nodeAgentKilled(t *testing.T) {
	p, first := holder(t, "node-agent-killed", "")
	agent := ofNode(t, "agent")
	at := do(t, "KILL", agent, "locksidecar")
	told := p.await(t, "lost", 1)
	within(t, "telling the app", told.time().Sub(at), 0, soon)
	got := p.await(t, "granted", 2)
	free := got.time().Sub(at)
	within(t, "freeing the lock", free, 0, ttl+soon)
	if got.Fence <= first.Fence {
		t.Errorf("fence %d after %d", got.Fence, first.Fence)
	}
	if s := p.status(t); s.restarts("app") != 0 {
		t.Error("the app was started again")
	}
	t.Logf("told after %s, free after %s", told.time().Sub(at), free)
}

// The agent is upgraded: a new one takes over, the holder at the old one has its lock until the end of
// the drain, and all others get theirs as they do at any other time.
func nodeAgentUpgraded(t *testing.T, next pod) {
	p, _ := holder(t, "node-upgraded", "")
	old := ofNode(t, "agent").name
	set := "daemonset/" + release + "-agent"
	must(t, "rollout", "restart", "-n", systemNS, set)
	slowest := time.Duration(0)
	lost := func() bool { return strings.Contains(must(t, "logs", "-n", appsNS, p.name, "-c", "app"), `"lost"`) }
	for end := time.Now().Add(patience); !lost(); {
		if time.Now().After(end) {
			t.Fatal("the old agent does not end")
		}
		begin := time.Now()
		if got := next.attempt(t, "node-meanwhile"); got.Event != "granted" {
			t.Errorf("meanwhile: %+v", got)
		}
		slowest = max(slowest, time.Since(begin))
	}
	must(t, "rollout", "status", "-n", systemNS, set, "--timeout="+patience.String())
	p.await(t, "granted", 2)
	if now := ofNode(t, "agent").name; now == old {
		t.Errorf("%s serves still", old)
	}
	within(t, "a lock meanwhile, with the start of a program", slowest, 0, 2*soon)
	t.Logf("the slowest lock meanwhile took %s, with the start of a program in a pod", slowest)
}

// The driver is killed while pods run, and the API server is away.
func nodeDriverKilled(t *testing.T, kubelet string) {
	driver := ofNode(t, "driver")
	stays, _ := holder(t, "node-stays", "")
	goes, _ := holder(t, "node-goes", "")
	uids := map[string]string{}
	for _, p := range []pod{stays, goes} {
		uids[p.name] = strings.TrimSpace(must(t, "get", "pod", "-n", p.namespace(), p.name, "-o", "jsonpath={.metadata.uid}"))
	}
	seen := func(p pod) string { return strings.Join(onNode(t, "seen", kubelet, uids[p.name]), " ") }
	for _, p := range []pod{stays, goes} {
		if got := seen(p); got != "1 True" {
			t.Errorf("%s: mounts and a file: %s", p.name, got)
		}
	}
	// A pod that is deleted while the driver is away leaves nothing behind.
	before := driver.status(t).restarts("driver")
	do(t, "STOP", driver, "driver")
	must(t, "delete", "pod", "-n", goes.namespace(), goes.name, "--grace-period=1", "--wait=false")
	do(t, "KILL", driver, "driver")
	eventually(t, "nothing is left of the pod", func() bool { return seen(goes) == "0 False" })
	eventually(t, "the driver was started again", func() bool { return driver.status(t).restarts("driver") > before })
	if got := seen(stays); got != "1 True" {
		t.Errorf("the pod that stays: mounts and a file: %s", got)
	}
	// A container that starts while the API server is away gets its lock.
	times := onNode(t, "away", stays.ids(t, []string{"app"})[0])
	begin, _ := strconv.ParseInt(times[0], 10, 64)
	end, _ := strconv.ParseInt(times[1], 10, 64)
	eventually(t, "the container was started again", func() bool { return stays.status(t).restarts("app") > 0 })
	if got := stays.await(t, "granted", 1); got.At < begin || got.At > end {
		t.Errorf("the container that was started has its lock at %d, and the API server was away from %d to %d", got.At, begin, end)
	}
}
