package caslock

import (
	"context"
	"slices"
	"strings"

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
	no      uint64 // counts what was granted
	moves   bool   // its entry is being written again: then that may have a later version, with the same fence
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
	l.notes(r, id, version, fence)
}

// notes is granted. l.mu is held.
func (l *lease) notes(r lock.Resource, id lock.HoldID, version int64, fence lock.Fence) {
	delete(l.asked, id)
	l.grants++
	l.fresh[id] = fresh{id: id, key: entryKey(l.id, r, string(id)), version: version, fence: fence, no: l.grants}
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

// moved notes that this has ended, and, where it was done, what the entry is now. The answer may be late: the hold may have ended meanwhile.
func (l *lease) moved(r leasekit.Ref, o *op, done bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if done && l.moving[r.ID] {
		l.notes(r.Resource, r.ID, o.version, o.fence())
	}
	delete(l.moving, r.ID)
}

// forget notes that a hold ends, or may have ended.
func (l *lease) forget(id lock.HoldID) {
	l.mu.Lock()
	defer l.mu.Unlock()
	delete(l.fresh, id)
	delete(l.moving, id)
}

// forgetForced is forget of those whose release is forced.
func (l *lease) forgetForced(kvs []KV) error {
	for _, kv := range kvs {
		_, id := refOf(strings.TrimPrefix(kv.Key, forcedOf(l.id)))
		l.forget(lock.HoldID(id))
	}
	return nil
}

// toShow are the holds that a heartbeat looks at, and the number of the last one that was granted.
func (l *lease) toShow() (some []fresh, last uint64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	some = make([]fresh, 0, min(len(l.fresh), mostShown))
	for _, f := range l.fresh { // in no order, so each has its turn
		if len(some) == mostShown {
			break
		}
		some = append(some, f)
	}
	return some, l.grants
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
		if kv, _ := found[i].one(); kv.Version != f.version && !f.mayBe(kv) {
			l.b.fell()
			return
		}
		delete(l.fresh, f.id)
	}
}

// mayBe tells whether an entry that is being written again may have become that. What was granted again has another fence.
func (f fresh) mayBe(kv KV) bool {
	return f.moves && kv.Version > f.version && decode[entry](kv).fence() == f.fence
}

// showMore looks at those that one request could not read. What fails, the next heartbeat looks at. Where one is not there, a forced release may have ended
// it at once since the beat was written.
func (l *lease) showMore(ctx context.Context, more []fresh) {
	_ = each(slices.Collect(slices.Chunk(more, shownAtOnce)), func(some []fresh) error {
		r, err := l.b.do(ctx, "heartbeat", Txn{Read: readsOf(some)})
		if err == nil && slices.ContainsFunc(r.Reads, func(f Found) bool { return len(f.KVs) == 0 }) {
			err = l.b.pages(ctx, "heartbeat", forcedOf(l.id), l.forgetForced)
		}
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
