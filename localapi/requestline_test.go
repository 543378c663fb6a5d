package localapi

import (
	"bufio"
	"bytes"
	"context"
	"net"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"strings"
	"testing"

	"github.com/locksidecar/locksidecar/backends/embedded"
	"github.com/locksidecar/locksidecar/localapi/peercred"
	"github.com/locksidecar/locksidecar/session"
)

// Targets that are no path are refused like any path that is not there.
func TestOddTargets(t *testing.T) {
	s := start(t)
	for _, line := range []string{
		"GET *", "OPTIONS *", "POST *", "GET http://x", "GET http://x?a=b", "DELETE http://x", "CONNECT x:1",
		"GET //", "GET /?", "GET /v1", "GET /v1/", "POST /v1/sessions/:keepAlive/", "OPTIONS /v1/info",
	} {
		t.Run(line, func(t *testing.T) {
			c := s.dial(t)
			if _, err := c.Write([]byte(line + " HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")); err != nil {
				t.Fatal(err)
			}
			a, err := http.ReadResponse(bufio.NewReader(c), &http.Request{Method: http.MethodGet})
			if err != nil {
				t.Fatalf("no answer: %v", err)
			}
			defer func() { _ = a.Body.Close() }()
			var b bytes.Buffer
			_, _ = b.ReadFrom(a.Body)
			if a.StatusCode < 400 || a.StatusCode > 499 || infoOf(t, jsonStatus(t, b.String())).GetReason() == "" {
				t.Errorf("%s %s", a.Status, b.Bytes())
			}
		})
	}
	if code, body := call(t, s.http(t), "GET", "/v1/info", ""); code != 200 {
		t.Errorf("%d %s", code, body)
	}
}

// No request line makes a handler panic, and what is no success is an error of
// the API.
func FuzzRequestLine(f *testing.F) {
	for _, seed := range []string{
		"GET /v1/info", "GET *", "GET http://x", "CONNECT x:1", "POST /v1/sessions/a:keepAlive", "DELETE /v1/locks/a%2Fb?grace=0s",
		"GET /v1/watch?interval=0.1s", "GET /v1/sessions/%ff/events", "OPTIONS *", "GET //healthz", "GET /v1/locks?prefix=&pageSize=1",
	} {
		f.Add(seed)
	}
	backend := embedded.New()
	m, err := session.New(session.Options{Backend: backend})
	if err != nil {
		f.Fatal(err)
	}
	f.Cleanup(func() { _ = backend.Close() })
	s := New(Options{Manager: m, Socket: filepath.Join(f.TempDir(), "s")})
	h := s.newHTTP(&service{Server: s}).Handler
	c := &conn{UnixConn: &net.UnixConn{}, peer: &peercred.Peer{}, places: s.places, allowed: true, space: m.Everybody()}
	over, cancel := context.WithCancel(context.Background())
	cancel() // no call waits
	f.Fuzz(func(t *testing.T, line string) {
		r, err := http.ReadRequest(bufio.NewReader(strings.NewReader(line + " HTTP/1.1\r\nHost: x\r\n\r\n")))
		if err != nil {
			return // net/http refuses it by itself
		}
		w := httptest.NewRecorder()
		h.ServeHTTP(w, r.WithContext(withConn(over, c)))
		if w.Code >= 400 && w.Code != http.StatusServiceUnavailable && w.Header().Get("Content-Type") == contentJSON {
			infoOf(t, jsonStatus(t, w.Body.String()))
		}
	})
}
