package zklock

import (
	"testing"
	"time"

	"github.com/locksidecar/locksidecar/internal/testengine"
	"github.com/locksidecar/locksidecar/lock"
)

// TestPausedLeaderHasNotHeardOfABeat: a follower answers a beat, and the leader pauses
// before the follower has told it of the session. When it goes on, it finds sessions
// expired by what it has heard before.
func TestPausedLeaderHasNotHeardOfABeat(t *testing.T) {
	t.Parallel()
	const ttl = 2 * time.Second
	server := testengine.New(t, testengine.ZooKeeperEnsemble)
	for range 3 { // the follower may just have told it
		lead, followers := leader(t, server)
		_, l := sidecar(t, "zk://"+followers[0].Addr(), ttl)
		opened := time.Now()
		b, other := sidecar(t, "zk://"+followers[1].Addr(), 30*time.Second)
		q := request(lock.Resource(lock.NewHoldID()), lock.Exclusive)
		g := hold(t, l, q.Resource, lock.Exclusive)
		w := queue(t, b, other, q)
		time.Sleep(time.Until(opened.Add(ttl * 17 / 20))) // the last moment for a beat that is in time
		sent := time.Now()
		if err := beat(t.Context(), l); err != nil {
			t.Fatalf("Heartbeat: %v", err)
		}
		resume := testengine.Pause(t, lead)
		time.Sleep(time.Until(opened.Add(ttl*17/10 + 100*time.Millisecond))) // less than followers wait for it
		resume()
		select {
		case <-w.done:
			t.Fatalf("another was granted %s after a beat that was answered: %v", w.at.Sub(sent), w.err)
		case <-time.After(time.Until(sent.Add(ttl))):
		}
		eventually(t, "the lease goes on", func() error { return beat(t.Context(), l) })
		release(t, l, g)
		release(t, other, w.granted())
	}
}
