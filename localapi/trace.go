package localapi

import (
	"context"
	"net/http"

	"google.golang.org/grpc/metadata"

	pb "github.com/locksidecar/locksidecar/api/locksidecar/v1"
	"github.com/locksidecar/locksidecar/session"
)

// Tracer makes spans of what apps ask for. Where there is none, nothing is on
// the way in its place.
type Tracer interface {
	// Continue gives a context in the trace that the headers of a call name, if
	// they name one.
	Continue(ctx context.Context, header func(name string) string) context.Context
	// Call begins the span of a call; end ends it. resource may be empty.
	Call(ctx context.Context, name, resource string) (_ context.Context, end func(error))
	// Acquire is Call for acquires, also those on a Session stream.
	Acquire(ctx context.Context, r session.AcquireRequest) (_ context.Context, end func(session.Grant, error))
}

func (s *Server) acquire(ctx context.Context, sess *session.Session, r session.AcquireRequest) (session.Grant, error) {
	if s.o.Tracer == nil {
		return sess.Acquire(ctx, r)
	}
	ctx, end := s.o.Tracer.Acquire(ctx, r)
	g, err := sess.Acquire(ctx, r)
	end(g, err)
	return g, err
}

// begin is acquire for who does not wait for the answer.
func (s *Server) begin(ctx context.Context, sess *session.Session, r session.AcquireRequest, then func(session.Grant, error)) *session.Request {
	if s.o.Tracer == nil {
		return sess.Begin(ctx, r, then)
	}
	ctx, end := s.o.Tracer.Acquire(ctx, r)
	return sess.Begin(ctx, r, func(g session.Grant, err error) {
		end(g, err)
		then(g, err)
	})
}

// span begins the span of any other call.
func (s *Server) span(ctx context.Context, name, resource string) (_ context.Context, end func(error)) {
	if s.o.Tracer == nil {
		return ctx, func(error) {}
	}
	return s.o.Tracer.Call(ctx, name, resource)
}

// continueGRPC puts a gRPC call into its caller's trace.
func (s *Server) continueGRPC(ctx context.Context) context.Context {
	if s.o.Tracer == nil {
		return ctx
	}
	md, _ := metadata.FromIncomingContext(ctx)
	return s.o.Tracer.Continue(ctx, func(name string) string {
		if values := md.Get(name); len(values) > 0 {
			return values[0]
		}
		return ""
	})
}

// continueRequest puts a request of a Session into the trace that it names.
func (s *Server) continueRequest(ctx context.Context, q *pb.SessionRequest) context.Context {
	if s.o.Tracer == nil || q.GetTraceparent() == "" {
		return ctx
	}
	return s.o.Tracer.Continue(ctx, func(name string) string {
		if name == "traceparent" {
			return q.GetTraceparent()
		}
		return ""
	})
}

// continueHTTP does the same for HTTP.
func (s *Server) continueHTTP(h http.Handler) http.Handler {
	if s.o.Tracer == nil {
		return h
	}
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		h.ServeHTTP(w, r.WithContext(s.o.Tracer.Continue(r.Context(), r.Header.Get)))
	})
}
