package leasekit

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/locksidecar/locksidecar/lock"
)

// chaos stands between a lease and a fake: requests and answers are lost, late, or
// both, and so are pushes. Copies of requests arrive after the caller has gone on.
type chaos struct {
	*fake
	t    *testing.T
	rnd  *rand.Rand
	calm bool
	told map[lock.HoldID]bool
	has  map[lock.HoldID]bool // an app relies on it
	ends map[lock.HoldID]bool // a forced release has ended it; a late copy may bring it back
	late sync.WaitGroup
}

// road gives what happens to one request: do asks the store, again asks it without
// a word to anybody.
func (c *chaos) road(ctx context.Context, do func() error, again func()) error {
	var kind int
	var pause time.Duration
	c.change(func() {
		kind, pause = c.rnd.IntN(10), time.Duration(c.rnd.Int64N(int64(2*time.Second)))
		if c.calm {
			kind = 9
		}
	})
	switch kind {
	case 0:
		return errSilent
	case 1:
		_ = do()
		return errSilent
	case 2:
		c.late.Go(func() { time.Sleep(pause); again() })
		return errSilent
	case 3:
		c.late.Go(func() { time.Sleep(pause); again() })
		<-ctx.Done()
		return fmt.Errorf("%w: %w", lock.ErrUnavailable, ctx.Err())
	case 4:
		time.Sleep(pause)
		return do()
	case 5:
		err := do()
		time.Sleep(pause)
		return err
	default:
		return do()
	}
}

func (c *chaos) Ask(ctx context.Context, q lock.Request) (a Answer, err error) {
	ctx, cancel := context.WithTimeout(ctx, time.Second)
	defer cancel()
	err = c.road(ctx, func() (err error) { a, err = c.fake.Ask(ctx, q); return err },
		func() { _, _ = c.fake.Ask(context.Background(), q) })
	return a, err
}

func (c *chaos) Withdraw(ctx context.Context, w Withdrawal) (found Withdrawn, err error) {
	ctx, cancel := context.WithTimeout(ctx, time.Second)
	defer cancel()
	err = c.road(ctx, func() (err error) { found, err = c.fake.Withdraw(ctx, w); return err },
		func() { _, _ = c.fake.Withdraw(context.Background(), w) })
	return found, err
}

func (c *chaos) Renew(ctx context.Context, acks []Revocation) (r Renewal, err error) {
	do := func() (err error) {
		r, err = c.fake.Renew(ctx, acks)
		c.expire(acks)
		return err
	}
	err = c.road(ctx, do, func() {
		_, _ = c.fake.Renew(context.Background(), acks)
		c.expire(acks)
	})
	return r, err
}

func (c *chaos) Held(ctx context.Context, each func(Ref)) error {
	return c.road(ctx, func() error { return c.fake.Held(ctx, each) }, func() {})
}

// expire ends forced holds when the grace is over that was acknowledged.
func (c *chaos) expire(acks []Revocation) {
	for _, a := range acks {
		c.late.Go(func() {
			time.Sleep(max(a.Grace, 1)) // who was told in this moment has noted it by then
			c.change(func() {
				e := c.entries[a.ID]
				if e == nil || !e.acked || e.grace < a.Grace {
					return
				}
				if c.has[a.ID] && !c.told[a.ID] {
					c.t.Errorf("the hold of %s ends by a forced release that nobody was told of", e.Resource)
				}
				c.ends[a.ID] = true
				c.drop(a.ID)
			})
		})
	}
}

// news takes what Events or Heartbeat has told.
func (c *chaos) news(all ...lock.Event) {
	c.change(func() {
		for _, ev := range all {
			c.told[ev.ID] = true
			if e := c.entries[ev.ID]; ev.Kind == lock.Vanished && e != nil && e.held && !c.ends[ev.ID] && !c.refused[ev.ID] {
				c.t.Errorf("a hold of %s is there, and was told to have vanished", ev.Resource)
			}
		}
	})
}

// app takes and releases locks, as session does: it asks until it has an answer.
func (c *chaos) app(k *kit, rounds int) {
	for range rounds {
		var q lock.Request
		var patience, hold time.Duration
		c.change(func() {
			q = k.request(lock.Resource(fmt.Sprint("r", c.rnd.IntN(3))))
			patience = time.Duration(c.rnd.Int64N(int64(20 * time.Second)))
			hold = time.Duration(c.rnd.Int64N(int64(5 * time.Second)))
		})
		ctx, cancel := context.WithTimeout(context.Background(), patience)
		err := lock.ErrUnavailable
		for tries := 0; errors.Is(err, lock.ErrUnavailable) && tries < 3; tries++ {
			_, err = k.Acquire(ctx, q)
		}
		cancel()
		if err == nil {
			c.change(func() { c.has[q.ID] = true })
			time.Sleep(hold)
			c.change(func() { delete(c.has, q.ID) })
		} else if !errors.Is(err, lock.ErrUnavailable) {
			continue
		}
		for err = lock.ErrUnavailable; errors.Is(err, lock.ErrUnavailable); {
			ctx, cancel := context.WithTimeout(context.Background(), time.Second)
			err = k.Release(ctx, q.Resource, q.ID)
			cancel()
			time.Sleep(10 * time.Millisecond)
		}
	}
}

// admin forces releases, and tells of some of them by push.
func (c *chaos) admin(done <-chan struct{}) {
	for {
		select {
		case <-done:
			return
		case <-time.After(700 * time.Millisecond):
		}
		var id lock.HoldID
		var r lock.Resource
		var grace time.Duration
		var push bool
		c.change(func() {
			for _, e := range c.entries {
				if e.held && (!e.revoked || c.rnd.IntN(2) == 0) {
					id, r = e.ID, e.Resource
				}
			}
			push = c.rnd.IntN(2) == 0
			grace = []time.Duration{0, time.Second, 2 * time.Second, 6 * time.Second}[c.rnd.IntN(4)]
			if e := c.entries[id]; e != nil && e.revoked && grace >= e.grace {
				id = ""
			}
		})
		if id == "" {
			continue
		}
		c.change(func() { c.ends[id] = c.ends[id] || grace == 0 })
		c.force(id, grace)
		if push {
			c.push(Push{Kind: Revoked, Ref: Ref{r, id}, Grace: grace})
		}
	}
}

// Whatever is lost, late or twice: who holds is told before somebody else is let in,
// nothing is said to have vanished that is there, and nothing is left.
func TestChaos(t *testing.T) {
	for seed := range uint64(50) {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) { chaosOf(t, seed) })
		})
	}
}

func chaosOf(t *testing.T, seed uint64) {
	c := &chaos{fake: newFake(), t: t, rnd: rand.New(rand.NewPCG(seed, 1)), told: map[lock.HoldID]bool{}, has: map[lock.HoldID]bool{}, ends: map[lock.HoldID]bool{}}
	clock := lock.GoTime()
	k := &kit{t: t, f: c.fake, clock: clock, Lease: Start(t.Context(), c, Options{ID: "lease", TTL: ttl, Clock: clock})}
	<-c.pushes
	done := make(chan struct{})
	var tasks, apps sync.WaitGroup
	tasks.Go(func() {
		for ev := range k.Events() {
			c.news(ev)
			time.Sleep(ttl / 5) // the receiver is slow
		}
	})
	quiet := make(chan struct{})
	tasks.Go(func() { c.admin(quiet) })
	for i := range 3 { // heartbeats beside each other
		tasks.Go(func() {
			time.Sleep(time.Duration(i) * ttl / 9)
			for {
				select {
				case <-done:
					return
				case <-time.After(ttl / 3):
				}
				ctx, cancel := context.WithTimeout(context.Background(), ttl/3)
				news, _ := k.Heartbeat(ctx)
				cancel()
				c.news(news...)
			}
		})
	}
	for range 8 {
		apps.Go(func() { c.app(k, 30) })
	}
	apps.Wait()
	close(quiet)
	c.change(func() { c.calm = true })
	time.Sleep(5 * ttl) // the last copies arrive, and are found
	c.change(func() {
		if n := len(c.entries); n != 0 {
			t.Errorf("%d are left in the store", n)
		}
	})
	k.mu.Lock()
	if n := len(k.entries) + len(k.forced) + len(k.strays); n != 0 {
		t.Errorf("%d are left in the lease", n)
	}
	k.mu.Unlock()
	close(done)
	if err := k.Close(t.Context()); err != nil {
		t.Error(err)
	}
	tasks.Wait()
	c.late.Wait()
}
