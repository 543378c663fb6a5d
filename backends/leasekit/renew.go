package leasekit

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/locksidecar/locksidecar/lock"
)

// maxInexact is for how many TTLs the number of entries may be known only
// roughly, because requests are always under way, before everything is compared.
const maxInexact = 3

// maxCounted is for how many TTLs it is enough that the numbers are equal, before
// everything is compared: what the store has lost and what only it has may cancel out.
const maxCounted = 30

// Heartbeat implements lock.Lease.
//
// Model: force.RENEWED, failover.RENEWED.
func (l *Lease) Heartbeat(ctx context.Context) ([]lock.Event, error) {
	if l.isLost() {
		return nil, lock.ErrLeaseLost
	}
	b, err := l.renew(ctx)
	if err != nil {
		return l.standing(), fmt.Errorf("heartbeat: %w", err)
	}
	var vanished []lock.Event
	if l.doubts(b) {
		if vanished, err = l.compare(ctx); err != nil {
			return l.standing(), fmt.Errorf("heartbeat: compare holds: %w", err)
		}
	}
	l.mu.Lock()
	l.renewed = max(l.renewed, b.sent)
	l.mu.Unlock()
	return append(l.standing(), vanished...), nil
}

// beat is one request that renewed the lease.
type beat struct {
	sent           time.Duration
	epoch, removed uint64 // of the lease, when it was sent
	entries        int    // that the store has; negative: it does not say
}

// renew sends one request that renews the lease, with the acknowledgements that are
// due.
//
// Model: force.BEAT, failover.BEAT, failover.RENEW.
func (l *Lease) renew(ctx context.Context) (beat, error) {
	l.mu.Lock()
	acks := l.due()
	b := beat{sent: l.o.Clock(), epoch: l.epoch, removed: l.removed}
	l.mu.Unlock()
	r, err := l.d.Renew(ctx, acks)
	if errors.Is(err, lock.ErrLeaseLost) {
		l.Lose()
		return b, err
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, a := range acks {
		if e := l.entries[a.ID]; err == nil && e != nil && e.grace == a.Grace {
			e.acked = true
		}
	}
	for _, v := range r.Revoked {
		if e := l.entries[v.ID]; e != nil {
			if e.revoked && v.Grace >= e.grace {
				e.acked = false // the store does not have it
			}
			l.revoke(e, v.Grace, v.Vanished)
		} else if l.removed == b.removed { // not released just now: only the store has it
			l.strays[v.ID] = v.Ref
			Ring(l.tidyBell)
		}
	}
	if r.Stranger {
		l.doubt()
		l.stranger = l.doubted
	}
	b.entries = r.Entries
	return b, err
}

// due are the revocations to acknowledge. l.mu is held.
func (l *Lease) due() []Revocation {
	var acks []Revocation
	for _, e := range l.forced {
		if !e.acked && (e.told || !e.held) {
			acks = append(acks, Revocation{Ref: e.Ref, Grace: e.grace})
		}
	}
	return acks
}

// doubts tells whether what the store has must be compared with what the lease
// knows, entry by entry: another server has answered, the numbers differ, or that was
// not done for long.
// Requests that were under way during the heartbeat may or may not be counted,
// and so may holds that are forced, once their grace is over.
func (l *Lease) doubts(b beat) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.miscounts(b) {
		l.doubt()
	}
	return l.doubted > l.settled
}

// doubt notes a reason to compare all. l.mu is held.
func (l *Lease) doubt() {
	l.doubted++
	l.shaken = l.doubted
}

func (l *Lease) miscounts(b beat) bool {
	if b.entries < 0 {
		return false
	}
	least, most := 0, int(l.removed-b.removed) //nolint:gosec // small
	now := l.o.Clock()
	for _, e := range l.entries {
		most++
		if e.stored && !e.unsure && !e.busy && (!e.revoked || now < e.until) && e.touched <= b.epoch {
			least++
		}
	}
	switch {
	case b.entries < least, b.entries > most:
		return true
	case least == most:
		l.exact = b.sent
		return most > 0 && b.sent-l.compared > maxCounted*l.o.TTL
	default:
		return b.sent-l.exact > maxInexact*l.o.TTL
	}
}
