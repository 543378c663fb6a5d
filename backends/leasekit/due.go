package leasekit

import (
	"container/heap"
	"context"
	"sync"
	"time"

	"github.com/locksidecar/locksidecar/lock"
)

// Due has something done for each key when its time has come: a hold is ended whose release
// is forced, when the grace is over. There may be very many.
type Due[K comparable] struct {
	clock lock.Clock
	bell  chan struct{} // has a value when the next one may be another

	mu   sync.Mutex
	at   map[K]*dueAt[K]
	next dueHeap[K] // the same, the earliest first
}

type dueAt[K comparable] struct {
	key K
	at  time.Duration
	i   int // in the heap
}

// NewDue makes a Due in which there is nothing, for Run to run.
func NewDue[K comparable](clock lock.Clock) *Due[K] {
	return &Due[K]{clock: clock, bell: make(chan struct{}, 1), at: make(map[K]*dueAt[K])}
}

// In says that the time of k has come after so long. Where that was said before, the
// earliest counts.
func (d *Due[K]) In(k K, after time.Duration) {
	at := d.clock() + after
	d.mu.Lock()
	defer d.mu.Unlock()
	switch was := d.at[k]; {
	case was == nil:
		was = &dueAt[K]{key: k, at: at}
		d.at[k] = was
		heap.Push(&d.next, was)
	case at < was.at:
		was.at = at
		heap.Fix(&d.next, was.i)
	}
	if d.next[0].key == k {
		Ring(d.bell)
	}
}

// Forget says that nothing has to be done for k.
func (d *Due[K]) Forget(k K) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if was := d.at[k]; was != nil {
		heap.Remove(&d.next, was.i)
		delete(d.at, k)
	}
}

// Len is for how many keys something has to be done.
func (d *Due[K]) Len() int {
	d.mu.Lock()
	defer d.mu.Unlock()
	return len(d.at)
}

// Run calls do for each key whose time has come, so many at a time, until ctx ends: where one takes long, the others do not wait for it.
func (d *Due[K]) Run(ctx context.Context, atATime int, do func(K)) {
	var doing sync.WaitGroup
	defer doing.Wait()
	places := make(chan struct{}, atATime)
	t := time.NewTimer(0)
	defer t.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-d.bell:
		case <-t.C:
		}
		for k, over := d.over(); over; k, over = d.over() {
			select {
			case <-ctx.Done():
				return
			case places <- struct{}{}:
			}
			doing.Go(func() {
				defer func() { <-places }()
				do(k)
			})
		}
		t.Reset(d.pause())
	}
}

// over takes a key whose time has come.
func (d *Due[K]) over() (k K, over bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if len(d.next) == 0 || d.next[0].at > d.clock() {
		return k, false
	}
	k = heap.Pop(&d.next).(*dueAt[K]).key
	delete(d.at, k)
	return k, true
}

// pause is the time until the next one.
func (d *Due[K]) pause() time.Duration {
	d.mu.Lock()
	defer d.mu.Unlock()
	if len(d.next) == 0 {
		return lock.MaxTTL
	}
	return max(0, d.next[0].at-d.clock())
}

// dueHeap is a heap.Interface.
type dueHeap[K comparable] []*dueAt[K]

func (h dueHeap[K]) Len() int           { return len(h) }
func (h dueHeap[K]) Less(i, j int) bool { return h[i].at < h[j].at }
func (h dueHeap[K]) Swap(i, j int) {
	h[i], h[j] = h[j], h[i]
	h[i].i, h[j].i = i, j
}

func (h *dueHeap[K]) Push(x any) {
	d := x.(*dueAt[K])
	d.i = len(*h)
	*h = append(*h, d)
}

func (h *dueHeap[K]) Pop() any {
	last := len(*h) - 1
	d := (*h)[last]
	(*h)[last] = nil
	*h = (*h)[:last]
	return d
}
