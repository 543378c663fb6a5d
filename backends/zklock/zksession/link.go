package zksession

import (
	"bufio"
	"context"
	"crypto/tls"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"sync/atomic"
	"time"
)

// link is a connection of the session. It passes on what the library writes and
// reads, and looks at the few packets that the library does not tell about.
type link struct {
	net.Conn
	s    *Session
	raw  net.Conn      // what is under TLS: closing it never waits
	gone chan struct{} // closed when it is closed

	watched bool // all that is to be watched is, on this connection; under the session's mutex

	// Until the session is accepted, of the library's only goroutine then.
	asked   time.Duration // on the clock, before it asked for the session
	greeted bool          // the answer to that was good
	session int64
	timeout time.Duration

	// Of the library's reader.
	in     *bufio.Reader
	packet []byte
	rest   []byte // of it, that the library has not read
	last   int64  // transaction that the last answer is not older than

	closing atomic.Int32  // number of the packet that closes the session; 0: not sent
	closed  chan struct{} // closed when the server has answered to it
	down    atomic.Bool
	births  births
}

// dial is the library's dialer.
func (s *Session) dial(network, addr string, _ time.Duration) (net.Conn, error) {
	ctx, cancel := context.WithTimeout(context.Background(), s.cfg.Timeout)
	defer cancel()
	l, err := s.connect(ctx, network, addr)
	if err != nil {
		s.servers.refused(addr, err)
		return nil, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.err != nil {
		l.cut()
		return nil, s.err
	}
	s.latest, s.dialled = l, time.Now()
	return l, nil
}

func (s *Session) connect(ctx context.Context, network, addr string) (*link, error) {
	raw, err := (&net.Dialer{}).DialContext(ctx, network, addr)
	if err != nil {
		return nil, err
	}
	nc := raw
	if s.cfg.TLS != nil {
		cfg := s.cfg.TLS()
		if cfg.ServerName == "" {
			cfg.ServerName = s.servers.host(addr)
		}
		t := tls.Client(raw, cfg)
		if err := t.HandshakeContext(ctx); err != nil {
			return nil, errors.Join(err, raw.Close())
		}
		nc = t
	}
	l := newLink(s, nc, raw)
	// The library would wait for a server that does not answer for many times the
	// session timeout.
	return l, nc.SetDeadline(time.Now().Add(s.cfg.Timeout))
}

func newLink(s *Session, nc, raw net.Conn) *link {
	return &link{Conn: nc, s: s, raw: raw, in: bufio.NewReader(nc), gone: make(chan struct{}), closed: make(chan struct{})}
}

// cut ends the connection, whatever is under way on it.
func (l *link) cut() {
	if !l.down.Swap(true) {
		close(l.gone)
		_ = l.raw.Close()
	}
}

// Close implements net.Conn.
func (l *link) Close() error {
	l.cut()
	return nil
}

// The library's deadlines begin when the session is accepted.

// SetReadDeadline implements net.Conn.
func (l *link) SetReadDeadline(t time.Time) error {
	if !l.greeted {
		return nil
	}
	return l.Conn.SetReadDeadline(t)
}

// SetWriteDeadline implements net.Conn.
func (l *link) SetWriteDeadline(t time.Time) error {
	if !l.greeted {
		return nil
	}
	return l.Conn.SetWriteDeadline(t)
}

// What the headers of packets hold: their length, and then
// for a request its number and its kind, for an answer the request's number.
const (
	xidPing           = -2
	opCreate          = 1
	opDelete          = 2
	opGet             = 4
	opClose           = -11
	opChildren        = 12
	opMulti           = 14
	opCreate2         = 15
	opCreateContainer = 19
	opSetWatches      = 101
)

// Write implements net.Conn. The library writes one packet at a time.
//
// That a packet could not be written is told as the end of the connection, which
// the library notices when it reads. Told here, it would give the request two
// answers, and where that is its authentication, which it repeats on each new
// connection, it would wait for ever for somebody to take the second
// (resendZkAuth, whose channel has room for one).
func (l *link) Write(b []byte) (int, error) {
	if !l.greeted {
		l.asked = l.s.cfg.Clock()
	} else if len(b) >= 12 {
		xid, op := number(b[4:]), number(b[8:])
		if xid == xidPing {
			return len(b), nil
		}
		switch op {
		case opClose:
			l.closing.Store(xid)
		case opCreate:
			l.births.expect(xid)
			binary.BigEndian.PutUint32(b[8:], opCreate2) // b is the library's buffer, for this packet alone
		case opGet, opChildren:
			l.s.marked(b, op == opChildren)
		case opDelete:
			if instead := l.s.asksForWatches(b); instead != nil {
				return len(b), l.write(instead)
			}
		}
	}
	if err := l.write(b); err != nil {
		return 0, err
	}
	if l.greeted && len(b) >= 12 {
		switch number(b[8:]) {
		case opCreate2, opCreateContainer:
			l.wrote(b, 12)
		case opMulti: // the header of its first part is a kind, whether it is the last, and a code
			l.wrote(b, 12+4+1+4)
		}
	}
	return len(b), nil
}

// wrote tells of a request that was written, whose path is there.
func (l *link) wrote(request []byte, at int) {
	if path, ok := pathAt(request, at); ok {
		l.s.wrote(path)
	}
}

func (l *link) write(b []byte) error {
	_, err := l.Conn.Write(b)
	if err != nil && l.greeted {
		l.cut()
		return nil
	}
	return err
}

// Read implements net.Conn.
func (l *link) Read(b []byte) (int, error) {
	if len(l.rest) == 0 {
		if err := l.next(); err != nil {
			if !l.greeted {
				l.s.servers.refused(l.RemoteAddr().String(), err)
			}
			return 0, err
		}
	}
	n := copy(b, l.rest)
	l.rest = l.rest[n:]
	return n, nil
}

// next reads a packet for the library, and looks at it.
func (l *link) next() error {
	head, err := l.in.Peek(4)
	if err == nil {
		size := 4 + int(number(head))
		if size < 4 || size > maxAnswer {
			return fmt.Errorf("a packet of %d bytes", size)
		}
		if size > cap(l.packet) {
			l.packet = make([]byte, size)
		}
		l.packet = l.packet[:size]
		_, err = io.ReadFull(l.in, l.packet)
	}
	const header = 4 + 4 + 8 + 4 // length, number of the request, transaction, error code
	switch p := l.packet; {
	case err != nil && !l.greeted:
		return fmt.Errorf("the server does not accept the session: %w", err)
	case err != nil:
		return err
	case !l.greeted:
		err = l.begin(p)
	case len(p) >= header:
		xid, zxid := number(p[4:]), int64(binary.BigEndian.Uint64(p[8:])) //nolint:gosec // the same bits
		if xid >= 0 && zxid > 0 {
			l.last = zxid
		}
		if xid != 0 && l.closing.CompareAndSwap(xid, 0) {
			close(l.closed)
		}
		l.births.answer(xid, number(p[16:]), p[header:])
	}
	l.rest = l.packet
	return err
}

// begin reads the server's answer to the request for a session: length,
// version of the protocol, timeout in milliseconds, number of the session.
func (l *link) begin(p []byte) error {
	if len(p) < 4+4+4+8 {
		return io.ErrUnexpectedEOF
	}
	timeout := time.Duration(number(p[8:])) * time.Millisecond
	session := int64(binary.BigEndian.Uint64(p[12:])) //nolint:gosec // the same bits
	if timeout <= 0 || session == 0 {
		l.s.end(ErrExpired)
		return ErrExpired
	}
	if l.s.proof != nil && timeout < l.s.proof.timeout {
		return l.tooShort(timeout)
	}
	l.greeted, l.session, l.timeout = true, session, timeout
	return l.SetDeadline(time.Time{})
}

// tooShort refuses a server that lets the session live less long than the lease
// needs.
func (l *link) tooShort(got time.Duration) error {
	if l.s.shortened(l.asked + got) { // it is this server that has made it
		_, _ = l.Conn.Write([]byte{0, 0, 0, 8, 0, 0, 0, 1, 0xff, 0xff, 0xff, 0xf5}) // length, number, opClose
		_, _ = io.Copy(io.Discard, l.Conn)                                          // until it has taken that; the connection has a deadline
	}
	p := l.s.proof
	return fmt.Errorf("it allows sessions of %s, and a lease of %s needs %s: set maxSessionTimeout=%d in its configuration, or a TTL of at most %s",
		got, p.ttl, p.timeout, p.timeout.Milliseconds(), longest(got, l.s.cfg.Tick))
}

func number(b []byte) int32 { return int32(binary.BigEndian.Uint32(b)) } //nolint:gosec // the same bits
