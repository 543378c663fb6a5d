package redislock

import (
	"bufio"
	"bytes"
	"context"
	"crypto/rand"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/locksidecar/locksidecar/internal/promptio"
)

// road is the way to one address, or to whatever Sentinel calls the master: all
// connections of one client. It knows which server process is at the other end.
//
// When a new connection finds another process there, the older connections are
// closed before the change can be seen. So a request that was sent and answered
// under one presence was answered by that process.
type road struct {
	dial dialer

	current atomic.Pointer[presence]

	mu       sync.Mutex
	master   int // the number of the last presence that was a master
	conns    map[*conn]struct{}
	named    map[string]*conn // by the token that was sent on it
	eviction string           // the maxmemory-policy that would evict locks, or empty
}

// presence is one server process for as long as it is at the end of a road. The
// process that comes back after another one is another presence.
type presence struct {
	run    string
	road   *road
	no     int // counts the presences of the road, from 1
	master int // the last one before it that was a master

	// when the last request of an app, or heartbeat, was sent that it has answered, or, as a master, who it is; since began. 0: there
	// was none
	answered atomic.Int64
	before   int64 // the same of those before it

	wrote atomic.Bool // see writes
}

// began is a moment of which only the distance matters. Go's clock is read for each request anyway.
var began = time.Now()

// answers notes that it has answered.
func (p *presence) answers(sent time.Time) {
	if at := int64(sent.Sub(began)); at > p.answered.Load() {
		p.answered.Store(at)
	}
}

// silence is for how long those before it have not answered; false: they never have.
func (p *presence) silence() (time.Duration, bool) {
	return time.Since(began) - time.Duration(p.before), p.before != 0
}

// passedAnother tells that another master was at the end of the road between before and p.
func (p *presence) passedAnother(before *presence) bool {
	return p.road == before.road && p.master > before.no
}

// writes notes that the process has written something: it is a master, though it may have been a replica when the
// connections to it were made.
func (p *presence) writes() {
	if p.wrote.Load() { // each release says so
		return
	}
	p.road.mu.Lock()
	defer p.road.mu.Unlock()
	p.road.master = max(p.road.master, p.no)
	p.wrote.Store(true)
}

type dialer = func(ctx context.Context, network, addr string) (net.Conn, error)

func newRoad(dial dialer) *road {
	return &road{dial: dial, conns: make(map[*conn]struct{}), named: make(map[string]*conn)}
}

// conn is a connection of a road. It recognises the token by which the road finds
// out which of the driver's connections is which.
type conn struct {
	net.Conn
	r     *road
	io    io.ReadWriter // reads and writes for Conn
	named atomic.Bool

	reading, writing limit
}

const (
	tokenPrefix = "locksidecar-connection-"
	tokenLength = 26
)

// connect makes a connection.
func (r *road) connect(ctx context.Context, network, addr string) (net.Conn, error) {
	inner, err := r.dial(ctx, network, addr)
	if err != nil {
		return nil, err
	}
	c := &conn{Conn: inner, r: r, io: inner}
	if raw, ok := inner.(syscall.Conn); ok {
		if c.io, err = promptio.New(raw); err != nil {
			_ = inner.Close()
			return nil, fmt.Errorf("connect: %w", err)
		}
	}
	r.mu.Lock()
	r.conns[c] = struct{}{}
	r.mu.Unlock()
	if raw, ok := inner.(syscall.Conn); ok {
		return watched{c, raw}, nil
	}
	return c, nil // TLS: what is there to be read need not be for the driver
}

// watched is a conn at which the driver looks, before it uses it again, whether the server
// has ended it.
type watched struct {
	*conn
	raw syscall.Conn
}

// SyscallConn implements syscall.Conn.
func (w watched) SyscallConn() (syscall.RawConn, error) {
	raw, err := w.raw.SyscallConn()
	return peeking{raw}, err
}

// peeking is for the driver, which wants to know by Read only whether the connection has something to tell.
type peeking struct{ syscall.RawConn }

// Read calls f where there is something to be read, or the connection is over.
func (p peeking) Read(f func(fd uintptr) bool) error {
	return p.RawConn.Read(func(fd uintptr) bool { return promptio.Quiet(fd) || f(fd) })
}

// limit is until when one direction of a connection may block. The driver sets it for each request
// and leaves it there. Then it wakes the process after an answer that has long come: for a
// heartbeat, which is alone on its connection, once a beat. So where requests are rare, the limit is
// taken away when what it was for is done.
type limit struct {
	until time.Time // as the driver has set it
	rare  bool      // it was set long after the one before
	off   bool      // it was taken away
}

// rarely is how far apart requests are for which limits are taken away: it costs some tenths of a
// microsecond.
const rarely = 100 * time.Millisecond

func (l *limit) set(t time.Time) {
	l.rare, l.off = !t.IsZero() && t.Sub(l.until) >= rarely, false
	if !t.IsZero() {
		l.until = t
	}
}

// back tells whether to put the limit back, for the rest of what it was set for.
func (l *limit) back() bool {
	was := l.off
	l.off = false
	return was
}

// away tells whether to take the limit away.
func (l *limit) away() bool {
	l.off = l.rare
	return l.off
}

// SetReadDeadline implements net.Conn.
func (c *conn) SetReadDeadline(t time.Time) error {
	c.reading.set(t)
	return c.Conn.SetReadDeadline(t)
}

// SetWriteDeadline implements net.Conn.
func (c *conn) SetWriteDeadline(t time.Time) error {
	c.writing.set(t)
	return c.Conn.SetWriteDeadline(t)
}

// Read implements net.Conn.
func (c *conn) Read(b []byte) (int, error) {
	if c.reading.back() {
		_ = c.Conn.SetReadDeadline(c.reading.until) // what follows says what is wrong
	}
	n, err := c.io.Read(b)
	if c.reading.away() {
		_ = c.Conn.SetReadDeadline(time.Time{})
	}
	return n, err
}

// Write implements net.Conn.
func (c *conn) Write(b []byte) (int, error) {
	if c.writing.back() {
		_ = c.Conn.SetWriteDeadline(c.writing.until) // what follows says what is wrong
	}
	if !c.named.Load() {
		if i := bytes.Index(b, []byte(tokenPrefix)); i >= 0 && len(b) >= i+len(tokenPrefix)+tokenLength {
			c.named.Store(true)
			c.r.mu.Lock()
			c.r.named[string(b[i:i+len(tokenPrefix)+tokenLength])] = c
			c.r.mu.Unlock()
		}
	}
	n, err := c.io.Write(b)
	if c.writing.away() {
		_ = c.Conn.SetWriteDeadline(time.Time{})
	}
	return n, err
}

// Close implements net.Conn.
func (c *conn) Close() error {
	c.r.forget(c)
	if err := c.Conn.Close(); !errors.Is(err, net.ErrClosed) { // it may have been cut
		return err
	}
	return nil
}

// cut ends the connection without a farewell, which TLS would wait for.
func (c *conn) cut() {
	inner := c.Conn
	if t, ok := inner.(*tls.Conn); ok {
		inner = t.NetConn()
	}
	_ = inner.Close()
}

func (r *road) forget(c *conn) {
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.conns, c)
}

// connected looks at the server when a connection to it is made, before anything
// else is sent on it.
func (r *road) connected(ctx context.Context, cn *redis.Conn) error {
	token := tokenPrefix + rand.Text()
	var info *redis.StringCmd
	sent := time.Now()
	_, err := cn.Pipelined(ctx, func(p redis.Pipeliner) error {
		p.Do(ctx, "ping", token)
		info = p.Info(ctx)
		return nil
	})
	r.mu.Lock()
	c := r.named[token]
	delete(r.named, token)
	r.mu.Unlock()
	if err != nil {
		return fmt.Errorf("info: %w", err)
	}
	return r.found(c, parseInfo(info.Val()), sent)
}

var errNoRunID = errors.New("the server does not tell its run_id, without which a restart cannot be noticed")

// found takes note of who is at the other end of a connection. sent is when that was asked.
func (r *road) found(c *conn, info map[string]string, sent time.Time) error {
	if info["redis_mode"] == "sentinel" || info["server_mode"] == "sentinel" { // Valkey says server_mode
		if c != nil {
			r.forget(c)
		}
		return nil
	}
	run := info["run_id"]
	if run == "" {
		return errNoRunID
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.eviction = ""
	if p := info["maxmemory_policy"]; strings.HasPrefix(p, "allkeys-") && info["maxmemory"] != "0" {
		r.eviction = p
	}
	now := r.current.Load()
	if now == nil || now.run != run {
		next := &presence{run: run, road: r, no: 1, master: r.master}
		if now != nil { // else nothing was sent on the others yet: each finds out for itself
			r.cutAllBut(c)
			next.no, next.before = now.no+1, max(now.before, now.answered.Load())
		}
		r.current.Store(next)
		now = next
	}
	if info["role"] == "master" { // a replica grants nothing
		r.master = now.no
		now.answers(sent)
	}
	return nil
}

// cutAllBut cuts the connections that may lead to another process. r.mu is held.
func (r *road) cutAllBut(c *conn) {
	for other := range r.conns {
		if other != c && other.named.Load() {
			delete(r.conns, other)
			other.cut()
		}
	}
}

// evicts names the policy by which the server would throw locks away.
func (r *road) evicts() string {
	r.mu.Lock()
	defer r.mu.Unlock()
	if len(r.conns) == 0 { // nobody knows what it is now
		return ""
	}
	return r.eviction
}

// sign notes with a command's answer the presence under which it was sent and
// answered: none when that changed meanwhile.
func (r *road) sign(before *presence, cmd redis.Cmder) {
	if c, ok := cmd.(*command); ok {
		if c.by = before; r.current.Load() != before {
			c.by = nil
		}
	}
}

// watcher signs the answers that come by a road.
type watcher struct{ r *road }

var _ redis.Hook = watcher{}

// DialHook implements redis.Hook.
func (w watcher) DialHook(next redis.DialHook) redis.DialHook { return next }

// ProcessHook implements redis.Hook.
func (w watcher) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		before := w.r.current.Load()
		err := next(ctx, cmd)
		w.r.sign(before, cmd)
		return err
	}
}

// ProcessPipelineHook implements redis.Hook.
func (w watcher) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return func(ctx context.Context, cmds []redis.Cmder) error {
		before := w.r.current.Load()
		err := next(ctx, cmds)
		for _, cmd := range cmds {
			w.r.sign(before, cmd)
		}
		return err
	}
}

func parseInfo(text string) map[string]string {
	m := make(map[string]string)
	sc := bufio.NewScanner(strings.NewReader(text))
	for sc.Scan() {
		if k, v, ok := strings.Cut(sc.Text(), ":"); ok {
			m[k] = strings.TrimSpace(v)
		}
	}
	return m
}
