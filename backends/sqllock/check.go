package sqllock

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/locksidecar/locksidecar/lock"
)

// checkOnce makes sure that the tables are there and of our version, and makes them where
// that is wanted, until that has succeeded.
func (b *Backend) checkOnce(ctx context.Context) error {
	b.mu.Lock()
	checked := b.checked
	b.mu.Unlock()
	if checked {
		return nil
	}
	if err := b.checkTables(ctx); err != nil {
		return err
	}
	b.mu.Lock()
	b.checked = true
	b.mu.Unlock()
	return nil
}

func (b *Backend) checkTables(ctx context.Context) error {
	have, err := b.version(ctx)
	if b.d.Class(err) == Missing && b.o.Migrate {
		if err = b.migrate(ctx, Schema(b.sql.w)); err == nil {
			have, err = b.version(ctx)
		}
	}
	if err == nil && have == SchemaVersion { // there was none once
		err = b.ensure(ctx, Statement{SQL: b.sql.record.read, Args: []any{[]byte("")}}, Schema(b.sql.w))
	}
	if err == nil && b.o.Beside != nil {
		err = b.ensure(ctx, Statement{SQL: b.o.Beside.Look}, b.o.Beside.Tables)
	}
	store := b.sql.w.Store
	switch {
	case err != nil:
		return b.unavailable("check tables", err)
	case have < SchemaVersion:
		return fmt.Errorf("check tables: they are of version %d and this sidecar needs %d; stop all sidecars, drop the tables and apply what `locksidecar schema %s` prints, or use another prefix: %w", have, SchemaVersion, store, lock.ErrUnavailable)
	case have > SchemaVersion:
		return fmt.Errorf("check tables: they are of version %d, which a newer sidecar made; this one knows %d; use a newer sidecar, or another prefix: %w", have, SchemaVersion, lock.ErrUnavailable)
	}
	return nil
}

// ensure makes sure that the tables are there that a statement looks at, and makes them
// from their text where that is wanted.
func (b *Backend) ensure(ctx context.Context, look Statement, tables string) error {
	_, err := b.pool.Do(ctx, "schema", look)
	if b.d.Class(err) == Missing && b.o.Migrate {
		if err = b.migrate(ctx, tables); err == nil {
			_, err = b.pool.Do(ctx, "schema", look)
		}
	}
	return err
}

// version is that of the tables; 0: the table is there and nothing in it.
func (b *Backend) version(ctx context.Context) (v int64, err error) {
	res, err := b.pool.Do(ctx, "schema", Statement{SQL: b.sql.version})
	if err != nil {
		return 0, err
	}
	for _, r := range res[0].Rows {
		v = r.Int(0)
	}
	return v, nil
}

// migrateTime is the least time that creating tables may take, in seconds.
const migrateTime = 30

// migrate creates the tables. Two sidecars may do it at the same time: every
// statement does nothing where it was done already.
func (b *Backend) migrate(ctx context.Context, text string) error {
	p, err := b.d.Open(PoolOptions{Size: 1, Wait: true, Long: migrateTime})
	if err != nil {
		return err
	}
	defer func() { _ = p.Close() }()
	var batch []Statement
	for one := range strings.SplitSeq(strings.TrimSpace(text), ";\n") {
		batch = append(batch, Statement{SQL: strings.TrimSuffix(one, ";")})
	}
	for range 3 { // two at once may be in each other's way
		if _, err = p.Do(ctx, "schema", batch...); err == nil {
			return nil
		}
	}
	return fmt.Errorf("create tables: %w", err)
}

// testOnce is selfTest, until it has succeeded.
func (b *Backend) testOnce(ctx context.Context, id []byte) error {
	b.mu.Lock()
	tested := b.tested
	b.mu.Unlock()
	if tested {
		return nil
	}
	err := b.selfTest(ctx, id)
	b.mu.Lock()
	b.tested = err == nil
	b.mu.Unlock()
	return err
}

// selfTest refuses what only looks like the server that the engine needs: a lease of
// ours is seen at once by another connection, its row can be locked, and a lock is in
// the way of that connection.
func (b *Backend) selfTest(ctx context.Context, id []byte) (err error) {
	one, err := b.pool.Conn(ctx)
	if err != nil {
		return err
	}
	defer one.Close() // its transaction has changed nothing
	other, err := b.pool.Conn(ctx)
	if err != nil {
		return err
	}
	defer other.Close()
	defer func() {
		if err != nil { // the next test is of other connections
			one.GiveUp()
			other.GiveUp()
		}
	}()
	res, err := one.Do(ctx, "self-test", Statement{SQL: "START TRANSACTION"}, Statement{SQL: b.sql.probe, Args: []any{id}}, Statement{SQL: b.sql.mark})
	if err != nil {
		return err
	}
	inside := res[2].Rows
	if len(res[1].Rows) != 1 || len(inside) != 1 {
		return fmt.Errorf("%w: a row that was written is not seen by another connection", errNotOne)
	}
	if res, err = other.Do(ctx, "self-test", Statement{SQL: b.sql.mark}); err != nil {
		return err
	}
	if rows := res[0].Rows; len(rows) != 1 || rows[0].Text(1) != inside[0].Text(1) {
		return fmt.Errorf("%w: two connections lead to different servers", errNotOne)
	}
	_, err = other.Do(ctx, "self-test", Statement{SQL: "START TRANSACTION"}, Statement{SQL: b.sql.probeNow, Args: []any{id}})
	switch {
	case err == nil:
		return fmt.Errorf("%w: two transactions have locked the same row", errNotOne)
	case b.d.Class(err) != Blocked:
		return err
	}
	return nil
}

var errNotOne = errors.New("this is not one MySQL, MariaDB or PostgreSQL server, but something that looks like it (a proxy that splits reads and writes, several primaries, a database of another kind), and locks would not keep others out")
