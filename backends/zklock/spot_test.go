package zklock

import (
	"errors"
	"sync/atomic"
	"testing"
	"time"

	"github.com/locksidecar/locksidecar/internal/testengine"
	"github.com/locksidecar/locksidecar/lock"
)

// TestNotesHoldUpNoWatch: it is written into the node of a hold how long it was waited for, and
// the server takes long for that. The next holds are watched all the same.
func TestNotesHoldUpNoWatch(t *testing.T) { again(t, testNotesHoldUpNoWatch) }

func testNotesHoldUpNoWatch(t testing.TB) {
	s := testengine.Shared(t, testengine.ZooKeeper)
	b := openAt(t, s.URL()+"/notes")
	t.Cleanup(func() { _ = b.Close() })
	noting, noted := make(chan struct{}), make(chan struct{})
	var armed atomic.Bool
	b.observe = func(command string, _ time.Duration, _ error) {
		if command == "set" && armed.CompareAndSwap(true, false) {
			close(noting)
			<-noted
		}
	}
	l := newLease(t, b, 30*time.Second)
	defer close(noted)
	told := events(t, l)
	_, other := sidecar(t, s.URL()+"/notes", 30*time.Second)
	g := hold(t, other, "waited for", lock.Exclusive)
	w := queue(t, b, l, request(g.Resource, lock.Exclusive))
	time.Sleep(2 * lastsAfter) // it is worth a note
	armed.Store(true)
	release(t, other, g)
	w.granted()
	<-noting
	next := hold(t, l, "next", lock.Exclusive)
	path, _ := b.tree.lockPath(next.Resource)
	if err := stranger(t, s.URL()).Delete(path+"/"+nodes(t, b, s.URL(), next.Resource)[0], -1); err != nil {
		t.Fatal(err)
	}
	eventually(t, "its holder is told that it is gone", func() error {
		if len(told.all(next.ID)) == 0 {
			return errors.New("it is not")
		}
		return nil
	})
}
