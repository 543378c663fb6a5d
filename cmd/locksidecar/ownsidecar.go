package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync/atomic"
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
	why    atomic.Pointer[error] // the store is unavailable, for the last call of which it was
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
	own := &ownSidecar{dir: dir, socket: filepath.Join(dir, "socket")}
	var wrap func(lock.Backend) lock.Backend
	if !leases {
		wrap = lookAt
	}
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
		wrap:       wrap,
		failed:     own.failed,
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

// because says why the store is unavailable, in place of where to read it. The API does not pass on what
// drivers say; here it is for the one who named the store.
func (o *ownSidecar) because(err error) error {
	if why := o.why.Load(); why != nil && errors.Is(err, client.ErrStoreUnavailable) {
		return *why
	}
	return err
}

// failed notes why a call has failed.
func (o *ownSidecar) failed(err error) {
	if errors.Is(err, lock.ErrUnavailable) {
		o.why.Store(&err)
	}
}

// A look is made again where the store does not answer: a server may be slow to take a connection. A refusal
// that will not change is told after less than a second.
const (
	lookLimit = 10 * time.Second
	lookTries = 4
	lookPause = 100 * time.Millisecond // it doubles
)

// look makes one.
func look[T any](ctx context.Context, f func(context.Context) (T, error)) (T, error) {
	ctx, cancel := context.WithTimeout(ctx, lookLimit)
	defer cancel()
	for tries, pause := 1, lookPause; ; tries, pause = tries+1, 2*pause {
		found, err := f(ctx)
		var partial *lock.PartialError // has waited for the others already
		if !errors.Is(err, lock.ErrUnavailable) || errors.As(err, &partial) || tries == lookTries {
			return found, err
		}
		select {
		case <-time.After(pause):
		case <-ctx.Done():
			return found, err
		}
	}
}

// looking is a store that is looked at by look.
type looking struct{ lock.Backend }

// lookAt gives it, with records where the store has them.
func lookAt(b lock.Backend) lock.Backend {
	if records, ok := lock.RecordsOf(b); ok {
		return lookingAtRecords{looking{b}, records}
	}
	return looking{b}
}

// Unwrap gives the Backend behind it, for lock.HandlesOf.
func (l looking) Unwrap() lock.Backend { return l.Backend }

// Get implements lock.Backend.
func (l looking) Get(ctx context.Context, r lock.Resource) (lock.Status, error) {
	return look(ctx, func(ctx context.Context) (lock.Status, error) { return l.Backend.Get(ctx, r) })
}

// List implements lock.Backend.
func (l looking) List(ctx context.Context, prefix string, p lock.Page) ([]lock.Status, error) {
	return look(ctx, func(ctx context.Context) ([]lock.Status, error) { return l.Backend.List(ctx, prefix, p) })
}

// lookingAtRecords is that with records.
type lookingAtRecords struct {
	looking
	lock.Records
}

// ReadRecord implements lock.Records.
func (l lookingAtRecords) ReadRecord(ctx context.Context, r lock.Resource) (lock.Record, error) {
	return look(ctx, func(ctx context.Context) (lock.Record, error) { return l.Records.ReadRecord(ctx, r) })
}

// ListRecords implements lock.Records.
func (l lookingAtRecords) ListRecords(ctx context.Context, prefix string, p lock.Page) ([]lock.NamedRecord, error) {
	return look(ctx, func(ctx context.Context) ([]lock.NamedRecord, error) { return l.Records.ListRecords(ctx, prefix, p) })
}
