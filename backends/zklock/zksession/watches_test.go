package zksession

import (
	"context"
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"github.com/locksidecar/locksidecar/internal/testengine"
)

// TestWatchesAcrossConnections: connections end again and again while thousands of nodes
// are watched and requests are under way on each new one from its first moment. Whatever
// happens to a watched node is told, and nothing races.
func TestWatchesAcrossConnections(t *testing.T) {
	t.Parallel()
	server := testengine.Shared(t, testengine.ZooKeeper)
	road := testengine.Through(t, server)
	var mu sync.Mutex
	told := make(map[string]int)
	s := open(t, road.URL(), func(c *Config) {
		c.SessionTimeout = 20 * time.Second
		c.OnEvent = func(ev Event) {
			mu.Lock()
			defer mu.Unlock()
			told[ev.Path]++
		}
	})
	other := open(t, server.URL(), func(c *Config) { c.Timeout = 5 * time.Second })
	const nodes, rounds = 1500, 30
	path := func(i int) string { return fmt.Sprintf("/across-%x-%05d", other.ID(), i) }
	var all []*Call
	for i := range nodes {
		all = append(all, Create(path(i), nil, world, Ephemeral))
	}
	if err := other.Together(t.Context(), all...); err != nil {
		t.Fatal(err)
	}
	for i := range nodes {
		for deadline := time.Now().Add(patience); ; {
			watch := Watch(path(i))
			if err := s.Do(t.Context(), watch); err == nil && watch.Err == nil {
				break
			}
			if time.Now().After(deadline) {
				t.Fatalf("a watch is not set: %v", watch.Err)
			}
		}
	}
	ctx, stop := context.WithCancel(t.Context())
	var beside sync.WaitGroup
	for range 4 {
		beside.Go(func() {
			for ctx.Err() == nil {
				_ = s.Do(ctx, Get("/"))
			}
		})
	}
	for i := range rounds {
		must(t, other, Set(path(i), nil, AnyVersion))
		for range 5 { // also before the last one has asked for its watches
			road.Inject(testengine.Sever)
			time.Sleep(time.Duration(rand.IntN(6000)) * time.Microsecond)
		}
	}
	for deadline := time.Now().Add(2 * patience); ; time.Sleep(10 * time.Millisecond) {
		missed := 0
		mu.Lock()
		for i := range rounds {
			if told[path(i)] == 0 {
				missed++
			}
		}
		mu.Unlock()
		if missed == 0 {
			break
		}
		if time.Now().After(deadline) {
			t.Fatalf("of %d changes %d were not told", rounds, missed)
		}
	}
	stop()
	beside.Wait()
	mu.Lock()
	defer mu.Unlock()
	if n := len(told); n > rounds {
		t.Errorf("%d nodes are said to have changed, and %d have", n, rounds)
	}
}

// TestLateAnswerOfAWatch: a read is answered late, after its watch has told of a change. It
// does not count for the next read, which has to set the watch again.
func TestLateAnswerOfAWatch(t *testing.T) {
	s := &Session{watches: newWatches()}
	const path = "/node"
	asked, answered := make(chan struct{}), make(chan struct{})
	var late sync.WaitGroup
	late.Go(func() {
		s.watch(Watch(path), func() {
			close(asked)
			<-answered
		})
	})
	<-asked
	s.happened(Event{Path: path})
	s.watch(Watch(path), func() {
		close(answered)
		late.Wait()
		request := binary.BigEndian.AppendUint32(make([]byte, 12), uint32(len(path)))
		request = append(append(request, path...), 0)
		if s.marked(request); request[len(request)-1] != 1 {
			t.Error("the watch is not set again")
		}
	})
}
