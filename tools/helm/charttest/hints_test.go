package charttest

import (
	"strings"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// TestHints: who asks for the sidecar in a place where that has no effect is told so.
func TestHints(t *testing.T) {
	e := newEvaluator(t, objects(t, theChart(t), parse(t, theValues), "v1.36"))
	yes := map[string]string{"locksidecar.io/inject": "true"}
	var (
		inNamespace = "of the namespace is 'true', which has no effect"
		inMetadata  = "in the metadata of"
		asLabel     = "the label locksidecar.io/inject in a pod template has no effect"
	)
	for _, c := range []struct {
		name           string
		own, pod       metav1.ObjectMeta
		namespace      string // what a namespace is told; "-": is none
		workload, want string
	}{
		{name: "nothing"},
		{name: "right", pod: metav1.ObjectMeta{Annotations: yes}},
		{name: "also in the metadata", own: metav1.ObjectMeta{Annotations: yes}, pod: metav1.ObjectMeta{Annotations: yes}, namespace: "the annotation locksidecar.io/inject of a namespace has no effect"},
		{name: "in the metadata alone", own: metav1.ObjectMeta{Annotations: yes}, want: inMetadata, namespace: "the annotation locksidecar.io/inject of a namespace has no effect"},
		{name: "as a label of the workload", own: metav1.ObjectMeta{Labels: yes}, want: inMetadata, namespace: inNamespace},
		{name: "as a label of the pods", pod: metav1.ObjectMeta{Labels: yes}, want: asLabel},
		{name: "both", pod: metav1.ObjectMeta{Labels: yes, Annotations: yes}},
		{name: "a namespace that is right", own: metav1.ObjectMeta{Labels: map[string]string{"locksidecar.io/inject": "enabled"}}, want: inMetadata},
		{name: "a namespace that is out", own: metav1.ObjectMeta{Labels: map[string]string{"locksidecar.io/inject": "disabled"}}, want: inMetadata},
	} {
		t.Run(c.name, func(t *testing.T) {
			c.own.Name, c.own.Namespace = "x", "locks-plain"
			template := corev1.PodTemplateSpec{ObjectMeta: c.pod}
			for _, w := range []struct {
				group, resource, kind string
				object                runtime.Object
			}{
				{"apps", "deployments", "Deployment", &appsv1.Deployment{ObjectMeta: c.own, Spec: appsv1.DeploymentSpec{Template: template}}},
				{"apps", "statefulsets", "StatefulSet", &appsv1.StatefulSet{ObjectMeta: c.own, Spec: appsv1.StatefulSetSpec{Template: template}}},
				{"apps", "daemonsets", "DaemonSet", &appsv1.DaemonSet{ObjectMeta: c.own, Spec: appsv1.DaemonSetSpec{Template: template}}},
				{"batch", "jobs", "Job", &batchv1.Job{ObjectMeta: c.own, Spec: batchv1.JobSpec{Template: template}}},
				{"batch", "cronjobs", "CronJob", &batchv1.CronJob{ObjectMeta: c.own, Spec: batchv1.CronJobSpec{JobTemplate: batchv1.JobTemplateSpec{Spec: batchv1.JobSpec{Template: template}}}}},
			} {
				got := e.hints(t, namespaces()["locks-plain"], schema.GroupVersionResource{Group: w.group, Version: "v1", Resource: w.resource}, w.kind, w.object, c.own)
				if (got == "") != (c.want == "") || !strings.Contains(got, c.want) {
					t.Errorf("%s: %q, want %q", w.kind, got, c.want)
				}
			}
			c.own.Namespace = ""
			ns := &corev1.Namespace{ObjectMeta: c.own}
			got := e.hints(t, ns, schema.GroupVersionResource{Version: "v1", Resource: "namespaces"}, "Namespace", ns, c.own)
			if (got == "") != (c.namespace == "") || !strings.Contains(got, c.namespace) {
				t.Errorf("a namespace: %q, want %q", got, c.namespace)
			}
		})
	}
}

// TestPodInANamespaceWithAMistypedLabel starts without a sidecar, and its maker is told. A pod that
// says itself what it wants gets that.
func TestPodInANamespaceWithAMistypedLabel(t *testing.T) {
	e := newEvaluator(t, objects(t, theChart(t), parse(t, theValues), "v1.36"))
	ns := namespaces()["locks-plain"]
	ns.Labels["locksidecar.io/inject"] = "true"
	for annotations, want := range map[string]string{
		"": "this pod has no sidecar: the label locksidecar.io/inject of its namespace is 'true'",
		`annotations: {locksidecar.io/inject: "false"}, `: "",
		`annotations: {locksidecar.io/inject: "true"}, `:  "",
	} {
		_, warnings, err := e.admit(t.Context(), ns, parsePod(t, `{`+annotations+`spec: {containers: [{name: app, image: app}]}}`))
		if err != nil || (warnings == "") != (want == "") || !strings.Contains(warnings, want) {
			t.Errorf("%s: warnings %q, %v; want %q", annotations, warnings, err, want)
		}
	}
}

// TestLimitRange: a CPU limit that only a LimitRange can have brought is told.
func TestLimitRange(t *testing.T) {
	e := newEvaluator(t, objects(t, theChart(t), parse(t, `
profiles:
  default: {}
  limited: {resources: {limits: {cpu: 1}}}
`), "v1.36"))
	ns := namespaces()["locks-plain"]
	for _, c := range []struct{ annotations, app, want string }{
		{"", "{}", "has a CPU limit of 200m, which neither its profile nor an annotation asks for"},
		{", locksidecar.io/profile: limited", "{}", ""},
		{`, locksidecar.io/cpu-limit: "1"`, "{}", ""},
		{"", "{limits: {cpu: 1, memory: 1Gi}}", ""}, // Guaranteed
	} {
		text := `{annotations: {locksidecar.io/inject: "true"` + c.annotations + `}, spec: {containers: [{name: app, image: app, resources: ` + c.app + `}]}}`
		pod, warnings, err := e.admit(t.Context(), ns, parsePod(t, text))
		if err != nil || warnings != "" {
			t.Fatalf("%s: %q, %v", text, warnings, err)
		}
		s := sidecar(t, pod)
		if _, has := s.Resources.Limits[corev1.ResourceCPU]; !has { // what the server's own plug-in does, which runs once more after policies
			s.Resources.Limits[corev1.ResourceCPU] = resource.MustParse("200m")
		}
		if _, warnings, err = e.admit(t.Context(), ns, pod); err != nil || (warnings == "") != (c.want == "") || !strings.Contains(warnings, c.want) {
			t.Errorf("%s: warnings %q, %v; want %q", text, warnings, err, c.want)
		}
	}
}
