package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"time"

	"github.com/locksidecar/locksidecar/backends"
	"github.com/locksidecar/locksidecar/client"
	"github.com/locksidecar/locksidecar/lock"
)

// ownSidecar is a sidecar inside this process, for commands with --store.
type ownSidecar struct {
	task   *task
	dir    string
	socket string
	store  *telling
}

// startOwnSidecar starts a sidecar on a private socket. It stops by stop. Without
// leases it only looks at the store, which needs no lease and leaves nothing there.
func startOwnSidecar(ctx context.Context, f *storeFlags, log *logFlags, io streams, leases bool) (*ownSidecar, error) {
	store, err := f.resolve()
	if err != nil {
		return nil, err
	}
	if backends.Private(store) {
		return nil, usage("--store %s would be this process's own memory and exclude nobody: name a store that others reach, or leave it out and use a sidecar", store)
	}
	logger, err := log.logger(io.err)
	if err != nil {
		return nil, err
	}
	dir, err := os.MkdirTemp("", "locksidecar-run-")
	if err != nil {
		return nil, fmt.Errorf("make a directory for the socket: %w", err)
	}
	own := &ownSidecar{dir: dir, socket: filepath.Join(dir, "socket"), store: &telling{}}
	side, err := newSidecar(ctx, sidecarOptions{
		store:      store,
		ttl:        f.ttl,
		namespace:  f.namespace,
		name:       f.name,
		socket:     own.socket,
		socketMode: 0o600,
		logger:     logger,
		stderr:     io.err,
		noLeases:   !leases,
		wrap:       own.store.wrap,
	})
	if err != nil {
		return nil, errors.Join(err, os.RemoveAll(dir))
	}
	listening := make(chan struct{})
	own.task = start(ctx, func(ctx context.Context) error { return side.Run(ctx, func() { close(listening) }) })
	select {
	case <-listening:
		return own, nil
	case <-own.task.done:
		return nil, errors.Join(own.task.err, os.RemoveAll(dir))
	}
}

// stop gives everything back to the store.
func (o *ownSidecar) stop() error {
	if o == nil {
		return nil
	}
	return errors.Join(o.task.stop(), os.RemoveAll(o.dir))
}

// because says why the store is unavailable, in place of where to read it.
func (o *ownSidecar) because(err error) error {
	if why := o.store.reason(); why != nil && errors.Is(err, client.ErrStoreUnavailable) {
		return why
	}
	return err
}

// lookLimit bounds a look at a store that does not answer.
const lookLimit = 10 * time.Second

// telling is a store that remembers why it could not be looked at. The API does not
// pass on what drivers say; here it is for the one who named the store.
type telling struct {
	lock.Backend
	mu  sync.Mutex
	why error // of the last call; nil: it was answered
}

func (t *telling) wrap(b lock.Backend) lock.Backend {
	t.Backend = b
	return t
}

// Unwrap gives the Backend behind it, for lock.RecordsOf.
func (t *telling) Unwrap() lock.Backend { return t.Backend }

func (t *telling) note(err error) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.why = err
	return err
}

func (t *telling) reason() error {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.why
}

// Get implements lock.Backend.
func (t *telling) Get(ctx context.Context, r lock.Resource) (lock.Status, error) {
	ctx, cancel := context.WithTimeout(ctx, lookLimit)
	defer cancel()
	st, err := t.Backend.Get(ctx, r)
	return st, t.note(err)
}

// List implements lock.Backend.
func (t *telling) List(ctx context.Context, prefix string, p lock.Page) ([]lock.Status, error) {
	ctx, cancel := context.WithTimeout(ctx, lookLimit)
	defer cancel()
	list, err := t.Backend.List(ctx, prefix, p)
	return list, t.note(err)
}

// ForceRelease implements lock.Backend.
func (t *telling) ForceRelease(ctx context.Context, r lock.Resource, id lock.HoldID, grace time.Duration) error {
	return t.note(t.Backend.ForceRelease(ctx, r, id, grace))
}
