package sqllock

import (
	"context"
	"errors"
	"fmt"
	"math"
	"time"

	"github.com/locksidecar/locksidecar/backends/leasekit"
	"github.com/locksidecar/locksidecar/lock"
)

// forcePoll is how often ForceRelease looks at first what has become of the hold, see leasekit.Pace.
const forcePoll = 50 * time.Millisecond

// ForceRelease implements lock.Backend.
//
// It writes the grace beside the hold. The holder's sidecar hears of it, tells its
// app, and writes that it knows: from then on the grace counts. Each of those who
// take part counts it on a clock of its own: the holder's sidecar from when it
// has written that, the others from after they have read it. The first of them for
// whom it is over ends the hold: usually the holder's sidecar; where that is cut
// off, whoever forced the release, or a sidecar that waits.
func (b *Backend) ForceRelease(ctx context.Context, r lock.Resource, id lock.HoldID, grace time.Duration) error {
	o := &op{kind: opForce, id: string(id), grace: max(grace, 0)}
	b.submit(ctx, r, o)
	switch {
	case errors.Is(o.err, lock.ErrNotHolder):
		return lock.ErrNotHolder
	case o.err != nil:
		return b.unavailable("force release", o.err)
	case !o.queued:
		return nil
	}
	if err := b.awaitForced(ctx, r, id, o.by); err != nil {
		if ctx.Err() != nil {
			return fmt.Errorf("force release %q: %w: %w; it ends by itself %s after the holder's sidecar knows of it, or with its lease", string(r), lock.ErrUnavailable, err, grace)
		}
		return b.unavailable("force release", err)
	}
	return nil
}

// errMayLack: whoever holds what is not there may not know that yet.
var errMayLack = errors.New("another server has taken over, and may lack the hold: its app may rely on it until the next heartbeat of its sidecar")

// awaitForced waits until a hold is gone whose release is forced, and ends it when
// its grace is over. at is the server that has the hold. Where the heartbeats have moved to another one, that may lack it, and
// so its absence there says nothing.
func (b *Backend) awaitForced(ctx context.Context, r lock.Resource, id lock.HoldID, at string) error {
	due, began := time.Duration(math.MaxInt64), b.clock()
	n, i := []byte(r), []byte(id)
	for {
		res, err := b.pool.Do(ctx, "force", Statement{SQL: b.sql.forced, Args: []any{n, i, n, i, n, i}})
		if err != nil {
			return err
		}
		row := res[0].Rows[0]
		server, gone := row.Text(0), row.Null(1)
		if err := b.notElsewhere(server); err != nil {
			return err
		}
		switch {
		case gone && server != at:
			return errMayLack
		case gone:
			return nil
		}
		at = server
		now := b.clock()
		if known := row.Int(1); known >= 0 {
			due = min(due, now+time.Duration(known)*time.Microsecond)
		}
		if now >= due {
			o := &op{kind: opEnd, id: string(id)}
			b.submit(ctx, r, o)
			if o.err != nil {
				return o.err
			}
		}
		if !leasekit.Sleep(ctx, min(max(due-now, leastPause), leasekit.Pace(now-began, forcePoll))) {
			return context.Cause(ctx)
		}
	}
}
