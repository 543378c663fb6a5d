package main

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
)

// image copies the archive that `make image` has made.
func (r *release) image(context.Context) error {
	archive, err := os.ReadFile(filepath.Join(r.root, "bin", "image.tar"))
	if err != nil {
		return err
	}
	return write(r.file("locksidecar_%s_image.tar", r.version), archive, 0o644)
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
	packed := filepath.Join(r.stage, "chart")
	if err := r.command(ctx, filepath.Join(r.root, "tools", "helm"), "go", "run", "./pack", dir, packed); err != nil {
		return err
	}
	return r.take(filepath.Join(packed, "*.tgz"), r.file("locksidecar-chart-%s.tgz", r.version))
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
