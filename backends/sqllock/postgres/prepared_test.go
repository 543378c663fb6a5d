package postgres

import (
	"fmt"
	"testing"

	"github.com/locksidecar/locksidecar/backends/sqllock"
	"github.com/locksidecar/locksidecar/internal/testengine"
	"github.com/locksidecar/locksidecar/lock"
)

// tapped keeps the pool for requests.
type tapped struct {
	*Dialect
	requests sqllock.Pool
}

func (d *tapped) Open(o sqllock.PoolOptions) (sqllock.Pool, error) {
	p, err := d.Dialect.Open(o)
	if o.Wait && d.requests == nil {
		d.requests = p
	}
	return p, err
}

// each asks each connection for one number.
func (d *tapped) each(t testing.TB, size int, sql string) (all []int64) {
	t.Helper()
	for range size {
		c, err := d.requests.Conn(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		all = append(all, do(t, c, statement(sql))[0].Rows[0].Int(0))
	}
	return all
}

// A watcher lists locks again and again, and each time there are some more or less of them. The server does not keep
// a plan for each number, and what is sent often is prepared all the same.
func TestListsOfManyLengths(t *testing.T) { again(t, testListsOfManyLengths) }

func testListsOfManyLengths(t testing.TB) {
	const many, lists, size, mib = 500, 200, 2, 1 << 20
	d := &tapped{Dialect: dialect(t, with(testengine.New(t, testengine.Postgres).URL(), "timeout=5s"))}
	b, err := sqllock.Open(d, sqllock.Options{Migrate: true, FailoverGrace: -1, MaxConnections: size})
	if err != nil {
		t.Fatal(err)
	}
	l := leaseOf(t, b, lock.MaxTTL)
	for i := range many {
		hold(t, l, fmt.Sprintf("r%03d", i), lock.Exclusive)
	}
	memory := func() (most int64) {
		for _, n := range d.each(t, size, "SELECT SUM(total_bytes)::bigint FROM pg_backend_memory_contexts") {
			most = max(most, n)
		}
		return most
	}
	before, more := memory(), int64(0)
	for i := range 2 * lists {
		n := many - i/2
		if all, err := b.List(t.Context(), "r", lock.Page{Limit: n}); err != nil || len(all) != n {
			t.Fatalf("%d are listed of %d: %v", len(all), n, err)
		}
		if i%30 == 0 {
			more = max(more, memory()-before)
		}
	}
	if t.Logf("a connection takes the server %d KiB more", more>>10); more > 16*mib {
		t.Errorf("a connection takes the server %d MiB more", more/mib)
	}
	for i := range 4 * size {
		r := fmt.Sprint("shared", i)
		g := hold(t, l, r, lock.Shared)
		if err := l.Release(t.Context(), g.Resource, g.ID); err != nil {
			t.Fatal(err)
		}
	}
	prepared := int64(0)
	for _, n := range d.each(t, size, `SELECT COUNT(*) FROM pg_prepared_statements WHERE statement LIKE 'INSERT INTO %\_hold"%'`) {
		prepared += n
	}
	if prepared == 0 {
		t.Error("what is sent again and again is not prepared")
	}
}

// A connection that has prepared as many statements as it may begins again, in the middle of a transaction, too.
func TestManyStatements(t *testing.T) {
	p := openPool(t, dialect(t, testengine.Shared(t, testengine.Postgres).URL()), sqllock.PoolOptions{Size: 1})
	c, err := p.Conn(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	number := func(sql string, args ...any) int64 { return do(t, c, statement(sql, args...))[0].Rows[0].Int(0) }
	do(t, c, statement("START TRANSACTION"))
	for i := range 2*maxNames + 10 {
		for range 3 {
			if n := number(fmt.Sprintf("SELECT ?+%d", i), int64(1)); n != int64(i)+1 {
				t.Fatalf("1 and %d are %d", i, n)
			}
		}
	}
	do(t, c, statement("COMMIT"))
	if n := number("SELECT COUNT(*) FROM pg_prepared_statements"); n < 1 || n > maxNames {
		t.Errorf("%d are prepared", n)
	}
}
