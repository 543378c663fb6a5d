package main

import (
	"archive/tar"
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
)

// image copies the archive that `make image` has made, and says the digest that the image has in
// each registry it is pushed to.
func (r *release) image(context.Context) error {
	archive, err := os.ReadFile(filepath.Join(r.root, "bin", "image.tar"))
	if err != nil {
		return err
	}
	digest, err := imageDigest(archive)
	if err != nil {
		return fmt.Errorf("read the image: %w", err)
	}
	if err := write(r.file("locksidecar_%s_image.digest", r.version), []byte(digest+"\n"), 0o644); err != nil {
		return err
	}
	return write(r.file("locksidecar_%s_image.tar", r.version), archive, 0o644)
}

// imageDigest is that of the one image or index in an archive.
func imageDigest(archive []byte) (string, error) {
	var index struct {
		Manifests []struct {
			Digest string `json:"digest"`
		} `json:"manifests"`
	}
	for t := tar.NewReader(bytes.NewReader(archive)); ; {
		h, err := t.Next()
		if err != nil {
			return "", fmt.Errorf("find index.json: %w", err)
		}
		if h.Name != "index.json" {
			continue
		}
		if err := json.NewDecoder(t).Decode(&index); err != nil {
			return "", fmt.Errorf("read index.json: %w", err)
		}
		if len(index.Manifests) != 1 {
			return "", fmt.Errorf("%d images in index.json, not one", len(index.Manifests))
		}
		return index.Manifests[0].Digest, nil
	}
}

// chart packs the chart. Helm's own code does it, which is a library of tools/helm.
func (r *release) chart(ctx context.Context) error {
	dir, err := r.staged(ctx, "deploy/helm/locksidecar")
	if err != nil {
		return err
	}
	if err := r.license(filepath.Join(dir, "LICENSE")); err != nil {
		return err
	}
	packed, given := filepath.Join(r.stage, "chart"), r.file("locksidecar-chart-%s.tgz", r.version)
	if err := os.RemoveAll(given + ".prov"); err != nil { // of an earlier run
		return err
	}
	if err := r.command(ctx, filepath.Join(r.root, "tools", "helm"), "go", "run", "./pack", "-changes", filepath.Join(r.root, "CHANGELOG.md"), "-sign", r.signKey, "-as", filepath.Base(given), dir, packed); err != nil {
		return err
	}
	if r.signKey != "" {
		if err := r.take(filepath.Join(packed, "*.prov"), given+".prov"); err != nil {
			return err
		}
	}
	return r.take(filepath.Join(packed, "*.tgz"), given)
}

// api is what other languages make stubs of, and the description of the HTTP form.
func (r *release) api(ctx context.Context) error {
	if err := r.command(ctx, r.root, "scripts/proto.sh", "descriptors", r.file("locksidecar_%s_api.binpb", r.version)); err != nil {
		return err
	}
	text, err := os.ReadFile(filepath.Join(r.root, "api", "locksidecar", "v1", "openapi.json"))
	if err != nil {
		return err
	}
	return write(r.file("locksidecar_%s_openapi.json", r.version), text, 0o644)
}

// take moves the one file that a pattern matches.
func (*release) take(pattern, to string) error {
	found, err := filepath.Glob(pattern)
	if err != nil {
		return err
	}
	if len(found) != 1 {
		return fmt.Errorf("%d files %s, not one", len(found), pattern)
	}
	content, err := os.ReadFile(found[0])
	if err != nil {
		return err
	}
	return write(to, content, 0o644)
}
