package testengine

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
)

// postgresInit is run once for each new set of data, one line after the other.
// Database, User and Password are those of MariaDB and MySQL, and root has no
// password here either.
const postgresInit = `CREATE ROLE ` + User + ` LOGIN PASSWORD '` + Password + `';
CREATE DATABASE ` + Database + ` OWNER ` + User + `;
`

const postgresHBA = `local all all trust
host all root 0.0.0.0/0 trust
host replication root 0.0.0.0/0 trust
host all all 0.0.0.0/0 scram-sha-256
`

// findPostgres prints where PostgreSQL's programs are, and the words before them:
// its server refuses to run as root.
const findPostgres = pathOfRoot + `bin=
for p in /usr/lib/postgresql/*/bin/postgres "$(command -v postgres)"; do
	[ ! -x "$p" ] || bin=$(dirname "$(readlink -f "$p")")
done
[ -n "$bin" ] || exit 0
as=
if [ "$(id -u)" = 0 ]; then
	for as in postgres nobody; do
		! id -u $as >/dev/null 2>&1 || break
	done
	as="$(id -u $as) $(id -g $as)"
fi
echo "$bin $as"`

// postgresServer is the program in an absolute folder of its own.
type postgresServer struct {
	bin  string   // folder of the programs
	user string   // who runs them, as a number; empty: we
	as   []string // the words that make a program run as user
	dir  string
	tls  *certificate
}

func (p *postgresServer) String() string { return "PostgreSQL" }

// startPostgres starts one server.
func startPostgres(ctx context.Context, m machine, ports []int) (Server, error) {
	n, err := postgresNode(ctx, m, "server", ports[0])
	if err != nil {
		return nil, err
	}
	s := newPostgresStore(m, "one server", postgresURL("root", n.Addr()), ports, n)
	return s, s.Start(ctx)
}

// startPostgresFakeTime starts one server with a clock of its own.
func startPostgresFakeTime(ctx context.Context, m machine, ports []int) (Server, error) {
	env, err := ownClock(ctx, m)
	if err != nil {
		return nil, err
	}
	n, err := postgresNode(ctx, m, "server", ports[0])
	if err != nil {
		return nil, err
	}
	// The library must be where the server's user can read it.
	for i, word := range env {
		if file, ok := strings.CutPrefix(word, "LD_PRELOAD="); ok {
			env[i] = "LD_PRELOAD=" + n.program.(*postgresServer).dir + "/clock.so"
			if _, err := m.sh(ctx, "cp "+quote(file)+" "+quote(n.dir+"/clock.so")+" && chmod 644 clock "+quote(n.dir+"/clock.so")); err != nil {
				return nil, err
			}
		}
	}
	argv := n.argv
	n.argv = func(ctx context.Context) ([]string, error) {
		args, err := argv(ctx)
		as := len(n.program.(*postgresServer).as)
		return append(append(append([]string{}, args[:as]...), env...), args[as:]...), err
	}
	s := newPostgresStore(m, "one server with a clock of its own", postgresURL("root", n.Addr()), ports, n)
	return &fakeTimePostgres{s}, s.Start(ctx)
}

// fakeTimePostgres is a PostgreSQL with a clock of its own.
type fakeTimePostgres struct{ *postgresStore }

var _ Clocker = (*fakeTimePostgres)(nil)

// ShiftClock implements Clocker.
func (s *fakeTimePostgres) ShiftClock(ctx context.Context, by time.Duration) error {
	return shiftClock(ctx, s.m, by)
}

// postgresStore is a store of PostgreSQL's servers, which leave shared memory
// behind when they are killed.
type postgresStore struct{ *store }

var _ Securer = (*postgresStore)(nil)

func newPostgresStore(m machine, kind, url string, ports []int, nodes ...*node) *postgresStore {
	return &postgresStore{&store{m: m, kind: kind, url: url, nodes: nodes, ports: ports}}
}

// CA implements Securer.
func (s *postgresStore) CA() []byte { return s.nodes[0].program.(*postgresServer).tls.ca }

// Close implements Server.
func (s *postgresStore) Close() error { return closePostgres(s.store) }

func closePostgres(s *store) error {
	ctx, cancel := context.WithTimeout(context.Background(), repairTimeout)
	defer cancel()
	err := s.Crash(ctx, KeepData)
	for _, n := range s.nodes {
		if _, ok := n.program.(*postgresServer); !ok {
			continue
		}
		_, shErr := s.m.sh(ctx, removePostgresData(n))
		err = errors.Join(err, shErr)
	}
	return errors.Join(err, s.m.close())
}

// removePostgresData is a script that removes the data of a server that was killed,
// and its shared memory, which line 7 of a file names.
func removePostgresData(n *node) string {
	return `cd ` + quote(n.dir) + ` 2>/dev/null || exit 0
[ ! -e data/postmaster.pid ] || ipcrm -m $(sed -n '7s/.* //p' data/postmaster.pid) 2>/dev/null || :
rm -rf data`
}

func postgresURL(user, addr string) string { return "postgres://" + user + "@" + addr + "/" + Database }

// postgresNode prepares a server in a folder of its own and does not start it.
func postgresNode(ctx context.Context, m machine, dir string, port int) (*node, error) {
	p, err := findPostgresOn(ctx, m)
	if err != nil {
		return nil, err
	}
	n := &node{m: m, dir: dir, port: port, program: p}
	if p.tls, err = newCertificate(); err != nil {
		return nil, err
	}
	// The server wants absolute paths, and files that its user can read.
	script := "set -e\nchmod 711 .\nmkdir -p " + quote(dir) + "\ncd " + quote(dir) + "\n"
	for name, text := range map[string]string{
		"init.sql": postgresInit, "hba.conf": postgresHBA,
		"ca.pem": string(p.tls.ca), "cert.pem": string(p.tls.cert), "key.pem": string(p.tls.key),
	} {
		script += fmt.Sprintf("printf %%s %s >%s\n", quote(text), name)
	}
	script += "chmod 600 key.pem\n"
	if p.user != "" {
		script += "chown " + p.user + " . key.pem init.sql hba.conf cert.pem ca.pem\n"
	}
	where, err := m.sh(ctx, script+"pwd -P")
	if err != nil {
		return nil, err
	}
	p.dir = strings.TrimSpace(where)
	if err := p.empty(ctx, n); err != nil {
		return nil, fmt.Errorf("make the data of PostgreSQL: %w", err)
	}
	args := append(append([]string{}, p.as...), p.bin+"/postgres", "-D", p.dir+"/data")
	for _, setting := range []string{
		"port=" + strconv.Itoa(port), "listen_addresses=" + m.bind(), "unix_socket_directories=",
		"hba_file=" + p.dir + "/hba.conf", "max_connections=500", "shared_buffers=32MB", "max_wal_senders=30", "max_replication_slots=30",
		"wal_keep_size=256MB", // for copies that are made while others write much
		"ssl=on", "ssl_ca_file=" + p.dir + "/ca.pem", "ssl_cert_file=" + p.dir + "/cert.pem", "ssl_key_file=" + p.dir + "/key.pem",
		// What is left behind after a kill is in the folder, and goes with it.
		"dynamic_shared_memory_type=mmap",
	} {
		args = append(args, "-c", setting)
	}
	n.argv = func(context.Context) ([]string, error) { return args, nil }
	return n, nil
}

// findPostgresOn finds the programs.
func findPostgresOn(ctx context.Context, m machine) (*postgresServer, error) {
	out, err := find(ctx, m, "PostgreSQL", findPostgres)
	if err != nil {
		return nil, err
	}
	words := strings.Fields(out)
	p := &postgresServer{bin: words[0]}
	if len(words) == 3 {
		p.user = words[1]
		// As the same process. A change of user drops the signal that ends it with us.
		p.as = []string{"setpriv", "--reuid=" + words[1], "--regid=" + words[2], "--clear-groups", "--pdeathsig=KILL", "--"}
	}
	return p, nil
}

// careless: a commit is with the kernel and not on the disk. So it survives the end
// of the server, and tests do not wait for the disk. It stands in the file, where
// ALTER SYSTEM can change it.
const careless = "fsync=off\\nfull_page_writes=off\\n"

// postgresEmpty is a script that makes an empty database in the folder $dir. That takes most of a second of processor
// time, so it is made once for each version and for what it is made of, and copied. $as are the words that make a program run
// as the server's user.
//
// A copy has the identity (system_identifier) of the original. pg_resetwal gives one of its own to data without the file
// that has it, and is told the numbers of the next transaction and object, which only that file knows.
const postgresEmpty = `set -e
program=$bin/postgres
version=$("$program" --version | sed 's/[^A-Za-z0-9.]\{1,\}/-/g')
template=$cache/$version-$made
mkdir -p "$cache"
cd "$dir"
if ! [ -d "$template" ]; then
	find "$cache" -maxdepth 1 -name 'new.*' -mmin +10 -exec rm -rf {} + 2>/dev/null || : # not in every image
	{
		$as "$bin/initdb" -D data -U root -A trust -E UTF8 --locale=C --no-sync --wal-segsize=1 &&
			$as "$program" --single -F -c hba_file=/dev/null -D data postgres <init.sql
	} >>log 2>&1 || { tail -n 20 log >&2; exit 1; }
	printf "$careless" >>data/postgresql.conf
	new=$(mktemp -d "$cache/new.XXXXXX")
	LC_ALL=C $as "$bin/pg_controldata" data |
		sed -n "s/^Latest checkpoint's NextXID: .*:/-x /p; s/^Latest checkpoint's NextOID: */-o /p" >"$new/next"
	[ "$(wc -l <"$new/next")" = 2 ]
	mv data "$new/data"
	mv -T "$new" "$template" 2>/dev/null || [ -d "$template" ] # others may have been faster
	rm -rf "$new"
fi
cp -R "$template/data" data
: >data/global/pg_control
[ -z "$user" ] || chown -R "$user" data
$as "$bin/pg_resetwal" -f --wal-segsize=1 $(cat "$template/next") -D data >>log 2>&1 || { tail -n 20 log >&2; exit 1; }`

// empty makes an empty database.
func (p *postgresServer) empty(ctx context.Context, n *node) error {
	made := sha256.Sum256([]byte(postgresEmpty + postgresInit + careless))
	_, err := n.m.sh(ctx, fmt.Sprintf("bin=%s cache=%s dir=%s made=%x user=%s as=%s careless=%s\n%s",
		quote(p.bin), quote(n.m.cache()), quote(n.dir), made[:6], quote(p.user), quote(strings.Join(p.as, " ")), quote(careless), postgresEmpty))
	return err
}

// ready implements program.
func (p *postgresServer) ready(ctx context.Context, n *node) (version string, err error) {
	var dir string
	ctx, cancel := context.WithTimeout(ctx, time.Second) // who is there need not be a server
	defer cancel()
	err = postgresDo(ctx, n.Addr(), func(c *pgx.Conn) error {
		return c.QueryRow(ctx, "SELECT current_setting('server_version'), current_setting('data_directory')").Scan(&version, &dir)
	})
	if err != nil {
		return "", err
	}
	if dir != p.dir+"/data" {
		return "", stop(errPortTaken)
	}
	return version, nil
}

// keep implements program: a server writes before it answers (synchronous_commit=on).
func (*postgresServer) keep(context.Context, *node) error { return nil }

// drop implements program.
func (p *postgresServer) drop(ctx context.Context, n *node) error {
	if _, err := n.m.sh(ctx, removePostgresData(n)); err != nil {
		return err
	}
	return p.empty(ctx, n)
}

// postgresDo asks a server as root on one connection.
func postgresDo(ctx context.Context, addr string, f func(*pgx.Conn) error) error {
	c, err := pgx.Connect(ctx, postgresURL("root", addr)+"?sslmode=disable")
	if err == nil {
		err = errors.Join(f(c), c.Close(context.WithoutCancel(ctx)))
	}
	if err != nil {
		return fmt.Errorf("ask %s: %w", addr, err)
	}
	return nil
}

func postgresExec(ctx context.Context, addr string, statements ...string) error {
	return postgresDo(ctx, addr, func(c *pgx.Conn) error {
		for _, s := range statements {
			if _, err := c.Exec(ctx, s); err != nil {
				return fmt.Errorf("%s: %w", s, err)
			}
		}
		return nil
	})
}
