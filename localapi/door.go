package localapi

import (
	"context"
	"errors"
	"sync"
	"time"
)

// door is where clients come in: a socket, which is another one when this one's place was taken and is
// free again.
type door struct {
	s     *Server
	enter func(*socketFile) // takes connections, until the socket is closed

	mu      sync.Mutex
	socket  *socketFile
	closed  bool
	entries sync.WaitGroup
}

// open takes connections of a socket in place of those of the one before. When the door is closed, it
// closes that.
func (d *door) open(socket *socketFile) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.closed {
		return socket.Close()
	}
	before := d.socket
	d.socket = socket
	d.entries.Go(func() { d.enter(socket) })
	if before == nil {
		return nil
	}
	return before.UnixListener.Close() // nobody finds it
}

// close takes no more connections, and returns when none is being taken.
func (d *door) close() error {
	d.mu.Lock()
	d.closed = true
	err := d.socket.Close()
	d.mu.Unlock()
	d.entries.Wait()
	return err
}

// now is the socket of this moment.
func (d *door) now() *socketFile {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.socket
}

// watch tells, until ctx ends, when clients do not find the socket any more. Who has replaced a sidecar by
// Options.Replace may end before it, as when an upgrade is taken back. Then nobody would
// serve: this one takes the socket again.
func (d *door) watch(ctx context.Context) {
	o := &d.s.o
	for {
		gone := false
		d.now().watch(ctx, func() { gone = true })
		switch {
		case !gone:
			return
		case !o.Replace:
			o.Logger.Error("the socket was removed or replaced: apps that are connected keep their locks, and no others can connect; restart this sidecar", keySocket, o.Socket)
			return
		}
		o.Logger.Warn("the socket was removed or replaced: apps that are connected keep their locks, others reach the sidecar that has replaced it", keySocket, o.Socket)
		if !d.again(ctx) {
			return
		}
	}
}

// again opens the door again when nobody serves the path any more. False: ctx has ended, or this
// sidecar is about to.
func (d *door) again(ctx context.Context) bool {
	o := &d.s.o
	look := time.NewTicker(firstLook)
	defer look.Stop()
	for {
		select {
		case <-look.C:
		case <-ctx.Done():
			return false
		}
		if o.Manager.Info().Draining {
			return false
		}
		if Served(ctx, o.Socket) {
			continue
		}
		socket, err := replace(ctx, o.Socket, o.Mode)
		if err == nil {
			err = d.open(socket)
		}
		if errors.Is(err, context.Canceled) {
			return false
		}
		if err != nil {
			o.Logger.Error("nobody serves the socket, and it cannot be taken; trying again and again", keySocket, o.Socket, keyError, err)
			continue
		}
		o.Logger.Warn("who has replaced the socket serves it no more: serving again", keySocket, o.Socket)
		return true
	}
}
