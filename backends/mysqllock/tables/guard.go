package tables

import (
	"context"
	"encoding/hex"
	"sync"

	"github.com/locksidecar/locksidecar/backends/mysqllock/mydb"
	"github.com/locksidecar/locksidecar/lock"
)

// guards are the statements by which an app makes sure of its lock in its own
// transaction.
//
// The guard of an exclusive hold locks the row of the resource against changes
// if the hold is still on it. Whoever would grant the resource to another has to
// change that row, and so waits until the app's transaction has ended; so do a
// release and a forced one. It does not matter whether the lease has ended
// meanwhile: as long as the row says so, nobody else has the lock. A hold that
// was downgraded is in the other table, where the second half finds it, as it
// finds every shared hold: the row of a shared hold is deleted by the same
// transaction that grants the resource to a writer.
//
// Names and ids go through UNHEX, so the arguments are ASCII and the character
// set of the app's connection does not matter.
type guards struct {
	mu                sync.Mutex
	dialect           mydb.Dialect // empty: not known yet
	exclusive, shared string
}

// learn makes the statements when the server is known for the first time.
func (b *Backend) learnGuards(ctx context.Context) error {
	server, err := b.pool.Server(ctx)
	if err != nil {
		return err
	}
	g := &b.guards
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.dialect == server.Dialect {
		return nil
	}
	share := " " + server.Dialect.ForShare()
	const onLock = "SELECT 1 FROM {lock} WHERE name=UNHEX(?) AND x_id=UNHEX(?)"
	const onHold = "SELECT 1 FROM {hold} WHERE name=UNHEX(?) AND id=UNHEX(?)"
	g.dialect = server.Dialect
	g.exclusive = replaceNames("("+onLock+share+") UNION ALL ("+onHold+share+")", b.cfg.Table)
	g.shared = replaceNames(onHold+share, b.cfg.Table)
	return nil
}

// guard is the guard of a hold, now or later.
func (b *Backend) guard(r lock.Resource, id lock.HoldID, m lock.Mode) *lock.Guard {
	g := &b.guards
	g.mu.Lock()
	defer g.mu.Unlock()
	args := []string{hex.EncodeToString([]byte(r)), hex.EncodeToString([]byte(id))}
	if m == lock.Shared {
		return &lock.Guard{Dialect: string(g.dialect), SQL: g.shared, Args: args}
	}
	return &lock.Guard{Dialect: string(g.dialect), SQL: g.exclusive, Args: append(args, args...)}
}
