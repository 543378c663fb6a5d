package e2e

import (
	"context"
	_ "embed"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
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
	const enforce = "pod-security.kubernetes.io/enforce"
	for ns, labels := range map[string]object{
		systemNS: {enforce: "privileged"},
		appsNS:   {enforce: "privileged"},
		optedNS:  {"locksidecar.io/inject": "enabled"},
	} {
		if err := namespace(ctx, ns, labels); err != nil {
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
	if err := errors.Join(appParts(ctx, appsNS), appParts(ctx, optedNS)); err != nil {
		return err
	}
	if _, err = helm(ctx, installArgs("install")...); err != nil {
		return err
	}
	start := time.Now()
	if err := awaitPolicy(ctx); err != nil {
		return err
	}
	fmt.Printf("the policies are in force %s after helm install\n", short(time.Since(start)))
	return nil
}

// awaitPolicy waits until the API server has taken up our policies. Each comes into force
// by itself.
func awaitPolicy(ctx context.Context) error {
	probe := func(ns, profile string) pod {
		p := pod{ns: ns, name: "probe", command: []string{"true"}, annotations: injected(profile)}
		if ns == optedNS {
			delete(p.annotations, "locksidecar.io/inject")
		}
		return p
	}
	for _, ns := range []string{appsNS, optedNS} {
		if err := poll(func() error {
			out, err := probe(ns, "").dryRun(ctx)
			if !strings.Contains(out, `"locksidecar.io/status": "injected by `+release+`"`) {
				return errors.Join(errors.New("no sidecar is put in: "+out), err)
			}
			if _, err = probe(ns, "none").dryRun(ctx); err == nil || !strings.Contains(err.Error(), "which is not a profile") {
				return errors.Join(errors.New("a profile that is none is not refused"), err)
			}
			return nil
		}); err != nil {
			return err
		}
	}
	return poll(func() error {
		told, err := warnings(ctx, object{"apiVersion": "v1", "kind": "Namespace", "metadata": object{"name": "probe", "labels": object{"locksidecar.io/inject": "yes"}}})
		if told == "" {
			return errors.Join(errors.New("a label that has no effect brings no warning"), err)
		}
		return nil
	})
}

// poll asks again and again until there is no error.
func poll(f func() error) error {
	for end := time.Now().Add(patience); ; time.Sleep(100 * time.Millisecond) {
		err := f()
		if err == nil || time.Now().After(end) {
			return err
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
			"files":   object{"store": object{"url": "redis://renewed@" + cluster.redis + "?restart-grace=0s", "files": object{"secret": "renewed", "password": "password"}}},
			"guarded": object{"onlyIn": []string{optedNS}, "overrides": []string{"ttl"}},
		},
		"injection": object{"excludedPods": object{"app": []string{"store"}}},
	}
	return append([]string{action, release, *chart, "--values", valuesFile("locksidecar-e2e-values.json", values), "--wait"}, more...)
}

// valuesFile writes values for helm, and returns the file's name.
func valuesFile(name string, values object) string {
	text, err := json.Marshal(values)
	if err != nil {
		panic(err) // it is made of strings
	}
	file := filepath.Join(os.TempDir(), name)
	if err := os.WriteFile(file, text, 0o600); err != nil {
		panic(err)
	}
	return file
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
var namespaces = []string{systemNS, appsNS, optedNS, restrictedNS, mistypedNS, limitedNS, quotaNS}

func tearDown(ctx context.Context) error {
	_, err := helm(ctx, "uninstall", release, "--ignore-not-found", "--wait")
	for _, ns := range namespaces {
		_, e := kubectl(ctx, "delete", "pods", "--all", "-n", ns, "--grace-period=0", "--force", "--wait=false")
		err = errors.Join(err, e)
	}
	_, e := kubectl(ctx, append([]string{"delete", "namespace", "--ignore-not-found"}, namespaces...)...)
	return errors.Join(err, e)
}
