package sqllock

import (
	"context"
	"errors"
	"fmt"

	"github.com/locksidecar/locksidecar/lock"
)

// Dialect is one database on one kind of server. It is what the engine needs to
// know and cannot say in SQL that every server understands. Its methods may be
// called by many goroutines at the same time.
type Dialect interface {
	// Words are the parts of statements that differ.
	Words() Words

	// Open makes a pool of connections. It asks the server nothing.
	// The error is lock.ErrInvalid.
	Open(o PoolOptions) (Pool, error)

	// Class says what the error of a Pool or a Conn means for its request.
	Class(err error) Class

	// Hint completes an error for people: what they can do about it, in
	// parentheses; or nothing.
	Hint(err error) string

	// Kind is the lock.Guard.Dialect of the server that answered last; empty
	// before the first connection.
	Kind() string

	// Listen hears the bell of a lease, on a connection of its own to that server, until
	// that or ctx ends. rang is called when the bell is there, and when it may have rung. It
	// does not block. The error is ErrNoBells where there will never be one.
	Listen(ctx context.Context, id lock.LeaseID, server string, rang func()) error

	// Ring rings the bells of leases, of which some may not exist. A bell is a hint.
	Ring(ctx context.Context, p Pool, ids []lock.LeaseID) error
}

// ErrNoBells: the server, or what stands in between, has no such thing as a bell.
var ErrNoBells = errors.New("the server has no bells")

// Words are the parts of statements that differ between servers. The engine's
// statements have ? for each argument, names of tables in {braces}, and the words
// {now}, {server} and {readonly}.
type Words struct {
	Store    string                   // for `locksidecar schema STORE`
	Version  int64                    // of the tables
	Table    func(name string) string // the full name of a table of ours
	Now      string                   // {now}: the server's time, in microseconds since the Unix epoch, as a BIGINT
	Server   string                   // {server}: as text, which server answers. It changes with a failover, not with a restart
	ReadOnly string                   // {readonly}: true where the server takes no writes
	Unhex    string                   // bytes of an argument with hexadecimal digits, such as UNHEX(?)

	Join func(a, b string) string // bytes, one behind the other

	// LateReads: an UPDATE that has waited for its row reads other tables, in a correlated
	// subquery, as they are after that.
	LateReads bool

	// Gaps: under REPEATABLE READ a statement that finds no row keeps others from inserting one
	// near it, until its transaction ends; see guard.go.
	Gaps bool

	// InsertNew is an INSERT that leaves a row alone which is there already, of all
	// that comes behind INTO.
	InsertNew func(into string) string
	// Schema are the words of schema.sql, each with what stands for it.
	Schema []string
	// Index is the statement that makes an index; nil: the table itself has them as KEY.
	Index func(table, name, columns string) string

	// Returning makes a statement give back a value that it writes into a column:
	// value is what to write in place of expr, and tail comes last.
	Returning func(expr, column string) (value, tail string)
}

// PoolOptions are what the connections of one pool have of their own.
type PoolOptions struct {
	Size int
	// Wait: a statement may have to wait for a row, for RowWait at most. Without it
	// no statement does.
	Wait bool
	// CountLate: a connection that had no answer in time counts as one of them for a while, or until Pool.Regain.
	CountLate bool
	// Lasting: connections are not closed when they are idle, for that long.
	Lasting int // seconds
	// Long: statements may take that much longer than others.
	Long int // seconds
	// Settings are of the sessions, in the words of the dialect that the caller knows.
	Settings []string
}

// Statement is one statement of a batch.
type Statement struct {
	SQL  string
	Args []any // []byte, string, int64, bool, nil
	// Count: Result.Affected is asked for. (Where all the statements of a batch give
	// no rows it is there in any case.)
	Count bool
	// Ignore: the rows of the SELECT are not asked for, only its locks.
	Ignore bool
	// Often: it is sent often with this very text, so a connection may keep it prepared.
	Often bool
	// Rare: its text is another one each time, or it is sent now and then. So no connection keeps it prepared.
	Rare bool
}

// Result is what a statement did.
type Result struct {
	Affected int64 // rows that an INSERT, UPDATE or DELETE has written, or has found as they should be
	Value    int64 // of Words.Returning, where a row was written
	Rows     []Row // of a SELECT
}

// Pool is a pool of connections. All run under READ COMMITTED and commit each
// statement, or (as PostgreSQL does) each batch, that has no START TRANSACTION.
// START TRANSACTION and COMMIT are the first and the last of a batch.
// A statement waits for a row for RowWait at most.
type Pool interface {
	// Do sends a batch in one trip, and gives a Result for each statement. The
	// statements are carried out in their order, up to the first that fails; a
	// transaction that is open then is rolled back. ctx bounds the wait for a
	// connection only: what was sent is bounded by the pool's own time limits.
	Do(ctx context.Context, command string, batch ...Statement) ([]Result, error)

	// Conn takes a connection out of the pool, for several trips. The error's Class
	// is NotSent.
	Conn(ctx context.Context) (Conn, error)

	// Trust has the pool use no connections but those to that server, as Conn.Server
	// names it; "": any.
	Trust(server string)

	// Regain has connections count no more that had no answer in time: the server answers again.
	Regain()

	// Close closes the connections.
	Close() error
}

// Conn is one connection out of a pool, for one goroutine.
type Conn interface {
	// Do is Pool.Do. Where it fails, a transaction that is open stays so.
	Do(ctx context.Context, command string, batch ...Statement) ([]Result, error)
	// Server is what {server} was when the connection was made.
	Server() string
	// Number is another one for each connection that was ever made.
	Number() int64
	// GiveUp has Close end the connection.
	GiveUp()
	// Close gives the connection back. A transaction that is open is rolled back.
	Close()
}

// Class is what an error says about its request.
type Class int

// The classes of errors.
const (
	Unclear  Class = iota // it may have been carried out
	NotSent               // it never left
	Blocked               // a row was locked by another transaction. Nothing was carried out
	Conflict              // another transaction was in the way. Nothing was carried out
	Missing               // a table, column or database is not there
	Refused               // the server has said no in another way. Nothing was carried out
)

// NotSentError is the error of a request that never left, whatever server it was for.
type NotSentError struct{ Err error }

func (e *NotSentError) Error() string { return e.Err.Error() }

// Unwrap gives the reason.
func (e *NotSentError) Unwrap() error { return e.Err }

// Again tells whether the same may work now.
func (c Class) Again() bool { return c == Blocked || c == Conflict }

// Row is a row of an answer. A dialect puts in nil, []byte, string, bool, int64 or
// another integer.
type Row []any

// Null tells whether a column is NULL.
func (r Row) Null(i int) bool { return r[i] == nil }

// Text is a column as a string; "" for NULL.
func (r Row) Text(i int) string {
	switch v := r[i].(type) {
	case nil:
		return ""
	case []byte:
		return string(v)
	case string:
		return v
	default:
		return fmt.Sprint(v)
	}
}

// Int is a column as a number; 0 for NULL.
func (r Row) Int(i int) int64 {
	switch v := r[i].(type) {
	case int64:
		return v
	case int32:
		return int64(v)
	case bool:
		if v {
			return 1
		}
		return 0
	default:
		var n int64
		_, _ = fmt.Sscan(r.Text(i), &n)
		return n
	}
}

// Bool is a column as a truth value; false for NULL.
func (r Row) Bool(i int) bool { return r.Int(i) != 0 }
