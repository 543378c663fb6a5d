package localapi

import (
	"sync"
	"sync/atomic"
)

// maxIdle bounds the goroutines that wait for work: some 8 KiB each.
const maxIdle = 32

// workers run functions on goroutines of their own. Unlike those of a go
// statement they are used again, with stacks that have grown to what a request
// needs: growing them anew for each took a tenth of the time of a request.
type workers struct {
	jobs    chan func()
	idle    atomic.Int32
	running *sync.WaitGroup
	stop    <-chan struct{} // ends the idle ones
}

// run starts f.
func (w *workers) run(f func()) {
	select {
	case w.jobs <- f: // an idle one takes it
	default:
		w.running.Go(func() { w.work(f) })
	}
}

func (w *workers) work(f func()) {
	for {
		f()
		if w.idle.Add(1) > maxIdle {
			w.idle.Add(-1)
			return
		}
		select {
		case f = <-w.jobs:
			w.idle.Add(-1)
		case <-w.stop:
			w.idle.Add(-1)
			return
		}
	}
}
