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
	if n := b.waiting.Len(); b.busy || n > 0 {
		t.Errorf("left: busy %v, %d wait", b.busy, n)
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
