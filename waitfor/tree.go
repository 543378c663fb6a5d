package waitfor

import (
	"slices"

	"github.com/locksidecar/locksidecar/lock"
)

// Node is an owner in the tree of who blocks whom.
type Node struct {
	Of     lock.Holding
	Blocks []Branch
	Again  bool // what it blocks stands elsewhere in the tree: it is part of a circle, or waits for several
}

// Branch is one request that waits for the owner of a Node.
type Branch struct {
	Edge
	Others int // that are in its way as well
	Node   *Node
}

// Tree shows who blocks whom. Each waiter is there once, below the first who is in its way: a
// holder where there is one, else the nearest in front of it. Requests without a label belong
// together by their session. On top are those who do not wait; then, of each circle, one.
func (g *Graph) Tree() []*Node {
	t := tree{below: make(map[Who][]Branch), of: make(map[Who]lock.Holding), drawn: make(map[Who]bool)}
	waits := make(map[Who]bool)
	var order []Who
	for i, st := range g.locks {
		for j := range st.Waiters {
			p := place{i, j}
			var first *Edge
			n := 0
			note := func(e Edge) {
				if first == nil {
					first = &e
				}
				n++
			}
			g.holds(p, note)
			if first == nil {
				g.permits(p, note)
			}
			if first == nil {
				g.ahead(p, 0, note)
			}
			if first == nil {
				continue // it has it in a moment
			}
			by := partyOf(first.Blocker)
			if _, ok := t.of[by]; !ok {
				t.of[by] = first.Blocker
				order = append(order, by)
			}
			t.below[by] = append(t.below[by], Branch{Edge: *first, Others: n - 1})
			waits[partyOf(first.Waiter)] = true
		}
	}
	slices.SortStableFunc(order, func(a, b Who) int {
		switch {
		case waits[a] == waits[b]:
			return 0
		case waits[b]:
			return -1
		default:
			return 1
		}
	})
	var roots []*Node
	for _, who := range order {
		if !t.drawn[who] {
			roots = append(roots, t.draw(t.of[who]))
		}
	}
	return roots
}

// partyOf is the owner, as far as it can be told apart.
func partyOf(h lock.Holding) Who {
	if h.Owner.Ref == "" { // of a sidecar or a program that does not tell
		return Who{Label: "\x00" + string(h.ID)}
	}
	return WhoOf(h)
}

type tree struct {
	below map[Who][]Branch
	of    map[Who]lock.Holding
	drawn map[Who]bool
}

func (t *tree) draw(h lock.Holding) *Node {
	n := &Node{Of: h}
	who := partyOf(h)
	if t.drawn[who] {
		n.Again = len(t.below[who]) > 0
		return n
	}
	t.drawn[who] = true
	for _, b := range t.below[who] {
		b.Node = t.draw(b.Waiter)
		n.Blocks = append(n.Blocks, b)
	}
	return n
}
