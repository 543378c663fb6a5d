package localapi

import (
	"sync"
	"time"
)

const (
	// shortTrip is how long a receiver may stay with its request before it has to leave
	// receiving to another. Where it stays longer, that happens within twice this time.
	shortTrip = time.Millisecond
	// busyPause is the longest pause between two requests of a client that is busy.
	busyPause = 2 * time.Millisecond
	// fewTicks is how many looks without a receiver to look at end the looking.
	fewTicks = 8
	// watched is for how many requests receiving is passed on at once, while it is seen
	// whether two of them are ever in flight together.
	watched = 64
	// fewHasty and manyHasty are how many trips in a row may end with the next request there
	// already: of a client of which nothing is known, and of one that was seen to be alone.
	fewHasty  = 3
	manyHasty = 1 << 10
)

// turns looks after receivers that make a trip to the store and have kept receiving to
// themselves: mostly the answer is there before another goroutine would have woken up.
// Who needs longer is made to pass receiving on. One ticker does so for all: a timer for
// each would wake a thread, which is what this is to save.
type turns struct {
	run func(func()) // starts a goroutine

	mu       sync.Mutex
	young    []keptTurn // since the last tick
	old      []keptTurn // before it
	watching bool
}

// keptTurn is a receiver that carries out a request.
type keptTurn struct {
	stream *sessionStream
	turn   uint64
}

// add has a receiver looked after.
func (w *turns) add(k keptTurn) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.young = append(w.young, k)
	if !w.watching {
		w.watching = true
		w.run(w.watch)
	}
}

// watch ends when there has been nothing to look at for some time.
func (w *turns) watch() {
	ticker := time.NewTicker(shortTrip)
	defer ticker.Stop()
	var due []keptTurn
	for idle := 0; ; {
		<-ticker.C
		w.mu.Lock()
		due, w.old, w.young = w.old, w.young, due[:0]
		if len(due)+len(w.old) > 0 {
			idle = 0
		} else if idle++; idle > fewTicks {
			w.watching, w.old, w.young = false, nil, nil
			w.mu.Unlock()
			return
		}
		w.mu.Unlock()
		for _, k := range due {
			k.stream.takeTurn(k.turn)
		}
		clear(due)
	}
}

// askers is what is known of who asks on a stream: whether it is one that asks for one
// thing after the other, and so sends nothing before it has its answer.
type askers struct {
	blocked  time.Time // when a request was about to block
	kept     uint64    // the turn in which the receiver has kept receiving to itself
	hasty    int       // such turns in a row after which the next request was there already
	limit    int       // of them
	watch    int       // so many requests pass receiving on at once
	together bool      // two were in flight meanwhile
}

// keep tells whether the receiver, whose turn that is, may keep receiving to itself. flying
// is how many requests are in flight; first, whether it has not asked in this turn.
func (a *askers) keep(turn uint64, flying int, now time.Time) (may, first bool) {
	last := a.blocked
	a.blocked = now
	switch {
	case a.kept == turn: // it makes another trip
		return true, false
	case flying > 1:
		a.together = true
		return false, false
	case a.watch > 1:
		a.watch--
		return false, false
	case a.watch == 1:
		a.watch, a.limit = 0, manyHasty
		if a.together {
			a.limit = fewHasty
		}
	}
	if now.Sub(last) > busyPause {
		return false, false
	}
	a.kept = turn
	return true, true
}

// tripped notes that a trip is over for which receiving was kept, and whether the client's next
// request was there by then: the client may just have been quicker than the receiver.
func (a *askers) tripped(hasty bool) {
	if !hasty {
		a.hasty = 0
	} else if a.hasty++; a.hasty > max(a.limit, fewHasty) {
		a.lookAt()
	}
}

// lookAt has receiving passed on for some time.
func (a *askers) lookAt() { a.hasty, a.watch, a.together = 0, watched, false }

// mayKeep tells whether the receiver goes on receiving after this trip.
func (t *sessionStream) mayKeep(turn uint64) bool {
	t.mu.Lock()
	may, first := t.askers.keep(turn, t.flying, time.Now())
	t.mu.Unlock()
	if first {
		t.turns.add(keptTurn{t, turn})
	}
	return may
}

// takeTurn ends a turn that lasts for too long.
func (t *sessionStream) takeTurn(turn uint64) {
	if t.passTurn(turn) {
		t.mu.Lock()
		t.askers.lookAt()
		t.mu.Unlock()
	}
}
