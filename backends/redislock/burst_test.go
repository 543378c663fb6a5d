package redislock

import (
	"context"
	"errors"
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

// piece is a lock.Burst that a test ends.
type piece struct {
	mu   sync.Mutex
	more bool
	ends []func()
}

func (p *piece) Later(f func()) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.more {
		p.ends = append(p.ends, f)
	}
	return p.more
}

// last notes that no more come after the next one.
func (p *piece) last() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.more = false
}

func (p *piece) end() {
	p.last()
	for _, f := range p.ends {
		f()
	}
}

// tripSizes counts the requests of each trip.
type tripSizes struct {
	mu  sync.Mutex
	all []int
}

// note leaves out what the driver says of itself on a new connection.
func (c *tripSizes) note(cmds ...redis.Cmder) {
	n := 0
	for _, cmd := range cmds {
		if cmd.Name() == "rpush" {
			n++
		}
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if n > 0 {
		c.all = append(c.all, n)
	}
}

func (c *tripSizes) take() []int {
	c.mu.Lock()
	defer c.mu.Unlock()
	all := c.all
	c.all = nil
	return all
}

func (c *tripSizes) DialHook(next redis.DialHook) redis.DialHook { return next }

func (c *tripSizes) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		c.note(cmd)
		return next(ctx, cmd)
	}
}

func (c *tripSizes) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return func(ctx context.Context, cmds []redis.Cmder) error {
		c.note(cmds...)
		return next(ctx, cmds)
	}
}

// What an app has written in one piece goes to Redis in one trip, in its order, however the piece ends; and nobody waits for
// a piece that is not his.
func TestBurstIsOneTrip(t *testing.T) {
	server := testengine.New(t, testengine.Redis)
	client := plain(t, strings.TrimPrefix(server.URL(), "redis://"))
	var made tripSizes
	client.AddHook(&made)
	b := newBatcher(sender{client: client}, time.Second)
	defer b.sending.Wait()
	var all sync.WaitGroup
	// hand hands over a request, and returns when it blocks.
	hand := func(ctx context.Context, i int, want error) {
		blocks := make(chan struct{})
		ctx = lock.WithBlocking(ctx, sync.OnceFunc(func() { close(blocks) }))
		all.Go(func() {
			if err := b.Process(ctx, redis.NewCmd(ctx, "rpush", "order", strconv.Itoa(i))); !errors.Is(err, want) {
				t.Errorf("request %d: %v, want %v", i, err, want)
			}
		})
		<-blocks
	}
	for name, c := range map[string]struct {
		n    int
		ends func(p *piece, ctx context.Context, n int) // hands over the last one
		want []int
	}{
		"the last one sends": {64, func(p *piece, ctx context.Context, n int) {
			p.last()
			hand(ctx, n-1, nil)
		}, []int{64}},
		"the last one wanted something else": {64, func(p *piece, ctx context.Context, n int) {
			hand(ctx, n-1, nil)
			p.end()
		}, []int{64}},
		"the last one has little time": {3, func(p *piece, ctx context.Context, n int) {
			p.last()
			ctx, cancel := context.WithTimeout(ctx, time.Minute)
			t.Cleanup(cancel)
			hand(ctx, n-1, nil)
		}, []int{3}},
		"somebody else comes": {5, func(_ *piece, _ context.Context, n int) {
			hand(t.Context(), n-1, nil)
		}, []int{5}},
		"more than a trip takes": {maxBatch + 6, func(p *piece, ctx context.Context, n int) {
			p.last()
			hand(ctx, n-1, nil)
		}, []int{maxBatch, 6}},
	} {
		t.Run(name, func(t *testing.T) {
			p := &piece{more: true}
			ctx := lock.WithBurst(t.Context(), p)
			resume := func() {}
			if c.n > maxBatch { // all of it is there before the first trip is back
				resume = testengine.Pause(t, server)
			}
			for i := range c.n - 1 {
				if made.mu.Lock(); i < maxBatch-1 && len(made.all) > 0 {
					t.Errorf("a trip before request %d", i)
				}
				made.mu.Unlock()
				hand(ctx, i, nil)
			}
			c.ends(p, ctx, c.n)
			resume()
			all.Wait()
			if got := made.take(); !slices.Equal(got, c.want) {
				t.Errorf("trips of %v, want %v", got, c.want)
			}
			var want []string
			for i := range c.n {
				want = append(want, strconv.Itoa(i))
			}
			got, err := client.LRange(t.Context(), "order", 0, -1).Result()
			if err != nil || !slices.Equal(got, want) {
				t.Errorf("Redis has carried out %v, %v", got, err)
			}
			client.Del(t.Context(), "order")
			made.take()
			p.end()
			if b.mu.Lock(); b.busy || b.held {
				t.Error("the batcher is not free")
			}
			b.mu.Unlock()
		})
	}
	t.Run("all give up", func(t *testing.T) {
		p := &piece{more: true}
		ctx, cancel := context.WithCancel(lock.WithBurst(t.Context(), p))
		hand(ctx, 0, errNotSent)
		hand(ctx, 1, errNotSent)
		cancel()
		all.Wait()
		p.end()
		if got := made.take(); len(got) > 0 {
			t.Errorf("trips of %v, want none", got)
		}
		hand(t.Context(), 2, nil)
		all.Wait()
	})
}

// Who has no answer in time waits for none, though what was sent goes on; an acquire lingers.
func TestSentAndNotWaitedFor(t *testing.T) {
	server := testengine.New(t, testengine.Redis)
	client := plain(t, strings.TrimPrefix(server.URL(), "redis://")+"?timeout=1m")
	b := newBatcher(sender{client: client}, time.Minute)
	defer b.sending.Wait()
	resume := testengine.Pause(t, server)
	var all sync.WaitGroup
	defer all.Wait()
	defer resume()
	p := &piece{more: true}
	ctx, cancel := context.WithCancel(lock.WithBurst(t.Context(), p))
	hand := func(lingers time.Duration) <-chan error {
		ended, blocks := make(chan error, 1), make(chan struct{})
		ctx := lock.WithBlocking(ctx, sync.OnceFunc(func() { close(blocks) }))
		all.Go(func() {
			cmd := redis.NewCmd(ctx, "rpush", "order", "x")
			err := b.process(ctx, cmd, lingers)
			if err == nil && cmd.Val() == nil {
				err = errors.New("no answer")
			}
			ended <- err
		})
		<-blocks
		return ended
	}
	release, acquire := hand(0), hand(time.Hour)
	p.end()
	cancel()
	if err := <-release; !errors.Is(err, errCut) {
		t.Errorf("a release has ended with %v", err)
	}
	select {
	case err := <-acquire:
		t.Errorf("an acquire has ended with %v", err)
	default:
	}
	resume()
	if err := <-acquire; err != nil {
		t.Errorf("an acquire that was answered after all: %v", err)
	}
	if n, err := client.LLen(t.Context(), "order").Result(); n != 2 || err != nil {
		t.Errorf("Redis has carried out %d of two, %v", n, err)
	}
}
