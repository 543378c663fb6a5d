package leasekit

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/locksidecar/locksidecar/lock"
)

// Acquire implements lock.Lease.
func (l *Lease) Acquire(ctx context.Context, q lock.Request) (lock.Grant, error) {
	for {
		e, err := l.begin(Ref{q.Resource, q.ID}, q.Mode)
		if err != nil {
			return lock.Grant{}, err
		}
		missed, woken := l.arm(e)
		a, err := l.d.Ask(ctx, q)
		if err = l.asked(e, a, err); err != nil {
			return lock.Grant{}, err
		}
		if a.Granted {
			return grantOf(q, a.Fence, a.Guard), nil
		}
		p, err := l.wait(ctx, e, woken, missed, a.Recheck)
		if err != nil {
			return lock.Grant{}, err
		}
		if p != nil {
			return grantOf(q, p.Fence, p.Guard), nil
		}
	}
}

func grantOf(q lock.Request, f lock.Fence, g *lock.Guard) lock.Grant {
	return lock.Grant{ID: q.ID, Resource: q.Resource, Mode: q.Mode, Fence: f, Guard: g}
}

// arm prepares to be woken, before the request is sent whose answer may be
// overtaken by a push.
func (l *Lease) arm(e *entry) (missed, woken <-chan struct{}) {
	l.mu.Lock()
	defer l.mu.Unlock()
	e.pushed = nil
	if e.woken == nil {
		e.woken = make(chan struct{})
	}
	return l.missed, e.woken
}

// asked draws the conclusions from the answer to Ask.
func (l *Lease) asked(e *entry, a Answer, err error) error {
	l.end(e, func() {
		switch {
		case err == nil:
			e.stored, e.held, e.unsure = true, a.Granted, false
			if a.Granted {
				e.woken = nil
			}
		case errors.Is(err, lock.ErrUnavailable):
			e.unsure, e.woken = true, nil
		default: // nothing is left
			l.remove(e)
		}
	})
	if errors.Is(err, lock.ErrLeaseLost) {
		l.Lose()
	}
	if err == nil && l.isLost() {
		return lock.ErrLeaseLost
	}
	return err
}

// wait waits in the queue: for a grant that comes by push, for a reason to ask
// again (both results are nil then), or for an end.
func (l *Lease) wait(ctx context.Context, e *entry, woken, missed <-chan struct{}, recheck time.Duration) (*Push, error) {
	if recheck <= 0 || recheck > l.o.Recheck {
		recheck = l.o.Recheck
	}
	// Spread, so that those who wait for one dead holder do not all ask at once.
	t := time.NewTimer(recheck + rand.N(recheck/8+1)) //nolint:gosec // not a secret
	defer t.Stop()
	select {
	case <-woken:
		return l.taken(e), nil
	case <-t.C:
	case <-missed:
	case <-l.lost:
		return nil, lock.ErrLeaseLost
	case <-ctx.Done():
		return nil, l.giveUp(ctx, e)
	}
	return nil, nil //nolint:nilnil // said above
}

// taken takes the grant that has come by push, if one has.
func (l *Lease) taken(e *entry) *Push {
	l.mu.Lock()
	defer l.mu.Unlock()
	p := e.pushed
	if p != nil && !e.revoked {
		e.held, e.pushed = true, nil
		l.touch(e)
		return p
	}
	return nil
}

// giveUp takes the request back whose ctx has ended, and says who was in the way.
func (l *Lease) giveUp(ctx context.Context, e *entry) error {
	cause := context.Cause(ctx)
	w, err := l.withdraw(context.WithoutCancel(ctx), e.Ref)
	if err != nil {
		return fmt.Errorf("acquire %q: give up: %w", string(e.Resource), err)
	}
	w.Status.Resource = e.Resource
	return &lock.HeldError{Cause: cause, Status: w.Status, Position: w.Position}
}

// Release implements lock.Lease.
func (l *Lease) Release(ctx context.Context, r lock.Resource, id lock.HoldID) error {
	w, err := l.withdraw(ctx, Ref{r, id})
	if err == nil && !w.Found {
		err = lock.ErrNotHolder
	}
	if err != nil {
		return fmt.Errorf("release %q: %w", string(r), err)
	}
	return nil
}

func (l *Lease) withdraw(ctx context.Context, r Ref) (Withdrawn, error) {
	e, err := l.begin(r, 0)
	if err != nil {
		return Withdrawn{}, err
	}
	l.mu.Lock()
	how := Withdrawal{Ref: r, Mode: e.mode, Unsure: e.unsure, Proven: e.held && !e.unsure && l.proven()}
	l.mu.Unlock()
	w, err := l.d.Withdraw(ctx, how)
	l.end(e, func() {
		if errors.Is(err, lock.ErrUnavailable) {
			e.unsure = true
		} else {
			l.remove(e)
		}
	})
	if errors.Is(err, lock.ErrLeaseLost) {
		l.Lose()
	}
	return w, err
}

// Downgrade implements lock.Lease.
func (l *Lease) Downgrade(ctx context.Context, r lock.Resource, id lock.HoldID) error {
	e, err := l.begin(Ref{r, id}, 0)
	if err != nil {
		return fmt.Errorf("downgrade %q: %w", string(r), err)
	}
	err = l.d.Downgrade(ctx, e.Ref)
	l.end(e, func() {
		switch {
		case errors.Is(err, lock.ErrUnavailable):
			e.unsure = true
		case errors.Is(err, lock.ErrNotHolder), errors.Is(err, lock.ErrLeaseLost):
			l.remove(e)
		}
		e.mode = lock.Shared // from the first request on that may have done it
	})
	if errors.Is(err, lock.ErrLeaseLost) {
		l.Lose()
	}
	if err != nil {
		return fmt.Errorf("downgrade %q: %w", string(r), err)
	}
	return nil
}
