package charttest

import (
	"slices"
	"testing"

	corev1 "k8s.io/api/core/v1"
)

// TestReinvocation: a container that another policy or webhook adds after ours
// gets the socket too.
func TestReinvocation(t *testing.T) {
	for mode, v := range map[string]string{"sidecar": theValues, "node": nodeValues} {
		e := newEvaluator(t, objects(t, theChart(t), parse(t, v), "v1.36"))
		e.between = func(p *corev1.Pod) {
			p.Spec.Containers = append(p.Spec.Containers, corev1.Container{Name: "late", Image: "late"})
		}
		pod, _, err := e.admit(t.Context(), namespaces()["locks-plain"], parsePod(t, plain("")))
		if err != nil {
			t.Fatal(err)
		}
		c := pod.Spec.Containers
		if len(c) != 2 || len(c[1].VolumeMounts) != 1 || c[1].VolumeMounts[0].MountPath != directory {
			t.Fatalf("mode %s: %+v", mode, c)
		}
		wantEnv(t, &c[1], "LOCKSIDECAR_SOCKET", socket)
		if mode == "sidecar" {
			sidecar(t, pod)
		}
	}
}

// TestPutInFront: an init container that a webhook puts in front of the sidecar, after the
// policies, gets the socket too; the sidecar stays where it is, once.
func TestPutInFront(t *testing.T) {
	e := newEvaluator(t, objects(t, theChart(t), parse(t, theValues), "v1.36"))
	ns := namespaces()["locks-plain"]
	pod, _, err := e.admit(t.Context(), ns, parsePod(t, plain("")))
	if err != nil {
		t.Fatal(err)
	}
	pod.Spec.InitContainers = slices.Insert(pod.Spec.InitContainers, 0, corev1.Container{Name: "mesh-init", Image: "mesh"})
	pod, warnings, err := e.admit(t.Context(), ns, pod)
	if err != nil || warnings != "" {
		t.Fatalf("%v, warnings %q", err, warnings)
	}
	init := pod.Spec.InitContainers
	if len(init) != 2 || init[0].Name != "mesh-init" || init[1].Name != "locksidecar" {
		t.Fatalf("init containers %v", init)
	}
	wantEnv(t, &init[0], "LOCKSIDECAR_SOCKET", socket)
	if m := init[0].VolumeMounts; len(m) != 1 || m[0].MountPath != directory || !m[0].ReadOnly {
		t.Errorf("its mounts: %v", m)
	}
}
