package sqllock

import (
	"slices"
	"testing"
	"time"

	"github.com/locksidecar/locksidecar/lock"
)

// A waiter that asks again is looked for where it was: those who are granted are among the
// first, of whom one look reads so many.
func TestTurnIsKept(t *testing.T) {
	l := &lease{b: new(Backend), waiting: make(map[lock.HoldID]waiter), waits: make(chan struct{}, 1)}
	for _, id := range []lock.HoldID{"a", "b", "c", "a"} {
		l.waitsFor(lock.Request{ID: id, Resource: "r", Mode: lock.Shared}, l.stopWaiting(id))
	}
	if _, shared := l.waitingFor(); !slices.Equal(shared["r"], []string{"a", "b", "c"}) {
		t.Errorf("looked for in the order %v", shared["r"])
	}
}

// When a resource is kept no longer is known only as long as somebody waits for it: there may be thousands of
// them, and each may be kept for a day.
func TestNoLapseWithoutWaiter(t *testing.T) {
	b := &Backend{clock: func() time.Duration { return 0 }}
	l := &lease{b: b, waiting: make(map[lock.HoldID]waiter), lapses: make(map[lock.Resource]time.Duration), waits: make(chan struct{}, 1)}
	for _, name := range []lock.Resource{"waits", "gone"} {
		l.waitsFor(lock.Request{ID: lock.HoldID(name), Resource: name, Mode: lock.Exclusive}, 0)
		l.lapsesIn(name, time.Hour)
	}
	l.stopWaiting("gone")
	l.waitingFor()
	if len(l.lapses) != 1 || l.lapses["waits"] != time.Hour {
		t.Errorf("known are %v", l.lapses)
	}
}
