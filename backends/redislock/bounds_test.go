package redislock

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/locksidecar/locksidecar/internal/testengine"
	"github.com/locksidecar/locksidecar/lock"
)

// longest is the longest time for which one script has kept Redis from everything
// else while f ran, but for so many that took longer.
func longest(t *testing.T, b *Backend, but int, f func()) time.Duration {
	t.Helper()
	ctx := t.Context()
	for name, value := range map[string]string{"slowlog-log-slower-than": "200", "slowlog-max-len": "20000"} {
		if err := b.client.ConfigSet(ctx, name, value).Err(); err != nil {
			t.Fatal(err)
		}
	}
	if err := b.client.Do(ctx, "slowlog", "reset").Err(); err != nil {
		t.Fatal(err)
	}
	f()
	entries, err := b.client.(*redis.Client).SlowLogGet(ctx, -1).Result()
	if err != nil {
		t.Fatal(err)
	}
	all := make([]time.Duration, but+1)
	for _, e := range entries {
		if name := strings.ToLower(e.Args[0]); name == "evalsha" || strings.HasPrefix(name, "z") {
			all = append(all, e.Duration)
		}
	}
	slices.Sort(all)
	return all[len(all)-1-but]
}

// noise is the longest time for which a script that asks for as much as any step may keeps Redis, where it has such scripts to run for so
// long without a pause: who is always busy loses the processor more often, and for longer.
func noise(t *testing.T, b *Backend, but int, d time.Duration) time.Duration {
	t.Helper()
	commands := redis.NewScript("for _ = 1, 160 do redis.call('ping') end")
	if err := commands.Load(t.Context(), b.client).Err(); err != nil {
		t.Fatal(err)
	}
	return longest(t, b, but, func() {
		for end := time.Now().Add(d); time.Now().Before(end); {
			_, err := b.client.Pipelined(t.Context(), func(p redis.Pipeliner) error {
				for range 1000 {
					commands.EvalSha(t.Context(), p, nil)
				}
				return nil
			})
			if err != nil && !errors.Is(err, redis.Nil) {
				t.Fatal(err)
			}
		}
	})
}

// No script keeps Redis longer than a few readers or waiters would, however many
// there are, also among those that the driver sends: TestScriptsKeepRedisBriefly measures each
// alone. The limit is a multiple of what is promised; before, each of these took
// from 25 ms to 150 ms. Redis may lose the processor in the middle of a script. So from what
// took too long the noise of as long a time is taken off, and if that is not enough
// it is done again, and must then have a round in which it is.
// Issue 9, 3.5.
func TestStepsAreBounded(t *testing.T) {
	const rounds = 5
	s := testengine.New(t, testengine.Redis)
	took := make(map[string]time.Duration) // the least of all rounds
	for i := range rounds {
		for what, d := range crowdSteps(t, s, lock.Resource(fmt.Sprintf("r%d", i))) {
			if least, again := took[what]; !again || d < least {
				took[what] = d
			}
		}
		if t.Failed() || slices.Max(slices.Collect(maps.Values(took))) <= longestStep {
			break
		}
	}
	for what, d := range took {
		if d > longestStep {
			t.Errorf("%s keeps Redis for %s", what, d)
		} else {
			t.Logf("%s: at most %s", what, d)
		}
	}
}

const longestStep = 15 * time.Millisecond

// crowdSteps does everything once that could take long because many share a lock, or wait
// for it, and tells for how long its longest script has kept Redis.
func crowdSteps(t *testing.T, s testengine.Server, r lock.Resource) map[string]time.Duration {
	t.Helper()
	const n = 5000
	took := make(map[string]time.Duration)
	b, l := sidecar(t, s.URL()+noGrace, 5*time.Minute)
	_, other := sidecar(t, s.URL()+noGrace, 5*time.Minute)
	shared := func() lock.Request {
		q := exclusive(r)
		q.Mode = lock.Shared
		return q
	}

	step := func(what string, but int, f func()) {
		t.Helper()
		began := time.Now()
		d := longest(t, b, but, f)
		if d > longestStep {
			d = max(0, d-noise(t, b, but, time.Since(began)))
		}
		took[what] = d
	}
	writer := hold(t, other, r)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	var readers sync.WaitGroup
	grants := make([]lock.HoldID, n)
	errs := make([]error, n)
	for i := range n {
		readers.Go(func() {
			g, err := acquire(ctx, l, shared())
			grants[i], errs[i] = g.ID, err
		})
	}
	eventually(t, "all readers wait", func() error {
		st, err := b.Get(ctx, r)
		if err == nil && len(st.Waiters) != n {
			err = fmt.Errorf("%d wait", len(st.Waiters))
		}
		return err
	})
	step("Get of many waiters", 0, func() {
		if st, err := b.Get(ctx, r); err != nil || len(st.Waiters) != n {
			t.Errorf("Get: %d waiters, %v", len(st.Waiters), err)
		}
	})
	step("List", 0, func() {
		if all, err := b.List(ctx, string(r), lock.Page{Limit: 10}); err != nil || len(all) != 1 || len(all[0].Waiters) != n {
			t.Errorf("List: %v", err)
		}
	})
	step("a release that grants many readers", 0, func() {
		if err := release(ctx, other, r, writer.ID); err != nil {
			t.Error(err)
		}
		readers.Wait()
	})
	if err := errors.Join(errs...); err != nil {
		t.Fatal(err)
	}
	step("a try against many readers", 0, func() {
		if _, err := try(t, other, r); !errors.Is(err, lock.ErrHeld) {
			t.Errorf("try: %v", err)
		}
	})
	step("Get of many holders", 0, func() {
		if st, err := b.Get(ctx, r); err != nil || len(st.Holders) != n {
			t.Errorf("Get: %d holders, %v", len(st.Holders), err)
		}
	})
	step("many releases before a waiting writer", n/100, func() {
		var queued sync.WaitGroup
		queued.Go(func() {
			g, err := acquire(ctx, other, exclusive(r))
			if err != nil {
				t.Error(err)
			}
			writer = g
		})
		eventually(t, "the writer waits", func() error {
			_, err := b.Get(ctx, r)
			return err
		})
		many(t, n, func(i int) error { return release(ctx, l, r, grants[i]) })
		queued.Wait()
	})

	// A sidecar that dies with many waiters.
	road := testengine.Through(t, s)
	_, mortal := sidecar(t, road.URL()+noGrace, 10*time.Second)
	dying, die := context.WithCancel(t.Context())
	defer die()
	for range n {
		readers.Go(func() { _, _ = acquire(dying, mortal, shared()) })
	}
	eventually(t, "all readers of the mortal wait", func() error {
		st, err := b.Get(ctx, r)
		if err == nil && len(st.Waiters) != n {
			err = fmt.Errorf("%d wait", len(st.Waiters))
		}
		return errors.Join(err, beat(ctx, mortal))
	})
	road.Inject(testengine.Cut)
	die()
	readers.Wait()
	eventually(t, "the mortal is dead", func() error {
		st, err := b.Get(ctx, r)
		if err == nil && len(st.Waiters) > 0 {
			err = errors.New("its waiters count")
		}
		return err
	})
	step("a release past many dead waiters", 0, func() {
		if err := release(ctx, other, r, writer.ID); err != nil {
			t.Error(err)
		}
		eventually(t, "the next has the lock", func() error {
			_, err := try(t, l, r)
			return err
		})
	})
	return took
}
