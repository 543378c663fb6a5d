package redislock

import (
	"context"
	"crypto/tls"
	"fmt"
	"math"
	"strconv"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/redis/go-redis/v9/maintnotifications"

	"github.com/locksidecar/locksidecar/backends/storeurl"
	"github.com/locksidecar/locksidecar/lock"
)

// Schemes are the URL schemes that Open takes.
var Schemes = []string{"redis", "rediss", "redis+sentinel", "redis+cluster"}

const (
	defaultPrefix  = "locksidecar"
	defaultTimeout = time.Second
	defaultPort    = "6379"
	sentinelPort   = "26379"
)

// config is what a URL says.
type config struct {
	scheme             string
	addrs              []string
	master             string // Sentinel's name for the master
	username, password string
	sentinelUser       string
	sentinelPassword   string
	db                 int
	prefix             string
	buckets            int
	timeout            time.Duration // of one request
	grace              time.Duration // restart grace; negative: the lease's TTL
	allowEviction      bool
	tls                *tls.Config
}

// parseURL reads redis://, rediss://, redis+sentinel:// and redis+cluster:// URLs.
func parseURL(raw string) (config, error) {
	u, err := storeurl.Parse(raw)
	if err != nil {
		return config{}, err
	}
	o := u.Options
	c := config{scheme: u.Scheme, username: u.User, password: u.Password, buckets: bucketsAlone}
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
	if c.prefix = o.String("prefix", defaultPrefix); c.prefix == "" || len(c.prefix) > 64 || strings.ContainsAny(c.prefix, "{} \t\r\n") {
		o.Refuse("prefix", "must have 1 to 64 bytes, without braces or spaces")
	}
	c.timeout = o.Duration("timeout", defaultTimeout, 10*time.Millisecond, time.Minute)
	c.grace = o.Duration("restart-grace", -1, 0, lock.MaxTTL)
	c.allowEviction = o.Bool("allow-eviction", false)
	c.tls = o.TLS(c.scheme == "rediss")
	return c, o.Err()
}

// connect makes the client.
//
// Nothing is retried here: a request that failed has an unknown outcome, and
// what to do about it is the session's to say.
func (c *config) connect(onConnect func(context.Context, *redis.Conn) error) redis.UniversalClient {
	quiet := &maintnotifications.Config{Mode: maintnotifications.ModeDisabled}
	switch c.scheme {
	case "redis+cluster":
		return redis.NewClusterClient(&redis.ClusterOptions{
			Addrs: c.addrs, Username: c.username, Password: c.password, TLSConfig: c.tls, OnConnect: onConnect,
			DialTimeout: c.timeout, ReadTimeout: c.timeout, WriteTimeout: c.timeout, ContextTimeoutEnabled: true,
			MaxRedirects: 3, MaxRetries: -1, MaintNotificationsConfig: quiet, DisableIdentity: true,
		})
	case "redis+sentinel":
		return redis.NewFailoverClient(&redis.FailoverOptions{
			MasterName: c.master, SentinelAddrs: c.addrs, SentinelUsername: c.sentinelUser, SentinelPassword: c.sentinelPassword,
			Username: c.username, Password: c.password, DB: c.db, TLSConfig: c.tls, OnConnect: onConnect,
			DialTimeout: c.timeout, ReadTimeout: c.timeout, WriteTimeout: c.timeout, ContextTimeoutEnabled: true,
			MaxRetries: -1, DisableIdentity: true,
		})
	default:
		return redis.NewClient(&redis.Options{
			Addr: c.addrs[0], Username: c.username, Password: c.password, DB: c.db, TLSConfig: c.tls, OnConnect: onConnect,
			DialTimeout: c.timeout, ReadTimeout: c.timeout, WriteTimeout: c.timeout, ContextTimeoutEnabled: true,
			MaxRetries: -1, MaintNotificationsConfig: quiet, DisableIdentity: true,
		})
	}
}
