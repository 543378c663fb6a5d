package client_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/locksidecar/locksidecar/backends/embedded"
	"github.com/locksidecar/locksidecar/client"
	"github.com/locksidecar/locksidecar/localapi"
	"github.com/locksidecar/locksidecar/session"
)

// sidecarEnv makes the test binary a sidecar on the socket that it names.
const sidecarEnv = "CLIENT_TEST_SIDECAR"

const frozenTTL = 5 * time.Second // a busy machine may stand still for a second or two

// standstill measures for how long this process stood still at most, until it is asked.
func standstill(t *testing.T) (most func() time.Duration) {
	stop, longest := make(chan struct{}), make(chan time.Duration)
	go func() {
		defer close(longest)
		var most time.Duration
		for last := time.Now(); ; {
			select {
			case <-stop:
				longest <- max(most, time.Since(last))
				return
			case <-time.After(10 * time.Millisecond):
			}
			most, last = max(most, time.Since(last)), time.Now()
		}
	}()
	ask := sync.OnceValue(func() time.Duration { close(stop); return <-longest })
	t.Cleanup(func() { ask() })
	return ask
}

func serve(socket string) {
	m, err := session.New(session.Options{Backend: embedded.New(), Sidecar: "process", TTL: frozenTTL})
	if err != nil {
		panic(err)
	}
	go func() { _ = m.Run(context.Background()) }()
	for m.Ready() != nil {
		time.Sleep(time.Millisecond)
	}
	if err := localapi.New(localapi.Options{Manager: m, Socket: socket}).Run(context.Background()); err != nil {
		panic(err)
	}
}

// process starts a sidecar as a process of its own.
func process(t *testing.T) (socket string, p *os.Process) {
	t.Helper()
	dir, err := os.MkdirTemp("", "lsp")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	socket = filepath.Join(dir, "s")
	c := exec.Command("/proc/self/exe")
	c.Env = append(os.Environ(), sidecarEnv+"="+socket)
	c.Stderr = os.Stderr
	if err := c.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Process.Kill(); _ = c.Wait() })
	eventually(t, "listening", func() bool { _, err := os.Stat(socket); return err == nil })
	return socket, c.Process
}

// inProcess opens a session at a sidecar that is a process of its own.
func inProcess(t *testing.T, o client.SessionOptions) (*client.Session, *os.Process) {
	t.Helper()
	socket, p := process(t)
	c, err := client.Dial(t.Context(), socket)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close() })
	s, err := c.OpenSession(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}
	return s, p
}

// freeze stops a process: all threads, when it returns.
func freeze(t *testing.T, p *os.Process) {
	t.Helper()
	if err := p.Signal(syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	eventually(t, "frozen", func() bool {
		tasks, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/stat", p.Pid))
		if err != nil {
			t.Fatal(err)
		}
		for _, task := range tasks {
			stat, err := os.ReadFile(task)
			if err != nil || !bytes.Contains(stat, []byte(") T ")) {
				return false
			}
		}
		return len(tasks) > 0
	})
}

// When the sidecar is frozen, the app gives up by its own clock, before the
// lease could end, and does not change its mind when the sidecar wakes up.
func TestFrozenSidecar(t *testing.T) {
	s, p := inProcess(t, client.SessionOptions{})
	l := acquire(t, s, "r", client.AcquireOptions{})
	time.Sleep(frozenTTL) // lease news keep it valid
	if l.Err() != nil {
		t.Fatal(l.Err())
	}
	if err := p.Signal(syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	frozen, stood := time.Now(), standstill(t)
	within(t, "lost", l.Lost())
	if d, still := time.Since(frozen), stood(); d > frozenTTL+500*time.Millisecond+still {
		t.Errorf("gave up %s after the freeze; this process stood still for %s", d, still)
	}
	var lost *client.LostError
	if !errors.As(l.Err(), &lost) || lost.Reason != client.LostSilence || l.ValidFor() != 0 {
		t.Errorf("%v, valid for %s", l.Err(), l.ValidFor())
	}
	if err := p.Signal(syscall.SIGCONT); err != nil {
		t.Fatal(err)
	}
	if err := l.Release(t.Context()); !errors.Is(err, client.ErrLockLost) {
		t.Errorf("release: %v", err)
	}
	if !errors.As(l.Err(), &lost) {
		t.Errorf("no longer lost: %v", l.Err())
	}
	if err := acquire(t, s, "r", client.AcquireOptions{}).Release(t.Context()); err != nil {
		t.Error(err)
	}
}

// The sidecar is frozen and takes no more bytes: every call still returns when
// its context ends, and what was not sent is forgotten.
func TestFullWindows(t *testing.T) {
	s, p := inProcess(t, client.SessionOptions{TTL: frozenTTL})
	l, m := acquire(t, s, "l", client.AcquireOptions{}), acquire(t, s, "m", client.AcquireOptions{})
	freeze(t, p)
	const callers = 400
	name := strings.Repeat("x", 4000) // 1.6 MB in all: more than sockets take
	ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
	defer cancel()
	done := make(chan error, callers+3)
	for range callers {
		go func() {
			_, err := s.Acquire(ctx, name, client.AcquireOptions{})
			done <- err
		}()
	}
	go func() { done <- l.Release(ctx) }()
	go func() { done <- m.Downgrade(ctx) }()
	go func() { done <- m.Release(ctx) }()
	for range cap(done) {
		select {
		case err := <-done:
			if !errors.Is(err, context.DeadlineExceeded) {
				t.Errorf("got %.60v", err)
			}
		case <-time.After(patience):
			t.Fatal("a call outlives its context")
		}
	}
	if n := client.Queued(s); n > callers/2 { // those that were on their way are cancelled
		t.Errorf("%d requests that nobody waits for are still to be sent", n)
	}
	closing := call(func() (struct{}, error) { return struct{}{}, s.Close() })
	if _, err := returned(t, "Close", closing); err == nil || !strings.HasSuffix(err.Error(), "did not answer within 5s") {
		t.Errorf("Close: %v", err)
	}
	if err := p.Kill(); err != nil {
		t.Error(err)
	}
}

func TestKilledSidecar(t *testing.T) {
	s, p := inProcess(t, client.SessionOptions{})
	l := acquire(t, s, "r", client.AcquireOptions{})
	killed, stood := time.Now(), standstill(t)
	if err := p.Kill(); err != nil {
		t.Fatal(err)
	}
	within(t, "lost", l.Lost())
	if d, still := time.Since(killed), stood(); d > frozenTTL/2+still { // else by its own clock
		t.Errorf("told %s after the kill; this process stood still for %s", d, still)
	}
	var lost *client.LostError
	if !errors.As(l.Err(), &lost) || lost.Reason != client.LostStream || !errors.Is(s.Err(), client.ErrStreamEnded) {
		t.Errorf("%v; %v", l.Err(), s.Err())
	}
	if err := l.Release(t.Context()); !errors.Is(err, client.ErrLockLost) || !errors.Is(err, client.ErrStreamEnded) || !errors.As(err, &lost) {
		t.Errorf("release: %v", err)
	}
	if _, err := s.Acquire(t.Context(), "r", client.AcquireOptions{}); !errors.Is(err, client.ErrStreamEnded) {
		t.Errorf("acquire: %v", err)
	}
}
