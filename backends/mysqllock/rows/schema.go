package rows

import (
	"context"
	_ "embed" // the schema
	"strings"

	"github.com/locksidecar/locksidecar/backends/mysqllock/mydb"
)

//go:embed schema.sql
var schema string

// Schema is the text that creates the tables, for whoever does not let the
// sidecar do it. Table names have the prefix and no database.
func Schema(prefix string) string {
	return schemaWith(func(table string) string { return "`" + prefix + table + "`" })
}

func schemaWith(name func(table string) string) string {
	return strings.NewReplacer("{row}", name("row"), "{row_fence}", name("row_fence"), "{row_hold}", name("row_hold")).Replace(schema)
}

// prepare makes sure, once, that the tables are there.
func (b *Backend) prepare(ctx context.Context) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.ready {
		return nil
	}
	look := func() error {
		return b.pool.Query(ctx, "check tables", scanNothing, b.sql.look)
	}
	err := look()
	if mydb.Missing(err) && b.cfg.Migrate {
		if _, err := b.pool.Exec(ctx, "create tables", schemaWith(b.cfg.Table)); err != nil {
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
