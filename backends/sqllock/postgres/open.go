package postgres

import (
	"context"
	"net"
	"strconv"
	"time"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/locksidecar/locksidecar/backends/sqllock"
	"github.com/locksidecar/locksidecar/lock"
)

const (
	// rowWait is how long a statement waits for a row that another transaction has locked.
	rowWait = time.Second
	// oldest is the first version that can be used, as server_version_num has it.
	oldest = 130000
)

// servers are where connections are opened: those of a URL.
type servers struct {
	cfg     *Config
	limit   time.Duration // of a batch
	hosts   sqllock.Hosts
	configs []*pgconn.Config // of each
}

// servers asks them nothing.
func (d *Dialect) servers(addrs []string, limit time.Duration) (*servers, error) {
	if d.cfg.Socket != "" {
		addrs = []string{net.JoinHostPort("localhost", defaultPort)}
	}
	p := &servers{cfg: &d.cfg, limit: limit, hosts: sqllock.Hosts{Addrs: addrs}}
	for _, addr := range addrs {
		// What stands here is not taken from the environment (PGHOST and its like), and
		// what follows takes the place of what is.
		c, err := pgconn.ParseConfig("host=localhost port=" + defaultPort + " user=nobody dbname=none password=none" +
			" sslmode=disable sslrootcert='' sslcert='' sslkey='' target_session_attrs=any connect_timeout=0")
		if err != nil {
			return nil, &lock.InvalidError{Field: "store", Problem: err.Error()}
		}
		host, port, _ := net.SplitHostPort(addr)
		n, err := strconv.ParseUint(port, 10, 16)
		if err != nil {
			return nil, &lock.InvalidError{Field: "store", Problem: "has a port that is none"}
		}
		c.Host, c.Port, c.User, c.Password, c.Database = host, uint16(n), d.cfg.User, d.cfg.Password, d.cfg.Database
		if d.cfg.Socket != "" {
			c.Host = d.cfg.Socket
		}
		c.RuntimeParams = map[string]string{"application_name": "locksidecar", "client_encoding": "UTF8"}
		c.OnNotification = func(*pgconn.PgConn, *pgconn.Notification) {} // it is waited for, see listen
		p.configs = append(p.configs, c)
	}
	return p, nil
}

// serverName is the name that a server's certificate must have.
func (c *Config) serverName(host string) string {
	if c.Socket != "" {
		return "localhost"
	}
	return host
}

// Open implements sqllock.Dialect.
func (d *Dialect) Open(o sqllock.PoolOptions) (sqllock.Pool, error) {
	limit := d.cfg.Timeout + time.Duration(o.Long)*time.Second
	if o.Wait {
		limit += rowWait
	}
	p, err := d.servers(d.cfg.Addrs, limit)
	if err != nil {
		return nil, err
	}
	open := func(ctx context.Context, server string) (sqllock.Link, error) { return p.open(ctx, server) }
	return sqllock.NewPool(o, d.cfg.Timeout, d.observe, open), nil
}

// open opens a connection.
func (p *servers) open(ctx context.Context, server string) (*conn, error) {
	return sqllock.OpenFirst(&p.hosts, server, func(host int) (*conn, error) { return p.connect(ctx, p.configs[host]) })
}

func (p *servers) connect(ctx context.Context, host *pgconn.Config) (*conn, error) {
	ctx, cancel := context.WithTimeout(ctx, p.cfg.Timeout)
	defer cancel()
	k := &conn{limit: p.limit, names: make(map[string]string), once: make(map[uint64]bool)}
	own := host.Copy()
	// What stands in files may have changed since the last connection.
	own.Password, own.TLSConfig = p.cfg.PasswordNow(), p.cfg.TLS.To(p.cfg.serverName(host.Host))
	own.DialFunc = func(ctx context.Context, network, addr string) (_ net.Conn, err error) {
		if k.raw != nil { // the driver would cancel a request: whoever asks for it does not wait for that
			return nil, net.ErrClosed
		}
		k.raw, err = (&net.Dialer{KeepAlive: 15 * time.Second}).DialContext(ctx, network, addr)
		return k.raw, err //nolint:wrapcheck // the driver's caller wraps it
	}
	var err error
	if k.pg, err = pgconn.ConnectConfig(ctx, own); err != nil {
		return nil, err
	}
	if err := k.setUp(ctx); err != nil {
		_ = k.Close() //nolint:contextcheck // also when ctx has ended
		return nil, err
	}
	return k, nil
}
