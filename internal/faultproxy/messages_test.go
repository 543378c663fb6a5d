package faultproxy

import (
	"bytes"
	"errors"
	"io"
	"net"
	"slices"
	"sync"
	"syscall"
	"testing"
	"time"
)

// TestMessages: whatever the pieces, each message comes once and whole, and only the first is the first.
func TestMessages(t *testing.T) {
	want := []string{"hello", "", "get /c"}
	var all []byte
	for i, text := range want {
		all = append(all, frame(uint32(i), text)...)
	}
	all = append(all, frame(9, "has no end")[:lengthSize+numberSize]...)
	for size := 1; size <= len(all); size++ {
		m := messages{framing: numbered}
		var got []string
		for piece := range slices.Chunk(all, size) {
			m.add(piece, func(message []byte, first bool) bool {
				if first != (len(got) == 0) {
					t.Errorf("in pieces of %d: message %d is the first: %t", size, len(got), first)
				}
				got = append(got, string(message[lengthSize+numberSize:]))
				return true
			})
		}
		if !slices.Equal(got, want) {
			t.Errorf("in pieces of %d: %q; want %q", size, got, want)
		}
	}
}

// judge gives each message with a word in it the verdict of that word.
type judge struct {
	mu   sync.Mutex
	says map[string]Verdict
	saw  map[Direction]int
}

func (j *judge) verdict(m Message) Verdict {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.saw[m.Direction]++
	for word, v := range j.says {
		if bytes.Contains(m.Bytes, []byte(word)) {
			return v
		}
	}
	return Pass
}

func newJudged(t *testing.T, s *server) (*Proxy, *judge) {
	t.Helper()
	j := &judge{
		says: map[string]Verdict{"drop": Drop, "before": CutBefore, "after": CutAfter},
		saw:  map[Direction]int{},
	}
	p, err := To(t.Context(), s.ln.Addr().String(), Options{Framing: numbered, Judge: j.verdict})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = p.Close() })
	return p, j
}

// ask sends a message, and reads the answer of the server, which repeats a line.
func (c *conn) ask(number uint32, text string) (string, error) {
	f := frame(number, text+"\n")
	if _, err := c.Write(f); err != nil {
		return "", err
	}
	_ = c.SetReadDeadline(time.Now().Add(long))
	got := make([]byte, len(f))
	n, err := io.ReadFull(c, got)
	return string(got[min(n, lengthSize+numberSize):n]), err
}

// TestProxyJudge: a message is lost alone, or the connection ends before it or after it, and then without an answer.
func TestProxyJudge(t *testing.T) {
	s := newServer(t)
	p, j := newJudged(t, s)
	c := dial(t, p.Addr())
	if got, err := c.ask(1, "one"); err != nil || got != "one\n" {
		t.Fatalf("received %q, %v", got, err)
	}
	if _, err := c.Write(frame(2, "drop this\n")); err != nil {
		t.Fatal(err)
	}
	if got, err := c.ask(3, "two"); err != nil || got != "two\n" {
		t.Fatalf("after a lost message: received %q, %v", got, err)
	}
	if n := s.count(); n != 2 {
		t.Errorf("the server has %d messages; want 2", n)
	}
	j.mu.Lock()
	if j.saw[ToServer] != 3 || j.saw[ToClient] != 2 {
		t.Errorf("judged: %v", j.saw)
	}
	j.mu.Unlock()

	if got, err := c.ask(4, "before"); err == nil || got != "" {
		t.Errorf("cut before: received %q, %v", got, err)
	}
	if n := s.count(); n != 2 {
		t.Errorf("cut before: the server has %d messages; want 2", n)
	}
	c = dial(t, p.Addr())
	if got, err := c.ask(5, "right after"); err == nil || got != "" {
		t.Errorf("cut after: received %q, %v", got, err)
	}
	eventually(t, "the server has what was cut after", func() bool { return s.count() == 3 })
}

// TestProxyShut: one of the servers cannot be reached, until it can again; who is connected stays.
func TestProxyShut(t *testing.T) {
	var all []*server
	var routes []Route
	for range 2 {
		s := newServer(t)
		all = append(all, s)
		routes = append(routes, Route{Listen: "127.0.0.1:0", Target: s.ln.Addr().String()})
	}
	p, err := New(t.Context(), routes, Options{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = p.Close() })
	addrs := p.Addrs()
	talk := func(c *conn, what string) {
		t.Helper()
		c.send(what)
		c.want(what)
	}
	first, second := dial(t, addrs[0]), dial(t, addrs[1])
	talk(first, "first")
	talk(second, "second")
	want := slices.Sorted(slices.Values([]string{routes[0].Target, routes[1].Target}))
	if got := p.Targets(); !slices.Equal(got, want) {
		t.Errorf("connected to %v; want %v", got, want)
	}

	p.Shut(routes[0].Target)
	if c, err := net.Dial("tcp", addrs[0]); err == nil { // else it was reset before Dial has returned
		_ = c.SetReadDeadline(time.Now().Add(time.Minute))
		_, err = c.Read(make([]byte, 1))
		_ = c.Close()
		if !errors.Is(err, syscall.ECONNRESET) {
			t.Errorf("a server that is shut: %v", err)
		}
	} else if !errors.Is(err, syscall.ECONNRESET) {
		t.Fatal(err)
	}
	talk(first, "still")
	talk(dial(t, addrs[1]), "other")
	if a, b := p.Dials(routes[0].Target), p.Dials(routes[1].Target); a != 2 || b != 2 {
		t.Errorf("dialled %d and %d times; want 2 and 2", a, b)
	}
	if n := all[0].count(); n != 2 {
		t.Errorf("the server that is shut has %d lines; want 2", n)
	}
	p.Shut("")
	talk(dial(t, addrs[0]), "again")
}
