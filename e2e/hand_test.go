package e2e

import (
	"bytes"
	"context"
	_ "embed"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"
)

//go:embed testdata/hand.py
var handSource string

// do signals the first process of containers of a pod, from the node, and tells
// when. From inside, the first process of a container cannot be killed.
func do(t *testing.T, signal string, p pod, containers ...string) time.Time {
	t.Helper()
	return signalAll(t.Context(), t, signal, p.ids(t, containers))
}

// ids are the runtime's names of containers.
func (p pod) ids(t *testing.T, containers []string) []string {
	t.Helper()
	s := p.status(t)
	var ids []string
	for _, c := range append(s.Status.ContainerStatuses, s.Status.InitContainerStatuses...) {
		if slices.Contains(containers, c.Name) {
			_, id, _ := strings.Cut(c.ContainerID, "://")
			ids = append(ids, id)
		}
	}
	if len(ids) != len(containers) {
		t.Fatalf("%s: containers %v are %v", p.name, containers, ids)
	}
	return ids
}

func signalAll(ctx context.Context, t *testing.T, signal string, ids []string) time.Time {
	t.Helper()
	out, err := command(ctx, []byte(handSource), "kubectl",
		append([]string{"exec", "-i", "-n", systemNS, "hand", "--", "python3", "-", signal}, ids...)...)
	if err != nil {
		t.Fatal(err)
	}
	ns, err := strconv.ParseInt(strings.TrimSpace(out), 10, 64)
	if err != nil {
		t.Fatal(err)
	}
	return time.Unix(0, ns)
}

// freeze stops containers until thaw is called, at the latest at the end of the test.
func freeze(t *testing.T, p pod, containers ...string) (at time.Time, thaw func() time.Time) {
	t.Helper()
	ids, thawed := p.ids(t, containers), false
	thaw = func() time.Time {
		t.Helper()
		thawed = true
		return signalAll(context.WithoutCancel(t.Context()), t, "CONT", ids)
	}
	t.Cleanup(func() {
		if !thawed {
			thaw()
		}
	})
	return signalAll(t.Context(), t, "STOP", ids), thaw
}

// taker waits for a lock in a pod.
type taker struct {
	t    *testing.T
	out  *bytes.Buffer
	done chan error
}

// take begins to wait for a lock from inside the pod, and returns when the request
// stands in the queue.
func (p pod) take(t *testing.T, resource string) *taker {
	t.Helper()
	k := p.begin(t, resource)
	p.awaitWaiter(t, resource)
	return k
}

// begin begins to wait for a lock from inside the pod.
func (p pod) begin(t *testing.T, resource string) *taker {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	k := &taker{t: t, out: &bytes.Buffer{}, done: make(chan error, 1)}
	cmd := exec.CommandContext(ctx, "kubectl", append([]string{"exec", "-n", p.namespace(), p.name, "-c", "app", "--"}, app("once", resource)...)...)
	cmd.Stdout = k.out
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	go func() {
		defer cancel()
		k.done <- cmd.Wait()
	}()
	return k
}

// take1 takes a lock from inside the pod, and gives it back.
func (p pod) take1(t *testing.T, resource string) event {
	t.Helper()
	for _, e := range parseEvents(p.exec(t, "app", app("once", resource)...)) {
		if e.Event == "granted" {
			return e
		}
	}
	t.Fatalf("%s: did not get %s", p.name, resource)
	return event{}
}

// awaitWaiter waits until somebody waits for the lock, in the eyes of the pod's sidecar.
func (p pod) awaitWaiter(t *testing.T, resource string) {
	t.Helper()
	eventually(t, "somebody waits for "+resource, func() bool {
		return strings.Contains(p.exec(t, "locksidecar", "/locksidecar", "get", "-o", "json", resource), `"waiters": [
`)
	})
}

// granted is when the lock was got, and its fence.
func (k *taker) granted() event {
	k.t.Helper()
	if err := <-k.done; err != nil {
		k.t.Fatalf("take a lock: %v: %s", err, k.out)
	}
	for _, e := range parseEvents(k.out.String()) {
		if e.Event == "granted" {
			return e
		}
	}
	k.t.Fatalf("take a lock: %s", k.out)
	return event{}
}
