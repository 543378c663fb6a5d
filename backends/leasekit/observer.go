package leasekit

import (
	"context"
	"math"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/locksidecar/locksidecar/lock"
)

// This file is about who notices that a lease is over, on a store whose clock ends none.
//
// Each heartbeat gives a lease another beat. An observer notes, on its own clock, when it
// had read a beat for the first time. When the beat has stood still for the TTL of the lease,
// the observer ends the lease, if the store still has that beat. So of several observers
// one succeeds, and one that was frozen, or whose look is old, ends no lease that was
// renewed meanwhile. The holder counts its TTL from before it sent the heartbeat. That came
// first, so the holder knows first, whatever clocks say.
//
// The keeper is the sidecar that observes all leases. The store has who that is, and a
// number that changes with each of its rounds. The answers of heartbeats have both: so the
// others observe the keeper without a request of their own. The first of them that has
// heard of the same round again, and of no other for the keeper's TTL, takes its place. Whoever
// has heard of a round only once does not doubt the keeper, however far apart its heartbeats
// are. Who waits for a resource observes the leases in its way itself, so a holder that ends
// together with the keeper is noticed as soon.

const (
	// Leases are observed a few times a TTL of the shortest, but no more often than every
	// LeastRound, nor, where they are many, than roundForEach a lease.
	LeastRound   = 50 * time.Millisecond
	roundForEach = 2 * time.Millisecond
	// silentRounds is how many of its longest pauses a keeper may be silent for, if its TTL
	// is not shorter.
	silentRounds = 3
)

// Beat is the heartbeat of a lease that the store has.
type Beat struct {
	Lease  string
	TTL    time.Duration
	Number int64 // another one with each heartbeat
}

// KeeperRound is a round of the keeper, as the store has the last one.
type KeeperRound struct {
	Lease string        // empty: nobody does
	TTL   time.Duration // of its lease
	Round int64         // another one with each of its rounds
	Over  bool          // its lease is known to be over
}

// Observed is what an Observer asks its store for. After an error the outcome is open: it
// asks again.
type Observed interface {
	// TakeOver makes the lease the keeper, if the store still has what seen says. It gives
	// who is the keeper then.
	TakeOver(ctx context.Context, seen KeeperRound) (KeeperRound, error)

	// Round begins a round of the keeper, if the lease still is the keeper, and then calls
	// saw for each lease that is not over, its own too. It gives who is the keeper.
	Round(ctx context.Context, seen KeeperRound, saw func(Beat)) (KeeperRound, error)

	// End ends a lease for good, if it still has that beat.
	End(ctx context.Context, b Beat) error
}

// ObserverOptions are what an Observer is made with.
type ObserverOptions struct {
	ID        string // of its lease
	TTL       time.Duration
	Clock     lock.Clock
	MostRound time.Duration // the longest pause between two rounds
}

// Observer ends the leases of others that are over, and is the keeper where it has to.
// There is one for each lease.
type Observer struct {
	o    ObserverOptions
	from Observed
	bell chan struct{} // has a value when there is something for Run

	mu     sync.Mutex
	seen   map[string]*sight // of each lease that is observed
	keeper KeeperRound
	since  time.Duration // when this round of the keeper was seen for the first time
	vacant time.Duration // from when on somebody else has to be the keeper; never: it lives
}

const never = time.Duration(math.MaxInt64)

// sight is a beat, and when the reads that showed it for the first time and for the last time
// were over.
type sight struct {
	Beat
	since, last time.Duration
}

// over is when the lease is over, if that is its last beat.
func (s *sight) over() time.Duration { return s.since + max(s.TTL, lock.MinTTL) }

// NewObserver makes an Observer, for Run to run.
func NewObserver(from Observed, o ObserverOptions) *Observer {
	return &Observer{o: o, from: from, bell: make(chan struct{}, 1), seen: make(map[string]*sight), vacant: never}
}

// Saw notes a beat that was read just now.
func (o *Observer) Saw(b Beat) {
	now := o.o.Clock()
	o.mu.Lock()
	defer o.mu.Unlock()
	s, known := o.seen[b.Lease]
	if known && s.Number == b.Number {
		s.last = now
	} else {
		s = &sight{Beat: b, since: now, last: now}
		o.seen[b.Lease] = s
	}
	if !known || now >= s.over() {
		Ring(o.bell)
	}
}

// Forget forgets the beats that were read so far: the store went back, and may give their numbers again.
func (o *Observer) Forget() {
	o.mu.Lock()
	defer o.mu.Unlock()
	clear(o.seen)
}

// SawKeeper notes who is the keeper, as the answer of a heartbeat says. Who is the keeper
// itself learns with its next round whether it still is: an answer may be late.
func (o *Observer) SawKeeper(k KeeperRound) {
	now := o.o.Clock()
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.keeper.Lease == o.o.ID {
		return
	}
	was := o.vacant
	switch {
	case k.Lease == "" || k.Over:
		o.vacant = now
	case k.Lease != o.keeper.Lease || k.Round != o.keeper.Round:
		o.since, o.vacant = now, never
	default:
		o.vacant = o.since + min(k.TTL, silentRounds*o.o.MostRound)
	}
	o.keeper = k
	if o.vacant < was || k.Lease == o.o.ID { // it took the place, and had no answer
		Ring(o.bell)
	}
}

// Keeps gives the keeper as it was seen, and whether that is this lease.
func (o *Observer) Keeps() (KeeperRound, bool) {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.keeper, o.keeper.Lease == o.o.ID
}

// Run observes until ctx ends.
func (o *Observer) Run(ctx context.Context) {
	var round time.Duration // when the next one is due
	t := time.NewTimer(0)
	defer t.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-o.bell:
		case <-t.C:
		}
		next := o.takeOver(ctx)
		if _, keeps := o.Keeps(); keeps { // a round before what is over: it may show another beat
			if o.o.Clock() >= round {
				round = o.o.Clock() + o.round(ctx)
			}
			next = round
		}
		t.Reset(max(0, min(next, o.endOver(ctx))-o.o.Clock()))
	}
}

// takeOver makes this lease the keeper if there has to be another one, and says when there
// may have to be. Where that fails, the next heartbeat tells who is.
func (o *Observer) takeOver(ctx context.Context) (next time.Duration) {
	o.mu.Lock()
	seen, vacant := o.keeper, o.vacant
	if o.o.Clock() < vacant || seen.Lease == o.o.ID {
		o.mu.Unlock()
		return vacant
	}
	o.vacant = never
	o.mu.Unlock()
	if k, err := o.from.TakeOver(ctx, seen); err == nil {
		o.isKeeper(k)
	}
	return never
}

// isKeeper notes who is the keeper, as the answer to a request of its own says.
func (o *Observer) isKeeper(k KeeperRound) {
	now := o.o.Clock()
	o.mu.Lock()
	o.keeper, o.since, o.vacant = k, now, never
	o.mu.Unlock()
}

// round is one of the keeper's. pause is the time until the next one.
func (o *Observer) round(ctx context.Context) (pause time.Duration) {
	seen, _ := o.Keeps()
	shortest, others := o.o.TTL, 0
	k, err := o.from.Round(ctx, seen, func(b Beat) {
		o.Saw(b)
		shortest = min(shortest, max(b.TTL, lock.MinTTL))
		if b.Lease != o.o.ID {
			others++
		}
	})
	if err != nil {
		return LeastRound // not all was seen, and time goes on
	}
	o.isKeeper(k)
	switch {
	case k.Lease != o.o.ID:
		return 0
	case others == 0:
		pause = min(o.o.TTL/2, o.o.MostRound)
	default:
		pause = min(max(shortest/4, LeastRound, time.Duration(others)*roundForEach), o.o.MostRound)
	}
	return pause - rand.N(pause/8) //nolint:gosec // not a secret
}

// endOver ends the leases whose beat has not changed for their TTL, and says when the next
// one may be over. Whether the store has ended it or not, a lease is forgotten then: it is
// read again if it lives.
func (o *Observer) endOver(ctx context.Context) (next time.Duration) {
	over, next := o.over()
	for _, s := range over {
		o.mu.Lock()
		stands := o.seen[s.Lease] == s
		o.mu.Unlock()
		if !stands { // another beat was seen meanwhile, or all are forgotten
			continue
		}
		if err := o.from.End(ctx, s.Beat); err != nil { // the others fail, too
			return min(next, o.o.Clock()+LeastRound)
		}
		o.mu.Lock()
		if o.seen[s.Lease] == s {
			delete(o.seen, s.Lease)
		}
		o.mu.Unlock()
	}
	return next
}

// over gives the leases that may be over, and when the next one may be. One whose beat was read
// only once may have another one by now, as most have where the keeper rests for longer than
// their TTL. The next look tells, or nobody looks at it any more: then it is forgotten.
func (o *Observer) over() (over []*sight, next time.Duration) {
	now := o.o.Clock()
	next = now + o.o.TTL
	o.mu.Lock()
	defer o.mu.Unlock()
	for id, s := range o.seen {
		at, again := s.over(), s.over()+2*o.o.MostRound
		switch {
		case now < at:
			next = min(next, at)
		case s.last > s.since:
			over = append(over, s)
		case now < again:
			next = min(next, again)
		default:
			delete(o.seen, id)
		}
	}
	return over, next
}
