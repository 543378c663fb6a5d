package localapi

import (
	"bytes"
	"context"
	"errors"
	"net"
	"net/http"
	"strconv"
	"time"

	"golang.org/x/net/http2"

	"github.com/locksidecar/locksidecar/localapi/peercred"
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
	// refusalTime is how long telling it may take.
	refusalTime = time.Second
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
				s.aside(func() { s.o.Logger.Error("cannot accept connections; trying again and again", keyError, err) })
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
		s.aside(func() { s.o.Logger.Error("cannot tell who has connected", keyError, err) })
		return
	}
	c := &conn{UnixConn: uc, peer: p, places: s.places, counted: s.unread}
	s.name(c)
	evicted, err := s.places.admit(c)
	if err != nil {
		if !s.aside(func() { s.turnAway(c, err) }) {
			_ = uc.Close()
		}
		return
	}
	if evicted != nil {
		_ = evicted.Close()
	}
	if err := w.Watch(p, uc, func() { _ = c.Close() }); err != nil {
		_ = c.Close()
		s.aside(func() { s.o.Logger.Error("cannot tell when the client ends", keyError, err) })
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

// aside runs f on a goroutine of its own, if not too many of its kind run.
func (s *Server) aside(f func()) bool {
	if !take(s.asides) {
		return false
	}
	s.running.Go(func() {
		defer func() { <-s.asides }()
		f()
	})
	return true
}

// turnAway tells a client in its own protocol why it gets no place, and closes.
func (s *Server) turnAway(c *conn, why error) {
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
	s.o.Logger.Warn("connection refused", append(c.whois(), keyError, why)...)
}

// drain reads what the client has sent: closing a Unix socket with unread data
// resets it, and the client would lose what was written to it.
func drain(c *net.UnixConn) {
	_ = c.CloseWrite()
	buf := make([]byte, 4096)
	for {
		if _, err := c.Read(buf); err != nil {
			return
		}
	}
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

// take gets a place in a counting semaphore, if there is one.
func take(places chan struct{}) bool {
	select {
	case places <- struct{}{}:
		return true
	default:
		return false
	}
}
