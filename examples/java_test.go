package examples

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"testing"
)

// javaJar has the programs in Java, with the client.
const javaJar = "java/scenarios/target/scenarios.jar"

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
	cmd.Dir = "java"
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("build the Java client: %w\n%s", err, out)
	}
	return nil
})

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
	out, ok := suite(t, "java", env, "mvn", "--batch-mode", "--no-transfer-progress", "--fail-at-end", "test")
	files, err := filepath.Glob(pattern + "/TEST-*.xml")
	if err != nil {
		t.Fatal(err)
	}
	reportJUnit(t, out, ok, files...)
}
