package tables

import (
	"context"
	"database/sql"
	"embed"
	"errors"
	"fmt"
	"hash/fnv"
	"strings"
	"time"

	"github.com/locksidecar/locksidecar/backends/mysqllock/mydb"
	"github.com/locksidecar/locksidecar/lock"
)

// schemaVersion is the version of the tables that this sidecar works with.
const schemaVersion = 1

//go:embed schema/v1.sql
var schemaFiles embed.FS

// tableNames are all tables of the strategy, as they stand in {braces} in
// statements.
var tableNames = []string{"lease", "lock", "hold", "queue", "gone", "news", "log", "meta"}

// Schema is the text that creates the tables, for whoever does not let the
// sidecar do it. Table names have the prefix and no database.
func Schema(prefix string) string {
	return replaceNames(mustRead("schema/v1.sql"), func(table string) string { return "`" + prefix + table + "`" })
}

func mustRead(name string) string {
	text, err := schemaFiles.ReadFile(name)
	if err != nil {
		panic(err) // it is in the program
	}
	return string(text)
}

func replaceNames(text string, name func(table string) string) string {
	var pairs []string
	for _, t := range tableNames {
		pairs = append(pairs, "{"+t+"}", name(t))
	}
	return strings.NewReplacer(pairs...).Replace(text)
}

// check makes sure, once, that the tables are there and of our version, and
// makes them where that is wanted.
func (b *Backend) check(ctx context.Context) error {
	b.checkMu.Lock()
	defer b.checkMu.Unlock()
	if b.checked {
		return nil
	}
	have, err := b.version(ctx)
	if mydb.Missing(err) && b.cfg.Migrate {
		if err = b.migrate(ctx); err == nil {
			have, err = b.version(ctx)
		}
	}
	switch {
	case err != nil:
		return mydb.Unavailable("check tables", err)
	case have < schemaVersion:
		return fmt.Errorf("check tables: they are of version %d and this sidecar needs %d; apply what `locksidecar schema mysql` prints: %w", have, schemaVersion, lock.ErrUnavailable)
	case have > schemaVersion:
		return fmt.Errorf("check tables: they are of version %d, which a newer sidecar made; this one knows %d; use a newer sidecar, or another prefix: %w", have, schemaVersion, lock.ErrUnavailable)
	}
	b.checked = true
	return nil
}

func (b *Backend) version(ctx context.Context) (int64, error) {
	var v int64 // 0: the table is there and nothing in it
	err := b.pool.Query(ctx, "schema", func(_ int, rows *sql.Rows) error { return rows.Scan(&v) }, b.sql.version)
	return v, err
}

// migrateTime is the least time that creating tables may take.
const migrateTime = 30 * time.Second

// migrate creates the tables. Two sidecars may do it at the same time: every
// statement does nothing where it was done already. The named lock only keeps
// the server from doing it twice.
func (b *Backend) migrate(ctx context.Context) error {
	c, err := mydb.NewConnector(b.cfg, mydb.ConnectOptions{Wait: migrateTime})
	if err != nil {
		return err
	}
	pool := mydb.NewPool(c, 1, b.observe)
	defer func() { _ = pool.Close() }()
	// Refused on some clusters, and not needed.
	_ = pool.Query(ctx, "schema", func(int, *sql.Rows) error { return nil }, "SELECT GET_LOCK(?, 10)", b.lockName("migrate"))
	_, err = pool.Exec(ctx, "schema", replaceNames(mustRead("schema/v1.sql"), b.cfg.Table))
	if err != nil {
		return fmt.Errorf("create tables: %w", err)
	}
	return nil
}

// lockName is a named lock of these tables. Named locks are the server's, and
// their names short.
func (b *Backend) lockName(what string) string {
	h := fnv.New64a()
	_, _ = h.Write([]byte(b.cfg.Table("")))
	return fmt.Sprintf("locksidecar:%s:%x", what, h.Sum64())
}

var errNoRow = errors.New("the resource has no row yet")
