package caslock

import (
	"context"
	"errors"
	"slices"

	"github.com/locksidecar/locksidecar/lock"
)

const (
	// batch is how many requests one transaction carries out, written how many keys they may write, and parts how many they
	// read, with what they write at first.
	batch, written, parts = 24, 96, MaxParts - 4
	// brief is how many holders a refused request is told of.
	brief = 8
)

// errOvertaken: somebody else has written about the resource meanwhile. Nothing was done.
var errOvertaken = errors.New("another sidecar was faster")

// transact carries out a batch of requests about a resource. Where what it finds there can be told before, that takes one
// trip, see guess.go. Otherwise it reads, decides, and writes if nobody else has written meanwhile, else there is errOvertaken.
func (b *Backend) transact(ctx context.Context, name lock.Resource, ops []*op) (*state, error) {
	for _, o := range ops {
		o.reset()
	}
	command := ops[0].kind.String()
	g, mark := b.guess(name, ops), b.given(name, ops)
	first := b.reads(name, ops)
	switch {
	case g != nil:
		first.If, first.Then, first.Else = g.txn.If, g.txn.Then, mark
	case mark != nil:
		first.If, first.Then = mark.If, mark.Then
	}
	r, err := b.do(ctx, command, first)
	switch {
	case g != nil && err == nil && r.Done:
		b.settle(g.s, ops, r.Revision, g.falls)
		return g.s, nil
	case g != nil: // or nobody knows
		b.wrong(g)
	}
	if err != nil {
		return nil, err
	}
	if mark != nil && (r.Done || r.Else) {
		noteMarks(name, ops, mark.Then)
	}
	falls := b.fallen()
	s, conds, err := b.took(ctx, command, name, ops, r)
	if err != nil {
		return nil, err
	}
	if rebased, err := b.rebase(ctx, command); err != nil {
		return nil, err
	} else if rebased {
		return nil, errOvertaken
	}
	for _, o := range ops {
		s.apply(o)
	}
	t := s.txn(conds)
	if len(t.Then) == 0 {
		s.noteKept(ops, 0)
		return s, nil
	}
	r, err = b.do(ctx, command, t)
	switch {
	case err != nil:
		return nil, err
	case !r.Done:
		return nil, errOvertaken
	}
	b.settle(s, ops, r.Revision, falls)
	return s, nil
}

// settle notes that requests were carried out, with the revision of their write. falls is how often the store was known to have
// gone back when it was decided where fences begin.
func (b *Backend) settle(s *state, ops []*op, revision int64, falls uint64) {
	for lease := range s.bumped {
		b.sawVersion(lease, revision)
	}
	if _, wrote := s.writes[baseKey]; wrote {
		b.sawBase(s.base, revision)
	}
	b.noteSole(s, ops, revision)
	doubtful := b.fallen() != falls
	for _, o := range ops {
		o.settle(revision)
		o.doubtful = o.came && doubtful
		if w, wrote := s.writes[entryKey(o.lease, s.name, o.id)]; wrote && !w.Delete {
			o.version = revision
		}
	}
	s.noteKept(ops, revision)
}

// sawVersion notes the version of a lease of this backend.
func (b *Backend) sawVersion(lease string, version int64) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if l := b.leases[lease]; l != nil {
		l.version, l.highest = max(l.version, version), max(l.highest, version)
	}
}

// unanswered notes that a request which writes had no answer: a copy of it may be carried out yet.
func (b *Backend) unanswered() {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, l := range b.leases {
		l.late = l.highest
	}
}

// comesLate tells whether a copy of a request of a lease may be carried out yet, when the lease's key has this version. If the key was
// written since the last of them had no answer, none is.
func (b *Backend) comesLate(lease string, version int64) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	l := b.leases[lease]
	return l == nil || version <= l.late
}

// given marks what is given up, before it is read: a hold whose release has lost its answer,
// or whose sidecar ends at that moment, is ended by others at once. So a release needs one
// trip to come through, although it takes two. nil: nothing is to be marked.
func (b *Backend) given(name lock.Resource, ops []*op) *Txn {
	b.mu.Lock()
	defer b.mu.Unlock()
	var t Txn
	marked := make(map[string]bool)
	for _, o := range ops {
		l, key := b.leases[o.lease], forcedKey(o.lease, name, o.id)
		if o.kind != opRemove || l == nil || marked[key] || o.tried {
			continue
		}
		marked[key], o.tried = true, true
		t.If = append(t.If, Cond{Key: leaseKey(o.lease), Version: l.version}, Cond{Key: entryKey(o.lease, name, o.id), There: true})
		t.Then = append(t.Then, Write{Key: key, Value: encode(forced{Grace: 1, Known: 1})})
	}
	if len(marked) == 0 {
		return nil
	}
	return &t
}

// noteMarks notes whose mark was written. It goes by what that transaction has written, because one before it may have failed.
func noteMarks(name lock.Resource, ops []*op, wrote []Write) {
	for _, o := range ops {
		key := forcedKey(o.lease, name, o.id)
		o.marked = o.marked || o.kind == opRemove && slices.ContainsFunc(wrote, func(w Write) bool { return w.Key == key })
	}
}

// asking are the leases of who asks, in the order in which they are read.
func asking(ops []*op) (leases []string) {
	for _, o := range ops {
		for _, h := range o.about() {
			if (o.own() || o.kind == opForce || o.kind == opHandle) && !slices.Contains(leases, h.lease) {
				leases = append(leases, h.lease)
			}
		}
	}
	return leases
}

// reads are what is read of a resource, and of what it has of who is asked about, with the first trip. Usually that is all.
func (b *Backend) reads(name lock.Resource, ops []*op) (t Txn) {
	t.Read = []Range{{Key: headKey(name)}, {Key: baseKey}, all(lineOf(name), startOf(ops)), {Key: clockKey}}
	for _, l := range asking(ops) {
		t.Read = append(t.Read, Range{Key: leaseKey(l)})
	}
	for _, o := range ops {
		for _, h := range o.about() {
			if h.id != "" {
				t.Read = append(t.Read, Range{Key: entryKey(h.lease, name, h.id)}, Range{Key: forcedKey(h.lease, name, h.id)}, Range{Key: keptKey(name, h.id)})
			}
		}
	}
	for _, o := range ops {
		if o.kind == opLapse && o.key != "" {
			t.Read = append(t.Read, Range{Key: handleKey(name, o.key)})
		}
	}
	return t
}

// took takes in what was read. conds hold as long as nobody has changed that.
func (b *Backend) took(ctx context.Context, command string, name lock.Resource, ops []*op, r Result) (*state, []Cond, error) {
	start, leases := startOf(ops), asking(ops)
	headKV, _ := r.Reads[0].one()
	baseKV, based := r.Reads[1].one()
	now := b.wall().UnixMicro()
	base := decode[int64](baseKV)
	b.sawBase(base, baseKV.Version)
	b.sawHead(name, headKV)
	if !based {
		base = now - fenceStep*r.Revision
	}
	s := newState(name, headOf(headKV, r.Reads[2].KVs), base, now, ops)
	conds := []Cond{{Key: headKey(name), Version: headKV.Version}, {Key: baseKey, Version: baseKV.Version}}
	if !based {
		s.put(baseKey, base)
	}
	clock, _ := r.Reads[3].one()
	s.clock = decode[int64](clock)
	reads := r.Reads[4:]
	for i, l := range leases {
		kv, lives := reads[i].one()
		s.leases[l] = lives
		if lives {
			conds = append(conds, Cond{Key: leaseKey(l), Version: kv.Version})
			s.infos[l] = kv.Value
			b.sawVersion(l, kv.Version)
			s.late[l] = b.comesLate(l, kv.Version)
		}
	}
	reads = reads[len(leases):]
	for _, o := range ops {
		if o.id != "" {
			entry, _ := reads[0].one()
			o.version = entry.Version
		}
		for _, h := range o.about() {
			if h.id != "" {
				conds = s.readHold(conds, h, reads[:3])
				reads = reads[3:]
			}
		}
	}
	for _, o := range ops {
		if o.kind == opLapse && o.key != "" {
			kv, _ := reads[0].one()
			o.named, reads = decode[handleInfo](kv).ID, reads[1:]
		}
	}
	line := line{whole: len(r.Reads[2].KVs) < start, head: headKV.Version}
	for _, kv := range r.Reads[2].KVs {
		line.add(s, memberOf(kv))
	}
	return s, conds, b.loadLine(ctx, command, s, ops, &line)
}

// readHold takes in what was read of a hold or waiter, and of what is kept of it.
func (s *state) readHold(conds []Cond, h holder, found []Found) []Cond {
	names := memberKey(h.lease, h.id)
	if kv, has := found[0].one(); has && h.lease != keptLease && s.members[names] == nil {
		e := decode[entry](kv)
		s.members[names] = &member{place: place{ID: h.id, Lease: h.lease, Mode: s.head.Mode, granted: e.granted, Several: e.Several}, seq: e.Seq, out: e.Out, lasts: e.Lasts}
	}
	if kv, has := found[1].one(); has {
		s.forced[names] = decode[forced](kv)
	}
	if kv, has := found[2].one(); has && s.kept[h.id] == nil { // others count its time, which the head does not tell
		s.kept[h.id] = keptOf(kv)
		conds = append(conds, Cond{Key: kv.Key, Version: kv.Version})
	}
	return conds
}

// headOf reads the head of a resource, of whose line the beginning was read.
func headOf(kv KV, line []KV) head {
	h := decode[head](kv)
	if h.Mode != ofTheFirst {
		return h
	}
	h.Mode = lock.Exclusive // where somebody has deleted the first, nobody is let in
	if len(line) > 0 {
		if m := memberOf(line[0]); m.held() && m.seq < h.Front {
			h.Mode = m.Mode
		}
	}
	return h
}

// line is the part of a resource's line that was read.
type line struct {
	holders, front []*member
	whole          bool  // it is all of it
	head           int64 // the version of the head that was read with it
}

func (l *line) add(s *state, m *member) {
	if m.seq < s.head.Front {
		l.holders = append(l.holders, m)
	} else {
		l.front = append(l.front, m)
	}
}

// window is how many waiters a transaction may grant to, beside what its requests write.
func window(ops []*op) int {
	n := MaxParts - 8 - maxLast
	for _, o := range ops {
		n -= o.writes()
	}
	return n / 2
}

// startOf is how much of the line is read with the first trip.
func startOf(ops []*op) (n int) {
	n = 1
	for _, o := range ops {
		switch {
		case o.kind != opAsk:
			return window(ops)
		case o.try:
			n = brief
		}
	}
	return n
}

// loadLine reads what is needed of the line and was not in its beginning: who waits at the
// front, the place of a waiter that leaves, and all that stands about who is downgraded.
func (b *Backend) loadLine(ctx context.Context, command string, s *state, ops []*op, l *line) error {
	var read []Range
	var each []func(Found)
	add := func(r Range, f func(Found)) { read, each = append(read, r), append(each, f) }
	look, held, changed := false, false, false // at those who wait; one of them holds; others have written since the head was read
	for _, o := range ops {
		m := s.members[o.names()]
		look = look || o.kind != opAsk || m != nil && !m.held()
		switch {
		case o.kind == opRemove && m != nil && !m.held() && !m.out:
			add(Range{Key: lineKey(s.name, s.head.Front), End: lineKey(s.name, m.seq), Count: true}, func(f Found) { o.position = f.Count + 1 })
		case (o.kind == opDowngrade || o.kind == opDetach || o.kind == opDescribe) && m != nil && m.held():
			add(Range{Key: lineKey(s.name, m.seq)}, func(f Found) {
				if kv, there := f.one(); there {
					m.place = decode[place](kv)
				}
			})
		}
	}
	if n := window(ops); look && s.head.Waiters > 0 && len(l.front) == 0 && !l.whole {
		add(Range{Key: lineKey(s.name, s.head.Front), End: after(lineOf(s.name)), Limit: n}, func(f Found) {
			for _, kv := range f.KVs {
				m := memberOf(kv)
				held = held || m.held()
				l.add(s, m)
			}
			l.whole = len(f.KVs) < n
		})
		add(Range{Key: headKey(s.name)}, func(f Found) {
			kv, _ := f.one()
			changed = kv.Version != l.head
		})
	}
	if s.head.Mode.Limit() > 0 && s.head.Holders > 0 && s.slots == nil {
		if err := b.loadSlots(ctx, command, s); err != nil {
			return err
		}
	}
	if len(read) > 0 {
		r, err := b.do(ctx, command, Txn{Read: read})
		if err != nil {
			return err
		}
		for i, f := range r.Reads {
			each[i](f)
		}
	}
	if held && changed { // where there is nothing to write, nothing else shows it. Where the head is the same, somebody has changed it by hand
		return errOvertaken
	}
	st := lock.Status{Resource: s.name}
	var places []place
	for _, m := range l.holders[:min(len(l.holders), brief)] {
		places = append(places, m.place)
	}
	if n := len(places); n > 1 && n == brief && places[n-1].Lease == keptLease { // who has it may come next
		places = places[:n-1]
	}
	st.Holders = b.holders(s.name, places, nil, nil)
	for _, o := range ops { // each to its own, who may change it
		o.status = st
		o.status.Holders = slices.Clone(st.Holders)
	}
	s.fill(l.front, l.whole)
	return nil
}

// loadSlots reads who has permits, where an older sidecar has written the head.
func (b *Backend) loadSlots(ctx context.Context, command string, s *state) error {
	s.slots, s.head.Holders = make([]byte, lock.MaxPermits/8), 0
	return b.pagesOf(ctx, command, Range{Key: lineOf(s.name), End: lineKey(s.name, s.head.Front)}, func(kvs []KV) error {
		for _, kv := range kvs {
			setSlot(s.slots, memberOf(kv).Slot, true)
			s.head.Holders++
		}
		return nil
	})
}

// memberOf reads a key of the line.
func memberOf(kv KV) *member { return &member{place: decode[place](kv), seq: seqOf(kv.Key)} }

// txn is what writes what was decided; without Then: nothing has changed.
func (s *state) txn(conds []Cond) Txn {
	for lease := range s.bumped {
		if s.leases[lease] {
			s.writes[leaseKey(lease)] = Write{Key: leaseKey(lease), Value: s.infos[lease]}
		}
	}
	if _, only := s.writes[baseKey]; len(s.writes) == 0 || only && len(s.writes) == 1 {
		return Txn{}
	}
	switch {
	case s.head.Holders > 0 || s.head.Waiters > 0:
		s.put(headKey(s.name), s.written())
	case conds[0].Version > 0:
		s.del(headKey(s.name))
	}
	t := Txn{If: conds}
	for _, w := range s.writes {
		t.Then = append(t.Then, w)
	}
	return t
}
