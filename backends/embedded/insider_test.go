package embedded

import (
	"fmt"
	"strings"
	"testing"

	"github.com/locksidecar/locksidecar/backends/backendtest"
)

var _ backendtest.Insider = (*harness)(nil)

// Leftovers makes the harness a backendtest.Insider.
func (h *harness) Leftovers(_ testing.TB, prefix string) (left []string) {
	h.store.mu.Lock()
	defer h.store.mu.Unlock()
	for name := range h.store.resources {
		if strings.HasPrefix(string(name), prefix) {
			left = append(left, fmt.Sprintf("resource %q", name))
		}
	}
	for name := range h.store.records {
		if strings.HasPrefix(string(name), prefix) {
			left = append(left, fmt.Sprintf("record of %q", name))
		}
	}
	return left
}
