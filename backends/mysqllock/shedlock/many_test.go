package shedlock

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/locksidecar/locksidecar/backends/leasekit"
	"github.com/locksidecar/locksidecar/backends/sqllock"
	"github.com/locksidecar/locksidecar/backends/sqllock/mysql"
	"github.com/locksidecar/locksidecar/internal/testengine"
	"github.com/locksidecar/locksidecar/lock"
)

// rowsOf makes rows in ShedLock's table, in no order, as those of the holds of a lease whose
// heartbeats the test sends, and that last for a time.
func rowsOf(t testing.TB, s testengine.Server, ttl time.Duration, n int, last time.Duration) (*foreign, []leasekit.Ref) {
	t.Helper()
	b, _ := sidecar(t, s.URL()+"?table=many_rows", 10*time.Minute)
	made, err := b.open(lock.LeaseOptions{TTL: ttl, Sidecar: "many"}, "", sqllock.Events{Now: lock.BootTime})
	if err != nil {
		t.Fatal(err)
	}
	f := made.(*foreign)
	holds := make([]leasekit.Ref, n)
	for i := range holds {
		holds[i] = leasekit.Ref{Resource: lock.Resource(fmt.Sprintf("%s/%05d", random(), i)), ID: lock.NewHoldID()}
	}
	for part := range slices.Chunk(holds, 1000) {
		var args []any
		for _, h := range part {
			args = append(args, string(h.Resource), last.Microseconds(), f.by(h.ID))
		}
		values := strings.TrimSuffix(strings.Repeat("(?, TIMESTAMPADD(MICROSECOND, ?, UTC_TIMESTAMP(3)), UTC_TIMESTAMP(3), ?),", len(part)), ",")
		if _, err := f.pool.Do(t.Context(), "test", sqllock.Statement{SQL: "INSERT INTO many_rows (name, lock_until, locked_at, locked_by) VALUES " + values, Args: args}); err != nil {
			t.Fatal(err)
		}
	}
	rand.Shuffle(n, func(i, j int) { holds[i], holds[j] = holds[j], holds[i] })
	return f, holds
}

// count tells how many rows of a lease are locked for longer than a time.
func count(t testing.TB, f *foreign, d time.Duration, holds []leasekit.Ref) (n int) {
	t.Helper()
	for part := range slices.Chunk(holds, 1000) {
		var marks []string
		args := []any{d.Microseconds()}
		for _, h := range part {
			marks, args = append(marks, "?"), append(args, string(h.Resource))
		}
		res, err := f.b.pool.Do(t.Context(), "test", sqllock.Statement{
			SQL: "SELECT COUNT(*) FROM many_rows WHERE lock_until>TIMESTAMPADD(MICROSECOND, ?, UTC_TIMESTAMP(3)) AND name IN (" + strings.Join(marks, ",") + ")", Args: args,
		})
		if err != nil {
			t.Fatal(err)
		}
		n += int(res[0].Rows[0].Int(0))
	}
	return n
}

// steps is a pool that tells what its connections are asked.
type steps struct {
	sqllock.Pool
	before func()                          // a connection is taken
	asked  func(batch []sqllock.Statement) // after the answer
}

func (p *steps) Conn(ctx context.Context) (sqllock.Conn, error) {
	p.before()
	c, err := p.Pool.Conn(ctx)
	return &stepsConn{Conn: c, p: p}, err
}

type stepsConn struct {
	sqllock.Conn
	p *steps
}

func (c *stepsConn) Do(ctx context.Context, command string, batch ...sqllock.Statement) ([]sqllock.Result, error) {
	res, err := c.Conn.Do(ctx, command, batch...)
	c.p.asked(batch)
	return res, err
}

// TestManyRows: the rows of as many holds as a lease can have are moved by each heartbeat,
// and are free when it is closed. No transaction has many of them locked.
func TestManyRows(t *testing.T) {
	onEach(t, testengine.Shared, func(t testing.TB, s testengine.Server) {
		f, holds := rowsOf(t, s, 10*time.Minute, maxHolds, time.Minute)
		most := 0
		watch := func(p sqllock.Pool) sqllock.Pool {
			return &steps{Pool: p, before: func() {}, asked: func(batch []sqllock.Statement) {
				for _, st := range batch {
					most = max(most, strings.Count(st.SQL, "?")/2) // the name and locked_by of each
				}
			}}
		}
		f.beats, f.pool = watch(f.beats), watch(f.pool)
		sent := lock.BootTime()
		kept, lost := f.Keep(t.Context(), "", holds)
		t.Logf("a heartbeat took %s", lock.BootTime()-sent)
		if len(kept) != len(holds) || len(lost) > 0 {
			t.Errorf("%d of %d rows are kept, %d lost", len(kept), len(holds), len(lost))
		}
		for id, from := range kept {
			if from < sent {
				t.Errorf("%s lasts from %s before the heartbeat", id, sent-from)
				break
			}
		}
		if n := count(t, f, 5*time.Minute, holds); n != len(holds) {
			t.Errorf("%d of %d rows are moved", n, len(holds))
		}
		sent = lock.BootTime()
		if err := f.Close(t.Context(), holds); err != nil {
			t.Error(err)
		}
		t.Logf("Close took %s", lock.BootTime()-sent)
		if n := count(t, f, 0, holds); n > 0 {
			t.Errorf("%d rows are locked after Close", n)
		}
		if most > step+1 {
			t.Errorf("a transaction has locked %d rows", most)
		}
	})
}

// TestNoTimeForAllRows: there is no time for all rows. Those with the first names are moved
// by each heartbeat, so that the lease lives on with these.
func TestNoTimeForAllRows(t *testing.T) {
	onEach(t, testengine.Shared, func(t testing.TB, s testengine.Server) {
		f, holds := rowsOf(t, s, 10*time.Minute, 4*step, time.Minute)
		beats := f.beats
		first := slices.SortedFunc(slices.Values(holds), func(a, b leasekit.Ref) int { return cmp.Compare(a.Resource, b.Resource) })[:step]
		for range 2 {
			rand.Shuffle(len(holds), func(i, j int) { holds[i], holds[j] = holds[j], holds[i] })
			ctx, cancel := context.WithCancel(t.Context())
			f.beats = &steps{Pool: beats, before: func() {}, asked: func(batch []sqllock.Statement) {
				if batch[len(batch)-1].SQL == "COMMIT" {
					cancel()
				}
			}}
			kept, lost := f.Keep(ctx, "", holds)
			cancel()
			for _, h := range first {
				if _, ok := kept[h.ID]; !ok {
					t.Fatalf("%s is not kept", h.Resource)
				}
			}
			if len(kept) != len(first) || len(lost) > 0 {
				t.Errorf("%d are kept, %d lost, in the time for %d", len(kept), len(lost), len(first))
			}
		}
		if n := count(t, f, 5*time.Minute, holds); n != len(first) {
			t.Errorf("%d rows are moved, and %d holds kept", n, len(first))
		}
		if err := f.Close(t.Context(), holds); err != nil {
			t.Error(err)
		}
	})
}

// TestRowThatWasFoundInTimeIsMoved: lock_until comes between the moment at which a heartbeat
// has found and locked a row and that at which it moves it. What it says is kept lasts.
func TestRowThatWasFoundInTimeIsMoved(t *testing.T) {
	onEach(t, testengine.Shared, func(t testing.TB, s testengine.Server) {
		const last = 500 * time.Millisecond
		eventually(t, "a heartbeat finds the row in time", func() error {
			f, holds := rowsOf(t, s, 10*time.Minute, 1, last)
			f.beats = &steps{Pool: f.beats, before: func() {}, asked: func(batch []sqllock.Statement) {
				if batch[0].SQL == "START TRANSACTION" {
					time.Sleep(last)
				}
			}}
			kept, lost := f.Keep(t.Context(), "", holds)
			n := count(t, f, 5*time.Minute, holds)
			if err := f.Close(t.Context(), holds); err != nil {
				t.Error(err)
			}
			if len(kept) != n {
				t.Fatalf("%d holds are kept, and %d rows last", len(kept), n)
			}
			if len(lost) > 0 {
				return errors.New("it was too late")
			}
			return nil
		})
	})
}

// TestLimitByTTL: a lease has as many locks as its heartbeats can move.
func TestLimitByTTL(t *testing.T) {
	cfg, err := mysql.Parse("mysql://localhost/x")
	if err != nil {
		t.Fatal(err)
	}
	for ttl, most := range map[time.Duration]int{lock.MinTTL: 1000, 3 * time.Second: 6000, 10 * time.Second: 20_000, lock.MaxTTL: 20_000} {
		f := &foreign{
			b: &Backend{d: mysql.New(cfg, nil), sql: newStatements("x")}, pool: free{}, ttl: ttl,
			known: make(map[lock.Resource]struct{}), holds: make(map[lock.HoldID]time.Duration),
		}
		take := func(q lock.Request) error {
			took, err := f.Take(t.Context(), q)
			if err == nil && !took {
				err = lock.ErrHeld
			}
			return err
		}
		first := request("first")
		for i := range most {
			q := first
			if i > 0 {
				q = request(lock.Resource(fmt.Sprint(i)))
			}
			if err := take(q); err != nil {
				t.Fatalf("%s: lock %d: %v", ttl, i+1, err)
			}
		}
		limit := (*lock.LimitError)(nil)
		if err := take(request("more")); !errors.As(err, &limit) || limit.Max != most {
			t.Errorf("%s: one lock more than %d: got %v, want a LimitError that says so", ttl, most, err)
		}
		if err := take(first); err != nil {
			t.Errorf("%s: a lock that is there already: %v", ttl, err)
		}
		if err := f.Give(t.Context(), leasekit.Ref{Resource: first.Resource, ID: first.ID}); err != nil {
			t.Error(err)
		}
		if err := take(request("more")); err != nil {
			t.Errorf("%s: another lock after one was given back: %v", ttl, err)
		}
	}
}

// free is a server with a row for each name that is free.
type free struct{ sqllock.Pool }

func (free) Do(_ context.Context, _ string, batch ...sqllock.Statement) ([]sqllock.Result, error) {
	res := make([]sqllock.Result, len(batch))
	for i := range res {
		res[i].Affected = 1
	}
	return res, nil
}
