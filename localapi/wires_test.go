package localapi

import (
	"bufio"
	"context"
	"errors"
	"io"
	"net"
	"syscall"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/status"

	pb "github.com/locksidecar/locksidecar/api/locksidecar/v1"
	"github.com/locksidecar/locksidecar/internal/jsonlines"
)

// wireName is a way to speak with a session.
type wireName string

const (
	overGRPC  wireName = "gRPC"
	overLines wireName = "lines"
)

// overEachWire runs a test of sessions once over each wire.
func overEachWire(t *testing.T, test func(*testing.T, wireName)) {
	for _, w := range []wireName{overGRPC, overLines} {
		t.Run(string(w), func(t *testing.T) { test(t, w) })
	}
}

// streams is a client of the sidecar whose Session streams go over w; everything else
// goes over gRPC.
func (s *sidecar) streams(t testing.TB, w wireName) pb.LockSidecarClient {
	t.Helper()
	c := s.api(t)
	if w == overLines {
		return &lineAPI{LockSidecarClient: c, t: t, s: s}
	}
	return c
}

type lineAPI struct {
	pb.LockSidecarClient
	t testing.TB
	s *sidecar
}

// Session implements pb.LockSidecarClient.
func (l *lineAPI) Session(ctx context.Context, _ ...grpc.CallOption) (grpc.BidiStreamingClient[pb.SessionRequest, pb.SessionResponse], error) {
	c := l.s.dial(l.t).(*net.UnixConn)
	context.AfterFunc(ctx, func() { _ = c.Close() })
	return &lineStream{t: l.t, UnixConn: c, in: bufio.NewReader(c)}, nil
}

// lineStream is a session over lines that looks like one over gRPC.
type lineStream struct {
	grpc.ClientStream
	t testing.TB
	*net.UnixConn
	in   *bufio.Reader
	open string // id of the first request, whose refusal ends the connection
}

func (l *lineStream) Send(q *pb.SessionRequest) error {
	if l.open == "" {
		l.open = q.GetRequestId()
	}
	line, err := jsonlines.AppendRequest(nil, q)
	if err == nil {
		_, err = l.Write(line)
	}
	return err
}

// Recv gives the error of the last line as gRPC gives that of a stream.
var errWithinLine = errors.New("the connection ended within a line")

func (l *lineStream) Recv() (*pb.SessionResponse, error) {
	line, err := l.in.ReadBytes('\n')
	if err != nil {
		if len(line) > 0 {
			err = errWithinLine
		}
		return nil, err
	}
	a, err := jsonlines.ParseResponse(line)
	if err == nil && a.GetError() != nil && (a.GetRequestId() == "" || a.GetRequestId() == l.open) {
		// A socket that is closed before all was read that came is reset.
		if more, err := l.in.ReadBytes('\n'); !errors.Is(err, io.EOF) && !errors.Is(err, syscall.ECONNRESET) || len(more) > 0 {
			l.t.Errorf("behind the last line %s comes %q %v", line, more, err)
		}
		return nil, status.FromProto(a.GetError()).Err()
	}
	return a, err
}

func (l *lineStream) CloseSend() error { return l.CloseWrite() }
