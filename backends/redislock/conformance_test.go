package redislock

import (
	"testing"
	"time"

	"github.com/locksidecar/locksidecar/backends/backendtest"
	"github.com/locksidecar/locksidecar/lock"
)

func TestConformance(t *testing.T) {
	backendtest.Run(t, &harness{url: "redis://127.0.0.1:7777"})
}

type harness struct{ url string }

func (h *harness) Open(t testing.TB) lock.Backend {
	b, err := Open(h.url, nil)
	if err != nil {
		t.Fatal(err)
	}
	return b
}
func (h *harness) TTL() time.Duration            { return time.Second }
func (h *harness) Recheck() time.Duration        { return maxRecheck }
func (h *harness) Exceptions() map[string]string { return nil }
