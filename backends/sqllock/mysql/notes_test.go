package mysql

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/locksidecar/locksidecar/backends/sqllock"
	"github.com/locksidecar/locksidecar/internal/testengine"
	"github.com/locksidecar/locksidecar/lock"
)

// lossy is a dialect that loses answers to requests for locks, and notes what looks bring.
type lossy struct {
	*Dialect
	loses   atomic.Bool
	most    atomic.Int64 // notes that one look has brought
	brought sync.Map     // ids of all of them
}

func (d *lossy) Open(o sqllock.PoolOptions) (sqllock.Pool, error) {
	p, err := d.Dialect.Open(o)
	return lossyPool{p, d}, err
}

var errLost = errors.New("the answer is lost")

func (d *lossy) answer(command string, res []sqllock.Result, err error) ([]sqllock.Result, error) {
	switch {
	case err != nil:
	case command == "acquire" && d.loses.Load():
		return nil, errLost
	case command == "look" && len(res) > 2: // see lookAt
		notes := res[2].Rows
		d.most.Store(max(d.most.Load(), int64(len(notes))))
		for _, r := range notes {
			d.brought.Store(r.Text(1), true)
		}
	}
	return res, err
}

type lossyPool struct {
	sqllock.Pool
	d *lossy
}

func (p lossyPool) Do(ctx context.Context, command string, batch ...sqllock.Statement) ([]sqllock.Result, error) {
	res, err := p.Pool.Do(ctx, command, batch...)
	return p.d.answer(command, res, err)
}

func (p lossyPool) Conn(ctx context.Context) (sqllock.Conn, error) {
	c, err := p.Pool.Conn(ctx)
	return lossyConn{c, p.d}, err
}

type lossyConn struct {
	sqllock.Conn
	d *lossy
}

func (c lossyConn) Do(ctx context.Context, command string, batch ...sqllock.Statement) ([]sqllock.Result, error) {
	res, err := c.Conn.Do(ctx, command, batch...)
	return c.d.answer(command, res, err)
}

// A sidecar has given up many requests that had no answer, and each has left a note. They do not come with each look of that
// sidecar. And when one of its waiters is taken out of the queue, a look tells that, and not the waiter's own next question.
func TestLookBesideManyNotes(t *testing.T) {
	t.Parallel()
	again(t, testLookBesideManyNotes)
}

func testLookBesideManyNotes(t testing.TB) {
	const many, ttl = 1100, 10 * time.Minute
	url := own(t, testengine.Shared(t, testengine.MariaDB), "notes_")
	d := &lossy{Dialect: New(mustParse(t, patient(url)), nil)}
	engine, err := sqllock.Open(d, sqllock.Options{Migrate: true, FailoverGrace: -1})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = engine.Close() })
	l := leaseFor(t, &store{Backend: engine, d: d.Dialect}, ttl)
	b, holder := sidecar(t, url, ttl)
	d.loses.Store(true)
	each := func(do func(q lock.Request) error) {
		t.Helper()
		var all sync.WaitGroup
		for range many {
			q := exclusive("given up")
			all.Go(func() {
				if err := do(q); err != nil {
					t.Error(err)
				}
			})
		}
		all.Wait()
	}
	each(func(q lock.Request) error {
		if _, err := l.Acquire(t.Context(), q); !errors.Is(err, lock.ErrUnavailable) {
			return err
		}
		var err error
		for range 10 {
			if err = l.Release(t.Context(), q.Resource, q.ID); !errors.Is(err, lock.ErrUnavailable) {
				break
			}
		}
		if errors.Is(err, lock.ErrNotHolder) {
			err = nil
		}
		return err
	})
	d.loses.Store(false)
	// One that has not come as far as the server leaves none.
	if n := number(t, b, "SELECT COUNT(*) FROM {note}"); n <= 1000 {
		t.Fatalf("there are %d notes of %d requests that were given up, and one look reads 1,000", n, many)
	}
	g, q := hold(t, holder, "r"), exclusive("r")
	waiting := acquire(t, l, q)
	eventually(t, "it waits", func() error { return waits(t, b, "r") })
	if err := b.ForceRelease(t.Context(), "r", q.ID, 0); err != nil {
		t.Fatal(err)
	}
	<-waiting.done
	if !errors.Is(waiting.err, lock.ErrNotHolder) {
		t.Errorf("a waiter that was taken out: %v", waiting.err)
	}
	if _, told := d.brought.Load(string(q.ID)); !told {
		t.Error("no look has told that the waiter was taken out")
	}
	if most := d.most.Load(); most > 10 {
		t.Errorf("a look has brought %d notes", most)
	}
	if err := holder.Release(t.Context(), "r", g.ID); err != nil {
		t.Error(err)
	}
}

// Very many waiters of a sidecar are taken out of a queue, more than one look brings. Looks tell all of them, and none has to wait
// for its own next question.
func TestManyAreTakenOut(t *testing.T) {
	t.Parallel()
	again(t, testManyAreTakenOut)
}

func testManyAreTakenOut(t testing.TB) {
	const many, ttl = 1100, 10 * time.Minute
	url := own(t, testengine.Shared(t, testengine.MariaDB), "out_")
	d := &lossy{Dialect: New(mustParse(t, patient(url)), nil)}
	engine, err := sqllock.Open(d, sqllock.Options{Migrate: true, FailoverGrace: -1})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = engine.Close() })
	l := leaseFor(t, &store{Backend: engine, d: d.Dialect}, ttl)
	b, holder := sidecar(t, url, ttl)
	g := hold(t, holder, "r")
	all := make(map[lock.HoldID]*acquiring, many)
	for range many {
		q := exclusive("r")
		all[q.ID] = acquire(t, l, q)
	}
	eventually(t, "all wait", func() error {
		if n := number(t, b, "SELECT COUNT(*) FROM {queue} WHERE name='r'"); n != many {
			return fmt.Errorf("%d do", n)
		}
		return nil
	})
	var forced sync.WaitGroup
	for id := range all {
		forced.Go(func() {
			if err := b.ForceRelease(t.Context(), "r", id, 0); err != nil {
				t.Error(err)
			}
		})
	}
	forced.Wait()
	untold := 0
	for id, a := range all {
		<-a.done
		if !errors.Is(a.err, lock.ErrNotHolder) {
			t.Fatalf("a waiter that was taken out: %v", a.err)
		}
		if _, told := d.brought.Load(string(id)); !told {
			untold++
		}
	}
	if untold > 0 {
		t.Errorf("of %d waiters that were taken out no look has told %d", many, untold)
	}
	if err := holder.Release(t.Context(), "r", g.ID); err != nil {
		t.Error(err)
	}
}
