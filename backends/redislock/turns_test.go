package redislock

import (
	"context"
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

// queue is a batcher whose Redis stands still, so that what it is handed waits.
type queue struct {
	b      *batcher
	client redis.UniversalClient
	resume func()
	all    sync.WaitGroup
}

func newQueue(t *testing.T) *queue {
	t.Helper()
	server := testengine.New(t, testengine.Redis)
	client := plain(t, strings.TrimPrefix(server.URL(), "redis://")+"?timeout=1m")
	q := &queue{b: newBatcher(sender{client: client}, time.Minute), client: client}
	t.Cleanup(q.b.sending.Wait)
	if err := client.Ping(t.Context()).Err(); err != nil {
		t.Fatal(err)
	}
	q.resume = testengine.Pause(t, server)
	return q
}

// hand has a text noted in Redis, for one who asks; "": nobody says for whom. It waits until the request stands in the queue.
func (q *queue) hand(t *testing.T, from, text string) {
	t.Helper()
	blocks := make(chan struct{})
	ctx := lock.WithBlocking(t.Context(), sync.OnceFunc(func() { close(blocks) }))
	if from != "" {
		ctx = context.WithValue(ctx, lock.FromKey{}, from)
	}
	q.all.Go(func() {
		if err := q.b.Process(ctx, redis.NewCmd(ctx, "rpush", "order", text)); err != nil {
			t.Error(err)
		}
	})
	<-blocks
}

// order lets Redis go on, and tells in which order it has carried out all.
func (q *queue) order(t *testing.T, want int) []string {
	t.Helper()
	q.resume()
	q.all.Wait()
	order, err := q.client.LRange(t.Context(), "order", 0, -1).Result()
	if err != nil || len(order) != want {
		t.Fatalf("Redis has carried out %d, %v", len(order), err)
	}
	return order
}

// TestTurns: where one asks for more than a trip takes, others do not wait for all of that. What is for one keeps its order.
func TestTurns(t *testing.T) {
	q := newQueue(t)
	want := map[string][]string{}
	hand := func(from, what string) {
		q.hand(t, from, from+" "+what)
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
	order := q.order(t, 1+many+9)
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
	q.b.mu.Lock()
	if n := q.b.waiting.Len(); q.b.busy || n > 0 {
		t.Errorf("left: busy %v, %d wait", q.b.busy, n)
	}
	q.b.mu.Unlock()
}

// Who asks for one thing does not wait for all that others ask for who are more than a trip takes.
func TestTurnsBesideManyWhoAskForMuch(t *testing.T) {
	q := newQueue(t)
	const many, each = maxBatch + 16, 8
	for i := range many * each {
		q.hand(t, strconv.Itoa(i%many), strconv.Itoa(i%many))
	}
	q.hand(t, "late", "late")
	order := q.order(t, many*each+1)
	if at := slices.Index(order, "late"); at > 2*maxBatch {
		t.Errorf("it comes as number %d", at)
	}
}
