package client

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"sync"
	"time"

	"golang.org/x/sys/unix"
	"google.golang.org/grpc"
	"google.golang.org/grpc/connectivity"
)

// ErrNoSidecar: nothing answers at the socket.
var ErrNoSidecar = errors.New("no sidecar answers")

// dialer makes the connections of a Client.
type dialer struct {
	path string

	mu  sync.Mutex
	err error // of the last attempt to connect
}

// dial is called by gRPC.
func (d *dialer) dial(ctx context.Context, _ string) (net.Conn, error) {
	c, err := connect(ctx, d.path)
	d.mu.Lock()
	defer d.mu.Unlock()
	d.err = err
	if err != nil {
		return nil, explainDial(d.path, err)
	}
	return c, nil
}

// connect makes one connection. While the sidecar has more callers than it has
// accepted, the kernel refuses those above its limit, who ask again.
func connect(ctx context.Context, path string) (net.Conn, error) {
	for pause := time.Millisecond; ; pause = min(2*pause, 100*time.Millisecond) {
		var dialer net.Dialer
		c, err := dialer.DialContext(ctx, "unix", path)
		if !errors.Is(err, unix.EAGAIN) {
			return c, err
		}
		select {
		case <-time.After(pause):
		case <-ctx.Done():
			return nil, err
		}
	}
}

// await waits for the first answer of the sidecar. gRPC tries again when the
// connection ends before: the sidecar ends those that are slow to say what they
// want, and on an overloaded machine that may be us.
func (d *dialer) await(ctx context.Context, conn *grpc.ClientConn) error {
	limit, cancel := context.WithTimeout(ctx, dialLimit)
	defer cancel()
	for {
		state := conn.GetState()
		switch state {
		case connectivity.Ready:
			return nil
		case connectivity.Idle: // not asked yet, or the connection has ended again
			conn.Connect()
		case connectivity.TransientFailure:
			if err := d.failed(); err != nil && !errors.Is(err, unix.EAGAIN) {
				return explainDial(d.path, err)
			}
		}
		if !conn.WaitForStateChange(limit, state) {
			if ctx.Err() != nil {
				return fmt.Errorf("dial %s: %w", d.path, context.Cause(ctx))
			}
			err := d.failed()
			if err == nil {
				err = fmt.Errorf("something listens, and has not answered within %s", dialLimit)
			}
			return explainDial(d.path, err)
		}
	}
}

// failed is the error of the last attempt to connect.
func (d *dialer) failed() error {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.err
}

// explainDial says what to do about a socket that cannot be connected to.
func explainDial(path string, err error) error {
	var op *net.OpError
	if errors.As(err, &op) {
		err = op.Err
	}
	var hint string
	switch {
	case errors.Is(err, fs.ErrNotExist):
		hint = "there is no such socket; start a sidecar with: locksidecar serve --socket " + path
	case errors.Is(err, unix.ECONNREFUSED) && !isSocket(path):
		hint = "it is not a socket"
	case errors.Is(err, unix.ECONNREFUSED):
		hint = "the sidecar that made it is gone; start one with: locksidecar serve --socket " + path
	case errors.Is(err, fs.ErrPermission):
		hint = "this user may not connect to it; see its mode and that of its directory"
	default:
		hint = err.Error()
	}
	return fmt.Errorf("%w at %s: %s", ErrNoSidecar, path, hint)
}

func isSocket(path string) bool {
	i, err := os.Stat(path)
	return err != nil || i.Mode().Type() == fs.ModeSocket
}
