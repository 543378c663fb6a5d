package zksession

import (
	"bufio"
	"context"
	"crypto/tls"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"sync"
	"time"
)

// maxPacket is the largest answer that is taken: the children of a node with
// hundreds of thousands of them.
const maxPacket = 64 << 20

// Numbers of packets that are no answers to calls.
const (
	xidEvent int32 = -1
	xidPing  int32 = -2
	xidAuth  int32 = -4
)

// link is one connection of a session.
type link struct {
	s    *Session
	addr string
	nc   net.Conn
	raw  net.Conn // what is under TLS: closing it never waits
	r    *bufio.Reader
	gone chan struct{} // closed when it is not the session's link any more

	mu       sync.Mutex
	dead     bool
	xid      int32
	out      []byte // to be written
	spare    []byte // the buffer to fill next
	writing  bool   // somebody writes, and will write what is added to out too
	pending  []sent // calls without an answer from next on, oldest first
	next     int
	lastSent time.Time
	pinged   time.Time // when a ping was sent that has no answer; zero: none
}

// sent is a call under way.
type sent struct {
	call *Call
	xid  int32
	at   time.Time
	done chan struct{} // closed with the answer; nil: nobody waits
}

// connect makes a connection and brings the session to it, or opens it.
func (s *Session) connect(ctx context.Context, to server) (*link, error) {
	ctx, cancel := context.WithTimeout(ctx, s.cfg.Timeout)
	defer cancel()
	raw, err := (&net.Dialer{}).DialContext(ctx, "tcp", to.addr)
	if err != nil {
		return nil, err
	}
	nc := raw
	if s.cfg.TLS != nil {
		cfg := s.cfg.TLS
		if cfg.ServerName == "" {
			cfg = cfg.Clone()
			cfg.ServerName = to.host
		}
		nc = tls.Client(raw, cfg) // shakes hands at the first write
	}
	l := &link{s: s, addr: to.addr, nc: nc, raw: raw, r: bufio.NewReaderSize(nc, 16<<10), gone: make(chan struct{}), lastSent: time.Now()}
	// Closing ends whatever is under way, also when ctx is cancelled.
	unhook := context.AfterFunc(ctx, func() { _ = raw.Close() })
	err = l.handshake()
	if !unhook() && err == nil {
		err = context.Cause(ctx)
	}
	if err != nil {
		_ = raw.Close()
		return nil, err
	}
	return l, nil
}

// handshake opens or continues the session, and says who we are and what we
// watch.
func (l *link) handshake() error {
	s := l.s
	s.mu.Lock()
	zxid := s.lastZxid
	var watched []string
	for path := range s.watches {
		watched = append(watched, path)
	}
	s.mu.Unlock()

	b := appendInt(make([]byte, 4, 64), 0) // version of the protocol
	b = appendLong(b, zxid)
	b = appendInt(b, int32(s.cfg.SessionTimeout/time.Millisecond)) //nolint:gosec // at most 15 minutes
	b = appendLong(b, s.id)
	b = appendBuffer(b, s.passwd)
	b = appendBool(b, false) // no server that may only be read
	if _, err := l.nc.Write(frame(b)); err != nil {
		return err
	}
	p, err := l.packet()
	if err != nil {
		return fmt.Errorf("the server does not accept the session: %w", err)
	}
	d := &decoder{b: p}
	d.int() // version of the protocol
	timeout, id, passwd := time.Duration(d.int())*time.Millisecond, d.long(), d.buffer()
	if d.err != nil {
		return d.err
	}
	if timeout <= 0 || id == 0 {
		return ErrExpired
	}
	if s.id == 0 { // else it has a reader already, and they do not change
		s.id, s.timeout, s.passwd = id, timeout, append([]byte(nil), passwd...)
	}
	l.identify()
	l.watchAgain(zxid, watched)
	return nil
}

// identify sends the credentials. What follows is done with them.
func (l *link) identify() {
	if l.s.cfg.Digest == "" {
		return
	}
	start := len(l.out)
	b := append(l.out, 0, 0, 0, 0)
	b = appendInt(b, xidAuth)
	b = appendInt(b, int32(opAuth))
	b = appendInt(b, 0)
	b = appendString(b, "digest")
	b = appendString(b, l.s.cfg.Digest)
	frame(b[start:])
	l.out = b
}

// maxWatchBytes bounds a packet of watches: the server refuses packets of more
// than a megabyte. ZooKeeper's own client sends as much at a time.
const maxWatchBytes = 128 << 10

// watchAgain tells a new server what was watched at the one before. It answers
// with the events that were missed.
func (l *link) watchAgain(zxid int64, paths []string) {
	for len(paths) > 0 {
		n, size := 0, 0
		for n < len(paths) && size < maxWatchBytes {
			size += 4 + len(paths[n])
			n++
		}
		l.enqueue(&Call{op: opSetWatches, zxid: zxid, watches: paths[:n]}, time.Now(), nil)
		paths = paths[n:]
	}
}

// enqueue adds a call to what is to be written. l.mu is held, or l is new.
func (l *link) enqueue(c *Call, now time.Time, done chan struct{}) {
	l.xid = l.xid%(1<<30) + 1
	start := len(l.out)
	b := append(l.out, 0, 0, 0, 0)
	b = appendInt(b, l.xid)
	b = appendInt(b, int32(c.op))
	b = c.appendTo(b)
	frame(b[start:])
	l.out = b
	l.pending = append(l.pending, sent{call: c, xid: l.xid, at: now, done: done})
}

// frame writes the length of a packet into its first four bytes.
func frame(b []byte) []byte {
	binary.BigEndian.PutUint32(b, uint32(len(b)-4)) //nolint:gosec // at most some megabytes
	return b
}

// send sends calls one behind the other, and has done closed when the last is
// answered. It is false, and nothing was sent, when the link is dead.
func (l *link) send(calls []*Call, done chan struct{}) bool {
	now := time.Now()
	l.mu.Lock()
	if l.dead {
		l.mu.Unlock()
		return false
	}
	for i, c := range calls {
		if i < len(calls)-1 {
			l.enqueue(c, now, nil)
		} else {
			l.enqueue(c, now, done)
		}
	}
	l.lastSent = now
	l.flush()
	return true
}

// flush writes what is to be written, and unlocks l.mu, which is held. The one
// who writes takes along what others add meanwhile: many callers share system
// calls, and a lone one has no goroutine in between.
func (l *link) flush() {
	if l.writing {
		l.mu.Unlock()
		return
	}
	l.writing = true
	for len(l.out) > 0 && !l.dead {
		b := l.out
		l.out = l.spare[:0]
		l.mu.Unlock()
		_ = l.nc.SetWriteDeadline(time.Now().Add(l.s.cfg.Timeout)) // fails only when it is closed
		if _, err := l.nc.Write(b); err != nil {
			_ = l.raw.Close() // the reader does the rest
		}
		l.mu.Lock()
		l.spare = b
	}
	l.writing = false
	l.mu.Unlock()
}

// serve reads from the connection until it ends.
func (l *link) serve(ctx context.Context) {
	guard, stop := context.WithCancel(ctx)
	var routines sync.WaitGroup
	routines.Go(func() { l.guard(guard) })
	l.mu.Lock()
	l.flush() // what the handshake has left
	for {
		if err := l.readOne(); err != nil {
			break
		}
	}
	stop() // closes the connection
	routines.Wait()

	l.mu.Lock()
	l.dead = true
	pending := l.pending[l.next:]
	l.mu.Unlock()
	l.s.unsetLink()
	close(l.gone)
	now := time.Now()
	for _, p := range pending {
		p.call.fail(ErrLost)
		l.finish(p, now)
	}
}

// guard ends the connection when an answer is overdue or ctx ends, and sends
// pings.
func (l *link) guard(ctx context.Context) {
	cfg := &l.s.cfg
	t := time.NewTicker(max(cfg.Timeout/8, time.Millisecond))
	defer t.Stop()
	for {
		select {
		case <-ctx.Done():
			_ = l.raw.Close()
			return
		case now := <-t.C:
			l.mu.Lock()
			overdue := len(l.pending) > l.next && now.Sub(l.pending[l.next].at) > cfg.Timeout ||
				!l.pinged.IsZero() && now.Sub(l.pinged) > cfg.Timeout
			if cfg.KeepAlive && !overdue && l.pinged.IsZero() && now.Sub(l.lastSent) > l.s.timeout/3 {
				l.pinged, l.lastSent = now, now
				l.out = append(l.out, 0, 0, 0, 8)
				l.out = appendInt(appendInt(l.out, xidPing), int32(opPing))
			}
			l.flush()
			if overdue {
				_ = l.raw.Close()
			}
		}
	}
}

func (l *link) packet() ([]byte, error) {
	var head [4]byte
	if _, err := io.ReadFull(l.r, head[:]); err != nil {
		return nil, err
	}
	n := binary.BigEndian.Uint32(head[:])
	if n > maxPacket {
		return nil, errMalformed
	}
	p := make([]byte, n)
	_, err := io.ReadFull(l.r, p)
	return p, err
}

// readOne reads a packet and does what it asks for. An error is the
// connection's end.
func (l *link) readOne() error {
	p, err := l.packet()
	if err != nil {
		return err
	}
	d := &decoder{b: p}
	xid, zxid, code := d.int(), d.long(), Error(d.int())
	if d.err != nil {
		return d.err
	}
	switch xid {
	case xidEvent:
		return l.event(d)
	case xidPing:
		l.mu.Lock()
		l.pinged = time.Time{}
		l.mu.Unlock()
		return nil
	case xidAuth:
		if code != 0 {
			return code
		}
		return nil
	}
	l.mu.Lock()
	if len(l.pending) == l.next || l.pending[l.next].xid != xid {
		l.mu.Unlock()
		return errMalformed // a session's requests are answered in their order
	}
	first := l.pending[l.next]
	l.pending[l.next] = sent{}
	if l.next++; l.next == len(l.pending) {
		l.pending, l.next = l.pending[:0], 0
	}
	l.mu.Unlock()
	return l.answer(first, zxid, code, d)
}

func (l *link) event(d *decoder) error {
	const deleted = 2 // 1 created, 3 data changed, 4 children changed, -1 about the session
	kind := d.int()
	d.int() // state of the session
	path := d.string()
	if d.err != nil || kind < 1 {
		return d.err
	}
	l.s.mu.Lock()
	delete(l.s.watches, path)
	l.s.mu.Unlock()
	if l.s.cfg.OnEvent != nil {
		l.s.cfg.OnEvent(Event{Path: path, Deleted: kind == deleted})
	}
	return nil
}

func (l *link) answer(p sent, zxid int64, code Error, d *decoder) error {
	s, c := l.s, p.call
	var err error
	if code != 0 {
		c.fail(code)
	} else {
		err = c.read(d)
	}
	switch {
	case err != nil:
		c.fail(ErrLost) // what the server meant is not known
	case code == errSessionExpired:
		c.fail(ErrExpired)
		s.end(ErrExpired)
	case code == errSessionMoved:
		err = code // this connection is an old one
		c.fail(ErrLost)
	case c.op == opClose && code == 0:
		s.end(ErrClosed)
	}
	s.mu.Lock()
	s.lastZxid = max(s.lastZxid, zxid)
	if c.watch && c.Err == nil {
		s.watches[c.path] = struct{}{}
	}
	s.mu.Unlock()
	l.finish(p, time.Now())
	return err
}

// finish lets go who waits for a call.
func (l *link) finish(p sent, now time.Time) {
	if l.s.cfg.Observe != nil && opNames[p.call.op] != "" {
		l.s.cfg.Observe(opNames[p.call.op], now.Sub(p.at), observed(p.call.Err))
	}
	if p.call.Then != nil {
		p.call.Then(p.call)
	}
	if p.done != nil {
		close(p.done)
	}
}

// observed is an error as far as it is a failure: the answers that are part of
// how locks work are none.
func observed(err error) error {
	if err == nil {
		return nil
	}
	for _, ordinary := range []Error{ErrNoNode, ErrNodeExists, ErrBadVersion} {
		if errors.Is(err, ordinary) {
			return nil
		}
	}
	return err
}
