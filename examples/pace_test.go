package examples

import (
	"strings"
	"testing"
)

// The measurement of the clients runs. What it measures is not looked at.
func TestPace(t *testing.T) {
	t.Parallel()
	long(t)
	needs(t, "python3 nodejs default-jdk-headless", "python3", "node", "java", "javac")
	out, ok := suite(t, "..", environment("LOCKSIDECAR_BINARY="+binary), "go", "run", "./examples/pace", "-rounds", "1", "-pairs", "20")
	for _, name := range []string{"Go", "Python, threads", "Python, asyncio", "Node.js", "Java"} {
		for _, row := range []string{name + " ", name + ", by hand ", name + ", floor "} {
			if !ok || !strings.Contains(out, "\n"+row) {
				t.Fatalf("it does not measure %s:\n%s", row, out)
			}
		}
	}
}
