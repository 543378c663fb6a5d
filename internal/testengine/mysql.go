package testengine

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/go-sql-driver/mysql"
)

// mysqldEnv names a mysqld that is MySQL's, for that of PATH may be MariaDB's.
const mysqldEnv = "LOCKSIDECAR_TEST_MYSQLD"

// Database is the database that every MariaDB and MySQL of ours has, User one
// who may do all there and nothing elsewhere, with Password. The server's URL
// names root, who has no password.
const (
	Database = "locksidecar"
	User     = "app"
	Password = "secret"
)

// mysqlInit is run by a server when it starts, one line after the other. It is
// not for replicas, which run it themselves.
const mysqlInit = `SET sql_log_bin=0;
CREATE DATABASE IF NOT EXISTS ` + Database + `;
CREATE USER IF NOT EXISTS 'root'@'%';
GRANT ALL ON *.* TO 'root'@'%' WITH GRANT OPTION;
CREATE USER IF NOT EXISTS '` + User + `'@'%' IDENTIFIED BY '` + Password + `';
GRANT ALL ON ` + Database + `.* TO '` + User + `'@'%';
`

// mysqlFlavour is MariaDB or MySQL.
type mysqlFlavour struct {
	name string
	// find is a script that prints where the program is. $cache is the machine's.
	find string
	// fill is a script that puts an empty server's data into the folder $data,
	// which is not there. $program is what find has printed.
	fill string
	args []string
	// alone are arguments of a server that has no replica.
	alone       []string
	replication replication
}

// pathOfRoot: Debian's other users do not have the folders of servers in PATH.
const pathOfRoot = "PATH=$PATH:/usr/local/sbin:/usr/sbin\n"

var (
	mariaDB = &mysqlFlavour{
		name: "MariaDB",
		find: pathOfRoot + "command -v mariadbd || :",
		fill: `PATH=$PATH:$(dirname "$program")
mariadb-install-db --no-defaults --user="$(id -un)" --datadir="$data" --skip-test-db \
	--auth-root-authentication-method=normal --innodb-log-file-size=8M`,
		args:        []string{"--skip-networking=0", "--innodb-log-file-size=8M"},
		replication: mariaDBReplication,
	}
	mySQL = &mysqlFlavour{
		name: "MySQL",
		find: pathOfRoot + `for p in "${` + mysqldEnv + `:-}" "$(command -v mysqld)" "$cache/mysql/bin/mysqld"; do
	[ -x "$p" ] || continue
	case $("$p" --no-defaults --version 2>/dev/null) in
	"" | *MariaDB*) ;;
	*)
		echo "$p"
		break
		;;
	esac
done`,
		fill: `"$program" --no-defaults --user="$(id -un)" --datadir="$data" --initialize-insecure \
	--innodb-redo-log-capacity=8M --innodb-buffer-pool-size=32M
rm -f "$data/auto.cnf" # the identity of the server that did it`,
		args:        []string{"--mysqlx=OFF", "--secure-file-priv=NULL", "--innodb-redo-log-capacity=8M"},
		alone:       []string{"--skip-log-bin"},
		replication: mySQLReplication,
	}
)

// start starts one server.
func (f *mysqlFlavour) start(ctx context.Context, m machine, ports []int) (Server, error) {
	s, err := f.one(ctx, m, ports)
	if err != nil {
		return nil, err
	}
	return s, s.Start(ctx)
}

// mysqlStore is one server.
type mysqlStore struct{ *store }

var _ Securer = (*mysqlStore)(nil)

// CA implements Securer.
func (s *mysqlStore) CA() []byte { return s.nodes[0].program.(mysqlServer).tls.ca }

// one prepares one server.
func (f *mysqlFlavour) one(ctx context.Context, m machine, ports []int) (*mysqlStore, error) {
	n, err := f.node(ctx, m, "server", ports[0], f.alone...)
	if err != nil {
		return nil, err
	}
	return &mysqlStore{&store{m: m, kind: "one server", url: mysqlURL(n.Addr()), nodes: []*node{n}, ports: ports}}, nil
}

func mysqlURL(addr string) string { return "mysql://root@" + addr + "/" + Database }

// node prepares a server in a folder of its own and does not start it.
func (f *mysqlFlavour) node(ctx context.Context, m machine, dir string, port int, more ...string) (*node, error) {
	path, err := find(ctx, m, f.name, "cache="+quote(m.cache())+"\n"+f.find)
	if err != nil {
		return nil, err
	}
	n := &node{m: m, dir: dir, port: port}
	p := mysqlServer{flavour: f, path: path}
	if err := p.fill(ctx, n); err != nil {
		return nil, fmt.Errorf("make the data of %s: %w", f.name, err)
	}
	if p.tls, err = newCertificate(); err != nil {
		return nil, err
	}
	// The server wants absolute paths.
	script := "cd " + quote(dir) + " && pwd -P && id -un"
	for name, text := range map[string]string{
		"init.sql": mysqlInit, "ca.pem": string(p.tls.ca), "cert.pem": string(p.tls.cert), "key.pem": string(p.tls.key),
	} {
		script += fmt.Sprintf(" && printf %%s %s >%s", quote(text), name)
	}
	out, err := m.sh(ctx, script)
	if err != nil {
		return nil, err
	}
	where := strings.Fields(out)
	if len(where) != 2 {
		return nil, fmt.Errorf("look around %s: %q is not a folder and a user", m, out)
	}
	p.dir = where[0]
	args := append([]string{
		path, "--no-defaults", "--user=" + where[1], "--datadir=" + p.dir + "/data", "--init-file=" + p.dir + "/init.sql",
		"--ssl-ca=" + p.dir + "/ca.pem", "--ssl-cert=" + p.dir + "/cert.pem", "--ssl-key=" + p.dir + "/key.pem",
		"--socket=s", "--pid-file=pid", // in the data folder; paths of sockets must be short
		"--port=" + strconv.Itoa(port), "--bind-address=" + m.bind(), "--skip-name-resolve",
		"--innodb-buffer-pool-size=32M", "--max-connections=500",
		"--tmpdir=" + p.dir, // a server that starts clears away what it takes for its own in a common one
		// A commit is with the kernel and not on the disk: so it survives the end of
		// the server, and tests do not wait for the disk.
		"--innodb-flush-log-at-trx-commit=2",
	}, slices.Concat(f.args, more)...)
	n.program, n.argv = p, func(context.Context) ([]string, error) { return args, nil }
	return n, nil
}

// mysqlServer is the program in an absolute folder of its own.
type mysqlServer struct {
	flavour   *mysqlFlavour
	path, dir string
	tls       *certificate
}

func (p mysqlServer) String() string { return p.flavour.name }

// fill gives a node the data of an empty server. It takes seconds to make, so
// it is made once for each version and copied.
func (p mysqlServer) fill(ctx context.Context, n *node) error {
	_, err := n.m.sh(ctx, fmt.Sprintf(`set -e
program=%s cache=%s dir=%s
version=$("$program" --no-defaults --version | sed 's/.*Ver //; s/[^A-Za-z0-9.]\{1,\}/-/g')
template=$cache/%s-$version
mkdir -p "$dir" "$cache"
if ! [ -d "$template" ]; then
	find "$cache" -maxdepth 1 -name 'new.*' -mmin +10 -exec rm -rf {} + 2>/dev/null || : # not in every image
	new=$(mktemp -d "$cache/new.XXXXXX")
	data=$new/data
	{
%s
	} >"$dir/log" 2>&1 || { tail -n 20 "$dir/log" >&2; exit 1; }
	mv -T "$data" "$template" 2>/dev/null || [ -d "$template" ] # others may have been faster
	rm -rf "$new"
fi
cp -R "$template" "$dir/data"`, quote(p.path), quote(n.m.cache()), quote(n.dir), strings.ToLower(p.flavour.name), p.flavour.fill))
	return err
}

// ready implements program.
func (p mysqlServer) ready(ctx context.Context, n *node) (version string, err error) {
	var dir string
	ctx, cancel := context.WithTimeout(ctx, time.Second) // who is there need not be a server
	defer cancel()
	err = mysqlDo(n.Addr(), func(db *sql.DB) error {
		return db.QueryRowContext(ctx, "SELECT VERSION(), @@datadir").Scan(&version, &dir)
	})
	if err != nil {
		return "", err
	}
	if dir != p.dir+"/data/" {
		return "", stop(errPortTaken)
	}
	return version, nil
}

// keep implements program: by default a server writes to disk before it answers
// (innodb_flush_log_at_trx_commit=1).
func (mysqlServer) keep(context.Context, *node) error { return nil }

// drop implements program.
func (p mysqlServer) drop(ctx context.Context, n *node) error {
	if _, err := n.m.sh(ctx, "rm -rf "+quote(n.dir+"/data")); err != nil {
		return err
	}
	return p.fill(ctx, n)
}

// mysqlDo asks a server as root on one connection, in no database: a replica that
// is catching up may not have ours at this moment.
func mysqlDo(addr string, f func(db *sql.DB) error) error {
	c := mysql.NewConfig()
	c.Net, c.Addr, c.User = "tcp", addr, "root"
	c.Logger = &mysql.NopLogger{} // it talks of what is refused while a server starts
	connector, err := mysql.NewConnector(c)
	if err != nil {
		return fmt.Errorf("ask %s: %w", addr, err)
	}
	db := sql.OpenDB(connector)
	db.SetMaxOpenConns(1)
	err = errors.Join(f(db), db.Close())
	if err != nil {
		return fmt.Errorf("ask %s: %w", addr, err)
	}
	return nil
}
