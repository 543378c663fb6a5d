// Package pyenv has a Python with packages from PyPI, kept in the user's cache.
package pyenv

import (
	"context"
	"crypto/sha256"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
)

// Interpreter is a Python with the packages of a file of requirements.
func Interpreter(ctx context.Context, requirements string) (string, error) {
	text, err := os.ReadFile(requirements)
	if err != nil {
		return "", err
	}
	version, err := exec.CommandContext(ctx, "python3", "-VV").Output()
	if err != nil {
		return "", fmt.Errorf("ask for the version of Python: %w", err)
	}
	cache, err := os.UserCacheDir()
	if err != nil { // there is no home
		cache = os.TempDir()
	}
	sum := sha256.Sum256(append(text, version...))
	dir := filepath.Join(cache, "locksidecar-release", fmt.Sprintf("python-%x", sum[:8]))
	python := filepath.Join(dir, "bin", "python")
	done := filepath.Join(dir, "complete")
	if _, err := os.Stat(done); err == nil {
		return python, nil
	}
	for _, argv := range [][]string{
		{"python3", "-m", "venv", "--clear", dir},
		{python, "-m", "pip", "install", "-q", "--disable-pip-version-check", "-r", requirements},
	} {
		if out, err := exec.CommandContext(ctx, argv[0], argv[1:]...).CombinedOutput(); err != nil {
			return "", fmt.Errorf("make an environment for Python: %v: %w\n%s", argv, err, out)
		}
	}
	return python, os.WriteFile(done, nil, 0o600)
}
