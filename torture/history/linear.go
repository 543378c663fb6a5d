package history

import (
	"fmt"
	"slices"
	"time"

	"github.com/anishathalye/porcupine"
)

// step is one operation on a lock, as porcupine sees it.
type step struct {
	kind stepKind
	hold int // its number
	*Hold
}

type stepKind int

const (
	acquires stepKind = iota // is granted, somewhere between the call and the answer
	flashes                  // is granted, and may be over before the answer
	turns                    // becomes shared
	ends                     // ends, not before the app's belief in it did
)

// state is the lock: who has it, and the fences so far. It is never changed.
type state struct {
	holders   []int // in order
	exclusive bool  // the only holder is
	limit     int   // the holders have permits of so many; 0: they have none,
	slots     int   // and these
	any, last int64 // the largest fence of all grants, and of the exclusive ones
}

func (s *state) equal(o *state) bool {
	return s.exclusive == o.exclusive && s.limit == o.limit && s.slots == o.slots && s.any == o.any && s.last == o.last && slices.Equal(s.holders, o.holders)
}

func (s *state) step(op step) (bool, *state) {
	n := *s
	switch op.kind {
	case acquires, flashes:
		switch {
		case s.exclusive, len(s.holders) > 0 && !s.lets(op), !op.Shared && op.Fence <= s.any, op.Fence < s.last:
			return false, s
		}
		n.any = max(n.any, op.Fence)
		if !op.Shared {
			n.last = op.Fence
		}
		if op.kind == acquires {
			n.exclusive = !op.Shared && op.Limit == 0
			if n.limit = op.Limit; n.limit != 0 {
				n.slots |= 1 << op.Slot
			}
			n.holders = slices.Clone(s.holders)
			at, _ := slices.BinarySearch(n.holders, op.hold)
			n.holders = slices.Insert(n.holders, at, op.hold)
		}
	case turns: // or it is over by now, where nobody knows whether it was carried out
		if slices.Contains(s.holders, op.hold) {
			n.exclusive = false
		}
	case ends:
		at := slices.Index(s.holders, op.hold)
		if at < 0 {
			return false, s
		}
		n.exclusive = false
		if op.Limit != 0 {
			n.slots &^= 1 << op.Slot
		}
		if n.holders = slices.Delete(slices.Clone(s.holders), at, at+1); len(n.holders) == 0 {
			n.limit = 0
		}
	}
	return true, &n
}

// lets tells whether the holders that are there let another one in.
func (s *state) lets(op step) bool {
	if s.limit != 0 || op.Limit != 0 {
		return s.limit == op.Limit && s.slots&(1<<op.Slot) == 0
	}
	return op.Shared
}

func (s *state) hash() uint64 {
	h := uint64(s.any)*31 + uint64(s.last) //nolint:gosec // a hash
	for _, i := range s.holders {
		h = h*31 + uint64(i) //nolint:gosec // a hash
	}
	return h
}

var model = porcupine.Model{
	Init:  func() any { return &state{} },
	Step:  func(s, in, _ any) (bool, any) { return s.(*state).step(in.(step)) },
	Equal: func(a, b any) bool { return a.(*state).equal(b.(*state)) },
	Hash:  func(s any) uint64 { return s.(*state).hash() },
}

// Linear finds resources whose history is not one of a lock: no order of its grants
// and ends, each within the time that it may have taken, gives each to who had it,
// with the fence that it had.
// A check that takes longer than the limit says so, as a complaint too.
func Linear(holds []*Hold, limit time.Duration) []string {
	var complaints []string
	for resource, all := range byResource(holds) {
		var ops []porcupine.Operation
		add := func(kind stepKind, i int, call, answer time.Duration) {
			ops = append(ops, porcupine.Operation{Input: step{kind, i, all[i]}, Call: int64(call), Return: int64(answer)})
		}
		for i, h := range all {
			if h.End <= h.At {
				add(flashes, i, h.Call, h.At)
				continue
			}
			add(acquires, i, h.Call, h.At)
			if h.Turned != 0 && h.Turned < h.End {
				add(turns, i, h.Turned, h.TurnBy)
			}
			add(ends, i, h.End, max(h.End, h.Freed))
		}
		switch result, info := porcupine.CheckOperationsVerbose(model, ops, limit); result {
		case porcupine.Illegal:
			complaints = append(complaints, fmt.Sprintf("the history of %s is not that of a lock%s", resource, stuck(info)))
		case porcupine.Unknown:
			complaints = append(complaints, fmt.Sprintf("the history of %s could not be judged within %s", resource, limit))
		case porcupine.Ok:
		}
	}
	return complaints
}

// stuck says where the longest order that was found ends.
func stuck(info porcupine.LinearizationInfo) string {
	var longest []porcupine.Operation
	for _, orders := range info.PartialLinearizationsOperations() {
		for _, o := range orders {
			if len(o) > len(longest) {
				longest = o
			}
		}
	}
	text := fmt.Sprintf("; %d steps in order, the last of them:", len(longest))
	for _, o := range longest[max(0, len(longest)-4):] {
		s := o.Input.(step)
		text += fmt.Sprintf("\n  %s %s", [...]string{"granted", "granted for a moment", "shared from now on", "over"}[s.kind], s.Hold)
	}
	return text
}
