package embedded

import (
	"container/heap"
	"time"

	"github.com/locksidecar/locksidecar/backends/leasekit"
	"github.com/locksidecar/locksidecar/lock"
)

// recordCheck is how often records that are over are looked for while there are any.
const recordCheck = time.Second

// ending is something that ends by itself at a moment on the store's clock.
type ending struct {
	at    time.Duration
	over  func(now time.Duration)
	place int // in endings, from 1; 0: it is not there
}

// endings is a heap with what ends first on top.
type endings []*ending

func (h endings) Len() int           { return len(h) }
func (h endings) Less(i, j int) bool { return h[i].at < h[j].at }
func (h endings) Swap(i, j int) {
	h[i], h[j] = h[j], h[i]
	h[i].place, h[j].place = i+1, j+1
}

// Push implements heap.Interface.
func (h *endings) Push(x any) {
	e := x.(*ending)
	*h = append(*h, e)
	e.place = len(*h)
}

// Pop implements heap.Interface.
func (h *endings) Pop() any {
	old := *h
	e := old[len(old)-1]
	old[len(old)-1] = nil
	*h = old[:len(old)-1]
	e.place = 0
	return e
}

func (h *endings) cancel(e *ending) {
	if e.place > 0 {
		heap.Remove(h, e.place-1)
	}
}

// set sets or moves the moment of an end.
func (h *endings) set(e *ending, at time.Duration) {
	e.at = at
	if e.place == 0 {
		heap.Push(h, e)
	} else {
		heap.Fix(h, e.place-1)
	}
}

// endsAt sets or moves the moment of an end.
func (s *Store) endsAt(e *ending, at time.Duration) {
	s.endings.set(e, at)
	if e.place == 1 { // it is next: the timer may be too late
		s.ring()
	}
}

// ring makes expire look again.
func (s *Store) ring() {
	leasekit.Ring(s.bell)
}

// endsBy is endsAt, unless it ends sooner already.
func (s *Store) endsBy(e *ending, at time.Duration) {
	if e.place == 0 || at < e.at {
		s.endsAt(e, at)
	}
}

// pop ends what is first, if it is over.
func (h *endings) pop(now time.Duration) bool {
	if len(*h) == 0 || now < (*h)[0].at {
		return false
	}
	heap.Pop(h).(*ending).over(now)
	return true
}

// sweep ends what is over.
//
// Model: lease.EXPIRE, force.HANDON.
func (s *Store) sweep(now time.Duration) {
	for s.endings.pop(now) {
	}
}

// expire ends what is over even when nobody calls, and grants what was left. It runs
// from New to Close.
func (s *Store) expire(alarm *lock.Alarm) {
	defer close(s.stopped)
	defer alarm.Close()
	for {
		select {
		case <-s.stop:
			return
		case <-s.bell:
		case <-alarm.C:
		}
		s.mu.Lock()
		now := s.clock()
		s.sweep(now)
		s.step(now)
		s.forget(now)
		switch {
		case len(s.records) > 0 && (len(s.endings) == 0 || s.endings[0].at-now > recordCheck):
			alarm.Reset(recordCheck)
		case len(s.endings) > 0:
			alarm.Reset(s.endings[0].at - now)
		default:
			alarm.Stop()
		}
		s.mu.Unlock()
	}
}
