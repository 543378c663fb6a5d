package tables

import (
	"context"
	"database/sql"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/locksidecar/locksidecar/lock"
)

// keeper is what a lease does for all: it watches the other leases and ends
// those that are not renewed, it looks after what its own waiters wait for, and
// keeps the tables clean.
type keeper struct {
	l *lease

	// Of the goroutine watch alone.
	seen map[string]observed // other leases

	mu     sync.Mutex
	marks  map[markKey]time.Duration     // forced releases: when their grace is over, on the clock
	acks   map[markKey]int64             // forced releases that were told, with their grace: to be acknowledged
	soon   map[lock.Resource]bool        // to be settled
	owed   map[lock.HoldID]lock.Resource // to be released: the first try had no answer
	trails map[lock.Resource]bool        // that were released here, and have a trail
	some   chan struct{}                 // one place: there is something in soon or owed
	toAck  chan struct{}                 // one place: there is something in acks
	look   chan struct{}                 // one place: look after the waiters now
	dead   chan string                   // leases that were ended here, to be swept
}

// observed is a lease as it was seen: the beat, and when the read that showed
// it for the first time was over.
type observed struct {
	beat  int64
	since time.Duration
	ttl   time.Duration
}

func newKeeper(l *lease) *keeper {
	return &keeper{
		l: l, seen: make(map[string]observed), marks: make(map[markKey]time.Duration), acks: make(map[markKey]int64), soon: make(map[lock.Resource]bool),
		owed: make(map[lock.HoldID]lock.Resource), trails: make(map[lock.Resource]bool),
		some: make(chan struct{}, 1), toAck: make(chan struct{}, 1), look: make(chan struct{}, 1), dead: make(chan string, 16),
	}
}

const (
	// Leases are observed a few times a TTL of the shortest, but no more often
	// than every leastPause, nor, where they are many, than pauseForEach a lease.
	leastPause, mostPause = 50 * time.Millisecond, 5 * time.Second
	pauseForEach          = 2 * time.Millisecond
)

// watch observes leases, and looks after waiters, until ctx ends.
func (k *keeper) watch(ctx context.Context) {
	l := k.l
	var nextRead, nextLook time.Duration
	t := time.NewTimer(0)
	defer t.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-k.look:
			nextLook = 0
		case <-t.C:
		}
		if l.isLost() {
			return
		}
		now := l.b.clock()
		if now >= nextRead {
			gone := k.observe(ctx)
			nextRead = l.b.clock() + k.pause()
			if gone {
				nextLook = 0
			}
		}
		next := min(nextRead, k.endDue(ctx), k.forceDue(ctx))
		if now >= nextLook {
			_ = k.recheck(ctx)
			nextLook = l.b.clock() + l.recheck
		}
		t.Reset(max(0, min(next, nextLook)-l.b.clock()))
	}
}

// pause is how long not to read the leases.
func (k *keeper) pause() time.Duration {
	shortest := k.l.ttl
	for _, o := range k.seen {
		shortest = min(shortest, o.ttl)
	}
	p := min(max(shortest/4, leastPause, time.Duration(len(k.seen))*pauseForEach), mostPause)
	return p - rand.N(p/8) //nolint:gosec // not a secret
}

// observe reads the beats of all leases. gone: one is not there any more.
func (k *keeper) observe(ctx context.Context) (gone bool) {
	l := k.l
	type row struct {
		id        string
		beat, ttl int64
	}
	var rows []row
	err := l.b.query(ctx, "observe", func(_ int, r *sql.Rows) error {
		var x row
		if err := r.Scan(&x.id, &x.beat, &x.ttl); err != nil {
			return err
		}
		rows = append(rows, x)
		return nil
	}, l.b.sql.beats)
	if err != nil {
		return false // nothing was seen, and time goes on
	}
	now := l.b.clock()
	own := false
	seen := make(map[string]observed, len(rows))
	for _, r := range rows {
		if r.id == string(l.id) {
			own = true
			continue
		}
		o, known := k.seen[r.id]
		if !known || o.beat != r.beat {
			o = observed{beat: r.beat, since: now, ttl: time.Duration(r.ttl) * time.Millisecond}
		}
		seen[r.id] = o
	}
	for id := range k.seen {
		if _, there := seen[id]; !there {
			gone = true
		}
	}
	k.seen = seen
	if !own {
		l.lose()
	}
	return gone
}

// endDue ends the leases whose beat has not changed for their TTL, and says when
// the next one is due. That the beat is still the same is checked by the
// statement that deletes the row, so of several observers one succeeds, and a
// lease that was renewed meanwhile is left alone.
func (k *keeper) endDue(ctx context.Context) (next time.Duration) {
	l := k.l
	next = l.b.clock() + mostPause
	for id, o := range k.seen {
		due := o.since + o.ttl
		if due > l.b.clock() {
			next = min(next, due)
			continue
		}
		res, err := l.b.exec(ctx, "end", l.b.sql.end, []byte(id), o.beat, []byte(id), []byte(l.id))
		if err != nil {
			next = min(next, l.b.clock()+leastPause)
			continue
		}
		delete(k.seen, id) // it is read again if it lives
		if res.Affected[1] > 0 {
			select {
			case k.dead <- id:
			default: // the reaper finds what it left
			}
			poke(k.look)
		}
	}
	return next
}

// recheck looks after what keeps the lease's waiters waiting: holders and waiters
// of dead leases that nobody cleared away, forced releases that nobody finished,
// and grants of which the news was lost.
func (k *keeper) recheck(ctx context.Context) error {
	l := k.l
	names := l.waitingFor()
	for len(names) > 0 {
		some := names[:min(len(names), 200)]
		names = names[len(some):]
		stuck := make(map[lock.Resource]bool)
		query, args := in(l.b.sql.stuck, some, string(l.id))
		err := l.b.query(ctx, "recheck", func(_ int, rows *sql.Rows) error {
			var kind, name, id string
			var fence, mark int64
			if err := rows.Scan(&kind, &name, &id, &fence, &mark); err != nil {
				return err
			}
			switch kind {
			case "d":
				stuck[lock.Resource(name)] = true
			case "g":
				l.granted(lock.HoldID(id), fence)
			case "m":
				k.endAt(markKey{lock.Resource(name), id}, l.b.clock()+time.Duration(mark)*time.Microsecond)
			}
			return nil
		}, query, args...)
		if err != nil {
			return err
		}
		for r := range stuck {
			k.settleSoon(r)
		}
	}
	return nil
}

// settleSoon has a resource settled off the caller's path.
func (k *keeper) settleSoon(r lock.Resource) {
	k.mu.Lock()
	k.soon[r] = true
	k.mu.Unlock()
	poke(k.some)
}

// owe has a release tried again until it is answered.
func (k *keeper) owe(r lock.Resource, id lock.HoldID) {
	k.mu.Lock()
	k.owed[id] = r
	k.mu.Unlock()
	poke(k.some)
}

// pay tries the releases that are owed, and reports whether all are answered.
func (k *keeper) pay(ctx context.Context) bool {
	k.mu.Lock()
	owed := k.owed
	k.owed = make(map[lock.HoldID]lock.Resource)
	k.mu.Unlock()
	for id, r := range owed {
		_ = k.l.Release(ctx, r, id) // owes again where it must
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	return len(k.owed) == 0
}

// chores does what may take a while, until ctx ends.
func (k *keeper) chores(ctx context.Context) {
	b := k.l.b
	reap := time.NewTimer(k.reapPause() / 4)
	defer reap.Stop()
	const patience = 100 * time.Millisecond
	again := time.NewTimer(patience)
	defer again.Stop()
	move := time.NewTicker(moveEvery)
	defer move.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-again.C:
			if !k.pay(ctx) {
				again.Reset(patience)
			}
		case <-k.some:
			again.Reset(patience)
			k.mu.Lock()
			soon := k.soon
			k.soon = make(map[lock.Resource]bool)
			k.mu.Unlock()
			for r := range soon {
				_ = b.settle(ctx, r) // recheck finds it again
			}
		case id := <-k.dead:
			_ = b.sweepDead(ctx, id) // the reaper finds what is left
		case <-move.C:
			k.moveTrails(ctx)
		case <-reap.C:
			_ = b.reap(ctx)
			reap.Reset(k.reapPause())
		}
	}
}

// reapPause is the time between two rounds of the reaper.
func (k *keeper) reapPause() time.Duration {
	const usual = 30 * time.Second
	return usual/2 + rand.N(usual) //nolint:gosec // not a secret
}
