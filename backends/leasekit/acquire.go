package leasekit

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/locksidecar/locksidecar/lock"
)

// giveUpTime bounds how long a wait that has ended is still held up by a store
// that does not answer: less than TTL/3, too.
const giveUpTime = time.Second

// acquire is Acquire of a request with a Bell, but for what a try waits for.
//
// Model: failover.ASK.
func (l *Lease) acquire(ctx context.Context, q lock.Request) (lock.Grant, error) {
	e, p, err := l.resume(ctx, q)
	switch {
	case e == nil:
		if err := errors.Join(l.keeps(q), l.detaches(q)); err != nil {
			return lock.Grant{}, fmt.Errorf("acquire %q: %w", string(q.Resource), err)
		}
		e, err = l.begin(q)
	case err != nil:
		return lock.Grant{}, err
	case p != nil:
		return grantOf(q, p.Fence, p.Guard), nil
	default:
		err = l.again(e)
	}
	for ; err == nil; err = l.again(e) {
		l.trip(ctx)
		sent := l.sent(q)
		a, err := l.d.Ask(ctx, q)
		a, err = l.asked(e, a, err)
		switch {
		case errors.Is(err, ErrNotSent):
			return lock.Grant{}, l.unsent(ctx, e, q.Cohort)
		case errors.Is(err, errForced):
			return lock.Grant{}, l.giveBack(ctx, e.Ref)
		case err != nil:
			return lock.Grant{}, l.refused(ctx, e, err)
		case a.Granted:
			g := grantOf(q, a.Fence, a.Guard)
			if a.Left > 0 {
				g.Until = sent + a.Left
			}
			return g, nil
		}
		p, err := l.wait(ctx, e, a.Recheck, q)
		if err != nil {
			return lock.Grant{}, err
		}
		if p != nil {
			return grantOf(q, p.Fence, p.Guard), nil
		}
	}
	switch {
	case errors.Is(err, errForced):
		err = l.giveBack(ctx, Ref{q.Resource, q.ID})
	case errors.Is(err, errLeaving):
		err = l.leave(ctx, e)
	}
	return lock.Grant{}, err
}

// keeps is nil where the store can do what is asked of its min_hold.
func (l *Lease) keeps(q lock.Request) error {
	k, keeps := l.d.(Keeper)
	switch {
	case q.MinHold == 0:
		return nil
	case q.MinHold < 0 || q.MinHold > lock.MaxMinHold:
		return &lock.InvalidError{Field: "min_hold", Problem: fmt.Sprintf("is %s, must be at most %s", q.MinHold, lock.MaxMinHold)}
	case !keeps:
		return NoMinHold("what it knows of a hold ends with the hold")
	default:
		return k.KeepsMinHold()
	}
}

func grantOf(q lock.Request, f lock.Fence, g *lock.Guard) lock.Grant {
	return lock.Grant{ID: q.ID, Resource: q.Resource, Mode: q.Mode, Fence: f, Guard: g}
}

// asked draws the conclusions from the answer to Ask, and gives what it is worth. The
// comparison leaves out what is being asked for; so a grant that was sent for before
// there was a reason to compare is asked for again: the server that answers now may not
// have it.
//
//	errForced: it is granted, and its release is forced already.
//
// Model: failover.GRANTED, retry.ASKED.
func (l *Lease) asked(e *entry, a Answer, err error) (Answer, error) {
	forced := false
	l.mu.Lock()
	l.end(e)
	if a.Granted && e.doubted < l.shaken {
		a, e.rung = Answer{}, true
	}
	switch {
	case err == nil:
		forced = a.Granted && e.revoked
		e.stored, e.held, e.unsure = true, a.Granted && (e.held || !forced), false
		e.fence, e.compared = a.Fence, e.doubted
	case errors.Is(err, lock.ErrUnavailable):
		e.unanswered()
	case errors.Is(err, ErrNotSent) && (e.stored || e.unsure):
	case e.mayHave(err): // see refused
	default: // nothing is left
		l.remove(e)
	}
	l.mu.Unlock()
	if errors.Is(err, lock.ErrLeaseLost) {
		l.Lose()
	}
	switch {
	case err == nil && l.isLost():
		return a, lock.ErrLeaseLost
	case forced:
		return a, errForced
	default:
		return a, err
	}
}

// mayHave tells whether the store may have a request that it has refused, or may be granting it
// yet: because a request before this one had no answer, so that a copy of it may
// arrive; or because it has granted it, and the time of what is attached is over since. l.mu is held.
func (e *entry) mayHave(err error) bool {
	return (e.copies || e.stored && errors.Is(err, lock.ErrNoHandle)) && !errors.Is(err, lock.ErrLeaseLost)
}

// refused ends an Acquire that the store has refused. What the store may have of it all the same is
// given up; where a copy may arrive, the store must remember that the id was given up.
func (l *Lease) refused(ctx context.Context, e *entry, err error) error {
	l.mu.Lock()
	left := e.mayHave(err) && !e.removed && !errors.Is(err, lock.ErrUnavailable)
	l.mu.Unlock()
	if !left {
		return err
	}
	limit, cancel := l.afterwards(ctx)
	defer cancel()
	if _, gone := l.withdraw(limit, e.Ref, err); gone != nil {
		return fmt.Errorf("acquire %q: give up: %w", string(e.Resource), gone)
	}
	return err
}

// leave ends an Acquire of what was being given up already, with the reason for that.
//
// Model: retry.WITHDRAW.
func (l *Lease) leave(ctx context.Context, e *entry) error {
	l.mu.Lock()
	why := e.leaving
	l.mu.Unlock()
	limit, cancel := l.afterwards(ctx)
	defer cancel()
	if _, err := l.withdraw(limit, e.Ref, why); err != nil {
		return fmt.Errorf("acquire %q: give up: %w", string(e.Resource), err)
	}
	return why
}

// afterwards bounds what is done for an Acquire after its end.
func (l *Lease) afterwards(ctx context.Context) (context.Context, context.CancelFunc) {
	return context.WithTimeout(context.WithoutCancel(ctx), min(giveUpTime, l.o.TTL/3))
}

// unsent ends a wait whose last request was not sent. Of the first one nothing can
// be left.
func (l *Lease) unsent(ctx context.Context, e *entry, c lock.Cohort) error {
	l.mu.Lock()
	known := l.entries[e.ID] == e
	l.mu.Unlock()
	if known {
		return l.part(ctx, e, c)
	}
	return &lock.HeldError{Cause: context.Cause(ctx), Status: lock.Status{Resource: e.Resource}}
}

// giveBack ends a hold whose release was forced before its Acquire has returned.
// Nobody was told of it, so nobody needs a grace.
func (l *Lease) giveBack(ctx context.Context, r Ref) error {
	if _, err := l.withdraw(ctx, r, lock.ErrNotHolder); err != nil {
		return fmt.Errorf("acquire %q: give up a hold that is forced: %w", string(r.Resource), err)
	}
	return lock.ErrNotHolder
}

// wait lets a request wait in the queue, unless there is a grant that came by push, a reason
// to ask again (both results are nil then), or an end.
//
//	lock.ErrWaiting: it waits. Its bell rings, and resume says what has come.
func (l *Lease) wait(ctx context.Context, e *entry, recheck time.Duration, q lock.Request) (*Push, error) {
	// Spread, so that those who wait for one dead holder do not all ask at once.
	latest := l.o.Recheck - rand.N(l.o.Recheck/8+1) //nolint:gosec // not a secret
	if recheck > 0 {
		latest = min(latest, recheck+rand.N(recheck/8+1)) //nolint:gosec // not a secret
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if e.rung || l.isLost() || ctx.Err() != nil { // rung: a push has overtaken the answer
		return l.waited(ctx, e, q.Cohort)
	}
	l.waits[e.ID] = e
	e.rest = &rest{q.Bell, time.AfterFunc(latest, func() {
		l.mu.Lock()
		defer l.mu.Unlock()
		e.wake()
	})}
	return nil, lock.ErrWaiting
}

// resume takes up a request that waits; nil: there is none. What it has come to is as with wait.
func (l *Lease) resume(ctx context.Context, q lock.Request) (*entry, *Push, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	e := l.waits[q.ID]
	switch {
	case e == nil:
		return nil, nil, nil
	case !e.rung && !l.isLost() && ctx.Err() == nil:
		e.rest.bell = q.Bell
		return e, nil, lock.ErrWaiting
	}
	delete(l.waits, q.ID)
	e.rest.late.Stop()
	e.rest = nil
	p, err := l.waited(ctx, e, q.Cohort)
	return e, p, err
}

// waited is what a wait has come to. l.mu is held.
func (l *Lease) waited(ctx context.Context, e *entry, c lock.Cohort) (*Push, error) {
	switch {
	case l.isLost():
		return nil, lock.ErrLeaseLost
	case ctx.Err() != nil:
		l.mu.Unlock()
		defer l.mu.Lock()
		return nil, l.part(ctx, e, c)
	default:
		return l.taken(e), nil
	}
}

// part ends a wait whose ctx has ended: the request is given up, or stays for others.
func (l *Lease) part(ctx context.Context, e *entry, c lock.Cohort) error {
	if c != nil && c.Stay() {
		return fmt.Errorf("acquire %q: %w: it stays for others: %w", string(e.Resource), lock.ErrUnavailable, context.Cause(ctx))
	}
	return l.giveUp(ctx, e)
}

// taken takes the grant that has come by push, if one has. Where there is a reason to compare since it was asked for, the
// server that answers now may not have it, see asked. l.mu is held.
func (l *Lease) taken(e *entry) *Push {
	p := e.pushed
	if p == nil || e.revoked || e.doubted < l.shaken {
		return nil // ask again
	}
	e.held, e.fence, e.pushed, e.compared = true, p.Fence, nil, e.doubted
	l.touch(e)
	return p
}

// giveUp takes the request back whose ctx has ended, and says who was in the way.
func (l *Lease) giveUp(ctx context.Context, e *entry) error {
	cause := context.Cause(ctx)
	limit, cancel := l.afterwards(ctx)
	defer cancel()
	w, err := l.withdraw(limit, e.Ref, &lock.HeldError{Cause: cause, Status: lock.Status{Resource: e.Resource}})
	if err != nil {
		return fmt.Errorf("acquire %q: give up: %w", string(e.Resource), err)
	}
	w.Status.Resource = e.Resource
	return &lock.HeldError{Cause: cause, Status: w.Status, Position: w.Position}
}

// Release implements lock.Lease.
func (l *Lease) Release(ctx context.Context, r lock.Resource, id lock.HoldID) error {
	w, err := l.withdraw(ctx, Ref{r, id}, lock.ErrNotHolder)
	return withdrawn("release", r, w, err)
}

// withdrawn says that there was nothing to withdraw.
func withdrawn(what string, r lock.Resource, w Withdrawn, err error) error {
	if err == nil && !w.Found {
		err = lock.ErrNotHolder
	}
	if err != nil {
		return fmt.Errorf("%s %q: %w", what, string(r), err)
	}
	return nil
}

// withdraw gives up what the lease has or waits for. why is what an Acquire of it is told
// from now on, if there is no answer.
//
// Model: retry.WITHDRAWN.
func (l *Lease) withdraw(ctx context.Context, r Ref, why error) (Withdrawn, error) {
	return l.withdrawBy(ctx, r, why, l.d.Withdraw)
}

// withdrawBy is withdraw by another request of the driver.
func (l *Lease) withdrawBy(ctx context.Context, r Ref, why error, by func(context.Context, Withdrawal) (Withdrawn, error)) (Withdrawn, error) {
	e, how, err := l.withdrawal(r)
	if err != nil {
		return Withdrawn{}, err
	}
	l.trip(ctx)
	w, err := by(ctx, how)
	l.mu.Lock()
	l.end(e)
	if errors.Is(err, lock.ErrUnavailable) {
		e.unanswered()
		e.leaving = why
	} else {
		l.remove(e)
	}
	l.mu.Unlock()
	if errors.Is(err, lock.ErrLeaseLost) {
		l.Lose()
	}
	return w, err
}

// withdrawal is begin for a request that ends what is there.
func (l *Lease) withdrawal(r Ref) (*entry, Withdrawal, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	e, err := l.enter(r, 0)
	if err != nil {
		return nil, Withdrawal{}, err
	}
	return e, Withdrawal{
		Ref: e.Ref, Mode: e.mode, Unsure: e.copies,
		Proven: !l.o.Unproven && e.held && !e.copies && l.proven(),
		Plain:  !e.lasts,
	}, nil
}

// downgraded is begin for a downgrade.
func (l *Lease) downgraded(r Ref) (*entry, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if e := l.entries[r.ID]; e != nil && e.mode.Limit() > 0 {
		return nil, &lock.InvalidError{Field: "mode", Problem: "of a permit cannot become SHARED"}
	}
	return l.enter(r, 0)
}

// Downgrade implements lock.Lease.
func (l *Lease) Downgrade(ctx context.Context, r lock.Resource, id lock.HoldID) error {
	e, err := l.downgraded(Ref{r, id})
	if err != nil {
		return fmt.Errorf("downgrade %q: %w", string(r), err)
	}
	l.trip(ctx)
	err = l.d.Downgrade(ctx, e.Ref)
	l.mu.Lock()
	l.end(e)
	switch {
	case err == nil:
		e.unsure, e.mode = false, lock.Shared
		l.leftOut(e)
	case errors.Is(err, lock.ErrUnavailable):
		e.unanswered()
		e.mode = lock.Shared // it may have done it
		l.leftOut(e)
	case errors.Is(err, lock.ErrNotHolder), errors.Is(err, lock.ErrLeaseLost):
		l.remove(e)
	default: // it stays as it is
		l.leftOut(e)
	}
	l.mu.Unlock()
	if errors.Is(err, lock.ErrLeaseLost) {
		l.Lose()
	}
	if err != nil {
		return fmt.Errorf("downgrade %q: %w", string(r), err)
	}
	return nil
}
