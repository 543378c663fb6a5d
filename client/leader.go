package client

import (
	"context"
	"iter"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"

	pb "github.com/locksidecar/locksidecar/api/locksidecar/v1"
)

// LeaderMetadata is the key of SessionOptions.Metadata under which a leader publishes
// something, such as its address: Leader.Value.
const LeaderMetadata = "leader"

// Leader tells who leads: who holds the resource Exclusive.
func (c *Client) Leader(ctx context.Context, resource string) (*pb.Leader, error) {
	if err := checkString("resource", resource); err != nil {
		return nil, err
	}
	q := &pb.GetLeaderRequest{Resource: resource}
	a, err := c.ask(ctx, true, &pb.SessionRequest{Request: &pb.SessionRequest_GetLeader{GetLeader: q}})
	return a.GetLeader(), err
}

// WatchLeader brings who leads, or that nobody does, and then every change that the
// sidecar sees when it looks, once an interval (100ms to 1m; 0: 1s). It ends with an
// error, which is that of ctx when that has ended.
func (c *Client) WatchLeader(ctx context.Context, resource string, interval time.Duration) iter.Seq2[*pb.Leader, error] {
	return func(yield func(*pb.Leader, error) bool) {
		if err := checkString("resource", resource); err != nil {
			yield(nil, err)
			return
		}
		ctx, cancel := context.WithCancel(ctx) // ends the call when the caller stops to range
		defer cancel()
		q := &pb.WatchLeaderRequest{Resource: resource}
		if interval != 0 {
			q.Interval = durationpb.New(interval)
		}
		a, st, err := c.begin(ctx, true, &pb.SessionRequest{Request: &pb.SessionRequest_WatchLeader{WatchLeader: q}})
		for ; err == nil; a, err = c.answer(ctx, st) {
			if !yield(a.GetLeader(), nil) {
				return
			}
		}
		yield(nil, err)
	}
}
