package localapi

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	pb "github.com/locksidecar/locksidecar/api/locksidecar/v1"
	"github.com/locksidecar/locksidecar/lock"
	"github.com/locksidecar/locksidecar/session"
)

// TestHTTPHoldInItsGraceEndsWithTheSidecar: it is told why, whether it was told of one
// grace or of a shorter one.
func TestHTTPHoldInItsGraceEndsWithTheSidecar(t *testing.T) {
	for name, graces := range map[string][]time.Duration{"one": {time.Minute}, "two": {time.Minute, 5 * time.Second}} {
		t.Run(name, func(t *testing.T) {
			s := start(t)
			a := post(t, s.http(t), t.Context(), "/v1/hold", `{"resource":"r"}`)
			l := lines(t, a.Body)
			within(t, l)
			var forced sync.WaitGroup
			for _, g := range graces {
				forced.Go(func() { _, _ = s.manager.Everybody().ForceRelease(context.WithoutCancel(t.Context()), "r", "", g) })
				for m := within(t, l); m["lost"] == nil; m = within(t, l) {
					if m == nil {
						t.Fatal("it ended before")
					}
				}
			}
			s.stop()
			var last map[string]map[string]any
			for m := range l {
				last = m
			}
			if last["error"] == nil || !strings.Contains(fmt.Sprint(last), "DRAINING") {
				t.Errorf("the last line is %v", last)
			}
			forced.Wait()
		})
	}
}

// TestHTTPWhileItStops: a call that comes then is told so, on a connection that ends.
func TestHTTPWhileItStops(t *testing.T) {
	s := New(Options{})
	h := s.tracked(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { t.Error("it is served") }))
	s.beginStop()
	for range 2 {
		w := httptest.NewRecorder()
		h.ServeHTTP(w, httptest.NewRequest(http.MethodGet, "/v1/info", nil))
		if w.Code != http.StatusServiceUnavailable || w.Header().Get("Connection") != "close" || infoOf(t, jsonStatus(t, w.Body.String())).GetReason() != string(reasonDraining) {
			t.Errorf("%d %v %s", w.Code, w.Header(), w.Body)
		}
	}
}

// TestCallsAreInUse: a connection makes no room while its call lasts, however it came; then
// it does. The time for the body is none for the call.
func TestCallsAreInUse(t *testing.T) {
	const body = 100 * time.Millisecond
	s := start(t, noNews, func(_ *session.Options, o *Options) {
		o.Limits.Connections, o.Limits.ConnectionsPerUID, o.Limits.Body = 1, 2, body
	})
	s.server.places.firstWord = time.Hour // of those who are turned away
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	c := s.http(t)
	var a *http.Response
	eventually(t, "granted", func() bool { // a machine may stand still for as long as a body is waited for
		a = post(t, c, ctx, "/v1/hold", `{"resource":"r"}`)
		return a.StatusCode == http.StatusOK
	})
	within(t, lines(t, a.Body))
	time.Sleep(2 * body)
	if code, text := call(t, s.http(t), "GET", "/healthz", ""); code != http.StatusTooManyRequests {
		t.Errorf("beside a call: %d %s", code, text)
	}
	if n := s.manager.Info().Holds; n != 1 {
		t.Errorf("%d holds", n)
	}
	cancel()
	eventually(t, "free", func() bool { return s.server.places.count() == 0 })
	eventually(t, "answered", func() bool {
		code, _ := call(t, c, "POST", "/v1/hold", `{"resource":""}`)
		return code == http.StatusBadRequest
	})
	eventually(t, "served in its place", func() bool {
		code, _ := call(t, s.http(t), "GET", "/healthz", "")
		return code == http.StatusOK
	})
}

// TestHTTPHeads: streams are not kept by anybody on the way, and what ends at once is a
// stream, too.
func TestHTTPHeads(t *testing.T) {
	s := start(t)
	a := post(t, s.http(t), t.Context(), "/v1/hold", `{"resource":"r"}`)
	if a.Header.Get("Cache-Control") != "no-store" || a.Header.Get("Content-Type") != contentNDJSON {
		t.Errorf("%v", a.Header)
	}
	w := httptest.NewRecorder()
	s.server.serveStream(w, httptest.NewRequest(http.MethodGet, "/", nil), func(context.Context, *lineWriter) error { return nil })
	if w.Code != 200 || w.Header().Get("Content-Type") != contentNDJSON || w.Body.Len() != 0 {
		t.Errorf("%d %v %q", w.Code, w.Header(), w.Body)
	}
	w = httptest.NewRecorder()
	s.server.serveStream(w, httptest.NewRequest(http.MethodGet, "/", nil), func(_ context.Context, l *lineWriter) error {
		return errors.Join(l.head(), l.head(), l.send(&pb.WatchEvent{}), lock.ErrNotHolder)
	})
	text := strings.Split(w.Body.String(), "\n")
	if len(text) != 3 || text[2] != "" || !strings.HasPrefix(text[1], `{"error":{"code":9,`) || !json.Valid([]byte(text[1])) {
		t.Errorf("%q", text)
	}
	if err := (&lineWriter{w: w}).send(&pb.Lock{Resource: "\xff"}); err == nil {
		t.Error("what is not UTF-8 was sent")
	}
	no := errors.New("no")
	x := s.stream(t, s.api(t), &pb.OpenSessionRequest{})
	ctx := withConn(t.Context(), accepted(t, s.server))
	if err := (&service{Server: s.server}).events(ctx, &pb.EventsRequest{SessionId: x.id}, func() error { return no }, nil); !errors.Is(err, no) {
		t.Errorf("events whose head cannot be sent: %v", err)
	}
}
