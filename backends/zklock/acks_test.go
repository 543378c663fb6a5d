package zklock

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/locksidecar/locksidecar/internal/testengine"
	"github.com/locksidecar/locksidecar/lock"
)

// TestHeartbeatsBesideAcknowledgements: the releases of many holds of a sidecar are
// forced, and the servers are far away. The acknowledgements do not hold its heartbeats up.
func TestHeartbeatsBesideAcknowledgements(t *testing.T) {
	t.Parallel()
	s := testengine.Shared(t, testengine.ZooKeeper)
	for range 3 {
		if acknowledgesAtOnce(t, s) {
			return
		}
	}
	t.Error("three times the machine was so busy that the lease had ended before the first of these heartbeats")
}

// acknowledgesAtOnce is false where the machine is so busy that the lease ends before there is
// anything to acknowledge.
func acknowledgesAtOnce(t testing.TB, s testengine.Server) (inTime bool) {
	road := testengine.Through(t, s)
	root := "/acks-" + string(unique())
	const ttl = 40 * time.Second
	_, l := sidecar(t, road.URL()+root+"?timeout=5s", ttl)
	stop := beating(t, l, time.Second)
	other, l2 := sidecar(t, s.URL()+root, 15*time.Second)
	live(t, l2)
	const n = 100
	holds := make([]lock.Grant, n)
	var all sync.WaitGroup
	for i := range holds {
		all.Go(func() { holds[i] = hold(t, l, lock.Resource(fmt.Sprintf("r-%d", i)), lock.Exclusive) })
	}
	all.Wait()
	renewed := stop()
	ctx, cancel := context.WithCancel(t.Context())
	var forcing sync.WaitGroup
	defer func() { cancel(); forcing.Wait() }()
	for _, g := range holds {
		forcing.Go(func() { _ = other.ForceRelease(ctx, g.Resource, g.ID, time.Hour) }) // until it is released
	}
	over := func() bool { return time.Since(renewed) > ttl }
	for _, g := range holds {
		within(t, 3*patience, "it is revoked", func() error {
			st, err := other.Get(t.Context(), g.Resource)
			if err == nil && (len(st.Holders) != 1 || !st.Holders[0].Revoked) && !over() {
				err = fmt.Errorf("it has %+v", st.Holders)
			}
			return err
		})
	}
	if over() {
		return false
	}
	road.Delay(400 * time.Millisecond) // each way
	inTime = true
	renew := func() {
		ctx, cancel := context.WithTimeout(t.Context(), patience) // one after the other they take 80 s
		defer cancel()
		sent := time.Now()
		switch err := beat(ctx, l); {
		case err == nil:
			renewed = sent
		case ctx.Err() != nil:
			t.Fatalf("a heartbeat is held up: %v", err)
		case errors.Is(err, lock.ErrLeaseLost) && over():
			inTime = false
		case !errors.Is(err, lock.ErrUnavailable):
			t.Fatalf("a heartbeat: %v", err)
		}
	}
	eventually(t, "all know that the holder's sidecar knows", func() error {
		if renew(); !inTime {
			return nil
		}
		l.driver.mu.Lock()
		defer l.driver.mu.Unlock()
		for _, s := range l.driver.spots {
			if _, known := s.rec.known(); !known {
				return errors.New("they do not")
			}
		}
		return nil
	})
	road.Delay(0)
	for _, g := range holds {
		all.Go(func() { _ = l.Release(context.WithoutCancel(t.Context()), g.Resource, g.ID) })
	}
	all.Wait()
	return inTime
}

// TestForcedReleasesOfOneSidecar: the releases of many holds of one sidecar are forced at
// once, each of which is noted in the node of its lease. What that costs grows with their
// number, and not with its square.
func TestForcedReleasesOfOneSidecar(t *testing.T) { again(t, testForcedReleasesOfOneSidecar) }

func testForcedReleasesOfOneSidecar(t testing.TB) {
	s := testengine.New(t, testengine.ZooKeeper)
	_, l := sidecar(t, s.URL(), 15*time.Second)
	live(t, l)
	b, l2 := sidecar(t, s.URL(), 15*time.Second)
	live(t, l2)
	const n = 150
	holds := make([]lock.Grant, n)
	var all sync.WaitGroup
	for i := range holds {
		all.Go(func() { holds[i] = hold(t, l, lock.Resource(fmt.Sprintf("r-%d", i)), lock.Exclusive) })
	}
	all.Wait()
	h := &harness{server: s}
	before := h.Commands(t)
	for _, g := range holds {
		all.Go(func() {
			if err := b.ForceRelease(t.Context(), g.Resource, g.ID, 0); err != nil {
				t.Errorf("ForceRelease: %v", err)
			}
		})
	}
	all.Wait()
	if each := (h.Commands(t) - before) / n; each > 50 {
		t.Errorf("%d requests for each", each)
	}
}
