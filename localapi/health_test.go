package localapi

import (
	"errors"
	"net/http"
	"net/http/httptest"
	"testing"

	"github.com/locksidecar/locksidecar/session"
)

// TestHealthRoutes: what probes and Prometheus get, on the socket and on the TCP address.
func TestHealthRoutes(t *testing.T) {
	ready := error(nil)
	mux := http.NewServeMux()
	HealthRoutes(mux, Readiness{Now: func() error { return ready }, Once: func() error { return nil }}, http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write([]byte("up 1\n")) }))
	for _, x := range []struct {
		method, path string
		ready        error
		code         int
		body         string
	}{
		{"GET", "/healthz", nil, 200, "ok\n"},
		{"GET", "/healthz", errors.New("no"), 200, "ok\n"},
		{"GET", "/readyz", nil, 200, "ready\n"},
		{"GET", "/readyz", errors.New("the store is away"), 503, "not ready: the store is away\n"},
		{"HEAD", "/readyz", errors.New("no"), 503, "not ready: no\n"},
		{"GET", "/readyz?once=true", errors.New("the store is away"), 200, "ready\n"},
		{"GET", "/readyz?once=false", errors.New("the store is away"), 503, "not ready: the store is away\n"},
		{"GET", "/metrics", nil, 200, "up 1\n"},
		{"POST", "/readyz", nil, 405, "Method Not Allowed\n"},
		{"POST", "/metrics", nil, 405, "Method Not Allowed\n"},
	} {
		ready = x.ready
		w := httptest.NewRecorder()
		mux.ServeHTTP(w, httptest.NewRequest(x.method, x.path, nil))
		if w.Code != x.code || w.Body.String() != x.body || w.Header().Get("Content-Type") != "text/plain; charset=utf-8" {
			t.Errorf("%s %s: %d %q %v", x.method, x.path, w.Code, w.Body, w.Header())
		}
	}
}

// TestMetricsOnTheSocket: they are there where the sidecar has some, and need no session.
func TestMetricsOnTheSocket(t *testing.T) {
	s := start(t)
	if code, body := call(t, s.http(t), "GET", "/metrics", ""); code != http.StatusNotFound || body != "404 page not found\n" {
		t.Errorf("none: %d %q", code, body)
	}
	s = start(t, func(_ *session.Options, o *Options) {
		o.Metrics = http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write([]byte("up 1\n")) })
	})
	if code, body := call(t, s.http(t), "GET", "/metrics", ""); code != http.StatusOK || body != "up 1\n" {
		t.Errorf("some: %d %q", code, body)
	}
}
