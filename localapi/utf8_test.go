package localapi

import (
	"net/http"
	"testing"
	"time"

	"github.com/locksidecar/locksidecar/lock"
	"github.com/locksidecar/locksidecar/session"
)

// Somebody has written a name into the store that is not UTF-8. An answer with it
// cannot be given, and does not look like one.
func TestNamesThatAreNotUTF8(t *testing.T) {
	var store lock.Backend
	s := start(t, func(o *session.Options, _ *Options) { store = o.Backend })
	l, err := store.OpenLease(t.Context(), lock.LeaseOptions{TTL: time.Minute, Sidecar: "caf\xe9"})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := l.Acquire(t.Context(), lock.Request{ID: lock.NewHoldID(), Resource: "r", Mode: lock.Exclusive}); err != nil {
		t.Fatal(err)
	}
	defer func() { _ = l.Close(t.Context()) }()
	for _, q := range []struct{ method, path, body string }{
		{"GET", "/v1/locks/r", ""},
		{"GET", "/v1/locks", ""},
		{"POST", "/v1/hold", `{"resource":"r","wait":"0s"}`},
	} {
		code, body := call(t, s.http(t), q.method, q.path, q.body)
		st := jsonStatus(t, body)
		if reason := infoOf(t, st).GetReason(); code != http.StatusInternalServerError || reason != "INTERNAL" {
			t.Errorf("%s %s: %d %s", q.method, q.path, code, body)
		}
	}
}
