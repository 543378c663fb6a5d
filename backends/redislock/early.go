package redislock

import (
	"sync"
	"sync/atomic"

	"github.com/locksidecar/locksidecar/lock"
)

// early has what was asked for and not handed to an app yet, each with the past that was over then (see past). What is granted
// in the store before the next past is over has a fence of that moment. Until the app gets it, another server may have given
// larger ones. So it is asked for once more, for another fence.
type early struct {
	some atomic.Bool // mostly nothing waits
	mu   sync.Mutex
	over map[lock.HoldID]uint64
}

// over is the version of the bucket's past that is over; 0: it is not.
func (d *driver) over(s *slot) uint64 {
	if d.kept(s) > 0 {
		return 0
	}
	return s.past.Load()
}

// is tells that a grant may have a fence from before that past was over.
func (e *early) is(id lock.HoldID, over uint64) bool {
	if over == 0 || !e.some.Load() { // nothing is handed to an app
		return false
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	was, noted := e.over[id]
	return noted && was != over
}

// note notes that it is asked for. first tells that it was not before.
func (e *early) note(id lock.HoldID, over uint64) (first bool) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.over == nil {
		e.over = make(map[lock.HoldID]uint64)
	}
	_, noted := e.over[id]
	e.over[id] = over
	e.some.Store(true)
	return !noted
}

func (e *early) forget(id lock.HoldID) {
	if !e.some.Load() {
		return
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	delete(e.over, id)
	if len(e.over) == 0 {
		e.over = nil
		e.some.Store(false)
	}
}
