package telemetry

import (
	"testing"

	"go.opentelemetry.io/otel/trace/noop"

	"github.com/locksidecar/locksidecar/backends/embedded"
	"github.com/locksidecar/locksidecar/lock"
)

// TestBehindTraces: what a store can do besides, it can also do where its calls are traced.
func TestBehindTraces(t *testing.T) {
	store := embedded.New()
	defer store.Close()
	traced := (&Tracing{tracer: noop.NewTracerProvider().Tracer("")}).Backend(store)
	if got, ok := lock.RecordsOf(traced); !ok || got != lock.Records(store) {
		t.Errorf("records: %v, %v", got, ok)
	}
	if got, ok := lock.HandlesOf(traced); !ok || got != lock.Handles(store) {
		t.Errorf("handles: %v, %v", got, ok)
	}
	l, err := traced.OpenLease(t.Context(), lock.LeaseOptions{TTL: lock.MinTTL})
	if err != nil {
		t.Fatal(err)
	}
	if !lock.TellsBlocking(l) || !lock.IsNear(l) || !lock.TellsContended(l) {
		t.Errorf("it tells when it blocks: %v; it is in this process: %v; it tells who waits: %v", lock.TellsBlocking(l), lock.IsNear(l), lock.TellsContended(l))
	}
	if err := l.Close(t.Context()); err != nil {
		t.Error(err)
	}
}
