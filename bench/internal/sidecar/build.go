// Package sidecar runs the product as its users do: the real binary, as a
// process of its own, and everything through its socket.
package sidecar

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
)

const module = "github.com/locksidecar/locksidecar"

// Binary is a built sidecar.
type Binary struct {
	path    string
	Version string // what it says of itself
}

// Build builds the sidecar of this tree into dir, with the versions of its own go.mod and not with
// those of the benchmark.
func Build(ctx context.Context, dir string) (*Binary, error) {
	root, err := output(ctx, "", "go", "list", "-m", "-f", "{{.Dir}}", module)
	if err != nil {
		return nil, err
	}
	path := filepath.Join(dir, "locksidecar")
	if err := build(ctx, root, path); err != nil {
		return nil, err
	}
	version, err := output(ctx, "", path, "version")
	if err != nil {
		return nil, err
	}
	version, _, _ = strings.Cut(version, "\n")
	return &Binary{path: path, Version: strings.TrimPrefix(version, "locksidecar ")}, nil
}

// BuildCommit builds the sidecar of another commit of this repository in the same way.
func BuildCommit(ctx context.Context, dir, commit string) (*Binary, error) {
	root, err := output(ctx, "", "git", "rev-parse", "--show-toplevel")
	if err != nil {
		return nil, err
	}
	tree := filepath.Join(dir, "base")
	if err := os.Mkdir(tree, 0o700); err != nil {
		return nil, fmt.Errorf("make a folder: %w", err)
	}
	archive := filepath.Join(dir, "base.tar")
	if _, err := output(ctx, root, "git", "archive", "-o", archive, commit); err != nil {
		return nil, err
	}
	if _, err := output(ctx, tree, "tar", "-xf", archive); err != nil {
		return nil, err
	}
	path := filepath.Join(dir, "locksidecar-base")
	if err := build(ctx, tree, path); err != nil {
		return nil, err
	}
	return &Binary{path: path, Version: commit}, nil
}

// build copies what `make build` makes of a tree to path. Each tree is built by its own Makefile:
// with the flags of this one, another commit would be measured as none of its users had it.
func build(ctx context.Context, tree, path string) error {
	if _, err := output(ctx, tree, "make", "build"); err != nil {
		return err
	}
	_, err := output(ctx, tree, "cp", "bin/locksidecar", path)
	return err
}

// output runs a program in a folder and returns what it printed.
func output(ctx context.Context, dir, program string, args ...string) (string, error) {
	cmd := exec.CommandContext(ctx, program, args...)
	cmd.Dir = dir
	out, err := cmd.Output()
	var exit *exec.ExitError
	if errors.As(err, &exit) {
		return "", fmt.Errorf("run %s: %w\n%s", cmd, err, exit.Stderr)
	}
	if err != nil {
		return "", fmt.Errorf("run %s: %w", cmd, err)
	}
	return strings.TrimSpace(string(out)), nil
}
