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

// backoff is the pauses between attempts: a millisecond, then twice as long each time,
// and 100ms at most.
type backoff struct{ pause time.Duration }

// wait pauses before the next attempt. It reports false when ctx has ended.
func (b *backoff) wait(ctx context.Context) bool {
	b.pause = min(max(2*b.pause, time.Millisecond), 100*time.Millisecond)
	select {
	case <-time.After(b.pause):
		return true
	case <-ctx.Done():
		return false
	}
}

// connect makes one connection. While the sidecar has more callers than it has
// accepted, the kernel refuses those above its limit, who ask again.
func connect(ctx context.Context, path string) (net.Conn, error) {
	var b backoff
	for {
		var dialer net.Dialer
		c, err := dialer.DialContext(ctx, "unix", path)
		if !errors.Is(err, unix.EAGAIN) || !b.wait(ctx) {
			return c, err
		}
	}
}

// greeting is a request to which every sidecar answers something, though it may refuse
// it. It is HTTP: the first line of a session would open one.
const greeting = "GET /healthz HTTP/1.1\r\nHost: locksidecar\r\nConnection: close\r\n\r\n"

var (
	errSilent = fmt.Errorf("something listens, and has not answered within %s", dialLimit)
	errAgain  = errors.New("the sidecar hangs up: it has too many connections, or too much to do")
)

// greet waits for the first answer of the sidecar, and asks again when the connection
// ends before, one attempt takes too long, or the sidecar has too many connections.
func greet(ctx context.Context, path string, attempt time.Duration) error {
	ctx, cancel := context.WithTimeoutCause(ctx, dialLimit, errSilent)
	defer cancel()
	var b backoff
	for {
		err := greetOnce(ctx, path, attempt)
		if err == nil {
			return nil
		}
		if again := errors.Is(err, errAgain) || errors.Is(err, errSilent) || errors.Is(err, unix.EAGAIN); again && b.wait(ctx) {
			continue
		}
		if cause := context.Cause(ctx); cause != nil && !errors.Is(cause, errSilent) {
			return fmt.Errorf("dial %s: %w", path, cause)
		}
		return explainDial(path, err)
	}
}

// greetOnce gives errAgain where the connection has ended without an answer, and errSilent
// where there was none in time.
func greetOnce(ctx context.Context, path string, attempt time.Duration) error {
	ctx, cancel := context.WithTimeout(ctx, attempt)
	defer cancel()
	c, err := connect(ctx, path)
	if err != nil {
		return err
	}
	defer func() { _ = c.Close() }()
	stop := context.AfterFunc(ctx, func() { _ = c.SetDeadline(time.Unix(1, 0)) })
	defer stop()
	answer := make([]byte, len("HTTP/1.1 429"))
	if _, err = io.WriteString(c, greeting); err == nil {
		_, err = io.ReadFull(c, answer)
	}
	switch {
	case err == nil && string(answer) != "HTTP/1.1 429":
		return nil
	case err != nil && ctx.Err() != nil:
		return errSilent
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
