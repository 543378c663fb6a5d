package charttest

import (
	"strings"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// TestNodeGuard: a pod that could act as another one, or as the agent, is refused wherever it takes locks, and in all of a
// namespace that takes locks: whatever labels its author gives it, however it gets the volume, and also where
// failures are to be ignored.
func TestNodeGuard(t *testing.T) {
	hostPID := func(p *corev1.Pod) { p.Spec.HostPID = true }
	agentsFolder := func(p *corev1.Pod) {
		p.Spec.Volumes = append(p.Spec.Volumes, corev1.Volume{Name: "h", VolumeSource: corev1.VolumeSource{HostPath: &corev1.HostPathVolumeSource{Path: "/run/locksidecar-node"}}})
	}
	agentsUser := func(p *corev1.Pod) { p.Spec.SecurityContext = &corev1.PodSecurityContext{RunAsUser: new(int64(57432))} }
	agentsUserInside := func(p *corev1.Pod) {
		p.Spec.Containers[0].SecurityContext = &corev1.SecurityContext{RunAsUser: new(int64(57432))}
	}
	anotherUser := func(p *corev1.Pod) { p.Spec.SecurityContext = &corev1.PodSecurityContext{RunAsUser: new(int64(57433))} }
	ownVolume := func(p *corev1.Pod) {
		p.Spec.Volumes = append(p.Spec.Volumes, corev1.Volume{Name: "own", VolumeSource: corev1.VolumeSource{CSI: &corev1.CSIVolumeSource{Driver: "node.locksidecar.io"}}})
	}
	otherVolume := func(p *corev1.Pod) {
		p.Spec.Volumes = append(p.Spec.Volumes, corev1.Volume{Name: "own", VolumeSource: corev1.VolumeSource{CSI: &corev1.CSIVolumeSource{Driver: "secrets.example.com"}}})
	}
	for _, policy := range []string{"Fail", "Ignore"} {
		e := newEvaluator(t, objects(t, theChart(t), parse(t, nodeValues+"\ninjection: {failurePolicy: "+policy+", excludedPods: {app: [redis]}}"), "v1.36"))
		for _, c := range []struct {
			name, namespace, pod string
			volume               func(*corev1.Pod)
			free                 bool
		}{
			{name: "asks", namespace: "locks-plain", pod: plain("")},
			{name: "of a labelled namespace", namespace: "locks-opted-in", pod: `{spec: {containers: [{name: app, image: app}]}}`},
			{name: "asks for none in a labelled namespace", namespace: "locks-opted-in", pod: `{annotations: {locksidecar.io/inject: "false"}, spec: {containers: [{name: app, image: app}]}}`},
			{name: "excluded by a label that anybody may write", namespace: "locks-opted-in", pod: `{labels: {app: redis}, spec: {containers: [{name: app, image: app}]}}`},
			{name: "with a container of the sidecar's name", namespace: "locks-opted-in", pod: `{spec: {containers: [{name: locksidecar, image: app}]}}`},
			{name: "brings the volume", namespace: "locks-plain", pod: `{spec: {containers: [{name: app, image: app}]}}`, volume: ownVolume},
			{name: "brings the volume, asks for none", namespace: "locks-plain", pod: `{annotations: {locksidecar.io/inject: "false"}, spec: {containers: [{name: app, image: app}]}}`, volume: ownVolume},
			{name: "has nothing to do with locks", namespace: "locks-plain", pod: `{spec: {containers: [{name: app, image: app}]}}`, volume: otherVolume, free: true},
			{name: "of an excluded namespace", namespace: "kube-system", pod: `{spec: {containers: [{name: app, image: app}]}}`, volume: ownVolume, free: true},
		} {
			for what, change := range map[string]func(*corev1.Pod){
				"may not have hostPID":                  hostPID,
				"may not have a hostPath that leads to": agentsFolder,
				"may not have runAsUser":                agentsUser,
				"may not have runAsUser 57432":          agentsUserInside,
				"":                                      anotherUser,
			} {
				pod := parsePod(t, c.pod)
				change(pod)
				if c.volume != nil {
					c.volume(pod)
				}
				_, _, err := e.admit(t.Context(), namespaces()[c.namespace], pod)
				if refused := what != "" && !c.free; (err != nil) != refused || refused && !strings.Contains(err.Error(), what) {
					t.Errorf("%s, a pod that %s, %q: %v", policy, c.name, what, err)
				}
			}
		}
	}
}

// TestNodePartsInALabelledNamespace: who labels all namespaces, that of the release too, does not keep agent and
// driver from starting.
func TestNodePartsInALabelledNamespace(t *testing.T) {
	e := newEvaluator(t, objects(t, theChart(t), parse(t, nodeValues), "v1.36"))
	ns := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "locks", Labels: map[string]string{"kubernetes.io/metadata.name": "locks", "locksidecar.io/inject": "enabled"}}}
	for _, part := range []string{"agent", "driver"} {
		set := ofNode[appsv1.DaemonSet](t, nodeValues, "apps/v1/DaemonSet", "locksidecar-"+part)
		pod := &corev1.Pod{ObjectMeta: set.Spec.Template.ObjectMeta, Spec: set.Spec.Template.Spec}
		pod.Name, pod.Namespace = part, ns.Name
		after, warnings, err := e.admit(t.Context(), ns, pod)
		if err != nil || warnings != "" {
			t.Errorf("the %s: %v, warnings %q", part, err, warnings)
		} else if len(after.Spec.Volumes) != len(pod.Spec.Volumes) {
			t.Errorf("the %s has volumes %+v", part, after.Spec.Volumes)
		}
	}
}
