package faultproxy

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net"
	"sync"
	"time"
)

// link is one connection through a Proxy.
type link struct {
	p      *Proxy
	client *net.TCPConn
	ctx    context.Context // ends with the link; carries the dial and delays
	cancel context.CancelFunc
	target string // the server

	// Guarded by p.mu.
	server *net.TCPConn // nil while it is being dialled
	dead   bool
	cut    bool   // no more answers pass
	armed  bool   // has sent what the trap's match asks for
	head   []byte // what it has sent first
	tail   []byte // end of what it has sent, where a match may have begun
	// Where requests have numbers:
	asked    uint32 // that of the request which has armed the link
	to, from frames // what passes to the server and from it
}

// open takes a connection that was accepted.
func (p *Proxy) open(client *net.TCPConn, e *endpoint) {
	p.mu.Lock()
	defer p.mu.Unlock()
	ctx, cancel := context.WithCancel(context.Background())
	l := &link{p: p, client: client, ctx: ctx, cancel: cancel, to: frames{framing: p.framing}, from: frames{framing: p.framing}}
	target := e.target
	if p.refuse { // was accepted in the moment before the listener was closed
		l.sever()
		return
	}
	p.dials[target]++
	if target == p.shut {
		l.sever()
		return
	}
	p.links[l] = struct{}{}
	l.target = target
	p.wg.Go(func() { l.run(target) })
}

// sever ends the link. p.mu is held.
//
// The client's side is reset. The server's side ends in good order, so that a
// request that was let through is carried out.
func (l *link) sever() {
	if l.dead {
		return
	}
	l.dead = true
	l.cancel()
	_ = l.client.SetLinger(0) // all that can fail here is what has ended already
	_ = l.client.Close()
	if l.server != nil {
		_ = l.server.Close()
	}
	l.p.changed.Broadcast()
}

func (l *link) run(target string) {
	defer func() {
		l.p.mu.Lock()
		l.sever()
		delete(l.p.links, l)
		l.p.mu.Unlock()
	}()
	c, err := (&net.Dialer{}).DialContext(l.ctx, "tcp", target)
	if err != nil {
		return
	}
	server := c.(*net.TCPConn)
	l.p.mu.Lock()
	dead, rw := l.dead, l.p.rw
	l.server = server
	l.p.mu.Unlock()
	if dead {
		_ = server.Close() // sever did not know of it yet
		return
	}
	var pumps sync.WaitGroup
	pumps.Go(func() { l.pump(ToServer, server, l.client, nil) })
	pumps.Go(func() { l.pump(ToClient, l.client, server, rw.stream()) })
	pumps.Wait()
}

// pump carries bytes in one direction until either side ends. When it returns
// for another reason than the orderly end of src, the link is severed.
func (l *link) pump(d Direction, dst, src *net.TCPConn, rw *rewriting) {
	buf := make([]byte, 16<<10)
	forward := func(piece []byte) bool { return l.forward(d, dst, piece) }
	if l.p.judge != nil {
		whole := messages{framing: l.p.framing}
		forward = func(piece []byte) bool {
			return whole.add(piece, func(m []byte, first bool) bool { return l.judged(d, dst, m, first) })
		}
	}
	for {
		n, err := src.Read(buf)
		if piece := rw.rewrite(buf[:n], err != nil); len(piece) > 0 && !forward(piece) {
			break
		}
		if errors.Is(err, io.EOF) {
			// The end of a stream is held back as its bytes are.
			if l.wait(d) && dst.CloseWrite() == nil {
				return
			}
			break
		}
		if err != nil {
			l.wait(d)
			break
		}
	}
	l.p.mu.Lock()
	l.sever()
	l.p.mu.Unlock()
}

// wait returns when d is not held back, or with false when the link is dead.
func (l *link) wait(d Direction) bool {
	l.p.mu.Lock()
	defer l.p.mu.Unlock()
	return l.waitLocked(d)
}

func (l *link) waitLocked(d Direction) bool {
	for (l.p.held&d != 0 || d == ToClient && l.muted()) && !l.dead {
		l.p.changed.Wait()
	}
	return !l.dead
}

// maxHead is how much of what a link sends is kept for Mute: more than a driver
// says before it comes to the point.
const maxHead = 2 << 10

// muted tells whether the link is one of those. p.mu is held.
func (l *link) muted() bool {
	return l.p.mute != "" && bytes.Contains(l.head, []byte(l.p.mute))
}

// forward lets a piece pass when and as far as the faults allow. It is false
// when the link is dead.
func (l *link) forward(d Direction, dst net.Conn, piece []byte) bool {
	l.p.mu.Lock()
	delay := l.p.delay
	l.p.mu.Unlock()
	if delay > 0 {
		select {
		case <-time.After(delay):
		case <-l.ctx.Done():
			return false
		}
	}
	for len(piece) > 0 {
		pass, sprung := l.check(d, piece)
		if len(pass) > 0 {
			if _, err := dst.Write(pass); err != nil {
				return false
			}
			piece = piece[len(pass):]
		}
		if sprung != nil {
			l.p.Inject(sprung.fault)
			close(sprung.sprung)
		} else if len(pass) == 0 {
			return false
		}
	}
	return true
}

// check says how much of a piece may pass now, and which trap it sets off
// after that. Nothing at all: the link is dead.
func (l *link) check(d Direction, piece []byte) (pass []byte, sprung *trap) {
	p := l.p
	p.mu.Lock()
	defer p.mu.Unlock()
	if !l.waitLocked(d) {
		return nil, nil
	}
	if d == ToServer && len(l.head) < maxHead {
		l.head = append(l.head, piece[:min(len(piece), maxHead-len(l.head))]...)
	}
	t := p.trap
	match := ""
	if t != nil {
		match = t.match
	}
	if d == ToServer && match != "" && !l.armed && p.framing == nil {
		// Before it is sent, for the answer may come at once.
		l.tail = append(l.tail, piece...)
		l.armed = bytes.Contains(l.tail, []byte(match))
		l.tail = bytes.Clone(l.tail[max(0, len(l.tail)-len(match)+1):])
	}
	pass = piece
	switch {
	case t == nil, t.dir != d, match != "" && !l.armed:
	case match != "" && p.framing != nil:
		if n, found := l.from.before(piece, l.asked); found {
			pass, sprung = piece[:n], t
		}
	case int64(len(piece)) <= t.left:
		t.left -= int64(len(piece))
	default:
		pass, sprung = piece[:t.left], t
	}
	if sprung != nil {
		p.trap = nil
	}
	if p.framing != nil {
		l.count(d, pass, match)
	}
	return pass, sprung
}

// count follows what passes where requests have numbers, and arms the link. p.mu
// is held.
func (l *link) count(d Direction, piece []byte, match string) {
	if d == ToClient {
		l.from.pass(piece, "")
	} else if number, found := l.to.pass(piece, match); found && !l.armed {
		l.armed, l.asked = true, number
	}
}
