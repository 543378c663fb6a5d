package etcd

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/locksidecar/locksidecar/backends/storeurl"
	"github.com/locksidecar/locksidecar/internal/secretfile"
)

// Schemes are the URL schemes that Open takes.
var Schemes = []string{"etcd", "etcds"}

const (
	defaultPort    = "2379"
	defaultPrefix  = "locksidecar"
	defaultTimeout = 2 * time.Second
)

// config is what a URL says.
type config struct {
	addrs          []string
	prefix         string // of all keys; ends with a slash
	user, password string
	passwordFile   *secretfile.File // where password stands; nil: in the URL
	timeout        time.Duration    // of one request
	tls            *storeurl.TLS
}

// parseURL reads etcd:// and etcds:// URLs.
func parseURL(raw string) (config, error) {
	u, err := storeurl.Parse(raw)
	if err != nil {
		return config{}, err
	}
	if !slices.Contains(Schemes, u.Scheme) {
		return config{}, storeurl.Invalid(fmt.Sprintf("scheme %q is not one of %s", u.Scheme, strings.Join(Schemes, ", ")))
	}
	c := config{
		addrs: u.Addrs(defaultPort), user: u.User, password: u.Password, passwordFile: u.PasswordFile, prefix: "/" + u.Path + "/",
		timeout: u.Options.Duration("timeout", defaultTimeout, 10*time.Millisecond, time.Minute),
		tls:     u.Options.TLS(u.Scheme == "etcds"),
	}
	if u.Path == "" {
		c.prefix = "/" + defaultPrefix + "/"
	}
	if err := u.Options.Err(); err != nil {
		return config{}, err
	}
	if (c.user == "") != (c.password == "") {
		return config{}, storeurl.Invalid("must have a user and a password, or neither")
	}
	if strings.ContainsFunc(c.prefix, func(r rune) bool { return r < ' ' }) {
		return config{}, storeurl.Invalid("path has a control character")
	}
	return c, nil
}
