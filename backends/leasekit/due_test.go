package leasekit

import (
	"context"
	"slices"
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
			d.Run(ctx, func(k string) {
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
		if len(d.at) > 0 {
			t.Errorf("left are %v", d.at)
		}
	})
}
