// Package echo is the floor under anything that talks over a Unix socket:
// servers that send back what they get, each in a process of its own, and the
// pairs of round trips that a lock and its release would need.
package echo

import (
	"context"
	"fmt"
	"net"
	"time"

	"github.com/locksidecar/locksidecar/bench/internal/measure"
	"github.com/locksidecar/locksidecar/bench/internal/onredis"
	"github.com/locksidecar/locksidecar/bench/internal/proc"
)

// payloadBytes is about what an acquire with its request id, a release with its
// lock id, and their answers weigh on the wire of a Session stream.
const payloadBytes = 64

// Server is an echo server in another process.
type Server struct {
	process *proc.Process
	socket  string
}

// stopGrace is how long a server may take to end.
const stopGrace = 2 * time.Second

// Kinds of servers.
const (
	Line  = "line"
	GRPC  = "grpc"
	Relay = "relay" // gRPC that takes and releases a lock in Redis before it answers
)

// Start starts a server; only a Relay needs the URL of a Redis. The program must
// call Serve when it is started with the words "echo KIND SOCKET REDIS".
func Start(kind, socket, redis string) (*Server, error) {
	p, err := proc.Self("echo", kind, socket, redis)
	if err != nil {
		return nil, err
	}
	if _, err := p.Line(); err != nil {
		_ = p.Kill()
		p.Wait()
		return nil, err
	}
	return &Server{process: p, socket: socket}, nil
}

// Close ends the server.
func (s *Server) Close() error { return s.process.Stop(stopGrace) }

// Serve is the other process. It says when it listens and never returns well.
func Serve(ctx context.Context, kind, socket, redis string) error {
	l, err := (&net.ListenConfig{}).Listen(ctx, "unix", socket)
	if err != nil {
		return fmt.Errorf("listen: %w", err)
	}
	fmt.Println("listening")
	switch kind {
	case Line:
		return serveLines(l)
	case GRPC:
		return serveGRPC(l, nothing)
	case Relay:
		c, err := onredis.Client(redis)
		if err != nil {
			return err
		}
		return serveGRPC(l, relay(c))
	default:
		return fmt.Errorf("no echo server of kind %q", kind)
	}
}

// twice makes a pair of two round trips.
func twice(once func(context.Context) error) measure.Pair {
	return func(ctx context.Context) error {
		if err := once(ctx); err != nil {
			return err
		}
		return once(ctx)
	}
}
