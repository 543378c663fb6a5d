package redislock

import (
	"context"
	"errors"
	"sync"
	"testing"
	"time"

	"github.com/locksidecar/locksidecar/internal/testengine"
	"github.com/locksidecar/locksidecar/lock"
)

// Also among a thousand permits a forced one is over when its grace is, though nobody takes it out:
// a waiter is told when that is, and gets its slot then; so does a try (law 2).
func TestScriptsForcedAmongManyPermits(t *testing.T) {
	const many, mode = 1000, "P1000"
	s := newStill(t)
	for _, lease := range []string{"aa", "bb"} {
		s.open(lease)
	}
	ids := s.crowd(many, "aa", mode, "w")
	s.counts(many, 0)
	revoke := func(i int, grace int64) {
		t.Helper()
		s.force("aa", ids[i], grace)
		s.want(s.ack("aa", ids[i], grace), "1")
	}
	revoke(7, 3*second)
	revoke(700, 5*second)
	revoke(70, 6*second)
	revoke(77, 6*second)
	s.force("aa", ids[8], second) // nobody acknowledges it
	waits := func(at int64, id, want string) {
		t.Helper()
		s.at(at)
		s.want(s.acquire("bb", id, mode), want)
	}
	waits(2*second, "1", "[WAIT 1000]")
	waits(3*second-1, "1", "[WAIT 1]")
	waits(3*second, "1", "T+3s+7")
	waits(3*second, "2", "[WAIT 2000]")
	s.want(s.release("aa", ids[700]), "1") // before its grace is over
	waits(3*second, "2", "T+3s+2+700")
	waits(5*second, "3", "[WAIT 1000]")
	s.at(6 * second)
	s.want(s.try("bb", "4", mode), "T+6s+1+77") // 3 stands before it, and has slot 70
	waits(6*second, "3", "T+6s+70")
	waits(6*second, "5", "[WAIT 4000]") // the others last as long as their lease
	s.has("queue", "5=T+6s+2")
	s.counts(many, 1)
}

// A server takes over that lacks the last grant. There the holder is a waiter still, and is
// granted another slot, because another permit is released before its sidecar comes. The slot that
// its app was told goes to somebody else then: so the app is told that its hold is lost.
func TestPermitWithAnotherSlotOnTheNewServer(t *testing.T) {
	s := testengine.New(t, testengine.Redis)
	first, _ := sidecar(t, s.URL()+noGrace, 30*time.Second)
	roads, leases := make([]*testengine.Proxy, 3), make([]lock.Lease, 3)
	for i := range roads {
		roads[i] = testengine.Through(t, s)
		_, leases[i] = sidecar(t, roads[i].URL()+noGrace, 30*time.Second)
	}
	ask := func(l lock.Lease) (lock.Grant, error) {
		ctx, cancel := context.WithTimeout(t.Context(), patience)
		defer cancel()
		return acquire(ctx, l, lock.Request{ID: lock.NewHoldID(), Resource: "r", Mode: lock.Permits(2)})
	}
	var before []lock.Grant
	for _, l := range leases[:2] {
		g, err := ask(l)
		if err != nil {
			t.Fatal(err)
		}
		before = append(before, g)
	}
	var got lock.Grant
	var err error
	var waits sync.WaitGroup
	waits.Go(func() { got, err = ask(leases[2]) })
	eventually(t, "it stands in the queue", func() error {
		st, err := first.Get(t.Context(), "r")
		if err == nil && len(st.Waiters) != 1 {
			err = errors.New("not yet")
		}
		return err
	})
	fork := testengine.Nodes(t, testengine.ForkRedis(t, s))[0].Addr()
	if err := release(t.Context(), leases[0], "r", before[0].ID); err != nil {
		t.Fatal(err)
	}
	waits.Wait()
	if err != nil || got.Fence.Slot() != before[0].Fence.Slot() {
		t.Fatalf("the waiter got slot %d, %v", got.Fence.Slot(), err)
	}
	over := func(i int) (news []lock.Event) {
		t.Helper()
		roads[i].Retarget(fork)
		roads[i].Inject(testengine.Sever)
		eventually(t, "a heartbeat is answered", func() (err error) {
			news, err = leases[i].Heartbeat(t.Context())
			return err
		})
		return news
	}
	if news := over(1); len(news) > 0 {
		t.Errorf("news for who was granted before: %+v", news)
	}
	if err := release(t.Context(), leases[1], "r", before[1].ID); err != nil {
		t.Fatal(err)
	}
	if news := over(2); len(news) != 1 || news[0].Kind != lock.Vanished || news[0].ID != got.ID {
		t.Errorf("Heartbeat: got %+v, want that %s has vanished", news, got.ID)
	}
}
