package main

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"net/url"

	"github.com/go-sql-driver/mysql"

	"github.com/locksidecar/locksidecar/client"
)

// deposit is what is on the account before, in cents.
const deposit = 1_000_000_00

// cents is what a withdrawal takes from the account.
func cents(n int) int { return 10_000 + n%97 }

// ledger is the account, in the database that is also the store of the locks.
type ledger struct {
	db     *sql.DB
	prefix string // of the tables
}

// openLedger opens the database of a store URL, such as mysql://user:pass@host:3306/db.
func openLedger(store, prefix string) (*ledger, error) {
	u, err := url.Parse(store)
	if err != nil {
		return nil, err
	}
	if u.Scheme != "mysql" && u.Scheme != "mariadb" {
		return nil, fmt.Errorf("the ledger is in the store's database: it needs MySQL or MariaDB, not %s", u.Scheme)
	}
	c := mysql.NewConfig()
	c.Net, c.Addr, c.DBName = "tcp", u.Host, u.Path[1:]
	c.User = u.User.Username()
	c.Passwd, _ = u.User.Password()
	connector, err := mysql.NewConnector(c)
	if err != nil {
		return nil, err
	}
	return &ledger{sql.OpenDB(connector), prefix}, nil
}

func (l *ledger) build(ctx context.Context) error {
	for _, q := range []string{
		"CREATE TABLE " + l.prefix + "_account (balance BIGINT)",
		fmt.Sprintf("INSERT INTO %s_account VALUES (%d)", l.prefix, deposit),
		"CREATE TABLE " + l.prefix + "_booked (n INT, cents BIGINT, transfer VARCHAR(100))",
	} {
		if _, err := l.db.ExecContext(ctx, q); err != nil {
			return err
		}
	}
	return nil
}

func (l *ledger) drop(ctx context.Context) error {
	_, err := l.db.ExecContext(ctx, "DROP TABLE IF EXISTS "+l.prefix+"_account, "+l.prefix+"_booked")
	return err
}

// book takes a withdrawal from the account, and records in the same transaction that it
// succeeded. With an error, and as long as nobody knows whether it was committed, the outcome is unknown.
func (l *ledger) book(ctx context.Context, hold *client.Lock, n int, transfer string) error {
	tx, err := l.db.BeginTx(ctx, nil)
	if err != nil {
		return err
	}
	defer func() { _ = tx.Rollback() }()                                                                              // after the commit it does nothing
	if _, err := tx.ExecContext(ctx, "UPDATE "+l.prefix+"_account SET balance = balance - ?", cents(n)); err != nil { //nolint:gosec // the prefix is ours
		return err
	}
	if _, err := tx.ExecContext(ctx, "INSERT INTO "+l.prefix+"_booked VALUES (?, ?, ?)", n, cents(n), transfer); err != nil { //nolint:gosec // the prefix is ours
		return err
	}
	guard := hold.OutcomeGuard
	args := make([]any, len(guard.Args))
	for i, a := range guard.Args {
		args[i] = a
	}
	done, err := tx.ExecContext(ctx, guard.SQL, args...)
	if err != nil {
		return err
	}
	if rows, err := done.RowsAffected(); err != nil || rows != 1 {
		return errors.Join(err, errors.New("somebody else has started"))
	}
	return tx.Commit()
}

// ofLedger is what the ledger says.
type ofLedger struct{ booked, twice, cents, balance int }

func (l *ledger) sum(ctx context.Context) (s ofLedger, err error) {
	for q, into := range map[string]*int{
		"SELECT COUNT(DISTINCT n) FROM " + l.prefix + "_booked":            &s.booked,
		"SELECT COUNT(*) - COUNT(DISTINCT n) FROM " + l.prefix + "_booked": &s.twice,
		"SELECT COALESCE(SUM(cents), 0) FROM " + l.prefix + "_booked":      &s.cents,
		"SELECT balance FROM " + l.prefix + "_account":                     &s.balance,
	} {
		if err := l.db.QueryRowContext(ctx, q).Scan(into); err != nil {
			return s, err
		}
	}
	return s, nil
}
