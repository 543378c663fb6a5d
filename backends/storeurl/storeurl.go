// Package storeurl reads the URLs of stores:
//
//	SCHEME://[USER[:PASSWORD]@]HOST[:PORT][,HOST[:PORT]…][/PATH][?OPTION=VALUE&…]
//
// Its errors are lock.InvalidError and never have a password in them.
package storeurl

import (
	"net"
	"net/url"
	"strings"

	"github.com/locksidecar/locksidecar/internal/secretfile"
	"github.com/locksidecar/locksidecar/lock"
)

// URL is a store's URL, taken apart.
type URL struct {
	Scheme         string
	User, Password string
	PasswordFile   *secretfile.File // where Password stands; nil: in the URL
	Hosts          []string         // as they stand there, with or without a port; at least one
	Path           string           // without slashes at its ends
	Options        *Options
}

// Parse takes a URL apart. net/url alone does not, because it takes only one host.
func Parse(raw string) (*URL, error) {
	p, ok := split(raw)
	if !ok {
		return nil, Invalid("is not a URL")
	}
	hosts := strings.Split(p.hosts, ",")
	u, err := url.Parse(pieces{p.scheme, p.user, hosts[0], p.tail}.String())
	if err != nil {
		return nil, Invalid("is not a URL") // url.Error would print the password
	}
	for _, h := range hosts {
		if h == "" {
			return nil, Invalid("has an empty host")
		}
	}
	values, err := url.ParseQuery(u.RawQuery)
	if err != nil {
		return nil, Invalid("has options that cannot be read")
	}
	parsed := &URL{Scheme: u.Scheme, Hosts: hosts, Path: strings.Trim(u.Path, "/"), Options: newOptions(values)}
	if u.User != nil {
		parsed.User = u.User.Username()
		parsed.Password, _ = u.User.Password()
	}
	if path := parsed.Options.String("password-file", ""); path != "" {
		if parsed.Password != "" {
			return nil, Invalid("has a password already, beside password-file")
		}
		if parsed.PasswordFile, err = secretfile.Open(path); err != nil {
			return nil, Invalid("option password-file " + err.Error())
		}
		parsed.Password = parsed.PasswordFile.Now()
	}
	return parsed, nil
}

// PasswordNow is the password for a new connection: what stands in its file now, where it
// has one.
func PasswordNow(password string, file *secretfile.File) string {
	if file == nil {
		return password
	}
	return file.Now()
}

// Scheme is what stands before the first colon; ok is false where there is none.
func Scheme(raw string) (scheme string, ok bool) {
	scheme, _, ok = strings.Cut(raw, ":")
	return scheme, ok
}

// pieces are a URL, cut and not yet read.
type pieces struct {
	scheme string
	user   string // with the password and the @ behind it; or empty
	hosts  string
	tail   string // from the path on
}

func split(raw string) (p pieces, ok bool) {
	scheme, rest, ok := strings.Cut(raw, "://")
	if !ok {
		return pieces{}, false
	}
	end := strings.IndexAny(rest, "/?#")
	if end < 0 {
		end = len(rest)
	}
	at := strings.LastIndexByte(rest[:end], '@') + 1
	return pieces{scheme, rest[:at], rest[at:end], rest[end:]}, true
}

func (p pieces) String() string { return p.scheme + "://" + p.user + p.hosts + p.tail }

// Addrs are the hosts, each with a port.
func (u *URL) Addrs(defaultPort string) []string {
	var addrs []string
	for _, h := range u.Hosts {
		if _, _, err := net.SplitHostPort(h); err != nil {
			h = net.JoinHostPort(strings.Trim(h, "[]"), defaultPort)
		}
		addrs = append(addrs, h)
	}
	return addrs
}

// Invalid is the error of a URL that is refused.
func Invalid(problem string) error { return &lock.InvalidError{Field: "store", Problem: problem} }
