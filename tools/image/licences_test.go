package main

import (
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// TestLicences: the image of a real program has the licence of each module in it, and the bill
// of materials names them all. The program is this test.
func TestLicences(t *testing.T) {
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	binary, err := os.ReadFile(self)
	if err != nil {
		t.Fatal(err)
	}
	all, err := modules(binary)
	if err != nil || len(all) < 3 {
		t.Fatalf("modules %v, %v", all, err)
	}
	o := &options{licence: "../../LICENSE", sbom: filepath.Join(t.TempDir(), "sbom.json"), version: "v1", revision: "abc", created: time.Unix(1, 0).UTC()}
	files, err := o.materials(binary)
	if err != nil {
		t.Fatal(err)
	}
	there, dirs := map[string]string{}, map[string]bool{"": true}
	for _, f := range files {
		dir, _ := filepath.Split(strings.TrimSuffix(f.Path, "/"))
		if !dirs[dir] {
			t.Errorf("%s comes before its folder", f.Path)
		}
		if strings.HasSuffix(f.Path, "/") {
			dirs[f.Path] = true
		}
		there[f.Path] = string(f.Content)
	}
	for path, part := range map[string]string{
		"licenses/LICENSE":     "Apache License",
		"licenses/std/LICENSE": "The Go Authors",
		"licenses/github.com/google/go-containerregistry/LICENSE": "Apache License",
	} {
		if !strings.Contains(there[path], part) {
			t.Errorf("%s has no %q", path, part)
		}
	}
	text, err := os.ReadFile(o.sbom)
	if err != nil {
		t.Fatal(err)
	}
	var doc spdx
	if err := json.Unmarshal(text, &doc); err != nil {
		t.Fatal(err)
	}
	if len(doc.Packages) != len(all)+1 || len(doc.Relationships) != len(all)+1 || doc.Creation.Created != "1970-01-01T00:00:01Z" {
		t.Errorf("%d packages and %d relationships of %d modules, created %s", len(doc.Packages), len(doc.Relationships), len(all), doc.Creation.Created)
	}
	if !strings.Contains(string(text), `"pkg:golang/github.com/google/go-containerregistry@v`) {
		t.Error("a module is not named")
	}
}

// TestNoLicence: a module without a licence is not put into an image in silence.
func TestNoLicence(t *testing.T) {
	cache := t.TempDir()
	s := sources{root: cache, modules: cache}
	m := module{path: "example.com/Upper/x", version: "v1.0.0"}
	folder := filepath.Join(cache, "example.com", "!upper", "x@v1.0.0")
	if _, err := s.licences("../../LICENSE", []module{m}); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("a module that is not there: %v", err)
	}
	if err := os.MkdirAll(folder, 0o755); err != nil {
		t.Fatal(err)
	}
	write := func(name string) {
		if err := os.WriteFile(filepath.Join(folder, name), []byte("text of "+name), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write("NOTICE")
	if _, err := s.licences("../../LICENSE", []module{m}); !errors.Is(err, errNoLicence) {
		t.Errorf("a module without a licence: %v", err)
	}
	write("License.md")
	files, err := s.licences("../../LICENSE", []module{m})
	var paths []string
	for _, f := range files {
		paths = append(paths, f.Path)
	}
	want := "licenses/ licenses/LICENSE licenses/example.com/ licenses/example.com/Upper/ licenses/example.com/Upper/x/ licenses/example.com/Upper/x/License.md licenses/example.com/Upper/x/NOTICE"
	if got := strings.Join(paths, " "); err != nil || got != want {
		t.Errorf("%s, %v", got, err)
	}
	if _, err := modules([]byte("no program")); err == nil {
		t.Error("a file that is no program has modules")
	}
}
