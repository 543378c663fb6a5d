package docstest

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	pb "github.com/locksidecar/locksidecar/api/locksidecar/v1"
)

// attentionSpan is how long the bridge waits for a call that may wait for others, and
// for the first line of a stream.
const attentionSpan = 200 * time.Millisecond

// bridge takes HTTP over TCP, which schemathesis speaks, to the sidecar's socket. It
// ends a call that waits for a lock, and a stream behind its first line: both would go
// on for as long as their client stays.
func bridge(t *testing.T, socket string) (url string) {
	t.Helper()
	road := &http.Transport{DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return (&net.Dialer{}).DialContext(ctx, "unix", socket)
	}}
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		ctx, cancel := context.WithCancel(r.Context())
		defer cancel()
		q := r.Clone(ctx)
		q.RequestURI, q.URL.Scheme, q.URL.Host = "", "http", "sidecar"
		waits := r.Method == http.MethodPost && (r.URL.Path == "/v1/hold" || strings.HasSuffix(r.URL.Path, "/locks")) ||
			r.Method == http.MethodDelete && strings.HasPrefix(r.URL.Path, "/v1/locks/")
		if waits {
			defer time.AfterFunc(attentionSpan, cancel).Stop()
		}
		a, err := road.RoundTrip(q)
		if err != nil {
			if !waits || ctx.Err() == nil {
				t.Errorf("%s %s: %v", r.Method, r.RequestURI, err)
			}
			w.Header().Set("Content-Type", "application/json")
			w.WriteHeader(499) // as the sidecar says it to a client that is there no more
			_, _ = w.Write([]byte(`{"code":1}`))
			return
		}
		defer func() { _ = a.Body.Close() }()
		var body []byte
		if a.Header.Get("Content-Type") == "application/x-ndjson" {
			defer time.AfterFunc(attentionSpan, cancel).Stop()
			body, _ = bufio.NewReader(a.Body).ReadBytes('\n') // no news of a session are none
		} else if body, err = io.ReadAll(a.Body); err != nil {
			t.Errorf("%s %s: %v", r.Method, r.RequestURI, err)
		}
		for name, values := range a.Header {
			w.Header()[name] = values
		}
		w.WriteHeader(a.StatusCode)
		_, _ = w.Write(body)
	}))
	t.Cleanup(road.CloseIdleConnections)
	t.Cleanup(s.Close)
	return s.URL
}

// What openapi.json says of requests and answers is what the sidecar takes and gives:
// schemathesis makes up requests that fit the document, and requests that do not.
func TestOpenAPI(t *testing.T) {
	t.Parallel()
	if testing.Short() {
		t.Skip("takes 15 s, and schemathesis, which `make test-deps` gets")
	}
	schemathesis := schemathesisProgram(t)
	p := newPlace(t)
	url := bridge(t, p.socket)
	a, err := http.Post(url+"/v1/sessions", "application/json", strings.NewReader(`{"ttl":"3600s"}`))
	if err != nil {
		t.Fatal(err)
	}
	var opened struct{ SessionID string }
	err = json.NewDecoder(a.Body).Decode(&opened)
	_ = a.Body.Close()
	if err != nil || opened.SessionID == "" {
		t.Fatal("no session", err)
	}
	dir := t.TempDir()
	write(t, filepath.Join(dir, "openapi.json"), string(pb.OpenAPI))
	// Lengths are limited in bytes, which the document cannot say: ASCII alone. A
	// session that is there, but for the call that would end it. Errors of what is
	// held at the moment are no refusals of a request, and what the bridge ends (499)
	// on a slow machine tells nothing.
	write(t, filepath.Join(dir, "schemathesis.toml"), fmt.Sprintf(`
[generation]
codec = "ascii"
database = "none"
max-examples = 10
no-shrink = true
[parameters]
"path.session_id" = %q
[checks]
positive_data_acceptance.expected-statuses = ["2xx", 404, 409, 410, 412, 429, 499, 504]
negative_data_rejection.expected-statuses = ["4xx"]
[[operations]]
include-name = "DELETE /v1/sessions/{session_id}"
parameters = { "path.session_id" = "none" }
# What is made up at random takes a request_id twice, which is refused.
[[operations]]
include-name = "POST /v1/sessions/{session_id}/locks"
phases.fuzzing.enabled = false
checks.positive_data_acceptance.expected-statuses = ["2xx", 400, 404, 409, 410, 412, 429, 499, 504]
# Nor can the document say that minHold is at most maxHold.
[[operations]]
include-name = "POST /v1/hold"
checks.positive_data_acceptance.expected-statuses = ["2xx", 400, 404, 409, 410, 412, 429, 499, 504]
# What a handle may be the document cannot say.
[[operations]]
include-name = "POST /v1/handles:extend"
checks.positive_data_acceptance.expected-statuses = ["2xx", 400, 404, 409]
[[operations]]
include-name = "POST /v1/handles:release"
checks.positive_data_acceptance.expected-statuses = ["2xx", 400, 404, 409]
# A note needs an outcome, which the document cannot say of parameters.
[[operations]]
include-name = "DELETE /v1/sessions/{session_id}/locks/{lock_id}"
phases.fuzzing.enabled = false
parameters = { "query.outcome" = "FAILED", "query.requestId" = "" }
`, opened.SessionID))
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	cmd := exec.CommandContext(ctx, schemathesis, "--config-file", "schemathesis.toml", "run", "openapi.json", "--url", url,
		"--seed", "1", "--phases", "examples,coverage,fuzzing", "--continue-on-failure", "--no-color", "--workers", "1",
		"--request-timeout", "60", "--suppress-health-check", "all")
	cmd.Dir = dir
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &out
	if err := cmd.Run(); err != nil {
		t.Errorf("schemathesis: %v\n%s", err, out.Bytes())
	}
	var api struct {
		Paths map[string]map[string]any `json:"paths"`
	}
	if err := json.Unmarshal(pb.OpenAPI, &api); err != nil {
		t.Fatal(err)
	}
	calls := 0
	for _, methods := range api.Paths {
		calls += len(methods)
	}
	if !strings.Contains(out.String(), fmt.Sprintf("Tested: %d\n", calls)) {
		t.Errorf("not all calls were tested:\n%s", out.Bytes())
	}
}

// schemathesisProgram is where scripts/test-deps has put it, or in PATH.
func schemathesisProgram(t *testing.T) string {
	t.Helper()
	cache, err := os.UserCacheDir()
	if err != nil {
		t.Fatal(err)
	}
	if path := filepath.Join(cache, "locksidecar-test", "schemathesis", "bin", "schemathesis"); exists(path) {
		return path
	}
	path, err := exec.LookPath("schemathesis")
	if err != nil {
		t.Fatalf("%v; `make test-deps` gets it", err)
	}
	return path
}
