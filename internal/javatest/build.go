package javatest

import (
	"context"
	"crypto/sha256"
	"embed"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

const (
	buildTimeout = 5 * time.Minute // of a machine that has to download everything
	lockEvery    = 50 * time.Millisecond
	javaRelease  = "17"
)

//go:embed pom.xml src
var sources embed.FS

// errNoTools tells a person what to do.
var errNoTools = errors.New("the tests with Java programs need mvn, java and javac of version " + javaRelease +
	" or newer in PATH: apt-get install --no-install-recommends maven default-jdk-headless")

// built is the folder with the classes and their libraries.
var built = sync.OnceValues(func() (string, error) {
	ctx, cancel := context.WithTimeout(context.Background(), buildTimeout)
	defer cancel()
	return build(ctx, cacheDir())
})

// cacheDir survives the tests: to download the libraries takes most of the time.
func cacheDir() string {
	dir, err := os.UserCacheDir()
	if err != nil { // there is no home
		dir = os.TempDir()
	}
	return filepath.Join(dir, "locksidecar", "javatest")
}

// build returns the folder of what these sources become. It is named after
// their content and appears only when it is complete.
func build(ctx context.Context, cache string) (string, error) {
	for _, tool := range []string{"mvn", "java", "javac"} {
		if _, err := exec.LookPath(tool); err != nil {
			return "", fmt.Errorf("%w (%w)", errNoTools, err)
		}
	}
	name, err := digest()
	if err != nil {
		return "", err
	}
	dir := filepath.Join(cache, name)
	if isDir(dir) {
		return dir, nil
	}
	if err := os.MkdirAll(cache, 0o700); err != nil {
		return "", fmt.Errorf("make the cache folder: %w", err)
	}
	unlock, err := lockFile(ctx, filepath.Join(cache, "lock"))
	if err != nil {
		return "", err
	}
	defer unlock()
	if isDir(dir) { // by another test process meanwhile
		return dir, nil
	}
	work, err := os.MkdirTemp(cache, "build-")
	if err != nil {
		return "", fmt.Errorf("make a folder: %w", err)
	}
	defer os.RemoveAll(work)
	if err := compile(ctx, work); err != nil {
		return "", err
	}
	if err := os.Rename(work, dir); err != nil {
		return "", fmt.Errorf("put the programs in place: %w", err)
	}
	return dir, nil
}

func isDir(path string) bool {
	st, err := os.Stat(path)
	return err == nil && st.IsDir()
}

// digest names the content of the sources.
func digest() (string, error) {
	h := sha256.New()
	err := fs.WalkDir(sources, ".", func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		b, err := sources.ReadFile(path)
		fmt.Fprintf(h, "%s %d\n%s", path, len(b), b)
		return err
	})
	if err != nil {
		return "", fmt.Errorf("read the Java sources: %w", err)
	}
	return hex.EncodeToString(h.Sum(nil))[:16], nil
}

// compile fills a folder with lib, the libraries, and classes.
func compile(ctx context.Context, dir string) error {
	if err := os.CopyFS(filepath.Join(dir, "project"), sources); err != nil {
		return fmt.Errorf("write the Java sources: %w", err)
	}
	lib, classes := filepath.Join(dir, "lib"), filepath.Join(dir, "classes")
	maven := func(more ...string) error {
		return run(ctx, dir, "mvn", append([]string{
			"--quiet", "--batch-mode", "--file", filepath.Join(dir, "project", "pom.xml"), "-DoutputDirectory=" + lib,
			"org.apache.maven.plugins:maven-dependency-plugin:copy-dependencies"}, more...)...)
	}
	// Maven remembers that a download failed and does not try it again by itself.
	if err := maven(); err != nil && ctx.Err() == nil {
		if err := maven("--update-snapshots"); err != nil {
			return err
		}
	}
	java, err := filepath.Glob(filepath.Join(dir, "project", "src", "main", "java", "*", "*", "*", "*.java"))
	if err != nil {
		return fmt.Errorf("find the Java sources: %w", err)
	}
	return run(ctx, dir, "javac", append([]string{
		"--release", javaRelease, "-Xlint:all,-classfile,-processing", "-Werror", "-encoding", "UTF-8", "-proc:none",
		"-cp", filepath.Join(lib, "*"), "-d", classes}, java...)...)
}

func run(ctx context.Context, dir, program string, args ...string) error {
	cmd := exec.CommandContext(ctx, program, args...)
	cmd.Dir = dir
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("run %s to build the Java programs: %w\n%s", program, err, out)
	}
	return nil
}

// lockFile waits until this process alone has the file. The kernel gives it
// back when the process ends, however it does.
func lockFile(ctx context.Context, path string) (unlock func(), err error) {
	f, err := os.OpenFile(path, os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return nil, fmt.Errorf("open the lock of the cache: %w", err)
	}
	for {
		err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB)
		if err == nil {
			return func() { _ = f.Close() }, nil
		}
		if !errors.Is(err, unix.EWOULDBLOCK) && !errors.Is(err, unix.EINTR) {
			return nil, errors.Join(fmt.Errorf("lock the cache: %w", err), f.Close())
		}
		select {
		case <-time.After(lockEvery):
		case <-ctx.Done():
			return nil, errors.Join(fmt.Errorf("wait for another build of the Java programs: %w", ctx.Err()), f.Close())
		}
	}
}
