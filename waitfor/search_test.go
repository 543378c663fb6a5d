package waitfor

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"

	"github.com/locksidecar/locksidecar/lock"
)

// world answers as a store would.
type world struct {
	locks []lock.Status
	reads []lock.Resource
	err   error
}

func (w *world) get(_ context.Context, r lock.Resource) (lock.Status, error) {
	w.reads = append(w.reads, r)
	for _, st := range w.locks {
		if st.Resource == r {
			return st, w.err
		}
	}
	return lock.Status{Resource: r}, w.err
}

// ringOf is a circle of n, and for each member a tail of others that wait for it.
func ringOf(n, tails int) *world {
	w := &world{}
	for i := range n {
		name, next := fmt.Sprint("r", i), fmt.Sprint("r", (i+n-1)%n)
		waiters := []lock.Holding{party(fmt.Sprintf("%d.o", (i+n-1)%n), x, next)}
		for j := range tails {
			waiters = append(waiters, party(fmt.Sprintf("%d.tail%d", i, j), x, fmt.Sprintf("tail%d-%d", i, j)))
		}
		w.locks = append(w.locks, lockOf(name, held(party(fmt.Sprintf("%d.o", i), x)), waiters...))
	}
	return w
}

// TestSearch finds a circle from each member, and reads nothing twice.
func TestSearch(t *testing.T) {
	for _, n := range []int{2, 3, 5, 50} {
		w := ringOf(n, 2)
		for i := range n {
			w.reads = nil
			wait := w.locks[(i+1)%n].Waiters[0]
			c, err := Search(t.Context(), w.get, wait.ID, wait.Owner.Nested.Held, 1000)
			if err != nil || len(c) != n || c[0].Waiter.ID != wait.ID {
				t.Fatalf("from member %d of %d: %v, %v", i, n, c, err)
			}
			slices.Sort(w.reads)
			if len(w.reads) > 3*n || len(slices.Compact(w.reads)) != len(w.reads) {
				t.Errorf("reads: %v", w.reads)
			}
			w.reads = nil
			if stands, err := Again(t.Context(), w.get, c); !stands || err != nil || len(w.reads) != n {
				t.Errorf("again: %t, %v after %d reads", stands, err, len(w.reads))
			}
		}
	}
}

// TestSearchIsBounded: it reads as much as it may, others each time, so that it finds in the end
// what is there; and one resource where nobody waits for what the owner holds.
func TestSearchIsBounded(t *testing.T) {
	w := ringOf(2, 40)
	wait := w.locks[1].Waiters[0]
	tries := 0
	for c := Cycle(nil); c == nil; tries++ {
		w.reads = nil
		c, _ = Search(t.Context(), w.get, wait.ID, wait.Owner.Nested.Held, 10)
		if len(w.reads) > 10 {
			t.Fatalf("%d reads", len(w.reads))
		}
		if tries > 10_000 {
			t.Fatal("not found")
		}
	}
	w = &world{locks: []lock.Status{lockOf("mine", held(party("1.p", x)))}}
	if c, err := Search(t.Context(), w.get, "id", []string{"mine"}, 10); c != nil || err != nil || len(w.reads) != 1 {
		t.Errorf("got %v, %v after %v", c, err, w.reads)
	}
	w.err = errors.New("silence")
	if _, err := Search(t.Context(), w.get, "id", []string{"mine"}, 10); !errors.Is(err, w.err) {
		t.Errorf("error: %v", err)
	}
	if _, err := Again(t.Context(), w.get, Cycle{{Resource: "mine"}}); !errors.Is(err, w.err) {
		t.Errorf("error: %v", err)
	}
}
