package promptio

import (
	"bytes"
	"errors"
	"io"
	"net"
	"os"
	"syscall"
	"testing"
	"time"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// pair gives both ends of a connection, and the Socket of the first.
func pair(t *testing.T) (a *net.UnixConn, s *Socket, b *net.UnixConn) {
	t.Helper()
	fds, err := syscall.Socketpair(syscall.AF_UNIX, syscall.SOCK_STREAM|syscall.SOCK_CLOEXEC|syscall.SOCK_NONBLOCK, 0)
	if err != nil {
		t.Fatal(err)
	}
	var ends [2]*net.UnixConn
	for i, fd := range fds {
		f := os.NewFile(uintptr(fd), "")
		c, err := net.FileConn(f)
		if err != nil {
			t.Fatal(err)
		}
		_ = f.Close()
		ends[i] = c.(*net.UnixConn)
		t.Cleanup(func() { _ = ends[i].Close() })
	}
	s, err = New(ends[0])
	if err != nil {
		t.Fatal(err)
	}
	return ends[0], s, ends[1]
}

// A Socket reads what comes and writes all, however little the other end takes at a time, while both wait for each other.
func TestSocketCarriesAll(t *testing.T) {
	_, s, other := pair(t)
	sent := bytes.Repeat([]byte("locksidecar"), 1<<18)
	back := make(chan error, 2)
	go func() { // an echo with a small buffer
		_, err := io.CopyBuffer(struct{ io.Writer }{other}, struct{ io.Reader }{other}, make([]byte, 1000))
		back <- err
	}()
	go func() {
		n, err := s.Write(sent)
		if n != len(sent) {
			err = errors.Join(err, io.ErrShortWrite)
		}
		back <- err
	}()
	got := make([]byte, len(sent))
	if _, err := io.ReadFull(s, got); err != nil || !bytes.Equal(got, sent) {
		t.Fatalf("what has come back is not what was sent: %v", err)
	}
	if err := <-back; err != nil {
		t.Error(err)
	}
	_ = other.CloseRead() // which ends the echo's reading
	if err := <-back; err != nil {
		t.Log("the echo has ended with ", err)
	}
}

// Its errors are those of the connection.
func TestSocketErrors(t *testing.T) {
	conn, s, other := pair(t)
	if n, err := s.Read(nil); n != 0 || err != nil {
		t.Errorf("read of nothing: %d, %v", n, err)
	}
	_ = conn.SetDeadline(time.Now().Add(-time.Second))
	for what, f := range map[string]func([]byte) (int, error){"read": s.Read, "write": s.Write} {
		var op *net.OpError
		if _, err := f(make([]byte, 1)); !errors.Is(err, os.ErrDeadlineExceeded) || !errors.As(err, &op) || !op.Timeout() || op.Op != what {
			t.Errorf("%s after its time: %v", what, err)
		}
	}
	_ = conn.SetDeadline(time.Time{})
	waits := make(chan error)
	go func() {
		_, err := s.Read(make([]byte, 1))
		waits <- err
	}()
	_ = conn.SetReadDeadline(time.Now().Add(time.Millisecond))
	if err := <-waits; !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("read that waits: %v", err)
	}
	_ = conn.SetReadDeadline(time.Time{})
	_ = other.Close()
	if n, err := s.Read(make([]byte, 1)); n != 0 || !errors.Is(err, io.EOF) {
		t.Errorf("read at the end: %d, %v", n, err)
	}
	_, err := s.Write([]byte("x"))
	_, want := conn.Write([]byte("x"))
	var op *net.OpError
	if !errors.Is(err, syscall.EPIPE) || !errors.Is(want, syscall.EPIPE) || !errors.As(err, &op) || op.Op != "write" {
		t.Errorf("write to who is gone: %v, want %v", err, want)
	}
	_ = conn.Close()
	for what, f := range map[string]func([]byte) (int, error){"read": s.Read, "write": s.Write} {
		if _, err := f(make([]byte, 1)); !errors.Is(err, net.ErrClosed) {
			t.Errorf("%s of what is closed: %v", what, err)
		}
	}
}

func TestQuiet(t *testing.T) {
	_, s, other := pair(t)
	quiet := func(want bool, when string) {
		t.Helper()
		var got bool
		if err := s.raw.Control(func(fd uintptr) { got = Quiet(fd) }); err != nil || got != want {
			t.Errorf("%s: quiet %v, %v", when, got, err)
		}
	}
	quiet(true, "at first")
	_, _ = other.Write([]byte("x"))
	quiet(false, "with something to be read")
	if n, err := s.Read(make([]byte, 2)); n != 1 || err != nil {
		t.Errorf("it was not left there: %d, %v", n, err)
	}
	quiet(true, "when it was read")
	_ = other.Close()
	quiet(false, "at the end")
}
