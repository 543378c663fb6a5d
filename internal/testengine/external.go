package testengine

import (
	"context"
	"errors"
	"net"
	"slices"
	"strings"

	"github.com/locksidecar/locksidecar/internal/faultproxy"
)

// external is a server that the environment names.
type external struct{ url, origin string }

func (s *external) URL() string    { return s.url }
func (s *external) Origin() string { return s.origin }
func (s *external) Close() error   { return nil }

// externalOne is a server that has one address and tells clients no others, so
// that a proxy can stand before it.
type externalOne struct{ external }

func (s *externalOne) Proxy(ctx context.Context) (*Proxy, error) {
	before, hosts, after := splitURL(s.url)
	return faultproxy.To(ctx, hosts[0], faultproxy.Options{
		URL:     func(addr string) string { return before + addr + after },
		Framing: framingOf(s.url),
	})
}

// oneServer are the schemes of stores that are one server, if they name one.
// Where TLS starts with the first byte the proxy's address is not the one in
// the certificate.
var oneServer = []string{"redis://", "zk://", "mysql://", "postgres://", "etcd://"}

// attach takes a server if one of its addresses accepts connections.
func attach(ctx context.Context, raw, origin string) (Server, error) {
	_, hosts, _ := splitURL(raw)
	var errs []error
	for _, h := range hosts {
		c, err := (&net.Dialer{}).DialContext(ctx, "tcp", h)
		if err != nil {
			errs = append(errs, err)
			continue
		}
		s := external{url: raw, origin: origin}
		if len(hosts) == 1 && slices.ContainsFunc(oneServer, func(p string) bool { return strings.HasPrefix(raw, p) }) {
			return &externalOne{s}, c.Close()
		}
		return &s, c.Close()
	}
	return nil, errors.Join(errs...)
}

// splitURL takes the addresses, with their ports, out of a URL that may have
// many. net/url takes only one.
func splitURL(raw string) (before string, hosts []string, after string) {
	scheme, rest, _ := strings.Cut(raw, "://")
	before = scheme + "://"
	end := len(rest)
	if i := strings.IndexAny(rest, "/?#"); i >= 0 {
		end = i
	}
	list, after := rest[:end], rest[end:]
	if i := strings.LastIndex(list, "@"); i >= 0 {
		before += list[:i+1]
		list = list[i+1:]
	}
	port := map[string]string{
		"redis": "6379", "rediss": "6379", "redis+cluster": "6379", "rediss+cluster": "6379",
		"redis+sentinel": "26379", "rediss+sentinel": "26379",
		"zk": "2181", "zks": "2181", "mysql": "3306", "postgres": "5432", "etcd": "2379",
	}[scheme]
	for h := range strings.SplitSeq(list, ",") {
		if _, _, err := net.SplitHostPort(h); err != nil {
			h = net.JoinHostPort(strings.Trim(h, "[]"), port)
		}
		hosts = append(hosts, h)
	}
	return before, hosts, after
}
