package tables

import (
	"context"
	"database/sql"
	"errors"
	"maps"
	"slices"
	"sync"

	"github.com/locksidecar/locksidecar/backends/mysqllock/mydb"
	"github.com/locksidecar/locksidecar/lock"
)

// sweep clears away what hangs on a lease whose row is gone, at the resources
// named. Exclusive holds that nobody waits for go many at a time; event is what
// the log calls that.
func (b *Backend) sweep(ctx context.Context, lease string, names map[lock.Resource]bool, event string) error {
	const atATime = 100
	all := slices.Sorted(maps.Keys(names))
	var rest []lock.Resource
	for len(all) > 0 {
		some := all[:min(len(all), atATime)]
		all = all[len(some):]
		if err := b.sweepExclusive(ctx, lease, some, event); err != nil {
			return err
		}
		left, err := b.unswept(ctx, lease, some)
		if err != nil {
			return err
		}
		rest = append(rest, left...)
	}
	return b.settleAll(ctx, rest)
}

// sweepExclusive clears exclusive holds that nobody waits for.
func (b *Backend) sweepExclusive(ctx context.Context, lease string, names []lock.Resource, event string) error {
	query, args := in(b.sql.sweep, texts(names), lease)
	return mydb.Retry(ctx, func() error {
		return b.on(ctx, func(ctx context.Context, conn *sql.Conn) error {
			var swept []string
			w := &script{b: b}
			var log []any
			n := 0 // rows of it
			err := b.pool.QueryOn(ctx, conn, "sweep", func(_ int, rows *sql.Rows) error {
				var name, id, since string
				var fence int64
				var quick bool
				if err := rows.Scan(&name, &id, &fence, &quick, &since); err != nil {
					return err
				}
				swept = append(swept, name)
				l := logged{at: since, event: "acquire", id: id, lease: lease, fence: fence}
				if quick {
					n++
					log = append(log, l.args(lock.Resource(name))...)
				}
				l.at, l.event, l.note = "", event, "with the lease"
				n++
				log = append(log, l.args(lock.Resource(name))...)
				return nil
			}, query, args...)
			if err != nil {
				drop(ctx, conn, err)
				return err
			}
			if len(swept) > 0 {
				up, args := in(b.sql.sweepUp, swept, lease)
				w.text.WriteString(up)
				w.args = args
				w.log(n, log)
			}
			w.text.WriteString("COMMIT")
			_, err = b.pool.ExecOn(ctx, conn, "sweep", w.text.String(), w.args...)
			return err
		})
	})
}

// unswept are the names at which anything of the lease is left.
func (b *Backend) unswept(ctx context.Context, lease string, names []lock.Resource) ([]lock.Resource, error) {
	query, args := in(b.sql.left, texts(names), lease)
	var left []lock.Resource
	err := b.query(ctx, "sweep", func(_ int, rows *sql.Rows) error {
		var r lock.Resource
		if err := rows.Scan(&r); err != nil {
			return err
		}
		left = append(left, r)
		return nil
	}, query, args...)
	return left, err
}

func texts(names []lock.Resource) []string {
	out := make([]string, len(names))
	for i, n := range names {
		out[i] = string(n)
	}
	return out
}

// settleAll settles some resources, several at a time.
func (b *Backend) settleAll(ctx context.Context, names []lock.Resource) error {
	const atATime = 4
	var wg sync.WaitGroup
	errs := make([]error, atATime)
	for w := range min(atATime, len(names)) {
		wg.Go(func() {
			for i := w; i < len(names) && errs[w] == nil; i += atATime {
				errs[w] = b.settle(ctx, names[i])
			}
		})
	}
	wg.Wait()
	return errors.Join(errs...)
}

// sweepDead finds and clears what a lease that is over has left.
func (b *Backend) sweepDead(ctx context.Context, lease string) error {
	found, err := b.hangsOn(ctx, lease)
	if err != nil {
		return err
	}
	names := make(map[lock.Resource]bool)
	for _, h := range found {
		names[h.name] = true
	}
	return b.sweep(ctx, lease, names, "expire")
}

// hanging is a hold or waiter of a lease.
type hanging struct {
	name lock.Resource
	id   lock.HoldID
}

// hangsOn is everything that hangs on a lease. It reads whole tables, so it is
// for rare occasions.
func (b *Backend) hangsOn(ctx context.Context, lease string) ([]hanging, error) {
	var all []hanging
	id := []byte(lease)
	err := b.query(ctx, "sweep", func(_ int, rows *sql.Rows) error {
		var h hanging
		if err := rows.Scan(&h.name, &h.id); err != nil {
			return err
		}
		all = append(all, h)
		return nil
	}, b.sql.mine, id, id, id)
	return all, err
}

// compareOnce compares memories if the heartbeats' connection is another than
// when it was done last: the server was restarted, or is another one.
func (l *lease) compareOnce(ctx context.Context) (vanished []lock.Event, err error) {
	l.compareMu.Lock()
	defer l.compareMu.Unlock()
	connected := l.connected.Load()
	if connected == l.compared {
		return nil, nil
	}
	vanished, err = l.compare(ctx)
	if err != nil {
		return nil, mydb.Unavailable("compare holds", err)
	}
	l.compared = connected // where there is yet another meanwhile, the next heartbeat compares again
	return vanished, nil
}

// compare sets the memory of the store beside the lease's own: what the store
// does not know is lost, what only the store knows is released.
func (l *lease) compare(ctx context.Context) (vanished []lock.Event, err error) {
	l.mu.Lock()
	held := make(map[lock.HoldID]lock.Resource)
	for id, e := range l.entries {
		if e.settled && !e.out {
			held[id] = e.resource
		}
	}
	l.mu.Unlock()
	found, err := l.b.hangsOn(ctx, string(l.id))
	if err != nil {
		return nil, err
	}
	for _, h := range found {
		delete(held, h.id)
		l.mu.Lock()
		_, known := l.entries[h.id]
		l.mu.Unlock()
		if !known {
			if err := l.release(ctx, h.name, h.id, "release"); err != nil && !errors.Is(err, lock.ErrNotHolder) {
				return nil, err
			}
		}
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	for id, r := range held {
		e := l.entries[id]
		if e == nil || !e.settled || e.out { // released meanwhile
			continue
		}
		delete(l.entries, id)
		if !e.revoked || e.until > l.b.clock() { // else it has ended as it was told to
			vanished = append(vanished, lock.Event{Kind: lock.Vanished, Resource: r, ID: id})
		}
	}
	return vanished, nil
}
