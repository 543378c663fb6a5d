package localapi

import (
	"context"
	"fmt"
	"sync"

	"google.golang.org/grpc"
	"google.golang.org/grpc/encoding"
	_ "google.golang.org/grpc/encoding/proto" // the codec that is wrapped
	"google.golang.org/grpc/mem"
	"google.golang.org/protobuf/proto"

	"github.com/locksidecar/locksidecar/session"
)

// gRPC takes an answer from its handler in full, and keeps it in memory until the
// client reads it. So the large ones are counted: each connection, each
// principal and those that have limits together have a budget for what is not read yet, and a connection that leaves one unread
// for as long as Limits.Stall is closed. The small ones are bounded by the calls
// of a connection.
const (
	smallAnswer      = 4 << 10
	maxUnread        = 8 << 20   // bytes, of a connection
	maxUnreadUser    = 32 << 20  // of a principal
	maxUnreadAccount = 64 << 20  // of a service account
	maxUnreadSpace   = 128 << 20 // of a space: a quarter of what the chart gives to the sidecar of a node
)

// unread counts the bytes of large answers that clients have not read.
type unread struct {
	mu sync.Mutex
	tally
}

func newUnread() *unread {
	return &unread{tally: newTally("bytes of unread answers", each(maxUnreadUser, maxUnreadAccount, maxUnreadSpace))}
}

// owed is an answer that is counted until gRPC has written it. As a
// mem.BufferPool it learns that from gRPC.
type owed struct {
	proto.Message
	counted *unread
	conn    *conn
	size    int
	late    *countdown
}

// take counts an answer. *session.LimitError: too much is unread.
func (u *unread) take(c *conn, size int) error {
	u.mu.Lock()
	defer u.mu.Unlock()
	if c.unread > 0 && c.unread+size > maxUnread {
		return &session.LimitError{Limit: u.what, Max: maxUnread}
	}
	if _, full := u.full(c.shares(), size); full != nil {
		return full
	}
	u.owes(c, size)
	return nil
}

// forget ends the count of a connection that is closed.
func (u *unread) forget(c *conn) {
	u.mu.Lock()
	defer u.mu.Unlock()
	u.owes(c, -c.unread)
	c.forgotten = true
}

// owes counts more, or less. mu is held.
func (u *unread) owes(c *conn, size int) {
	if c.forgotten {
		return
	}
	c.unread += size
	u.add(c.shares(), size)
}

// owe gives a as what is to be sent in its place.
func (s *Server) owe(c *conn, a any) (any, error) {
	m, ok := a.(proto.Message)
	if !ok {
		return a, nil
	}
	size := proto.Size(m)
	if size < smallAnswer {
		return a, nil
	}
	if err := s.unread.take(c, size); err != nil {
		return nil, err
	}
	return &owed{Message: m, counted: s.unread, conn: c, size: size, late: newCountdown(s.o.Limits.Stall, func() { s.cutOff(c) })}, nil
}

// cutOff closes a connection whose client reads nothing.
func (s *Server) cutOff(c *conn) {
	if c.cutOff() != nil { // it was closed before
		return
	}
	s.aside(c.who(), func() {
		s.o.Logger.Warn("connection closed: its client does not read an answer", c.whois()...)
	})
}

// Get is not called.
func (o *owed) Get(n int) *[]byte { b := make([]byte, n); return &b }

// Put is called when the answer was written, or will never be.
func (o *owed) Put(*[]byte) {
	o.late.stop()
	o.counted.mu.Lock()
	defer o.counted.mu.Unlock()
	o.counted.owes(o.conn, -o.size)
}

// codec is gRPC's own, for answers that are counted and others.
type codec struct{ encoding.CodecV2 }

func newCodec() codec { return codec{encoding.GetCodecV2("proto")} }

func (c codec) Marshal(v any) (mem.BufferSlice, error) {
	o, ok := v.(*owed)
	if !ok {
		return c.CodecV2.Marshal(v)
	}
	b, err := proto.Marshal(o.Message)
	if err != nil {
		o.Put(nil)
		return nil, fmt.Errorf("marshal answer: %w", err)
	}
	return mem.BufferSlice{mem.NewBuffer(&b, o)}, nil
}

// streamOfCall is a stream with the context of its call. Where server is not nil,
// its large messages are counted.
type streamOfCall struct {
	grpc.ServerStream
	ctx    context.Context //nolint:containedctx // grpc's own way to change the context of a stream
	server *Server
	conn   *conn
}

func (s *streamOfCall) Context() context.Context { return s.ctx }

func (s *streamOfCall) SendMsg(m any) error {
	if s.server != nil {
		var err error
		if m, err = s.server.owe(s.conn, m); err != nil {
			return err
		}
	}
	return s.ServerStream.SendMsg(m)
}
