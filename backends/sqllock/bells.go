package sqllock

import (
	"context"
	"sync"

	"github.com/locksidecar/locksidecar/backends/leasekit"
	"github.com/locksidecar/locksidecar/lock"
)

// bells are those of other sidecars that are to be rung. Many that come at the same
// time are rung with one request.
type bells struct {
	b    *Backend
	some chan struct{} // has a value when there may be some

	mu  sync.Mutex
	ids map[lock.LeaseID]bool
}

// maxRung is how many bells one request rings.
const maxRung = 64

func newBells(b *Backend) *bells {
	return &bells{b: b, some: make(chan struct{}, 1), ids: make(map[lock.LeaseID]bool)}
}

func (r *bells) ring(id lock.LeaseID) {
	r.mu.Lock()
	r.ids[id] = true
	r.mu.Unlock()
	leasekit.Ring(r.some)
}

func (r *bells) take() (ids []lock.LeaseID) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for id := range r.ids {
		if ids = append(ids, id); len(ids) == maxRung {
			break
		}
	}
	for _, id := range ids {
		delete(r.ids, id)
	}
	return ids
}

// run rings bells until ctx ends. Where it fails, those who wait look for themselves.
func (r *bells) run(ctx context.Context) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-r.some:
		}
		for ids := r.take(); len(ids) > 0 && ctx.Err() == nil; ids = r.take() {
			_ = r.b.d.Ring(ctx, r.b.rings, ids)
		}
	}
}
