package leasekit

import (
	"context"
	"math/rand/v2"
	"slices"
	"testing"
	"testing/synctest"

	"github.com/locksidecar/locksidecar/lock"
)

// maxBatch is how many a trip takes, in these tests.
const maxBatch = 64

// Many who ask for a few things each come in their order, and nobody has a second turn in a trip before all have had one.
func TestTurnsOfMany(t *testing.T) {
	w := Turns[int]{Few: maxBatch}
	for i := range 3 * maxBatch {
		w.Add(&Turn[int]{Of: i / 2, From: i / 2})
	}
	var got []int
	for w.n > 0 {
		trip := w.Take(nil, maxBatch)
		if len(trip) != maxBatch {
			t.Errorf("a trip of %d", len(trip))
		}
		got = append(got, trip...)
	}
	firsts := map[int]bool{}
	for _, from := range got[:2*maxBatch] {
		firsts[from] = true
	}
	if len(firsts) != 3*maxBatch/2 || !slices.IsSorted(got[:maxBatch]) {
		t.Errorf("the first two trips are for %d: %v", len(firsts), got)
	}
	slices.Sort(got)
	for i, from := range got {
		if from != i/2 {
			t.Fatalf("not each is there twice: %v", got)
		}
	}
	empty(t, &w)
}

// Whoever comes, leaves and is taken: what is for one keeps its order, nobody has two turns more than another one who could have had
// them, nobody is forgotten, and nothing is left.
func TestTurnsAtRandom(t *testing.T) {
	for seed := range uint64(200) {
		r := rand.New(rand.NewPCG(seed, 0))
		w := Turns[*some]{Few: maxBatch}
		var waiting []*some
		number := 0
		for range 300 {
			switch r.IntN(5) {
			case 0, 1, 2:
				for range r.IntN(maxBatch) {
					var from any // nobody says
					if n := r.IntN(1 + r.IntN(150)); n > 0 {
						from = n
					}
					tick := &some{from: from, number: number}
					tick.turn = Turn[*some]{Of: tick, From: from}
					w.Add(&tick.turn)
					waiting = append(waiting, tick)
					number++
				}
			case 3:
				for range min(r.IntN(40), len(waiting)) {
					i := r.IntN(len(waiting))
					w.Remove(&waiting[i].turn)
					waiting = slices.Delete(waiting, i, i+1)
				}
			default:
				trip := w.Take(nil, maxBatch)
				if len(trip) != min(len(waiting), maxBatch) {
					t.Fatalf("seed %d: a trip of %d of %d", seed, len(trip), len(waiting))
				}
				if !slices.IsSortedFunc(trip, func(a, b *some) int { return a.number - b.number }) {
					t.Fatalf("seed %d: a trip is not in the order in which its requests came", seed)
				}
				has, had := map[any]int{}, map[any]int{}
				goes := map[*some]bool{}
				for _, tick := range trip {
					has[tick.from]++
					goes[tick] = true
				}
				stay := map[any]bool{}
				left := waiting[:0:0]
				for _, tick := range waiting {
					if !goes[tick] {
						left = append(left, tick)
						stay[tick.from] = true
						continue
					}
					if had[tick.from]++; stay[tick.from] {
						t.Fatalf("seed %d: a request of %v has overtaken another one", seed, tick.from)
					}
				}
				most := 0
				for _, n := range has {
					most = max(most, n)
				}
				for from := range stay {
					if has[from] < most-1 {
						t.Fatalf("seed %d: %v has %d turns, others %d", seed, from, has[from], most)
					}
				}
				waiting = left
			}
			if w.n != len(waiting) {
				t.Fatalf("seed %d: %d wait, want %d", seed, w.n, len(waiting))
			}
		}
		for w.n > 0 {
			w.Take(nil, maxBatch)
		}
		empty(t, &w)
	}
}

// some is one that waits, in a test.
type some struct {
	from   any
	number int
	turn   Turn[*some]
}

// empty checks that nothing is left of who has waited: sessions end.
func empty[T any](t *testing.T, w *Turns[T]) {
	t.Helper()
	if w.n > 0 || len(w.few) > 0 || len(w.rows) > 0 || w.next != nil || len(w.bygone) > maxBygone {
		t.Errorf("left: %d wait, %d of few, %d rows", w.n, len(w.few), len(w.rows))
	}
	for _, tick := range w.few[:cap(w.few)] {
		if tick != nil {
			t.Errorf("a request is kept: %+v", tick)
		}
	}
	for _, r := range w.bygone {
		if *r != (row[T]{}) {
			t.Errorf("something of a row is kept: %+v", r)
		}
	}
}

// A gate lets no more in than it has places for, has those who want to come in their turns, and loses no place by those who leave
// before they have come in.
func TestGate(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := NewGate(2)
		var in []string
		want := func(from string) context.CancelFunc {
			ctx, cancel := context.WithCancel(context.WithValue(t.Context(), lock.FromKey{}, from))
			go func() {
				if g.Enter(ctx) {
					in = append(in, from)
				}
			}()
			synctest.Wait()
			return cancel
		}
		for _, from := range []string{"a", "a", "a", "a", "a"} {
			defer want(from)()
		}
		gone := want("gone")
		defer want("b")()
		defer want("c")()
		gone()
		synctest.Wait()
		for range 4 {
			g.Leave()
			synctest.Wait()
		}
		if !slices.Equal(in, []string{"a", "a", "a", "b", "c", "a"}) {
			t.Errorf("they have come in as %q", in)
		}
		ctx, both := context.WithCancel(t.Context())
		last := make(chan bool, 1)
		go func() { last <- g.Enter(ctx) }()
		synctest.Wait()
		g.mu.Lock() // it is let in and given up at the same time
		both()
		g.leave() // to the last of a
		g.leave() // to it
		g.mu.Unlock()
		places := 1
		if <-last {
			places++
		}
		synctest.Wait()
		for range places {
			g.Leave()
		}
		if empty(t, &g.waiting); g.free != 2 {
			t.Errorf("%d places are free", g.free)
		}
	})
}
