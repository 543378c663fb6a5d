package caslock

import (
	"context"
	"slices"
	"strings"

	"github.com/locksidecar/locksidecar/backends/leasekit"
	"github.com/locksidecar/locksidecar/lock"
)

// This file is about requests that stand for several apps of a sidecar, which has to know when a request of another
// lease stands behind them.
//
// The head of a resource names those of them behind which nobody stands yet. Who comes next, to wait or to be refused, reads
// the head anyway, and tells them: it puts a key beside the entry of each, which their lease watches. It is told once, and the
// key stays as long as the request does. So a lease that has missed that hears of it with its next heartbeat.

var _ leasekit.Teller = (*lease)(nil)

func toldOf(lease string) string { return ownPrefix(lease) + "c/" }

func toldKey(lease string, r lock.Resource, id string) string {
	return toldOf(lease) + string(r) + "\x00" + id
}

// maxLast bounds how many readers a head names. Where there are more, it says so, and who comes next looks for them in the line and tells them, too,
// when it has its answer. Those that it does not reach find out by themselves after a while, see lock.Contended.
const maxLast = 8

// cohort is a request that has one.
type cohort struct {
	Lease string `json:"lease"`
	ID    string `json:"id"`
}

// tell tells those behind whom a request stands, or did not want to stand.
func (s *state) tell(o *op) {
	if s.head.More {
		s.head.More, o.untold = false, s.head.Front
		s.put(headKey(s.name), s.written())
	}
	s.head.Last = slices.DeleteFunc(slices.Clone(s.head.Last), func(c cohort) bool {
		if c.Lease == o.lease {
			return false
		}
		s.writes[toldKey(c.Lease, s.name, c.ID)] = Write{Key: toldKey(c.Lease, s.name, c.ID)}
		return true
	})
}

// comes notes that nobody stands behind a request yet.
func (s *state) comes(p place) {
	switch {
	case !p.Several:
	case len(s.head.Last) < maxLast:
		s.head.Last = append(slices.Clone(s.head.Last), cohort{p.Lease, p.ID})
	default:
		s.head.More = true
	}
}

// toldTogether is how many holders one transaction tells.
const toldTogether = 40

// tellOthers tells holders of other leases that somebody stands behind them, whom the head has not named. What fails they find out by themselves.
// They are those in the line before front.
func (b *Backend) tellOthers(ctx context.Context, name lock.Resource, front int64, lease string) error {
	return b.pagesOf(ctx, "contended", Range{Key: lineOf(name), End: lineKey(name, front)}, func(kvs []KV) error {
		var some []cohort
		for _, kv := range kvs {
			if p := decode[place](kv); p.Several && p.held() && p.Lease != lease {
				some = append(some, cohort{p.Lease, p.ID})
			}
		}
		for chunk := range slices.Chunk(some, toldTogether) {
			done, err := b.tellSome(ctx, name, chunk)
			for i := 0; err == nil && !done && i < len(chunk); i++ { // one of them has gone meanwhile, or was told
				_, err = b.tellSome(ctx, name, chunk[i:i+1])
			}
			if err != nil {
				return err
			}
		}
		return nil
	})
}

// tellSome is tellOthers of some who were not told, all or none.
func (b *Backend) tellSome(ctx context.Context, name lock.Resource, some []cohort) (done bool, err error) {
	var read []Range
	for _, c := range some {
		read = append(read, Range{Key: entryKey(c.Lease, name, c.ID)}, Range{Key: toldKey(c.Lease, name, c.ID)})
	}
	r, err := b.do(ctx, "contended", Txn{Read: read})
	if err != nil {
		return false, err
	}
	var t Txn
	for i := range some {
		has, there := r.Reads[2*i].one()
		if _, told := r.Reads[2*i+1].one(); there && !told {
			key := read[2*i+1].Key
			t.If = append(t.If, Cond{Key: has.Key, Version: has.Version}, Cond{Key: key})
			t.Then = append(t.Then, Write{Key: key})
		}
	}
	if len(t.Then) == 0 {
		return true, nil
	}
	r, err = b.do(ctx, "contended", t)
	return r.Done, err
}

// goes forgets that, and what it was told.
func (s *state) goes(m *member) {
	if m.Several {
		s.del(toldKey(m.Lease, s.name, m.ID))
	}
	s.head.Last = slices.DeleteFunc(slices.Clone(s.head.Last), func(c cohort) bool { return c == cohort{m.Lease, m.ID} })
}

// hear passes on that somebody stands behind a request.
func (l *lease) hear(kv KV, push func(leasekit.Push)) {
	name, id := refOf(strings.TrimPrefix(kv.Key, toldOf(l.id)))
	l.forgetSole(name)
	push(leasekit.Push{Kind: leasekit.Contended, Ref: leasekit.Ref{Resource: name, ID: lock.HoldID(id)}})
}

// hearAgain passes on all that the lease was told, each time that some of it may have been missed, until ctx ends.
func (l *lease) hearAgain(ctx context.Context, push func(leasekit.Push)) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-l.told:
		}
		_ = l.b.pages(ctx, "contended", toldOf(l.id), func(kvs []KV) error { // what fails comes with the next heartbeat
			for _, kv := range kvs {
				l.hear(kv, push)
			}
			return nil
		})
	}
}

// sweepTold takes away what a lease that is over was told.
func (b *Backend) sweepTold(ctx context.Context, id string) error {
	return b.pages(ctx, "sweep", toldOf(id), func(kvs []KV) error {
		for some := range slices.Chunk(kvs, MaxParts) {
			var t Txn
			for _, kv := range some {
				t.Then = append(t.Then, Write{Key: kv.Key, Delete: true})
			}
			if _, err := b.do(ctx, "sweep", t); err != nil {
				return err
			}
		}
		return nil
	})
}

// Describe implements leasekit.Teller.
func (l *lease) Describe(ctx context.Context, r leasekit.Ref, owner string) error {
	return l.b.within(ctx, r.Resource, &op{kind: opDescribe, id: string(r.ID), lease: l.id, place: place{Owner: owner}})
}

// describe gives a hold another owner.
func (s *state) describe(o *op, m *member) {
	if m == nil || !m.held() || m.out {
		o.err = lock.ErrNotHolder
		return
	}
	m.Owner = o.place.Owner
	s.put(lineKey(s.name, m.seq), m.written())
}
