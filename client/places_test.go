package client

import (
	"fmt"
	"slices"
	"testing"
)

// queue asks for resources without a sidecar.
type queue struct {
	acquires
	t *testing.T
}

func (q *queue) ask(resource string, sent bool) *call {
	q.t.Helper()
	c := newCall()
	c.acquire, c.resources = true, []string{resource}
	if q.enter(c) != sent {
		q.t.Fatalf("an acquire for %s is sent at once: %t", resource, !sent)
	}
	return c
}

// goes checks which acquires there is room for.
func (q *queue) goes(why string, want ...*call) {
	q.t.Helper()
	var got []*call
	for c := q.next(); c != nil; c = q.next() {
		got = append(got, c)
	}
	if !slices.Equal(got, want) {
		q.t.Fatalf("%s: %d acquires are sent, and not just these %d", why, len(got), len(want))
	}
}

// TestPlacesInTheQueue: what nobody asks for gets through before those who came earlier.
func TestPlacesInTheQueue(t *testing.T) {
	q := &queue{t: t}
	var busy, others []*call
	for range 799 {
		busy = append(busy, q.ask("busy", true))
	}
	for i := range 201 {
		others = append(others, q.ask(fmt.Sprint(i), true))
	}
	waits := []*call{q.ask("busy", false), q.ask("0", false), q.ask("free", false), q.ask("1", false)}
	q.answered(busy[0])
	q.goes("nobody asks for it", waits[2])
	q.answered(busy[1])
	q.goes("all are asked for")
	late := q.ask("late", true)
	last := q.ask("last", false) // there is no room at all
	q.answered(busy[2])
	q.goes("there is room again", last)
	q.answered(late)
	q.goes("all are asked for")
	q.answered(others[1])
	q.goes("it is not asked for any more", waits[3])
	for _, c := range others[2:] {
		q.answered(c)
	}
	q.answered(last)
	q.goes("there is room", waits[0])
	q.answered(others[0])
	q.goes("it is not asked for any more", waits[1])
	if q.size != 800 || len(q.tries)+len(q.waits) != 0 {
		t.Errorf("%d are on their way, %d queue", q.size, len(q.waits))
	}
}

// TestPlacesOfTheRefused: they were asked for before those who came later, and tries go first.
func TestPlacesOfTheRefused(t *testing.T) {
	q := &queue{t: t}
	a, b, c := q.ask("a", true), q.ask("b", true), q.ask("c", true)
	q.refused(b, 9)
	later := q.ask("b", false)
	q.refused(c, 9)
	q.goes("none is answered")
	tries := []*call{newCall(), newCall()}
	for _, c := range tries {
		c.resources, c.patience = []string{"try"}, NoWait
		q.enter(c)
	}
	gone := q.ask("gone", false)
	if !q.drop(gone) || q.drop(gone) || q.drop(a) {
		t.Error("what is dropped is what queues, once")
	}
	q.answered(a)
	q.goes("there is room for all", tries[0], tries[1], b, c, later)
	if q.limit() != 9 {
		t.Errorf("%d are to be on their way at most", q.limit())
	}
	for q.size > 1 {
		q.refused(b, 0)
		q.drop(b)
	}
	if q.limit() != 1 {
		t.Errorf("the sidecar does not say how many it takes: %d", q.limit())
	}
}
