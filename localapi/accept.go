package localapi

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"strconv"
	"sync"
	"time"

	"golang.org/x/net/http2"

	"github.com/locksidecar/locksidecar/localapi/peercred"
	"github.com/locksidecar/locksidecar/session"
)

const (
	// acceptPause is taken when accept fails, which it does at once as long as no
	// file can be opened.
	acceptPause = 50 * time.Millisecond
	// failureEvery is how often it is logged that this goes on.
	failureEvery = 10 * time.Second
	// maxAsides is how many connections above the limit are told so at a time.
	// Further ones are just closed.
	maxAsides = 64
	// fewAsides is how many of one principal find room as long as there is any; more only where half of it is free. So
	// who has many of them does not keep others from being told.
	fewAsides = 4
	// refusalTime is how long telling it may take, and refusalBytes how much is read of what the client sends meanwhile:
	// more than the kernel lets it send beforehand.
	refusalTime  = time.Second
	refusalBytes = 256 << 10
)

// acceptor is a *net.UnixListener.
type acceptor interface {
	AcceptUnix() (*net.UnixConn, error)
}

// accept takes connections until the listener is closed, no faster than pace; nil: as fast as it can. It waits for
// nobody else: what may block, such as a log, is done aside.
func (s *Server) accept(ctx context.Context, l acceptor, w *peercred.Watcher, pace *pace) {
	var logged time.Time
	for {
		if pace != nil && !sleep(ctx, pace.next(time.Now())) {
			return
		}
		c, err := l.AcceptUnix()
		switch {
		case errors.Is(err, net.ErrClosed):
			return
		case err != nil:
			if time.Since(logged) > failureEvery {
				logged = time.Now()
				s.aside(session.Principal{}, func() { s.o.Logger.Error("cannot accept connections; trying again and again", keyError, err) })
			}
			if !sleep(ctx, acceptPause) {
				return
			}
			continue
		}
		s.enter(ctx, c, w)
	}
}

// sleep is false when ctx ends before.
func sleep(ctx context.Context, d time.Duration) bool {
	if d <= 0 {
		return true
	}
	select {
	case <-time.After(d):
		return true
	case <-ctx.Done():
		return false
	}
}

// enter gives a new connection its place, or turns it away.
func (s *Server) enter(ctx context.Context, uc *net.UnixConn, w *peercred.Watcher) {
	p, err := peercred.Identify(uc)
	if err != nil {
		_ = uc.Close()
		s.aside(session.Principal{}, func() { s.o.Logger.Error("cannot tell who has connected", keyError, err) })
		return
	}
	c := &conn{UnixConn: uc, peer: p, places: s.places, counted: s.unread}
	s.name(c)
	evicted, err := s.places.admit(c)
	if err != nil {
		s.refusals.count(c, err)
		if !s.aside(c.who(), func() { turnAway(c, err) }) {
			_ = uc.Close()
		}
		return
	}
	if evicted != nil {
		_ = evicted.Close()
	}
	if err := w.Watch(p, uc, func() { _ = c.Close() }); err != nil {
		_ = c.Close()
		s.aside(c.who(), func() { s.o.Logger.Error("cannot tell when the client ends", keyError, err) })
		return
	}
	s.running.Go(func() {
		s.greet(ctx, c, w)
		if evicted != nil {
			s.o.Logger.Debug("idle connection closed to make room", evicted.whois()...)
		}
	})
}

// name finds out who has made a connection, and which space of names that is in.
func (s *Server) name(c *conn) {
	if s.o.Principals != nil {
		var who Who
		who, c.unknown = s.o.Principals(c.UnixConn)
		c.principal, c.account = who.Name, who.Account
	}
	switch {
	case c.unknown != nil:
	case s.o.Spaces == nil:
		c.space = s.o.Manager.Everybody()
	default:
		c.space, c.unknown = s.o.Manager.In(s.o.Spaces(c.principal))
	}
}

// greet finds out which protocol a new connection speaks, and gives it to that
// protocol's server.
func (s *Server) greet(ctx context.Context, c *conn, w *peercred.Watcher) {
	_ = c.SetReadDeadline(time.Now().Add(s.o.Limits.Handshake))
	stop := context.AfterFunc(ctx, func() { _ = c.SetReadDeadline(time.Unix(1, 0)) }) // do not wait for the silent
	defer stop()
	var err error
	if c.allowed, err = s.o.Access.allows(c.sessionPeer(), c.UnixConn); err != nil {
		_ = c.Close()
		s.o.Logger.Error("cannot tell who has connected", keyError, err)
		return
	}
	p, read, err := sniff(c.UnixConn)
	if err == nil && p == protocolHTTP {
		err = c.listenForHangUp(w.HangUp)
	}
	if err != nil {
		_ = c.Close()
		s.o.Logger.Debug("connection closed before its first request", append(c.whois(), keyError, err)...)
		return
	}
	c.sniffed = read
	if !stop() { // its server must not find the deadline of ctx
		_ = c.Close()
		return
	}
	switch p {
	case protocolLines:
		// On another goroutine, so that what greet has needed is not kept.
		s.running.Go(func() { s.serveLines(c, w) }) //nolint:contextcheck,nolintlint // a session ends in its own time when the server stops
	case protocolGRPC:
		s.grpcConns.give(c)
	default:
		s.httpConns.give(c)
	}
}

// aside runs f, which is about a principal, on a goroutine of its own, if not too many of its kind run.
func (s *Server) aside(who session.Principal, f func()) bool {
	if !s.asides.take(who) {
		return false
	}
	s.running.Go(func() {
		defer s.asides.give(who)
		f()
	})
	return true
}

// asides counts what runs aside.
type asides struct {
	mu  sync.Mutex
	all int
	of  map[session.Principal]int
}

func (a *asides) take(who session.Principal) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.all >= maxAsides || a.all >= maxAsides/2 && a.of[who] >= fewAsides {
		return false
	}
	a.all++
	a.of[who]++
	return true
}

func (a *asides) give(who session.Principal) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.all--
	if a.of[who]--; a.of[who] == 0 {
		delete(a.of, who)
	}
}

// turnAway tells a client in its own protocol why it gets no place, and closes.
func turnAway(c *conn, why error) {
	defer func() { _ = c.UnixConn.Close() }()
	_ = c.SetDeadline(time.Now().Add(refusalTime))
	p, _, err := sniff(c.UnixConn)
	if err != nil {
		return
	}
	switch p {
	case protocolLines:
		_, _ = c.Write(lastLine(toStatus(why)))
	case protocolGRPC:
		f := http2.NewFramer(c.UnixConn, c.UnixConn)
		_ = f.WriteSettings()
		_ = f.WriteGoAway(0, http2.ErrCodeEnhanceYourCalm, []byte(why.Error()))
	default:
		_, _ = c.Write(refusal(why))
	}
	drain(c.UnixConn)
}

// drain reads what the client has sent: closing a Unix socket with unread data
// resets it, and the client would lose what was written to it.
func drain(c *net.UnixConn) {
	_ = c.CloseWrite()
	_, _ = io.CopyN(io.Discard, c, refusalBytes)
}

// refusal is an HTTP response in full.
func refusal(why error) []byte {
	st := toStatus(why)
	code, body := marshalStatus(st)
	var b bytes.Buffer
	b.WriteString("HTTP/1.1 " + strconv.Itoa(code) + " " + http.StatusText(code) + "\r\n" +
		"Content-Type: application/json\r\nConnection: close\r\nContent-Length: " + strconv.Itoa(len(body)) + "\r\n\r\n")
	b.Write(body)
	return b.Bytes()
}
