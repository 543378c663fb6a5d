package sidecar

import (
	"context"
	"errors"
	"fmt"
	"strconv"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	pb "github.com/locksidecar/locksidecar/api/locksidecar/v1"
	"github.com/locksidecar/locksidecar/bench/internal/measure"
)

// Streams are pairs over the Session call with the generated code alone: one
// stream a caller, all on one connection, each waiting for its answer.
func (s *Sidecar) Streams(name string) measure.Subject {
	return measure.Subject{Name: name, Server: s.PID(), Open: func(ctx context.Context, callers int) ([]measure.Pair, func() error, error) {
		c, err := grpc.NewClient("unix:"+s.Socket, grpc.WithTransportCredentials(insecure.NewCredentials()))
		if err != nil {
			return nil, nil, fmt.Errorf("dial the sidecar: %w", err)
		}
		var pairs []measure.Pair
		for i := range callers {
			st, err := openStream(ctx, c)
			if err != nil {
				return nil, nil, errors.Join(err, c.Close())
			}
			pairs = append(pairs, st.pair(resource(name, i)))
		}
		return pairs, c.Close, nil
	}}
}

// stream is one session with one request at a time.
type stream struct {
	grpc grpc.BidiStreamingClient[pb.SessionRequest, pb.SessionResponse]
	sent int // requests so far
}

func openStream(ctx context.Context, c *grpc.ClientConn) (*stream, error) {
	g, err := pb.NewLockSidecarClient(c).Session(ctx)
	if err != nil {
		return nil, fmt.Errorf("open a stream: %w", err)
	}
	s := &stream{grpc: g}
	_, err = s.ask(&pb.SessionRequest{Request: &pb.SessionRequest_Open{Open: &pb.OpenSessionRequest{}}})
	return s, err
}

func (s *stream) pair(resource string) measure.Pair {
	return func(context.Context) error {
		granted, err := s.ask(&pb.SessionRequest{Request: &pb.SessionRequest_Acquire{
			Acquire: &pb.AcquireRequest{Resource: resource},
		}})
		if err != nil {
			return err
		}
		_, err = s.ask(&pb.SessionRequest{Request: &pb.SessionRequest_Release{
			Release: &pb.ReleaseRequest{LockId: granted.GetGranted().GetLockId()},
		}})
		return err
	}
}

// ask sends a request and waits for its answer; events are passed over.
func (s *stream) ask(q *pb.SessionRequest) (*pb.SessionResponse, error) {
	s.sent++
	q.RequestId = strconv.Itoa(s.sent)
	if err := s.grpc.Send(q); err != nil {
		return nil, fmt.Errorf("send: %w", err)
	}
	for {
		a, err := s.grpc.Recv()
		if err != nil {
			return nil, fmt.Errorf("receive: %w", err)
		}
		if e := a.GetError(); e != nil {
			return nil, fmt.Errorf("the sidecar refuses: %s", e.GetMessage())
		}
		if a.GetRequestId() == q.GetRequestId() {
			return a, nil
		}
	}
}
