package charttest

import (
	"slices"
	"testing"

	corev1 "k8s.io/api/core/v1"
)

// TestReinvocation: a container that another policy or webhook adds after ours
// gets the socket too.
func TestReinvocation(t *testing.T) {
	e := newEvaluator(t, objects(t, theChart(t), parse(t, theValues), "v1.36"))
	ns := namespaces()["locks-plain"]
	pod, _, err := e.admit(t.Context(), ns, parsePod(t, plain("")))
	if err != nil {
		t.Fatal(err)
	}
	pod.Spec.Containers = append(pod.Spec.Containers, corev1.Container{Name: "late", Image: "late"})
	if pod, _, err = e.admit(t.Context(), ns, pod); err != nil {
		t.Fatal(err)
	}
	sidecar(t, pod)
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
