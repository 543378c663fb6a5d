package telemetry

import (
	"testing"

	"github.com/locksidecar/locksidecar/backends/embedded"
	"github.com/locksidecar/locksidecar/lock"
)

// TestBehindTraces: what a store can do besides, it can also do where its calls are traced.
func TestBehindTraces(t *testing.T) {
	store := embedded.New()
	defer store.Close()
	traced := new(Tracing).Backend(store)
	if got, ok := lock.RecordsOf(traced); !ok || got != lock.Records(store) {
		t.Errorf("records: %v, %v", got, ok)
	}
	if got, ok := lock.HandlesOf(traced); !ok || got != lock.Handles(store) {
		t.Errorf("handles: %v, %v", got, ok)
	}
}
