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

	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/credentials/insecure"

	pb "github.com/locksidecar/locksidecar/api/locksidecar/v1"
)

// Modes of a lock.
const (
	Exclusive = pb.Mode_EXCLUSIVE // alone
	Shared    = pb.Mode_SHARED    // beside other shared holds
)

// Client is the way to a sidecar. Its methods may be called at the same time by many
// goroutines.
//
// Each session, and each call of Get, List, Watch, ForceRelease and Info, has a connection
// of its own, and speaks lines of JSON on it: see docs/api.md. WithGRPC makes all of them
// share one.
type Client struct {
	path string
	conn *grpc.ClientConn // nil without WithGRPC, and so is api
	api  pb.LockSidecarClient

	closing context.Context //nolint:containedctx // ends by Close, and with it the connections with lines
	close   context.CancelFunc
}

const (
	// window is fixed, so that gRPC does not measure a network where there is none.
	window     = 1 << 20
	readBuffer = 4 << 10
	// maxAnswer is above what gRPC takes without being told: one lock may have ten
	// thousand holders.
	maxAnswer = 64 << 20
	// attemptLimit is how long one attempt to connect may take, dialLimit all those
	// of Dial: on an overloaded machine one that was too slow is made again.
	attemptLimit = 5 * time.Second
	dialLimit    = 10 * time.Second
)

// Option changes how a Client works.
type Option func(*options)

type options struct {
	overGRPC bool
	dial     []grpc.DialOption
}

// WithGRPC makes everything go over one gRPC connection, with these options.
func WithGRPC(o ...grpc.DialOption) Option {
	return func(all *options) { all.overGRPC, all.dial = true, append(all.dial, o...) }
}

// Dial finds the sidecar at a socket, or at DefaultSocket if path is
// empty. It returns when the sidecar has answered. Where nothing listens it fails
// at once; a sidecar that is there and slow, or has too many callers, has 10s, or
// until ctx ends, which is only for this. When a connection ends later, the next
// call makes a new one.
// ErrNoSidecar: nothing answers there. The cause of ctx: it ended.
func Dial(ctx context.Context, path string, opts ...Option) (*Client, error) {
	if path == "" {
		var err error
		if path, err = DefaultSocket(); err != nil {
			return nil, err
		}
	}
	var o options
	for _, set := range opts {
		set(&o)
	}
	c := &Client{path: path}
	if o.overGRPC {
		if err := c.dialGRPC(ctx, o.dial); err != nil {
			return nil, err
		}
	} else if err := greet(ctx, path); err != nil {
		return nil, err
	}
	c.closing, c.close = context.WithCancel(context.WithoutCancel(ctx))
	return c, nil
}

func (c *Client) dialGRPC(ctx context.Context, o []grpc.DialOption) error {
	d := &dialer{path: c.path}
	conn, err := grpc.NewClient("passthrough:///"+c.path, append([]grpc.DialOption{
		grpc.WithTransportCredentials(insecure.NewCredentials()), // the file's mode and SO_PEERCRED guard a Unix socket
		grpc.WithAuthority("localhost"),
		grpc.WithContextDialer(d.dial),
		grpc.WithConnectParams(grpc.ConnectParams{
			Backoff:           backoff.Config{BaseDelay: 20 * time.Millisecond, Multiplier: 2, Jitter: 0.2, MaxDelay: time.Second},
			MinConnectTimeout: attemptLimit,
		}),
		grpc.WithDisableRetry(), // a retry would need a copy of every message
		grpc.WithDisableServiceConfig(),
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(maxAnswer)),
		grpc.WithReadBufferSize(readBuffer),
		grpc.WithStaticStreamWindowSize(window),
		grpc.WithStaticConnWindowSize(window),
	}, o...)...)
	if err != nil {
		return err
	}
	if err := d.await(ctx, conn); err != nil {
		_ = conn.Close()
		return err
	}
	c.conn, c.api = conn, pb.NewLockSidecarClient(conn)
	return nil
}

// Close ends the connections, and with them all sessions.
func (c *Client) Close() error {
	c.close()
	if c.conn == nil {
		return nil
	}
	return c.conn.Close()
}

// Socket is the path that the client was dialled with.
func (c *Client) Socket() string { return c.path }
