package main

import (
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"helm.sh/helm/v3/pkg/chart"
	"helm.sh/helm/v3/pkg/chart/loader"
	"helm.sh/helm/v3/pkg/chartutil"
	"helm.sh/helm/v3/pkg/lint"
	"helm.sh/helm/v3/pkg/lint/support"
)

// What Helm reads of the archive is the chart, and Helm finds no fault with it.
func TestPack(t *testing.T) {
	const place = "../../../deploy/helm/locksidecar"
	name, err := pack(place, t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	packed, err := loader.Load(name)
	if err != nil {
		t.Fatal(err)
	}
	sources, err := loader.Load(place)
	if err != nil {
		t.Fatal(err)
	}
	if got, want := filepath.Base(name), "locksidecar-"+sources.Metadata.Version+".tgz"; got != want {
		t.Errorf("it is called %s, not %s", got, want)
	}
	names := func(c *chart.Chart) (names []string) {
		for _, f := range slices.Concat(c.Templates, c.Files) {
			names = append(names, f.Name)
		}
		slices.Sort(names)
		return names
	}
	if got, want := names(packed), names(sources); !slices.Equal(got, want) {
		t.Errorf("it has the files %v, not %v", got, want)
	}
	if packed.Schema == nil {
		t.Error("it lacks the schema of its values")
	}
	for _, f := range names(packed) {
		if strings.HasPrefix(f, "tests/") {
			t.Errorf("%s is for our tests", f)
		}
	}
	unpacked := t.TempDir()
	if err := chartutil.ExpandFile(unpacked, name); err != nil {
		t.Fatal(err)
	}
	values := map[string]any{"injection": map[string]any{"enabled": false}}
	for _, m := range lint.AllWithKubeVersion(filepath.Join(unpacked, "locksidecar"), values, "locks", nil).Messages {
		if m.Severity >= support.WarningSev {
			t.Errorf("helm lint: %s", m)
		}
	}
}

func TestPackNothing(t *testing.T) {
	if name, err := pack(t.TempDir(), t.TempDir()); err == nil {
		t.Errorf("an empty folder is packed as %s", name)
	}
}
