package testengine

import (
	"context"
	"fmt"
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
	b := &node{m: m, dir: "bouncer", port: ports[1], program: pgBouncer{}}
	server := n.program.(*postgresServer)
	ini := fmt.Sprintf(`[databases]
* = host=%s port=%d
[pgbouncer]
listen_addr = %s
listen_port = %d
unix_socket_dir =
auth_type = trust
auth_file = users
pool_mode = transaction
server_login_retry = 0.1
max_client_conn = 2000
default_pool_size = 40
`, loopback, n.port, m.bind(), b.port)
	if _, err := m.sh(ctx, fmt.Sprintf("mkdir -p %[1]s && chmod 755 %[1]s && printf %%s %[2]s >%[1]s/ini && printf %%s %[3]s >%[1]s/users", b.dir, quote(ini), quote(bouncerUsers))); err != nil {
		return nil, err
	}
	b.argv = func(context.Context) ([]string, error) {
		return append(append([]string{}, server.as...), path, "ini"), nil
	}
	s := &bounced{newPostgresStore(m, "one server behind PgBouncer", postgresURL("root", b.Addr()), ports[1:], n, b), b}
	return s, s.Start(ctx)
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
	cfg, err := pgx.ParseConfig("postgres://root@" + n.Addr() + "/" + Database + "?sslmode=disable&default_query_exec_mode=simple_protocol")
	if err != nil {
		return "", err
	}
	c, err := pgx.ConnectConfig(ctx, cfg)
	if err != nil {
		return "", fmt.Errorf("ask %s: %w", n.Addr(), err)
	}
	return "before " + c.PgConn().ParameterStatus("server_version"), c.Close(ctx)
}

// keep implements program.
func (pgBouncer) keep(context.Context, *node) error { return nil }

// drop implements program.
func (pgBouncer) drop(context.Context, *node) error { return nil }
