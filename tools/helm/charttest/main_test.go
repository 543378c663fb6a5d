package charttest

import (
	"os"
	"runtime/debug"
	"testing"
)

// TestMain collects garbage less often: rendering makes much of it, and the collector took a quarter of the processor time.
func TestMain(m *testing.M) {
	if os.Getenv("GOGC") == "" {
		debug.SetGCPercent(400)
	}
	os.Exit(m.Run())
}
