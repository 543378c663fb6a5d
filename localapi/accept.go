package localapi

import (
	"bytes"
	"context"
	"errors"
	"fmt"
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
	// maxRefusals is how many connections above the limit are told so at a time.
	// Further ones are just closed.
	maxRefusals = 64
	// refusalTime is how long telling it may take.
	refusalTime = time.Second
)

// accept takes connections until the listener is closed.
func (s *Server) accept(ctx context.Context, l *net.UnixListener, w *peercred.Watcher) {
	for {
		c, err := l.AcceptUnix()
		switch {
		case errors.Is(err, net.ErrClosed):
			return
		case err != nil:
			s.o.Logger.Error("cannot accept a connection", keyError, err)
			select {
			case <-time.After(acceptPause):
			case <-ctx.Done():
				return
			}
			continue
		}
		if !take(s.slots) {
			s.turnAway(c)
			continue
		}
		s.running.Go(func() { s.greet(ctx, c, w) })
	}
}

// greet finds out who speaks which protocol on a new connection.
func (s *Server) greet(ctx context.Context, uc *net.UnixConn, w *peercred.Watcher) {
	c := &conn{UnixConn: uc, onClose: func() { <-s.slots }}
	stop := context.AfterFunc(ctx, func() { _ = uc.SetReadDeadline(time.Unix(1, 0)) }) // do not wait for the silent
	defer stop()

	var err error
	if c.peer, err = w.Peer(uc, func() { _ = c.Close() }); err == nil {
		c.allowed, err = s.o.Access.allows(c.peer, uc)
	}
	if err != nil {
		s.o.Logger.Error("cannot tell who has connected", keyError, err)
		_ = c.Close()
		return
	}
	_ = uc.SetReadDeadline(time.Now().Add(s.o.Limits.Handshake))
	p, read, err := sniff(uc)
	if err != nil {
		s.o.Logger.Debug("connection closed before its first request", keyPID, c.peer.PID, keyUID, c.peer.UID, keyError, err)
		_ = c.Close()
		return
	}
	c.sniffed = read
	if p == protocolGRPC {
		s.grpcConns.give(c)
	} else {
		s.httpConns.give(c)
	}
}

// turnAway tells a client in its own protocol that there are too many
// connections, and closes.
func (s *Server) turnAway(c *net.UnixConn) {
	if !take(s.refusals) {
		_ = c.Close()
		return
	}
	s.running.Go(func() {
		defer func() { <-s.refusals }()
		defer func() { _ = c.Close() }()
		_ = c.SetDeadline(time.Now().Add(refusalTime))
		p, _, err := sniff(c)
		if err != nil {
			return
		}
		text := fmt.Sprintf("limit reached: at most %d connections", s.o.Limits.Connections)
		s.o.Logger.Warn("connection refused", keyError, text)
		if p == protocolGRPC {
			f := http2.NewFramer(c, c)
			_ = f.WriteSettings()
			_ = f.WriteGoAway(0, http2.ErrCodeEnhanceYourCalm, []byte(text))
		} else {
			_, _ = c.Write(refusal(text))
		}
		drain(c)
	})
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
func refusal(text string) []byte {
	st := toStatus(refuse(reasonLimit, "%s", text))
	body := marshalJSON(st)
	var b bytes.Buffer
	code := httpCode(st)
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
