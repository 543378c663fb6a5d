package redislock

import (
	"context"
	"fmt"
	"math"
	"net"
	"strconv"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/redis/go-redis/v9/maintnotifications"

	"github.com/locksidecar/locksidecar/backends/storeurl"
	"github.com/locksidecar/locksidecar/internal/secretfile"
	"github.com/locksidecar/locksidecar/lock"
)

// Schemes are the URL schemes that Open takes.
var Schemes = []string{"redis", "rediss", "redis+sentinel", "redis+cluster"}

const (
	defaultPrefix  = "locksidecar"
	defaultTimeout = time.Second
	defaultPort    = "6379"
	sentinelPort   = "26379"
	maxPrefix      = 64
	maxReplicas    = 100
)

// config is what a URL says.
type config struct {
	scheme             string
	addrs              []string
	master             string // Sentinel's name for the master
	username, password string
	passwordFile       *secretfile.File // where password stands; nil: in the URL
	sentinelUser       string
	sentinelPassword   string
	db                 int
	prefix             string
	buckets            int
	timeout            time.Duration // of one request
	grace              time.Duration // for how long a server that is new grants nothing; negative: the lease's TTL
	allowEviction      bool
	replicas           int // that must have a grant or heartbeat before it counts
	tls                *storeurl.TLS
}

// parseURL reads redis://, rediss://, redis+sentinel:// and redis+cluster:// URLs.
func parseURL(raw string) (config, error) {
	u, err := storeurl.Parse(raw)
	if err != nil {
		return config{}, err
	}
	o := u.Options
	c := config{scheme: u.Scheme, username: u.User, password: u.Password, passwordFile: u.PasswordFile, buckets: bucketsAlone}
	port := defaultPort
	switch u.Scheme {
	case "redis", "rediss":
		if len(u.Hosts) != 1 {
			return config{}, storeurl.Invalid("names several hosts: use redis+cluster:// or redis+sentinel://")
		}
		if u.Path != "" {
			if c.db, err = strconv.Atoi(u.Path); err != nil || c.db < 0 {
				return config{}, storeurl.Invalid("path must be a database number")
			}
		}
	case "redis+sentinel":
		port = sentinelPort
		if c.master = u.Path; c.master == "" {
			return config{}, storeurl.Invalid("lacks the name of the master: redis+sentinel://HOST[:PORT],…/MASTER")
		}
		c.sentinelUser, c.sentinelPassword = o.String("sentinel-username", ""), o.String("sentinel-password", "")
	case "redis+cluster":
		c.buckets = bucketsInCluster
		if u.Path != "" {
			return config{}, storeurl.Invalid("must have no path: a Redis Cluster has one database")
		}
	default:
		return config{}, storeurl.Invalid(fmt.Sprintf("scheme %q is not one of %s", u.Scheme, strings.Join(Schemes, ", ")))
	}
	c.addrs = u.Addrs(port)
	if c.scheme != "redis+cluster" {
		c.db = o.Int("db", c.db, 0, math.MaxInt32)
	}
	if c.prefix = o.String("prefix", defaultPrefix); !plainPrefix(c.prefix) {
		o.Refuse("prefix", "must have 1 to 64 bytes, without spaces and without any of {}*?[]\\:&~+@%\"'")
	}
	c.timeout = o.Duration("timeout", defaultTimeout, 10*time.Millisecond, time.Minute)
	c.grace = o.Duration("restart-grace", -1, 0, lock.MaxTTL)
	c.allowEviction = o.Bool("allow-eviction", false)
	if c.scheme != "redis+cluster" {
		c.replicas = o.Int("wait-replicas", 0, 0, maxReplicas)
	}
	c.tls = o.TLS(c.scheme == "rediss")
	return c, o.Err()
}

// failsOver tells that a server can become a replica and be master again.
func (c *config) failsOver() bool { return c.scheme == "redis+cluster" || c.scheme == "redis+sentinel" }

// connect makes the client. to gives the road to an address.
//
// Nothing is retried here: a request that failed has an unknown outcome, and
// what to do about it is the session's to say.
func (c *config) connect(to func(addr string, dial dialer) *road) redis.UniversalClient {
	quiet := &maintnotifications.Config{Mode: maintnotifications.ModeDisabled}
	// What stands in files may have changed since the last connection.
	dial := func(ctx context.Context, network, addr string) (net.Conn, error) {
		return redis.NewDialer(&redis.Options{DialTimeout: c.timeout, TLSConfig: c.tls.Config()})(ctx, network, addr)
	}
	credentials := func() (username, password string) {
		return c.username, storeurl.PasswordNow(c.password, c.passwordFile)
	}
	switch c.scheme {
	case "redis+cluster":
		return redis.NewClusterClient(&redis.ClusterOptions{
			Addrs: c.addrs, CredentialsProvider: credentials, TLSConfig: c.tls.Config(),
			DialTimeout: c.timeout, ReadTimeout: c.timeout, WriteTimeout: c.timeout, ContextTimeoutEnabled: true,
			MaxRedirects: 3, MaxRetries: -1, DialerRetries: 1, MaintNotificationsConfig: quiet, DisableIdentity: true,
			ClusterStateReloadInterval: time.Second, // the driver's own is a minute, in which every lease would end
			NewClient: func(o *redis.Options) *redis.Client {
				r := to(o.Addr, dial)
				o.Dialer, o.OnConnect = r.connect, r.connected
				node := redis.NewClient(o)
				node.AddHook(watcher{r})
				return node
			},
		})
	case "redis+sentinel":
		r := to(c.master, dial)
		client := redis.NewFailoverClient(&redis.FailoverOptions{
			MasterName: c.master, SentinelAddrs: c.addrs, SentinelUsername: c.sentinelUser, SentinelPassword: c.sentinelPassword,
			CredentialsProvider: credentials, DB: c.db, TLSConfig: c.tls.Config(), Dialer: r.connect, OnConnect: r.connected,
			DialTimeout: c.timeout, ReadTimeout: c.timeout, WriteTimeout: c.timeout, ContextTimeoutEnabled: true,
			MaxRetries: -1, DisableIdentity: true,
		})
		client.AddHook(watcher{r})
		return client
	default:
		r := to(c.addrs[0], dial)
		client := redis.NewClient(&redis.Options{
			Addr: c.addrs[0], CredentialsProvider: credentials, DB: c.db, TLSConfig: c.tls.Config(), Dialer: r.connect, OnConnect: r.connected,
			DialTimeout: c.timeout, ReadTimeout: c.timeout, WriteTimeout: c.timeout, ContextTimeoutEnabled: true,
			MaxRetries: -1, MaintNotificationsConfig: quiet, DisableIdentity: true,
		})
		client.AddHook(watcher{r})
		return client
	}
}

// plainPrefix tells whether nothing in a prefix has a meaning of its own in a key's
// hash tag or in a pattern of an access list.
func plainPrefix(s string) bool {
	for _, r := range s {
		if r <= ' ' || r == 0x7f || strings.ContainsRune(`{}*?[]\:&~+@%"'`, r) {
			return false
		}
	}
	return s != "" && len(s) <= maxPrefix
}
