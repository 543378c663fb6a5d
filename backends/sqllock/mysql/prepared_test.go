package mysql

import (
	"testing"
	"time"

	"github.com/locksidecar/locksidecar/backends/sqllock"
	"github.com/locksidecar/locksidecar/internal/testengine"
	"github.com/locksidecar/locksidecar/lock"
)

// pairs takes and releases a resource so often that connections keep what they send
// prepared, while another sidecar tries to have it, too.
func pairs(t testing.TB, l, other lock.Lease, r lock.Resource) {
	t.Helper()
	var last lock.Fence
	for range 4 * keptAfter {
		g := hold(t, l, r)
		if g.Fence <= last {
			t.Fatalf("fence %d after %d", g.Fence, last)
		}
		last = g.Fence
		try := exclusive(r)
		try.Try = true
		if _, err := other.Acquire(t.Context(), try); err == nil {
			t.Fatalf("broken law: %q is held twice", r)
		}
		if err := l.Release(t.Context(), r, g.ID); err != nil {
			t.Fatal(err)
		}
	}
}

// What is prepared means the same: fences grow, names are bytes, a lock that another has is
// not granted, and a row that somebody has locked is waited for.
func TestPreparedMeansTheSame(t *testing.T) {
	eachKind(t, func(t testing.TB, s testengine.Server) {
		b, l := sidecar(t, s.URL(), 30*time.Second)
		_, other := sidecar(t, s.URL(), 30*time.Second)
		r := "\xc3('\\\x00?" + unique("r")
		pairs(t, l, other, r)
		c, err := b.pool(t).Conn(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		_, err = c.Do(t.Context(), "test", sqllock.Statement{SQL: "START TRANSACTION"},
			sqllock.Statement{SQL: b.names("SELECT 1 FROM {lock} WHERE name=? FOR UPDATE"), Args: []any{[]byte(r)}})
		if err != nil {
			t.Fatal(err)
		}
		w := acquire(t, l, exclusive(r))
		time.Sleep(2 * time.Second) // longer than a statement waits for a row
		c.Close()                   // which ends the transaction
		w.granted()
	})
}

// What is sent often is kept prepared. Where the server has no room for it, all goes on
// without.
func TestOftenSentIsKeptPrepared(t *testing.T) { again(t, testOftenSentIsKeptPrepared) }

func testOftenSentIsKeptPrepared(t testing.TB) {
	s := testengine.New(t, testengine.MariaDB)
	b, l := sidecar(t, s.URL(), 30*time.Second)
	executed := func() int64 {
		return number(t, b, "SELECT variable_value FROM information_schema.global_status WHERE variable_name='Com_stmt_execute'")
	}
	pairs(t, l, l, "with room")
	if n := executed(); n < 4*keptAfter {
		t.Errorf("%d statements were prepared", n)
	}
	execute(t, b, "SET GLOBAL max_prepared_stmt_count=0")
	_, l = sidecar(t, s.URL(), 30*time.Second)
	before := executed()
	pairs(t, l, l, "without")
	if n := executed() - before; n > 0 {
		t.Errorf("%d statements were prepared where there is no room", n)
	}
}
