package localapi

import (
	"context"
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	"github.com/locksidecar/locksidecar/lock"
	"github.com/locksidecar/locksidecar/session"
)

// TestWhoAsksAlone: receiving is kept for a trip where the client is seen to ask for one
// thing after the other, quickly; and not where it is not.
func TestWhoAsksAlone(t *testing.T) {
	now := time.Now()
	turn := uint64(1)
	a := new(askers)
	next := func(flying int, pause time.Duration) bool {
		turn += 2
		now = now.Add(pause)
		may, first := a.keep(turn, flying, now)
		if may != first {
			t.Fatalf("may keep %t, first %t", may, first)
		}
		return may
	}
	const quick = shortTrip // else nobody is quick: the answer takes as long
	if next(1, time.Hour) || next(1, busyPause+1) {
		t.Error("kept for a client that asks seldom")
	}
	if !next(1, quick) {
		t.Error("not kept for one that asks often")
	}
	if !next(1, busyPause) {
		t.Error("not kept for one that is just quick enough")
	}
	if may, first := a.keep(turn, 1, now); !may || first {
		t.Error("not kept for another trip of the request")
	}
	if next(2, quick) {
		t.Error("kept with two in flight")
	}
	hasty := func() (turns int) {
		for next(1, quick) {
			a.tripped(true)
			turns++
		}
		return turns
	}
	for range 3 { // in a row, or they do not count
		for range fewHasty {
			a.tripped(true)
		}
		a.tripped(false)
	}
	if n := hasty(); n != fewHasty+1 {
		t.Errorf("kept for %d turns, though a second request was there after each", n)
	}
	for range watched - 2 {
		if next(2, quick) {
			t.Fatal("kept with two in flight")
		}
	}
	for range watched - 2 {
		if next(1, quick) {
			t.Fatal("kept while it is looked at")
		}
	}
	if n := hasty(); n != fewHasty+1 {
		t.Errorf("kept for %d turns, of a client that asks for two things at a time", n)
	}
	for range watched - 2 {
		next(1, quick)
	}
	next(1, quick)
	next(2, quick) // once is no matter: it was looked at
	if n := hasty(); n != manyHasty+1 {
		t.Errorf("kept for %d turns, of a client that is alone, and quick", n)
	}
}

// held is a store that says when it blocks, and answers to a release as soon as it may.
type held struct {
	lock.Backend
	stuck  atomic.Bool
	asked  chan struct{}
	answer chan struct{}
}

func (b *held) OpenLease(ctx context.Context, o lock.LeaseOptions) (lock.Lease, error) {
	l, err := b.Backend.OpenLease(ctx, o)
	return &heldLease{l, b}, err
}

type heldLease struct {
	lock.Lease
	b *held
}

func (*heldLease) TellsBlocking() bool { return true }

func (l *heldLease) Release(ctx context.Context, r lock.Resource, id lock.HoldID) error {
	lock.Blocking(ctx)
	if l.b.stuck.Load() {
		l.b.asked <- struct{}{}
		<-l.b.answer
	}
	return l.Lease.Release(ctx, r, id)
}

// TestReceivingIsPassedOnInTime: a client that was alone for long sends another request, a
// cancel or its end while the store is silent. Each is seen.
func TestReceivingIsPassedOnInTime(t *testing.T) {
	b := &held{asked: make(chan struct{}, 1), answer: make(chan struct{})}
	s := start(t, func(o *session.Options, _ *Options) {
		b.Backend = o.Backend
		o.Backend = b
	})
	x := s.says(t, opening)
	x.answer()
	pair := func(i int) {
		x.say(fmt.Sprintf(`{"requestId":"a%d","acquire":{"resource":"r"}}`+"\n", i))
		id := x.answer().GetGranted().GetLockId()
		x.say(fmt.Sprintf(`{"requestId":"r%d","release":{"lockId":%q}}`+"\n", i, id))
		if !b.stuck.Load() {
			x.answer()
		}
	}
	for i := range 500 { // the receiver keeps receiving by now
		pair(i)
	}
	for i := range 3 {
		b.stuck.Store(true)
		pair(1000 + i)
		<-b.asked
		x.say(fmt.Sprintf(`{"requestId":"b%d","acquire":{"resource":"other"}}`+"\n", i))
		g := x.answer().GetGranted()
		if g == nil {
			t.Fatal("not granted while the store is silent for another lock")
		}
		b.stuck.Store(false)
		b.answer <- struct{}{}
		x.answer()
		x.say(fmt.Sprintf(`{"requestId":"c%d","release":{"lockId":%q}}`+"\n", i, g.GetLockId()))
		x.answer()
		for j := range 200 {
			pair(2000 + 1000*i + j)
		}
	}
	b.stuck.Store(true)
	pair(9000)
	<-b.asked
	_ = x.c.Close()
	b.stuck.Store(false)
	eventually(t, "the session of who has gone ended", func() bool { return s.manager.Info().Sessions == 0 })
	b.answer <- struct{}{}
}

// TestLookingAtTurnsEnds: nothing ticks while nobody asks.
func TestLookingAtTurnsEnds(t *testing.T) {
	s := start(t)
	watching := func() bool {
		s.server.turns.mu.Lock()
		defer s.server.turns.mu.Unlock()
		return s.server.turns.watching
	}
	s.server.turns.add(keptTurn{new(sessionStream), 1})
	if !watching() {
		t.Error("nobody looks")
	}
	eventually(t, "over", func() bool { return !watching() })
}
