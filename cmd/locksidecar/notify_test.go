package main

import (
	"context"
	"net"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/locksidecar/locksidecar/client"
)

// A service of Type=notify: systemd hears that apps can connect when they can, and that the
// sidecar stops when it still waits for them.
func TestServeTellsSystemd(t *testing.T) {
	for name, address := range map[string]string{
		"file":     filepath.Join(socketDir(t), "n"),
		"abstract": "@locksidecar-test-" + filepath.Base(t.TempDir()) + t.Name(),
	} {
		t.Run(name, func(t *testing.T) {
			systemd, err := net.ListenUnixgram("unixgram", &net.UnixAddr{Name: address, Net: "unixgram"})
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { _ = systemd.Close() })
			hears := func() string {
				t.Helper()
				if err := systemd.SetReadDeadline(time.Now().Add(patience)); err != nil {
					t.Fatal(err)
				}
				b := make([]byte, 100)
				n, err := systemd.Read(b)
				if err != nil {
					t.Fatal(err)
				}
				return string(b[:n])
			}
			socket := filepath.Join(socketDir(t), "s")
			p := launch(t, []string{"NOTIFY_SOCKET=" + address}, binary, "serve", "--socket", socket)
			if got := hears(); got != "READY=1" {
				t.Fatalf("systemd heard %q first", got)
			}
			c, err := client.Dial(t.Context(), socket)
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { _ = c.Close() })
			s, err := c.OpenSession(t.Context(), client.SessionOptions{})
			if err != nil {
				t.Fatalf("after READY=1: %v", err)
			}
			l, err := s.Acquire(t.Context(), "orders/42", client.AcquireOptions{})
			if err != nil {
				t.Fatal(err)
			}
			p.signal(syscall.SIGTERM)
			if got := hears(); got != "STOPPING=1" {
				t.Fatalf("systemd heard %q at the signal", got)
			}
			if l.Err() != nil {
				t.Errorf("the lock is lost when the sidecar begins to stop: %v", l.Err())
			}
			if err := l.Release(context.Background()); err != nil {
				t.Error(err)
			}
			_ = s.Close()
			if code := p.wait(); code != 0 {
				t.Errorf("status %d", code)
			}
		})
	}
}

// Who starts a sidecar and does not listen does not keep it from its work.
func TestServeWithoutSystemd(t *testing.T) {
	p := launch(t, []string{"NOTIFY_SOCKET=" + filepath.Join(socketDir(t), "nobody")}, binary, "serve", "--socket", filepath.Join(socketDir(t), "s"))
	eventually(t, "it says that apps can connect", func() bool { return strings.Contains(p.out.String(), "Take a lock") })
	p.signal(syscall.SIGTERM)
	if code := p.wait(); code != 0 {
		t.Errorf("status %d", code)
	}
	if !strings.Contains(p.err.String(), "tell systemd") {
		t.Errorf("it does not say that nobody listened: %s", p.err)
	}
}
