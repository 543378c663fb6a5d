// Package faultproxy is a proxy between a client and a server that makes faults: it cuts
// connections, holds them back, delays them, or drops one answer. It knows no protocol. A test
// describes where the messages of a protocol end, and their numbers, as a [Framing]. Then it can
// say what becomes of each message.
package faultproxy

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"slices"
	"sync"
	"time"
)

// Proxy is one client's road to a server: a TCP proxy, or one for each address
// of the server, on which faults can be put. All its methods may be called at
// any time; a fault is for all connections together.
//
// A proxy accepts connections also while the server behind it is down, and
// resets them then.
type Proxy struct {
	url       string
	endpoints []*endpoint
	rw        *rewriter // for what the server says; nil: nothing to rewrite
	framing   *Framing  // nil: where messages begin is not known
	judge     func(Message) Verdict

	mu      sync.Mutex
	changed sync.Cond // held or a link's dead has changed
	held    Direction // what is not let through
	mute    string    // links that began with a request like that do not hear the server; empty: none
	refuse  bool
	shut    string // a server that cannot be reached; empty: none
	delay   time.Duration
	trap    *trap
	links   map[*link]struct{}
	dials   map[string]int // connections for each server, so far
	closed  bool

	wg sync.WaitGroup // accept loops and links
}

// Direction is where bytes go. Both directions are ToServer|ToClient.
type Direction uint8

// The directions.
const (
	ToServer Direction = 1 << iota
	ToClient
)

// Fault is something that goes wrong on the road. It lasts until Heal.
type Fault int

// The faults.
const (
	// Sever ends all connections: for the client they are reset. New ones are
	// welcome at once.
	Sever Fault = iota + 1
	// Cut ends all connections and refuses new ones.
	Cut
	// HoldRequests lets nothing pass to the server, as a broken network does:
	// connections stay open and new ones are accepted. Heal lets pass what was
	// held back; Sever drops it.
	HoldRequests
	// HoldReplies does the same to the other side: the server gets requests and
	// carries them out, and the client does not hear of it.
	HoldReplies
	// HoldAll is both.
	HoldAll
)

// trap applies a fault when its moment comes.
type trap struct {
	dir    Direction
	left   int64  // bytes that still pass
	match  string // only on a connection that has sent it to the server; empty: on any
	fault  Fault
	sprung chan struct{}
}

// Options are what a proxy can be told.
type Options struct {
	// URL makes what Proxy.URL gives of the address of the first endpoint; nil: nothing.
	URL     func(addr string) string
	Framing *Framing // of what passes; nil: unknown
	// Judge says what becomes of each message; nil: all pass. It needs a Framing, and is called by
	// many goroutines. Other faults are for what it lets pass. A message that does not come to
	// its end does not pass.
	Judge func(Message) Verdict
	// Rewrite puts a word in place of another, as long, in what the server says; empty:
	// nothing.
	Rewrite [2]string
}

// To makes a proxy before any TCP server, on a free port of an address of its own.
func To(ctx context.Context, target string, o Options) (*Proxy, error) {
	return New(ctx, []Route{{Listen: net.JoinHostPort(OwnLoopback(), "0"), Target: target}}, o)
}

// OwnLoopback is one of the loopback's addresses that are as long as the usual
// one and that nobody uses.
func OwnLoopback() string {
	digit := func() int { return 1 + rand.IntN(9) }
	return fmt.Sprintf("127.%d.%d.%d", digit(), digit(), digit())
}

// Route is where a proxy listens, and for whom.
type Route struct{ Listen, Target string }

// New makes a proxy with an endpoint for each route.
func New(ctx context.Context, routes []Route, o Options) (*Proxy, error) {
	p := &Proxy{framing: o.Framing, judge: o.Judge, links: map[*link]struct{}{}, dials: map[string]int{}}
	if o.Rewrite[0] != "" {
		p.rw = newRewriter(o.Rewrite[0], o.Rewrite[1])
	}
	p.changed.L = &p.mu
	for _, r := range routes {
		ln, err := (&net.ListenConfig{}).Listen(ctx, "tcp4", r.Listen)
		if err != nil {
			return nil, errors.Join(fmt.Errorf("open a proxy: %w", err), p.Close())
		}
		e := &endpoint{p: p, addr: ln.Addr().String(), target: r.Target}
		p.endpoints = append(p.endpoints, e)
		p.mu.Lock()
		e.serve(ln)
		p.mu.Unlock()
	}
	if o.URL != nil {
		p.url = o.URL(p.Addr())
	}
	return p, nil
}

// Retarget sends new connections elsewhere. Those that are open stay: Sever ends
// them.
func (p *Proxy) Retarget(target string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, e := range p.endpoints {
		e.target = target
	}
}

// URL is the address of the store by this road, as the product takes it.
func (p *Proxy) URL() string { return p.url }

// Addr is the address of the proxy; the first where there are many.
func (p *Proxy) Addr() string { return p.endpoints[0].addr }

// Addrs are the addresses of all endpoints, in the order of the routes.
func (p *Proxy) Addrs() []string {
	var all []string
	for _, e := range p.endpoints {
		all = append(all, e.addr)
	}
	return all
}

// Conns is the number of connections that are open now.
func (p *Proxy) Conns() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return len(p.links)
}

// Targets are the servers of the connections that are open now, in order.
func (p *Proxy) Targets() []string {
	p.mu.Lock()
	defer p.mu.Unlock()
	var all []string
	for l := range p.links {
		if l.server != nil && !l.dead {
			all = append(all, l.target)
		}
	}
	slices.Sort(all)
	return all
}

// Dials is how many connections for a server were made so far, also such that it could not have.
func (p *Proxy) Dials(target string) int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.dials[target]
}

// Shut makes one of the servers one that cannot be reached: new connections for it are reset. Open ones stay.
// Heal, or another call, ends that; empty: none is.
func (p *Proxy) Shut(target string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.shut = target
}

// Inject applies a fault now.
func (p *Proxy) Inject(f Fault) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.inject(f)
}

func (p *Proxy) inject(f Fault) {
	switch f {
	case Sever:
		p.sever()
	case Cut:
		p.refuse = true
		for _, e := range p.endpoints {
			e.shut()
		}
		p.sever()
	case HoldRequests:
		p.held |= ToServer
	case HoldReplies:
		p.held |= ToClient
	case HoldAll:
		p.held |= ToServer | ToClient
	}
	p.changed.Broadcast()
}

func (p *Proxy) sever() {
	for l := range p.links {
		l.sever()
	}
}

// InjectAfter applies a fault in the place of byte n+1 in direction d, counted
// from now over all connections: n bytes pass, and that one does not. Only one
// such fault can be laid out at a time, the last. The channel is closed when
// the fault has been applied.
func (p *Proxy) InjectAfter(d Direction, n int64, f Fault) <-chan struct{} {
	return p.set(&trap{dir: d, left: n, fault: f})
}

// LoseReply applies a fault in the place of the next byte of an answer on a
// connection on which a request was sent, from now on, that contains match: the
// server has carried the request out, and the client does not hear of it. That
// is exact where requests are not pipelined, and with a [Framing], where it is the
// answer to that request, whatever comes before it; else the first answer that
// is on its way at that moment is lost, with all after it. Like InjectAfter it is
// one at a time.
func (p *Proxy) LoseReply(match string, f Fault) <-chan struct{} {
	return p.set(&trap{dir: ToClient, match: match, fault: f})
}

func (p *Proxy) set(t *trap) <-chan struct{} {
	t.sprung = make(chan struct{})
	p.mu.Lock()
	defer p.mu.Unlock()
	for l := range p.links {
		l.armed, l.tail = false, nil
	}
	p.trap = t
	return t.sprung
}

// Mute lets nothing pass to the client, from now until Heal, on connections on
// which a request that contains match was among the first: those for
// subscriptions, say. The others do not notice.
func (p *Proxy) Mute(match string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.mute = match
}

// Delay makes every piece that passes, in either direction, wait for d.
func (p *Proxy) Delay(d time.Duration) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.delay = d
}

// Heal ends all faults, those laid out too. Connections that were ended stay so.
func (p *Proxy) Heal() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.held, p.mute, p.shut, p.delay, p.trap = 0, "", "", 0, nil
	p.changed.Broadcast()
	if !p.refuse || p.closed {
		return nil
	}
	p.refuse = false
	for _, e := range p.endpoints {
		ln, err := (&net.ListenConfig{}).Listen(context.Background(), "tcp4", e.addr)
		if err != nil {
			return fmt.Errorf("open a proxy again: %w", err)
		}
		e.serve(ln)
	}
	return nil
}

// Close ends the proxy and its connections.
func (p *Proxy) Close() error {
	p.mu.Lock()
	p.closed = true
	p.inject(Cut)
	p.mu.Unlock()
	p.wg.Wait()
	return nil
}

// endpoint is one address of a proxy.
type endpoint struct {
	p      *Proxy
	addr   string
	target string       // guarded by p.mu
	ln     net.Listener // nil: refuses; guarded by p.mu
}

// serve accepts connections. p.mu is held.
func (e *endpoint) serve(ln net.Listener) {
	e.ln = ln
	e.p.wg.Go(func() {
		for {
			c, err := ln.Accept()
			if err != nil {
				return // only closing ends a listener on the loopback
			}
			e.p.open(c.(*net.TCPConn), e)
		}
	})
}

// shut refuses connections. p.mu is held.
func (e *endpoint) shut() {
	if e.ln != nil {
		_ = e.ln.Close() // the second error of a listener that is gone anyway
		e.ln = nil
	}
}
