package docstest

import (
	"bufio"
	"bytes"
	"context"
	"database/sql"
	"fmt"
	"net/url"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	_ "github.com/go-sql-driver/mysql" // opened by name
	"github.com/jackc/pgx/v5"

	"github.com/locksidecar/locksidecar/internal/testengine"
)

// console is a connection to a database as somebody. It runs one statement, and gives the
// number of rows that it has found or changed.
type console func(t *testing.T, statement string) int64

// sqlPage is a store's page whose SQL is run on a real server, in the order in which
// its reader would.
type sqlPage struct {
	page    string
	clean   []string // takes away what is made below, on a server that others have used
	account int      // which block makes the account of the sidecar
	forApp  int      // which block gives the app's account its rights; it may be a part of account
	guard   int
	look    int
	more    []int // for whoever owns the tables
	open    func(t *testing.T, server, user, password, database string) console
}

// password is put where the pages have "…". (SCRAM makes three dots of that sign, so that
// it cannot be one.)
const password = "secret"

var mysqlPage = sqlPage{
	page:    "docs/stores/mysql.md",
	clean:   []string{"DROP DATABASE IF EXISTS locks", "DROP USER IF EXISTS locksidecar", "DROP USER IF EXISTS app"},
	account: 1, forApp: 1, guard: 0, look: 2,
	open: openMySQL,
}

var postgresPage = sqlPage{
	page:    "docs/stores/postgres.md",
	clean:   []string{"DROP DATABASE IF EXISTS locks", "DROP ROLE IF EXISTS locksidecar", "DROP DATABASE IF EXISTS locksidecar", "DROP ROLE IF EXISTS app"},
	account: 0, guard: 1, forApp: 2, more: []int{3}, look: 4,
	open: openPostgres,
}

// The SQL of the stores' pages runs on real servers: the accounts that it makes are enough
// for the sidecar, for the guard and for a look at the tables, the guard changes one
// row, and a check-up's queries are answered.
func TestSQL(t *testing.T) {
	for kind, p := range map[*testengine.Kind]sqlPage{
		testengine.MySQL: mysqlPage, testengine.MariaDB: mysqlPage, testengine.Postgres: postgresPage,
	} {
		t.Run(kind.String(), func(t *testing.T) {
			t.Parallel()
			p.run(t, testengine.New(t, kind).URL())
		})
	}
}

func (p sqlPage) run(t *testing.T, server string) {
	text := pages(t)[p.page]
	var found []string
	for _, b := range blocks(t, p.page, text) {
		if b.language == "sql" {
			found = append(found, strings.ReplaceAll(b.text, "…", password))
		}
	}
	if len(found) != p.look+1 { // it is the last
		t.Fatalf("%s has %d blocks of SQL: tell internal/docstest what each is", p.page, len(found))
	}
	nobody := p.open(t, server, "root", "", "")
	for _, s := range p.clean {
		nobody(t, s)
	}
	account, forApp, _ := strings.Cut(found[p.account], "-- for the guard")
	if p.forApp != p.account {
		forApp = found[p.forApp]
	} else {
		_, forApp, _ = strings.Cut(forApp, "\n")
	}
	for _, s := range statements(account) {
		nobody(t, s)
	}
	guard := holdOrders(t, server)
	root := p.open(t, server, "root", "", "locks")
	for _, s := range statements(forApp) {
		root(t, s)
	}
	for _, i := range p.more {
		for _, s := range statements(found[i]) {
			root(t, s)
		}
	}
	root(t, "CREATE TABLE account (id INT PRIMARY KEY, money INT)")
	root(t, "INSERT INTO account VALUES (7, 100)")
	root(t, "GRANT SELECT, UPDATE ON account TO app")
	app := p.open(t, server, "app", password, "locks")
	guards := 0
	for _, s := range statements(found[p.guard]) {
		if !strings.Contains(s, "guards=guards+1") {
			app(t, s)
			continue
		}
		guards++
		if shown, is := argument.ReplaceAllString(s, "($1"), argument.ReplaceAllString(guard, "($1"); shown != is {
			t.Errorf("the page shows the guard\n%s\nbut it is\n%s", shown, is)
		}
		if n := app(t, guard); n != 1 {
			t.Errorf("the guard has changed %d rows", n)
		}
	}
	if guards != 1 {
		t.Errorf("the page shows %d guards", guards)
	}
	if n := root(t, "SELECT * FROM account WHERE money = 90"); n != 1 {
		t.Error("the app's transaction has changed nothing")
	}
	sidecar := p.open(t, server, "locksidecar", password, "locks")
	for _, s := range statements(found[p.look]) {
		for end := time.Now().Add(patience); sidecar(t, s) == 0 && !t.Failed(); time.Sleep(50 * time.Millisecond) {
			if time.Now().After(end) { // the log is written in the background
				t.Fatalf("nothing is found by\n%s", s)
			}
		}
	}
	_, checkUp, ok := strings.Cut(text, "## What a check-up looks at")
	if !ok {
		t.Fatalf("%s has no check-up", p.page)
	}
	queries := query.FindAllStringSubmatch(checkUp, -1)
	if len(queries) < 5 {
		t.Errorf("%s: %d queries in the check-up", p.page, len(queries))
	}
	for _, q := range queries {
		root(t, q[1])
	}
}

var (
	argument = regexp.MustCompile(`\((?:\?|'[^']*')([,) ])`) // of UNHEX, decode or CAST
	query    = regexp.MustCompile("`((?:SELECT|SHOW) [^`]*)`")
	remark   = regexp.MustCompile(`--.*`)
)

// statements are those of a block, without comments.
func statements(text string) []string {
	var all []string
	for s := range strings.SplitSeq(remark.ReplaceAllString(text, ""), ";\n") {
		s = strings.TrimSuffix(strings.TrimSpace(s), ";")
		if s != "" {
			all = append(all, s)
		}
	}
	return all
}

// holdOrders holds orders/42 until the test ends, through a sidecar that has the
// account of the page, and gives the guard, with its arguments.
func holdOrders(t *testing.T, server string) string {
	t.Helper()
	store, err := url.Parse(server)
	if err != nil {
		t.Fatal(err)
	}
	store.User, store.Path = url.UserPassword("locksidecar", password), "/locks"
	ctx, cancel := context.WithTimeout(context.WithoutCancel(t.Context()), 2*patience) // it ends in a clean-up
	t.Cleanup(cancel)
	cmd := exec.CommandContext(ctx, filepath.Join(bin, "locksidecar"), "run", "--store", store.String(), "orders/42",
		"--", "sh", "-c", `printf '%s\n' "$LOCKSIDECAR_GUARD"; read -r _`)
	cmd.Dir = t.TempDir()
	var said bytes.Buffer
	cmd.Stderr = &said
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_, _ = in.Write([]byte("\n"))
		if err := cmd.Wait(); err != nil && !t.Failed() {
			t.Errorf("locksidecar run: %v\n%s", err, said.Bytes())
		}
	})
	guard, err := bufio.NewReader(out).ReadString('\n')
	if err != nil {
		t.Fatalf("no guard: %v\n%s", err, said.Bytes())
	}
	return strings.TrimSpace(guard)
}

func openMySQL(t *testing.T, server, user, password, database string) console {
	t.Helper()
	u, err := url.Parse(server)
	if err != nil {
		t.Fatal(err)
	}
	db, err := sql.Open("mysql", fmt.Sprintf("%s:%s@tcp(%s)/%s", user, password, u.Host, database))
	if err != nil {
		t.Fatal(err)
	}
	c, err := db.Conn(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _, _ = c.Close(), db.Close() })
	return func(t *testing.T, statement string) int64 {
		t.Helper()
		if strings.HasPrefix(statement, "SELECT") || strings.HasPrefix(statement, "SHOW") {
			rows, err := c.QueryContext(t.Context(), statement)
			if err != nil {
				t.Errorf("%s: %v", statement, err)
				return 0
			}
			defer rows.Close()
			var n int64
			for rows.Next() {
				n++
			}
			if err := rows.Err(); err != nil {
				t.Errorf("%s: %v", statement, err)
			}
			return n
		}
		r, err := c.ExecContext(t.Context(), statement)
		if err != nil {
			t.Errorf("%s: %v", statement, err)
			return 0
		}
		n, err := r.RowsAffected()
		if err != nil {
			t.Errorf("%s: %v", statement, err)
		}
		return n
	}
}

func openPostgres(t *testing.T, server, user, password, database string) console {
	t.Helper()
	u, err := url.Parse(server)
	if err != nil {
		t.Fatal(err)
	}
	u.User = url.UserPassword(user, password)
	u.Path = "/" + database
	if database == "" {
		u.Path = "/postgres"
	}
	c, err := pgx.Connect(t.Context(), u.String())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close(context.WithoutCancel(t.Context())) })
	return func(t *testing.T, statement string) int64 {
		t.Helper()
		tag, err := c.Exec(t.Context(), statement)
		if err != nil {
			t.Errorf("%s: %v", statement, err)
		}
		return tag.RowsAffected()
	}
}
