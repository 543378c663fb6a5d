package e2e

import (
	"bytes"
	"context"
	"encoding/json"
	"os/exec"
	"strconv"
	"strings"
	"testing"
	"time"
)

// appUser is another user than the sidecar's, on purpose.
const appUser = 1234

// pod is what a test asks for.
type pod struct {
	ns          string // appsNS if empty
	name        string
	command     []string // of the container app
	init        []string // of an init container, if there is one
	annotations map[string]string
	labels      map[string]string
	ready       []string          // what tells whether it is ready
	root        bool              // of the node
	change      func(spec object) // what else is different
}

// injected asks for the sidecar, in some profile.
func injected(profile string) map[string]string {
	a := map[string]string{"locksidecar.io/inject": "true"}
	if profile != "" {
		a["locksidecar.io/profile"] = profile
	}
	return a
}

// app is a command line of app.py.
func app(args ...string) []string { return append([]string{"python3", "-u", "/e2e/app.py"}, args...) }

func (p pod) namespace() string {
	if p.ns == "" {
		return appsNS
	}
	return p.ns
}

func (p pod) container(name string, command []string) object {
	c := object{
		"name": name, "image": image(1), "imagePullPolicy": "IfNotPresent", "command": command,
		"env": []object{
			{"name": "PYTHONDONTWRITEBYTECODE", "value": "1"},
		},
		"securityContext": object{
			"runAsUser": appUser, "runAsGroup": appUser, "runAsNonRoot": true, "allowPrivilegeEscalation": false,
			"capabilities": object{"drop": []string{"ALL"}}, "seccompProfile": object{"type": "RuntimeDefault"},
		},
	}
	if p.namespace() != systemNS {
		c["volumeMounts"] = []object{{"name": "e2e", "mountPath": "/e2e"}}
	}
	if p.ready != nil {
		c["readinessProbe"] = object{"exec": object{"command": p.ready}, "periodSeconds": 1}
	}
	if p.root {
		c["securityContext"] = object{"privileged": true, "runAsUser": 0}
	}
	return c
}

func (p pod) spec() object {
	spec := object{
		"nodeName":                     cluster.node,
		"automountServiceAccountToken": false,
		"containers":                   []object{p.container("app", p.command)},
	}
	if p.namespace() != systemNS {
		spec["volumes"] = []object{{"name": "e2e", "configMap": object{"name": "e2e"}}}
	}
	if p.init != nil {
		spec["initContainers"] = []object{p.container("init", p.init)}
	}
	if p.root {
		spec["hostPID"] = true
		spec["terminationGracePeriodSeconds"] = 0
	}
	if p.change != nil {
		p.change(spec)
	}
	return spec
}

func (p pod) metadata() object {
	return object{"name": p.name, "namespace": p.namespace(), "annotations": p.annotations, "labels": p.labels}
}

func (p pod) create(ctx context.Context) error {
	return create(ctx, p.object())
}

func (p pod) object() object {
	return object{"apiVersion": "v1", "kind": "Pod", "metadata": p.metadata(), "spec": p.spec()}
}

// dryRun asks what the API server would make of the pod.
func (p pod) dryRun(ctx context.Context) (string, error) {
	text, err := json.Marshal(p.object())
	if err != nil {
		return "", err
	}
	return command(ctx, text, "kubectl", "create", "--dry-run=server", "-o", "json", "-f", "-")
}

// start creates the pod; the end of the test deletes it.
func (p pod) start(t *testing.T) pod {
	t.Helper()
	t.Cleanup(func() {
		ctx := context.WithoutCancel(t.Context())
		if t.Failed() {
			p.explain(ctx, t)
		}
		if _, err := kubectl(ctx, "delete", "pod", "-n", p.namespace(), p.name, "--ignore-not-found", "--grace-period=1", "--wait=false"); err != nil {
			t.Error(err)
		}
	})
	if err := p.create(t.Context()); err != nil {
		t.Fatal(err)
	}
	return p
}

// explain logs what there is to see of a pod after a failure.
func (p pod) explain(ctx context.Context, t *testing.T) {
	for _, args := range [][]string{
		{"get", "pod", "-n", p.namespace(), p.name, "-o", "jsonpath={.status}"},
		{"logs", "-n", p.namespace(), p.name, "--all-containers", "--prefix", "--tail=40"},
		{"get", "events", "-n", p.namespace(), "--field-selector", "involvedObject.name=" + p.name, "-o", "custom-columns=R:.reason,M:.message", "--no-headers"},
	} {
		out, err := kubectl(ctx, args...)
		if err != nil {
			out = err.Error()
		}
		t.Logf("%s:\n%s", strings.Join(args, " "), out)
	}
}

// status is what the tests look at of a pod's status.
type status struct {
	Metadata struct {
		Name              string
		Annotations       map[string]string
		DeletionTimestamp string
	}
	Spec struct {
		InitContainers []containerSpec
		Containers     []containerSpec
	}
	Status struct {
		Phase, QOSClass       string
		Conditions            []struct{ Type, Status string }
		ContainerStatuses     []containerStatus
		InitContainerStatuses []containerStatus
	}
}

type containerSpec struct {
	Name, RestartPolicy string
	Env                 []struct{ Name, Value string }
}

type containerStatus struct {
	Name         string
	ContainerID  string
	RestartCount int
	Ready        bool
}

func (p pod) status(t *testing.T) status {
	t.Helper()
	var s status
	get(t, &s, "pod", "-n", p.namespace(), p.name)
	return s
}

func (s status) ready() bool {
	for _, c := range s.Status.Conditions {
		if c.Type == "Ready" {
			return c.Status == "True"
		}
	}
	return false
}

// restarts counts those of a container.
func (s status) restarts(container string) int {
	for _, c := range append(s.Status.ContainerStatuses, s.Status.InitContainerStatuses...) {
		if c.Name == container {
			return c.RestartCount
		}
	}
	return -1
}

func (p pod) awaitReady(t *testing.T) {
	t.Helper()
	must(t, "wait", "-n", p.namespace(), "pod/"+p.name, "--for=condition=Ready", "--timeout="+patience.String())
}

// exec runs a command in a container and returns its output.
func (p pod) exec(t *testing.T, container string, command ...string) string {
	t.Helper()
	return must(t, append([]string{"exec", "-n", p.namespace(), p.name, "-c", container, "--"}, command...)...)
}

// event is a line of app.py.
type event struct {
	Event  string
	At     int64
	Reason string
	Fence  int64
	Child  int
	Holder map[string]string
}

func (e event) time() time.Time { return time.Unix(0, e.At) }

func parseEvents(text string) []event {
	var all []event
	for line := range strings.Lines(text) {
		var e event
		if json.Unmarshal([]byte(line), &e) == nil {
			all = append(all, e)
		}
	}
	return all
}

// events are what the app has said so far, since its container's last start.
func (p pod) events(t *testing.T) []event {
	t.Helper()
	out, err := kubectl(t.Context(), "logs", "-n", p.namespace(), p.name, "-c", "app")
	if err != nil {
		return nil // not started yet
	}
	return parseEvents(out)
}

// follow reads what the app says from now on, until its end.
func (p pod) follow(t *testing.T) (said func() []event) {
	t.Helper()
	var out bytes.Buffer
	cmd := exec.CommandContext(t.Context(), "kubectl", "logs", "-f", "-n", p.namespace(), p.name, "-c", "app")
	cmd.Stdout = &out
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	return func() []event {
		_ = cmd.Wait() // how it ends when the pod is gone does not matter
		return parseEvents(out.String())
	}
}

// await waits until the app has said something for the nth time.
func (p pod) await(t *testing.T, name string, nth int) event {
	t.Helper()
	var found event
	eventually(t, p.name+" says "+name+" for the "+strconv.Itoa(nth)+". time", func() bool {
		n := 0
		for _, e := range p.events(t) {
			if e.Event == name {
				if n++; n == nth {
					found = e
					return true
				}
			}
		}
		return false
	})
	return found
}

// attempt tries to take a lock from inside the pod.
func (p pod) attempt(t *testing.T, resource string) event {
	t.Helper()
	all := parseEvents(p.exec(t, "app", app("attempt", resource)...))
	if len(all) == 0 {
		t.Fatalf("%s: no answer", p.name)
	}
	return all[len(all)-1]
}
