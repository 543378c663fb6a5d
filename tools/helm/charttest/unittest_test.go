package charttest

import (
	"bytes"
	"testing"

	"github.com/helm-unittest/helm-unittest/pkg/unittest"
	"github.com/helm-unittest/helm-unittest/pkg/unittest/printer"
)

// TestUnittest runs the suites in deploy/helm/locksidecar/tests.
func TestUnittest(t *testing.T) {
	var out bytes.Buffer
	plain := false
	runner := unittest.TestRunner{
		Printer:   printer.NewPrinter(&out, &plain),
		TestFiles: []string{"tests/*_test.yaml"},
		Strict:    true,
	}
	passed := runner.RunV3([]string{chartPlace})
	t.Log("\n" + out.String())
	if !passed {
		t.Error("helm unittest failed")
	}
	if bytes.Contains(out.Bytes(), []byte("Test Suites: 0 passed")) {
		t.Error("helm unittest found no suites")
	}
}
