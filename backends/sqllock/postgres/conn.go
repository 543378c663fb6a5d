package postgres

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/maphash"
	"io"
	"net"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgtype"

	"github.com/locksidecar/locksidecar/backends/sqllock"
)

// conn implements sqllock.Link.
type conn struct {
	pg     *pgconn.PgConn
	raw    net.Conn
	limit  time.Duration // of a batch
	server string
	direct bool // to the server itself, so that the session is ours
	broken bool
	names  map[string]string // of prepared statements, where direct,
	once   map[uint64]bool   // and hashes of texts that were sent once
}

// Server implements sqllock.Link.
func (k *conn) Server() string { return k.server }

// Usable implements sqllock.Link.
func (k *conn) Usable() bool { return !k.broken }

// Alive implements sqllock.Link. The driver may be reading from the connection in the
// background, and that is not disturbed.
func (k *conn) Alive() (there bool) {
	sc, ok := k.raw.(syscall.Conn)
	if !ok {
		return true
	}
	rc, err := sc.SyscallConn()
	if err == nil {
		err = rc.Control(func(fd uintptr) {
			_, _, err := syscall.Recvfrom(int(fd), make([]byte, 1), syscall.MSG_PEEK|syscall.MSG_DONTWAIT)
			there = errors.Is(err, syscall.EAGAIN) // what is to be read is the server's good-bye
		})
	}
	return there && err == nil
}

// Close implements sqllock.Link. It says good-bye where that takes no time.
func (k *conn) Close() error {
	if !k.broken && !k.pg.IsClosed() {
		_ = k.raw.SetDeadline(time.Now().Add(100 * time.Millisecond)) // a connection that fails is closed all the same
		_ = k.pg.Close(context.Background())
	}
	_ = k.raw.Close()
	if k.pg.IsClosed() {
		<-k.pg.CleanupDone()
	}
	return nil
}

// server is what the server says of itself, whatever way leads to it: the data that
// it began with, and the timeline, of which each server that took over has one of its
// own. It costs some microseconds.
const server = "convert_to((SELECT system_identifier FROM pg_control_system()) || '/' ||" +
	" CASE WHEN pg_is_in_recovery() THEN '' ELSE left(pg_walfile_name(pg_current_wal_lsn()), 8) END, 'UTF8')"

const standby = "(pg_is_in_recovery() OR current_setting('default_transaction_read_only')::boolean)"

// settings are what every transaction has, whatever the server's administrator
// likes: so that no setting of the server, the database or the role changes what
// our statements mean, or how long they take. scope is "true" for a transaction,
// "false" for a session.
func settings(scope string) string {
	set := func(name, value string) string {
		return "set_config('" + name + "', " + value + ", " + scope + ")"
	}
	millis := func(d time.Duration) string { return "'" + strconv.FormatInt(d.Milliseconds(), 10) + "'" }
	return "SELECT " + strings.Join([]string{
		set("synchronous_commit", "CASE current_setting('synchronous_commit') WHEN 'off' THEN 'local' ELSE current_setting('synchronous_commit') END"),
		set("lock_timeout", millis(rowWait)), set("statement_timeout", "'0'"),
		set("idle_in_transaction_session_timeout", millis(idleInTransaction)), set("jit", "'off'"),
		// A plan that was made while a table was empty stays. All our statements have an index.
		set("enable_seqscan", "'off'"), set("search_path", "'pg_catalog'"),
	}, ", ")
}

// idleInTransaction is how long the server lets a transaction of ours wait for its
// next statement, if the sidecar has vanished: it has locked a row.
const idleInTransaction = 5 * time.Second

// setUp asks the server what it is, and finds out whether it is the server itself.
func (k *conn) setUp(ctx context.Context) error {
	rs, err := k.Send(ctx, []sqllock.Statement{{SQL: "SELECT " + server + ", " + standby + ", current_setting('server_version_num')::bigint, pg_backend_pid()::bigint"}})
	if err != nil {
		return fmt.Errorf("ask server: %w", err)
	}
	row := rs[0].Rows[0]
	k.server, k.direct = row.Text(0), row.Int(3) == int64(k.pg.PID())
	if err := usable(row.Int(2), row.Bool(1)); err != nil || !k.direct {
		return err
	}
	_, err = k.Send(ctx, []sqllock.Statement{
		{SQL: "SET SESSION CHARACTERISTICS AS TRANSACTION ISOLATION LEVEL READ COMMITTED, READ WRITE, NOT DEFERRABLE"}, {SQL: settings("false")},
	})
	if err != nil {
		return fmt.Errorf("set up session: %w", err)
	}
	return nil
}

// usable tells whether a server can be used that answers so.
func usable(version int64, noWrites bool) error {
	switch {
	case version < oldest:
		return fmt.Errorf("the server's version is %d.%d; %d is the oldest that can be used", version/10000, version%10000, oldest/10000)
	case noWrites:
		return errReadOnly
	}
	return nil
}

// begins are the first statements of a transaction where sessions are not ours.
var begins = []sqllock.Statement{
	{SQL: "BEGIN ISOLATION LEVEL READ COMMITTED, READ WRITE, NOT DEFERRABLE"}, {SQL: settings("true")},
}

// Send implements sqllock.Link. After an error that is the server's, a transaction that was
// open stays so.
func (k *conn) Send(ctx context.Context, batch []sqllock.Statement) ([]sqllock.Result, error) {
	skip := 0
	if k.server != "" && !k.direct && k.pg.TxStatus() == 'I' {
		all := begins
		if batch[0].SQL == "START TRANSACTION" {
			skip = len(begins) - 1
			batch = append(all[:len(all):len(all)], batch[1:]...)
		} else {
			skip = len(begins)
			batch = append(append(all[:len(all):len(all)], batch...), sqllock.Statement{SQL: "COMMIT"})
		}
	}
	results, err := k.send(ctx, batch)
	own := skip == len(begins) // the transaction
	if err != nil {
		k.broken = k.broken || !answered(err) || codes[code(err)].useless
		if own && !k.broken {
			_, failed := k.send(ctx, []sqllock.Statement{{SQL: "ROLLBACK"}})
			k.broken = failed != nil
		}
		return nil, err
	}
	if own {
		results = results[:len(results)-1]
	}
	return results[skip:], nil
}

// A connection prepares a statement when its text is sent for the second time: lists have many lengths, most of which come once. The
// server keeps up to 300 KB for each. So when there are maxNames, the connection begins again.
const maxNames, maxOnce = 100, 1000

var (
	binaryFormat = []int16{1}
	textSeed     = maphash.MakeSeed()
)

// prepares tells whether a statement is to be prepared.
func (k *conn) prepares(s *sqllock.Statement, key string) bool {
	if !k.direct || s.Rare {
		return false
	}
	h := maphash.String(textSeed, key)
	if k.once[h] {
		return true
	}
	if len(k.once) >= maxOnce {
		clear(k.once)
	}
	k.once[h] = true
	return false
}

// forgetNames has the server forget all that the connection has prepared.
func (k *conn) forgetNames(ctx context.Context) error {
	clear(k.names)
	clear(k.once)
	if _, err := k.send(ctx, []sqllock.Statement{{SQL: "DEALLOCATE ALL"}}); err != nil {
		k.broken = true
		return &sqllock.NotSentError{Err: err}
	}
	return nil
}

// send sends statements in one trip. What the server refuses has the error first.
func (k *conn) send(ctx context.Context, batch []sqllock.Statement) ([]sqllock.Result, error) {
	if len(k.names) >= maxNames && k.pg.TxStatus() != 'E' {
		if err := k.forgetNames(ctx); err != nil {
			return nil, err
		}
	}
	// On the connection itself: a context would cost a goroutine.
	if err := k.raw.SetDeadline(time.Now().Add(k.limit)); err != nil {
		k.broken = true
		return nil, &sqllock.NotSentError{Err: err}
	}
	p := k.pg.StartPipeline(context.WithoutCancel(ctx))
	news := make(map[string]string)
	var order []string // of news, as they are sent
	for _, s := range batch {
		values, oids, formats := arguments(s.Args)
		key := s.SQL
		if slices.Contains(s.Args, nil) { // of which the server finds out the type
			key += "\x00" + string(fmt.Append(nil, oids))
		}
		name := k.names[key]
		if name == "" {
			name = news[key]
		}
		if name == "" && k.prepares(&s, key) {
			name = "s" + strconv.Itoa(len(k.names)+len(news))
			news[key] = name
			order = append(order, key)
			p.SendPrepare(name, sqllock.Numbered(s.SQL), oids)
		}
		if name == "" {
			p.SendQueryParams(sqllock.Numbered(s.SQL), values, oids, formats, binaryFormat)
		} else {
			p.SendQueryPrepared(name, values, formats, binaryFormat)
		}
	}
	err := p.Sync()
	results := make([]sqllock.Result, 0, len(batch))
	for err == nil && len(results) < len(batch) {
		var r any
		switch r, err = p.GetResults(); r := r.(type) {
		case *pgconn.StatementDescription:
			k.names[order[0]] = news[order[0]]
			order = order[1:]
		case *pgconn.ResultReader:
			var result sqllock.Result
			result, err = read(r)
			results = append(results, result)
		case nil:
			if err == nil {
				err = io.ErrUnexpectedEOF
			}
		}
	}
	if closeErr := p.Close(); err == nil {
		err = closeErr // such as of a commit that fails at the end of the batch
	}
	if err != nil && !answered(err) {
		k.broken = true
		_ = k.raw.Close() // so that nothing of the driver waits on it
		return nil, err
	}
	_ = k.raw.SetDeadline(time.Time{}) // where that fails the next batch finds out
	return results, err
}

// arguments are as the server takes them: text and bytes as they are, numbers in
// digits. It finds out by itself what a text and NULL are.
func arguments(args []any) (values [][]byte, oids []uint32, formats []int16) {
	values, oids, formats = make([][]byte, len(args)), make([]uint32, len(args)), make([]int16, len(args))
	for i, a := range args {
		switch a := a.(type) {
		case nil:
		case []byte:
			values[i], oids[i], formats[i] = a, pgtype.ByteaOID, 1
			if a == nil {
				values[i] = []byte{}
			}
		case string:
			values[i], formats[i] = []byte(a), 1
		case int64:
			values[i], oids[i] = strconv.AppendInt(nil, a, 10), pgtype.Int8OID
		case int:
			values[i], oids[i] = strconv.AppendInt(nil, int64(a), 10), pgtype.Int8OID
		case bool: // the tables keep truth values as numbers
			values[i], oids[i] = []byte("0"), pgtype.Int8OID
			if a {
				values[i] = []byte("1")
			}
		default:
			panic(fmt.Sprintf("an argument of a statement is a %T", a)) // the engine's contract
		}
	}
	return values, oids, formats
}

// read takes in what a statement did.
func read(r *pgconn.ResultReader) (sqllock.Result, error) {
	var result sqllock.Result
	fields := r.FieldDescriptions()
	for r.NextRow() {
		row := make(sqllock.Row, len(fields))
		for i, v := range r.Values() {
			row[i] = value(fields[i].DataTypeOID, v)
		}
		result.Rows = append(result.Rows, row)
	}
	tag, err := r.Close()
	result.Affected = tag.RowsAffected()
	if !tag.Select() && len(result.Rows) > 0 {
		result.Value = result.Rows[0].Int(0)
	}
	return result, err
}

// value is a column in the server's binary form; text and bytes are as they are.
func value(oid uint32, v []byte) any {
	switch {
	case v == nil:
		return nil
	case oid == pgtype.BoolOID && len(v) == 1:
		return v[0] != 0
	case oid == pgtype.Int8OID && len(v) == 8:
		return int64(binary.BigEndian.Uint64(v)) //nolint:gosec // the bits of one
	case oid == pgtype.Int4OID && len(v) == 4:
		return int64(int32(binary.BigEndian.Uint32(v))) //nolint:gosec // the bits of one
	case oid == pgtype.Int2OID && len(v) == 2:
		return int64(int16(binary.BigEndian.Uint16(v))) //nolint:gosec // the bits of one
	default:
		return bytes.Clone(v)
	}
}
