package client

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"
)

// greeted listens, and treats each connection as f says.
func greeted(t *testing.T, f func(n int, c net.Conn)) (path string) {
	t.Helper()
	path = filepath.Join(shortDir(t), "s")
	l, err := net.Listen("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		for n := 0; ; n++ {
			c, err := l.Accept()
			if err != nil {
				return
			}
			t.Cleanup(func() { _ = c.Close() })
			f(n, c)
		}
	}()
	t.Cleanup(func() { _ = l.Close(); <-done })
	return path
}

// TestSlowAttemptIsMadeAgain: one attempt of Dial that is too slow is not the last. None
// leaves its connection open.
func TestSlowAttemptIsMadeAgain(t *testing.T) {
	conns := make(chan net.Conn, 1000)
	path := greeted(t, func(n int, c net.Conn) {
		if conns <- c; n > 1 {
			_, _ = io.WriteString(c, "HTTP/1.1 200 OK\r\n\r\n")
		}
	})
	if err := greet(t.Context(), path, 10*time.Millisecond); err != nil {
		t.Error(err)
	}
	for n := 0; n < 3; n++ {
		c := <-conns
		_ = c.SetReadDeadline(time.Now().Add(20 * time.Second))
		if asked, err := io.ReadAll(c); err != nil && !errors.Is(err, syscall.ECONNRESET) || !strings.HasPrefix(string(asked), "GET /healthz HTTP/1.1") {
			t.Errorf("connection %d: %q, %v", n, asked, err)
		}
	}
}

// TestWhyDialGaveUp: who listens has been silent, or has hung up, until the time was over.
func TestWhyDialGaveUp(t *testing.T) {
	const silent, hangsUp = "something listens, and has not answered within 10s", "the sidecar hangs up: it has too many connections, or too much to do"
	for _, c := range []struct {
		want string
		f    func(int, net.Conn)
	}{
		{silent, func(int, net.Conn) {}},
		{hangsUp, func(_ int, c net.Conn) { _ = c.Close() }},
		{hangsUp, func(_ int, c net.Conn) { _, _ = io.WriteString(c, "HTTP/1.1 429 Too Many Requests\r\n\r\n") }},
	} {
		path := greeted(t, c.f)
		want := fmt.Sprintf("%v at %s: %s", ErrNoSidecar, path, c.want)
		var err error
		// The end may also meet a connection that was just made, which is silent.
		for end := time.Now().Add(20 * time.Second); (err == nil || err.Error() != want) && time.Now().Before(end); {
			ctx, cancel := context.WithTimeoutCause(t.Context(), 50*time.Millisecond, errSilent)
			err = greet(ctx, path, time.Minute)
			cancel()
		}
		if err == nil || err.Error() != want || !errors.Is(err, ErrNoSidecar) {
			t.Errorf("%v, want %q", err, want)
		}
	}
}
