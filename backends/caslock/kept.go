package caslock

import (
	"context"
	"fmt"
	"strconv"
	"time"

	"github.com/locksidecar/locksidecar/backends/leasekit"
	"github.com/locksidecar/locksidecar/lock"
)

// This file is about holds that keep others out for a time of their own, whatever becomes of their lease. Such a hold
// has a second place in the line, right in front of its own. That belongs to no sidecar's lease, but to keptLease,
// which never ends. So what ends holds and leases need not know of it: the second place stays, and keeps
// others out, until it lapses. It may lapse while somebody has the hold, which changes nothing for that one.
//
// When does it lapse? It has a generation: the version of its key when its time began. Whoever has known of a generation for
// the whole time, on its own boot-time clock, may end it, if it is still the same. Usually that is the sidecar which has
// had the hold. For where that is gone, the keeper of the store's clock notes when the time is over on that
// clock, see clock.go, and a sidecar that waits counts it from when it has seen it.

// keptLease is the lease of what is kept. It has the keys of a lease, so that older sidecars do not take it for
// one that is over.
const keptLease = "kept"

// forEver is its TTL, for older sidecars.
const forEver = 100 * 365 * 24 * time.Hour

var _ leasekit.Keeper = (*lease)(nil)

// KeepsMinHold implements leasekit.Keeper.
func (l *lease) KeepsMinHold() error { return nil }

// kept is the second place of a hold, and how long it lasts.
type kept struct {
	place
	Seq  int64  `json:"seq"`
	Span int64  `json:"span"`           // microseconds from the beginning of its generation
	Of   int64  `json:"of,omitempty"`   // its generation; 0: the version of this key
	Ends int64  `json:"ends,omitempty"` // when it is over on the store's clock; 0: nobody has counted it yet
	Key  string `json:"key,omitempty"`  // of a detached hold, see detach.go
	// Asked is what its handle says that it is, where an older sidecar has granted a permit as a lock; 0: its mode.
	Asked lock.Mode `json:"asked,omitempty"`

	version int64 // of the key that was read
}

func keptOf(kv KV) *kept {
	k := decode[kept](kv)
	k.version = kv.Version
	return &k
}

// generation is that of what was read; 0: it is being written.
func (k *kept) generation() int64 {
	if k.Of > 0 {
		return k.Of
	}
	return k.version
}

func (k *kept) span() time.Duration { return time.Duration(k.Span) * time.Microsecond }

func keptKey(r lock.Resource, id string) string { return entryKey(keptLease, r, id) }

func dueKey(ends int64, r lock.Resource, id string) string {
	return fmt.Sprintf("%s%016x\x00%s\x00%s", duePrefix, ends, r, id)
}

// dueOf reads the end of a dueKey.
func dueOf(key string) (ends int64, r lock.Resource, id string) {
	const digits = 16
	rest := key[min(len(key), len(duePrefix)):]
	ends, _ = strconv.ParseInt(rest[:min(len(rest), digits)], 16, 64)
	r, id = refOf(rest[min(len(rest), digits+1):])
	return ends, r, id
}

// dueInfo is what stands there.
type dueInfo struct {
	Had string `json:"had"`
	Key string `json:"key,omitempty"`
}

// keptItem names in the queue what nobody has.
func keptItem(id string) lock.HoldID { return lock.HoldID(memberKey(keptLease, id)) }

// hadBy is who has what is kept, if that was read; nil: nobody.
func (s *state) hadBy(k *kept) *member {
	if m := s.members[memberKey(k.Had, k.ID)]; m != nil && m.held() && !m.out {
		return m
	}
	return nil
}

// keptOf is what is kept of a hold, beside it; nil: nothing.
func (s *state) keptOf(m *member) *kept {
	if k := s.kept[m.ID]; k != nil && k.Had == m.Lease {
		return k
	}
	return nil
}

// keep puts a second place in front of that of a hold, or has the one that is there begin again. key is that of a hold that is
// detached.
func (s *state) keep(m *member, span time.Duration, key string) {
	if was := s.keptOf(m); was != nil {
		s.del(dueKey(was.Ends, s.name, was.ID))
		s.delHandle(was.Key)
	} else {
		s.head.Holders++
	}
	k := &kept{place: m.place, Seq: m.seq - 1, Span: span.Microseconds(), Key: key}
	k.Lease, k.Had, k.Until, k.Several, k.Loose = keptLease, m.Lease, s.now+k.Span, false, key != ""
	s.kept[m.ID] = k
	s.begin(k)
}

// begin writes what is kept, and is counted from now on.
func (s *state) begin(k *kept) {
	s.writeKept(k)
	s.put(dueKey(k.Ends, s.name, k.ID), dueInfo{Had: k.Had, Key: k.Key})
	if k.Key != "" {
		s.put(handleKey(s.name, k.Key), handleInfo{ID: k.ID, Lease: k.Had})
	}
}

func (s *state) delHandle(key string) {
	if key != "" {
		s.del(handleKey(s.name, key))
	}
}

func (s *state) writeKept(k *kept) {
	w := *k
	w.place = k.written()
	s.put(lineKey(s.name, k.Seq), w.place)
	s.put(keptKey(s.name, k.ID), w)
}

// forgetKept takes a second place away. Where nobody has the hold, that ends it.
func (s *state) forgetKept(k *kept) {
	s.del(lineKey(s.name, k.Seq))
	s.del(keptKey(s.name, k.ID))
	s.del(dueKey(k.Ends, s.name, k.ID))
	s.delHandle(k.Key)
	delete(s.kept, k.ID)
	s.head.Holders--
	if e := s.q.Find(keptItem(k.ID)); e != nil {
		s.q.Remove(e)
		s.promote()
	}
}

// lapse takes a second place away whose time is over.
//
// Model: kept.OVER.
func (s *state) lapse(o *op) {
	switch k := s.kept[o.id]; {
	case k != nil && (o.gen > 0 && o.gen == k.generation() || o.ends > 0 && o.ends == k.Ends):
		s.forgetKept(k)
	case o.ends > 0: // it lasts for longer, or was taken away by somebody who knows nothing of this
		s.del(dueKey(o.ends, s.name, o.id))
		if k == nil && o.named == o.id {
			s.delHandle(o.key)
		}
	}
}

// noteKept notes what is kept of what was asked for. That is as all requests of the transaction have left it: another one of them may have
// moved its end. revision is that of the write, if there was one.
func (s *state) noteKept(ops []*op, revision int64) {
	for _, o := range ops {
		if k := s.kept[o.id]; k != nil && k.Had == o.lease {
			o.kept, o.left = k.generation(), s.left(k)
			if o.kept == 0 {
				o.kept = revision
			}
		}
	}
}

// lapse is what is kept, and whose time is counted here.
type lapse struct {
	name      lock.Resource
	id, lease string
	gen       int64
}

// of is the same, of whatever generation.
func (c lapse) of() lapse {
	c.gen = 0
	return c
}

// lapsesIn counts the time of what is kept, in place of that of an earlier generation of the same.
func (b *Backend) lapsesIn(c lapse, span time.Duration) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.background.Err() != nil {
		return
	}
	if b.lapses == nil {
		b.lapses, b.lapsing = leasekit.NewDue[lapse](b.clock), make(map[lapse]int64)
		b.routines.Go(func() { b.lapses.Run(b.background, atATime, b.lapse) })
	}
	switch was := b.lapsing[c.of()]; {
	case was > c.gen:
		return
	case was < c.gen:
		b.lapses.Forget(lapse{c.name, c.id, c.lease, was})
		b.lapsing[c.of()] = c.gen
	}
	b.lapses.In(c, span)
}

// lapsesNot forgets the time of what is gone.
func (b *Backend) lapsesNot(name lock.Resource, id, lease string) {
	c := lapse{name: name, id: id, lease: lease}
	b.mu.Lock()
	defer b.mu.Unlock()
	if gen, known := b.lapsing[c]; known {
		delete(b.lapsing, c)
		b.lapses.Forget(lapse{name, id, lease, gen})
	}
}

func (b *Backend) lapse(c lapse) {
	o := &op{kind: opLapse, id: c.id, lease: c.lease, gen: c.gen}
	b.submit(c.name, o)
	b.mu.Lock()
	defer b.mu.Unlock()
	switch {
	case b.lapsing[c.of()] != c.gen: // a later one is counted
	case o.err != nil:
		b.lapses.In(c, leastRound)
	default:
		delete(b.lapsing, c.of())
	}
}

// counted is how many of each kind are looked at in a step of endDue.
const counted = 40

// endDue counts the time of what is kept on the store's clock, and ends what is over, a step of each. It tells whether there
// may be more. While nothing is kept, the clock stands still.
func (b *Backend) endDue(ctx context.Context) (more bool, err error) {
	uncounted := Range{Key: duePrefix, End: dueKey(1, "", ""), Limit: counted}
	r, err := b.do(ctx, "reap", Txn{Read: []Range{uncounted, all(duePrefix, 1), {Key: clockKey}, all(forcedOf(keptLease), counted)}})
	if err != nil {
		return false, err
	}
	for _, kv := range r.Reads[3].KVs { // by older sidecars, which wait for somebody to know of it
		name, id := refOf(kv.Key[len(forcedOf(keptLease)):])
		b.submit(name, &op{kind: opForce, id: id, lease: keptLease})
	}
	if len(r.Reads[1].KVs) == 0 {
		return false, nil
	}
	kv, _ := r.Reads[2].one()
	now, over, ticked, err := b.tick(ctx, kv)
	if err != nil || !ticked { // somebody else has
		return false, err
	}
	if todo := r.Reads[0].KVs; len(todo) > 0 {
		if err := b.count(ctx, now, todo); err != nil {
			return false, err
		}
	}
	err = each(over, func(kv KV) error {
		ends, name, id := dueOf(kv.Key)
		info := decode[dueInfo](kv)
		o := &op{kind: opLapse, id: id, lease: info.Had, key: info.Key, ends: ends}
		b.submit(name, o)
		return o.err
	})
	return len(r.Reads[0].KVs) == counted || len(over) == counted, err
}

// count notes when the time of what is kept is over on the store's clock. What has changed meanwhile stays for the next time.
func (b *Backend) count(ctx context.Context, now tick, todo []KV) error {
	done, err := b.countOnce(ctx, now, todo)
	for i := 0; err == nil && !done && i < len(todo); i++ {
		_, err = b.countOnce(ctx, now, todo[i:i+1])
	}
	return err
}

// countOnce is count of some, all or none.
func (b *Backend) countOnce(ctx context.Context, now tick, todo []KV) (done bool, err error) {
	var read []Range
	for _, kv := range todo {
		_, name, id := dueOf(kv.Key)
		read = append(read, Range{Key: keptKey(name, id)})
	}
	r, err := b.do(ctx, "reap", Txn{Read: read})
	if err != nil {
		return false, err
	}
	at := now.at(b.clock()) // after they were read, so none of them can be over too soon
	t := Txn{If: []Cond{{Key: clockKey, Version: now.version}}}
	for i, kv := range todo {
		_, name, id := dueOf(kv.Key)
		was, there := r.Reads[i].one()
		t.If = append(t.If, Cond{Key: keptKey(name, id), Version: was.Version}, Cond{Key: kv.Key, Version: kv.Version})
		t.Then = append(t.Then, Write{Key: kv.Key, Delete: true})
		if k := keptOf(was); there && k.Ends == 0 {
			k.Of, k.Ends = k.generation(), at+k.Span
			w := *k
			w.place = k.written()
			t.Then = append(t.Then, Write{Key: was.Key, Value: encode(w)}, Write{Key: dueKey(k.Ends, name, id), Value: kv.Value})
		} else if key := decode[dueInfo](kv).Key; !there && key != "" { // it was taken away by somebody who knows nothing of this
			t.Then = append(t.Then, Write{Key: handleKey(name, key), Delete: true})
		}
	}
	r, err = b.do(ctx, "reap", t)
	return r.Done, err
}

// holders are the holders among some places of the line, for people. What is kept is shown where nobody has it: leases are
// those that live, nil: all.
func (b *Backend) holders(name lock.Resource, places []place, leases, revoked map[string]bool) (hs []lock.Holding) {
	had := make(map[string]bool)
	for _, p := range places {
		if p.Lease != keptLease && (leases == nil || leases[p.Lease]) {
			had[memberKey(p.Lease, p.ID)] = true
			hs = append(hs, b.holding(p, revoked[forcedKey(p.Lease, name, p.ID)]))
		}
	}
	for _, p := range places {
		if p.Lease == keptLease && !had[memberKey(p.Had, p.ID)] {
			h := b.holding(p, false)
			h.Lease = lock.LeaseID(p.Had)
			h.Detached = p.Loose
			h.Kept = max(time.Microsecond, time.Duration(p.Until-b.wall().UnixMicro())*time.Microsecond)
			hs = append(hs, h)
		}
	}
	return hs
}
