package testengine

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/url"
	"slices"
	"strconv"
	"strings"
)

// redisStore is a store of redis-server processes that were started here.
type redisStore struct {
	m     machine
	kind  string
	url   string
	nodes []*redisNode
	ports []int // all to which clients connect
}

var _ interface {
	Server
	Pauser
	Crasher
	Noder
	Proxier
} = (*redisStore)(nil)

func startRedis(ctx context.Context, m machine, ports []int) (Server, error) {
	n := &redisNode{m: m, dir: "redis", port: ports[0], argv: func(context.Context) ([]string, error) {
		return redisArgs(m, ports[0]), nil
	}}
	if err := n.Start(ctx); err != nil {
		return nil, err
	}
	return &redisStore{m: m, kind: "one server", url: "redis://" + n.Addr(), nodes: []*redisNode{n}, ports: ports}, nil
}

func (s *redisStore) URL() string    { return s.url }
func (s *redisStore) Origin() string { return s.nodes[0].Origin() + ", " + s.kind }
func (s *redisStore) Close() error   { return s.m.close() }

func (s *redisStore) Nodes() []Node {
	var nodes []Node
	for _, n := range s.nodes {
		nodes = append(nodes, n)
	}
	return nodes
}

func (s *redisStore) Pause(ctx context.Context) error {
	return s.each(func(n *redisNode) error { return n.Pause(ctx) })
}

func (s *redisStore) Resume(ctx context.Context) error {
	return s.each(func(n *redisNode) error { return n.Resume(ctx) })
}

func (s *redisStore) Crash(ctx context.Context, d Data) error {
	return s.each(func(n *redisNode) error { return n.Crash(ctx, d) })
}

func (s *redisStore) Start(ctx context.Context) error {
	// First all, then what each waits for: that may be the others.
	if err := s.each(func(n *redisNode) error { return n.launch(ctx) }); err != nil {
		return err
	}
	return s.each(func(n *redisNode) error { return n.Start(ctx) })
}

func (s *redisStore) each(f func(*redisNode) error) error {
	var errs []error
	for _, n := range s.nodes {
		errs = append(errs, f(n))
	}
	return errors.Join(errs...)
}

// Proxy listens on another address of the loopback, on the ports of the
// servers. The servers tell clients about each other (CLUSTER SLOTS, MOVED,
// SENTINEL get-master-addr-by-name); in what they tell, the proxy puts its own
// address in place of theirs, which is as long.
func (s *redisStore) Proxy(ctx context.Context) (*Proxy, error) {
	var err error
	for range 100 {
		addr := ownLoopback()
		var routes []route
		for _, p := range s.ports {
			routes = append(routes, route{listen: net.JoinHostPort(addr, strconv.Itoa(p)), target: hostPort(p)})
		}
		var p *Proxy
		p, err = newProxy(ctx, strings.ReplaceAll(s.url, loopback, addr), routes)
		if err == nil {
			p.rewrite(loopback, addr)
			return p, nil
		}
	}
	return nil, err
}

// external is a server that the environment names.
type external struct{ url, origin string }

func (s *external) URL() string    { return s.url }
func (s *external) Origin() string { return s.origin }
func (s *external) Close() error   { return nil }

// externalRedis is one plain redis:// address: a proxy can stand before it.
type externalRedis struct{ external }

func (s *externalRedis) Proxy(ctx context.Context) (*Proxy, error) {
	u, err := url.Parse(s.url)
	if err != nil {
		return nil, fmt.Errorf("parse the URL of a server: %w", err)
	}
	p, err := NewProxy(ctx, addrs(u)[0])
	if err != nil {
		return nil, err
	}
	u.Host = p.Addr()
	p.url = u.String()
	return p, nil
}

func attachRedis(ctx context.Context, raw, origin string) (Server, error) {
	s, err := attachByDial(ctx, raw, origin)
	if err == nil && strings.HasPrefix(raw, "redis://") {
		return &externalRedis{external{url: raw, origin: origin}}, nil
	}
	return s, err
}

// attachByDial takes a server if one of its addresses accepts connections.
func attachByDial(ctx context.Context, raw, origin string) (Server, error) {
	u, err := url.Parse(raw)
	if err != nil {
		return nil, fmt.Errorf("parse the URL: %w", err)
	}
	var errs []error
	for _, a := range addrs(u) {
		c, err := (&net.Dialer{}).DialContext(ctx, "tcp", a)
		if err == nil {
			return &external{url: raw, origin: origin}, c.Close()
		}
		errs = append(errs, err)
	}
	return nil, errors.Join(errs...)
}

// addrs are the addresses in a URL that may have many, with Redis' usual ports.
func addrs(u *url.URL) []string {
	port := "6379"
	if strings.Contains(u.Scheme, "sentinel") {
		port = "26379"
	}
	hosts := slices.Collect(strings.SplitSeq(u.Host, ","))
	for i, h := range hosts {
		if _, _, err := net.SplitHostPort(h); err != nil {
			hosts[i] = net.JoinHostPort(h, port)
		}
	}
	return hosts
}
