package promptio

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"os"
	"runtime"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
)

// stream is an endless text of which each word says whose it is and where in it the word stands.
type stream struct {
	of  uint32
	at  uint32
	out []byte
}

// next gives n more words.
func (s *stream) next(n int) []byte {
	s.out = s.out[:0]
	for range n {
		s.out = binary.BigEndian.AppendUint32(binary.BigEndian.AppendUint32(s.out, s.of), s.at)
		s.at++
	}
	return s.out
}

// check tells whether b goes on where the last call has ended.
func (s *stream) check(b []byte) error {
	s.out = append(s.out, b...)
	for ; len(s.out) >= 8; s.out = s.out[8:] {
		if of, at := binary.BigEndian.Uint32(s.out), binary.BigEndian.Uint32(s.out[4:]); of != s.of || at != s.at {
			return fmt.Errorf("word %d of stream %d, want word %d of stream %d", at, of, s.at, s.of)
		}
		s.at++
	}
	return nil
}

// ended tells whether a connection may end so. Where its time is over it goes on.
func ended(err error) bool {
	for _, may := range []error{io.EOF, net.ErrClosed, syscall.EPIPE, syscall.ECONNRESET} {
		if errors.Is(err, may) {
			return true
		}
	}
	return false
}

// read reads from one end until it ends.
func read(r io.Reader, of uint32, size int) error {
	s, b := stream{of: of}, make([]byte, size)
	for {
		n, err := r.Read(b)
		if bad := s.check(b[:n]); bad != nil {
			return bad
		}
		switch {
		case errors.Is(err, os.ErrDeadlineExceeded):
			runtime.Gosched()
		case err != nil && ended(err):
			return nil
		case err != nil:
			return fmt.Errorf("read %d: %w", of, err)
		}
	}
}

// write writes to one end until it ends. What was cut off by a deadline goes on where it was.
func write(w io.Writer, of uint32, words int) error {
	s := stream{of: of}
	for {
		b := s.next(words)
		for len(b) > 0 {
			n, err := w.Write(b)
			b = b[n:]
			switch {
			case errors.Is(err, os.ErrDeadlineExceeded):
				runtime.Gosched()
			case err != nil && ended(err):
				return nil
			case err != nil:
				return fmt.Errorf("write %d: %w", of, err)
			}
		}
	}
}

// TestNumbersAreUsedAgain: connections end while they are read and written, and the kernel gives their numbers to the next
// ones at once. Nobody ever reads, or gets, a byte of another connection, however it ends, and nothing of one that lasts is lost
// or comes twice.
func TestNumbersAreUsedAgain(t *testing.T) {
	rounds := 60
	if testing.Short() {
		rounds = 20
	}
	usedAgain(t, rounds)
}

// TestFewNumbersAreUsedAgain is the same for the race detector, which sees in some connections what it would see in many.
func TestFewNumbersAreUsedAgain(t *testing.T) { usedAgain(t, 10) }

func usedAgain(t *testing.T, rounds int) {
	const many = 8
	var all sync.WaitGroup
	for worker := range many {
		all.Go(func() {
			r := rand.New(rand.NewPCG(uint64(worker), 1))
			for round := range rounds {
				if err := tortured(t, r, uint32(worker*rounds+round)<<1); err != nil {
					t.Error(err)
					return
				}
			}
		})
	}
	all.Wait()
}

// tortured is the life of one connection, which carries one stream to each side.
func tortured(t *testing.T, r *rand.Rand, of uint32) error {
	conn, s, other := pair(t)
	failed := make(chan error, 4)
	sizes := [4]int{1 + r.IntN(5000), 1 + r.IntN(1<<13), 1 + r.IntN(5000), 1 + r.IntN(1<<13)}
	go func() { failed <- read(s, of, sizes[0]) }()
	go func() { failed <- write(s, of+1, sizes[1]) }()
	go func() { failed <- read(other, of+1, sizes[2]) }()
	go func() { failed <- write(other, of, sizes[3]) }()
	for range r.IntN(20) {
		switch r.IntN(4) {
		case 0:
			_ = conn.SetDeadline(time.Unix(1, 0))
		case 1:
			_ = conn.SetReadDeadline(time.Now().Add(time.Duration(r.IntN(200)) * time.Microsecond))
		case 2:
			_ = conn.SetWriteDeadline(time.Now().Add(time.Duration(r.IntN(200)) * time.Microsecond))
		default:
			_ = conn.SetDeadline(time.Time{})
		}
		for range r.IntN(50) {
			runtime.Gosched()
		}
	}
	switch r.IntN(4) {
	case 0:
		_ = other.Close()
	case 1:
		_ = other.CloseWrite()
		runtime.Gosched()
	case 2:
		_ = other.CloseRead()
		runtime.Gosched()
	}
	_ = conn.Close()
	_ = other.Close()
	var err error
	for range cap(failed) {
		err = errors.Join(err, <-failed)
	}
	return err
}

// TestManyThatWait: who waits for a connection costs no thread.
func TestManyThatWait(t *testing.T) {
	const many = 400
	before := threads(t)
	var all sync.WaitGroup
	var conns []*net.UnixConn
	for range many {
		conn, s, _ := pair(t)
		conns = append(conns, conn)
		all.Go(func() { _, _ = s.Read(make([]byte, 1)) })
		all.Go(func() { // no socket takes so much
			_, _ = s.Write(make([]byte, 4<<20))
		})
	}
	for range 100 {
		runtime.Gosched()
	}
	if n := threads(t) - before; n > many/4 {
		t.Errorf("%d connections that wait take %d threads", many, n)
	}
	for _, c := range conns {
		_ = c.Close()
	}
	all.Wait()
}

// threads is how many threads the process has.
func threads(t *testing.T) int {
	t.Helper()
	b, err := os.ReadFile("/proc/self/status")
	if err != nil {
		t.Skip(err)
	}
	for line := range strings.Lines(string(b)) {
		var n int
		if _, err := fmt.Sscanf(line, "Threads: %d", &n); err == nil {
			return n
		}
	}
	t.Fatal("there is no Threads")
	return 0
}
