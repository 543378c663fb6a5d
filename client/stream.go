package client

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"sync"
	"syscall"

	pb "github.com/locksidecar/locksidecar/api/locksidecar/v1"
	"github.com/locksidecar/locksidecar/internal/jsonlines"
)

// errBlocked: the sidecar has not read enough to be sent more.
var errBlocked = errors.New("the sidecar has to read first")

// errForeign: what came is no line of the API.
var errForeign = errors.New("what answers there is no sidecar, or an older one than this program")

// stream is a connection with lines of JSON. One goroutine at a time sends, and one
// waits for what comes. Others may take what is there.
type stream struct {
	conn *net.UnixConn
	raw  syscall.RawConn

	receiving sync.Mutex // for what follows; never held while anything waits
	in        []byte     // what was read and not yet given
	scanned   int        // in has no end of a line before this
	buf       []byte     // where in lies

	read    func(fd uintptr) bool // made once
	readErr error                 // of the last read, for who waits

	out                 []byte // what is to be written
	written             int
	failed              error                 // of the last write
	write, waitAndWrite func(fd uintptr) bool // made once
}

// lineBatch is how many requests go out together.
const lineBatch = 64

// openStream makes a connection that ends with ctx.
func (c *Client) openStream(ctx context.Context) (*stream, error) {
	conn, err := connect(ctx, c.path)
	switch {
	case err != nil && ctx.Err() != nil:
		return nil, context.Cause(ctx)
	case err != nil:
		return nil, explainDial(c.path, err)
	}
	s := &stream{conn: conn.(*net.UnixConn), buf: make([]byte, readBuffer)} //nolint:forcetypeassert // connect dials Unix sockets
	if s.raw, err = s.conn.SyscallConn(); err != nil {
		_ = conn.Close()
		return nil, fmt.Errorf("dial %s: %w", c.path, err)
	}
	s.read = s.readSome
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

func (s *stream) closeSend() error { return s.conn.CloseWrite() }

// send sends requests. errBlocked, only without wait: the sidecar has to read first; send
// goes on with the same ones when it is called with none.
func (s *stream) send(batch []*pb.SessionRequest, wait bool) error {
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
func (s *stream) writeSome(fd uintptr) bool {
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

// recv waits for the next message and gives it.
func (s *stream) recv() (*pb.SessionResponse, error) {
	for {
		s.receiving.Lock()
		m, err := s.next()
		s.receiving.Unlock()
		if m == nil && err == nil {
			err = s.more()
		}
		if m != nil || err != nil {
			return m, err
		}
	}
}

// next gives the next message of what was read, or nil. An error that belongs to no request is
// why the sidecar ends the connection. s.receiving is held.
func (s *stream) next() (*pb.SessionResponse, error) {
	line, err := s.line()
	if line == nil || err != nil {
		return nil, err
	}
	a, err := jsonlines.ParseResponse(line)
	switch {
	case err != nil:
		return nil, fmt.Errorf("read answer: %w: %w", errForeign, err)
	case a.GetError() != nil && a.GetRequestId() == "":
		return nil, fromStatus(a.GetError())
	default:
		return a, nil
	}
}

// line gives the next line, until the next call, or nil.
func (s *stream) line() ([]byte, error) {
	if !s.hasLine() {
		if len(s.in) >= maxAnswer {
			return nil, fmt.Errorf("read answer: %w: a line of more than %d MiB", errForeign, maxAnswer>>20)
		}
		return nil, nil
	}
	line := s.in[:s.scanned+1]
	s.in, s.scanned = s.in[len(line):], 0
	return line, nil
}

// hasLine tells whether the next line was read in full. It ends at scanned. s.receiving is held.
func (s *stream) hasLine() bool {
	i := bytes.IndexByte(s.in[s.scanned:], '\n')
	if i < 0 {
		s.scanned = len(s.in)
		return false
	}
	s.scanned += i
	return true
}

// more reads what there is, or waits for more. After an error it can go on where that was only
// a deadline.
func (s *stream) more() error {
	if err := s.raw.Read(s.read); err != nil {
		return err
	}
	return s.readErr
}

// readSome reports false when there is nothing to read.
func (s *stream) readSome(fd uintptr) bool {
	s.receiving.Lock()
	defer s.receiving.Unlock()
	s.readErr = nil
	if !s.hasLine() {
		s.readErr = s.fill(fd)
	}
	return !errors.Is(s.readErr, syscall.EAGAIN)
}

// unread gives the next message that stands unread, or nil where there is none. It does not
// wait. s.receiving is held.
func (s *stream) unread() (*pb.SessionResponse, error) {
	for {
		m, err := s.next()
		if m != nil || err != nil {
			return m, err
		}
		var failed error
		if err := s.raw.Control(func(fd uintptr) { failed = s.fill(fd) }); err != nil { // the connection is closed
			return nil, nil
		}
		if errors.Is(failed, syscall.EAGAIN) {
			return nil, nil
		}
		if failed != nil {
			return nil, failed
		}
	}
}

// fill reads what there is. EAGAIN: nothing.
func (s *stream) fill(fd uintptr) error {
	switch {
	case len(s.in) == len(s.buf): // there is no room for the rest of a line
		s.buf = append(make([]byte, 0, 2*len(s.buf)), s.in...)[:2*len(s.buf)]
	case len(s.buf) > readBuffer && len(s.in) < readBuffer:
		s.buf = append(make([]byte, 0, readBuffer), s.in...)[:readBuffer]
	case cap(s.in) < cap(s.buf): // it does not begin where buf does
		copy(s.buf, s.in)
	}
	for {
		n, err := syscall.Read(int(fd), s.buf[len(s.in):])
		switch {
		case errors.Is(err, syscall.EINTR):
			continue
		case err != nil:
			return err
		case n == 0:
			return io.EOF
		}
		s.in = s.buf[:len(s.in)+n]
		return nil
	}
}
