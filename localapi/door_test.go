package localapi

import (
	"io"
	"net"
	"os"
	"strings"
	"testing"

	"github.com/locksidecar/locksidecar/session"
)

// nameAt is the name of the sidecar that answers at a socket; empty: none.
func nameAt(path string) string {
	c, err := net.Dial("unix", path)
	if err != nil {
		return ""
	}
	defer func() { _ = c.Close() }()
	if _, err := c.Write([]byte("GET /v1/info HTTP/1.1\r\nHost: locksidecar\r\nConnection: close\r\n\r\n")); err != nil {
		return ""
	}
	answer, _ := io.ReadAll(c)
	for _, name := range []string{"first", "second", "third"} {
		if strings.Contains(string(answer), `"`+name+`"`) {
			return name
		}
	}
	return ""
}

// TestSocketIsTakenAgain: a sidecar whose socket was replaced takes it again when nobody serves it, as often as
// that happens; not before, and not when it is about to stop itself.
func TestSocketIsTakenAgain(t *testing.T) {
	var out logLines
	named := func(name, path string) *sidecar {
		return start(t, logTo(&out), func(so *session.Options, lo *Options) {
			so.Sidecar, lo.Replace = name, true
			if path != "" {
				lo.Socket = path
			}
		})
	}
	first := named("first", "")
	path := first.socket
	for range 2 {
		second := named("second", path)
		if got := nameAt(path); got != "second" {
			t.Errorf("%q answers", got)
		}
		eventually(t, "the first one knows", func() bool { return strings.Contains(out.String(), "was removed or replaced") })
		second.stop()
		eventually(t, "the first one answers", func() bool { return nameAt(path) == "first" })
	}
	// Somebody has removed it.
	if err := os.Remove(path); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the first one answers again", func() bool { return nameAt(path) == "first" })

	third := named("third", path)
	if err := first.manager.Drain(t.Context()); err != nil { // there are no sessions
		t.Fatal(err)
	}
	third.stop()
	if (&door{s: first.server}).again(t.Context()) {
		t.Error("it takes the socket while it stops")
	}
	if got := nameAt(path); got != "" {
		t.Errorf("%q answers", got)
	}
}
