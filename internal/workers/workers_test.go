package workers

import (
	"sync/atomic"
	"testing"
	"testing/synctest"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// TestPool: all that is started runs at the same time, few goroutines are kept,
// and Close waits for all.
func TestPool(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := New()
		var ran atomic.Int32
		goOn := make(chan struct{})
		for range 3 * maxIdle {
			p.Run(func() {
				ran.Add(1)
				<-goOn
			})
		}
		synctest.Wait()
		if n := ran.Load(); n != 3*maxIdle {
			t.Errorf("%d run at the same time, want all", n)
		}
		close(goOn)
		synctest.Wait()
		if n := p.idle.Load(); n != maxIdle {
			t.Errorf("%d are kept, want %d", n, maxIdle)
		}
		p.Run(func() { ran.Add(1) })
		synctest.Wait()
		if n := p.idle.Load(); n != maxIdle || ran.Load() != 3*maxIdle+1 {
			t.Errorf("%d are kept after one more", n)
		}
		p.Close()
	})
}
