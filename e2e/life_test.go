package e2e

import (
	"encoding/json"
	"fmt"
	"slices"
	"testing"
	"time"
)

// rounds is how often what takes milliseconds is measured.
const rounds = 3

// ttl is that of the default profile.
const ttl = 10 * time.Second

// soon is far more than what is "at once" takes on a busy machine, and less than
// any TTL.
const soon = 4 * time.Second

// within checks how long something took.
func within(t *testing.T, what string, took, least, most time.Duration) {
	t.Helper()
	if took < least || took > most {
		t.Errorf("%s took %s; want %s to %s", what, took, least, most)
	}
}

// median of what was measured.
func median(all []time.Duration) time.Duration {
	slices.Sort(all)
	return all[len(all)/2]
}

// holder starts a pod that holds a lock named as itself, for ever.
func holder(t *testing.T, name, profile string, more ...string) (pod, event) {
	t.Helper()
	p := pod{name: name, command: app(append([]string{"hold", name}, more...)...), annotations: injected(profile)}.start(t)
	return p, p.await(t, "granted", 1)
}

// idle starts a pod from which locks are taken by exec.
func idle(t *testing.T, name, profile string) pod {
	t.Helper()
	p := pod{name: name, command: []string{"sh", "-c", "trap 'exit 0' TERM; while :; do sleep 1; done"}, annotations: injected(profile)}.start(t)
	p.awaitReady(t)
	return p
}

// TestLife measures how long the lock of a pod stays with it, whatever happens to
// the pod, and who is told what.
func TestLife(t *testing.T) {
	next := idle(t, "next", "")

	t.Run("AppKilled", func(t *testing.T) { appKilled(t, next) })
	t.Run("AppHangs", func(t *testing.T) { appHangs(t, next) })
	t.Run("Fork", func(t *testing.T) { fork(t, next) })
	t.Run("PodDeleted", func(t *testing.T) { podDeleted(t, next) })
	t.Run("PodDeletedByForce", func(t *testing.T) { podDeletedByForce(t, next) })
	t.Run("PodEvicted", func(t *testing.T) { podEvicted(t, next) })
	t.Run("SidecarKilled", func(t *testing.T) { sidecarKilled(t, next) })
	t.Run("SidecarHangs", func(t *testing.T) { sidecarHangs(t, next) })
	t.Run("NodeGone", func(t *testing.T) { nodeGone(t, next) })
	t.Run("StoreSilent", storeSilent)
	t.Run("StoreDownAtTheStart", storeDownAtTheStart)
}

// The container of the app is killed; its pod and the sidecar live on.
func appKilled(t *testing.T, next pod) {
	var free []time.Duration
	for i := range rounds {
		p, first := holder(t, fmt.Sprintf("app-killed-%d", i), "")
		k := next.take(t, p.name)
		at := do(t, "KILL", p, "app")
		got := k.granted()
		free = append(free, got.time().Sub(at))
		if got.Fence <= first.Fence {
			t.Errorf("fence %d after %d", got.Fence, first.Fence)
		}
		if i == 0 {
			eventually(t, "the app's container is started again and has the lock", func() bool {
				s := p.status(t)
				return s.restarts("app") == 1 && s.ready()
			})
			p.await(t, "granted", 1)
			if n := p.status(t).restarts("locksidecar"); n != 0 {
				t.Errorf("the sidecar was started %d times again", n)
			}
		}
	}
	within(t, "freeing the lock", median(free), 0, soon)
	table.add("the app's container crashes or is killed (`kill -9`, out of memory)", "–", free, "the pod lives; Kubernetes starts the container again, it opens a new session")
}

// A frozen app keeps its lock for as long as it asked for at most.
func appHangs(t *testing.T, next pod) {
	const maxHold = 20 * time.Second // enough to freeze it, and to wait for its lock, on a busy machine
	p, first := holder(t, "app-hangs", "", "20")
	_, thaw := freeze(t, p, "app")
	k := next.take(t, p.name)
	got := k.granted()
	took := got.time().Sub(first.time())
	within(t, "freeing the lock", took, maxHold, maxHold+2*time.Second+soon) // and lostGrace
	thaw()
	lost := p.await(t, "lost", 1)
	if lost.At < first.At {
		t.Errorf("told before it was granted")
	}
	table.add("the app hangs (here with `max_hold` 20 s)", "when it goes on", []time.Duration{took},
		"after `max_hold` or the session's `ttl`, and `lostGrace` (2 s); without these it keeps the lock, so give the app a liveness probe")
}

// The app dies, and a child of it goes on with its connection.
func fork(t *testing.T, next pod) {
	p := idle(t, "fork", "")
	all := make(chan []event, 1)
	go func() {
		out, _ := kubectl(t.Context(), append([]string{"exec", "-n", appsNS, p.name, "-c", "app", "--"}, app("orphan", p.name, "/tmp/die")...)...)
		all <- parseEvents(out)
	}()
	eventually(t, "the parent has the lock", func() bool { return next.attempt(t, p.name).Event == "held" })
	k := next.take(t, p.name)
	p.exec(t, "app", "touch", "/tmp/die")
	said := <-all
	if len(said) != 2 || said[1].Event != "dies" {
		t.Fatalf("the parent said %+v", said)
	}
	took := k.granted().time().Sub(said[1].time())
	within(t, "freeing the lock", took, 0, soon)
	if e := parseEvents(p.exec(t, "app", app("inherits", fmt.Sprint(said[1].Child))...)); len(e) != 1 || e[0].Event != "inherits" {
		t.Errorf("the child: %+v", e)
	}
	table.add("the app dies, a child that it forked lives on with its socket", "–", []time.Duration{took},
		"the sidecar watches the process itself, across PID namespaces (Linux ≥ 6.5)")
}

// The pod is deleted. The app ends first, then the sidecar.
func podDeleted(t *testing.T, next pod) {
	var free, afterEnd []time.Duration
	for i := range rounds {
		p, _ := holder(t, fmt.Sprintf("pod-deleted-%d", i), "")
		k := next.take(t, p.name)
		said := p.follow(t)
		at := nodeNow()
		must(t, "delete", "pod", "-n", appsNS, p.name, "--wait=false")
		got := k.granted()
		free = append(free, got.time().Sub(at))
		for _, e := range said() {
			if e.Event == "term" {
				afterEnd = append(afterEnd, got.time().Sub(e.time()))
			}
		}
		eventually(t, "the pod is gone", func() bool {
			_, err := kubectl(t.Context(), "get", "pod", "-n", appsNS, p.name)
			return err != nil
		})
		within(t, "the end of the pod", nodeNow().Sub(at), 0, 15*time.Second) // not drain, and not the grace period
	}
	within(t, "freeing the lock", median(free), 0, soon)
	if len(afterEnd) != rounds {
		t.Fatalf("%d of %d apps said that they were asked to end", len(afterEnd), rounds)
	}
	table.add("the pod is deleted, rolled out, drained", "by SIGTERM", free,
		"counted from `kubectl delete`; it is "+short(median(afterEnd))+" after SIGTERM, at which this app ends. The sidecar ends last")
}

func podDeletedByForce(t *testing.T, next pod) {
	p, _ := holder(t, "pod-forced", "")
	k := next.take(t, p.name)
	at := nodeNow()
	must(t, "delete", "pod", "-n", appsNS, p.name, "--grace-period=0", "--force")
	took := k.granted().time().Sub(at)
	within(t, "freeing the lock", took, 0, soon)
	table.add("the pod is deleted with `--grace-period=0 --force`", "by SIGTERM", []time.Duration{took}, "the API forgets the pod at once, its processes end as they do otherwise")
}

func podEvicted(t *testing.T, next pod) {
	p, _ := holder(t, "pod-evicted", "")
	k := next.take(t, p.name)
	text, err := json.Marshal(object{"apiVersion": "policy/v1", "kind": "Eviction", "metadata": object{"name": p.name, "namespace": appsNS}})
	if err != nil {
		t.Fatal(err)
	}
	at := nodeNow()
	if _, err := command(t.Context(), text, "kubectl", "create", "--raw", "/api/v1/namespaces/"+appsNS+"/pods/"+p.name+"/eviction", "-f", "-"); err != nil {
		t.Fatal(err)
	}
	took := k.granted().time().Sub(at)
	within(t, "freeing the lock", took, 0, soon)
	table.add("the pod is evicted", "by SIGTERM", []time.Duration{took}, "a deletion that respects disruption budgets")
}

// The sidecar's container is killed: the app is told at once, nobody else gets the
// lock before the TTL is over, and the new sidecar gives new locks.
func sidecarKilled(t *testing.T, next pod) {
	p, first := holder(t, "sidecar-killed", "")
	k := next.take(t, p.name)
	at := do(t, "KILL", p, "locksidecar")
	told := p.await(t, "lost", 1)
	within(t, "telling the app", told.time().Sub(at), 0, soon)
	other := p.take1(t, "sidecar-killed-other")
	back := other.time().Sub(at)
	within(t, "a new lock", back, 0, patience)
	got := k.granted()
	free := got.time().Sub(at)
	within(t, "freeing the lock", free, ttl/2, ttl+ttl/2)
	if got.Fence <= first.Fence {
		t.Errorf("fence %d after %d", got.Fence, first.Fence)
	}
	again := p.await(t, "granted", 2)
	if again.Fence <= got.Fence {
		t.Errorf("fence %d after %d", again.Fence, got.Fence)
	}
	if s := p.status(t); s.restarts("locksidecar") != 1 || s.restarts("app") != 0 {
		t.Errorf("restarts: sidecar %d, app %d", s.restarts("locksidecar"), s.restarts("app"))
	}
	table.add("the sidecar's container crashes or is killed", "after "+short(told.time().Sub(at)), []time.Duration{free},
		"the TTL, 6.7 to 10 s from its last heartbeat; the sidecar is back and gives new locks after "+short(back))
}

// A frozen sidecar: the app sees by its own clock that its lock is over, before
// anybody else has it.
func sidecarHangs(t *testing.T, next pod) {
	p, _ := holder(t, "sidecar-hangs", "")
	p.awaitReady(t)
	k := next.take(t, p.name)
	at, thaw := freeze(t, p, "locksidecar")
	told := p.await(t, "lost", 1)
	got := k.granted()
	if got.At < told.At {
		t.Errorf("somebody else had the lock %s before its holder was told", told.time().Sub(got.time()))
	}
	free := got.time().Sub(at)
	within(t, "freeing the lock", free, ttl/2, ttl+ttl/2)
	eventually(t, "the pod is not ready", func() bool { return !p.status(t).ready() })
	unready := nodeNow().Sub(at)
	thaw()
	p.await(t, "granted", 2)
	p.awaitReady(t)
	if n := p.status(t).restarts("locksidecar"); n != 0 {
		t.Errorf("the sidecar was started %d times again", n)
	}
	table.add("the sidecar hangs", "after "+short(told.time().Sub(at))+", by its own clock", []time.Duration{free}, "the TTL from the last heartbeat; the pod is not ready after "+short(unready)+"; when it goes on, the sidecar opens a new lease")
}

// Everything in the pod stands still, as when the node is cut off or has no power.
func nodeGone(t *testing.T, next pod) {
	p, _ := holder(t, "node-gone", "")
	k := next.take(t, p.name)
	at, thaw := freeze(t, p, "locksidecar", "app")
	free := k.granted().time().Sub(at)
	within(t, "freeing the lock", free, ttl/2, ttl+ttl/2)
	back := thaw()
	told := p.await(t, "lost", 1)
	within(t, "telling the app", told.time().Sub(back), 0, soon)
	table.add("the node dies, is cut off or frozen", "when it goes on, after "+short(told.time().Sub(back)), []time.Duration{free},
		"the TTL from the last heartbeat; nothing waits for Kubernetes, which moves the pods after minutes")
}

// The store stands still: the app is told, the pod is not ready if its profile wants
// that, nothing is restarted, and everything goes on by itself.
func storeSilent(t *testing.T) {
	p, _ := holder(t, "store-silent", "quick")
	p.awaitReady(t)
	steady, _ := holder(t, "store-silent-steady", "")
	steady.awaitReady(t)
	at, thaw := freeze(t, redis, "app")
	lost := p.await(t, "lost", 1)
	within(t, "telling the app", lost.time().Sub(at), 0, 3*time.Second+soon)
	eventually(t, "the pod is not ready", func() bool { return !p.status(t).ready() })
	steady.await(t, "lost", 1)
	time.Sleep(12 * time.Second) // two probes of readiness
	if !steady.status(t).ready() {
		t.Error("a pod that was ready before is not ready")
	}
	back := thaw()
	again := p.await(t, "granted", 2)
	p.awaitReady(t)
	if s := p.status(t); s.restarts("locksidecar") != 0 || s.restarts("app") != 0 {
		t.Errorf("restarts: sidecar %d, app %d", s.restarts("locksidecar"), s.restarts("app"))
	}
	table.add("the store does not answer (here with a TTL of 3 s)", "after "+short(lost.time().Sub(at)), nil,
		"the pod stays ready, with `readiness: always` it does not; nothing is restarted; "+short(again.time().Sub(back))+" after the store is back the app has its lock again")
}

// A pod whose store is down starts, is not ready, and is not restarted.
func storeDownAtTheStart(t *testing.T) {
	p := pod{name: "store-down", command: app("hold", "store-down"), annotations: injected("down")}.start(t)
	eventually(t, "the app runs", func() bool {
		s := p.status(t)
		return len(s.Status.ContainerStatuses) == 1 && s.Status.ContainerStatuses[0].Ready
	})
	time.Sleep(10 * time.Second) // two probes of readiness, and more of any other
	s := p.status(t)
	if s.ready() || s.restarts("locksidecar") != 0 {
		t.Errorf("ready %t, restarts of the sidecar %d", s.ready(), s.restarts("locksidecar"))
	}
	table.add("the store is down when the pod starts", "–", nil, "app and sidecar start, the pod is not ready, nothing is restarted; requests wait as long as they may")
}
