package rows

import (
	"bytes"
	"context"
	"errors"
	"net"
	"sync"
	"time"
)

// socket is a connection from which somebody always reads, so that its end is noticed
// at once, also while nobody waits for an answer.
type socket struct {
	net.Conn
	end func(*socket) // called once, when the other side has ended it, or it was closed

	mu   sync.Mutex
	some sync.Cond
	data bytes.Buffer
	err  error
}

// socketBuffer bounds what is read ahead.
const socketBuffer = 16 << 10

// dialed is where dial leaves the socket of a connection under way.
type dialed struct {
	end    func(*socket)
	spawn  func(func()) bool
	socket *socket
}

type dialedKey struct{}

func dial(ctx context.Context, network, addr string) (net.Conn, error) {
	c, err := new(net.Dialer).DialContext(ctx, network, addr)
	if err != nil {
		return nil, err
	}
	at := ctx.Value(dialedKey{}).(*dialed)
	s := &socket{Conn: c, end: at.end}
	s.some.L = &s.mu
	at.socket = s
	if !at.spawn(s.run) {
		_ = c.Close()
		return nil, errClosed
	}
	return s, nil
}

// run reads until the end.
func (s *socket) run() {
	buf := make([]byte, socketBuffer)
	for {
		n, err := s.Conn.Read(buf)
		s.mu.Lock()
		for n > 0 && s.data.Len() >= socketBuffer && s.err == nil {
			s.some.Wait()
		}
		s.data.Write(buf[:n])
		if s.err == nil {
			s.err = err
		}
		over := s.err != nil
		s.some.Broadcast()
		s.mu.Unlock()
		if over {
			s.end(s)
			return
		}
	}
}

// Read implements net.Conn.
func (s *socket) Read(b []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for s.data.Len() == 0 && s.err == nil {
		s.some.Wait()
	}
	if s.data.Len() == 0 {
		return 0, s.err
	}
	s.some.Broadcast()
	return s.data.Read(b)
}

var errClosed = errors.New("the connection was closed")

// Close implements net.Conn.
func (s *socket) Close() error {
	s.mu.Lock()
	if s.err == nil {
		s.err = errClosed
	}
	s.some.Broadcast()
	s.mu.Unlock()
	return s.Conn.Close()
}

// SetDeadline and SetReadDeadline do nothing: whoever waits for an answer bounds that.
func (s *socket) SetDeadline(time.Time) error { return nil }

// SetReadDeadline implements net.Conn.
func (s *socket) SetReadDeadline(time.Time) error { return nil }
