package e2e

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"
)

// deployment starts one whose pod holds or waits for a lock.
func deployment(t *testing.T, name, profile, resource string) {
	t.Helper()
	pod{name: name, command: app("hold", resource), annotations: injected(profile)}.deploy(t, 1)
}

// deploy starts a Deployment of such pods, which has the pod's name.
func (p pod) deploy(t *testing.T, replicas int) {
	t.Helper()
	labels := object{"app": p.name}
	spec := p.spec()
	delete(spec, "nodeName")
	spec["nodeSelector"] = object{"kubernetes.io/hostname": cluster.hostname}
	err := create(t.Context(), object{
		"apiVersion": "apps/v1", "kind": "Deployment", "metadata": object{"name": p.name, "namespace": appsNS},
		"spec": object{
			"replicas": replicas,
			"selector": object{"matchLabels": labels},
			"template": object{"metadata": object{"labels": labels, "annotations": p.annotations}, "spec": spec},
		},
	})
	if err != nil {
		t.Fatal(err)
	}
	deleteAfter(t, "deployment", p.name)
}

// deleteAfter deletes what a test has made.
func deleteAfter(t *testing.T, kind, name string) {
	t.Cleanup(func() {
		if _, err := kubectl(context.WithoutCancel(t.Context()), "delete", kind, "-n", appsNS, name, "--wait=false"); err != nil {
			t.Error(err)
		}
	})
}

// podOf is the one pod of a deployment or job that is not about to end.
func podOf(t *testing.T, selector string) pod {
	t.Helper()
	var name string
	eventually(t, "a pod "+selector, func() bool {
		var list struct{ Items []status }
		get(t, &list, "pods", "-n", appsNS, "-l", selector)
		for _, s := range list.Items {
			if s.Metadata.DeletionTimestamp == "" {
				name = s.Metadata.Name
			}
		}
		return name != ""
	})
	return pod{name: name}
}

// Deployments share locks when store and lock namespace are the same.
func TestDeployments(t *testing.T) {
	deployment(t, "one", "", "shared")
	podOf(t, "app=one").await(t, "granted", 1)
	deployment(t, "two", "", "shared")
	deployment(t, "apart", "other", "shared")
	podOf(t, "app=apart").await(t, "granted", 1)
	two := podOf(t, "app=two")
	two.awaitReady(t)
	two.awaitWaiter(t, "shared")
	if n := len(two.events(t)); n != 0 {
		t.Errorf("two have one lock: %+v", two.events(t))
	}

	// A rollout hands over to whoever waits: here the other deployment.
	at := nodeNow()
	must(t, "rollout", "restart", "-n", appsNS, "deployment/one")
	got := two.await(t, "granted", 1)
	table.add("a Deployment is rolled out (a new version of the app, or of the sidecar)", "by SIGTERM", []time.Duration{got.time().Sub(at)},
		"from `kubectl rollout restart`: the new pod must be ready before the old one is asked to stop")
}

// A job that has a lock completes: the sidecar ends by itself.
func TestJob(t *testing.T) {
	p := pod{name: "job", command: app("once", "job", "1"), annotations: injected("")}
	spec := p.spec()
	spec["restartPolicy"] = "Never"
	at := nodeNow()
	err := create(t.Context(), object{
		"apiVersion": "batch/v1", "kind": "Job", "metadata": object{"name": "job", "namespace": appsNS},
		"spec": object{"backoffLimit": 0, "template": object{"metadata": object{"annotations": p.annotations}, "spec": spec}},
	})
	if err != nil {
		t.Fatal(err)
	}
	deleteAfter(t, "job", "job")
	must(t, "wait", "-n", appsNS, "job/job", "--for=condition=Complete", "--timeout="+patience.String())
	within(t, "the job", nodeNow().Sub(at), time.Second, 20*time.Second) // not drain: nobody is left to wait for
	released := podOf(t, "job-name=job").await(t, "released", 1)
	table.add("a Job's app has done its work", "–", nil, "its sidecar ends by itself, the Job is complete "+short(nodeNow().Sub(released.time()))+" later")
}

// Upgrade and rollback change what new pods get, and leave the others alone.
// Uninstall leaves nothing behind but the pods that are there.
func TestRelease(t *testing.T) {
	p := pod{name: "before", command: app("hold", "before"), annotations: injected("")}.start(t)
	p.await(t, "granted", 1)
	p.awaitReady(t)
	untouched := func() {
		t.Helper()
		s := p.status(t)
		if !s.ready() || s.restarts("app") != 0 || s.restarts("locksidecar") != 0 || len(p.events(t)) != 1 {
			t.Errorf("the pod from before: ready %t, restarts %d and %d, %+v", s.ready(), s.restarts("app"), s.restarts("locksidecar"), p.events(t))
		}
	}
	refused := func(name string) error {
		_, err := pod{name: name, command: app("hold", name), annotations: injected("added")}.dryRun(t.Context())
		return err
	}

	if err := refused("added"); err == nil {
		t.Fatal("a profile is there before it was added")
	}
	if out, err := helm(t.Context(), "test", release, "--timeout", patience.String()); err != nil {
		t.Errorf("helm test: %v\n%s", err, out)
	}

	second := installArgs("install")
	second[1] = "another"
	if _, err := helm(t.Context(), second...); err == nil || !strings.Contains(err.Error(), "another release of the chart") {
		t.Errorf("a second release: %v", err)
	}
	if _, err := helm(t.Context(), installArgs("upgrade", "--set", "profiles.added.ttl=5s")...); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the new profile can be used", func() bool { return refused("added") == nil })
	added := pod{name: "added", command: app("hold", "added"), annotations: injected("added")}.start(t)
	added.await(t, "granted", 1)
	if ttl := added.exec(t, "locksidecar", "/locksidecar", "info"); !strings.Contains(ttl, "5s") {
		t.Errorf("info: %s", ttl)
	}
	untouched()

	if _, err := helm(t.Context(), "rollback", release, "1", "--wait"); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the new profile is gone", func() bool { return refused("added-too") != nil })
	untouched()

	if _, err := helm(t.Context(), "uninstall", release, "--wait"); err != nil {
		t.Fatal(err)
	}
	if left := must(t, "get", "mutatingadmissionpolicies,mutatingadmissionpolicybindings,validatingadmissionpolicies,validatingadmissionpolicybindings,clusterroles,clusterrolebindings",
		"-l", "app.kubernetes.io/instance="+release, "-o", "name"); left != "" {
		t.Errorf("uninstall left %s", left)
	}
	must(t, "delete", "pod", "-n", systemNS, release+"-test", "--ignore-not-found") // helm keeps what a test has left
	if left := must(t, "get", "configmaps,secrets,serviceaccounts,deployments,services", "-n", systemNS, "-l", "app.kubernetes.io/instance="+release, "-o", "name"); left != "" {
		t.Errorf("uninstall left %s", left)
	}
	untouched()
	eventually(t, "pods are let in as they are", func() bool {
		out, err := pod{name: "after", command: []string{"true"}, annotations: injected("none")}.dryRun(t.Context())
		return err == nil && !strings.Contains(out, "LOCKSIDECAR")
	})

	// And it can be had again.
	if _, err := helm(t.Context(), installArgs("install")...); err != nil {
		t.Fatal(err)
	}
	if err := awaitPolicy(t.Context()); err != nil {
		t.Fatal(err)
	}
	untouched()
}

// Where the chart is rendered away from the cluster, nothing finds another release. Then the
// policies see to it that no pod gets the sidecar of the wrong one, whichever comes first.
func TestTwoReleases(t *testing.T) {
	p := pod{name: "of-one", command: app("hold", "of-one"), annotations: injected("")}.start(t)
	p.await(t, "granted", 1)
	for _, name := range []string{"a", "z"} { // before ours by name, and after it
		t.Run(name, func(t *testing.T) {
			args := installArgs("template", "--kube-version", "1.36", "--skip-tests")
			args[1] = name
			text, err := helm(t.Context(), args...)
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() {
				ctx := context.WithoutCancel(t.Context())
				_, err := command(ctx, []byte(text), "kubectl", "delete", "--ignore-not-found", "-f", "-")
				if err = errors.Join(err, awaitPolicy(ctx)); err != nil {
					t.Error(err)
				}
			})
			if _, err := command(t.Context(), []byte(text), "kubectl", "apply", "-f", "-"); err != nil {
				t.Fatal(err)
			}
			for _, asks := range []pod{{annotations: injected("")}, {ns: optedNS}} {
				asks.name, asks.command = "of-two", []string{"true"}
				var told string
				eventually(t, "a pod that both serve is refused", func() bool {
					_, err := asks.dryRun(t.Context())
					if err != nil {
						told = err.Error()
					}
					return strings.Contains(told, "keep one of the two releases")
				})
				// Which of them has its turn first is for the server to choose.
				other := name + "-locksidecar"
				if !strings.Contains(told, "'injected by "+release+"', and release "+other+" ") && !strings.Contains(told, "'injected by "+other+"', and release "+release+" ") {
					t.Errorf("the refusal does not name both releases: %s", told)
				}
			}
			if _, err := (pod{name: "of-none", command: []string{"true"}}).dryRun(t.Context()); err != nil {
				t.Errorf("a pod that asks for nothing: %v", err)
			}
		})
	}
	if s := p.status(t); s.restarts("app") != 0 || s.restarts("locksidecar") != 0 || len(p.events(t)) != 1 {
		t.Errorf("the pod from before: restarts %d and %d, %+v", s.restarts("app"), s.restarts("locksidecar"), p.events(t))
	}
}
