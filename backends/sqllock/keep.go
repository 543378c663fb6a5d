package sqllock

import (
	"context"
	"errors"
	"time"

	"github.com/locksidecar/locksidecar/backends/leasekit"
	"github.com/locksidecar/locksidecar/lock"
)

// This file is about foreign locks from their grant to their end: how heartbeats make
// them last, what follows when one is lost, and how they are given back when a hold has
// ended by itself.

const (
	// giveAgain is when a foreign lock is given back once more that could not be.
	giveAgain = 100 * time.Millisecond
	giveTime  = time.Second
)

// Renew implements leasekit.Driver.
func (d *doubles) Renew(ctx context.Context, acks []leasekit.Revocation) (leasekit.Renewal, error) {
	d.mu.Lock()
	sent := d.now()
	d.beat = sent
	d.mu.Unlock()
	r, err := d.engine.Renew(ctx, acks)
	if err != nil {
		return r, err
	}
	for _, a := range acks {
		d.giveLater(a.ID, d.now()+a.Grace)
	}
	for _, v := range r.Revoked {
		d.isForced(v.ID)
		if v.Grace == 0 {
			d.giveLater(v.ID, d.now())
		}
	}
	if err := d.keep(ctx, sent); err != nil {
		return r, err
	}
	d.mu.Lock()
	r.Revoked = append(r.Revoked, d.untold...)
	d.untold = nil
	d.mu.Unlock()
	return r, nil
}

var errSilent = errors.New("there is no sign of a lock that others use too")

// keep makes all foreign locks last, for a heartbeat that was sent at that time. One of
// which there is no sign for half a TTL is lost, so that it does not cost the lease: also
// where there are more than there is time for. Where no heartbeat came for a whole TTL, and
// foreign locks went by themselves, strangers have taken the lease for over, and so it is:
// lock.ErrLeaseLost.
func (d *doubles) keep(ctx context.Context, sent time.Duration) error {
	select { // what the heartbeat before this one is at need not be done twice
	case d.keeping <- struct{}{}:
		defer func() { <-d.keeping }()
	case <-ctx.Done():
		return d.engine.b.unavailable("heartbeat", errSilent)
	}
	if d.over { // since this one was answered
		return lock.ErrLeaseLost
	}
	d.mu.Lock()
	late := d.lapsed || sent >= d.renewed+d.engine.ttl
	var holds []leasekit.Ref
	for _, h := range d.holds {
		if h.taken && !h.lost && h.proven < sent {
			holds = append(holds, h.Ref)
		}
	}
	d.mu.Unlock()
	d.engine.mu.Lock()
	server := d.engine.server
	d.engine.mu.Unlock()
	kept, lost := d.f.Keep(ctx, server, holds)
	if late && len(lost) > 0 {
		if err := d.engine.over(ctx, d.engine.b.pool, expired); err != nil {
			return d.engine.b.unavailable("heartbeat", err)
		}
		d.over = true
		return lock.ErrLeaseLost
	}
	for _, id := range lost {
		d.lose(id)
	}
	d.mu.Lock()
	d.renewed, d.lapsed = max(d.renewed, sent), false
	for id, from := range kept {
		if h := d.holds[id]; h != nil {
			h.proven = max(h.proven, from)
		}
	}
	var silent []lock.HoldID
	var err error
	for _, r := range holds {
		h := d.holds[r.ID]
		switch {
		case h == nil || !h.taken || h.lost || h.proven >= sent:
		case d.now() >= h.proven+d.engine.ttl/2:
			silent = append(silent, r.ID)
		default:
			err = d.engine.b.unavailable("heartbeat", errSilent)
		}
	}
	d.mu.Unlock()
	for _, id := range silent {
		d.lose(id)
	}
	return err
}

// vanished is told that the foreign lock of a hold was taken away. Where the lease was not
// renewed for a TTL, others may end it: then the lock goes with the lease, or the next
// heartbeat finds that it is gone.
func (d *doubles) vanished(id lock.HoldID) {
	d.mu.Lock()
	late := d.lapsed || d.now() >= d.renewed+d.engine.ttl
	d.mu.Unlock()
	if !late {
		d.lose(id)
	}
}

// lose takes note that the foreign lock of a hold was taken away. Its app is told at
// once, and then the engine's hold is ended.
func (d *doubles) lose(id lock.HoldID) {
	d.mu.Lock()
	h, push := d.holds[id], d.push
	if h == nil || !h.taken || h.lost {
		if h != nil {
			h.doubt = true
		}
		d.mu.Unlock()
		return
	}
	h.lost = true
	if push == nil { // the lease has just started
		d.untold = append(d.untold, leasekit.Revocation{Ref: h.Ref, Vanished: true})
	}
	d.mu.Unlock()
	if push != nil { // within the process, so it is not lost
		push(leasekit.Push{Kind: leasekit.Revoked, Ref: h.Ref, Vanished: true})
	}
	d.giveLater(id, d.now())
}

// wake has a waiter ask again.
func (d *doubles) wake(id lock.HoldID) {
	d.mu.Lock()
	push := d.push
	d.mu.Unlock()
	if push != nil {
		push(leasekit.Push{Kind: leasekit.Woken, Ref: leasekit.Ref{ID: id}})
	}
}

// giveLater has the foreign lock of a hold given back at that time, if there is one.
// The earliest time counts.
func (d *doubles) giveLater(id lock.HoldID, at time.Duration) {
	d.mu.Lock()
	defer d.mu.Unlock()
	h := d.holds[id]
	if h == nil || h.due != 0 && h.due <= at {
		return
	}
	h.due = at
	d.dues[id] = h
	leasekit.Ring(d.some)
}

// chores gives back what is due, and all when the lease was not renewed for a TTL, until
// ctx ends.
func (d *doubles) chores(ctx context.Context) {
	t := time.NewTimer(0)
	defer t.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-d.some:
		case <-t.C:
		}
		due, next, lapse := d.due()
		if lapse && !d.lapse() {
			next = min(next, d.now()+giveAgain)
		}
		for h, asked := range due {
			limit, cancel := context.WithTimeout(ctx, giveTime)
			err := d.endUnless(limit, h, asked)
			cancel()
			if err != nil {
				d.giveLater(h.ID, d.now()+giveAgain)
			}
		}
		t.Reset(max(0, next-d.now()))
	}
}

// lapse ends what lasts for longer than the lease, if that was still not renewed. It does
// nothing while a heartbeat is at it, which may be about to say that all is there.
func (d *doubles) lapse() (done bool) {
	select {
	case d.keeping <- struct{}{}:
		defer func() { <-d.keeping }()
	default:
		return false
	}
	d.mu.Lock()
	over := d.now() >= d.renewed+d.engine.ttl
	d.lapsed = d.lapsed || over
	d.mu.Unlock()
	if over {
		d.f.Lapse()
	}
	return true
}

// due takes what is to be given back now, with the number of times that it was asked
// for so far, and tells when the next one is, and whether the lease was not renewed for a
// TTL.
func (d *doubles) due() (now map[*double]int, next time.Duration, lapse bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	now, next = make(map[*double]int), d.renewed+d.engine.ttl
	if lapse = d.now() >= next; lapse {
		next = d.now() + d.engine.ttl
	}
	for id, h := range d.dues {
		if h.due > d.now() {
			next = min(next, h.due)
			continue
		}
		now[h] = h.asked
		h.due = 0
		delete(d.dues, id)
	}
	return now, next, lapse
}

// end gives the foreign lock of a hold back that is over. Where that was lost, the
// engine's hold is ended, too.
func (d *doubles) end(ctx context.Context, h *double) error { return d.endUnless(ctx, h, -1) }

// endUnless leaves a hold alone that was asked for again.
func (d *doubles) endUnless(ctx context.Context, h *double, asked int) error {
	h.turn.Lock()
	defer h.turn.Unlock()
	d.mu.Lock()
	lost, again := h.lost, asked >= 0 && h.asked != asked
	released := h.released && !h.forced && !lost
	if !again || lost {
		h.taken = false
	}
	d.mu.Unlock()
	if again && !lost {
		return nil
	}
	give := d.f.Give
	if f, lasts := d.f.(Lasting); lasts && released {
		give = f.Leave
	}
	if err := give(ctx, h.Ref); err != nil {
		return err
	}
	if lost {
		if _, err := d.engine.Withdraw(ctx, leasekit.Withdrawal{Ref: h.Ref, Mode: h.mode}); err != nil {
			return err
		}
	}
	d.forget(h)
	return nil
}

// forget forgets a hold.
func (d *doubles) forget(h *double) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.holds[h.ID] == h {
		delete(d.holds, h.ID)
		delete(d.dues, h.ID)
	}
}
