package caslock

import (
	"context"
	"slices"

	"github.com/locksidecar/locksidecar/backends/leasekit"
	"github.com/locksidecar/locksidecar/lock"
)

// This file is about holds that were granted since the last heartbeat. A store that has the beat of that one has all that came
// before it. A backup that is younger may lack what was granted since, and others may have changed so much meanwhile that nothing else shows it. So
// the next heartbeat looks at each of these holds. That the last one is there does not do: it may have been granted after the backup came back.

var _ leasekit.Sorter = (*lease)(nil)

// fresh is such a hold.
type fresh struct {
	id      lock.HoldID
	key     string // of its entry,
	version int64  // and what that has
	fence   lock.Fence
	moves   bool // its entry is being written again: then that may have a later version, with the same fence
}

const (
	// shownAtOnce is how many of them one request reads, and mostShown how many a heartbeat looks at: it must not be
	// late because thousands were granted. The next ones look at the others.
	shownAtOnce = 100
	mostShown   = 11 * shownAtOnce
)

// granted notes a hold.
func (l *lease) granted(r lock.Resource, id lock.HoldID, version int64, fence lock.Fence) {
	l.mu.Lock()
	defer l.mu.Unlock()
	delete(l.asked, id)
	l.fresh[id] = fresh{id: id, key: entryKey(l.id, r, string(id)), version: version, fence: fence}
}

// moves notes that the lease has the entry of a hold written again. Before that is answered a heartbeat may see it.
func (l *lease) moves(id lock.HoldID) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.moving[id] = true
	if f, known := l.fresh[id]; known {
		f.moves = true
		l.fresh[id] = f
	}
}

// stays notes that this has ended, and tells whether the hold is there still, as far as it is known: the answer may be late.
func (l *lease) stays(id lock.HoldID) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	defer delete(l.moving, id)
	return l.moving[id]
}

// forget notes that a hold ends, or may have ended.
func (l *lease) forget(id lock.HoldID) {
	l.mu.Lock()
	defer l.mu.Unlock()
	delete(l.fresh, id)
	delete(l.moving, id)
}

// toShow are the holds that a heartbeat looks at.
func (l *lease) toShow() []fresh {
	l.mu.Lock()
	defer l.mu.Unlock()
	some := make([]fresh, 0, min(len(l.fresh), mostShown))
	for _, f := range l.fresh { // in no order, so each has its turn
		if len(some) == mostShown {
			break
		}
		some = append(some, f)
	}
	return some
}

// readsOf reads them.
func readsOf(some []fresh) (read []Range) {
	for _, f := range some {
		read = append(read, Range{Key: f.key})
	}
	return read
}

// shown takes what was read of some of them. Where one is not there, or is another one, the store went back.
func (l *lease) shown(some []fresh, found []Found) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for i, f := range some {
		if l.fresh[f.id] != f { // it was released meanwhile
			continue
		}
		if kv, _ := found[i].one(); kv.Version != f.version && !f.moved(kv) {
			l.b.fell()
			return
		}
		delete(l.fresh, f.id)
	}
}

// moved tells whether an entry that is being written again may have become that. What was granted again has another fence.
func (f fresh) moved(kv KV) bool {
	return f.moves && kv.Version > f.version && decode[entry](kv).fence() == f.fence
}

// showMore looks at those that one request could not read. What fails, the next heartbeat looks at.
func (l *lease) showMore(ctx context.Context, more []fresh) {
	_ = each(slices.Collect(slices.Chunk(more, shownAtOnce)), func(some []fresh) error {
		r, err := l.b.do(ctx, "heartbeat", Txn{Read: readsOf(some)})
		if err == nil {
			l.shown(some, r.Reads)
		}
		return err
	})
}

// Waiting implements leasekit.Sorter. What has another fence was granted again: others may have had it in between.
func (l *lease) Waiting(ctx context.Context, holds []leasekit.Hold) (waiting []leasekit.Ref, _ error) {
	for some := range slices.Chunk(holds, MaxParts) {
		var read []Range
		for _, h := range some {
			read = append(read, Range{Key: entryKey(l.id, h.Resource, string(h.ID))})
		}
		r, err := l.b.do(ctx, "compare", Txn{Read: read})
		if err != nil {
			return nil, l.b.unavailable("compare", err)
		}
		for i, h := range some {
			kv, _ := r.Reads[i].one()
			if e := decode[entry](kv); !e.held() || e.fence() != h.Fence {
				waiting = append(waiting, h.Ref)
			}
		}
	}
	return waiting, nil
}
