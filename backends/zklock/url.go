package zklock

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/locksidecar/locksidecar/backends/storeurl"
	"github.com/locksidecar/locksidecar/backends/zklock/zksession"
	"github.com/locksidecar/locksidecar/internal/secretfile"
)

// Schemes are the URL schemes that Open takes.
var Schemes = []string{"zk", "zks"}

const (
	defaultTimeout = time.Second
	defaultPort    = "2181"

	layoutOwn     = "locksidecar"
	layoutCurator = "curator"
)

// config is what a URL says.
type config struct {
	addrs          []string
	chroot         string // "" or "/path"
	user, password string
	passwordFile   *secretfile.File // where the password stands; nil: in the URL
	acl            []zksession.ACL
	curator        bool
	timeout        time.Duration // of one request
	tick           time.Duration // of the servers
	tls            *storeurl.TLS
}

// parseURL reads zk:// and zks:// URLs.
func parseURL(raw string) (config, error) {
	u, err := storeurl.Parse(raw)
	if err != nil {
		return config{}, err
	}
	if !slices.Contains(Schemes, u.Scheme) {
		return config{}, storeurl.Invalid(fmt.Sprintf("scheme %q is not one of %s", u.Scheme, strings.Join(Schemes, ", ")))
	}
	c := config{
		addrs:   u.Addrs(defaultPort),
		timeout: u.Options.Duration("timeout", defaultTimeout, 10*time.Millisecond, time.Minute),
		tick:    u.Options.Duration("tick", zksession.DefaultTick, time.Millisecond, time.Minute),
		tls:     u.Options.TLS(u.Scheme == "zks"),
		curator: u.Options.OneOf("layout", layoutOwn, layoutOwn, layoutCurator) == layoutCurator,
		acl:     []zksession.ACL{{Perms: zksession.AllPerms, Scheme: "world", ID: "anyone"}},
	}
	if err := u.Options.Err(); err != nil {
		return config{}, err
	}
	if u.Path != "" {
		for _, part := range strings.Split(u.Path, "/") {
			if problem := checkPart(part); problem != "" {
				return config{}, storeurl.Invalid("path " + problem)
			}
		}
		c.chroot = "/" + u.Path
	}
	switch {
	case u.User == "" && u.Password == "":
	case u.User == "" || u.Password == "" || strings.Contains(u.User, ":"):
		return config{}, storeurl.Invalid("must have a user and a password, or neither, and no colon in the user")
	default:
		c.user, c.password, c.passwordFile = u.User, u.Password, u.PasswordFile
		// Whoever makes a node may do everything with it, and nobody else anything.
		c.acl = []zksession.ACL{{Perms: zksession.AllPerms, Scheme: "auth"}}
	}
	return c, nil
}

// digestNow is user:password for a new session; empty: none.
func (c *config) digestNow() string {
	if c.user == "" {
		return ""
	}
	return c.user + ":" + storeurl.PasswordNow(c.password, c.passwordFile)
}
