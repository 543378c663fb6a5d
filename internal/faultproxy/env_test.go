package faultproxy

import (
	"errors"
	"io"
	"net"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// server answers each line with the same line, and remembers them.
type server struct {
	ln net.Listener
	wg sync.WaitGroup

	mu    sync.Mutex
	lines []string
	conns []net.Conn
}

func newServer(t *testing.T) *server {
	t.Helper()
	ln, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp4", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	s := &server{ln: ln}
	s.wg.Go(func() {
		for {
			c, err := ln.Accept()
			if err != nil {
				return
			}
			s.mu.Lock()
			s.conns = append(s.conns, c)
			s.mu.Unlock()
			s.wg.Go(func() { s.echo(c) })
		}
	})
	t.Cleanup(s.close)
	return s
}

func (s *server) close() {
	_ = s.ln.Close()
	s.mu.Lock()
	for _, c := range s.conns {
		_ = c.Close()
	}
	s.mu.Unlock()
	s.wg.Wait()
}

func (s *server) echo(c net.Conn) {
	defer c.Close()
	var line []byte
	buf := make([]byte, 1)
	for {
		if _, err := c.Read(buf); err != nil {
			return
		}
		line = append(line, buf[0])
		if buf[0] != '\n' {
			continue
		}
		s.mu.Lock()
		s.lines = append(s.lines, strings.TrimSpace(string(line)))
		s.mu.Unlock()
		if _, err := c.Write(line); err != nil {
			return
		}
		line = nil
	}
}

// got says whether the server has seen the line, now or soon.
func (s *server) got(t *testing.T, line string) {
	t.Helper()
	eventually(t, "the server gets "+line, func() bool {
		s.mu.Lock()
		defer s.mu.Unlock()
		for _, l := range s.lines {
			if l == line {
				return true
			}
		}
		return false
	})
}

func (s *server) count() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.lines)
}

func eventually(t *testing.T, what string, f func() bool) {
	t.Helper()
	for end := time.Now().Add(long); !f(); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("%s: not within %s", what, long)
		}
	}
}

func newTestProxy(t *testing.T, target string) *Proxy {
	t.Helper()
	p, err := To(t.Context(), target, Options{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := p.Close(); err != nil {
			t.Error(err)
		}
	})
	return p
}

// conn is a client's connection with deadlines.
type conn struct {
	t *testing.T
	net.Conn
}

func dial(t *testing.T, addr string) *conn {
	t.Helper()
	c, err := (&net.Dialer{Timeout: 5 * time.Second}).DialContext(t.Context(), "tcp", addr)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close() })
	return &conn{t: t, Conn: c}
}

func (c *conn) send(s string) {
	c.t.Helper()
	if _, err := io.WriteString(c, s+"\n"); err != nil {
		c.t.Fatalf("send %q: %v", s, err)
	}
}

// receive reads until a line break, the end, or nothing came for d.
func (c *conn) receive(d time.Duration) (string, error) {
	_ = c.SetReadDeadline(time.Now().Add(d))
	var out []byte
	buf := make([]byte, 1)
	for {
		n, err := c.Read(buf)
		if n == 1 && buf[0] == '\n' {
			return string(out), nil
		}
		if err != nil {
			return string(out), err
		}
		out = append(out, buf[0])
	}
}

const (
	long  = 10 * time.Second // for what must come
	short = 100 * time.Millisecond
)

func (c *conn) want(s string) {
	c.t.Helper()
	if got, err := c.receive(long); err != nil || got != s {
		c.t.Fatalf("received %q, %v; want %q", got, err, s)
	}
}

func (c *conn) wantSilence() {
	c.t.Helper()
	if got, err := c.receive(short); got != "" || !isTimeout(err) {
		c.t.Fatalf("received %q, %v; want silence", got, err)
	}
}

// wantReset checks that rest comes and then a reset.
func (c *conn) wantReset(rest string) {
	c.t.Helper()
	if got, err := c.receive(long); got != rest || !errors.Is(err, syscall.ECONNRESET) {
		c.t.Fatalf("received %q, %v; want %q and a reset", got, err, rest)
	}
}

func isTimeout(err error) bool {
	var n net.Error
	return errors.As(err, &n) && n.Timeout()
}

func wantSprung(t *testing.T, c <-chan struct{}) {
	t.Helper()
	select {
	case <-c:
	case <-time.After(long):
		t.Fatal("the fault was not applied")
	}
}

func wantRefused(t *testing.T, addr string) {
	t.Helper()
	c, err := (&net.Dialer{Timeout: long}).DialContext(t.Context(), "tcp", addr)
	if err == nil {
		_ = c.Close()
	}
	if !errors.Is(err, syscall.ECONNREFUSED) {
		t.Fatalf("dial: %v; want refused", err)
	}
}

func heal(t *testing.T, p *Proxy) {
	t.Helper()
	if err := p.Heal(); err != nil {
		t.Fatal(err)
	}
}
