package leasekit

import (
	"context"
	"runtime"
	"slices"
	"strconv"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

// Each is done once, when its time has come: the earliest that was said. What was forgotten
// is not done, and what fails may be said again.
func TestDue(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		start := time.Now()
		d := NewDue[string](func() time.Duration { return time.Since(start) })
		var did []string
		var tasks sync.WaitGroup
		ctx, cancel := context.WithCancel(t.Context())
		tasks.Go(func() {
			d.Run(ctx, 1, func(k string) {
				did = append(did, k+" "+time.Since(start).String())
				if k == "again" && len(did) == 3 {
					d.In(k, time.Second)
				}
			})
		})
		d.In("late", time.Hour)
		synctest.Wait()
		d.In("sooner", 5*time.Second)
		d.In("sooner", 2*time.Second)
		d.In("sooner", 9*time.Second)
		d.In("forgotten", 3*time.Second)
		d.In("now", 0)
		d.In("again", 4*time.Second)
		d.Forget("forgotten")
		time.Sleep(2 * time.Hour)
		cancel()
		tasks.Wait()
		if want := []string{"now 0s", "sooner 2s", "again 4s", "again 5s", "late 1h0m0s"}; !slices.Equal(did, want) {
			t.Errorf("done is %v, want %v", did, want)
		}
		if d.Len()+len(d.next) > 0 {
			t.Errorf("left are %v, %v", d.at, d.next)
		}
	})
}

// What takes long holds up nobody, as long as there are not too many of it. Nothing is done before its time.
func TestDueWhereSomeTakeLong(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		start := time.Now()
		d := NewDue[int](func() time.Duration { return time.Since(start) })
		var mu sync.Mutex
		done := make(map[int]time.Duration)
		var tasks sync.WaitGroup
		ctx, cancel := context.WithCancel(t.Context())
		const slow, most = 3, 4
		tasks.Go(func() {
			d.Run(ctx, most, func(k int) {
				if k%100 < slow {
					time.Sleep(time.Hour)
				}
				mu.Lock()
				defer mu.Unlock()
				done[k] = time.Since(start)
			})
		})
		in := make(map[int]time.Duration)
		for i := range 100 {
			in[i] = time.Duration(i+1) * time.Second
		}
		for i, at := range in { // in any order
			d.In(i, at)
		}
		time.Sleep(30 * time.Minute)
		mu.Lock()
		for i, at := range in {
			if i >= slow && done[i] != at {
				t.Errorf("%d was done after %s, want %s", i, done[i], at)
			}
		}
		mu.Unlock()
		cancel()
		tasks.Wait()
		if len(done) != len(in) {
			t.Errorf("%d were done, want that Run waits for all %d", len(done), len(in))
		}
	})
}

// BenchmarkDue measures what it takes to say one more where there are many.
func BenchmarkDue(b *testing.B) {
	for _, n := range []int{1000, 100_000} {
		b.Run(strconv.Itoa(n), func(b *testing.B) {
			start := time.Now()
			d := NewDue[int](func() time.Duration { return time.Since(start) })
			var tasks sync.WaitGroup
			ctx, cancel := context.WithCancel(b.Context())
			tasks.Go(func() { d.Run(ctx, 1, func(int) {}) })
			for i := range n {
				d.In(i, time.Hour)
			}
			for i := n; b.Loop(); i++ { // each is sooner than those before
				d.In(i, time.Hour-time.Duration(i)*time.Millisecond/100)
				for len(d.bell) > 0 {
					runtime.Gosched()
				}
			}
			cancel()
			tasks.Wait()
		})
	}
}
