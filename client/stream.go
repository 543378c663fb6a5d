package client

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"sync"
	"syscall"

	"google.golang.org/grpc"

	pb "github.com/locksidecar/locksidecar/api/locksidecar/v1"
	"github.com/locksidecar/locksidecar/internal/jsonlines"
)

// stream carries the messages of a session. One goroutine at a time sends, and one
// receives.
type stream interface {
	// send sends requests. errBlocked, only without wait: the sidecar has to read first;
	// send goes on with the same ones when it is called with none.
	send(batch []*pb.SessionRequest, wait bool) error
	// limits are how many requests may be sent together, and how many bytes may be
	// unanswered that send does not block without wait; 0: it never does.
	limits() (batch, unanswered int)
	recv() (*pb.SessionResponse, error)
	closeSend() error
}

// errBlocked: the sidecar has not read enough to be sent more.
var errBlocked = errors.New("the sidecar has to read first")

// openStream begins a stream that ends with ctx.
func (c *Client) openStream(ctx context.Context) (stream, error) {
	if c.api == nil {
		st, err := c.openLines(ctx)
		if err != nil {
			return nil, err
		}
		return st, nil
	}
	st, err := c.api.Session(ctx)
	if err != nil {
		return nil, c.fromCall(ctx, err)
	}
	return &grpcStream{stream: st, client: c}, nil
}

type grpcStream struct {
	stream grpc.BidiStreamingClient[pb.SessionRequest, pb.SessionResponse]
	client *Client
}

// unblocked is how many bytes may be on their way when a caller sends by itself.
// gRPC takes 64 KiB of a stream before it blocks (defaultWriteQuota), and what
// was answered has left it.
const unblocked = 32 << 10

func (s *grpcStream) limits() (int, int) { return 1, unblocked }

func (s *grpcStream) send(batch []*pb.SessionRequest, _ bool) error { return s.stream.Send(batch[0]) }

func (s *grpcStream) closeSend() error { return s.stream.CloseSend() }

func (s *grpcStream) recv() (*pb.SessionResponse, error) {
	a, err := s.stream.Recv()
	if err != nil && !errors.Is(err, io.EOF) {
		err = s.client.fromCall(context.Background(), err)
	}
	return a, err
}

// lineStream is a connection with lines of JSON.
type lineStream struct {
	conn *net.UnixConn
	raw  syscall.RawConn
	in   *bufio.Reader
	long []byte // a line that is longer than in

	out                 []byte // what is to be written
	written             int
	failed              error                 // of the last write
	write, waitAndWrite func(fd uintptr) bool // made once
}

// lineBatch is how many requests go out together.
const lineBatch = 64

func (c *Client) openLines(ctx context.Context) (*lineStream, error) {
	conn, err := connect(ctx, c.path)
	switch {
	case err != nil && ctx.Err() != nil:
		return nil, context.Cause(ctx)
	case err != nil:
		return nil, explainDial(c.path, err)
	}
	s := &lineStream{conn: conn.(*net.UnixConn), in: bufio.NewReaderSize(conn, readBuffer)} //nolint:forcetypeassert // connect dials Unix sockets
	if s.raw, err = s.conn.SyscallConn(); err != nil {
		_ = conn.Close()
		return nil, fmt.Errorf("dial %s: %w", c.path, err)
	}
	s.waitAndWrite = s.writeSome
	s.write = func(fd uintptr) bool {
		s.writeSome(fd)
		return true
	}
	// Both ctx and the client end the connection, once.
	end := sync.OnceFunc(func() { _ = conn.Close() })
	stop := context.AfterFunc(c.closing, end) //nolint:contextcheck,nolintlint // not ctx: the client's end
	context.AfterFunc(ctx, func() {
		stop()
		end()
	})
	return s, nil
}

func (s *lineStream) limits() (int, int) { return lineBatch, 0 }

func (s *lineStream) closeSend() error { return s.conn.CloseWrite() }

func (s *lineStream) send(batch []*pb.SessionRequest, wait bool) error {
	for _, q := range batch {
		line, err := jsonlines.AppendRequest(s.out, q)
		if err != nil {
			return fmt.Errorf("send request: %w", err)
		}
		s.out = line
	}
	write := s.write
	if wait {
		write = s.waitAndWrite
	}
	s.failed = nil
	for s.written < len(s.out) && s.failed == nil {
		if err := s.raw.Write(write); err != nil { // the connection is closed
			s.failed = err
		}
		if errors.Is(s.failed, syscall.EAGAIN) {
			return errBlocked
		}
	}
	s.out, s.written = s.out[:0], 0
	if cap(s.out) > lineBatch*readBuffer/16 {
		s.out = nil
	}
	if s.failed != nil {
		return fmt.Errorf("send request: %w", s.failed)
	}
	return nil
}

// writeSome writes what the sidecar's end of the socket takes. It reports false when
// that is nothing.
func (s *lineStream) writeSome(fd uintptr) bool {
	for {
		n, err := syscall.Write(int(fd), s.out[s.written:])
		if errors.Is(err, syscall.EINTR) {
			continue
		}
		s.written += max(n, 0)
		s.failed = err
		return !errors.Is(err, syscall.EAGAIN)
	}
}

// recv gives the next message. An error that belongs to no request is why the sidecar
// ends the connection.
func (s *lineStream) recv() (*pb.SessionResponse, error) {
	line, err := s.line()
	if err != nil {
		return nil, err
	}
	a, err := jsonlines.ParseResponse(line)
	switch {
	case err != nil:
		return nil, fmt.Errorf("read answer: %w", err)
	case a.GetError() != nil && a.GetRequestId() == "":
		return nil, fromStatus(a.GetError())
	default:
		return a, nil
	}
}

// line gives the next line, until the next call.
func (s *lineStream) line() ([]byte, error) {
	line, err := s.in.ReadSlice('\n')
	if !errors.Is(err, bufio.ErrBufferFull) {
		return line, err
	}
	s.long = append(s.long[:0], line...)
	for errors.Is(err, bufio.ErrBufferFull) && len(s.long) < maxAnswer {
		line, err = s.in.ReadSlice('\n')
		s.long = append(s.long, line...)
	}
	return s.long, err
}
