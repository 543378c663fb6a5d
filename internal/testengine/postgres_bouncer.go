package testengine

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
)

// bounced is a PostgreSQL behind PgBouncer, which gives each transaction
// whichever connection is free.
type bounced struct {
	*postgresStore
	bouncer *node
}

// bouncerUsers are those that PgBouncer lets in, and takes for themselves to the server.
const bouncerUsers = `"root" ""
"` + User + `" "` + Password + `"
`

// startPostgresBouncer starts one server and a PgBouncer before it, in
// transaction mode.
func startPostgresBouncer(ctx context.Context, m machine, ports []int) (Server, error) {
	path, err := find(ctx, m, "PgBouncer", pathOfRoot+"command -v pgbouncer || :")
	if err != nil {
		return nil, err
	}
	n, err := postgresNode(ctx, m, "server", ports[0])
	if err != nil {
		return nil, err
	}
	s := &bounced{bouncer: &node{m: m, dir: "bouncer", port: ports[1], program: pgBouncer{}}}
	b, server := s.bouncer, n.program.(*postgresServer)
	if err := s.configure(ctx, n.port); err != nil {
		return nil, err
	}
	b.argv = func(context.Context) ([]string, error) {
		return append(append([]string{}, server.as...), path, "ini"), nil
	}
	s.postgresStore = newPostgresStore(m, "one server behind PgBouncer", postgresURL("root", b.Addr()), ports[1:], n, b)
	return s, s.Start(ctx)
}

// configure writes down where PgBouncer leads to.
func (s *bounced) configure(ctx context.Context, port int) error {
	b := s.bouncer
	ini := fmt.Sprintf(`[databases]
%[5]s = host=%[1]s port=%[2]d
* = host=%[1]s port=%[2]d
[pgbouncer]
listen_addr = %[3]s
listen_port = %[4]d
admin_users = root
unix_socket_dir =
auth_type = trust
auth_file = users
pool_mode = transaction
server_login_retry = 0.1
max_client_conn = 2000
default_pool_size = 40
`, loopback, port, b.m.bind(), b.port, Database)
	_, err := b.m.sh(ctx, fmt.Sprintf("mkdir -p %[1]s && chmod 755 %[1]s && printf %%s %[2]s >%[1]s/ini && printf %%s %[3]s >%[1]s/users", b.dir, quote(ini), quote(bouncerUsers)))
	return err
}

// LeadBouncer has the PgBouncer of a server lead to another one, as its administrator does:
// connections of clients stay. It returns when none leads to the server before.
func LeadBouncer(t testing.TB, s, to Server) {
	t.Helper()
	b, port := s.(*bounced), Nodes(t, to)[0].(*node).port
	err := b.configure(t.Context(), port)
	if err == nil {
		err = onBouncer(t.Context(), b.bouncer.Addr(), "pgbouncer", func(c *pgx.Conn) error {
			if _, err := c.Exec(t.Context(), "RELOAD"); err != nil {
				return err
			}
			return poll(t.Context(), func() error { return leadsOnlyTo(t.Context(), c, port) })
		})
	}
	if err != nil {
		t.Fatalf("lead PgBouncer to %s: %v", to.Origin(), err)
	}
}

// leadsOnlyTo asks a PgBouncer for its connections to servers.
func leadsOnlyTo(ctx context.Context, c *pgx.Conn, port int) error {
	rows, err := c.Query(ctx, "SHOW SERVERS")
	if err != nil {
		return err
	}
	servers, err := pgx.CollectRows(rows, pgx.RowToMap)
	for _, s := range servers {
		if to := fmt.Sprint(s["port"]); to != strconv.Itoa(port) {
			err = errors.Join(err, fmt.Errorf("a connection leads to port %s", to))
		}
	}
	return err
}

// onBouncer does something on a connection to a database of a PgBouncer.
func onBouncer(ctx context.Context, addr, database string, do func(*pgx.Conn) error) error {
	cfg, err := pgx.ParseConfig("postgres://root@" + addr + "/" + database + "?sslmode=disable&default_query_exec_mode=simple_protocol")
	if err != nil {
		return err
	}
	c, err := pgx.ConnectConfig(ctx, cfg)
	if err != nil {
		return fmt.Errorf("ask %s: %w", addr, err)
	}
	return errors.Join(do(c), c.Close(ctx))
}

// Nodes implements Noder: PgBouncer keeps no data.
func (s *bounced) Nodes() []Node { return []Node{s.nodes[0]} }

// Proxy implements Proxier: the road is that to PgBouncer.
func (s *bounced) Proxy(ctx context.Context) (*Proxy, error) { return s.postgresStore.Proxy(ctx) }

// pgBouncer is the program.
type pgBouncer struct{}

func (pgBouncer) String() string { return "PgBouncer" }

// ready implements program: the server behind it answers.
func (pgBouncer) ready(ctx context.Context, n *node) (version string, err error) {
	ctx, cancel := context.WithTimeout(ctx, time.Second)
	defer cancel()
	err = onBouncer(ctx, n.Addr(), Database, func(c *pgx.Conn) error {
		version = "before " + c.PgConn().ParameterStatus("server_version")
		return nil
	})
	return version, err
}

// keep implements program.
func (pgBouncer) keep(context.Context, *node) error { return nil }

// drop implements program.
func (pgBouncer) drop(context.Context, *node) error { return nil }
