package e2e

import (
	"context"
	_ "embed"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"
	"time"
)

//go:embed testdata/app.py
var appSource string

const password = "s3cret-of-e2e"

// cluster is what the tests know of where they are.
var cluster struct {
	node     string
	hostname string        // label of the node
	redis    string        // host and port
	offset   time.Duration // of the node's clock from ours
}

// redis is the store, hand does what must be done on the node.
var (
	redis = pod{ns: systemNS, name: "redis", command: []string{
		"redis-server", "--bind", "0.0.0.0", "--protected-mode", "no", "--save", "", "--maxmemory-policy", "noeviction",
		"--user", "default", "on", "nopass", "~*", "&*", "+@all",
		"--user", "locker", "on", ">" + password, "~*", "&*", "+@all",
	}, ready: []string{"redis-cli", "ping"}}
	hand = pod{ns: systemNS, name: "hand", command: []string{"sleep", "infinity"}, root: true}
)

func image(n int) string { return strings.Split(*images, ",")[n] }

// setUp makes what all tests use. Everything runs on one node, and so by one clock.
func setUp(ctx context.Context) error {
	if err := findNode(ctx); err != nil {
		return err
	}
	if err := tearDown(ctx); err != nil { // what an earlier run left
		return err
	}
	privileged := object{"pod-security.kubernetes.io/enforce": "privileged"}
	for _, ns := range []string{systemNS, appsNS} {
		if err := namespace(ctx, ns, privileged); err != nil {
			return err
		}
	}
	for _, p := range []pod{redis, hand} {
		if err := p.create(ctx); err != nil {
			return err
		}
	}
	for _, p := range []string{"redis", "hand"} {
		if _, err := kubectl(ctx, "wait", "-n", systemNS, "pod/"+p, "--for=condition=Ready", "--timeout=2m"); err != nil {
			return err
		}
	}
	ip, err := kubectl(ctx, "get", "-n", systemNS, "pod/redis", "-o", "jsonpath={.status.podIP}")
	if err != nil {
		return err
	}
	cluster.redis = ip + ":6379"
	if err := compareClocks(ctx); err != nil {
		return err
	}
	if err := appParts(ctx, appsNS); err != nil {
		return err
	}
	if _, err = helm(ctx, installArgs("install")...); err != nil {
		return err
	}
	return awaitPolicy(ctx)
}

// awaitPolicy waits until the API server has taken up the policies of a release
// that was just installed.
func awaitPolicy(ctx context.Context) error {
	for start := time.Now(); ; time.Sleep(100 * time.Millisecond) {
		out, err := pod{name: "probe", command: []string{"true"}, annotations: injected("")}.dryRun(ctx)
		if strings.Contains(out, `"locksidecar.io/status": "injected by `+release+`"`) {
			fmt.Printf("the policies are in force %s after helm install\n", short(time.Since(start)))
			return nil
		}
		if time.Since(start) > patience {
			return fmt.Errorf("the policies do not come into force: %w: %s", err, out)
		}
	}
}

// findNode chooses a node that takes any pod.
func findNode(ctx context.Context) error {
	text, err := kubectl(ctx, "get", "nodes", "-o", "json")
	if err != nil {
		return fmt.Errorf("find a node (is KUBECONFIG set?): %w", err)
	}
	var nodes struct {
		Items []struct {
			Metadata struct {
				Name   string
				Labels map[string]string
			}
			Spec struct{ Taints []struct{ Effect string } }
		}
	}
	if err := json.Unmarshal([]byte(text), &nodes); err != nil {
		return err
	}
	for _, n := range nodes.Items {
		if len(n.Spec.Taints) == 0 {
			cluster.node, cluster.hostname = n.Metadata.Name, n.Metadata.Labels["kubernetes.io/hostname"]
			return nil
		}
	}
	return errors.New("the cluster has no node without taints")
}

// appParts makes what the pods of the apps need in their namespace.
func appParts(ctx context.Context, ns string) error {
	return errors.Join(
		create(ctx, object{"apiVersion": "v1", "kind": "ConfigMap", "metadata": object{"name": "e2e", "namespace": ns},
			"data": object{"app.py": appSource}}),
		create(ctx, object{"apiVersion": "v1", "kind": "Secret", "metadata": object{"name": "locks", "namespace": ns},
			"stringData": object{"url": "redis://locker:" + password + "@" + cluster.redis + "?restart-grace=0s"}}),
	)
}

// installArgs are those of helm install and upgrade.
func installArgs(action string, more ...string) []string {
	repository, tag, _ := cutLast(image(0), ":")
	url := "redis://" + cluster.redis + "?restart-grace=0s"
	values := object{
		"profileDefaults": object{
			"image": object{"repository": repository, "tag": tag},
			"store": object{"url": url},
		},
		"profiles": object{
			"default": object{},
			"other":   object{"namespace": "other"},
			"secret":  object{"store": object{"secret": object{"name": "locks"}}},
			"quick":   object{"ttl": "3s", "readiness": "always"},
			"down":    object{"store": object{"url": "redis://127.0.0.1:1"}},
			"noport":  object{"httpPort": 0},
		},
	}
	text, err := json.Marshal(values)
	if err != nil {
		panic(err) // it is made of strings
	}
	file := os.TempDir() + "/locksidecar-e2e-values.json"
	if err := os.WriteFile(file, text, 0o600); err != nil {
		panic(err)
	}
	return append([]string{action, release, *chart, "--values", file, "--wait"}, more...)
}

func cutLast(s, sep string) (before, after string, ok bool) {
	i := strings.LastIndex(s, sep)
	if i < 0 {
		return s, "", false
	}
	return s[:i], s[i+len(sep):], true
}

// compareClocks finds how far the node's clock is from ours: the answer that came
// soonest says it best.
func compareClocks(ctx context.Context) error {
	best := time.Hour
	for range 5 {
		sent := time.Now()
		out, err := kubectl(ctx, "exec", "-n", systemNS, "hand", "--", "python3", "-c", "import time; print(time.time_ns())")
		if err != nil {
			return err
		}
		took := time.Since(sent)
		ns, err := strconv.ParseInt(strings.TrimSpace(out), 10, 64)
		if err != nil {
			return err
		}
		if took < best {
			best, cluster.offset = took, time.Unix(0, ns).Sub(sent.Add(took/2))
		}
	}
	if cluster.offset.Abs() < best/2 { // the same clock, as far as can be seen
		cluster.offset = 0
	}
	return nil
}

// nodeNow is the time by the node's clock.
func nodeNow() time.Time { return time.Now().Add(cluster.offset) }

// namespaces are all that the tests make.
var namespaces = []string{systemNS, appsNS, optedNS, restrictedNS}

func tearDown(ctx context.Context) error {
	_, err := helm(ctx, "uninstall", release, "--ignore-not-found", "--wait")
	for _, ns := range namespaces {
		_, e := kubectl(ctx, "delete", "pods", "--all", "-n", ns, "--grace-period=0", "--force", "--wait=false")
		err = errors.Join(err, e)
	}
	_, e := kubectl(ctx, append([]string{"delete", "namespace", "--ignore-not-found"}, namespaces...)...)
	return errors.Join(err, e)
}
