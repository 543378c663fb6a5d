package examples

import (
	"bytes"
	"context"
	"errors"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/locksidecar/locksidecar/internal/testengine"
)

// suiteLimit is for one suite, on a busy machine that downloads its tools.
const suiteLimit = 5 * time.Minute

// stores tells the suites what they need: the program, with which they start
// sidecars of their own, and servers that they share.
func stores(t *testing.T) []string {
	t.Helper()
	long(t)
	return environment(
		"LOCKSIDECAR_BINARY="+binary,
		"LOCKSIDECAR_TEST_REDIS="+redisURL(t),
		"LOCKSIDECAR_TEST_MYSQL="+testengine.Shared(t, testengine.MySQL).URL(),
	)
}

// long leaves the test out where only short ones are wanted.
func long(t *testing.T) {
	t.Helper()
	if testing.Short() {
		t.Skip("not in short mode: it needs the tools of other languages")
	}
}

// needs fails the test where programs are missing.
func needs(t *testing.T, install string, programs ...string) {
	t.Helper()
	for _, p := range programs {
		if _, err := exec.LookPath(p); err != nil {
			t.Fatalf("%v: to install it: apt-get install --no-install-recommends %s", err, install)
		}
	}
}

// suite runs a program to its end and gives what it printed, without its errors: they are logged, so that none
// stands in the middle of a line of a report. What it has left behind, such as sidecars, is ended. ok is false when its
// status is not 0.
func suite(t *testing.T, dir string, env []string, argv ...string) (out string, ok bool) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), suiteLimit)
	defer cancel()
	cmd := exec.CommandContext(ctx, argv[0], argv[1:]...)
	cmd.Dir, cmd.Env = dir, env
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	end := func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) }
	cmd.Cancel = end
	cmd.WaitDelay = 5 * time.Second
	var errs bytes.Buffer
	cmd.Stderr = &errs
	text, err := cmd.Output()
	if cmd.Process != nil {
		_ = end() // nobody is left, or should have been
	}
	var status *exec.ExitError
	if errs.Len() > 0 {
		t.Logf("its errors:\n%s", &errs)
	}
	if err != nil && (!errors.As(err, &status) || ctx.Err() != nil) {
		t.Fatalf("run %s: %v\n%s", strings.Join(argv, " "), err, text)
	}
	return string(text), err == nil
}

func TestNode(t *testing.T) {
	t.Parallel()
	needs(t, "nodejs", "node")
	tapSuites(t, "node", "test/*.test.js", "node", "--test-reporter=tap")
}

func TestPHP(t *testing.T) {
	t.Parallel()
	needs(t, "php-cli", "php")
	tapSuites(t, "php", "tests/c*.php", "php")
}

func TestRuby(t *testing.T) {
	t.Parallel()
	needs(t, "ruby", "ruby")
	tapSuites(t, "ruby", "test/c*.rb", "ruby")
}

// tapSuites runs a program with each of the files, beside each other.
func tapSuites(t *testing.T, dir, pattern string, argv ...string) {
	t.Helper()
	env := stores(t)
	files, err := filepath.Glob(filepath.Join(dir, pattern))
	if err != nil || len(files) == 0 {
		t.Fatalf("no tests: %v", err)
	}
	for _, file := range files {
		name, _, _ := strings.Cut(filepath.Base(file), ".")
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			tap(t, dir, env, append(slices.Clone(argv), strings.TrimPrefix(file, dir+"/"))...)
		})
	}
}

// tap runs a suite that tells its tests in the Test Anything Protocol.
func tap(t *testing.T, dir string, env []string, argv ...string) {
	t.Helper()
	out, ok := suite(t, dir, env, argv...)
	results, err := readTAP(out)
	if err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	report(t, results)
	if !ok && !t.Failed() {
		t.Errorf("it ended with an error\n%s", out)
	}
}

// Each file runs by itself, beside the others: most of the time of each is a wait.
func TestPython(t *testing.T) {
	t.Parallel()
	// pytest loads the plugins of all packages that are installed, and none of our tests uses one but this.
	env := append(append(stores(t), pythonEnv...), "PYTEST_DISABLE_PLUGIN_AUTOLOAD=1")
	interpreter := python(t)
	files, err := filepath.Glob("python/tests/test_*.py")
	if err != nil || len(files) == 0 {
		t.Fatalf("no tests: %v", err)
	}
	for _, file := range files {
		t.Run(strings.TrimSuffix(filepath.Base(file), ".py"), func(t *testing.T) {
			t.Parallel()
			results := filepath.Join(t.TempDir(), "results.xml")
			out, ok := suite(t, "python", env, interpreter, "-m", "pytest", "-p", "pytest_timeout", "-q", "-o", "faulthandler_timeout=60", "--junitxml", results,
				strings.TrimPrefix(file, "python/"))
			reportJUnit(t, out, ok, results)
		})
	}
}

func reportJUnit(t *testing.T, out string, ok bool, files ...string) {
	t.Helper()
	results, err := readJUnit(files...)
	if err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	report(t, results)
	if !ok && !t.Failed() {
		t.Error("it ended with an error")
	}
	if t.Failed() {
		t.Logf("what it printed:\n%s", out)
	}
}
