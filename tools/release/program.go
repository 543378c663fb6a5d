package main

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"context"
	"debug/buildinfo"
	"fmt"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"runtime"
	"strings"
	"time"
)

// archs are the processors that programs and packages are made for.
var archs = []string{"amd64", "arm64"}

// completions are the shells that the program knows, and how each wants its file named.
var completions = []struct{ shell, file string }{{"bash", "locksidecar"}, {"fish", "locksidecar.fish"}, {"zsh", "_locksidecar"}}

// entry is a file in an archive, or a folder where its path ends with a slash.
type entry struct {
	path    string
	mode    fs.FileMode
	content []byte
}

// binary is what `make image` has built for a processor.
func (r *release) binary(arch string) (string, error) {
	name := filepath.Join(r.root, "bin", "linux-"+arch, "locksidecar")
	info, err := buildinfo.ReadFile(name)
	if err != nil {
		return "", fmt.Errorf("%w: `make release` builds it", err)
	}
	if info.Main.Path != module {
		return "", fmt.Errorf("%s is built from %s", name, info.Main.Path)
	}
	return name, nil
}

// program packs the program, and writes what it consists of.
func (r *release) program(ctx context.Context) error {
	pages, err := r.pages(ctx)
	if err != nil {
		return err
	}
	license, err := os.ReadFile(filepath.Join(r.root, "LICENSE"))
	if err != nil {
		return err
	}
	readme, err := os.ReadFile(filepath.Join(r.root, "README.md"))
	if err != nil {
		return err
	}
	for _, arch := range archs {
		binary, err := r.binary(arch)
		if err != nil {
			return err
		}
		program, err := os.ReadFile(binary)
		if err != nil {
			return err
		}
		used, err := r.modules(ctx, binary, arch)
		if err != nil {
			return err
		}
		name := fmt.Sprintf("locksidecar_%s_linux_%s", r.version, arch)
		bill, err := r.bill(binary, name, used)
		if err != nil {
			return err
		}
		if err := write(r.file("%s.cdx.json", name), bill, 0o644); err != nil {
			return err
		}
		files := append([]entry{
			{path: "locksidecar", mode: 0o755, content: program},
			{path: "LICENSE", mode: 0o644, content: license},
			{path: "THIRD_PARTY_LICENSES", mode: 0o644, content: notices(used)},
			{path: "README.md", mode: 0o644, content: []byte(outside(string(readme), ".", "v"+r.version, r.isDir))},
		}, pages...)
		for i := range files {
			files[i].path = path.Join(name, files[i].path)
		}
		archive, err := tarball(files, r.created)
		if err != nil {
			return err
		}
		if err := write(r.file("%s.tar.gz", name), archive, 0o644); err != nil {
			return err
		}
	}
	return nil
}

// pages are the manual and the completions of shells, as the program itself writes them.
func (r *release) pages(ctx context.Context) ([]entry, error) {
	program, err := r.binary(runtime.GOARCH)
	if err != nil {
		return nil, err
	}
	var files []entry
	add := func(to string, args ...string) error {
		text, err := r.output(ctx, r.stage, append([]string{program}, args...)...)
		files = append(files, entry{path: to, mode: 0o644, content: text})
		return err
	}
	list := r.prepare(ctx, r.stage, program, "__completeNoDesc", "man", "")
	list.Stderr = nil // there it says how a shell must go on
	commands, err := list.Output()
	if err != nil {
		return nil, fmt.Errorf("ask for the commands: %w", err)
	}
	if err := add("man/locksidecar.1", "man"); err != nil {
		return nil, err
	}
	for line := range strings.Lines(string(commands)) {
		name := strings.TrimSuffix(line, "\n")
		if strings.HasPrefix(name, ":") { // what follows is for shells
			break
		}
		if err := add("man/locksidecar-"+name+".1", "man", name); err != nil {
			return nil, err
		}
	}
	for _, c := range completions {
		if err := add(path.Join("completions", c.shell, c.file), "completion", c.shell); err != nil {
			return nil, err
		}
	}
	return files, nil
}

// tarball is a compressed archive of files, which belong to root.
func tarball(files []entry, at time.Time) ([]byte, error) {
	var b bytes.Buffer
	z := gzip.NewWriter(&b)
	t := tar.NewWriter(z)
	for _, f := range files {
		h := &tar.Header{
			Name: f.path, Typeflag: tar.TypeReg, Mode: int64(f.mode), Size: int64(len(f.content)),
			ModTime: at, Uname: "root", Gname: "root", Format: tar.FormatUSTAR,
		}
		if strings.HasSuffix(f.path, "/") {
			h.Typeflag = tar.TypeDir
		}
		if err := t.WriteHeader(h); err != nil {
			return nil, fmt.Errorf("pack %s: %w", f.path, err)
		}
		if _, err := t.Write(f.content); err != nil {
			return nil, fmt.Errorf("pack %s: %w", f.path, err)
		}
	}
	if err := t.Close(); err != nil {
		return nil, err
	}
	if err := z.Close(); err != nil {
		return nil, err
	}
	return b.Bytes(), nil
}
