package caslock

import (
	"context"
	"time"
)

// The store has no clock, so its sidecars keep one there: the key clock has a number of microseconds. Whoever adds to it has
// read it before, and adds no more than has passed since, on its own boot-time clock; and only if it is
// still the one that was read. So it is never faster than the time. It is slower by what passes
// between two sidecars that keep it.
//
// It begins with the time of day. Where it stood still because there was no sidecar at all, nobody knows for how long. So a sidecar that
// has found no other lease in the store sets it to the time of day by its own wall clock, if that is later and nobody has
// written the clock since. So this moves the end of nothing that was counted since. No other reading of a
// wall clock ends anything here. After the last sidecar was killed its lease is still there, and the clock goes on from where it was:
// for all that the next one knows, that was a moment ago.

// tick is the clock as it was read, or written.
type tick struct {
	version int64
	value   int64
	since   time.Duration // on the boot-time clock: after it was read, or before it was written
	known   bool          // it was read
	moved   bool          // it has gone on since the sidecar saw it first
}

// at is the store's clock at a moment, or earlier.
func (t tick) at(now time.Duration) int64 { return t.value + (now - t.since).Microseconds() }

// sawClock notes the clock as it was read. newest: nothing newer was read before.
func (b *Backend) sawClock(kv KV, newest bool) tick {
	b.mu.Lock()
	defer b.mu.Unlock()
	if t := &b.hand; !t.known || kv.Version > t.version || newest && kv.Version != t.version {
		*t = tick{version: kv.Version, value: decode[int64](kv), since: b.clock(), known: true, moved: t.known && kv.Version > 0}
	}
	return b.hand
}

// tick has the clock go on, which was read just now, and gives what is due. ticked: nobody else has.
func (b *Backend) tick(ctx context.Context, kv KV) (t tick, due []KV, ticked bool, err error) {
	t = b.sawClock(kv, true)
	now := b.clock()
	value := t.at(now)
	b.mu.Lock()
	alone := b.alone && !t.moved
	b.mu.Unlock()
	if t.version == 0 || alone {
		value = max(value, b.wall().UnixMicro())
	}
	r, err := b.do(ctx, "reap", Txn{
		If:   []Cond{{Key: clockKey, Version: t.version}},
		Then: []Write{{Key: clockKey, Value: encode(value)}},
		Read: []Range{{Key: dueKey(1, "", ""), End: dueKey(value+1, "", ""), Limit: counted}},
	})
	if err != nil || !r.Done {
		return t, nil, false, err
	}
	t = tick{version: r.Revision, value: value, since: now, known: true, moved: true}
	b.mu.Lock()
	b.hand = t
	b.mu.Unlock()
	return t, r.Reads[0].KVs, true, nil
}
