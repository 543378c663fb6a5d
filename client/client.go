// Package client uses a locksidecar from Go.
//
//	c, err := client.Dial(ctx, "")
//	s, err := c.OpenSession(ctx, client.SessionOptions{Name: "billing"})
//	l, err := s.Acquire(ctx, "orders/42", client.AcquireOptions{})
//	defer l.Release(ctx)
//	select {
//	case <-done: // worked under the lock; l.Fence goes with every write
//	case <-l.Lost(): // stop at once: somebody else may get it
//	}
//
// A session is one connection to the sidecar. When the process ends, or the
// session is closed, all its locks are released at once.
package client

import (
	"context"
	"time"

	pb "github.com/locksidecar/locksidecar/api/locksidecar/v1"
)

// Modes of a lock.
const (
	Exclusive = pb.Mode_EXCLUSIVE // alone
	Permit    = pb.Mode_PERMIT    // one of so many, see AcquireOptions.Limit
	Shared    = pb.Mode_SHARED    // beside other shared holds
)

// Client is the way to a sidecar. Its methods may be called at the same time by many
// goroutines.
//
// Each session, and each call of Get, List, Watch, ForceRelease and Info, has a connection
// of its own, and speaks lines of JSON on it: see docs/api.md.
type Client struct {
	path    string
	closing context.Context //nolint:containedctx // ends by Close, and with it all connections
	close   context.CancelFunc
}

const (
	readBuffer = 4 << 10
	// maxAnswer bounds what is read: one lock may have ten thousand holders.
	maxAnswer = 64 << 20
	// attemptLimit is how long one attempt to connect may take, dialLimit all those
	// of Dial: on an overloaded machine one that was too slow is made again.
	attemptLimit = 5 * time.Second
	dialLimit    = 10 * time.Second
)

// Dial finds the sidecar at a socket, or at DefaultSocket if path is
// empty. It returns when the sidecar has answered. Where nothing listens it fails
// at once; a sidecar that is there and slow, or has too many callers, has 10s, or
// until ctx ends, which is only for this. When a connection ends later, the next
// call makes a new one.
// ErrNoSidecar: nothing answers there. The cause of ctx: it ended.
func Dial(ctx context.Context, path string) (*Client, error) {
	if path == "" {
		var err error
		if path, err = DefaultSocket(); err != nil {
			return nil, err
		}
	}
	if err := greet(ctx, path, attemptLimit); err != nil {
		return nil, err
	}
	c := &Client{path: path}
	c.closing, c.close = context.WithCancel(context.WithoutCancel(ctx))
	return c, nil
}

// Close ends the connections, and with them all sessions. Its error is nil.
func (c *Client) Close() error {
	c.close()
	return nil
}

// Socket is the path that the client was dialled with.
func (c *Client) Socket() string { return c.path }
