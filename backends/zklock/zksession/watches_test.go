package zksession

import (
	"context"
	"encoding/binary"
	"errors"
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
		c.OnEvent = func(ev Event) {
			mu.Lock()
			defer mu.Unlock()
			told[ev.Path]++
		}
	})
	other := open(t, server.URL(), nil)
	const nodes, rounds = 1500, 30
	path := func(i int) string { return fmt.Sprintf("/across-%x-%05d", other.ID(), i) }
	var all []*Call
	for i := range nodes {
		all = append(all, Create(path(i), nil, world, Ephemeral))
	}
	if err := other.Together(t.Context(), all...); err != nil {
		t.Fatal(err)
	}
	watch := func() (err error) {
		var all []*Call
		for i := range nodes {
			all = append(all, Watch(path(i)))
		}
		if err := s.Together(t.Context(), all...); err != nil {
			return err
		}
		for _, w := range all {
			err = errors.Join(err, w.Err)
		}
		return err
	}
	for deadline := time.Now().Add(patience); ; {
		err := watch()
		if err == nil {
			break
		}
		if time.Now().After(deadline) {
			t.Fatalf("watches are not set: %v", err)
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
		c := Watch(path)
		w := s.watch(c)
		close(asked)
		<-answered
		s.watched(c, w)
	})
	<-asked
	s.happened(Event{Path: path})
	s.watch(Watch(path))
	close(answered)
	late.Wait()
	request := binary.BigEndian.AppendUint32(make([]byte, 12), uint32(len(path)))
	request = append(append(request, path...), 0)
	if s.marked(request, true); request[len(request)-1] != 0 {
		t.Error("the children are watched, too")
	}
	if s.marked(request, false); request[len(request)-1] != 1 {
		t.Error("the watch is not set again")
	}
}

// TestWatchChildren: a child that comes or goes is told once, also one between two connections;
// the node's own data is another thing.
func TestWatchChildren(t *testing.T) {
	t.Parallel()
	server := testengine.Shared(t, testengine.ZooKeeper)
	road := testengine.Through(t, server)
	var told events
	back := make(chan struct{}, 10)
	s := open(t, road.URL(), func(c *Config) { c.OnEvent, c.OnReconnect = told.add, func() { back <- struct{}{} } })
	other := open(t, server.URL(), nil)
	node := fmt.Sprintf("/below-%x", other.ID())
	below, deleted := Event{Path: node, Below: true}, Event{Path: node, Deleted: true}
	must(t, other, Create(node, nil, world, Persistent))
	for _, change := range []*Call{
		Create(node+"/a", nil, world, Ephemeral),
		Delete(node+"/a", AnyVersion),
	} {
		must(t, s, WatchChildren(node))
		must(t, s, WatchChildren(node))
		must(t, s, Watch(node))
		must(t, other, change)
		told.take(t, below)
		must(t, other, Set(node, nil, AnyVersion))
		told.take(t, Event{Path: node})
	}

	// In one round trip with the create of a child, which is none of the news.
	own, list := Create(node+"/b", nil, world, Ephemeral), WatchChildren(node)
	if err := s.Chase(t.Context(), own, list); err != nil || own.Err != nil || list.Err != nil || len(list.Children) != 1 {
		t.Fatalf("%v, %v, %v: %v", err, own.Err, list.Err, list.Children)
	}
	road.Inject(testengine.Sever)
	must(t, other, Create(node+"/c", nil, world, Ephemeral))
	select {
	case <-back:
	case <-time.After(patience):
		t.Fatal("it does not connect again")
	}
	told.take(t, below)

	must(t, other, Delete(node+"/c", AnyVersion))
	must(t, s, Delete(node+"/b", AnyVersion))
	must(t, s, WatchChildren(node))
	must(t, other, Delete(node, AnyVersion))
	told.take(t, deleted)
	missing := WatchChildren(node)
	if err := s.Do(t.Context(), missing); err != nil || !errors.Is(missing.Err, ErrNoNode) {
		t.Errorf("of a node that is not there: %v, %v", err, missing.Err)
	}
}
