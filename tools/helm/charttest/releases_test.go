package charttest

import (
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/dynamic/fake"
)

// TestTwoReleases: of two releases that act on the same pods none wins in silence, whichever
// comes first. A pod that only one of them serves is that one's.
func TestTwoReleases(t *testing.T) {
	ours := objectsOf(t, theChart(t), parse(t, theValues), "v1.36", "locksidecar")
	other := objectsOf(t, theChart(t), parse(t, `{profiles: {default: {store: {url: "embedded:"}}}}`), "v1.36", "another-locksidecar")
	for name, all := range map[string][]object{"ours first": slices.Concat(ours, other), "the other one first": slices.Concat(other, ours)} {
		t.Run(name, func(t *testing.T) {
			e := newEvaluator(t, all)
			for _, c := range []struct{ namespace, pod string }{
				{"locks-plain", plain("")},
				{"locks-plain", plain(", locksidecar.io/profile: default")},
				{"locks-opted-in", `{spec: {containers: [{name: app, image: app}]}}`},
			} {
				pod, _, err := e.admit(t.Context(), namespaces()[c.namespace], parsePod(t, c.pod))
				if err == nil {
					t.Errorf("%s has the sidecar of %q", c.pod, pod.Annotations["locksidecar.io/status"])
				} else if !strings.Contains(err.Error(), "keep one of the two releases") {
					t.Errorf("%s: %v", c.pod, err)
				}
			}
		})
	}

	e := newEvaluator(t, ours)
	pod, _, err := e.admit(t.Context(), namespaces()["locks-plain"], parsePod(t, plain("")))
	if err != nil {
		t.Fatal(err)
	}
	if got := pod.Annotations["locksidecar.io/status"]; got != "injected by locksidecar" {
		t.Errorf("the pod's status is %q", got)
	}
	// What another release has put in before stays as it is.
	pod.Annotations["locksidecar.io/status"] = "injected by another-locksidecar"
	if _, _, err := e.admit(t.Context(), namespaces()["locks-plain"], pod); err == nil || !strings.Contains(err.Error(), "'injected by another-locksidecar'") {
		t.Errorf("a copy of another release's pod: %v", err)
	}
}

// TestHelmTest: the pod of helm test gets the sidecar.
func TestHelmTest(t *testing.T) {
	all := objects(t, theChart(t), parse(t, theValues), "v1.36")
	i := slices.IndexFunc(all, func(o object) bool { return o["kind"] == "Pod" })
	if i < 0 {
		t.Fatal("there is no pod for helm test")
	}
	ns := namespaces()["locks-plain"]
	pod, warnings, err := newEvaluator(t, all).admit(t.Context(), ns, decode[corev1.Pod](t, all[i]))
	if err != nil || warnings != "" {
		t.Fatalf("%v, warnings %q", err, warnings)
	}
	sidecar(t, pod)
	if pod.Annotations["helm.sh/hook"] != "test" {
		t.Errorf("it is no test: %v", pod.Annotations)
	}
}

// there is what a cluster has, for Helm to look into.
type there []runtime.Object

// GetClientFor implements engine.ClientProvider.
func (o there) GetClientFor(apiVersion, kind string) (dynamic.NamespaceableResourceInterface, bool, error) {
	gv, err := schema.ParseGroupVersion(apiVersion)
	if err != nil {
		return nil, false, err
	}
	resource := gv.WithResource("mutatingadmissionpolicies")
	client := fake.NewSimpleDynamicClientWithCustomListKinds(runtime.NewScheme(), map[schema.GroupVersionResource]string{resource: kind + "List"}, o...)
	return client.Resource(resource), false, nil
}

// inCluster are the mutating policies among objects.
func inCluster(all []object) (found there) {
	for _, o := range all {
		if o["kind"] == "MutatingAdmissionPolicy" {
			found = append(found, &unstructured.Unstructured{Object: o})
		}
	}
	return found
}

// TestInstallFindsAnotherRelease: helm install refuses a second release, and lets the first
// be upgraded, beside policies of others.
func TestInstallFindsAnotherRelease(t *testing.T) {
	first := inCluster(objectsOf(t, theChart(t), values{}, "v1.36", "locksidecar"))
	first = append(first, &unstructured.Unstructured{Object: parse(t, `{apiVersion: admissionregistration.k8s.io/v1, kind: MutatingAdmissionPolicy, metadata: {name: of-somebody-else}}`)})
	if _, err := renderRelease(theChart(t), values{}, "v1.36", "locksidecar", first); err != nil {
		t.Errorf("the first release again: %v", err)
	}
	if _, err := renderRelease(theChart(t), values{}, "v1.36", "another", first); err == nil || !strings.Contains(err.Error(), `This cluster has another release of the chart, "locksidecar"`) {
		t.Errorf("a second release: %v", err)
	}
	if _, err := renderRelease(theChart(t), parse(t, `{injection: {enabled: false}}`), "v1.36", "another", first); err != nil {
		t.Errorf("a release without policies: %v", err)
	}
}

// TestModeIsNotChangedInSilence: names of locks are other ones with the other mode, so an upgrade that changes it is
// refused, unless a value says that somebody knows.
func TestModeIsNotChangedInSilence(t *testing.T) {
	const sidecar, node = "{mode: sidecar}", `{mode: node, node: {allow: ["*/*"]}}`
	for _, c := range []struct{ from, to, want string }{
		{sidecar, sidecar, ""},
		{node, node, ""},
		{sidecar, node, "This release has mode: sidecar, and mode: node gives locks other names"},
		{node, sidecar, "This release has mode: node, and mode: sidecar gives locks other names"},
	} {
		before := inCluster(objects(t, theChart(t), parse(t, c.from), "v1.36"))
		if _, err := renderRelease(theChart(t), parse(t, c.to), "v1.36", "locksidecar", before); (err == nil) != (c.want == "") || err != nil && !strings.Contains(err.Error(), c.want) {
			t.Errorf("from %s to %s: %v", c.from, c.to, err)
		}
		v := parse(t, c.to)
		v["allowModeChange"] = true
		if _, err := renderRelease(theChart(t), v, "v1.36", "locksidecar", before); err != nil {
			t.Errorf("from %s to %s, on purpose: %v", c.from, c.to, err)
		}
	}
	// A release from before the label has sidecars.
	before := inCluster(objects(t, theChart(t), parse(t, sidecar), "v1.36"))
	for _, o := range before {
		u, _ := o.(*unstructured.Unstructured)
		labels := u.GetLabels()
		delete(labels, "locksidecar.io/mode")
		u.SetLabels(labels)
	}
	if _, err := renderRelease(theChart(t), parse(t, node), "v1.36", "locksidecar", before); err == nil {
		t.Error("an older release became one sidecar per node")
	}
}
