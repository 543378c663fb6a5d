package tables

import (
	"time"

	"github.com/locksidecar/locksidecar/lock"
)

// entry is what the lease knows of one hold or waiter of its own.
type entry struct {
	resource lock.Resource
	mode     lock.Mode
	guard    *lock.Guard
	settled  bool          // the store said that it is held
	unsure   bool          // a request on it had no answer, so a copy may still arrive
	waiting  int           // calls of Acquire that wait in the queue
	fence    int64         // of the grant, as the store counts; 0 before
	out      bool          // it was released, or forced out of the queue, while Acquire was at work
	woken    chan struct{} // closed when fence or out is set; nil while nobody waits

	revoked bool          // its release is forced
	until   time.Duration // end of the grace, on the clock; 0: there was none
}

// wake tells the waiting Acquire, with the lease locked.
func (e *entry) wake() {
	if e.woken != nil {
		close(e.woken)
		e.woken = nil
	}
}

// entryOf finds or makes the entry of a request.
func (l *lease) entryOf(q lock.Request) (e *entry, isNew bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if e = l.entries[q.ID]; e == nil {
		e = &entry{resource: q.Resource, mode: q.Mode, guard: l.b.guard(q.Resource, q.ID, q.Mode)}
		l.entries[q.ID] = e
		return e, true
	}
	return e, false
}

func (l *lease) forget(id lock.HoldID) {
	l.mu.Lock()
	delete(l.entries, id)
	l.mu.Unlock()
}

// unsure notes that a request on an entry had no answer.
func (l *lease) unsure(e *entry) {
	l.mu.Lock()
	e.unsure = true
	l.mu.Unlock()
}

// granted takes the news that a waiter was granted.
func (l *lease) granted(id lock.HoldID, fence int64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if e := l.entries[id]; e != nil { // else it was given up at the same time, and its release is on the way
		e.fence = fence
		e.wake()
	}
}

// putOut takes the news that a waiter was taken out of the queue.
func (l *lease) putOut(id lock.HoldID) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if e := l.entries[id]; e != nil && !e.settled {
		e.out = true
		e.wake()
	}
}

// waitingFor are the resources that the lease waits for.
func (l *lease) waitingFor() []string {
	l.mu.Lock()
	defer l.mu.Unlock()
	seen := make(map[lock.Resource]bool)
	var names []string
	for _, e := range l.entries {
		if e.waiting > 0 && e.fence == 0 && !seen[e.resource] {
			seen[e.resource] = true
			names = append(names, string(e.resource))
		}
	}
	return names
}
