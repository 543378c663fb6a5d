package localapi

import (
	"net/http"
	"strings"
	"testing"
)

// A method that a path does not have is refused with 405 and the methods that it has,
// those of openapi.json.
func TestMethodsOfPaths(t *testing.T) {
	s := start(t)
	c := s.http(t)
	for path, allow := range map[string]string{
		"/v1/hold":                         "POST",
		"/v1/sessions":                     "POST",
		"/v1/sessions/a":                   "DELETE",
		"/v1/sessions/a:keepAlive":         "POST",
		"/v1/sessions/a/locks":             "POST",
		"/v1/sessions/a/locks/b":           "DELETE",
		"/v1/sessions/a/locks/b:downgrade": "POST",
		"/v1/sessions/a/locks/b:extend":    "POST",
		"/v1/sessions/a/requests/b":        "DELETE",
		// A request id is the app's own choice.
		"/v1/sessions/a/requests/b:downgrade": "DELETE",
		"/v1/locks":                           "GET",
		"/v1/locks/a/b":                       "DELETE, GET",
		"/v1/leader/a/b":                      "GET",
		"/v1/watch/leader/a/b":                "GET",
		"/healthz":                            "GET, HEAD",
		"/readyz":                             "GET, HEAD",
		"/metrics":                            "GET, HEAD",
		"/openapi.json":                       "GET, HEAD",
	} {
		for _, method := range []string{http.MethodPut, http.MethodTrace, http.MethodOptions} {
			r, err := http.NewRequestWithContext(t.Context(), method, "http://x"+path, nil)
			if err != nil {
				t.Fatal(err)
			}
			a, err := c.Do(r)
			if err != nil {
				t.Fatal(err)
			}
			_ = a.Body.Close()
			if got := a.Header.Get("Allow"); a.StatusCode != http.StatusMethodNotAllowed || got != allow {
				t.Errorf("%s %s: %s, Allow %q, want %q", method, path, a.Status, got, allow)
			}
		}
	}
	code, body := call(t, c, http.MethodPost, "/healthz", "")
	if code != http.StatusMethodNotAllowed || !strings.Contains(body, "POST is not possible on /healthz, but GET and HEAD are") {
		t.Errorf("%d %s", code, body)
	}
}
