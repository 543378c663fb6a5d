package main

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"regexp"

	"github.com/locksidecar/locksidecar/tools/release/pyenv"
)

// python makes the wheel and the source archive.
func (r *release) python(ctx context.Context) error {
	dir, err := r.staged(ctx, "examples/python")
	if err != nil {
		return err
	}
	if err := r.license(filepath.Join(dir, "LICENSE")); err != nil {
		return err
	}
	python, err := pyenv.Interpreter(ctx, filepath.Join(r.root, "tools", "release", "requirements.txt"))
	if err != nil {
		return err
	}
	packed := filepath.Join(r.stage, "python")
	if err := r.command(ctx, dir, python, "-m", "build", "--quiet", "--no-isolation", "--outdir", packed, dir); err != nil {
		return err
	}
	wheel := fmt.Sprintf("locksidecar-%s-py3-none-any.whl", r.version)
	if err := r.take(filepath.Join(packed, "*.whl"), r.file("%s", wheel)); err != nil {
		return err
	}
	return r.take(filepath.Join(packed, "*.tar.gz"), r.file("locksidecar-%s.tar.gz", r.version))
}

// node makes the archive for npm.
func (r *release) node(ctx context.Context) error {
	dir, err := r.staged(ctx, "examples/node")
	if err != nil {
		return err
	}
	if err := r.license(filepath.Join(dir, "LICENSE")); err != nil {
		return err
	}
	packed := filepath.Join(r.stage, "npm")
	if err := os.Mkdir(packed, 0o755); err != nil {
		return err
	}
	if err := r.command(ctx, dir, "npm", "pack", "--silent", "--pack-destination", packed); err != nil {
		return err
	}
	return r.take(filepath.Join(packed, "*.tgz"), r.file("locksidecar-npm-%s.tgz", r.version))
}

var cargoIncludes = regexp.MustCompile(`(?m)^include = \[`)

// rust makes the crate. Cargo builds what it has packed.
func (r *release) rust(ctx context.Context) error {
	dir, err := r.staged(ctx, "examples/rust")
	if err != nil {
		return err
	}
	if err := r.license(filepath.Join(dir, "LICENSE")); err != nil {
		return err
	}
	// A list of what is packed names what is in the folder; the licence is added here.
	manifest := filepath.Join(dir, "Cargo.toml")
	text, err := os.ReadFile(manifest)
	if err != nil {
		return err
	}
	text = cargoIncludes.ReplaceAll(text, []byte(`include = ["LICENSE", `))
	if err := write(manifest, text, 0o644); err != nil {
		return err
	}
	packed := filepath.Join(r.stage, "crate")
	if err := r.command(ctx, dir, "cargo", "package", "--quiet", "--target-dir", packed); err != nil {
		return err
	}
	return r.take(filepath.Join(packed, "package", "*.crate"), r.file("locksidecar-%s.crate", r.version))
}
