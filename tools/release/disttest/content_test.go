package disttest

import (
	"archive/tar"
	"archive/zip"
	"bytes"
	"compress/gzip"
	"crypto/sha256"
	"debug/buildinfo"
	"encoding/json"
	"errors"
	"io"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/locksidecar/locksidecar/tools/release/pyenv"
)

// unpacked has the files of an archive, by their paths.
func unpacked(t *testing.T, name string, content []byte) map[string][]byte {
	t.Helper()
	found := map[string][]byte{}
	switch path.Ext(name) {
	case ".whl", ".zip", ".jar":
		z, err := zip.NewReader(bytes.NewReader(content), int64(len(content)))
		if err != nil {
			t.Fatal(err)
		}
		for _, f := range z.File {
			r, err := f.Open()
			if err != nil {
				t.Fatal(err)
			}
			if found[f.Name], err = io.ReadAll(r); err != nil {
				t.Fatal(err)
			}
		}
		return found
	case ".gz", ".tgz", ".crate":
		z, err := gzip.NewReader(bytes.NewReader(content))
		if err != nil {
			t.Fatal(err)
		}
		if content, err = io.ReadAll(z); err != nil {
			t.Fatal(err)
		}
	}
	for r := tar.NewReader(bytes.NewReader(content)); ; {
		h, err := r.Next()
		if errors.Is(err, io.EOF) {
			return found
		}
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		if found[h.Name], err = io.ReadAll(r); err != nil {
			t.Fatal(err)
		}
	}
}

func read(t *testing.T, name string) []byte {
	t.Helper()
	content, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	return content
}

// Whatever somebody downloads has the licence in it, and links that work there.
func TestLicenseAndLinks(t *testing.T) {
	license := read(t, filepath.Join(repository, "LICENSE"))
	relative := regexp.MustCompile(`\]\((?:\.|[\w-]+[/.)])[^)]*`)
	for format, place := range map[string]string{
		"locksidecar_%s_linux_amd64.tar.gz": "locksidecar_" + version + "_linux_amd64/LICENSE",
		"locksidecar_%s_linux_arm64.tar.gz": "locksidecar_" + version + "_linux_arm64/LICENSE",
		"locksidecar-chart-%s.tgz":          "locksidecar/LICENSE",
		"locksidecar-npm-%s.tgz":            "package/LICENSE",
		"locksidecar-%s.tar.gz":             "locksidecar-" + version + "/LICENSE",
		"locksidecar-%s-py3-none-any.whl":   "locksidecar-" + version + ".dist-info/licenses/LICENSE",
	} {
		name := artifact(t, format)
		found := unpacked(t, name, read(t, name))
		if !bytes.Equal(found[place], license) {
			t.Errorf("%s has no %s", name, place)
		}
		pages := 0
		for file, text := range found {
			if base := path.Base(file); base != "README.md" && base != "METADATA" && base != "PKG-INFO" {
				continue
			}
			pages++
			if links := relative.FindAll(text, -1); len(links) > 0 {
				t.Errorf("%s: %s links to what is not there: %s", name, file, links)
			}
		}
		if pages == 0 {
			t.Errorf("%s has no README", name)
		}
	}
	name := artifact(t, "locksidecar-maven-%s.zip")
	jar := "io/github/locksidecar/locksidecar-client/" + version + "/locksidecar-client-" + version + ".jar"
	inside := unpacked(t, jar, unpacked(t, name, read(t, name))[jar])
	if !bytes.Equal(inside["META-INF/LICENSE"], license) {
		t.Error("the jar has no META-INF/LICENSE")
	}
	name = artifact(t, "locksidecar-client-go-%s.zip")
	sources := unpacked(t, "module.zip", unpacked(t, name, read(t, name))["github.com/locksidecar/client-go/@v/v"+version+".zip"])
	if !bytes.Equal(sources["github.com/locksidecar/client-go@v"+version+"/LICENSE"], license) {
		t.Error("the module for Go has no LICENSE")
	}
}

func TestSums(t *testing.T) {
	out := run(t, *dist, "sha256sum", "--check", "--strict", "SHA256SUMS")
	all, err := os.ReadDir(*dist)
	if err != nil {
		t.Fatal(err)
	}
	files := len(all) - 1
	if slices.ContainsFunc(all, func(f os.DirEntry) bool { return f.Name() == "SHA256SUMS.asc" }) { // made with SIGN=key
		files--
	}
	if got := strings.Count(out, ": OK\n"); got != files {
		t.Errorf("%d files have sums, of %d", got, files)
	}
}

// The program says which version it is, and its archive has pages and completions.
func TestProgram(t *testing.T) {
	var said struct {
		Version string `json:"version"`
	}
	if err := json.Unmarshal([]byte(run(t, "", program, "version", "-o", "json")), &said); err != nil || said.Version != "v"+version {
		t.Errorf("the program has version %q: %v", said.Version, err)
	}
	name := artifact(t, "locksidecar_%s_linux_arm64.tar.gz")
	found := unpacked(t, name, read(t, name))
	for file, has := range map[string]string{
		"man/locksidecar.1":            ".TH LOCKSIDECAR 1",
		"man/locksidecar-run.1":        ".TH LOCKSIDECAR\\-RUN 1",
		"completions/bash/locksidecar": "complete -o default -F __start_locksidecar locksidecar",
		"completions/zsh/_locksidecar": "#compdef locksidecar",
		"THIRD_PARTY_LICENSES":         "google.golang.org/grpc\n",
	} {
		text := strings.ReplaceAll(string(found["locksidecar_"+version+"_linux_arm64/"+file]), `\-`, "-")
		if !strings.Contains(text, strings.ReplaceAll(has, `\-`, "-")) {
			t.Errorf("%s of the archive lacks %q", file, has)
		}
	}
}

// A bill of materials is valid, and names each module that is in its program.
func TestBill(t *testing.T) {
	python, err := pyenv.Interpreter(t.Context(), "../requirements.txt")
	if err != nil {
		t.Fatal(err)
	}
	info, err := buildinfo.ReadFile(program)
	if err != nil {
		t.Fatal(err)
	}
	for _, arch := range []string{"amd64", "arm64"} {
		name := artifact(t, "locksidecar_%s_linux_"+arch+".cdx.json")
		run(t, "", python, "-c", `
import sys
from cyclonedx.schema import SchemaVersion
from cyclonedx.validation.json import JsonStrictValidator
error = JsonStrictValidator(SchemaVersion.V1_6).validate_str(open(sys.argv[1]).read())
sys.exit(str(error) if error else 0)
`, name)
		var bill struct {
			Components []struct{ PURL string }
		}
		if err := json.Unmarshal(read(t, name), &bill); err != nil {
			t.Fatal(err)
		}
		named := map[string]bool{}
		for _, c := range bill.Components {
			named[c.PURL] = true
		}
		for _, m := range info.Deps {
			if !named["pkg:golang/"+m.Path+"@"+strings.ReplaceAll(m.Version, "+", "%2B")] {
				t.Errorf("%s does not name %s %s", name, m.Path, m.Version)
			}
		}
		if !named["pkg:golang/std@"+strings.TrimPrefix(info.GoVersion, "go")] {
			t.Errorf("%s does not name Go", name)
		}
	}
}

// The image has the same programs as the archives.
func TestImage(t *testing.T) {
	programs := map[[32]byte]string{}
	for _, arch := range []string{"amd64", "arm64"} {
		name := artifact(t, "locksidecar_%s_linux_"+arch+".tar.gz")
		binary := unpacked(t, name, read(t, name))["locksidecar_"+version+"_linux_"+arch+"/locksidecar"]
		programs[sha256.Sum256(binary)] = arch
	}
	name := artifact(t, "locksidecar_%s_image.tar")
	for blob, content := range unpacked(t, name, read(t, name)) {
		if bytes.HasPrefix(content, []byte{0x1f, 0x8b}) {
			delete(programs, sha256.Sum256(unpacked(t, blob+".gz", content)["locksidecar"]))
		}
	}
	for _, arch := range programs {
		t.Errorf("the image lacks the program for %s", arch)
	}
}
