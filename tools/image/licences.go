package main

import (
	"bytes"
	"debug/buildinfo"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"time"
	"unicode"

	"github.com/locksidecar/locksidecar/tools/image/oci"
)

// module is what a binary was built from: a module of Go, or Go itself.
type module struct{ path, version, sum string }

// modules are those of a binary, with Go's own library and without the binary's own module.
func modules(binary []byte) ([]module, error) {
	info, err := buildinfo.Read(bytes.NewReader(binary))
	if err != nil {
		return nil, fmt.Errorf("read what the binary was built from: %w", err)
	}
	all := []module{{path: "std", version: strings.TrimPrefix(info.GoVersion, "go")}}
	for _, d := range info.Deps {
		if d.Replace != nil {
			d = d.Replace
		}
		all = append(all, module{d.Path, d.Version, d.Sum})
	}
	return all, nil
}

// sources are where Go keeps itself and the modules on this machine.
type sources struct{ root, modules string }

func findSources() (s sources, err error) {
	out, err := exec.Command("go", "env", "GOROOT", "GOMODCACHE").Output() //nolint:noctx // soon over
	if err != nil {
		return s, fmt.Errorf("ask go for its folders: %w", err)
	}
	lines := strings.Split(strings.TrimSpace(string(out)), "\n")
	if len(lines) != 2 {
		return s, fmt.Errorf("ask go for its folders: it says %q", out)
	}
	return sources{lines[0], lines[1]}, nil
}

// folder is that of a module.
func (s sources) folder(m module) string {
	if m.path == "std" {
		return s.root
	}
	var escaped strings.Builder // upper case letters, as the module cache has them
	for _, r := range m.path {
		if unicode.IsUpper(r) {
			escaped.WriteByte('!')
			r = unicode.ToLower(r)
		}
		escaped.WriteRune(r)
	}
	return filepath.Join(s.modules, escaped.String()+"@"+m.version)
}

var errNoLicence = errors.New("has no file with a licence")

// licences are the files with the licences of the modules, and their folders, for an image.
// Most licences ask that their text goes with the binary.
func (s sources) licences(own string, all []module) ([]oci.File, error) {
	files := map[string][]byte{}
	text, err := os.ReadFile(own)
	if err != nil {
		return nil, fmt.Errorf("read the licence: %w", err)
	}
	files["licenses/LICENSE"] = text
	for _, m := range all {
		entries, err := os.ReadDir(s.folder(m))
		if err != nil {
			return nil, fmt.Errorf("licence of %s: %w", m.path, err)
		}
		found := false
		for _, e := range entries {
			name := strings.ToUpper(e.Name())
			if e.IsDir() || !slices.ContainsFunc([]string{"LICENSE", "LICENCE", "COPYING", "NOTICE", "PATENTS"}, func(p string) bool { return strings.HasPrefix(name, p) }) {
				continue
			}
			text, err := os.ReadFile(filepath.Join(s.folder(m), e.Name()))
			if err != nil {
				return nil, fmt.Errorf("licence of %s: %w", m.path, err)
			}
			files[path.Join("licenses", m.path, e.Name())] = text
			found = found || !strings.HasPrefix(name, "NOTICE") && !strings.HasPrefix(name, "PATENTS")
		}
		if !found {
			return nil, fmt.Errorf("%s %s %w", m.path, m.version, errNoLicence)
		}
	}
	var out []oci.File
	folders := map[string]bool{}
	for name := range files {
		for dir := path.Dir(name); dir != "."; dir = path.Dir(dir) {
			folders[dir+"/"] = true
		}
	}
	for dir := range folders {
		out = append(out, oci.File{Path: dir, Mode: 0o755})
	}
	for name, text := range files {
		out = append(out, oci.File{Path: name, Mode: 0o644, Content: text})
	}
	slices.SortFunc(out, func(a, b oci.File) int { return strings.Compare(a.Path, b.Path) }) // a folder before what is in it
	return out, nil
}

// spdx is as much of SPDX 2.3 as is needed to say what is in a binary.
type spdx struct {
	Version       string             `json:"spdxVersion"`
	License       string             `json:"dataLicense"`
	ID            string             `json:"SPDXID"`
	Name          string             `json:"name"`
	Namespace     string             `json:"documentNamespace"`
	Creation      spdxCreation       `json:"creationInfo"`
	Packages      []spdxPackage      `json:"packages"`
	Relationships []spdxRelationship `json:"relationships"`
}

type spdxCreation struct {
	Created  string   `json:"created"`
	Creators []string `json:"creators"`
}

type spdxPackage struct {
	ID       string    `json:"SPDXID"`
	Name     string    `json:"name"`
	Version  string    `json:"versionInfo"`
	Location string    `json:"downloadLocation"`
	Analyzed bool      `json:"filesAnalyzed"`
	Comment  string    `json:"comment,omitempty"`
	Refs     []spdxRef `json:"externalRefs,omitempty"`
}

type spdxRef struct {
	Category string `json:"referenceCategory"`
	Type     string `json:"referenceType"`
	Locator  string `json:"referenceLocator"`
}

type spdxRelationship struct {
	Element string `json:"spdxElementId"`
	Type    string `json:"relationshipType"`
	Related string `json:"relatedSpdxElement"`
}

// bill is a bill of materials in SPDX: the modules of a binary. The sum is Go's own, of go.sum.
func bill(version, revision string, created time.Time, all []module) ([]byte, error) {
	const none = "NOASSERTION"
	doc := spdx{
		Version: "SPDX-2.3", License: "CC0-1.0", ID: "SPDXRef-DOCUMENT", Name: "locksidecar " + version,
		Namespace:     source + "/spdx/" + version + "-" + revision,
		Creation:      spdxCreation{created.Format(time.RFC3339), []string{"Tool: locksidecar-image"}},
		Packages:      []spdxPackage{{ID: "SPDXRef-locksidecar", Name: "locksidecar", Version: version, Location: source, Comment: "revision " + revision}},
		Relationships: []spdxRelationship{{"SPDXRef-DOCUMENT", "DESCRIBES", "SPDXRef-locksidecar"}},
	}
	for i, m := range all {
		p := spdxPackage{ID: fmt.Sprintf("SPDXRef-module-%d", i), Name: m.path, Version: m.version, Location: none}
		if m.sum != "" {
			p.Comment = "go.sum " + m.sum
		}
		p.Refs = []spdxRef{{"PACKAGE-MANAGER", "purl", "pkg:golang/" + m.path + "@" + m.version}}
		doc.Packages = append(doc.Packages, p)
		doc.Relationships = append(doc.Relationships, spdxRelationship{"SPDXRef-locksidecar", "DEPENDS_ON", p.ID})
	}
	text, err := json.MarshalIndent(doc, "", "  ")
	return append(text, '\n'), err
}
