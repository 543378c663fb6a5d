package testengine

import (
	"context"
	"database/sql"
	"fmt"
	"strings"
	"testing"
)

// ForkMySQL starts another server of a kind, MariaDB or MySQL, with all that one of that kind
// knows at this moment of our database: a replica that was cut off and became a primary.
func ForkMySQL(t testing.TB, s Server, kind *Kind) Server {
	t.Helper()
	of, fork := Nodes(t, s)[0].Addr(), New(t, kind)
	ctx, cancel := context.WithTimeout(t.Context(), forkTimeout)
	defer cancel()
	err := mysqlDo(of, func(from *sql.DB) error {
		return mysqlDo(Nodes(t, fork)[0].Addr(), func(to *sql.DB) error { return copyMySQL(ctx, from, to) })
	})
	if err != nil {
		t.Fatalf("fork %s: %v", s.Origin(), err)
	}
	return fork
}

// copyMySQL copies our database as it is at one moment. Each side has one connection.
func copyMySQL(ctx context.Context, from, to *sql.DB) error {
	if _, err := to.ExecContext(ctx, "USE "+Database); err != nil {
		return err
	}
	if _, err := from.ExecContext(ctx, "START TRANSACTION WITH CONSISTENT SNAPSHOT"); err != nil {
		return err
	}
	tables, err := tablesOf(ctx, from)
	if err != nil {
		return err
	}
	for _, t := range tables {
		if err := copyTable(ctx, from, to, t); err != nil {
			return fmt.Errorf("copy %s: %w", t, err)
		}
	}
	return nil
}

func tablesOf(ctx context.Context, from *sql.DB) (tables []string, err error) {
	rows, err := from.QueryContext(ctx, "SELECT table_name FROM information_schema.tables WHERE table_schema=?", Database)
	if err != nil {
		return nil, err
	}
	defer rows.Close()
	for rows.Next() {
		var name string
		if err := rows.Scan(&name); err != nil {
			return nil, err
		}
		tables = append(tables, Database+".`"+name+"`")
	}
	return tables, rows.Err()
}

func copyTable(ctx context.Context, from, to *sql.DB, table string) error {
	var name, text string
	if err := from.QueryRowContext(ctx, "SHOW CREATE TABLE "+table).Scan(&name, &text); err != nil {
		return err
	}
	if _, err := to.ExecContext(ctx, text); err != nil {
		return err
	}
	rows, err := from.QueryContext(ctx, "SELECT * FROM "+table)
	if err != nil {
		return err
	}
	defer rows.Close()
	columns, err := rows.Columns()
	if err != nil {
		return err
	}
	insert, err := to.PrepareContext(ctx, "INSERT INTO "+table+" VALUES ("+strings.TrimSuffix(strings.Repeat("?,", len(columns)), ",")+")")
	if err != nil {
		return err
	}
	defer insert.Close()
	values, places := make([][]byte, len(columns)), make([]any, len(columns))
	for i := range values {
		places[i] = &values[i]
	}
	for rows.Next() {
		if err := rows.Scan(places...); err != nil {
			return err
		}
		row := make([]any, len(values))
		for i, v := range values {
			if v != nil {
				row[i] = v
			}
		}
		if _, err := insert.ExecContext(ctx, row...); err != nil {
			return err
		}
	}
	return rows.Err()
}
