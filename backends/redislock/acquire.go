package redislock

import (
	"context"
	"fmt"
	"math/rand/v2"
	"strconv"
	"time"

	"github.com/locksidecar/locksidecar/lock"
)

// entry is what the lease knows of one hold or waiter of its own.
type entry struct {
	resource lock.Resource
	alone    bool          // it is exclusive
	settled  bool          // the store said that it is held
	unsure   bool          // a request on it had no answer, so a copy may still arrive
	fence    lock.Fence    // of a grant that was pushed; 0 before
	out      bool          // it was released, or forced out of the queue, while Acquire was at work
	woken    chan struct{} // closed when fence or out is set; nil while nobody waits
}

// wake tells the waiting Acquire, with the lease locked.
func (e *entry) wake() {
	if e.woken != nil {
		close(e.woken)
		e.woken = nil
	}
}

// Acquire implements lock.Lease.
func (l *lease) Acquire(ctx context.Context, q lock.Request) (lock.Grant, error) {
	if l.isLost() {
		return lock.Grant{}, lock.ErrLeaseLost
	}
	if err := l.waitOutRestart(ctx, q); err != nil {
		return lock.Grant{}, err
	}
	bucket := l.b.keys.bucketOf(q.Resource)
	// Not ctx, for the reason given in run: a wait that ends here is no unknown outcome.
	if err := l.openBucket(context.WithoutCancel(ctx), bucket); err != nil {
		return lock.Grant{}, err
	}
	a := l.attempt(bucket, q)
	g, err := a.run(ctx)
	if err == nil {
		if err = l.waitOutRestart(ctx, q); err != nil {
			return lock.Grant{}, a.giveUp(ctx, err)
		}
	}
	return g, err
}

// waitOutRestart keeps grants back while a server that was restarted may not
// remember all holders.
func (l *lease) waitOutRestart(ctx context.Context, q lock.Request) error {
	for {
		latest := l.b.servers.latest.Load()
		if l.pastGrace.Load() == latest { // spares the clock
			return nil
		}
		left := l.b.servers.graceLeft(l.grace)
		if left <= 0 {
			l.pastGrace.Store(latest)
			return nil
		}
		if q.Try {
			return fmt.Errorf("acquire %q: Redis was restarted and may have forgotten locks; ask again in %s: %w",
				string(q.Resource), left.Round(100*time.Millisecond), lock.ErrUnavailable)
		}
		t := time.NewTimer(left)
		select {
		case <-t.C:
		case <-ctx.Done():
			t.Stop()
			return &lock.HeldError{Cause: context.Cause(ctx), Status: lock.Status{Resource: q.Resource}}
		case <-l.lost:
			t.Stop()
			return lock.ErrLeaseLost
		}
	}
}

// attempt is one call of Acquire.
type attempt struct {
	l    *lease
	q    lock.Request
	line *line
	keys []string
	args []any
	e    *entry
}

func (l *lease) attempt(bucket int, q lock.Request) *attempt {
	mode, try := "X", "0"
	if q.Mode == lock.Shared {
		mode = "S"
	}
	if q.Try {
		try = "1"
	}
	l.mu.Lock()
	e := l.entries[q.ID]
	if e == nil {
		e = &entry{resource: q.Resource, alone: q.Mode == lock.Exclusive}
		l.entries[q.ID] = e
	}
	l.mu.Unlock()
	return &attempt{
		l: l, q: q, e: e, line: &l.b.lines[bucket],
		keys: l.b.keys.buckets[bucket].of(q.Resource, l.id),
		args: []any{l.b.keys.channel, string(l.id), string(q.ID), mode, l.sidecar + "\x00" + q.Owner, try, member(q.Resource, q.ID)},
	}
}

// run asks the store until it is granted or there is no use in asking.
func (a *attempt) run(ctx context.Context) (lock.Grant, error) {
	l := a.l
	for {
		l.mu.Lock()
		resync := l.resync
		l.mu.Unlock()
		// Not ctx: a request that is cut short leaves the connection useless and
		// the outcome open. The driver's timeout bounds it.
		reply, err := l.b.run(context.Background(), a.line, scriptAcquire, a.keys, a.args...) //nolint:contextcheck // see above
		if err != nil {
			l.mu.Lock()
			a.e.unsure = true
			l.mu.Unlock()
			return lock.Grant{}, unavailable(fmt.Sprintf("acquire %q", string(a.q.Resource)), err)
		}
		if a.isOut() { // Release came in between, and may have been too early to find it
			return lock.Grant{}, a.giveUp(ctx, lock.ErrNotHolder)
		}
		if fence, ok := reply.(string); ok {
			return a.granted(fence)
		}
		fields, _ := reply.([]any)
		recheck := l.recheck
		switch word(fields, 0) {
		case "LOST":
			l.forget(a.q.ID)
			l.lose()
			return lock.Grant{}, lock.ErrLeaseLost
		case "GONE":
			l.forget(a.q.ID)
			return lock.Grant{}, lock.ErrNotHolder
		case "HELD":
			l.forget(a.q.ID)
			return lock.Grant{}, &lock.HeldError{Cause: lock.ErrHeld, Status: holdersOf(a.q.Resource, fields[1:])}
		case "WAIT":
			if ms, ok := fields[1].(int64); ok && ms > 0 {
				recheck = min(recheck, time.Duration(ms+5)*time.Millisecond)
			}
		default:
			return lock.Grant{}, fmt.Errorf("acquire %q: Redis answered %v: %w", string(a.q.Resource), reply, lock.ErrUnavailable)
		}
		if g, done, err := a.wait(ctx, recheck, resync); done {
			return g, err
		}
	}
}

func (a *attempt) isOut() bool {
	a.l.mu.Lock()
	defer a.l.mu.Unlock()
	return a.e.out
}

func (a *attempt) granted(fence string) (lock.Grant, error) {
	n, err := strconv.ParseInt(fence, 10, 64)
	if err != nil {
		return lock.Grant{}, fmt.Errorf("acquire %q: fence %q: %w", string(a.q.Resource), fence, lock.ErrUnavailable)
	}
	a.l.mu.Lock()
	a.e.settled = true
	a.l.mu.Unlock()
	return a.grant(lock.Fence(n)), nil
}

func (a *attempt) grant(f lock.Fence) lock.Grant {
	return lock.Grant{ID: a.q.ID, Resource: a.q.Resource, Mode: a.q.Mode, Fence: f}
}

// wait waits in the queue for a push, for the time to ask again (done is false
// then), or for an end.
func (a *attempt) wait(ctx context.Context, recheck time.Duration, resync <-chan struct{}) (g lock.Grant, done bool, err error) {
	l := a.l
	l.mu.Lock()
	if a.e.woken == nil {
		a.e.woken = make(chan struct{})
	}
	woken := a.e.woken
	if a.e.fence != 0 || a.e.out {
		a.e.wake()
	}
	l.mu.Unlock()
	// Spread, so that those who wait for one dead holder do not all ask at once.
	t := time.NewTimer(recheck + time.Duration(rand.Int64N(int64(recheck)/8+1))) //nolint:gosec // not a secret
	defer t.Stop()
	select {
	case <-woken:
		l.mu.Lock()
		fence, out := a.e.fence, a.e.out
		a.e.settled = fence != 0
		l.mu.Unlock()
		if out {
			l.forget(a.q.ID)
			return g, true, lock.ErrNotHolder
		}
		return a.grant(fence), true, nil
	case <-t.C:
		return g, false, nil
	case <-resync:
		return g, false, nil
	case <-l.lost:
		return g, true, lock.ErrLeaseLost
	case <-ctx.Done():
		return g, true, a.giveUp(ctx, &lock.HeldError{Cause: context.Cause(ctx), Status: lock.Status{Resource: a.q.Resource}})
	}
}

// giveUp takes the request back and returns why, or that this is not known to
// have worked. Whoever holds the lock is put into why.
func (a *attempt) giveUp(ctx context.Context, why error) error {
	reply, err := a.l.release(context.WithoutCancel(ctx), a.q.Resource, a.q.ID)
	if err != nil {
		return err
	}
	fields, _ := reply.([]any)
	if held, ok := why.(*lock.HeldError); ok && word(fields, 0) == "CANCELLED" { //nolint:errorlint // made right above
		if rank, ok := fields[1].(int64); ok {
			held.Position = int(rank)
		}
		held.Status = holdersOf(a.q.Resource, fields[2:])
	}
	return why
}

// Release implements lock.Lease.
func (l *lease) Release(ctx context.Context, r lock.Resource, id lock.HoldID) error {
	if l.isLost() {
		return lock.ErrLeaseLost
	}
	if !l.open[l.b.keys.bucketOf(r)].Load() {
		return lock.ErrNotHolder // nothing was ever asked for there
	}
	reply, err := l.release(ctx, r, id)
	switch {
	case err != nil:
		return err
	case reply == int64(0):
		return lock.ErrNotHolder
	case reply == int64(-1):
		l.lose()
		return lock.ErrLeaseLost
	}
	return nil
}

// release sends the script and, once it is answered, forgets the entry.
func (l *lease) release(_ context.Context, r lock.Resource, id lock.HoldID) (any, error) {
	l.mu.Lock()
	e := l.entries[id]
	remember, quick := "0", "0"
	if e != nil {
		e.out = true
		switch {
		case e.unsure:
			remember = "1"
		case e.settled && e.alone && l.b.servers.clock() < time.Duration(l.renewed.Load())+l.ttl:
			quick = "1"
		}
	}
	l.mu.Unlock()
	i := l.b.keys.bucketOf(r)
	bucket := &l.b.keys.buckets[i]
	// No context, for the reason given in run.
	reply, err := l.b.run(context.Background(), &l.b.lines[i], scriptRelease, bucket.of(r, l.id), //nolint:contextcheck // see above
		l.b.keys.channel, string(l.id), string(id), member(r, id), remember, quick)
	if err != nil {
		return nil, unavailable(fmt.Sprintf("release %q", string(r)), err)
	}
	l.mu.Lock()
	if e != nil {
		e.wake()
	}
	delete(l.entries, id)
	l.mu.Unlock()
	return reply, nil
}

// Downgrade implements lock.Lease.
func (l *lease) Downgrade(ctx context.Context, r lock.Resource, id lock.HoldID) error {
	if l.isLost() {
		return lock.ErrLeaseLost
	}
	i := l.b.keys.bucketOf(r)
	if !l.open[i].Load() {
		return lock.ErrNotHolder
	}
	l.mu.Lock()
	if e := l.entries[id]; e != nil {
		e.alone = false
	}
	l.mu.Unlock()
	bucket := &l.b.keys.buckets[i]
	reply, err := l.b.run(context.WithoutCancel(ctx), &l.b.lines[i], scriptDowngrade, bucket.of(r, l.id), l.b.keys.channel, string(l.id), string(id))
	switch {
	case err != nil:
		return unavailable(fmt.Sprintf("downgrade %q", string(r)), err)
	case reply == int64(0):
		return lock.ErrNotHolder
	case reply == int64(-1):
		l.lose()
		return lock.ErrLeaseLost
	}
	return nil
}

func (l *lease) forget(id lock.HoldID) {
	l.mu.Lock()
	delete(l.entries, id)
	l.mu.Unlock()
}

func word(fields []any, i int) string {
	if i >= len(fields) {
		return ""
	}
	s, _ := fields[i].(string)
	return s
}
