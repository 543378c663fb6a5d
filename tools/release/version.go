package main

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
)

// versionFile has the version of all parts. Everything else is a copy of it.
const versionFile = "VERSION"

// copies are where tools and readers want the version again.
var copies = []struct {
	files string // a pattern of paths in the repository
	where *regexp.Regexp
}{
	{files: "examples/python/pyproject.toml", where: regexp.MustCompile(`(?m)^version = "([^"]*)"$`)},
	{files: "examples/node/package.json", where: regexp.MustCompile(`(?m)^  "version": "([^"]*)",$`)},
	{files: "examples/java/pom.xml", where: snapshot},
	{files: "examples/java/*/pom.xml", where: snapshot},
	{files: "examples/rust/Cargo.toml", where: regexp.MustCompile(`(?m)\A(?s:.*?)^version = "([^"]*)"$`)},
	{files: "deploy/helm/locksidecar/Chart.yaml", where: regexp.MustCompile(`(?m)^(?:version|appVersion): (\S*)$`)},
	{files: "deploy/helm/examples/app/Chart.yaml", where: regexp.MustCompile(`(?m)^ +version: (\S*)$`)},
	{files: "deploy/gitops/argocd.yaml", where: regexp.MustCompile(`(?m)^ +targetRevision: v(\S*)$`)},
	{files: "deploy/gitops/flux.yaml", where: regexp.MustCompile(`(?m)^ +tag: v(\S*)$`)},
	{files: "docs/kubernetes.md", where: regexp.MustCompile(`\{name: locksidecar, version: ([^,]*),`)},
	{files: "docs/kubernetes.md", where: regexp.MustCompile(`(?m)\?ref=v(\S*)$`)},
	{files: "docs/kubernetes.md", where: regexp.MustCompile("profile default, chart ([^`]*)`")},
	{files: "docs/operations.md", where: regexp.MustCompile(`/locksidecar_(\d[^_]*)_amd64\.deb`)},
	{files: "docs/quickstart.md", where: snapshot},
	{files: "docs/stability.md", where: regexp.MustCompile(`(?m)^The version of all parts is (\S*)\. `)},
}

// snapshot is a version of ours in the language of Maven: what is built from the sources is
// no release.
var snapshot = regexp.MustCompile(`<version>([^<>$]*)-SNAPSHOT</version>`)

// semantic is a version as all registries take it.
var semantic = regexp.MustCompile(`^(0|[1-9]\d*)\.(0|[1-9]\d*)\.(0|[1-9]\d*)$`)

func readVersion(root string) (string, error) {
	text, err := os.ReadFile(filepath.Join(root, versionFile))
	if err != nil {
		return "", err
	}
	v := strings.TrimSuffix(string(text), "\n")
	if !semantic.MatchString(v) {
		return "", fmt.Errorf("%s has %q: must be like 1.2.3", versionFile, v)
	}
	return v, nil
}

// eachCopy calls f for each copy of the version, and writes the version that f returns in its place.
func eachCopy(root string, f func(path, version string) string) error {
	for _, c := range copies {
		files, err := filepath.Glob(filepath.Join(root, c.files))
		if err != nil {
			return err
		}
		if len(files) == 0 {
			return fmt.Errorf("there is no %s", c.files)
		}
		for _, file := range files {
			text, err := os.ReadFile(file)
			if err != nil {
				return err
			}
			path, err := filepath.Rel(root, file)
			if err != nil {
				return err
			}
			places := c.where.FindAllSubmatchIndex(text, -1)
			if len(places) == 0 {
				return fmt.Errorf("%s: no version found by %s", path, c.where)
			}
			var b strings.Builder
			last := 0
			for _, at := range places {
				b.Write(text[last:at[2]])
				b.WriteString(f(path, string(text[at[2]:at[3]])))
				last = at[3]
			}
			b.Write(text[last:])
			if b.String() == string(text) {
				continue
			}
			if err := os.WriteFile(file, []byte(b.String()), 0o644); err != nil { //nolint:gosec // sources, for everybody to read
				return err
			}
		}
	}
	return nil
}

func setVersion(root, version string) error {
	if !semantic.MatchString(version) {
		return fmt.Errorf("version %q: must be like 1.2.3", version)
	}
	if err := os.WriteFile(filepath.Join(root, versionFile), []byte(version+"\n"), 0o644); err != nil { //nolint:gosec // for everybody to read
		return err
	}
	return eachCopy(root, func(string, string) string { return version })
}
