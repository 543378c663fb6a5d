package redislock

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"net"
	"net/url"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/redis/go-redis/v9/maintnotifications"

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
	bad := func(problem string) (config, error) {
		return config{}, &lock.InvalidError{Field: "store", Problem: problem}
	}
	first, hosts, err := oneHost(raw)
	if err != nil {
		return bad(err.Error())
	}
	u, err := url.Parse(first)
	if err != nil {
		return bad("is not a URL") // url.Error would print the password
	}
	c := config{scheme: u.Scheme, prefix: defaultPrefix, buckets: bucketsAlone, timeout: defaultTimeout, grace: -1}
	port := defaultPort
	path := strings.Trim(u.Path, "/")
	switch u.Scheme {
	case "redis", "rediss":
		if len(hosts) != 1 {
			return bad("names several hosts: use redis+cluster:// or redis+sentinel://")
		}
		if path != "" {
			if c.db, err = strconv.Atoi(path); err != nil || c.db < 0 {
				return bad("path must be a database number")
			}
		}
	case "redis+sentinel":
		port = sentinelPort
		if c.master = path; path == "" {
			return bad("lacks the name of the master: redis+sentinel://HOST[:PORT],…/MASTER")
		}
	case "redis+cluster":
		c.buckets = bucketsInCluster
		if path != "" {
			return bad("must have no path: a Redis Cluster has one database")
		}
	default:
		return bad(fmt.Sprintf("scheme %q is not one of %s", u.Scheme, strings.Join(Schemes, ", ")))
	}
	for _, h := range hosts {
		if h == "" {
			return bad("has an empty host")
		}
		if _, _, err := net.SplitHostPort(h); err != nil {
			h = net.JoinHostPort(strings.Trim(h, "[]"), port)
		}
		c.addrs = append(c.addrs, h)
	}
	if u.User != nil {
		c.username = u.User.Username()
		c.password, _ = u.User.Password()
	}
	if err := c.readQuery(u); err != nil {
		return config{}, err
	}
	return c, nil
}

// oneHost splits a list of hosts off a URL, because net/url takes only one.
func oneHost(raw string) (first string, hosts []string, err error) {
	scheme, rest, ok := strings.Cut(raw, "://")
	if !ok {
		return "", nil, fmt.Errorf("is not a URL")
	}
	end := strings.IndexAny(rest, "/?#")
	if end < 0 {
		end = len(rest)
	}
	authority, tail := rest[:end], rest[end:]
	user := ""
	if at := strings.LastIndex(authority, "@"); at >= 0 {
		user, authority = authority[:at+1], authority[at+1:]
	}
	hosts = strings.Split(authority, ",")
	return scheme + "://" + user + hosts[0] + tail, hosts, nil
}

func (c *config) readQuery(u *url.URL) error {
	bad := func(name, problem string) error {
		return &lock.InvalidError{Field: "store", Problem: fmt.Sprintf("option %s %s", name, problem)}
	}
	useTLS := c.scheme == "rediss"
	var ca, cert, key, serverName string
	skipVerify := false
	for name, values := range u.Query() {
		v := values[len(values)-1]
		var err error
		switch name {
		case "prefix":
			if c.prefix = v; v == "" || len(v) > 64 || strings.ContainsAny(v, "{} \t\r\n") {
				return bad(name, "must have 1 to 64 bytes, without braces or spaces")
			}
		case "timeout":
			if c.timeout, err = time.ParseDuration(v); err != nil || c.timeout < 10*time.Millisecond || c.timeout > time.Minute {
				return bad(name, "must be a duration from 10ms to 1m")
			}
		case "restart-grace":
			if c.grace, err = time.ParseDuration(v); err != nil || c.grace < 0 || c.grace > lock.MaxTTL {
				return bad(name, "must be a duration from 0s to "+lock.MaxTTL.String())
			}
		case "allow-eviction":
			c.allowEviction, err = strconv.ParseBool(v)
		case "db":
			if c.db, err = strconv.Atoi(v); err != nil || c.db < 0 || c.scheme == "redis+cluster" {
				return bad(name, "must be a database number, and not for a Cluster")
			}
		case "sentinel-username":
			c.sentinelUser = v
		case "sentinel-password":
			c.sentinelPassword = v
		case "tls":
			useTLS, err = strconv.ParseBool(v)
		case "tls-ca":
			ca = v
		case "tls-cert":
			cert = v
		case "tls-key":
			key = v
		case "tls-server-name":
			serverName = v
		case "tls-skip-verify":
			skipVerify, err = strconv.ParseBool(v)
		default:
			return bad(name, "is not known")
		}
		if err != nil {
			return bad(name, "must be true or false")
		}
	}
	if !useTLS {
		if ca != "" || cert != "" || key != "" || serverName != "" || skipVerify {
			return bad("tls-…", "needs TLS: use rediss:// or tls=true")
		}
		return nil
	}
	c.tls = &tls.Config{MinVersion: tls.VersionTLS12, ServerName: serverName, InsecureSkipVerify: skipVerify}
	if ca != "" {
		pem, err := os.ReadFile(ca) //nolint:gosec // the user names the file
		if err != nil {
			return bad("tls-ca", err.Error())
		}
		c.tls.RootCAs = x509.NewCertPool()
		if !c.tls.RootCAs.AppendCertsFromPEM(pem) {
			return bad("tls-ca", "has no certificate in it")
		}
	}
	if (cert == "") != (key == "") {
		return bad("tls-cert", "and tls-key go together")
	}
	if cert != "" {
		pair, err := tls.LoadX509KeyPair(cert, key)
		if err != nil {
			return bad("tls-cert", err.Error())
		}
		c.tls.Certificates = []tls.Certificate{pair}
	}
	return nil
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
