package e2e

import (
	"testing"
	"time"
)

const (
	leaders    = "leader"
	candidates = 3
)

// TestLeaderService has candidates as docs/guides/leader.md says. The Service routes to the one that leads, and
// to nobody else, whoever dies.
func TestLeaderService(t *testing.T) {
	err := create(t.Context(), object{
		"apiVersion": "v1", "kind": "Service", "metadata": object{"name": leaders, "namespace": appsNS},
		"spec": object{"selector": object{"app": leaders}, "ports": []object{{"port": 80, "targetPort": 9000}}},
	})
	if err != nil {
		t.Fatal(err)
	}
	deleteAfter(t, "service", leaders)
	p := pod{
		name: leaders, annotations: injected(""), labels: map[string]string{"app": leaders},
		command: append([]string{"locksidecar", "lead", "primary", "--publish", "$(POD_IP):9000", "--"}, app("lead", "9000")...),
		ready:   []string{"sh", "-c", `locksidecar leader primary -o json | grep -q "\"value\": \"$POD_IP:9000\""`},
		change: func(spec object) {
			c := spec["containers"].([]object)[0]
			c["env"] = append(c["env"].([]object), object{"name": "POD_IP", "valueFrom": object{"fieldRef": object{"fieldPath": "status.podIP"}}})
		},
	}
	p.deploy(t, candidates)
	asks := idle(t, "asks-leader", "")
	leader := asks.routed(t, pod{})

	killed := do(t, "KILL", leader, "app")
	next := asks.routed(t, leader)
	took(t, "`locksidecar lead` of the leader is killed (`kill -9`, out of memory)", killed, next)

	deleted := nodeNow()
	must(t, "delete", "pod", "-n", appsNS, next.name, "--wait=false")
	last := asks.routed(t, next)
	took(t, "the leader's pod is deleted", deleted, last)
}

// took notes how long after a moment the next one led, and how long after that the Service routed to it, which is now.
func took(t *testing.T, what string, since time.Time, next pod) {
	t.Helper()
	routed := nodeNow()
	all := next.events(t)
	led := all[len(all)-1].time()
	within(t, what+": to lead", led.Sub(since), 0, soon)
	within(t, what+": to be routed to", routed.Sub(led), 0, 4*soon) // a probe a second, and the endpoints
	table.add(what, "–", []time.Duration{led.Sub(since)}, "the next candidate leads; a Service of the leader routes to it alone "+short(routed.Sub(led))+" later")
}

// routed waits until the Service has one endpoint, and that is not the one before. It asks it who it is.
func (p pod) routed(t *testing.T, before pod) (leader pod) {
	t.Helper()
	eventually(t, "the Service routes to one leader, and not to "+before.name, func() bool {
		to := endpoints(t, leaders)
		if len(to) != 1 {
			return false
		}
		for ip, name := range to {
			leader.name = name
			if name != before.name {
				out, err := kubectl(t.Context(), "exec", "-n", appsNS, p.name, "-c", "app", "--", "curl", "-sS", "-m", "2", "http://"+ip+":9000")
				return err == nil && out == name
			}
		}
		return false
	})
	return leader
}

// endpoints are the pods to which a Service routes, by their addresses.
func endpoints(t *testing.T, service string) map[string]string {
	t.Helper()
	var slices struct {
		Items []struct {
			Endpoints []struct {
				Addresses  []string
				Conditions struct{ Ready bool }
				TargetRef  struct{ Name string }
			}
		}
	}
	get(t, &slices, "endpointslices", "-n", appsNS, "-l", "kubernetes.io/service-name="+service)
	to := make(map[string]string)
	for _, s := range slices.Items {
		for _, e := range s.Endpoints {
			if e.Conditions.Ready {
				to[e.Addresses[0]] = e.TargetRef.Name
			}
		}
	}
	return to
}
