package sqllock

import (
	"cmp"
	"context"
	"errors"
	"maps"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/locksidecar/locksidecar/backends/leasekit"
	"github.com/locksidecar/locksidecar/lock"
)

// This file is about how a lease hears what others did for it.
//
// Whoever grants the lock to a waiter of another lease, or forces a release, rings the
// bell of that lease. A bell is a hint that may be lost, so those who wait also look now
// and then. To look is one request for all that wait.

const (
	// How long after a wait began, or a bell rang, news are first looked for.
	firstLook, firstLookWithoutBell = 20 * time.Millisecond, 2 * time.Millisecond
	maxLookWithoutBell              = 100 * time.Millisecond
	// How long after a failure the bell is listened for again, and where there will be none.
	listenAgain, listenNever = 200 * time.Millisecond, time.Minute
	// lookAtATime bounds the names, and the shared waiters, that one look is about.
	lookAtATime = 200
)

// Listen implements leasekit.Driver.
func (l *lease) Listen(ctx context.Context, push func(leasekit.Push)) {
	l.mu.Lock()
	l.push = push
	l.mu.Unlock()
	var bell atomic.Bool
	var known sync.Once
	var tasks sync.WaitGroup
	heard := func(there, never bool) {
		bell.Store(there)
		known.Do(func() {
			l.deaf.Store(never)
			close(l.bell)
		})
		leasekit.Ring(l.rang)
	}
	tasks.Go(func() {
		for ctx.Err() == nil {
			here, server, leave := l.here(ctx)
			err := l.b.d.Listen(here, l.id, server, func() { heard(true, false) })
			leave()
			pause, never := listenAgain, errors.Is(err, ErrNoBells)
			if never {
				pause = listenNever
			}
			heard(false, never)
			leasekit.Sleep(ctx, pause)
		}
	})
	tasks.Go(func() { l.observer.Run(ctx) })
	tasks.Go(func() { l.dues.Run(ctx, 1, l.endForced) })
	tasks.Go(func() { l.chores(ctx) })
	l.looks(ctx, &bell)
	tasks.Wait()
}

// here is ctx until the heartbeats are answered by another server than now. Who rings the
// bell goes there with them.
func (l *lease) here(ctx context.Context) (_ context.Context, server string, leave context.CancelFunc) {
	ctx, leave = context.WithCancel(ctx)
	l.mu.Lock()
	defer l.mu.Unlock()
	l.deafen = leave
	return ctx, l.server, leave
}

// looks looks for news until ctx ends: when the bell rings; some time after a wait
// began, then less and less often; and now and then as long as somebody waits.
func (l *lease) looks(ctx context.Context, bell *atomic.Bool) {
	pause := l.recheck
	t := time.NewTimer(pause)
	defer t.Stop()
	var behind time.Duration // when who stands behind the lease may be looked for,
	due := false             // and that it has to be
	for {
		first, most := firstLook, l.recheck
		if !bell.Load() {
			first, most = firstLookWithoutBell, min(maxLookWithoutBell, l.recheck)
		}
		look := false
		select {
		case <-ctx.Done():
			return
		case <-l.rang:
			look, pause, due = true, first, true
		case <-l.waits:
			pause = min(pause, first)
		case <-t.C:
			look, pause = due || l.waitsAtAll(), min(2*pause, most)
		}
		if look {
			now := l.b.clock()
			may := due && now >= behind
			_ = l.lookAround(ctx, may) // the next look is not far
			if may {
				due, behind = false, now+l.behindPause()
			}
		}
		if due {
			pause = min(pause, max(behind-l.b.clock(), leastPause))
		}
		pause = min(pause, max(l.lapse()-l.b.clock(), leastPause))
		t.Reset(pause)
	}
}

func (l *lease) waitsAtAll() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return len(l.waiting) > 0
}

// lookAround asks for all news; behind: also for who stands behind something of the lease.
func (l *lease) lookAround(ctx context.Context, behind bool) error {
	names, shared := l.waitingFor()
	for first := true; first || len(names) > 0; first = false {
		some := names[:min(len(names), lookAtATime)]
		names = names[len(some):]
		if err := l.lookAt(ctx, some, first, first && behind); err != nil {
			return err
		}
	}
	return l.lookShared(ctx, shared)
}

// waitingFor are the names that the lease waits for, and its shared waiters by name,
// in their order.
func (l *lease) waitingFor() (names [][]byte, shared map[lock.Resource][]string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	seen := make(map[lock.Resource]bool)
	shared = make(map[lock.Resource][]string)
	for id, w := range l.waiting {
		if !seen[w.name] {
			seen[w.name] = true
			names = append(names, []byte(w.name))
		}
		if w.mode != lock.Exclusive {
			shared[w.name] = append(shared[w.name], string(id))
		}
	}
	maps.DeleteFunc(l.lapses, func(name lock.Resource, _ time.Duration) bool { return !seen[name] })
	for _, ids := range shared {
		slices.SortFunc(ids, func(a, b string) int {
			return cmp.Compare(l.waiting[lock.HoldID(a)].turn, l.waiting[lock.HoldID(b)].turn)
		})
	}
	return names, shared
}

// lookAt asks what has become of some resources, and first for the notes of the lease, and
// who stands behind it.
func (l *lease) lookAt(ctx context.Context, names [][]byte, notes, behind bool) error {
	q := l.b.sql
	var batch []Statement
	if notes {
		id := []any{[]byte(l.id)}
		batch = append(batch, Statement{SQL: q.alive, Args: id}, Statement{SQL: q.keeper}, Statement{SQL: q.notesOf, Args: id})
	}
	if len(names) > 0 {
		batch = append(batch, q.waiting.with(nil, names, nil, 0), q.marks.with(nil, names, nil, 0))
	}
	if behind {
		batch = append(batch, l.askBehind()...)
	}
	if len(batch) == 0 {
		return nil
	}
	asked := l.b.strangers.Load()
	res, err := l.b.pool.Do(ctx, "look", batch...)
	if err != nil {
		return err
	}
	if notes {
		if len(res[0].Rows) == 0 {
			l.heard(leasekit.Push{Kind: leasekit.Over}, asked, 0)
			return nil
		}
		l.sawKeeper(res[1].Rows)
		for _, r := range res[2].Rows {
			l.noted(r, asked)
		}
		res = res[3:]
	}
	if len(names) > 0 {
		for _, r := range res[0].Rows {
			l.sawResource(r, asked)
		}
		for _, r := range res[1].Rows {
			l.dues.In(leasekit.Ref{Resource: lock.Resource(r.Text(0)), ID: lock.HoldID(r.Text(1))}, time.Duration(r.Int(2))*time.Microsecond)
		}
		res = res[2:]
	}
	for _, late := range res { // where behind was asked for
		l.behind(late.Rows)
	}
	return nil
}

// noted takes a note about a hold or waiter of the lease.
func (l *lease) noted(r Row, asked uint64) {
	p := leasekit.Push{Kind: leasekit.Woken, Ref: leasekit.Ref{Resource: lock.Resource(r.Text(0)), ID: lock.HoldID(r.Text(1))}}
	if r.Int(2) == noteForced {
		p.Kind, p.Grace = leasekit.Revoked, time.Duration(r.Int(3))*time.Microsecond
	}
	l.heard(p, asked, 0)
}

// sawResource takes what was seen of a resource that the lease waits for: who has it
// exclusively, one of those who share it, and who is first in its queue. Their leases are
// observed, so that a dead one is not in the way even where no keeper sees that.
func (l *lease) sawResource(r Row, asked uint64) {
	name, id, of := lock.Resource(r.Text(0)), lock.HoldID(r.Text(1)), r.Text(3)
	if of == string(l.id) {
		l.mu.Lock()
		_, waits := l.waiting[id]
		l.mu.Unlock()
		if waits {
			l.sawGrant(leasekit.Ref{Resource: name, ID: id}, r.Int(2), r.Int(2), r.Text(12), r.Int(14), asked)
		}
	}
	dead, now := false, l.b.clock()
	for i := 3; i < 12; i += 3 { // the three leases, each with its beat and TTL
		switch id := r.Text(i); {
		case id == "" || id == string(l.id):
		case r.Null(i + 1):
			dead = true
			l.overdue(id, now)
		default:
			l.observer.Saw(leasekit.Beat{Lease: id, Number: r.Int(i + 1), TTL: millis(r.Int(i + 2))})
		}
	}
	left := time.Duration(r.Int(13)) * time.Microsecond
	if left > 0 {
		l.lapsesIn(name, left)
	}
	if free := of == "" && r.Null(6) && !r.Null(9) && left <= 0; dead || free {
		l.b.post(name, &op{kind: opSettle, hasty: true})
	}
}

// sawGrant takes a grant that a look has found. by is the server that has answered; "": it may
// not grant now. Then another look finds the grant when it may, and that lease still has it.
// at is for its guard. A grant of before that server may grant gets another fence when it is asked for, see regrant.
func (l *lease) sawGrant(r leasekit.Ref, fence, at int64, by string, since int64, asked uint64) {
	switch {
	case by != l.b.trusted():
	case isOld(fence, since):
		l.heard(leasekit.Push{Kind: leasekit.Woken, Ref: r}, asked, 0)
	default:
		l.heard(leasekit.Push{Kind: leasekit.Granted, Ref: r, Fence: fenceOf(fence)}, asked, at)
	}
}

// lookShared asks which shared waiters were granted: those who came first, and others
// as long as there are such.
func (l *lease) lookShared(ctx context.Context, shared map[lock.Resource][]string) error {
	for name, ids := range shared {
		for len(ids) > 0 {
			some := ids[:min(len(ids), lookAtATime)]
			ids = ids[len(some):]
			asked := l.b.strangers.Load()
			res, err := l.b.pool.Do(ctx, "look", l.b.sql.granted.with([]byte(name), texts(some), nil, 0))
			if err != nil {
				return err
			}
			for _, r := range res[0].Rows {
				l.sawGrant(leasekit.Ref{Resource: name, ID: lock.HoldID(r.Text(0))}, r.Int(1), r.Int(2), r.Text(3), r.Int(4), asked)
			}
			if len(res[0].Rows) == 0 {
				break
			}
		}
	}
	return nil
}
