package testengine

import (
	"context"
	"errors"
	"net"
	"testing"
	"time"
)

var background = context.Background()

const long = time.Minute // for what must come, however busy the machine is

func eventually(t *testing.T, what string, f func() bool) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), long)
	defer cancel()
	if err := poll(ctx, func() error {
		if f() {
			return nil
		}
		return errors.New("not yet")
	}); err != nil {
		t.Fatalf("%s: %v", what, err)
	}
}

func heal(t *testing.T, p *Proxy) {
	t.Helper()
	if err := p.Heal(); err != nil {
		t.Fatal(err)
	}
}

// takenPort is a port of the loopback on which somebody listens until the test ends.
func takenPort(t *testing.T) int {
	t.Helper()
	ln, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp4", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = ln.Close() })
	return ln.Addr().(*net.TCPAddr).Port
}

func wantSprung(t *testing.T, c <-chan struct{}) {
	t.Helper()
	select {
	case <-c:
	case <-time.After(long):
		t.Fatal("the fault was not applied")
	}
}
