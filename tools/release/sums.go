package main

import (
	"context"
	"crypto/sha256"
	"fmt"
	"os"
	"path/filepath"
	"strings"
)

const sumsFile = "SHA256SUMS"

// sums writes the checksums of all that is in dist/, as sha256sum -c reads them. With a key it
// signs them, and so whatever they list.
func (r *release) sums(ctx context.Context) error {
	signature := r.file(sumsFile + ".asc")
	if err := os.RemoveAll(signature); err != nil { // of an earlier run
		return err
	}
	files, err := os.ReadDir(r.out)
	if err != nil {
		return err
	}
	var b strings.Builder
	for _, f := range files {
		if f.Name() == sumsFile {
			continue
		}
		sum, err := fileSum(filepath.Join(r.out, f.Name()))
		if err != nil {
			return err
		}
		fmt.Fprintf(&b, "%s  %s\n", sum, f.Name())
	}
	if err := write(r.file(sumsFile), []byte(b.String()), 0o644); err != nil || r.signKey == "" {
		return err
	}
	return r.detach(ctx, r.file(sumsFile))
}

// detach signs a file; the signature is a file beside it.
func (r *release) detach(ctx context.Context, name string) error {
	return r.command(ctx, r.stage, "gpg", "--batch", "--yes", "--armor", "--local-user", r.signKey, "--detach-sign", name)
}

func fileSum(name string) (string, error) {
	content, err := os.ReadFile(name)
	if err != nil {
		return "", err
	}
	return fmt.Sprintf("%x", sha256.Sum256(content)), nil
}
