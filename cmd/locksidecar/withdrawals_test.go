package main

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	_ "github.com/go-sql-driver/mysql"
	_ "github.com/jackc/pgx/v5/stdlib"

	"github.com/locksidecar/locksidecar/client"
	"github.com/locksidecar/locksidecar/internal/testengine"
)

const (
	// withdrawEnv makes an app of the test binary: it has the database, a space, the name of the
	// test's tables, a space, and how many withdrawals there are.
	withdrawEnv = "WITHDRAWALS_OF_THE_TEST"

	deposit    = 1_000_000_00 // cents
	apps       = 4
	crashEvery = time.Second // a sidecar
)

// cents is what a withdrawal takes from the account.
func cents(n int) int { return 100 + n%97 }

// Each withdrawal is paid once, to the cent, whatever is killed or stands still: apps
// before their commit, after it, and between their guard and their commit, for longer
// than the lock lasts; and sidecars at any time. The outcome is committed with the money,
// so an app need not ask anybody what became of the attempt before.
func TestWithdrawals(t *testing.T) {
	t.Parallel()
	for _, kind := range []*testengine.Kind{testengine.MariaDB, testengine.MySQL, testengine.Postgres} {
		t.Run(kind.String(), func(t *testing.T) {
			t.Parallel()
			withdrawals := 50
			if os.Getenv("LOCKSIDECAR_TEST_FULL") != "" {
				withdrawals = 1000
			}
			payAll(t, kind, withdrawals)
		})
	}
}

// dataOf is the database of a server as the apps find it.
func dataOf(server testengine.Server) string {
	at, isMySQL := strings.CutPrefix(server.URL(), "mysql://")
	if !isMySQL {
		return server.URL()
	}
	at = strings.Replace(at, "@", "@tcp(", 1)
	return strings.Replace(at, "/", ")/", 1)
}

func openData(data string) (*sql.DB, error) {
	if strings.HasPrefix(data, "postgres") {
		return sql.Open("pgx", data)
	}
	return sql.Open("mysql", data)
}

func payAll(t *testing.T, kind *testengine.Kind, withdrawals int) {
	data := dataOf(testengine.Shared(t, kind))
	db, err := openData(data)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = db.Close() })
	name := namespace(t)
	tables := "w" + strings.ToLower(name[len(name)-8:])
	for _, q := range []string{
		"CREATE TABLE " + tables + "_account (balance BIGINT)", fmt.Sprintf("INSERT INTO %s_account VALUES (%d)", tables, deposit),
		"CREATE TABLE " + tables + "_paid (n INT, cents BIGINT)",
	} {
		if _, err := db.ExecContext(t.Context(), q); err != nil {
			t.Fatal(err)
		}
	}
	store := onStore(t, kind, "--ttl", "1s", "--lost-grace", "50ms")
	sides := make([]*sidecarProgram, 2)
	for i := range sides {
		sides[i] = serveProgram(t, store...)
	}
	running := make([]*program, apps)
	for i := range running {
		running[i] = startApp(t, sides[i%2], data, tables, withdrawals)
	}
	left, crashed, began := apps, 0, time.Now()
	nextCrash := began.Add(crashEvery)
	for end := began.Add(patience + time.Duration(withdrawals)*time.Second/4); left > 0; time.Sleep(5 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("in vain: %d apps do not find everything done", left)
		}
		for i, p := range running {
			select {
			case <-p.exited:
				if p.code == 0 {
					left--
					running[i] = &program{exited: make(chan struct{})}
					continue
				}
				running[i] = startApp(t, sides[i%2], data, tables, withdrawals)
			default:
			}
		}
		if crashed < withdrawals/25 && time.Now().After(nextCrash) {
			i := crashed % 2
			crashed++
			sides[i].signal(syscall.SIGKILL)
			<-sides[i].exited
			sides[i] = serveAt(t, sides[i].socket, store...)
			nextCrash = time.Now().Add(crashEvery)
		}
	}
	t.Logf("%d withdrawals in %s, %d sidecars killed", withdrawals, time.Since(began), crashed)
	var balance, paid, twice, sum int
	for q, into := range map[string]*int{
		"SELECT balance FROM " + tables + "_account":                                                         &balance,
		"SELECT COUNT(*) FROM " + tables + "_paid":                                                           &paid,
		"SELECT COALESCE(SUM(cents), 0) FROM " + tables + "_paid":                                            &sum,
		"SELECT COUNT(*) FROM (SELECT n FROM " + tables + "_paid GROUP BY n HAVING COUNT(*) > 1) AS doubles": &twice,
	} {
		if err := db.QueryRowContext(t.Context(), q).Scan(into); err != nil {
			t.Fatal(err)
		}
	}
	want := 0
	for n := range withdrawals {
		want += cents(n)
	}
	if paid != withdrawals || twice != 0 || sum != want || balance != deposit-want {
		t.Errorf("broken law: %d withdrawals: %d paid, %d of them more than once, %d cents of %d, and %d are left of %d", withdrawals, paid, twice, sum, want, balance, deposit)
	}
	out := cli(t, "outcomes", "--socket", sides[1].socket, "--state", "failed,unknown")
	if out.code != 0 || out.out != "nothing is recorded\n" {
		t.Errorf("not done: %+v", out)
	}
}

func startApp(t *testing.T, side *sidecarProgram, data, tables string, n int) *program {
	t.Helper()
	return launch(t, []string{fmt.Sprintf("%s=%s %s %d", withdrawEnv, data, tables, n), "LOCKSIDECAR_SOCKET=" + side.socket, "GORACE=atexit_sleep_ms=0"}, os.Args[0])
}

// withdraw is the app. Its status is 0 when it has found every withdrawal done.
func withdraw(arg string) error {
	ctx := context.Background()
	var data, tables string
	var n int
	if _, err := fmt.Sscan(arg, &data, &tables, &n); err != nil {
		return err
	}
	db, err := openData(data)
	if err != nil {
		return err
	}
	defer db.Close()
	c, err := client.Dial(ctx, "")
	if err != nil {
		return err
	}
	defer c.Close()
	s, err := c.OpenSession(ctx, client.SessionOptions{Name: filepath.Base(os.Args[0])})
	if err != nil {
		return err
	}
	todo := rand.Perm(n)
	for len(todo) > 0 && s.Err() == nil {
		var again []int
		for _, i := range todo {
			l, err := s.Acquire(ctx, fmt.Sprintf("withdrawals/%d", i), client.AcquireOptions{
				Wait: client.NoWait, MaxHold: 200 * time.Millisecond, Once: &client.Once{},
			})
			if err == nil {
				if err = pay(ctx, db, l, tables, i); err == nil {
					err = l.Conclude(ctx, client.Succeeded, "")
				} else {
					err = errors.Join(err, l.Conclude(ctx, client.Failed, ""))
				}
			}
			if err != nil && !errors.Is(err, client.ErrAlreadyDone) {
				again = append(again, i)
			}
		}
		todo = again
		time.Sleep(10 * time.Millisecond)
	}
	return s.Err()
}

// pay moves the money and says in the same transaction that it has. On the first
// attempt some things go wrong.
func pay(ctx context.Context, db *sql.DB, l *client.Lock, tables string, n int) error {
	wrong := func(at int) bool { return n%50 == at && l.Attempt == 1 }
	if wrong(11) {
		standStill()
		awaitPaid(ctx, db, tables, n)
	}
	tx, err := db.BeginTx(ctx, nil)
	if err != nil {
		return err
	}
	defer func() { _ = tx.Rollback() }()
	if _, err := tx.ExecContext(ctx, fmt.Sprintf("INSERT INTO %s_paid VALUES (%d, %d)", tables, n, cents(n))); err != nil {
		return err
	}
	statement, numbered := l.OutcomeGuard.SQL, fmt.Sprintf("%T", db.Driver()) == "*stdlib.Driver"
	args := make([]any, len(l.OutcomeGuard.Args))
	for i, a := range l.OutcomeGuard.Args {
		if args[i] = a; numbered { // as PostgreSQL counts them
			statement = strings.Replace(statement, "?", fmt.Sprintf("$%d", i+1), 1)
		}
	}
	done, err := tx.ExecContext(ctx, statement, args...)
	if err != nil {
		return err
	}
	if rows, err := done.RowsAffected(); err != nil || rows != 1 {
		return errors.Join(err, errors.New("somebody else has begun"))
	}
	switch {
	case wrong(23):
		_ = syscall.Kill(os.Getpid(), syscall.SIGKILL)
	case wrong(31):
		standStill()
	}
	if _, err := tx.ExecContext(ctx, fmt.Sprintf("UPDATE %s_account SET balance=balance-%d", tables, cents(n))); err != nil {
		return err
	}
	if err := tx.Commit(); err != nil {
		return err
	}
	if wrong(37) {
		_ = syscall.Kill(os.Getpid(), syscall.SIGKILL)
	}
	return nil
}

// awaitPaid stands still until somebody else has paid.
func awaitPaid(ctx context.Context, db *sql.DB, tables string, n int) {
	for end := time.Now().Add(10 * time.Second); time.Now().Before(end); time.Sleep(10 * time.Millisecond) {
		var paid int
		if db.QueryRowContext(ctx, fmt.Sprintf("SELECT COUNT(*) FROM %s_paid WHERE n=%d", tables, n)).Scan(&paid) != nil || paid > 0 {
			return
		}
	}
}

// standStill stops this process for longer than its lock lasts.
func standStill() {
	wake := exec.Command("sh", "-c", "sleep 1; kill -CONT $0", fmt.Sprint(os.Getpid()))
	if wake.Start() == nil {
		_ = syscall.Kill(os.Getpid(), syscall.SIGSTOP)
		_ = wake.Wait()
	}
}
