// Package promptio reads from and writes to sockets by system calls that Go's scheduler is not told of. They do not
// block: where there is nothing to read, or no room to write, the goroutine waits for the network poller, as always.
//
// The scheduler is told of a call so that it can give the processor of a thread that hangs in one to another thread. For
// that, the first such call after the program was idle wakes a thread of the runtime (sysmon), which then looks every
// 20 µs until the program is idle again. With one request at a time that is as much work as the request.
package promptio

import (
	"errors"
	"io"
	"net"
	"os"
	"sync"
	"syscall"
)

// Socket reads and writes as the connection whose fd it has does. Its methods may be called at the same time by many
// goroutines.
type Socket struct {
	raw syscall.RawConn

	reading sync.Mutex
	in      []byte
	got     int
	ended   error
	read    func(fd uintptr) bool // made once

	writing sync.Mutex
	out     []byte
	written int
	failed  error
	write   func(fd uintptr) bool
}

// New returns the Socket of a connection.
func New(c syscall.Conn) (*Socket, error) {
	raw, err := c.SyscallConn()
	s := &Socket{raw: raw}
	s.read, s.write = s.tryRead, s.tryWrite
	return s, err //nolint:wrapcheck // as the connection says it
}

// Read implements net.Conn.
func (s *Socket) Read(b []byte) (int, error) {
	if len(b) == 0 {
		return 0, nil
	}
	s.reading.Lock()
	defer s.reading.Unlock()
	s.in = b
	err := s.raw.Read(s.read)
	s.in = nil
	switch {
	case err != nil: // closed, or its time is over
		return 0, as("read", err)
	case s.ended != nil:
		return 0, as("read", s.ended)
	case s.got == 0:
		return 0, io.EOF
	default:
		return s.got, nil
	}
}

func (s *Socket) tryRead(fd uintptr) bool {
	s.got, s.ended = Read(fd, s.in)
	return !errors.Is(s.ended, syscall.EAGAIN)
}

// as is an error as the methods of a connection give it.
func as(op string, err error) error {
	if e := (*net.OpError)(nil); errors.As(err, &e) { // of a syscall.RawConn
		own := *e
		own.Op = op
		return &own
	}
	return &net.OpError{Op: op, Err: os.NewSyscallError(op, err)}
}

// Write implements net.Conn.
func (s *Socket) Write(b []byte) (int, error) {
	s.writing.Lock()
	defer s.writing.Unlock()
	s.out, s.written, s.failed = b, 0, nil
	err := s.raw.Write(s.write)
	s.out = nil
	if err == nil {
		err = s.failed
	}
	if err != nil {
		return s.written, as("write", err)
	}
	return s.written, nil
}

func (s *Socket) tryWrite(fd uintptr) bool {
	for s.written < len(s.out) && s.failed == nil {
		n, err := Write(fd, s.out[s.written:])
		s.written += n
		if errors.Is(err, syscall.EAGAIN) {
			return false
		}
		s.failed = err
	}
	return true
}
