package client

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"iter"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"

	pb "github.com/locksidecar/locksidecar/api/locksidecar/v1"
)

// Get tells who holds and who waits for a resource, store-wide.
func (c *Client) Get(ctx context.Context, resource string) (*pb.Lock, error) {
	if err := checkString("resource", resource); err != nil {
		return nil, err
	}
	q := &pb.GetLockRequest{Resource: resource}
	a, err := c.ask(ctx, true, &pb.SessionRequest{Request: &pb.SessionRequest_GetLock{GetLock: q}})
	return a.GetLock(), err
}

// List tells it for all resources with that prefix that are held or waited
// for, in byte order. It ends after the first error. *IncompleteError: shards of the store did not answer;
// it comes after what the others have.
func (c *Client) List(ctx context.Context, prefix string) iter.Seq2[*pb.Lock, error] {
	return func(yield func(*pb.Lock, error) bool) {
		if err := checkString("prefix", prefix); err != nil {
			yield(nil, err)
			return
		}
		q := &pb.ListLocksRequest{Prefix: prefix, PageSize: 1000, Partial: true}
		var missing []string
		for {
			a, err := c.ask(ctx, true, &pb.SessionRequest{Request: &pb.SessionRequest_ListLocks{ListLocks: q}})
			if err != nil {
				yield(nil, err)
				return
			}
			page := a.GetLocks()
			missing = append(missing, page.GetMissingShards()...)
			for _, l := range page.GetLocks() {
				if !yield(l, nil) {
					return
				}
			}
			if q.PageToken = page.GetNextPageToken(); q.PageToken == "" {
				if err := incomplete(missing); err != nil {
					yield(nil, err)
				}
				return
			}
		}
	}
}

// Watch brings what is there and then every change that the sidecar sees when
// it looks, once an interval (100ms to 1m; 0: 1s). While shards of the store do not answer, what they have
// stays as it was seen last; an event of the kind MISSING tells which. It ends with an error, which
// is that of ctx when that has ended.
func (c *Client) Watch(ctx context.Context, prefix string, interval time.Duration) iter.Seq2[*pb.WatchEvent, error] {
	return func(yield func(*pb.WatchEvent, error) bool) {
		if err := checkString("prefix", prefix); err != nil {
			yield(nil, err)
			return
		}
		ctx, cancel := context.WithCancel(ctx) // ends the call when the caller stops to range
		defer cancel()
		q := &pb.WatchLocksRequest{Prefix: prefix, Partial: true}
		if interval != 0 {
			q.Interval = durationpb.New(interval)
		}
		a, st, err := c.begin(ctx, true, &pb.SessionRequest{Request: &pb.SessionRequest_WatchLocks{WatchLocks: q}})
		for ; err == nil; a, err = c.answer(ctx, st) {
			if !yield(a.GetWatched(), nil) {
				return
			}
		}
		yield(nil, err)
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
	q := &pb.ForceReleaseRequest{Resource: resource, LockId: lockID, Grace: durationpb.New(grace)}
	a, err := c.ask(ctx, false, &pb.SessionRequest{Request: &pb.SessionRequest_ForceRelease{ForceRelease: q}})
	return a.GetForceReleased().GetLockIds(), err
}

// Info tells about the sidecar.
func (c *Client) Info(ctx context.Context) (*pb.Info, error) {
	a, err := c.ask(ctx, true, &pb.SessionRequest{Request: &pb.SessionRequest_GetInfo{GetInfo: &pb.GetInfoRequest{}}})
	return a.GetInfo(), err
}

// ask asks on a connection of its own, without a session. What may be asked again is
// asked again where the sidecar hangs up without a word, as it does where it has too much
// to do.
func (c *Client) ask(ctx context.Context, again bool, q *pb.SessionRequest) (*pb.SessionResponse, error) {
	ctx, cancel := context.WithCancel(ctx) // ends the connection
	defer cancel()
	a, _, err := c.begin(ctx, again, q)
	return a, err
}

// begin is ask where more answers follow. The connection ends with ctx.
func (c *Client) begin(ctx context.Context, again bool, q *pb.SessionRequest) (*pb.SessionResponse, *stream, error) {
	q.RequestId = "1"
	limit, cancel := context.WithTimeout(ctx, dialLimit)
	defer cancel()
	for b := (backoff{}); ; {
		st, err := c.openStream(ctx)
		if err != nil {
			return nil, nil, err
		}
		_ = st.send([]*pb.SessionRequest{q}, true) // its error is told better by what there is to read
		a, err := c.answer(ctx, st)
		if !again || !errors.Is(err, errHungUp) || c.closing.Err() != nil {
			return a, st, err
		}
		_ = st.conn.Close()
		if !b.wait(limit) {
			return nil, nil, cmp.Or(context.Cause(ctx), err)
		}
	}
}

// errHungUp: the sidecar has ended the connection, or has ended itself.
var errHungUp = errors.New("it has ended the connection")

// answer reads one message, or the error in its place.
func (c *Client) answer(ctx context.Context, st *stream) (*pb.SessionResponse, error) {
	a, err := st.recv()
	var said *Error
	switch {
	case err == nil && a.GetError() != nil:
		return nil, fromStatus(a.GetError())
	case err == nil, errors.As(err, &said):
		return a, err
	case ctx.Err() != nil:
		return nil, context.Cause(ctx)
	case errors.Is(err, errForeign):
		return nil, fmt.Errorf("%w at %s: %w", ErrNoSidecar, c.path, err)
	default:
		return nil, fmt.Errorf("%w at %s: %w", ErrNoSidecar, c.path, errHungUp)
	}
}
