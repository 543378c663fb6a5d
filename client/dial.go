package client

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"os"
	"time"

	"golang.org/x/sys/unix"
)

// ErrNoSidecar: nothing answers at the socket.
var ErrNoSidecar = errors.New("no sidecar answers")

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

// greeting is a request to which every sidecar answers something, though it may refuse
// it. It is HTTP: the first line of a session would open one.
const greeting = "GET /healthz HTTP/1.1\r\nHost: locksidecar\r\nConnection: close\r\n\r\n"

// greet waits for the first answer of the sidecar, and asks again when the connection
// ends before, or the sidecar has too many.
func greet(ctx context.Context, path string) error {
	ctx, cancel := context.WithTimeoutCause(ctx, dialLimit, errSilent)
	defer cancel()
	for pause := time.Millisecond; ; pause = min(2*pause, 100*time.Millisecond) {
		err := greetOnce(ctx, path)
		switch {
		case err == nil:
			return nil
		case ctx.Err() != nil && !errors.Is(context.Cause(ctx), errSilent):
			return fmt.Errorf("dial %s: %w", path, context.Cause(ctx))
		case ctx.Err() != nil && errors.Is(err, os.ErrDeadlineExceeded):
			return explainDial(path, errSilent)
		case ctx.Err() != nil || !errors.Is(err, errAgain) && !errors.Is(err, unix.EAGAIN):
			return explainDial(path, err)
		}
		select {
		case <-time.After(pause):
		case <-ctx.Done():
		}
	}
}

var (
	errSilent = fmt.Errorf("something listens, and has not answered within %s", dialLimit)
	errAgain  = errors.New("the sidecar hangs up: it has too many connections, or too much to do")
)

// greetOnce gives errAgain where the connection has ended without an answer.
func greetOnce(ctx context.Context, path string) error {
	limit, cancel := context.WithTimeout(ctx, attemptLimit)
	defer cancel()
	c, err := connect(limit, path)
	if err != nil {
		return err
	}
	defer func() { _ = c.Close() }()
	stop := context.AfterFunc(limit, func() { _ = c.SetDeadline(time.Unix(1, 0)) })
	defer stop()
	answer := make([]byte, len("HTTP/1.1 429"))
	if _, err = io.WriteString(c, greeting); err == nil {
		_, err = io.ReadFull(c, answer)
	}
	switch {
	case err == nil && string(answer) != "HTTP/1.1 429":
		return nil
	case err != nil && limit.Err() != nil:
		return os.ErrDeadlineExceeded
	default:
		return errAgain
	}
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
