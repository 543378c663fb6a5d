package shedlock

import (
	"context"
	"database/sql"
	_ "embed" // the schema
	"strings"

	"github.com/locksidecar/locksidecar/backends/mysqllock/mydb"
)

//go:embed schema.sql
var schema string

// tables are all tables, as they stand in {braces} in statements.
var tables = []string{usualTable, "shed_lease", "shed_fence", "shed_hold", "shed_gone"}

// Schema is the text that creates the tables, for whoever does not let the
// sidecar do it. ShedLock's has its usual name, the others the prefix.
func Schema(prefix string) string {
	return replaceNames(schema, func(table string) string {
		if table != usualTable {
			table = prefix + table
		}
		return "`" + table + "`"
	})
}

func replaceNames(text string, name func(table string) string) string {
	var pairs []string
	for _, t := range tables {
		pairs = append(pairs, "{"+t+"}", name(t))
	}
	return strings.NewReplacer(pairs...).Replace(text)
}

// prepare makes sure, once, that the tables are there.
func (b *Backend) prepare(ctx context.Context) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.ready {
		return nil
	}
	look := func() error {
		return b.pool.Query(ctx, "check tables", func(int, *sql.Rows) error { return nil }, b.sql.look)
	}
	err := look()
	if mydb.Missing(err) && b.cfg.Migrate {
		if _, err := b.pool.Exec(ctx, "create tables", replaceNames(schema, b.name)); err != nil {
			return mydb.Unavailable("create tables", err)
		}
		err = look()
	}
	if err != nil {
		return mydb.Unavailable("check tables", err)
	}
	b.ready = true
	return nil
}
