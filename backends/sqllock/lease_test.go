package sqllock

import (
	"slices"
	"testing"

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
