package charttest

import (
	"fmt"
	"maps"
	"path"
	"strings"
	"testing"

	"helm.sh/helm/v3/pkg/chart"
	"helm.sh/helm/v3/pkg/chart/loader"
	"helm.sh/helm/v3/pkg/chartutil"
	"helm.sh/helm/v3/pkg/engine"
	"sigs.k8s.io/yaml"
)

const (
	folder     = "../../../deploy/helm"
	group      = "admissionregistration.k8s.io"
	chartPlace = folder + "/locksidecar"
)

// values are what a user would write into a file.
type values = map[string]any

// clusters are what is rendered for: the versions of Kubernetes and what they serve.
var clusters = map[string]chartutil.VersionSet{
	"v1.29": {"v1", "apps/v1"},
	"v1.34": {"v1", "apps/v1", group + "/v1beta1/MutatingAdmissionPolicy"},
	"v1.36": {"v1", "apps/v1", group + "/v1beta1/MutatingAdmissionPolicy", group + "/v1/MutatingAdmissionPolicy"},
}

// object is a rendered object.
type object map[string]any

func (o object) kind() string { return fmt.Sprintf("%s/%s", o["apiVersion"], o["kind"]) }

func (o object) name() string {
	meta, _ := o["metadata"].(map[string]any)
	return fmt.Sprint(meta["name"])
}

func load(t testing.TB, place string) *chart.Chart {
	t.Helper()
	c, err := loader.Load(place)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// loadExample is the example of an app's chart with the chart it depends on, as
// "helm dependency update" would put it there.
func loadExample(t testing.TB) *chart.Chart {
	t.Helper()
	app := load(t, folder+"/examples/app")
	app.AddDependency(load(t, chartPlace))
	return app
}

// render gives the text of each template, or what Helm says.
func render(c *chart.Chart, v values, cluster string) (map[string]string, error) {
	return renderRelease(c, v, cluster, "locksidecar", nil)
}

// renderRelease is render for a release of that name. there, which may be nil, is what lookup finds.
func renderRelease(c *chart.Chart, v values, cluster, name string, there engine.ClientProvider) (map[string]string, error) {
	caps := chartutil.DefaultCapabilities.Copy()
	caps.KubeVersion = chartutil.KubeVersion{Version: cluster + ".0", Major: "1", Minor: strings.TrimPrefix(cluster, "v1.")}
	caps.APIVersions = clusters[cluster]
	if err := chartutil.ProcessDependencies(c, v); err != nil {
		return nil, err
	}
	release := chartutil.ReleaseOptions{Name: name, Namespace: "locks", Revision: 1, IsInstall: true}
	all, err := chartutil.ToRenderValues(c, v, release, caps)
	if err != nil {
		return nil, err
	}
	if there != nil {
		return engine.RenderWithClientProvider(c, all, there)
	}
	return engine.Render(c, all)
}

// objects are what the chart makes.
func objects(t testing.TB, c *chart.Chart, v values, cluster string) []object {
	t.Helper()
	return objectsOf(t, c, v, cluster, "locksidecar")
}

// objectsOf are what the chart makes for a release of that name.
func objectsOf(t testing.TB, c *chart.Chart, v values, cluster, name string) []object {
	t.Helper()
	files, err := renderRelease(c, v, cluster, name, nil)
	if err != nil {
		t.Fatal(err)
	}
	var all []object
	for name, text := range maps.All(files) {
		if path.Ext(name) != ".yaml" {
			continue
		}
		for doc := range strings.SplitSeq(text, "\n---\n") {
			var o object
			if err := yaml.UnmarshalStrict([]byte(doc), &o); err != nil {
				t.Fatalf("%s is not YAML: %v\n%s", name, err, doc)
			}
			if len(o) > 0 {
				all = append(all, o)
			}
		}
	}
	return all
}

// parse is values as they stand in a file.
func parse(t testing.TB, text string) values {
	t.Helper()
	v := values{}
	if err := yaml.Unmarshal([]byte(text), &v); err != nil {
		t.Fatal(err)
	}
	return v
}
