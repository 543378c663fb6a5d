package main

import (
	"context"
	"errors"
	"math/rand/v2"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/hashicorp/go-hclog"

	"github.com/locksidecar/locksidecar/backends"
	"github.com/locksidecar/locksidecar/client"
	"github.com/locksidecar/locksidecar/internal/testengine"
	"github.com/locksidecar/locksidecar/lock"
)

// A sidecar that is asked to stop while its store is away stops as asked: at
// whatever moment, with whatever its apps are doing.
func TestStopWhileTheStoreIsAway(t *testing.T) {
	for name, away := range map[string]func(testing.TB, testengine.Server){
		"frozen": func(t testing.TB, s testengine.Server) { testengine.Pause(t, s) },
		"killed": func(t testing.TB, s testengine.Server) { testengine.Crash(t, s, testengine.KeepData) },
	} {
		t.Run(name, func(t *testing.T) {
			store := testengine.New(t, testengine.Redis)
			const sidecars = 10
			var all []*sidecarProgram
			for range sidecars {
				s := serveProgram(t, "--store", storeURL(store), "--ttl", "1s", "--drain", "300ms", "--lost-grace", "200ms", "--http-addr", "127.0.0.1:0")
				all = append(all, s)
			}
			busy, cancel := context.WithCancel(t.Context())
			var apps sync.WaitGroup
			t.Cleanup(func() { cancel(); apps.Wait() })
			for i, s := range all {
				c := dial(t, s)
				held := hold(t, c, "held") // in its turn: each sidecar lets go for the next
				if i < sidecars-1 {
					if err := held.Release(t.Context()); err != nil {
						t.Fatal(err)
					}
				}
				work := func(f func(x *client.Session)) {
					apps.Go(func() {
						x, err := c.OpenSession(busy, client.SessionOptions{})
						if err != nil {
							return
						}
						f(x)
						_ = x.Close()
					})
				}
				work(func(x *client.Session) { // waits
					_, _ = x.Acquire(busy, "held", client.AcquireOptions{})
				})
				work(func(x *client.Session) { // takes and gives back
					for x.Err() == nil && busy.Err() == nil {
						if l, err := x.Acquire(busy, "own/"+s.socket, client.AcquireOptions{Wait: time.Second}); err == nil {
							_ = l.Release(busy)
						}
					}
				})
				apps.Go(func() {
					for _, err := range c.Watch(busy, "", 100*time.Millisecond) {
						if err != nil {
							return
						}
					}
				})
			}
			away(t, store)
			var signals sync.WaitGroup
			for _, s := range all {
				after := time.Duration(rand.Int64N(int64(2500 * time.Millisecond))) // jeopardy, the loss, the next lease
				signals.Go(func() {
					time.Sleep(after)
					s.signal(syscall.SIGTERM)
				})
			}
			signals.Wait()
			for _, s := range all {
				if code := s.wait(); code != 0 {
					t.Errorf("exit status %d\n%s", code, s.err)
				}
			}
		})
	}
}

// The signal came before anything was started: every step of the start finds that it
// is not wanted any more.
func TestStopBeforeTheStart(t *testing.T) {
	for _, more := range [][]string{nil, {"--http-addr", "127.0.0.1:0"}, {"--store", backends.Example}} {
		for range 20 { // who is faster, the start or the stop
			ctx, cancel := context.WithCancel(t.Context())
			cancel()
			var out, err buffer
			args := append([]string{"serve", "--socket", socketDir(t) + "/s"}, more...)
			if code := execute(ctx, args, streams{out: &out, err: &err}); code != 0 {
				t.Fatalf("%v: exit status %d\n%s", more, code, err.String())
			}
		}
	}
}

// A connection that cannot be closed well, because the store is away, changes
// nothing: everything was given back before, or ends by the TTL.
func TestStoreThatCannotBeClosed(t *testing.T) {
	var logged buffer
	side, err := newSidecar(t.Context(), sidecarOptions{
		store: backends.Default, name: "test", socket: socketDir(t) + "/s", socketMode: 0o600,
		logger: hclog.New(&hclog.LoggerOptions{Output: &logged}),
	})
	if err != nil {
		t.Fatal(err)
	}
	side.backend = brokenClose{side.backend}
	ctx, cancel := context.WithCancel(t.Context())
	if err := side.Run(ctx, cancel); err != nil {
		t.Errorf("asked to stop, and ended with: %v", err)
	}
	if !strings.Contains(logged.String(), errClose.Error()) {
		t.Errorf("nothing of it is logged: %s", logged.String())
	}
}

var errClose = errors.New("use of closed network connection")

type brokenClose struct{ lock.Backend }

func (b brokenClose) Close() error { return errors.Join(b.Backend.Close(), errClose) }
