package testengine

import (
	"context"
	"errors"
	"net"
	"strconv"
	"strings"

	"github.com/locksidecar/locksidecar/internal/faultproxy"
)

// store is a server whose processes were started here.
type store struct {
	m      machine
	kind   string
	url    string
	nodes  []*node
	ports  []int // all to which clients connect
	gossip bool  // the servers tell clients each other's addresses
}

var _ interface {
	Server
	Pauser
	Crasher
	Noder
	Proxier
} = (*store)(nil)

func (s *store) URL() string    { return s.url }
func (s *store) Origin() string { return s.nodes[0].Origin() + ", " + s.kind }
func (s *store) Close() error   { return s.m.close() }

func (s *store) Nodes() []Node {
	var nodes []Node
	for _, n := range s.nodes {
		nodes = append(nodes, n)
	}
	return nodes
}

func (s *store) Pause(ctx context.Context) error {
	return s.each(func(n *node) error { return n.Pause(ctx) })
}

func (s *store) Resume(ctx context.Context) error {
	return s.each(func(n *node) error { return n.Resume(ctx) })
}

func (s *store) Crash(ctx context.Context, d Data) error {
	return s.each(func(n *node) error { return n.Crash(ctx, d) })
}

func (s *store) Start(ctx context.Context) error {
	// First all, then what each waits for: that may be the others.
	if err := s.each(func(n *node) error { return n.run(ctx) }); err != nil {
		return err
	}
	return s.each(func(n *node) error { return n.Start(ctx) })
}

func (s *store) each(f func(*node) error) error {
	var errs []error
	for _, n := range s.nodes {
		errs = append(errs, f(n))
	}
	return errors.Join(errs...)
}

// Proxy listens on another address of the loopback, on the ports of the
// servers. Redis' servers tell clients about each other (CLUSTER SLOTS, MOVED,
// SENTINEL get-master-addr-by-name); in what they tell, the proxy puts its own
// address in place of theirs, which is as long.
func (s *store) Proxy(ctx context.Context) (*Proxy, error) {
	var err error
	for range 100 {
		addr := faultproxy.OwnLoopback()
		var routes []faultproxy.Route
		for _, p := range s.ports {
			routes = append(routes, faultproxy.Route{Listen: net.JoinHostPort(addr, strconv.Itoa(p)), Target: hostPort(p)})
		}
		o := faultproxy.Options{
			URL:     func(string) string { return strings.ReplaceAll(s.url, loopback, addr) },
			Framing: framingOf(s.url),
		}
		if s.gossip {
			o.Rewrite = [2]string{loopback, addr}
		}
		var p *Proxy
		if p, err = faultproxy.New(ctx, routes, o); err == nil {
			return p, nil
		}
	}
	return nil, err
}
