package redislock

import (
	"context"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/locksidecar/locksidecar/internal/testengine"
	"github.com/locksidecar/locksidecar/lock"
)

// TestTurns: where one asks for more than a trip takes, others do not wait for all of that. What is for one keeps its order.
func TestTurns(t *testing.T) {
	server := testengine.New(t, testengine.Redis)
	client := plain(t, strings.TrimPrefix(server.URL(), "redis://")+"?timeout=1m")
	b := newBatcher(sender{client: client}, time.Minute)
	defer b.sending.Wait()
	if err := client.Ping(t.Context()).Err(); err != nil {
		t.Fatal(err)
	}
	resume := testengine.Pause(t, server)
	var all sync.WaitGroup
	want := map[string][]string{}
	hand := func(from, what string) {
		blocks := make(chan struct{})
		ctx := lock.WithBlocking(t.Context(), sync.OnceFunc(func() { close(blocks) }))
		if from != "" {
			ctx = context.WithValue(ctx, lock.FromKey{}, from)
		}
		all.Go(func() {
			if err := b.Process(ctx, redis.NewCmd(ctx, "rpush", "order", from+" "+what)); err != nil {
				t.Error(err)
			}
		})
		<-blocks
		want[from] = append(want[from], from+" "+what)
	}
	hand("", "is on its way")
	const many = 4 * maxBatch
	for i := range many {
		hand("much", strings.Repeat("x", i))
	}
	for _, from := range []string{"a", "b", ""} {
		for _, what := range []string{"1", "2", "3"} {
			hand(from, what)
		}
	}
	resume()
	all.Wait()
	order, err := client.LRange(t.Context(), "order", 0, -1).Result()
	if err != nil || len(order) != 1+many+9 {
		t.Fatalf("Redis has carried out %d, %v", len(order), err)
	}
	for from, asked := range want {
		var got []string
		for i, o := range order {
			if whose, _, _ := strings.Cut(o, " "); whose != from {
				continue
			}
			if got = append(got, o); from != "much" && i > maxBatch {
				t.Errorf("%q comes as number %d", o, i)
			}
		}
		if !slices.Equal(got, asked) {
			t.Errorf("%q: %q, want %q", from, got, asked)
		}
	}
	b.mu.Lock()
	if empty(t, &b.waiting); b.busy {
		t.Error("the batcher is busy")
	}
	b.mu.Unlock()
}

// Who asks for one thing does not wait for all that others ask for who are more than a trip takes.
func TestTurnsBesideManyWhoAskForMuch(t *testing.T) {
	server := testengine.New(t, testengine.Redis)
	client := plain(t, strings.TrimPrefix(server.URL(), "redis://")+"?timeout=1m")
	b := newBatcher(sender{client: client}, time.Minute)
	defer b.sending.Wait()
	if err := client.Ping(t.Context()).Err(); err != nil {
		t.Fatal(err)
	}
	resume := testengine.Pause(t, server)
	var all sync.WaitGroup
	hand := func(from string) {
		blocks := make(chan struct{})
		ctx := lock.WithBlocking(context.WithValue(t.Context(), lock.FromKey{}, from), sync.OnceFunc(func() { close(blocks) }))
		all.Go(func() {
			if err := b.Process(ctx, redis.NewCmd(ctx, "rpush", "order", from)); err != nil {
				t.Error(err)
			}
		})
		<-blocks
	}
	const many, each = maxBatch + 16, 8
	for i := range many * each {
		hand(strconv.Itoa(i % many))
	}
	hand("late")
	resume()
	all.Wait()
	order, err := client.LRange(t.Context(), "order", 0, -1).Result()
	if err != nil || len(order) != many*each+1 {
		t.Fatalf("Redis has carried out %d, %v", len(order), err)
	}
	if at := slices.Index(order, "late"); at > 2*maxBatch {
		t.Errorf("it comes as number %d", at)
	}
}

// Many who ask for a few things each come in their order, and nobody has a second turn in a trip before all have had one.
func TestTurnsOfMany(t *testing.T) {
	var w turns
	for i := range 3 * maxBatch {
		w.add(&ticket{from: i / 2})
	}
	var got []int
	for w.n > 0 {
		trip := w.take(nil)
		if len(trip) != maxBatch {
			t.Errorf("a trip of %d", len(trip))
		}
		for _, t := range trip {
			got = append(got, t.from.(int))
		}
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
		var w turns
		var waiting []*ticket
		number := 0
		for range 300 {
			switch r.IntN(5) {
			case 0, 1, 2:
				for range r.IntN(maxBatch) {
					var from any // nobody says
					if n := r.IntN(1 + r.IntN(150)); n > 0 {
						from = n
					}
					tick := &ticket{from: from}
					w.add(tick)
					waiting = append(waiting, tick)
					number++
				}
			case 3:
				for range min(r.IntN(40), len(waiting)) {
					i := r.IntN(len(waiting))
					w.remove(waiting[i])
					waiting = slices.Delete(waiting, i, i+1)
				}
			default:
				trip := w.take(nil)
				if len(trip) != min(len(waiting), maxBatch) {
					t.Fatalf("seed %d: a trip of %d of %d", seed, len(trip), len(waiting))
				}
				if !slices.IsSortedFunc(trip, func(a, b *ticket) int { return int(a.number) - int(b.number) }) { //nolint:gosec // small
					t.Fatalf("seed %d: a trip is not in the order in which its requests came", seed)
				}
				has, had := map[any]int{}, map[any]int{}
				goes := map[*ticket]bool{}
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
			w.take(nil)
		}
		empty(t, &w)
	}
}

// empty checks that nothing is left of who has waited: sessions end.
func empty(t *testing.T, w *turns) {
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
		if *r != (row{}) {
			t.Errorf("something of a row is kept: %+v", r)
		}
	}
}
