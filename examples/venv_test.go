package examples

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// pythonEnv keeps Python from writing beside our sources.
var pythonEnv = []string{"PYTHONDONTWRITEBYTECODE=1", "PYTHONUNBUFFERED=1"}

// python is the interpreter of a virtual environment with our package, as pip
// installs it, and with what its tests need.
func python(t *testing.T) string {
	t.Helper()
	needs(t, "python3 python3-venv", "python3")
	path, err := virtualenv()
	if err != nil {
		t.Fatal(err)
	}
	return path
}

// virtualenv is in the user's cache, for the downloads take most of the time.
// One is made for each content of pyproject.toml and each Python; the package
// itself is installed each time.
var virtualenv = sync.OnceValues(func() (string, error) {
	ctx, cancel := context.WithTimeout(context.Background(), suiteLimit)
	defer cancel()
	project, err := os.ReadFile("python/pyproject.toml")
	if err != nil {
		return "", err
	}
	version, err := exec.CommandContext(ctx, "python3", "-VV").Output()
	if err != nil {
		return "", fmt.Errorf("ask for the version of Python: %w", err)
	}
	dir, unlock, err := cached(ctx, "python", append(project, version...))
	if err != nil {
		return "", err
	}
	defer unlock()
	sources, err := os.MkdirTemp("", "locksidecar-python-")
	if err != nil {
		return "", err
	}
	defer os.RemoveAll(sources)
	if err := os.CopyFS(sources, os.DirFS("python")); err != nil { // the build writes there
		return "", err
	}
	run := func(argv ...string) error {
		cmd := exec.CommandContext(ctx, argv[0], argv[1:]...)
		if out, err := cmd.CombinedOutput(); err != nil {
			return fmt.Errorf("make an environment for Python: %v: %w\n%s\n(apt-get install --no-install-recommends python3-venv may help)", argv, err, out)
		}
		return nil
	}
	interpreter := filepath.Join(dir, "bin", "python")
	done := filepath.Join(dir, "complete")
	if _, err := os.Stat(done); err != nil {
		if err := run("python3", "-m", "venv", "--clear", dir); err != nil {
			return "", err
		}
		if err := run(interpreter, "-m", "pip", "install", "-q", "--disable-pip-version-check", "setuptools>=77", "wheel", sources+"[dev]"); err != nil {
			return "", err
		}
		if err := os.WriteFile(done, nil, 0o600); err != nil {
			return "", err
		}
	}
	return interpreter, run(interpreter, "-m", "pip", "install", "-q", "--disable-pip-version-check",
		"--no-index", "--no-deps", "--no-build-isolation", "--force-reinstall", sources)
})

// cached is a directory in the user's cache for what is the same with the same key. It is this
// process's alone until unlock.
func cached(ctx context.Context, name string, key []byte) (dir string, unlock func(), err error) {
	cache, err := os.UserCacheDir()
	if err != nil { // there is no home
		cache = os.TempDir()
	}
	sum := sha256.Sum256(key)
	dir = filepath.Join(cache, "locksidecar-test", name+"-"+hex.EncodeToString(sum[:8]))
	if err := os.MkdirAll(filepath.Dir(dir), 0o700); err != nil {
		return "", nil, err
	}
	unlock, err = lockFile(ctx, dir+".lock")
	return dir, unlock, err
}

// lockFile waits until this process alone has the file. The kernel gives it
// back when the process ends, however it does.
func lockFile(ctx context.Context, path string) (unlock func(), err error) {
	f, err := os.OpenFile(path, os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return nil, err
	}
	for unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB) != nil {
		select {
		case <-time.After(50 * time.Millisecond):
		case <-ctx.Done():
			_ = f.Close()
			return nil, fmt.Errorf("wait for another test process: %w", ctx.Err())
		}
	}
	return func() { _ = f.Close() }, nil
}
