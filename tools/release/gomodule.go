package main

import (
	"archive/zip"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"time"
)

// goModule is the client for Go as a module of its own, which does not need what the server needs.
// docs/architecture.md says why the repository does not have it as one.
const goModule = "github.com/locksidecar/client-go"

// goFolders are where its packages are in the repository, and in the module.
var goFolders = []struct{ from, to string }{
	{"client", ""},
	{"internal/jsonlines", "internal/jsonlines"},
	{"api/locksidecar/v1", "api/locksidecar/v1"},
}

// gomodule makes the module, in the form in which a proxy of Go modules serves it.
func (r *release) gomodule(ctx context.Context) error {
	dir := filepath.Join(r.stage, "client-go")
	if err := r.goSources(ctx, dir); err != nil {
		return err
	}
	// tidy says which sums the module has, and must have nothing to say about its versions. vet
	// also refuses what Go got after the version that go.mod names.
	wanted, err := os.ReadFile(filepath.Join(dir, "go.mod"))
	if err != nil {
		return err
	}
	for _, argv := range [][]string{{"go", "mod", "tidy"}, {"go", "vet", "./..."}} {
		if err := r.command(ctx, dir, argv...); err != nil {
			return err
		}
	}
	tidy, err := os.ReadFile(filepath.Join(dir, "go.mod"))
	if err != nil {
		return err
	}
	if !bytes.Equal(tidy, wanted) {
		return fmt.Errorf("tools/release/client-go.mod is not tidy, it must be\n%s", tidy)
	}
	proxy, err := r.proxy(dir, tidy)
	if err != nil {
		return err
	}
	archive, err := zipped(proxy, r.created)
	if err != nil {
		return err
	}
	return write(r.file("locksidecar-client-go-%s.zip", r.version), archive, 0o644)
}

// goSources writes the sources of the module, without tests, which need a server, and without what
// is for gRPC and HTTP.
func (r *release) goSources(ctx context.Context, dir string) error {
	for _, f := range goFolders {
		staged, err := r.staged(ctx, f.from)
		if err != nil {
			return err
		}
		files, err := filepath.Glob(filepath.Join(staged, "*.go"))
		if err != nil {
			return err
		}
		for _, file := range files {
			name := filepath.Base(file)
			if strings.HasSuffix(name, "_test.go") || strings.HasSuffix(name, "_grpc.pb.go") || name == "openapi.go" {
				continue
			}
			text, err := os.ReadFile(file)
			if err != nil {
				return err
			}
			if err := write(filepath.Join(dir, f.to, name), []byte(ofModule(string(text))), 0o644); err != nil {
				return err
			}
		}
	}
	for from, to := range map[string]string{"client-go.mod": "go.mod", "client-go.md": "README.md"} {
		text, err := os.ReadFile(filepath.Join(r.root, "tools", "release", from))
		if err != nil {
			return err
		}
		if to == "README.md" {
			text = []byte(outside(string(text), "tools/release", "v"+r.version, r.isDir))
		}
		if err := write(filepath.Join(dir, to), text, 0o644); err != nil {
			return err
		}
	}
	return r.license(filepath.Join(dir, "LICENSE"))
}

// ofModule gives the imports of a file the paths that they have in the module.
func ofModule(text string) string {
	for _, f := range goFolders {
		text = strings.ReplaceAll(text, `"`+module+"/"+f.from+`"`, `"`+path.Join(goModule, f.to)+`"`)
	}
	return text
}

// proxy is what GOPROXY serves of a module: https://go.dev/ref/mod#goproxy-protocol.
func (r *release) proxy(dir string, mod []byte) ([]entry, error) {
	version := "v" + r.version
	var sources []entry
	err := filepath.WalkDir(dir, func(name string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		content, err := os.ReadFile(name)
		if err != nil {
			return err
		}
		rel, err := filepath.Rel(dir, name)
		sources = append(sources, entry{path: goModule + "@" + version + "/" + filepath.ToSlash(rel), content: content})
		return err
	})
	if err != nil {
		return nil, err
	}
	if !slices.ContainsFunc(sources, func(e entry) bool { return path.Base(e.path) == "go.sum" }) {
		return nil, errors.New("the module has no go.sum")
	}
	archive, err := zipped(sources, r.created)
	if err != nil {
		return nil, err
	}
	info, err := json.Marshal(map[string]string{"Version": version, "Time": r.created.Format(time.RFC3339)})
	if err != nil {
		return nil, err
	}
	at := goModule + "/@v/"
	return []entry{
		{path: at + "list", content: []byte(version + "\n")},
		{path: at + version + ".info", content: info},
		{path: at + version + ".mod", content: mod},
		{path: at + version + ".zip", content: archive},
	}, nil
}

// zipped is an archive of files.
func zipped(files []entry, at time.Time) ([]byte, error) {
	var b bytes.Buffer
	z := zip.NewWriter(&b)
	for _, f := range files {
		w, err := z.CreateHeader(&zip.FileHeader{Name: f.path, Method: zip.Deflate, Modified: at})
		if err != nil {
			return nil, err
		}
		if _, err := w.Write(f.content); err != nil {
			return nil, err
		}
	}
	if err := z.Close(); err != nil {
		return nil, err
	}
	return b.Bytes(), nil
}
