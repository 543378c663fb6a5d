package localapi

import (
	"context"
	"errors"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"syscall"
	"testing"

	"github.com/hashicorp/go-hclog"

	pb "github.com/locksidecar/locksidecar/api/locksidecar/v1"
)

// A client that opens the events of a session before it takes a lock is not left
// waiting for the response.
func TestHeadOfEventsComesAtOnce(t *testing.T) {
	s := start(t)
	c := s.http(t)
	_, body := call(t, c, "POST", "/v1/sessions", `{"ttl":"60s"}`)
	for _, path := range []string{"/v1/sessions/" + field(t, body, "sessionId") + "/events", "/v1/watch?prefix=none"} {
		ctx, cancel := context.WithTimeout(t.Context(), patience)
		r, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://x"+path, nil)
		if err != nil {
			t.Fatal(err)
		}
		a, err := c.Do(r)
		if err != nil {
			t.Fatalf("%s: no head: %v", path, err)
		}
		if a.StatusCode != 200 || a.Header.Get("Content-Type") != contentNDJSON {
			t.Errorf("%s: %s %v", path, a.Status, a.Header)
		}
		_ = a.Body.Close()
		cancel()
	}
}

// brokenWriter is the response to a client that has gone.
type brokenWriter struct{ *httptest.ResponseRecorder }

func (brokenWriter) Write([]byte) (int, error) { return 0, syscall.EPIPE }

type logLines struct {
	mu   sync.Mutex
	text strings.Builder
}

func (l *logLines) Write(b []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.Write(b)
}

func (l *logLines) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.String()
}

// That a client goes away is no mistake of the sidecar's.
func TestGoneClientIsNoError(t *testing.T) {
	var out logLines
	s := New(Options{Logger: hclog.New(&hclog.LoggerOptions{Output: &out, Level: hclog.Debug})})
	r := httptest.NewRequest(http.MethodPost, "/v1/hold", nil)
	s.serveStream(brokenWriter{httptest.NewRecorder()}, r, func(_ context.Context, l *lineWriter) error {
		return l.send(&pb.Event{})
	})
	if log := out.String(); strings.Contains(log, "ERROR") || !strings.Contains(log, "DEBUG") {
		t.Errorf("logged %q", log)
	}
	s.fail(httptest.NewRecorder(), r, errors.New("a mistake"))
	if log := out.String(); !strings.Contains(log, "ERROR") {
		t.Errorf("a mistake is logged as %q", log)
	}
}
