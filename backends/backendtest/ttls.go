package backendtest

import (
	"errors"
	"time"

	"github.com/locksidecar/locksidecar/lock"
)

// ttls are legal times to live, from the shortest to the longest.
var ttls = []time.Duration{lock.MinTTL, 2 * lock.MinTTL, 3 * time.Second, 10 * time.Second, time.Minute, lock.MaxTTL}

// testEveryTTL: a lease of every legal TTL is kept by its heartbeats, and lives
// without them as long as it should, whatever limits the store has of its own. A
// store that cannot have such a lease says so when it is opened.
func testEveryTTL(e *env) {
	b := e.sidecar()
	for _, ttl := range []time.Duration{lock.MinTTL - time.Millisecond, lock.MaxTTL + time.Millisecond} {
		if _, err := b.b.OpenLease(e.ctx, lock.LeaseOptions{TTL: ttl, Sidecar: "odd"}); !errors.Is(err, lock.ErrInvalid) {
			e.Errorf("OpenLease with a TTL of %s: got %v, want ErrInvalid", ttl, err)
		}
	}
	quiet := 2 * e.h.TTL()
	var all []*sidecar
	var held []lock.Grant
	for _, ttl := range ttls {
		s := e.leaseOn(e.open(), ttl)
		if s == nil {
			e.Logf("the store has no leases of %s", ttl)
			continue
		}
		all, held = append(all, s), append(held, e.acquireSoon(s, e.name(ttl.String())))
		if ttl >= 2*quiet {
			s.silence() // it lives longer than the quiet
		}
	}
	time.Sleep(quiet)
	for i, s := range all {
		err := e.answered(func() error { return s.beat(e.ctx) })
		switch {
		case errors.Is(err, lock.ErrLeaseLost) && s.longestPause() >= s.ttl:
			e.Logf("the machine was so busy that a lease of %s ended", s.ttl)
		case err != nil:
			e.Errorf("Heartbeat of a lease of %s after %s: %v", s.ttl, quiet, err)
		default:
			e.stillKept(b, s, held[i])
		}
	}
}

// stillKept: a hold keeps others out, and is released, unless the machine was so busy
// that its lease ended.
func (e *env) stillKept(other, holder *sidecar, g lock.Grant) {
	e.Helper()
	q := request(g.Resource, lock.Exclusive)
	q.Try = true
	stolen, tried := e.try(other, q)
	if tried == nil {
		e.release(other, stolen)
	}
	err := e.tryRelease(holder, g)
	switch {
	case errors.Is(tried, lock.ErrHeld) && err == nil:
	case holder.longestPause() >= holder.ttl, holder.ttl < 3*time.Second && holder.knowsOfLoss(g.ID):
		e.Logf("the machine was so busy that a lease of %s ended", holder.ttl)
	default:
		e.Errorf("a hold on a lease of %s: another try got %v, want ErrHeld; its release: %v", holder.ttl, tried, err)
	}
}

// acquireSoon takes what is free, on a lease that may be so short that the machine
// lets it end.
func (e *env) acquireSoon(s *sidecar, r lock.Resource) lock.Grant {
	e.Helper()
	g, err := e.try(s, request(r, lock.Exclusive)) // until it has been renewed, or has ended
	ended := errors.Is(err, lock.ErrLeaseLost) && s.longestPause() >= s.ttl
	if err != nil && !ended {
		e.Fatalf("Acquire on a lease of %s: %v", s.ttl, s.blame(err))
	}
	return g
}
