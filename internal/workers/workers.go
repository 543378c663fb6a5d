// Package workers runs functions on goroutines that are used again.
package workers

import (
	"sync"
	"sync/atomic"
)

// maxIdle bounds the goroutines that wait for work: some 8 KiB each, which the garbage
// collector makes less while they wait. With fewer of them than requests that wait for
// the store at the same time, each answer ends some, and each request grows a new stack.
const maxIdle = 128

// Pool runs functions on goroutines of its own. Unlike those of a go statement
// they are used again, with stacks that have grown to what a request needs:
// growing them for each took a tenth of the time of a request.
type Pool struct {
	jobs chan func()
	idle atomic.Int32
	all  sync.WaitGroup
	stop chan struct{} // ends the idle ones
}

// New makes a pool. Close must follow.
func New() *Pool { return &Pool{jobs: make(chan func()), stop: make(chan struct{})} }

// Run starts f and returns at once. It must not come after Close.
func (p *Pool) Run(f func()) {
	select {
	case p.jobs <- f: // an idle one takes it
	default:
		p.all.Go(func() { p.work(f) })
	}
}

// Close waits for everything that was started.
func (p *Pool) Close() {
	close(p.stop)
	p.all.Wait()
}

func (p *Pool) work(f func()) {
	for {
		f()
		if p.idle.Add(1) > maxIdle {
			p.idle.Add(-1)
			return
		}
		select {
		case f = <-p.jobs:
			p.idle.Add(-1)
		case <-p.stop:
			p.idle.Add(-1)
			return
		}
	}
}
