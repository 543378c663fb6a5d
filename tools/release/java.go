package main

import (
	"archive/zip"
	"bytes"
	"context"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
)

// java makes the bundle that Maven Central takes: a repository with what Maven deploys.
func (r *release) java(ctx context.Context) error {
	dir, err := r.staged(ctx, "examples/java")
	if err != nil {
		return err
	}
	if _, err := r.staged(ctx, "api"); err != nil { // the proto files, from which a client may be made
		return err
	}
	if err := r.finalPoms(dir); err != nil {
		return err
	}
	repository := filepath.Join(r.stage, "maven")
	err = r.command(ctx, dir, "mvn", "--batch-mode", "--no-transfer-progress", "--quiet", "-Prelease", "-DskipTests",
		fmt.Sprintf("-Dproject.build.outputTimestamp=%d", r.created.Unix()),
		"-DaltDeploymentRepository=dist::file://"+repository, "deploy")
	if err != nil {
		return err
	}
	bundle, err := r.bundle(ctx, repository)
	if err == nil {
		err = checkBundle(bundle, r.signKey != "")
	}
	if err != nil {
		return err
	}
	return write(r.file("locksidecar-maven-%s.zip", r.version), bundle, 0o644)
}

// finalPoms makes release versions of the snapshots in the poms, and gives each module the licence for its jar.
func (r *release) finalPoms(dir string) error {
	poms, err := filepath.Glob(filepath.Join(dir, "*", "pom.xml"))
	if err != nil {
		return err
	}
	for _, pom := range append(poms, filepath.Join(dir, "pom.xml")) {
		text, err := os.ReadFile(pom)
		if err != nil {
			return err
		}
		text = snapshot.ReplaceAll(text, []byte("<version>$1</version>"))
		if err := write(pom, text, 0o644); err != nil {
			return err
		}
		module := filepath.Dir(pom)
		if _, err := os.Stat(filepath.Join(module, "src", "main", "java")); err != nil {
			continue
		}
		if err := r.license(filepath.Join(module, "src", "main", "resources", "META-INF", "LICENSE")); err != nil {
			return err
		}
	}
	return nil
}

// bundle packs a repository of files as Central wants it: without Maven's lists of versions, and
// with signatures where there is a key.
func (r *release) bundle(ctx context.Context, repository string) ([]byte, error) {
	var files []string
	err := filepath.WalkDir(repository, func(name string, d fs.DirEntry, err error) error {
		if err == nil && d.Type().IsRegular() && !strings.HasPrefix(d.Name(), "maven-metadata") {
			files = append(files, name)
		}
		return err
	})
	if err != nil {
		return nil, err
	}
	if r.signKey != "" {
		if files, err = r.sign(ctx, files); err != nil {
			return nil, err
		}
	}
	var packed []entry
	for _, name := range files {
		rel, err := filepath.Rel(repository, name)
		if err != nil {
			return nil, err
		}
		content, err := os.ReadFile(name)
		if err != nil {
			return nil, err
		}
		packed = append(packed, entry{path: filepath.ToSlash(rel), content: content})
	}
	return zipped(packed, r.created)
}

// checkBundle says what Maven Central would refuse.
func checkBundle(bundle []byte, signed bool) error {
	z, err := zip.NewReader(bytes.NewReader(bundle), int64(len(bundle)))
	if err != nil {
		return err
	}
	return checkCentral(z, signed)
}

// sign adds a signature beside each file that is not a checksum.
func (r *release) sign(ctx context.Context, files []string) ([]string, error) {
	all := files
	for _, name := range files {
		switch filepath.Ext(name) {
		case ".md5", ".sha1", ".sha256", ".sha512":
			continue
		}
		if err := r.detach(ctx, name); err != nil {
			return nil, err
		}
		all = append(all, name+".asc")
	}
	return all, nil
}
