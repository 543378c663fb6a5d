package sqllock

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/locksidecar/locksidecar/lock"
)

// once calls f until that has succeeded, which done says.
func (b *Backend) once(done *bool, f func() error) error {
	b.mu.Lock()
	was := *done
	b.mu.Unlock()
	if was {
		return nil
	}
	if err := f(); err != nil {
		return err
	}
	b.mu.Lock()
	*done = true
	b.mu.Unlock()
	return nil
}

// checkTables makes sure that the tables are there and of our version, and makes them where
// that is wanted.
func (b *Backend) checkTables(ctx context.Context) error {
	text, need, store := func() string { return Schema(b.sql.w) }, b.sql.w.Version, b.sql.w.Store
	res, err := b.look(ctx, Statement{SQL: b.sql.version}, text)
	var have int64 // 0: the table is there and nothing in it
	if err == nil && len(res.Rows) > 0 {
		have = res.Rows[0].Int(0)
	}
	if err == nil && have == need { // there was none once
		_, err = b.look(ctx, Statement{SQL: b.sql.record.read, Args: []any{[]byte("")}}, text)
	}
	if err == nil && have == need { // nor these two
		_, err = b.look(ctx, b.sql.leasts.with([]byte(""), [][]byte{nil}, nil, 0), text)
	}
	if beside := b.o.Beside; err == nil && beside != nil {
		_, err = b.look(ctx, Statement{SQL: beside.Look}, func() string { return beside.Tables })
	}
	switch {
	case err != nil:
		return b.unavailable("check tables", err)
	case have < need:
		return fmt.Errorf("check tables: they are of version %d and this sidecar needs %d; stop all sidecars, drop the tables and apply what `locksidecar schema %s` prints, or use another prefix: %w", have, need, store, lock.ErrUnavailable)
	case have > need:
		return fmt.Errorf("check tables: they are of version %d, which a newer sidecar made; this one knows %d; use a newer sidecar, or another prefix: %w", have, need, lock.ErrUnavailable)
	}
	return nil
}

// look carries out a statement that fails where tables are missing. Where it does they are
// made, if that is wanted.
func (b *Backend) look(ctx context.Context, statement Statement, tables func() string) (Result, error) {
	res, err := b.pool.Do(ctx, "schema", statement)
	if b.d.Class(err) == Missing && b.o.Migrate {
		if err = b.migrate(ctx, tables()); err == nil {
			res, err = b.pool.Do(ctx, "schema", statement)
		}
	}
	if err != nil {
		return Result{}, err
	}
	return res[0], nil
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
	case b.d.Class(err) == Refused: // what it said to the same without that word was no error
		return fmt.Errorf("%w: it does not know NOWAIT: %w", errNotOne, err)
	case b.d.Class(err) != Blocked:
		return err
	}
	return nil
}

var errNotOne = errors.New("this is not one MySQL, MariaDB or PostgreSQL server, but something that looks like it (a proxy that splits reads and writes, several primaries, a database of another kind), and locks would not keep others out")
