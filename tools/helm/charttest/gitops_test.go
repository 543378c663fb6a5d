package charttest

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/kustomize/api/krusty"
	"sigs.k8s.io/kustomize/kyaml/filesys"
	"sigs.k8s.io/yaml"
)

// documents are those of a file of YAML.
func documents(t *testing.T, name string) []object {
	t.Helper()
	text, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	var all []object
	for part := range strings.SplitSeq(string(text), "\n---\n") {
		var o object
		if err := yaml.UnmarshalStrict([]byte(part), &o); err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		all = append(all, o)
	}
	return all
}

// at is what stands in an object under these keys; nil: nothing.
func at(o any, keys ...string) any {
	for _, k := range keys {
		switch m := o.(type) {
		case object:
			o = m[k]
		case map[string]any:
			o = m[k]
		default:
			return nil
		}
	}
	return o
}

// TestGitOps: the examples for Argo CD and Flux are of this version and this place, and the
// chart takes their values.
func TestGitOps(t *testing.T) {
	argo := documents(t, "../../../deploy/gitops/argocd.yaml")[0]
	flux := documents(t, "../../../deploy/gitops/flux.yaml")
	if len(flux) != 2 {
		t.Fatalf("%d objects for Flux", len(flux))
	}
	source, release := flux[0], flux[1]
	version := "v" + theChart(t).Metadata.Version
	for _, c := range []struct {
		name                          string
		path, tag, releaseName, where any
		values                        any
	}{
		{"Argo CD", at(argo, "spec", "source", "path"), at(argo, "spec", "source", "targetRevision"), at(argo, "spec", "source", "helm", "releaseName"), at(argo, "spec", "destination", "namespace"),
			at(argo, "spec", "source", "helm", "valuesObject")},
		{"Flux", at(release, "spec", "chart", "spec", "chart"), at(source, "spec", "ref", "tag"), at(release, "spec", "releaseName"), at(release, "spec", "targetNamespace"),
			at(release, "spec", "values")},
	} {
		t.Run(c.name, func(t *testing.T) {
			if c.path != "deploy/helm/locksidecar" || c.tag != version || c.releaseName != "locksidecar" || c.where != "locksidecar" {
				t.Errorf("path %v, version %v, release %v in %v", c.path, c.tag, c.releaseName, c.where)
			}
			v, ok := c.values.(map[string]any)
			if !ok {
				t.Fatal("it has no values")
			}
			e := newEvaluator(t, objects(t, load(t, chartPlace), v, "v1.36"))
			pod, _, err := e.admit(t.Context(), namespaces()["locks-plain"], parsePod(t, plain("")))
			if err != nil {
				t.Fatal(err)
			}
			s := sidecar(t, pod)
			wantEnv(t, s, "LOCKSIDECAR_STORE", "redis://redis.infra.svc:6379")
			if !strings.HasPrefix(s.Image, "registry.example.com/locksidecar:") {
				t.Errorf("the image is %s", s.Image)
			}
		})
	}
	if from := at(release, "spec", "chart", "spec", "sourceRef"); at(from, "kind") != source["kind"] || at(from, "name") != at(source, "metadata", "name") || at(release, "metadata", "namespace") != at(source, "metadata", "namespace") {
		t.Errorf("Flux takes the chart from %v", from)
	}
	// The policies of many profiles do not fit into the annotation of kubectl apply.
	if options, _ := at(argo, "spec", "syncPolicy", "syncOptions").([]any); !slices.Contains(options, any("ServerSideApply=true")) {
		t.Errorf("Argo CD syncs by %v", options)
	}
}

const kustomized = `
apiVersion: kustomize.config.k8s.io/v1beta1
kind: Kustomization
resources: [workloads.yaml]
components: [../inject]
patches:
- target: {kind: Deployment}
  patch: |-
    - op: add
      path: /spec/template/metadata/annotations/locksidecar.io~1profile
      value: billing
`

const workloads = `
apiVersion: v1
kind: Service
metadata: {name: service}
spec: {ports: [{port: 80}]}
---
apiVersion: v1
kind: Pod
metadata: {name: pod}
spec: {containers: [{name: app, image: app}]}
---
apiVersion: apps/v1
kind: Deployment
metadata: {name: deployment}
spec: {template: {metadata: {annotations: {own: "1"}}, spec: {containers: [{name: app, image: app}]}}}
---
apiVersion: apps/v1
kind: StatefulSet
metadata: {name: set}
spec: {template: {spec: {containers: [{name: app, image: app}]}}}
---
apiVersion: apps/v1
kind: DaemonSet
metadata: {name: daemons}
spec: {template: {spec: {containers: [{name: app, image: app}]}}}
---
apiVersion: batch/v1
kind: Job
metadata: {name: job}
spec: {template: {spec: {containers: [{name: app, image: app}]}}}
---
apiVersion: batch/v1
kind: CronJob
metadata: {name: nightly}
spec: {jobTemplate: {spec: {template: {spec: {containers: [{name: app, image: app}]}}}}}
`

// TestKustomize: with the component, the pods of all kinds of workloads get the sidecar, and the
// rest stays as it is.
func TestKustomize(t *testing.T) {
	component, err := os.ReadFile("../../../deploy/kustomize/inject/kustomization.yaml")
	if err != nil {
		t.Fatal(err)
	}
	fs := filesys.MakeFsInMemory()
	for name, text := range map[string]string{"/inject/kustomization.yaml": string(component), "/app/kustomization.yaml": kustomized, "/app/workloads.yaml": workloads} {
		if err := fs.MkdirAll(filepath.Dir(name)); err != nil {
			t.Fatal(err)
		}
		if err := fs.WriteFile(name, []byte(text)); err != nil {
			t.Fatal(err)
		}
	}
	built, err := krusty.MakeKustomizer(krusty.MakeDefaultOptions()).Run(fs, "/app")
	if err != nil {
		t.Fatal(err)
	}
	e := newEvaluator(t, objects(t, theChart(t), parse(t, theValues), "v1.36"))
	pods := 0
	for _, r := range built.Resources() {
		text, err := r.AsYAML()
		if err != nil {
			t.Fatal(err)
		}
		o := parse(t, string(text))
		if r.GetKind() == "Service" {
			if strings.Contains(string(text), "locksidecar") {
				t.Errorf("it became %s", text)
			}
			continue
		}
		template := at(o, "spec", "template")
		switch r.GetKind() {
		case "Pod":
			template = o
		case "CronJob":
			template = at(o, "spec", "jobTemplate", "spec", "template")
		}
		if own := at(o, "metadata", "annotations"); own != nil && r.GetKind() != "Pod" {
			t.Errorf("%s has annotations of its own: %v", r.GetKind(), own)
		}
		before := decode[corev1.Pod](t, object{"apiVersion": "v1", "kind": "Pod", "metadata": at(template, "metadata"), "spec": at(template, "spec")})
		pod, _, err := e.admit(t.Context(), namespaces()["locks-plain"], before)
		if err != nil {
			t.Fatalf("%s: %v", r.GetKind(), err)
		}
		pods++
		profile := "default"
		if r.GetKind() == "Deployment" {
			profile = "billing"
			if pod.Annotations["own"] != "1" {
				t.Error("the Deployment lost an annotation")
			}
		}
		if sidecar(t, pod); pod.Annotations["locksidecar.io/sidecar"] != "profile "+profile+", chart "+theChart(t).Metadata.Version {
			t.Errorf("%s: the sidecar is of %q", r.GetKind(), pod.Annotations["locksidecar.io/sidecar"])
		}
	}
	if pods != 6 {
		t.Errorf("%d workloads", pods)
	}
}

// TestArtifactHub: what Artifact Hub shows of the chart is in its form, and leads to what is there.
func TestArtifactHub(t *testing.T) {
	about := load(t, chartPlace).Metadata
	var links []struct{ Name, URL string }
	if err := yaml.UnmarshalStrict([]byte(about.Annotations["artifacthub.io/links"]), &links); err != nil {
		t.Fatal(err)
	}
	if len(links) == 0 {
		t.Error("it has no links")
	}
	for _, l := range links {
		path, ok := strings.CutPrefix(l.URL, about.Home+"/blob/main/")
		if _, err := os.Stat(filepath.Join("../../..", path)); !ok || l.Name == "" || err != nil {
			t.Errorf("%q leads to %s: %v", l.Name, l.URL, err)
		}
	}
	// https://artifacthub.io/docs/topics/annotations/helm/
	categories := []string{"ai-machine-learning", "database", "integration-delivery", "monitoring-logging", "networking", "security", "storage", "streaming-messaging"}
	if c := about.Annotations["artifacthub.io/category"]; !slices.Contains(categories, c) {
		t.Errorf("there is no category %q", c)
	}
	for _, name := range []string{"operator", "prerelease"} {
		if v := about.Annotations["artifacthub.io/"+name]; v != "true" && v != "false" {
			t.Errorf("%s is %q", name, v)
		}
	}
	if l := about.Annotations["artifacthub.io/license"]; l != "Apache-2.0" {
		t.Errorf("the licence is %q", l)
	}
}
