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
	"cmp"
	"context"
	"iter"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/protobuf/types/known/durationpb"

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
// Each session has a connection of its own, and speaks lines of JSON on it: see
// docs/api.md. Get, List, Watch, ForceRelease and Info share a connection of gRPC, which
// is made when one of them is called first.
type Client struct {
	path string
	conn *grpc.ClientConn
	api  pb.LockSidecarClient

	overGRPC bool
	closing  context.Context //nolint:containedctx // ends by Close, and with it the sessions over lines
	close    context.CancelFunc
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

// WithGRPC makes the sessions streams of one gRPC connection, with these options.
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
	d := &dialer{path: path}
	conn, err := grpc.NewClient("passthrough:///"+path, append([]grpc.DialOption{
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
	}, o.dial...)...)
	if err != nil {
		return nil, err
	}
	if o.overGRPC {
		err = d.await(ctx, conn)
	} else {
		err = greet(ctx, path)
	}
	if err != nil {
		_ = conn.Close()
		return nil, err
	}
	c := &Client{path: path, conn: conn, api: pb.NewLockSidecarClient(conn), overGRPC: o.overGRPC}
	c.closing, c.close = context.WithCancel(context.WithoutCancel(ctx))
	return c, nil
}

// Close ends the connections, and with them all sessions.
func (c *Client) Close() error {
	c.close()
	return c.conn.Close()
}

// Socket is the path that the client was dialled with.
func (c *Client) Socket() string { return c.path }

// Get tells who holds and who waits for a resource, store-wide.
func (c *Client) Get(ctx context.Context, resource string) (*pb.Lock, error) {
	if err := checkString("resource", resource); err != nil {
		return nil, err
	}
	l, err := c.api.GetLock(ctx, &pb.GetLockRequest{Resource: resource})
	return l, c.fromCall(ctx, err)
}

// List tells it for all resources with that prefix that are held or waited
// for, in byte order. It ends after the first error.
func (c *Client) List(ctx context.Context, prefix string) iter.Seq2[*pb.Lock, error] {
	return func(yield func(*pb.Lock, error) bool) {
		if err := checkString("prefix", prefix); err != nil {
			yield(nil, err)
			return
		}
		q := &pb.ListLocksRequest{Prefix: prefix, PageSize: 1000}
		for {
			page, err := c.api.ListLocks(ctx, q)
			if err != nil {
				yield(nil, c.fromCall(ctx, err))
				return
			}
			for _, l := range page.GetLocks() {
				if !yield(l, nil) {
					return
				}
			}
			if q.PageToken = page.GetNextPageToken(); q.PageToken == "" {
				return
			}
		}
	}
}

// Watch brings what is there and then every change that the sidecar sees when
// it looks, once an interval (100ms to 1m; 0: 1s). It ends with an error, which
// is that of ctx when that has ended.
func (c *Client) Watch(ctx context.Context, prefix string, interval time.Duration) iter.Seq2[*pb.WatchEvent, error] {
	return func(yield func(*pb.WatchEvent, error) bool) {
		if err := checkString("prefix", prefix); err != nil {
			yield(nil, err)
			return
		}
		ctx, cancel := context.WithCancel(ctx) // ends the call when the caller stops to range
		defer cancel()
		q := &pb.WatchLocksRequest{Prefix: prefix}
		if interval != 0 {
			q.Interval = durationpb.New(interval)
		}
		st, err := c.api.WatchLocks(ctx, q)
		for err == nil {
			var e *pb.WatchEvent
			if e, err = st.Recv(); err == nil && !yield(e, nil) {
				return
			}
		}
		yield(nil, c.fromCall(ctx, err))
	}
}

// ForceRelease takes a lock from its holder, or a waiter out of the queue; an
// empty lockID means all holders. Others are granted when the holder has let
// go, or when grace is over (at most 1m). It returns the ids of what was taken:
// none where the resource was free.
// ErrNotHolder: lockID is not there. ErrPermissionDenied: not an admin.
func (c *Client) ForceRelease(ctx context.Context, resource, lockID string, grace time.Duration) ([]string, error) {
	if err := cmp.Or(checkString("resource", resource), checkString("lock_id", lockID)); err != nil {
		return nil, err
	}
	a, err := c.api.ForceRelease(ctx, &pb.ForceReleaseRequest{Resource: resource, LockId: lockID, Grace: durationpb.New(grace)})
	return a.GetLockIds(), c.fromCall(ctx, err)
}

// Info tells about the sidecar.
func (c *Client) Info(ctx context.Context) (*pb.Info, error) {
	i, err := c.api.GetInfo(ctx, &pb.GetInfoRequest{})
	return i, c.fromCall(ctx, err)
}
