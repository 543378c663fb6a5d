package sidecar

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/locksidecar/locksidecar/bench/internal/measure"
	"github.com/locksidecar/locksidecar/client"
)

// App is an app as a Go program writes it: one session of the Go client.
type App struct {
	client  *client.Client
	session *client.Session
}

// OpenApp connects to the sidecar at a socket.
func OpenApp(ctx context.Context, socket string) (*App, error) {
	c, err := client.Dial(ctx, socket)
	if err != nil {
		return nil, fmt.Errorf("dial the sidecar: %w", err)
	}
	s, err := c.OpenSession(ctx, client.SessionOptions{Name: "bench"})
	if err != nil {
		return nil, errors.Join(fmt.Errorf("open a session: %w", err), c.Close())
	}
	return &App{client: c, session: s}, nil
}

// Open connects to this sidecar.
func (s *Sidecar) Open(ctx context.Context) (*App, error) { return OpenApp(ctx, s.Socket) }

// OpenSoon connects to this sidecar as soon as it listens.
func (s *Sidecar) OpenSoon(ctx context.Context) (*App, error) {
	ctx, cancel := context.WithTimeout(ctx, readyTimeout)
	defer cancel()
	for {
		app, err := s.Open(ctx)
		if err == nil || ctx.Err() != nil {
			return app, err
		}
		time.Sleep(soon)
	}
}

// soon is how often a sidecar that starts is asked.
const soon = 500 * time.Microsecond

// Close gives back everything.
func (a *App) Close() error { return errors.Join(a.session.Close(), a.client.Close()) }

// Acquire waits for a lock as long as ctx lasts.
func (a *App) Acquire(ctx context.Context, resource string) (*client.Lock, error) {
	return a.session.Acquire(ctx, resource, client.AcquireOptions{NoGuard: true})
}

// Waiters are how many wait for a resource, store-wide.
func (a *App) Waiters(ctx context.Context, resource string) (int, error) {
	l, err := a.client.Get(ctx, resource)
	return len(l.GetWaiters()), err
}

// Work is what the callers of a Subject take.
type Work struct {
	// Resource names what a caller takes for its pair of that number, from 0. nil: each
	// caller has one of its own.
	Resource func(caller, pair int) string
	Options  client.AcquireOptions
}

// Client are pairs with the Go client, all callers in one session: goroutines
// of one app.
func (s *Sidecar) Client(name string, w Work) measure.Subject {
	if w.Resource == nil {
		w.Resource = func(caller, _ int) string { return resource(name, caller) }
	}
	return measure.Subject{Name: name, Server: s.PID(), Open: func(ctx context.Context, callers int) ([]measure.Pair, func() error, error) {
		app, err := s.Open(ctx)
		if err != nil {
			return nil, nil, err
		}
		var pairs []measure.Pair
		for i := range callers {
			n := 0
			pairs = append(pairs, func(ctx context.Context) error {
				l, err := app.session.Acquire(ctx, w.Resource(i, n), w.Options)
				if err != nil {
					return err
				}
				n++
				return l.Release(ctx)
			})
		}
		return pairs, app.Close, nil
	}}
}
