package sqllock

import (
	"testing"
	"time"

	"github.com/locksidecar/locksidecar/lock"
)

// While an app keeps a row locked, sidecars find again and again that the grace of its hold is over,
// and administrators force it more than once: what is to be done waits once. A shorter grace counts.
func TestLockedRowGathersNothing(t *testing.T) {
	b := &Backend{desks: make(map[lock.Resource]*desk), clock: lock.BootTime}
	d, _ := b.enter("r", []*op{{kind: opAsk, id: "waits"}})
	for range 100 {
		b.post("r", &op{kind: opEnd, id: "held"})
		b.post("r", &op{kind: opSettle})
		for _, grace := range []time.Duration{time.Hour, 0, time.Minute} {
			b.post("r", &op{kind: opForce, id: "held", grace: grace})
		}
	}
	kinds, least := make(map[opKind]int), time.Hour
	for _, o := range d.waiting {
		kinds[o.kind]++
		if o.kind == opForce {
			least = min(least, o.grace)
		}
	}
	if kinds[opAsk] != 1 || kinds[opEnd] != 1 || kinds[opSettle] != 1 || kinds[opForce] > 3 || least != 0 {
		t.Errorf("there wait %v, and the shortest grace is %s", kinds, least)
	}
}
