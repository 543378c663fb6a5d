package e2e

import (
	"context"
	_ "embed"
	"strconv"
	"strings"
	"testing"
)

//go:embed testdata/node.py
var nodeSource string

const nodeDriver = "node.locksidecar.io"

// onNode runs node.py on the node.
func onNode(t *testing.T, args ...string) []string {
	t.Helper()
	// The other script is a module of this one.
	script := "cat >/tmp/node.py <<'END_OF_NODE'\n" + nodeSource + "\nEND_OF_NODE\ncat >/tmp/hand.py <<'END_OF_HAND'\n" + handSource +
		"\nEND_OF_HAND\nexec python3 /tmp/node.py " + strings.Join(args, " ")
	return strings.Fields(must(t, "exec", "-n", systemNS, "hand", "--", "sh", "-c", script))
}

// inNode runs node.py in a container.
func inNode(args ...string) []string {
	return append([]string{"python3", "-u", "-c", nodeSource}, args...)
}

// nodeFolder mounts a folder of the node.
func nodeFolder(spec object, name, path, propagation string) {
	volumes, _ := spec["volumes"].([]object)
	spec["volumes"] = append(volumes, object{"name": name, "hostPath": object{"path": path, "type": "DirectoryOrCreate"}})
	c := spec["containers"].([]object)[0]
	mounts, _ := c["volumeMounts"].([]object)
	c["volumeMounts"] = append(mounts, object{"name": name, "mountPath": path, "mountPropagation": propagation})
}

// startDriver runs the driver as its DaemonSet will.
func startDriver(t *testing.T, kubelet string) pod {
	t.Helper()
	ctx := context.WithoutCancel(t.Context())
	t.Cleanup(func() {
		if _, err := kubectl(ctx, "delete", "csidriver", nodeDriver, "--ignore-not-found"); err != nil {
			t.Error(err)
		}
	})
	if err := create(t.Context(), object{"apiVersion": "storage.k8s.io/v1", "kind": "CSIDriver", "metadata": object{"name": nodeDriver},
		"spec": object{"attachRequired": false, "podInfoOnMount": true, "volumeLifecycleModes": []string{"Ephemeral"}, "fsGroupPolicy": "None"}}); err != nil {
		t.Fatal(err)
	}
	p := pod{ns: systemNS, name: "node-driver", root: true, command: []string{"/locksidecar", "csi", "--kubelet-folder", kubelet, "--node-name", cluster.node},
		change: func(spec object) {
			spec["containers"].([]object)[0]["image"] = image(0)
			nodeFolder(spec, "node", "/run/locksidecar-node", "None")
			nodeFolder(spec, "kubelet", kubelet, "Bidirectional")
		}}.start(t)
	eventually(t, "the kubelet has the driver", func() bool {
		return strings.Contains(must(t, "get", "csinode", cluster.node, "-o", "jsonpath={.spec.drivers[*].name}"), nodeDriver)
	})
	return p
}

// The driver of a node, with somebody who only answers behind its socket: it is killed while pods
// run, and the API server is away.
func TestNodeDriver(t *testing.T) {
	kubelet := onNode(t, "kubelet")[0]
	driver := startDriver(t, kubelet)
	pod{ns: systemNS, name: "node-agent", root: true, command: inNode("listen"), change: func(spec object) {
		nodeFolder(spec, "node", "/run/locksidecar-node", "None")
	}}.start(t)
	user := func(name string) pod {
		return pod{name: name, command: inNode("ask"), change: func(spec object) {
			spec["volumes"] = append(spec["volumes"].([]object), object{"name": "locks", "csi": object{"driver": nodeDriver, "readOnly": true}})
			c := spec["containers"].([]object)[0]
			c["volumeMounts"] = append(c["volumeMounts"].([]object), object{"name": "locks", "mountPath": "/locks"})
		}}.start(t)
	}
	stays, goes := user("node-stays"), user("node-goes")
	uids := map[string]string{}
	for _, p := range []pod{stays, goes} {
		p.awaitReady(t)
		uids[p.name] = strings.TrimSpace(must(t, "get", "pod", "-n", p.namespace(), p.name, "-o", "jsonpath={.metadata.uid}"))
		eventually(t, p.name+" has the word", func() bool { return len(heard(t, p, 0, 1<<62)) == 10 })
	}
	seen := func(p pod) string { return strings.Join(onNode(t, "seen", kubelet, uids[p.name]), " ") }
	for _, p := range []pod{stays, goes} {
		if got := seen(p); got != "1 True" {
			t.Errorf("%s: mounts and a file: %s", p.name, got)
		}
	}
	// A pod that is deleted while the driver is away leaves nothing behind.
	before := driver.status(t).restarts("app")
	freezeAndDelete(t, driver, goes)
	eventually(t, "nothing is left of the pod", func() bool { return seen(goes) == "0 False" })
	eventually(t, "the driver was started again", func() bool { return driver.status(t).restarts("app") > before })
	if got := seen(stays); got != "1 True" {
		t.Errorf("the pod that stays: mounts and a file: %s", got)
	}
	// A container that starts while the API server is away gets the word.
	times := onNode(t, "away", stays.ids(t, []string{"app"})[0])
	begin, _ := strconv.ParseInt(times[0], 10, 64)
	end, _ := strconv.ParseInt(times[1], 10, 64)
	eventually(t, "the container was started again", func() bool { return stays.status(t).restarts("app") > 0 })
	if got := heard(t, stays, begin, end); len(got) == 0 {
		t.Error("while the API server was away, the container that was started had no word")
	}
}

// heard are the times between two at which a pod's container had the word.
func heard(t *testing.T, p pod, begin, end int64) (times []int64) {
	t.Helper()
	for line := range strings.Lines(must(t, "logs", "-n", p.namespace(), p.name)) {
		if at, err := strconv.ParseInt(strings.TrimSpace(line), 10, 64); err == nil && at > begin && at < end {
			times = append(times, at)
		}
	}
	return times
}

// freezeAndDelete deletes a pod while the driver hangs, and then kills the driver.
func freezeAndDelete(t *testing.T, driver, p pod) {
	t.Helper()
	freeze(t, driver, "app")
	must(t, "delete", "pod", "-n", p.namespace(), p.name, "--grace-period=1", "--wait=false")
	do(t, "KILL", driver, "app")
}
