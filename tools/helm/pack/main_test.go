package main

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"helm.sh/helm/v3/pkg/chart"
	"helm.sh/helm/v3/pkg/chart/loader"
	"helm.sh/helm/v3/pkg/chartutil"
	"helm.sh/helm/v3/pkg/lint"
	"helm.sh/helm/v3/pkg/lint/support"
	"helm.sh/helm/v3/pkg/provenance"
)

// What Helm reads of the archive is the chart, and Helm finds no fault with it.
func TestPack(t *testing.T) {
	const place = "../../../deploy/helm/locksidecar"
	name, err := pack(place, t.TempDir(), "")
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
	if name, err := pack(t.TempDir(), t.TempDir(), ""); err == nil {
		t.Errorf("an empty folder is packed as %s", name)
	}
}

// With a key of GnuPG, Helm knows who has made the archive, under both of its names, and finds an
// archive that is another one.
func TestSign(t *testing.T) {
	if _, err := exec.LookPath("gpg"); err != nil {
		t.Fatal("no gpg; make test-deps installs it")
	}
	home, err := os.MkdirTemp("", "gpg") // short enough for the socket of its agent
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(home) })
	t.Setenv("GNUPGHOME", home)
	gpg := func(program string, args ...string) {
		t.Helper()
		if out, err := exec.CommandContext(context.WithoutCancel(t.Context()), program, args...).CombinedOutput(); err != nil {
			t.Fatalf("%s %v: %v\n%s", program, args, err, out)
		}
	}
	const key = "release@a.example"
	gpg("gpg", "--batch", "--passphrase", "", "--quick-generate-key", key, "rsa2048", "sign")
	t.Cleanup(func() { gpg("gpgconf", "--kill", "all") })
	ring := filepath.Join(home, "public.gpg")
	gpg("gpg", "--batch", "--output", ring, "--export", key)

	dir := t.TempDir()
	name, err := pack("../../../deploy/helm/locksidecar", dir, "")
	if err != nil {
		t.Fatal(err)
	}
	other := filepath.Join(dir, "locksidecar-chart.tgz")
	if err := sign(t.Context(), name, key, filepath.Base(other)); err != nil {
		t.Fatal(err)
	}
	archive, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	helm, err := provenance.NewFromKeyring(ring, "")
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		what, name string
		content    []byte
		good       bool
	}{
		{"as Helm calls it", name, archive, true},
		{"as we give it away", other, archive, true},
		{"another one", other, append([]byte{0}, archive...), false},
		{"by another name", filepath.Join(dir, "else.tgz"), archive, false},
	} {
		if err := os.WriteFile(c.name, c.content, 0o600); err != nil {
			t.Fatal(err)
		}
		if v, err := helm.Verify(c.name, name+".prov"); (err == nil) != c.good {
			t.Errorf("%s: %+v, %v", c.what, v, err)
		}
	}
	if err := sign(t.Context(), name, "nobody@a.example", ""); err == nil {
		t.Error("it is signed with a key that is not there")
	}
}
