package zklock_test

import (
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/locksidecar/locksidecar/arbiter"
	"github.com/locksidecar/locksidecar/backends/zklock"
	"github.com/locksidecar/locksidecar/internal/javatest"
	"github.com/locksidecar/locksidecar/internal/testengine"
	"github.com/locksidecar/locksidecar/lock"
)

const (
	interopTTL  = 30 * time.Second
	interopRoot = "/interop" // the chroot of all
	patience    = time.Minute
)

// curatorLayout opens a backend that locks the same paths as Curator.
func curatorLayout(t *testing.T, s testengine.Server) lock.Backend {
	t.Helper()
	b, err := zklock.Open(s.URL()+interopRoot+"?layout=curator&timeout=10s", nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := b.Close(); err != nil {
			t.Error(err)
		}
	})
	return b
}

// curator are the servers as Curator wants them.
func curator(s testengine.Server) string {
	return strings.TrimPrefix(s.URL(), "zk://") + interopRoot
}

// TestCurator: Java services that use Apache Curator and apps behind sidecars
// exclude each other on the same path.
func TestCurator(t *testing.T) {
	if testing.Short() {
		t.Skip("runs Java programs")
	}
	s := testengine.Shared(t, testengine.ZooKeeper)
	for _, kind := range []string{javatest.Mutex, javatest.ReadWrite} {
		t.Run(kind, func(t *testing.T) {
			t.Parallel()
			t.Run("Counter", func(t *testing.T) { testCuratorCounter(t, s, kind) })
			t.Run("TakeTurns", func(t *testing.T) { testCuratorTurns(t, s, kind) })
			t.Run("Parked", func(t *testing.T) { testCuratorParked(t, s, kind) })
			t.Run("Kept", func(t *testing.T) { testCuratorKept(t, s, kind) })
			t.Run("Detached", func(t *testing.T) { testCuratorDetached(t, s, kind) })
		})
	}
}

// testCuratorCounter: two Java processes and two sidecars increment one counter,
// and look at it under shared locks.
func testCuratorCounter(t *testing.T, s testengine.Server, kind string) {
	const (
		sides      = 2
		perPeer    = 40
		goroutines = 3 // of a sidecar
		perRoutine = 15
		looks      = 10
	)
	c := javatest.NewCounter(t)
	name := lock.Resource("counters/" + kind)
	var sidecars []*javatest.Sidecar
	var peers []*javatest.Peer
	for i := range sides {
		side := javatest.NewSidecar(t, curatorLayout(t, s), fmt.Sprintf("sidecar-%d", i), interopTTL)
		sidecars = append(sidecars, side)
		peers = append(peers, javatest.Curator(t, c, fmt.Sprintf("java-%d", i), curator(s), kind, "/"+string(name)))
	}
	var all sync.WaitGroup
	count := func(f func(javatest.Mode, int) error, writes int) {
		all.Go(func() {
			if err := errors.Join(f(javatest.Write, writes), f(javatest.Read, looks)); err != nil {
				t.Error(err)
			}
		})
	}
	for i := range sides {
		count(peers[i].Count, perPeer)
		count(func(m javatest.Mode, n int) error {
			return sidecars[i].Count(t.Context(), c, name, goroutines, m, n)
		}, perRoutine)
	}
	// Writers that are still there when the others have turned to reading, and the
	// other way round.
	for i := range sides {
		count(func(m javatest.Mode, n int) error {
			if m == javatest.Write {
				m = javatest.Read
			} else {
				m = javatest.Write
			}
			return sidecars[i].Count(t.Context(), c, name, 1, m, n)
		}, looks)
	}
	all.Wait()
	c.Check(t, sides*(perPeer+goroutines*perRoutine+looks))
}

// testCuratorTurns: each side finds the lock held while the other has it, and
// is let in when the other leaves.
func testCuratorTurns(t *testing.T, s testengine.Server, kind string) {
	const soon = 100 * time.Millisecond // of a wait that must be in vain
	c := javatest.NewCounter(t)
	name := lock.Resource("turns/" + kind)
	b := curatorLayout(t, s)
	side := javatest.NewSidecar(t, b, "sidecar", interopTTL)
	peer := javatest.Curator(t, c, "java", curator(s), kind, "/"+string(name))
	for _, tt := range []struct {
		java, ours javatest.Mode
		together   bool
	}{
		{javatest.Write, javatest.Write, false},
		{javatest.Write, javatest.Read, false},
		{javatest.Read, javatest.Write, false},
		{javatest.Read, javatest.Read, kind == javatest.ReadWrite}, // a mutex is never shared
	} {
		// Java is first.
		if !peer.Enter(tt.java, patience) {
			t.Fatalf("Java does not get a free lock (%s)", tt.java)
		}
		id, err := side.Try(t.Context(), name, tt.ours)
		if got := err == nil; got != tt.together || err != nil && !errors.Is(err, lock.ErrHeld) {
			t.Errorf("broken law: a try (%s) beside Java (%s): %v, want granted: %v", tt.ours, tt.java, err, tt.together)
		}
		if st, err := b.Get(t.Context(), name); err != nil || len(st.Holders) == 0 {
			t.Errorf("beside Java (%s) the holders are %+v, %v", tt.java, st.Holders, err)
		}
		peer.Leave(tt.java)
		if !tt.together {
			if id, err = side.Take(t.Context(), name, tt.ours); err != nil {
				t.Fatalf("after Java (%s): %v", tt.java, err)
			}
		}
		// We are first.
		if got := peer.Enter(tt.java, soon); got != tt.together {
			t.Errorf("broken law: Java (%s) beside us (%s): entered %v, want %v", tt.java, tt.ours, got, tt.together)
		} else if got {
			peer.Leave(tt.java)
		}
		if err := side.Release(t.Context(), name, id); err != nil {
			t.Fatal(err)
		}
	}
	if st, err := b.Get(t.Context(), name); err != nil || len(st.Holders)+len(st.Waiters) != 0 {
		t.Errorf("in the end: %+v, %v", st, err)
	}
}

// testCuratorParked: a lock that a sidecar keeps for nobody is free for Java.
func testCuratorParked(t *testing.T, s testengine.Server, kind string) {
	name := lock.Resource("parked/" + kind)
	local := arbiter.New(curatorLayout(t, s), arbiter.Options{Turns: arbiter.MaxTurns, Park: time.Hour})
	side := javatest.NewSidecar(t, local, "sidecar", interopTTL)
	peer := javatest.Curator(t, javatest.NewCounter(t), "java", curator(s), kind, "/"+string(name))
	for _, mode := range []javatest.Mode{javatest.Write, javatest.Read} {
		for deadline := time.Now().Add(patience); local.Stats().Parked == 0; {
			id, err := side.Take(t.Context(), name, javatest.Write)
			if err == nil {
				err = side.Release(t.Context(), name, id)
			}
			if err != nil || time.Now().After(deadline) {
				t.Fatalf("it is not parked: %v", err)
			}
		}
		if !peer.Enter(mode, patience) {
			t.Fatalf("Java (%s) does not get a lock that is parked", mode)
		}
		peer.Leave(mode)
	}
}

// curatorIsOut checks that Java does not enter beside a hold, but as a reader beside a reader.
func curatorIsOut(t *testing.T, peer *javatest.Peer, kind string, mode lock.Mode, when string) {
	t.Helper()
	const soon = 100 * time.Millisecond // of a wait that must be in vain
	if peer.Enter(javatest.Write, soon) {
		t.Errorf("broken law: Java (%s) entered beside a hold (%s) that is %s", javatest.Write, mode, when)
		peer.Leave(javatest.Write)
	}
	together := kind == javatest.ReadWrite && mode == lock.Shared
	if got := peer.Enter(javatest.Read, soon); got != together {
		t.Errorf("broken law: Java (%s) beside a hold (%s) that is %s: entered %v, want %v", javatest.Read, mode, when, got, together)
	} else if got {
		peer.Leave(javatest.Read)
	}
}

// testCuratorDetached: a detached hold keeps Java out, also while and after it is attached.
func testCuratorDetached(t *testing.T, s testengine.Server, kind string) {
	name := lock.Resource("detached/" + kind)
	b := curatorLayout(t, s)
	peer := javatest.Curator(t, javatest.NewCounter(t), "java", curator(s), kind, "/"+string(name))
	for _, mode := range []lock.Mode{lock.Exclusive, lock.Shared} {
		open := func() lock.Lease {
			l, err := b.OpenLease(t.Context(), lock.LeaseOptions{TTL: 30 * time.Second, Sidecar: "sidecar"})
			if err != nil {
				t.Fatal(err)
			}
			return l
		}
		out := func(when string) { curatorIsOut(t, peer, kind, mode, when) }
		l, key := open(), lock.NewSecret().Key()
		q := lock.Request{ID: lock.NewHoldID(), Resource: name, Mode: mode, Detachable: true}
		if _, err := l.Acquire(t.Context(), q); err != nil {
			t.Fatal(err)
		}
		if err := l.(lock.Detacher).Detach(t.Context(), name, q.ID, key, time.Hour); err != nil {
			t.Fatal(err)
		}
		if err := l.Close(t.Context()); err != nil {
			t.Fatal(err)
		}
		out("detached")
		l = open()
		if _, err := l.Acquire(t.Context(), lock.Request{ID: lock.NewHoldID(), Resource: name, Mode: mode, Handle: key}); err != nil {
			t.Fatal(err)
		}
		out("attached")
		if err := l.Close(t.Context()); err != nil {
			t.Fatal(err)
		}
		out("of a sidecar that has ended")
		if _, err := b.(lock.Handles).SetHandle(t.Context(), name, key, 0); err != nil {
			t.Fatal(err)
		}
		if !peer.Enter(javatest.Write, patience) {
			t.Fatal("Java does not get a lock that nothing is left of")
		}
		peer.Leave(javatest.Write)
	}
}

// testCuratorKept: a hold with a MinHold keeps Java out when it is released, and when its sidecar has ended.
func testCuratorKept(t *testing.T, s testengine.Server, kind string) {
	name := lock.Resource("kept/" + kind)
	b := curatorLayout(t, s)
	peer := javatest.Curator(t, javatest.NewCounter(t), "java", curator(s), kind, "/"+string(name))
	for _, mode := range []lock.Mode{lock.Exclusive, lock.Shared} {
		l, err := b.OpenLease(t.Context(), lock.LeaseOptions{TTL: 30 * time.Second, Sidecar: "sidecar"})
		if err != nil {
			t.Fatal(err)
		}
		q := lock.Request{ID: lock.NewHoldID(), Resource: name, Mode: mode, MinHold: time.Hour}
		if _, err := l.Acquire(t.Context(), q); err != nil {
			t.Fatal(err)
		}
		out := func(when string) { curatorIsOut(t, peer, kind, mode, when) }
		out("held")
		if err := l.Release(t.Context(), name, q.ID); err != nil {
			t.Fatal(err)
		}
		out("released")
		if err := l.Close(t.Context()); err != nil {
			t.Fatal(err)
		}
		out("of a sidecar that has ended")
		if err := b.ForceRelease(t.Context(), name, q.ID, time.Hour); err != nil {
			t.Fatal(err)
		}
		if !peer.Enter(javatest.Write, patience) {
			t.Fatal("Java does not get a lock that nothing is left of")
		}
		peer.Leave(javatest.Write)
	}
}
