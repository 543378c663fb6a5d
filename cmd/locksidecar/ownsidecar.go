package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"github.com/locksidecar/locksidecar/backends"
)

// ownSidecar is a sidecar inside this process, for commands with --store.
type ownSidecar struct {
	task   *task
	dir    string
	socket string
}

// startOwnSidecar starts a sidecar on a private socket. It stops by stop.
func startOwnSidecar(ctx context.Context, f *storeFlags, log *logFlags, io streams) (*ownSidecar, error) {
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
	side, err := newSidecar(ctx, sidecarOptions{
		store:      store,
		ttl:        f.ttl,
		namespace:  f.namespace,
		name:       f.name,
		socket:     own.socket,
		socketMode: 0o600,
		logger:     logger,
		stderr:     io.err,
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
