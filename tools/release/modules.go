package main

import (
	"bytes"
	"cmp"
	"context"
	"debug/buildinfo"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
)

// module is that of the sidecar.
const module = "github.com/locksidecar/locksidecar"

// dependency is a module that is in a program, or Go itself.
type dependency struct {
	path, version string
	licenses      []string          // SPDX identifiers, sorted
	texts         map[string]string // licences and notices, by their paths in the module
}

// modules are those in a binary, with the licences that the packages in use stand under.
func (r *release) modules(ctx context.Context, binary, arch string) ([]dependency, error) {
	info, err := buildinfo.ReadFile(binary)
	if err != nil {
		return nil, err
	}
	folders, err := r.folders(ctx, arch)
	if err != nil {
		return nil, err
	}
	goRoot, err := r.output(ctx, r.root, "go", "env", "GOROOT")
	if err != nil {
		return nil, err
	}
	std := dependency{path: "std", version: strings.TrimPrefix(info.GoVersion, "go"), texts: map[string]string{}}
	if err := std.read(strings.TrimSpace(string(goRoot)), "."); err != nil {
		return nil, err
	}
	all := []dependency{std}
	for _, m := range info.Deps {
		if m.Replace != nil {
			return nil, fmt.Errorf("%s is replaced: a release is built from what its modules say", m.Path)
		}
		d := dependency{path: m.Path, version: m.Version, texts: map[string]string{}}
		used := folders[m.Path]
		for _, folder := range used.packages {
			if err := d.read(used.root, folder); err != nil {
				return nil, err
			}
		}
		if len(d.texts) == 0 {
			return nil, fmt.Errorf("found no licence of %s", m.Path)
		}
		all = append(all, d)
	}
	for i := range all {
		if all[i].licenses, err = all[i].spdx(); err != nil {
			return nil, err
		}
	}
	return all, nil
}

// folder is where a module is, and which of its packages are in use.
type folder struct {
	root     string
	packages []string // relative to root
}

// folders finds the sources of what the program imports.
func (r *release) folders(ctx context.Context, arch string) (map[string]folder, error) {
	cmd := r.prepare(ctx, r.root, "go", "list", "-deps", "-tags", "grpcnotrace", "-json=Dir,Module", "./cmd/locksidecar")
	cmd.Env = append(cmd.Env, "GOOS=linux", "GOARCH="+arch, "CGO_ENABLED=0")
	out, err := cmd.Output()
	if err != nil {
		return nil, fmt.Errorf("list packages: %w", err)
	}
	found := map[string]folder{}
	for d := json.NewDecoder(bytes.NewReader(out)); ; {
		var p struct {
			Dir    string
			Module *struct{ Path, Dir string }
		}
		if err := d.Decode(&p); errors.Is(err, io.EOF) {
			return found, nil
		} else if err != nil {
			return nil, fmt.Errorf("read the list of packages: %w", err)
		}
		if p.Module == nil {
			continue
		}
		rel, err := filepath.Rel(p.Module.Dir, p.Dir)
		if err != nil {
			return nil, err
		}
		f := found[p.Module.Path]
		f.root, f.packages = p.Module.Dir, append(f.packages, rel)
		found[p.Module.Path] = f
	}
}

var legal = regexp.MustCompile(`(?i)^(licen[cs]e|copying|notice)([.-].*)?$`)

// read adds the licences and notices that hold for a package: those of its folder, and of all
// above it in the module.
func (d *dependency) read(root, folder string) error {
	for {
		files, err := os.ReadDir(filepath.Join(root, folder))
		if err != nil {
			return err
		}
		for _, f := range files {
			if !f.Type().IsRegular() || !legal.MatchString(f.Name()) || strings.HasSuffix(f.Name(), ".go") {
				continue
			}
			text, err := os.ReadFile(filepath.Join(root, folder, f.Name()))
			if err != nil {
				return err
			}
			d.texts[filepath.Join(folder, f.Name())] = string(text)
		}
		if folder == "." {
			return nil
		}
		folder = filepath.Dir(folder)
	}
}

// identify tells licences by their own words. A text may hold more than one.
func identify(text string) []string {
	text = strings.Join(strings.Fields(text), " ")
	has := func(words string) bool { return strings.Contains(text, words) }
	var ids []string
	if has("Apache License") {
		ids = append(ids, "Apache-2.0")
	}
	if has("Redistribution and use in source and binary forms") {
		if has("Neither the name") || has("may not be used to endorse") {
			ids = append(ids, "BSD-3-Clause")
		} else {
			ids = append(ids, "BSD-2-Clause")
		}
	}
	if has("Permission to use, copy, modify, and") {
		ids = append(ids, "ISC")
	}
	if has("Permission is hereby granted, free of charge") {
		ids = append(ids, "MIT")
	}
	if has("Mozilla Public License, version 2.0") || has("Mozilla Public License Version 2.0") {
		ids = append(ids, "MPL-2.0")
	}
	return ids
}

// spdx says which licences the texts are. A text that nobody knows is an error: somebody has to read it.
func (d *dependency) spdx() ([]string, error) {
	ids := map[string]bool{}
	for name, text := range d.texts {
		if strings.HasPrefix(strings.ToLower(filepath.Base(name)), "notice") {
			continue
		}
		found := identify(text)
		if len(found) == 0 {
			return nil, fmt.Errorf("%s: nobody knows the licence in %s", d.path, name)
		}
		for _, id := range found {
			ids[id] = true
		}
	}
	return slices.Sorted(maps.Keys(ids)), nil
}

// notices has the texts of all licences, each once.
func notices(used []dependency) []byte {
	names := map[string][]string{} // of modules, by text
	for _, d := range used {
		for _, text := range d.texts {
			if !slices.Contains(names[text], d.path) {
				names[text] = append(names[text], d.path)
			}
		}
	}
	texts := slices.SortedFunc(maps.Keys(names), func(a, b string) int {
		return cmp.Or(cmp.Compare(names[a][0], names[b][0]), cmp.Compare(a, b))
	})
	var b strings.Builder
	b.WriteString("locksidecar contains these modules of Go, each under the licence that follows its name.\n" +
		"The module std is Go's standard library.\n")
	for _, text := range texts {
		fmt.Fprintf(&b, "\n%s\n%s\n\n%s\n", strings.Repeat("-", 80), strings.Join(names[text], "\n"), strings.TrimSpace(text))
	}
	return []byte(b.String())
}
