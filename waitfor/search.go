package waitfor

import (
	"context"
	"math/rand/v2"

	"github.com/locksidecar/locksidecar/lock"
)

// Get reads who holds and who waits for a resource.
type Get func(ctx context.Context, r lock.Resource) (lock.Status, error)

// Search finds a circle that goes through the wait of that id, whose owner holds held. It
// goes backward: who waits for those, what do these hold, and who waits for that. So it ends
// at once where nobody waits for what the owner holds, and reads no resource twice. It reads
// at most limit; where there are more, it reads others each time. Errors are those of get.
func Search(ctx context.Context, get Get, id lock.HoldID, held []string, limit int) (Cycle, error) {
	var locks []lock.Status
	var todo []lock.Resource
	known := map[lock.Resource]bool{}
	follow := func(names []string) {
		for _, n := range names {
			if r := lock.Resource(n); !known[r] {
				known[r] = true
				todo = append(todo, r)
			}
		}
	}
	follow(held)
	for ; len(todo) > 0 && limit > 0; limit-- {
		i := 0
		if len(todo) > limit {
			i = rand.N(len(todo)) //nolint:gosec // a choice, no secret
		}
		r := todo[i]
		todo = append(todo[:i], todo[i+1:]...)
		st, err := get(ctx, r)
		if err != nil {
			return nil, err
		}
		if len(st.Waiters) == 0 {
			continue
		}
		locks = append(locks, st)
		mine := false
		for _, w := range st.Waiters {
			mine = mine || w.ID == id
			if n := w.Owner.Nested; n != nil && WhoOf(w).Known() {
				follow(n.Held)
			}
		}
		if mine { // only so it can be complete
			if c := New(locks).Cycle(id); c != nil {
				return c, nil
			}
		}
	}
	return New(locks).Cycle(id), nil
}

// Again reads once more what a circle goes over, and tells whether it stands.
func Again(ctx context.Context, get Get, c Cycle) (bool, error) {
	var locks []lock.Status
	for _, r := range c.Resources() {
		st, err := get(ctx, r)
		if err != nil {
			return false, err
		}
		locks = append(locks, st)
	}
	return c.Stands(locks), nil
}
