package main

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"helm.sh/helm/v3/pkg/chart/loader"
	"sigs.k8s.io/yaml"
)

const changelog = `# Changelog

## Unreleased

### Added

- Helm chart: more.

## 1.1.0, 2026-01-02

### Added

- Helm chart: a [guide](docs/guide.md) and a
  [page](https://a.example/page).
- A Helm chart: a Helm chart: at last.
- The sidecar: something else,
  which names a Helm chart: too.

### Changed

- **Breaking:** the Helm chart has no default image.
- **Breaking:** Helm chart: another port.

## 1.0.0

### Fixed

- Helm chart: older.

### Odd

- Redis: of no interest here.

## 0.9.0

### Odd

- Helm chart: even older.

## 0.8.0

- Redis: nothing of the chart.
`

// Of a version, or of what is not released yet, those entries are told that are of the chart.
func TestChanges(t *testing.T) {
	for _, c := range []struct {
		version string
		want    []change
	}{
		{"1.1.0", []change{
			{Kind: "added", Description: "a guide and a page.", Links: []link{{"guide", "https://h.example/blob/v1.1.0/docs/guide.md"}, {"page", "https://a.example/page"}}},
			{Kind: "added", Description: "A Helm chart: a Helm chart: at last."},
			{Kind: "changed", Description: "Breaking: the Helm chart has no default image."},
			{Kind: "changed", Description: "Breaking: another port."},
		}},
		{"1.0.0", []change{{Kind: "fixed", Description: "older."}}},
		{"1.0", []change{{Kind: "added", Description: "more."}}},
		{"2.0.0", []change{{Kind: "added", Description: "more."}}},
		{"0.8.0", nil},
	} {
		text, err := annotation(changelog, c.version, "https://h.example")
		if err != nil {
			t.Errorf("%s: %v", c.version, err)
		}
		var got []change
		if err := yaml.UnmarshalStrict([]byte(text), &got); err != nil {
			t.Errorf("%s: %v", c.version, err)
		}
		same := func(a, b change) bool {
			return a.Kind == b.Kind && a.Description == b.Description && slices.Equal(a.Links, b.Links)
		}
		if !slices.EqualFunc(got, c.want, same) {
			t.Errorf("%s: %+v, not %+v", c.version, got, c.want)
		}
	}
	for version, text := range map[string]string{"0.9.0": changelog, "3.0.0": "# Changelog\n"} {
		if got, err := annotation(text, version, ""); err == nil {
			t.Errorf("%s: %q", version, got)
		}
	}
}

// The archive tells what our changelog says, beside what Chart.yaml says.
func TestPackChanges(t *testing.T) {
	const place, file = "../../../deploy/helm/locksidecar", "../../../CHANGELOG.md"
	name, err := pack(place, t.TempDir(), file)
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
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	want, err := annotation(string(text), packed.Metadata.Version, packed.Metadata.Home)
	if err != nil {
		t.Fatal(err)
	}
	if got := packed.Metadata.Annotations["artifacthub.io/changes"]; got != want {
		t.Errorf("it tells of %q, not %q", got, want)
	}
	for name, value := range sources.Metadata.Annotations {
		if packed.Metadata.Annotations[name] != value {
			t.Errorf("%s is lost", name)
		}
	}
	var told []change
	if err := yaml.UnmarshalStrict([]byte(want), &told); err != nil {
		t.Fatal(err)
	}
	pages := packed.Metadata.Home + "/blob/v" + packed.Metadata.Version + "/"
	for _, c := range told {
		if strings.Contains(c.Description, "](") || strings.Contains(c.Description, "**") {
			t.Errorf("it has markup: %s", c.Description)
		}
		for _, l := range c.Links {
			path, ours := strings.CutPrefix(l.URL, pages)
			path, _, _ = strings.Cut(path, "#")
			if _, err := os.Stat(filepath.Join("../../..", path)); ours && err != nil {
				t.Errorf("%q leads to %s: %v", l.Name, l.URL, err)
			}
		}
	}
	if name, err := pack(place, t.TempDir(), "no-such-file"); err == nil {
		t.Errorf("it is packed as %s without the changelog", name)
	}
}
