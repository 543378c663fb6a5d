// Package schedule makes up what happens in a run from a seed: the same seed, the same
// faults at the same moments.
package schedule

import (
	"fmt"
	"math/rand/v2"
	"time"
)

// What can be done. An App, a Side, its Road to the store, the Store: to each one
// thing at a time, and to all of them side by side.
const (
	FreezeApp Kind = "freeze app" // SIGSTOP, then SIGCONT
	KillApp   Kind = "kill app"   // SIGKILL; another life begins

	FreezeSide Kind = "freeze sidecar"
	KillSide   Kind = "kill sidecar" // and it is started again
	StopSide   Kind = "stop sidecar" // SIGTERM, and it is started again

	Cut          Kind = "cut"           // connections end, and none can be made
	Sever        Kind = "sever"         // connections end
	HoldAll      Kind = "hold all"      // nothing passes
	HoldRequests Kind = "hold requests" // nothing passes to the store
	HoldReplies  Kind = "hold replies"  // nothing passes from the store
	Delay        Kind = "delay"         // all that passes is late
	Mute         Kind = "mute"          // pushes do not pass

	PauseStore   Kind = "pause store"
	RestartStore Kind = "restart store"  // kill -9; it keeps what it has acknowledged
	EmptyStore   Kind = "empty store"    // kill -9; it keeps nothing
	PauseNode    Kind = "pause node"     // one of many
	RestartNode  Kind = "restart node"   // one of many; it keeps its data
	FailOver     Kind = "fail over"      // the replica takes over
	LoseOver     Kind = "fail over late" // the replica takes over, and knows nothing
	ShiftClock   Kind = "shift clock"    // of the store, for good

	Force Kind = "force" // an administrator takes a hold from its holder, or a waiter out of the queue
)

// Kind is a kind of fault.
type Kind string

// Fault is one thing that is done.
type Fault struct {
	Kind   Kind
	At     time.Duration // since the beginning
	For    time.Duration // how long it lasts; 0: it is over at once
	Amount time.Duration // the delay, the grace, the shift of the clock
	Pick   int           // which of the nodes, locks and holders: modulo how many there are
}

func (f Fault) String() string {
	s := fmt.Sprintf("%s after %s", f.Kind, f.At)
	if f.For != 0 {
		s += fmt.Sprintf(" for %s", f.For)
	}
	if f.Amount != 0 {
		s += fmt.Sprintf(" by %s", f.Amount)
	}
	return s
}

// Options are what a schedule is made for.
type Options struct {
	Seed  uint64
	For   time.Duration // how long faults begin
	TTL   time.Duration // of the leases
	Apps  int
	Sides int
	Roads bool          // each sidecar has a road to its store
	Mute  bool          // pushes go over connections of their own
	Store []Kind        // what the store can take
	Shift time.Duration // the clock jumps by at most so much ahead; and only back where it is negative
	// Outages: more than half of what cuts a road off, or stops the store, lasts for longer than a TTL, and all else happens
	// less often, so that holds live as long. For shards, of which one that is away is given up.
	Outages bool
}

// Schedule is what happens: to each app, sidecar and road, to the store, and by the
// administrator, each in the order of time and one after the other.
type Schedule struct {
	Apps, Sides, Roads [][]Fault
	Store, Admin       []Fault
}

// Make makes up a schedule.
func Make(o Options) Schedule {
	var s Schedule
	long := o.TTL * 7 / 4 // a freeze or a cut that may outlast a lease
	rest := time.Duration(1)
	if o.Outages {
		rest = 4
	}
	lane := uint64(0)
	next := func() *maker {
		lane++
		return &maker{rand: rand.New(rand.NewPCG(o.Seed, lane)), end: o.For} //nolint:gosec // a schedule that can be made again
	}
	for range o.Apps {
		m := next()
		s.Apps = append(s.Apps, m.faults(300*time.Millisecond, rest*2500*time.Millisecond, func() Fault {
			if m.chance(40) {
				return Fault{Kind: KillApp, For: m.upTo(300 * time.Millisecond)}
			}
			return Fault{Kind: FreezeApp, For: m.shortOr(long)}
		}))
	}
	for range o.Sides {
		m := next()
		s.Sides = append(s.Sides, m.faults(o.TTL/2, rest*3*o.TTL, func() Fault {
			switch n := m.rand.IntN(100); {
			case n < 30:
				return Fault{Kind: KillSide, For: m.upTo(o.TTL)}
			case n < 45:
				return Fault{Kind: StopSide, For: m.upTo(o.TTL / 2)}
			default:
				return Fault{Kind: FreezeSide, For: m.shortOr(long)}
			}
		}))
		if !o.Roads {
			continue
		}
		m = next()
		s.Roads = append(s.Roads, m.faults(o.TTL/4, 2*o.TTL, func() Fault {
			kinds := []Kind{Cut, HoldAll, HoldRequests, HoldReplies, HoldReplies, Sever, Delay, Delay}
			const outages = 4 // the first ones
			if o.Mute {
				kinds = append(kinds, Mute)
			}
			if o.Outages && m.chance(60) {
				return Fault{Kind: kinds[m.rand.IntN(outages)], For: m.outage(o.TTL)}
			}
			f := Fault{Kind: kinds[m.rand.IntN(len(kinds))], For: m.shortOr(long)}
			switch f.Kind {
			case Sever:
				f.For = 0
			case Delay:
				f.Amount = 5*time.Millisecond + m.upTo(o.TTL/10)
			default:
			}
			return f
		}))
	}
	if m := next(); len(o.Store) > 0 {
		s.Store = m.faults(o.TTL, 3*o.TTL, func() Fault {
			f := Fault{Kind: o.Store[m.rand.IntN(len(o.Store))], Pick: m.rand.Int()}
			switch f.Kind {
			case ShiftClock:
				f.Amount = -m.upTo(o.Shift.Abs())
				if o.Shift > 0 && m.chance(50) {
					f.Amount = -f.Amount
				}
			case FailOver, LoseOver:
			default:
				f.For = m.shortOr(long)
				if o.Outages && m.chance(50) {
					f.For = m.outage(o.TTL)
				}
			}
			return f
		})
	}
	m := next()
	s.Admin = m.faults(50*time.Millisecond, rest*rest*500*time.Millisecond, func() Fault {
		graces := []time.Duration{0, 50 * time.Millisecond, 300 * time.Millisecond, o.TTL}
		return Fault{Kind: Force, Amount: graces[m.rand.IntN(len(graces))], Pick: m.rand.Int()}
	})
	return s
}

// maker makes up the faults of one lane.
type maker struct {
	rand *rand.Rand
	end  time.Duration
}

// faults makes faults with pauses between them, until the end.
func (m *maker) faults(least, most time.Duration, one func() Fault) []Fault {
	var all []Fault
	for at := least + m.upTo(most-least); at < m.end; {
		f := one()
		f.At = at
		f.For = min(f.For, m.end-at)
		all = append(all, f)
		at += f.For + least + m.upTo(most-least)
	}
	return all
}

func (m *maker) chance(percent int) bool { return m.rand.IntN(100) < percent }

func (m *maker) upTo(d time.Duration) time.Duration { return time.Duration(m.rand.Int64N(int64(d))) }

// shortOr is a short time, or one of up to d.
func (m *maker) shortOr(d time.Duration) time.Duration {
	if m.chance(50) {
		return 10*time.Millisecond + m.upTo(d/4)
	}
	return m.upTo(d)
}

// outage is a time of one to three TTLs.
func (m *maker) outage(ttl time.Duration) time.Duration { return ttl + m.upTo(2*ttl) }
