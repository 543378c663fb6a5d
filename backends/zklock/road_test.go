package zklock

import (
	"encoding/binary"
	"io"
	"net"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

// road is a proxy of one client's own before all servers of an ensemble. Unlike
// testengine's it knows where packets begin, so that it can lose some of them.
type road struct {
	t         testing.TB
	addrs     []string
	listeners []net.Listener
	wg        sync.WaitGroup

	mu      sync.Mutex
	closed  bool
	links   map[*roadLink]struct{}
	dialled map[string]int // how often, by server
	mute    bool           // events do not come through
	deaf    bool           // nothing comes through to the client
	lost    bool           // nothing comes through to the server
	shut    string         // a server that cannot be reached
	request func(op int32, body string) action
}

// action is what happens to a request.
type action int

const (
	pass      action = iota
	drop             // it does not reach the server
	cutAfter         // it reaches the server, and the connection ends at once
	cutBefore        // the connection ends instead
)

type roadLink struct {
	to             string // the server
	client, server net.Conn
}

// Numbers of requests.
const (
	opMulti  int32 = 14
	opCreate int32 = 15 // create2
	opDelete int32 = 2
)

// newRoad makes a road to the servers of a URL, and gives the URL by it.
func newRoad(t testing.TB, url string) (*road, string) {
	t.Helper()
	rest := strings.TrimPrefix(url, "zk://")
	r := &road{t: t, links: make(map[*roadLink]struct{}), dialled: make(map[string]int)}
	for _, to := range strings.Split(rest, ",") {
		ln, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		r.addrs = append(r.addrs, ln.Addr().String())
		r.listeners = append(r.listeners, ln)
		r.wg.Go(func() {
			for {
				c, err := ln.Accept()
				if err != nil {
					return
				}
				r.wg.Go(func() { r.carry(c, to) })
			}
		})
	}
	t.Cleanup(func() {
		for _, ln := range r.listeners {
			_ = ln.Close()
		}
		r.mu.Lock()
		r.closed = true
		r.mu.Unlock()
		r.sever()
		r.wg.Wait()
	})
	return r, "zk://" + strings.Join(r.addrs, ",")
}

func (r *road) carry(client net.Conn, to string) {
	server, err := net.DialTimeout("tcp", to, time.Second)
	if err != nil {
		reset(client)
		return
	}
	l := &roadLink{to: to, client: client, server: server}
	r.mu.Lock()
	closed := r.closed || r.shut == to
	r.dialled[to]++
	if !closed {
		r.links[l] = struct{}{}
	}
	r.mu.Unlock()
	defer func() {
		r.mu.Lock()
		delete(r.links, l)
		r.mu.Unlock()
	}()
	if closed {
		l.end()
		return
	}
	var pumps sync.WaitGroup
	var cut atomic.Bool // nothing more comes through to the client
	pumps.Go(func() {
		r.pump(client, server, func(p []byte, first bool) action {
			a := r.toServer(p, first)
			cut.Store(a == cutAfter)
			return a
		})
		l.end()
	})
	pumps.Go(func() {
		if r.pump(server, client, func(p []byte, first bool) action {
			if cut.Load() { // the server may be faster than the end of the connection
				return drop
			}
			return r.toClient(p, first)
		}) {
			_ = client.(*net.TCPConn).CloseWrite() // what it was sent is to be read
			return
		}
		l.end()
	})
	pumps.Wait()
}

// reset ends a connection as a broken one ends.
func reset(c net.Conn) {
	_ = c.(*net.TCPConn).SetLinger(0)
	_ = c.Close()
}

// end ends a connection. What was sent to the server gets there.
func (l *roadLink) end() {
	reset(l.client)
	_ = l.server.Close()
}

// pump carries packets, and says whether they came to their end. The first one is
// about the session.
func (r *road) pump(from, to net.Conn, what func(p []byte, first bool) action) (end bool) {
	for first := true; ; first = false {
		head := make([]byte, 4)
		if _, err := io.ReadFull(from, head); err != nil {
			return err == io.EOF
		}
		p := make([]byte, binary.BigEndian.Uint32(head))
		if _, err := io.ReadFull(from, p); err != nil {
			return false
		}
		do := what(p, first)
		switch do {
		case drop:
			continue
		case cutBefore:
			return false
		}
		if _, err := to.Write(append(head, p...)); err != nil || do == cutAfter {
			return false
		}
	}
}

func (r *road) toServer(p []byte, first bool) action {
	r.mu.Lock()
	f, lost := r.request, r.lost
	r.mu.Unlock()
	switch {
	case lost:
		return drop
	case f == nil || first || len(p) < 8:
		return pass
	}
	return f(int32(binary.BigEndian.Uint32(p[4:])), string(p[8:]))
}

func (r *road) toClient(p []byte, first bool) action {
	r.mu.Lock()
	defer r.mu.Unlock()
	event := !first && len(p) >= 4 && int32(binary.BigEndian.Uint32(p)) == -1
	if r.deaf || r.mute && event {
		return drop
	}
	return pass
}

// sever ends all connections.
func (r *road) sever() {
	r.mu.Lock()
	defer r.mu.Unlock()
	for l := range r.links {
		l.end()
	}
}

// servers are those that the client is connected to.
func (r *road) servers() []string {
	r.mu.Lock()
	defer r.mu.Unlock()
	var all []string
	for l := range r.links {
		all = append(all, l.to)
	}
	slices.Sort(all)
	return all
}

// set changes what happens on the road.
func (r *road) set(f func(*road)) {
	r.mu.Lock()
	defer r.mu.Unlock()
	f(r)
}

// once makes an action for the first request that is of an op and has a word in
// its body. The channel is closed when it has come.
func (r *road) once(op int32, word string, do action) <-chan struct{} {
	seen := make(chan struct{})
	var once sync.Once
	r.set(func(r *road) {
		r.request = func(o int32, body string) action {
			a := pass
			if o == op && strings.Contains(body, word) {
				once.Do(func() { a = do; close(seen) })
			}
			return a
		}
	})
	return seen
}
