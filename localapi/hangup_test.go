package localapi

import (
	"bufio"
	"fmt"
	"net"
	"strings"
	"testing"

	"github.com/locksidecar/locksidecar/lock"
	"github.com/locksidecar/locksidecar/session"
)

// noNews makes heartbeats rare: each tells a hold its lease, and a write to a
// client that has gone fails.
func noNews(o *session.Options, _ *Options) { o.TTL = lock.MaxTTL }

// rawHold takes the resource "r" by POST /v1/hold on a connection of its own, and
// returns when it is granted.
func rawHold(t *testing.T, s *sidecar) net.Conn {
	t.Helper()
	c := s.dial(t)
	body := `{"resource":"r"}`
	if _, err := fmt.Fprintf(c, "POST /v1/hold HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n%s", len(body), body); err != nil {
		t.Fatal(err)
	}
	for in := bufio.NewReader(c); ; {
		line, err := in.ReadString('\n')
		if err != nil {
			t.Fatal(err)
		}
		if strings.Contains(line, `"granted"`) {
			return c
		}
	}
}

// A holder that closes its socket has ended, whatever it has sent behind its
// request: net/http reads one byte ahead during a call, and looks no further.
func TestHangUpBehindUnreadBytes(t *testing.T) {
	for name, behind := range map[string]string{
		"late CRLF":         "\r\n",
		"pipelined request": "GET /v1/info HTTP/1.1\r\nHost: x\r\n\r\n",
		"64 KiB of garbage": strings.Repeat("x", 64<<10),
	} {
		t.Run(name, func(t *testing.T) {
			s := start(t, noNews)
			c := rawHold(t, s)
			if _, err := c.Write([]byte(behind)); err != nil {
				t.Fatal(err)
			}
			if n := s.manager.Info().Holds; n != 1 {
				t.Fatalf("%d holds before the close", n)
			}
			if err := c.Close(); err != nil {
				t.Fatal(err)
			}
			eventually(t, "released", func() bool { return s.manager.Info().Holds == 0 })
		})
	}
}

// The same where the holder only says that it will send no more.
func TestHalfCloseBehindUnreadBytes(t *testing.T) {
	s := start(t, noNews)
	c := rawHold(t, s)
	if _, err := c.Write([]byte("\r\n")); err != nil {
		t.Fatal(err)
	}
	if err := c.(*net.UnixConn).CloseWrite(); err != nil {
		t.Fatal(err)
	}
	eventually(t, "released", func() bool { return s.manager.Info().Holds == 0 })
}

// Requests that were sent ahead are answered, in their order, also to a client
// that closes its sending side behind them.
func TestPipelining(t *testing.T) {
	s := start(t)
	c := s.dial(t)
	if _, err := c.Write([]byte(strings.Repeat("GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n", 3))); err != nil {
		t.Fatal(err)
	}
	if err := c.(*net.UnixConn).CloseWrite(); err != nil {
		t.Fatal(err)
	}
	n := 0
	for sc := bufio.NewScanner(c); sc.Scan(); {
		if sc.Text() == "ok" {
			n++
		}
	}
	if n != 3 {
		t.Errorf("%d answers, want 3", n)
	}
}
