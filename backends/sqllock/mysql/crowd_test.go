package mysql

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/locksidecar/locksidecar/internal/testengine"
	"github.com/locksidecar/locksidecar/lock"
)

func TestCrowdProfile(t *testing.T) {
	s := testengine.Shared(t, kinds[0])
	var mu sync.Mutex
	type st struct {
		n   int
		sum time.Duration
		max time.Duration
	}
	stats := map[string]*st{}
	obs := func(c string, d time.Duration, err error) {
		mu.Lock()
		defer mu.Unlock()
		x := stats[c]
		if x == nil {
			x = &st{}
			stats[c] = x
		}
		x.n++
		x.sum += d
		x.max = max(x.max, d)
	}
	b := openWith(t, s.URL(), obs)
	defer b.Close()
	b2 := openWith(t, s.URL(), obs)
	defer b2.Close()
	l, err := b.OpenLease(t.Context(), lock.LeaseOptions{TTL: 30 * time.Second, Sidecar: "x"})
	if err != nil {
		t.Fatal(err)
	}
	l2, _ := b2.OpenLease(t.Context(), lock.LeaseOptions{TTL: 30 * time.Second, Sidecar: "y"})
	g, _ := l.Acquire(t.Context(), exclusive("cr"))
	var wg sync.WaitGroup
	for range 10000 {
		q := exclusive("cr")
		q.Mode = lock.Shared
		wg.Go(func() { l2.Acquire(context.Background(), q) })
	}
	for {
		st, _ := b.Get(t.Context(), "cr")
		if len(st.Waiters) == 10000 {
			break
		}
		time.Sleep(100 * time.Millisecond)
	}
	mu.Lock()
	clear(stats)
	mu.Unlock()
	start := time.Now()
	l.Release(t.Context(), "cr", g.ID)
	go func() {
		for range 30 {
			time.Sleep(time.Second)
			st, _ := b.Get(t.Context(), "cr")
			fmt.Println(time.Since(start), len(st.Holders), len(st.Waiters))
			if len(st.Waiters) == 0 {
				return
			}
		}
	}()
	wg.Wait()
	t.Log(time.Since(start))
	mu.Lock()
	for c, x := range stats {
		t.Log(c, x.n, x.sum, x.max)
	}
	mu.Unlock()
	l.Close(t.Context())
	l2.Close(t.Context())
}
