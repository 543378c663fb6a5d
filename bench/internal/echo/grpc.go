package echo

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"strconv"
	"sync/atomic"

	"github.com/redis/go-redis/v9"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/locksidecar/locksidecar/bench/internal/measure"
	"github.com/locksidecar/locksidecar/bench/internal/onredis"
)

const (
	streamMethod = "/locksidecar.bench.Echo/Stream"
	unaryMethod  = "/locksidecar.bench.Echo/Unary"
	// window is fixed, as the sidecar and its client have it: it saves the pings
	// with which gRPC measures a network. So the floor is not set too high.
	window = 1 << 20
)

// work is what a server does before it answers a message. begin makes it for
// each stream.
type (
	work  func(context.Context) error
	begin func() work
)

func nothing() work { return func(context.Context) error { return nil } }

// relay is the least that a sidecar could be: each message is one EVALSHA.
func relay(c *redis.Client) begin {
	var streams atomic.Int64
	return func() work {
		return onredis.Steps(c, "bench:relay:"+strconv.FormatInt(streams.Add(1), 10))
	}
}

// echoService is what protoc would generate for a service with the two methods.
var echoService = grpc.ServiceDesc{
	ServiceName: "locksidecar.bench.Echo",
	HandlerType: (*any)(nil),
	Methods: []grpc.MethodDesc{{
		MethodName: "Unary",
		Handler: func(_ any, _ context.Context, decode func(any) error, _ grpc.UnaryServerInterceptor) (any, error) {
			m := new(wrapperspb.BytesValue)
			if err := decode(m); err != nil {
				return nil, fmt.Errorf("decode: %w", err)
			}
			return m, nil
		},
	}},
	Streams: []grpc.StreamDesc{{
		StreamName:    "Stream",
		ClientStreams: true,
		ServerStreams: true,
		Handler: func(b any, s grpc.ServerStream) error {
			do := b.(begin)()
			for {
				m := new(wrapperspb.BytesValue)
				if err := s.RecvMsg(m); err != nil {
					if errors.Is(err, io.EOF) {
						return nil
					}
					return fmt.Errorf("receive: %w", err)
				}
				if err := do(s.Context()); err != nil {
					return err
				}
				if err := s.SendMsg(m); err != nil {
					return fmt.Errorf("send: %w", err)
				}
			}
		},
	}},
}

func serveGRPC(l net.Listener, b begin) error {
	s := grpc.NewServer(grpc.StaticStreamWindowSize(window), grpc.StaticConnWindowSize(window))
	s.RegisterService(&echoService, b)
	return s.Serve(l)
}

// Streams are gRPC messages over one bidirectional stream a caller, all on one
// connection.
func (s *Server) Streams(name string) measure.Subject {
	return s.grpcSubject(name, func(ctx context.Context, c *grpc.ClientConn) (measure.Pair, error) {
		stream, err := c.NewStream(ctx, &echoService.Streams[0], streamMethod)
		if err != nil {
			return nil, fmt.Errorf("open a stream: %w", err)
		}
		in := message()
		return twice(func(context.Context) error {
			if err := stream.SendMsg(in); err != nil {
				return fmt.Errorf("send: %w", err)
			}
			if err := stream.RecvMsg(new(wrapperspb.BytesValue)); err != nil {
				return fmt.Errorf("receive: %w", err)
			}
			return nil
		}), nil
	})
}

// Unaries are gRPC unary calls, all on one connection.
func (s *Server) Unaries(name string) measure.Subject {
	return s.grpcSubject(name, func(_ context.Context, c *grpc.ClientConn) (measure.Pair, error) {
		in := message()
		return twice(func(ctx context.Context) error {
			return c.Invoke(ctx, unaryMethod, in, new(wrapperspb.BytesValue))
		}), nil
	})
}

func (s *Server) grpcSubject(name string, open func(context.Context, *grpc.ClientConn) (measure.Pair, error)) measure.Subject {
	return measure.Subject{Name: name, Server: s.process.PID(), Open: func(ctx context.Context, callers int) ([]measure.Pair, func() error, error) {
		c, err := grpc.NewClient("unix:"+s.socket, grpc.WithTransportCredentials(insecure.NewCredentials()),
			grpc.WithStaticStreamWindowSize(window), grpc.WithStaticConnWindowSize(window))
		if err != nil {
			return nil, nil, fmt.Errorf("dial: %w", err)
		}
		var pairs []measure.Pair
		for range callers {
			pair, err := open(ctx, c)
			if err != nil {
				return nil, nil, errors.Join(err, c.Close())
			}
			pairs = append(pairs, pair)
		}
		return pairs, c.Close, nil
	}}
}

func message() *wrapperspb.BytesValue {
	return wrapperspb.Bytes(bytes.Repeat([]byte{'x'}, payloadBytes))
}
