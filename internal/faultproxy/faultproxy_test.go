package faultproxy

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"net"
	"strings"
	"sync"
	"testing"
	"time"
)

func TestProxyPasses(t *testing.T) {
	s := newServer(t)
	p := newTestProxy(t, s.ln.Addr().String())
	c := dial(t, p.Addr())
	for i := range 3 {
		c.send(fmt.Sprint("line ", i))
		c.want(fmt.Sprint("line ", i))
	}
	// The end of one direction is passed on, and the other direction goes on.
	c.send("last")
	if err := c.Conn.(*net.TCPConn).CloseWrite(); err != nil {
		t.Fatal(err)
	}
	c.want("last")
	if _, err := c.receive(long); !errors.Is(err, io.EOF) {
		t.Fatalf("%v; want the end", err)
	}
	eventually(t, "the link is forgotten", func() bool { return p.Conns() == 0 })
}

func TestProxyBulk(t *testing.T) {
	s := newServer(t)
	p := newTestProxy(t, s.ln.Addr().String())
	c := dial(t, p.Addr())
	block := strings.Repeat("x", 100_000)
	var sent sync.WaitGroup
	sent.Go(func() { _, _ = io.WriteString(c, block+"\n") })
	c.want(block)
	sent.Wait()
}

func TestProxySever(t *testing.T) {
	s := newServer(t)
	p := newTestProxy(t, s.ln.Addr().String())
	c := dial(t, p.Addr())
	c.send("a")
	c.want("a")
	p.Inject(Sever)
	c.wantReset("")
	c = dial(t, p.Addr())
	c.send("b")
	c.want("b")
}

func TestProxyCut(t *testing.T) {
	s := newServer(t)
	p := newTestProxy(t, s.ln.Addr().String())
	c := dial(t, p.Addr())
	c.send("a")
	c.want("a")
	p.Inject(Cut)
	p.Inject(Cut) // twice is no harm
	c.wantReset("")
	wantRefused(t, p.Addr())
	heal(t, p)
	heal(t, p)
	c = dial(t, p.Addr())
	c.send("b")
	c.want("b")
}

func TestProxyHoldRequests(t *testing.T) {
	s := newServer(t)
	p := newTestProxy(t, s.ln.Addr().String())
	c := dial(t, p.Addr())
	c.send("a")
	c.want("a")
	p.Inject(HoldRequests)
	c.send("late")
	c.wantSilence()
	if n := s.count(); n != 1 {
		t.Fatalf("the server has seen %d lines; want 1", n)
	}
	d := dial(t, p.Addr())
	d.send("late too")
	heal(t, p)
	c.want("late")
	d.want("late too")
}

func TestProxyHoldRequestsOfAClientThatLeft(t *testing.T) {
	s := newServer(t)
	p := newTestProxy(t, s.ln.Addr().String())
	c := dial(t, p.Addr())
	p.Inject(HoldAll)
	c.send("testament")
	if err := c.Close(); err != nil {
		t.Fatal(err)
	}
	heal(t, p)
	s.got(t, "testament")
	eventually(t, "the link ends", func() bool { return p.Conns() == 0 })
}

func TestProxyHoldReplies(t *testing.T) {
	s := newServer(t)
	p := newTestProxy(t, s.ln.Addr().String())
	c := dial(t, p.Addr())
	p.Inject(HoldReplies)
	c.send("done")
	s.got(t, "done")
	c.wantSilence()
	heal(t, p)
	c.want("done")
}

func TestProxyMute(t *testing.T) {
	s := newServer(t)
	p := newTestProxy(t, s.ln.Addr().String())
	news, other := dial(t, p.Addr()), dial(t, p.Addr())
	news.send("subscribe")
	news.want("subscribe")
	p.Mute("subscribe")
	news.send("more")
	s.got(t, "more")
	news.wantSilence()
	other.send("a")
	other.want("a")
	heal(t, p)
	news.want("more")
}

func TestProxySeverDropsWhatIsHeld(t *testing.T) {
	s := newServer(t)
	p := newTestProxy(t, s.ln.Addr().String())
	c := dial(t, p.Addr())
	p.Inject(HoldRequests)
	c.send("never")
	c.wantSilence()
	p.Inject(Sever)
	heal(t, p)
	c.wantReset("")
	c = dial(t, p.Addr())
	c.send("next")
	c.want("next")
	if n := s.count(); n != 1 {
		t.Fatalf("the server has seen %d lines; want 1", n)
	}
}

func TestProxyInjectAfter(t *testing.T) {
	tests := []struct {
		name     string
		d        Direction
		n        int64
		seen     int    // lines at the server after "abcde"
		received string // by the client before the reset
	}{
		{"no request", ToServer, 0, 0, ""},
		{"half a request", ToServer, 3, 0, ""},
		{"no reply", ToClient, 0, 1, ""},
		{"half a reply", ToClient, 3, 1, "abc"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			s := newServer(t)
			p := newTestProxy(t, s.ln.Addr().String())
			c := dial(t, p.Addr())
			sprung := p.InjectAfter(tt.d, tt.n, Cut)
			c.send("abcde")
			wantSprung(t, sprung)
			c.wantReset(tt.received)
			wantRefused(t, p.Addr())
			if n := s.count(); n != tt.seen {
				t.Fatalf("the server has seen %d lines; want %d", n, tt.seen)
			}
		})
	}
}

func TestProxyInjectAfterCountsOverConnections(t *testing.T) {
	s := newServer(t)
	p := newTestProxy(t, s.ln.Addr().String())
	c, d := dial(t, p.Addr()), dial(t, p.Addr())
	sprung := p.InjectAfter(ToServer, 4, Sever)
	c.send("1") // two bytes with the line break
	c.want("1")
	d.send("2")
	d.want("2")
	select {
	case <-sprung:
		t.Fatal("too early")
	default:
	}
	c.send("3")
	wantSprung(t, sprung)
	c.wantReset("")
	d.wantReset("")
	dial(t, p.Addr()).send("4")
	s.got(t, "4")
}

func TestProxyInjectAfterHold(t *testing.T) {
	s := newServer(t)
	p := newTestProxy(t, s.ln.Addr().String())
	c := dial(t, p.Addr())
	wait := p.InjectAfter(ToClient, 2, HoldReplies)
	c.send("abcde")
	wantSprung(t, wait)
	if got, err := c.receive(short); got != "ab" || !isTimeout(err) {
		t.Fatalf("received %q, %v", got, err)
	}
	heal(t, p)
	c.want("cde")
}

func TestProxyLoseReply(t *testing.T) {
	s := newServer(t)
	p := newTestProxy(t, s.ln.Addr().String())
	c, d := dial(t, p.Addr()), dial(t, p.Addr())
	sprung := p.LoseReply("acquire 42", Sever)
	d.send("heartbeat")
	d.want("heartbeat")
	// The match is found across pieces.
	if _, err := io.WriteString(c, "acqui"); err != nil {
		t.Fatal(err)
	}
	d.send("acquire 41")
	d.want("acquire 41")
	c.send("re 42")
	wantSprung(t, sprung)
	c.wantReset("")
	s.got(t, "acquire 42")
	c = dial(t, p.Addr())
	c.send("acquire 42")
	c.want("acquire 42")
}

func TestProxyHealTakesBackATrap(t *testing.T) {
	s := newServer(t)
	p := newTestProxy(t, s.ln.Addr().String())
	c := dial(t, p.Addr())
	p.InjectAfter(ToServer, 0, Cut)
	p.LoseReply("a", Cut)
	heal(t, p)
	c.send("a")
	c.want("a")
}

func TestProxyDelay(t *testing.T) {
	s := newServer(t)
	p := newTestProxy(t, s.ln.Addr().String())
	c := dial(t, p.Addr())
	p.Delay(short)
	begin := time.Now()
	c.send("a")
	c.want("a")
	if d := time.Since(begin); d < 2*short {
		t.Fatalf("the answer came after %v; want at least %v", d, 2*short)
	}
	p.Delay(time.Hour)
	c.send("b")
	// Close in the test's clean-up does not wait for that hour.
}

func TestProxyServerDown(t *testing.T) {
	s := newServer(t)
	p := newTestProxy(t, s.ln.Addr().String())
	s.close()
	c, err := (&net.Dialer{}).DialContext(t.Context(), "tcp", p.Addr())
	if err != nil { // the reset may already be seen here
		return
	}
	(&conn{t: t, Conn: c}).wantReset("")
	_ = c.Close()
}

func TestProxyClose(t *testing.T) {
	s := newServer(t)
	p := newTestProxy(t, s.ln.Addr().String())
	c := dial(t, p.Addr())
	p.Inject(HoldAll)
	c.send("a")
	if err := p.Close(); err != nil {
		t.Fatal(err)
	}
	c.wantReset("")
	heal(t, p) // opens nothing again
	wantRefused(t, p.Addr())
}

func TestProxyManyAtOnce(t *testing.T) {
	s := newServer(t)
	p := newTestProxy(t, s.ln.Addr().String())
	var clients sync.WaitGroup
	for range 8 {
		clients.Go(func() {
			for i := range 50 {
				c, err := (&net.Dialer{}).DialContext(t.Context(), "tcp", p.Addr())
				if err != nil {
					continue // cut
				}
				cc := &conn{t: t, Conn: c}
				if _, err := fmt.Fprintf(c, "%d\n", i); err == nil {
					if got, err := cc.receive(long); err == nil && got != fmt.Sprint(i) {
						t.Errorf("received %q; want %d", got, i)
					}
				}
				_ = c.Close()
			}
		})
	}
	for _, f := range []Fault{Sever, Cut, HoldAll, HoldReplies, HoldRequests, Cut, Sever} {
		p.Inject(f)
		p.InjectAfter(ToClient, 1, Sever)
		heal(t, p)
	}
	clients.Wait()
	eventually(t, "all links end", func() bool { return p.Conns() == 0 })
}

func TestRewrite(t *testing.T) {
	text := "$9\r\n127.0.0.1\r\n:127.0.0.127.0.0.1 127.0.0\r\n"
	want := strings.ReplaceAll(text, "127.0.0.1", "127.1.2.3")
	for size := 1; size <= len(text); size++ {
		w := newRewriter("127.0.0.1", "127.1.2.3").stream()
		var got bytes.Buffer
		for rest := text; rest != ""; {
			n := min(size, len(rest))
			got.Write(w.rewrite([]byte(rest[:n]), false))
			rest = rest[n:]
		}
		if got.String() != want {
			t.Errorf("in pieces of %d: %q; want %q", size, got.String(), want)
		}
	}
	w := newRewriter("127.0.0.1", "127.1.2.3").stream()
	if got := string(w.rewrite([]byte("x127.0"), false)) + string(w.rewrite(nil, true)); got != "x127.0" {
		t.Errorf("at the end: %q", got)
	}
}
