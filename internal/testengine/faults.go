package testengine

import (
	"context"
	"os"
	"path/filepath"
	"testing"
	"time"
)

// repairTimeout bounds what is done in a test's name when it is over.
const repairTimeout = 30 * time.Second

// target is a Server or a Node.
type target interface{ Origin() string }

// capability finds out whether a fault can be done to a server, and skips the
// test if not.
func capability[C any](t testing.TB, s target, what string) C {
	t.Helper()
	c, ok := s.(C)
	if !ok {
		t.Skipf("%s cannot be %s", s.Origin(), what)
	}
	return c
}

// repair registers what undoes a fault, before it is done. The test's own
// context has ended when it runs.
func repair(t testing.TB, what string, f func(ctx context.Context) error) {
	t.Helper()
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(t.Context()), repairTimeout)
		defer cancel()
		if err := f(ctx); err != nil {
			t.Errorf("%s after the test: %v", what, err)
		}
	})
}

// Pause freezes a server or a node until the end of the test, or until resume
// is called.
func Pause(t testing.TB, s target) (resume func()) {
	t.Helper()
	p := capability[Pauser](t, s, "paused")
	repair(t, "resume "+s.Origin(), p.Resume)
	if err := p.Pause(t.Context()); err != nil {
		t.Fatalf("pause %s: %v", s.Origin(), err)
	}
	return func() {
		t.Helper()
		if err := p.Resume(t.Context()); err != nil {
			t.Fatalf("resume %s: %v", s.Origin(), err)
		}
	}
}

// Crash ends a server or a node until the end of the test, or until start is
// called.
func Crash(t testing.TB, s target, d Data) (start func()) {
	t.Helper()
	c := capability[Crasher](t, s, "crashed")
	repair(t, "start "+s.Origin(), c.Start)
	if err := c.Crash(t.Context(), d); err != nil {
		t.Fatalf("crash %s: %v", s.Origin(), err)
	}
	return func() {
		t.Helper()
		if err := c.Start(t.Context()); err != nil {
			t.Fatalf("start %s: %v", s.Origin(), err)
		}
	}
}

// Restart ends a server or a node and starts it again.
func Restart(t testing.TB, s target, d Data) {
	t.Helper()
	Crash(t, s, d)()
}

// BackUp keeps what a server knows. restore has it know that again, and nothing that came after it.
func BackUp(t testing.TB, s Server) (restore func()) {
	t.Helper()
	b := capability[Backuper](t, s, "backed up")
	if err := b.BackUp(t.Context()); err != nil {
		t.Fatalf("back up %s: %v", s.Origin(), err)
	}
	return func() {
		t.Helper()
		if err := b.Restore(t.Context()); err != nil {
			t.Fatalf("restore %s: %v", s.Origin(), err)
		}
	}
}

// FailOver lets the replica of a server take over. At the end of the test the
// server is whole again.
func FailOver(t testing.TB, s Server, d Data) {
	t.Helper()
	f := capability[Failoverer](t, s, "failed over")
	repair(t, "wait for the new replica of "+s.Origin(), f.Healthy)
	if err := f.FailOver(t.Context(), d); err != nil {
		t.Fatalf("fail over %s: %v", s.Origin(), err)
	}
}

// ShiftClock sets the clock of a server ahead of the true time, or back, until
// the end of the test or another call.
func ShiftClock(t testing.TB, s Server, by time.Duration) {
	t.Helper()
	c := capability[Clocker](t, s, "given another time")
	repair(t, "put right the clock of "+s.Origin(), func(ctx context.Context) error { return c.ShiftClock(ctx, 0) })
	if err := c.ShiftClock(t.Context(), by); err != nil {
		t.Fatalf("shift the clock of %s: %v", s.Origin(), err)
	}
}

// Through opens a road of its own to a server for one client of the test.
func Through(t testing.TB, s Server) *Proxy {
	t.Helper()
	p, err := capability[Proxier](t, s, "reached through a proxy").Proxy(t.Context())
	if err != nil {
		t.Fatalf("open a proxy to %s: %v", s.Origin(), err)
	}
	t.Cleanup(func() { _ = p.Close() }) // never fails
	return p
}

// CA writes the certificate that clients of a server need for TLS to a file, and
// returns its path. Through a proxy the server is still called localhost.
func CA(t testing.TB, s Server) string {
	t.Helper()
	c := capability[Securer](t, s, "trusted")
	file := filepath.Join(t.TempDir(), "ca.pem")
	if err := os.WriteFile(file, c.CA(), 0o600); err != nil {
		t.Fatal(err)
	}
	return file
}

// Nodes are the nodes of a server.
func Nodes(t testing.TB, s Server) []Node {
	t.Helper()
	return capability[Noder](t, s, "taken apart").Nodes()
}
