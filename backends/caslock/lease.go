package caslock

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"strings"
	"sync"
	"time"

	"github.com/locksidecar/locksidecar/backends/leasekit"
	"github.com/locksidecar/locksidecar/lock"
)

const (
	// maxID and maxSidecar bound what a key and a value have of them.
	maxID, maxSidecar = 64, 255
	// page is how many keys one request reads.
	page = 500
	// mostInVain is how often a try asks again where others may have swept what was in its way.
	mostInVain = 3
)

// lease is one sidecar's session in the store.
type lease struct {
	b       *Backend
	id      string
	sidecar string
	ttl     time.Duration

	// b.mu guards these.
	version int64                  // of its key, as far as it is known
	highest int64                  // that this was, also before the store went back
	late    int64                  // a request that had no answer, and may be carried out yet, has this version or an earlier one
	soles   map[lock.Resource]sole // holds beside which there is nobody, as far as it is known

	observer *leasekit.Observer
	dues     *leasekit.Due[due] // forced releases whose grace is counted

	mu     sync.Mutex
	asked  map[lock.HoldID]*asked // what is asked for, and was not granted yet
	fresh  map[lock.HoldID]fresh  // what was granted, and no heartbeat has shown to be there
	grants uint64                 // how many were noted there
	moving map[lock.HoldID]bool   // what is being downgraded, and has not ended meanwhile, as far as it is known
	falls  uint64                 // of the store, that a heartbeat has told
	beat   int64                  // the version of its beat, as far as it is known

	look chan struct{} // has a value when somebody waits,
	over chan struct{} // and when a lease was ended
	told chan struct{} // and when others may stand behind something of the lease
}

var _ leasekit.Driver = (*lease)(nil)

// OpenLease implements lock.Backend.
func (b *Backend) OpenLease(ctx context.Context, o lock.LeaseOptions) (lock.Lease, error) {
	if o.TTL < lock.MinTTL || o.TTL > lock.MaxTTL {
		return nil, &lock.InvalidError{Field: "ttl", Problem: fmt.Sprintf("must be from %s to %s", lock.MinTTL, lock.MaxTTL)}
	}
	l := &lease{
		b: b, id: string(lock.NewLeaseID()), sidecar: strings.ToValidUTF8(o.Sidecar[:min(len(o.Sidecar), maxSidecar)], ""), ttl: o.TTL,
		soles: make(map[lock.Resource]sole), asked: make(map[lock.HoldID]*asked), fresh: make(map[lock.HoldID]fresh), moving: make(map[lock.HoldID]bool), dues: leasekit.NewDue[due](b.clock), look: make(chan struct{}, 1), over: make(chan struct{}, 1), told: make(chan struct{}, 1),
	}
	l.observer = leasekit.NewObserver(l, leasekit.ObserverOptions{ID: l.id, TTL: o.TTL, Clock: b.clock, MostRound: mostRound})
	l.falls = b.fallen()
	opened := b.clock()
	info := encode(leaseInfo{TTL: o.TTL.Milliseconds(), Sidecar: l.sidecar})
	r, err := b.do(ctx, "open", Txn{
		If:   []Cond{{Key: leaseKey(l.id)}},
		Then: []Write{{Key: leaseKey(l.id), Value: info}, {Key: beatKey(l.id), Value: info}},
		Read: []Range{{Key: keeperKey}, {Key: leaseKey(keptLease)}, {Key: beatKey(keptLease)}, {Key: leasePrefix, End: after(leasePrefix), Count: true}, {Key: clockKey}},
	})
	if err == nil && len(r.Reads[1].KVs)+len(r.Reads[2].KVs) < 2 {
		never := encode(leaseInfo{TTL: forEver.Milliseconds()})
		_, err = b.do(ctx, "open", Txn{Then: []Write{{Key: leaseKey(keptLease), Value: never}, {Key: beatKey(keptLease), Value: never}}})
	}
	if err != nil { // where it is there all the same, others see that nobody renews it
		return nil, b.unavailable("open lease", err)
	}
	l.observer.SawKeeper(keeperOf(r.Reads[0]))
	l.version, l.highest, l.beat = r.Revision, r.Revision, r.Revision
	clock, _ := r.Reads[4].one()
	b.sawClock(clock, true) // as it was when there was no other lease
	b.mu.Lock()
	b.alone = r.Reads[3].Count == 1+len(r.Reads[1].KVs)
	b.leases[l.id] = l
	b.mu.Unlock()
	return leasekit.Start(ctx, l, leasekit.Options{ID: lock.LeaseID(l.id), TTL: o.TTL, Clock: b.clock, Opened: opened, Unproven: true}), nil
}

// Ask implements leasekit.Driver.
func (l *lease) Ask(ctx context.Context, q lock.Request) (leasekit.Answer, error) {
	switch {
	case q.Handle != "":
		return l.attach(ctx, q)
	case q.ID == "" || len(q.ID) > maxID || strings.Contains(string(q.ID), "\x00"):
		return leasekit.Answer{}, &lock.InvalidError{Field: "id", Problem: fmt.Sprintf("must have 1 to %d bytes, and no zero byte", maxID)}
	case !q.Mode.Valid():
		return leasekit.Answer{}, &lock.InvalidError{Field: "mode", Problem: "is not a mode"}
	}
	waits := l.asks(q)
	var o *op
	for inVain := 0; ; {
		o = &op{kind: opAsk, id: string(q.ID), lease: l.id, try: q.Try, span: q.MinHold, ctx: ctx, place: place{
			ID: string(q.ID), Lease: l.id, Sidecar: l.sidecar, Mode: q.Mode, Owner: q.Owner, Several: q.Cohort != nil,
		}}
		l.b.submit(q.Resource, o)
		if waits.tooOld(o) {
			if o.err = l.takeBack(ctx, q.Resource, waits, o); o.err == nil {
				continue
			}
		}
		if !errors.Is(o.err, lock.ErrHeld) {
			break
		}
		some, swept := l.b.sweepAhead(ctx, o.status)
		if !swept {
			inVain++
		}
		if !some || inVain > mostInVain {
			break
		}
	}
	l.answered(waits, o)
	if o.untold > 0 {
		l.b.routines.Go(func() { _ = l.b.tellOthers(l.b.background, q.Resource, o.untold, l.id) })
	}
	switch {
	case errors.Is(o.err, lock.ErrHeld):
		l.stopWaiting(q.ID)
		return leasekit.Answer{}, &lock.HeldError{Cause: lock.ErrHeld, Status: o.status}
	case errors.Is(o.err, errOtherLimit):
		l.stopWaiting(q.ID)
		return leasekit.Answer{}, leasekit.OtherLimit(q)
	case errors.Is(o.err, lock.ErrUnavailable): // it may be there, until it is withdrawn
		return leasekit.Answer{}, o.err
	case errors.Is(o.err, leasekit.ErrNotSent):
		l.notSent(q.ID, waits)
		return leasekit.Answer{}, o.err
	case o.err != nil:
		l.stopWaiting(q.ID)
		return leasekit.Answer{}, o.err
	case o.queued:
		leasekit.Ring(l.look)
		return leasekit.Answer{}, nil
	}
	l.granted(q.Resource, q.ID, o.version, o.fence())
	if o.kept > 0 {
		l.b.lapsesIn(lapse{q.Resource, o.id, l.id, o.kept}, o.left)
	}
	return leasekit.Answer{Granted: true, Fence: o.fence()}, nil
}

// Withdraw implements leasekit.Driver.
func (l *lease) Withdraw(ctx context.Context, w leasekit.Withdrawal) (leasekit.Withdrawn, error) {
	o := &op{kind: opRemove, id: string(w.ID), lease: l.id, unsure: w.Unsure}
	l.stopWaiting(w.ID)
	if err := l.b.within(ctx, w.Resource, o); err != nil {
		return leasekit.Withdrawn{}, err
	}
	l.dues.Forget(due{l.id, w.Ref})
	found := leasekit.Withdrawn{Found: o.found, Position: o.position}
	if o.position > 0 {
		found.Status = o.status
	}
	return found, nil
}

// Downgrade implements leasekit.Driver.
func (l *lease) Downgrade(ctx context.Context, r leasekit.Ref) error {
	o := &op{kind: opDowngrade, id: string(r.ID), lease: l.id}
	l.moves(r.ID)
	err := l.b.within(ctx, r.Resource, o)
	l.moved(r, o, err == nil)
	return err
}

// Renew implements leasekit.Driver.
func (l *lease) Renew(ctx context.Context, acks []leasekit.Revocation) (r leasekit.Renewal, err error) {
	if err := l.acknowledge(ctx, acks); err != nil { // before the beat, which says that all is well
		return r, err
	}
	answer, falls, err := l.renew(ctx)
	if err != nil {
		return r, err
	}
	if r.Stranger = falls > 0; r.Stranger {
		l.b.mu.Lock()
		l.version = 0 // that of a backup may be an earlier one
		l.b.mu.Unlock()
		_, _ = l.b.rebase(ctx, "heartbeat") // what fails, the next one who grants does
		defer l.tellsFalls(falls)           // until then a heartbeat beside this one says the same
	}
	l.observer.SawKeeper(keeperOf(answer.Reads[0]))
	clock, _ := answer.Reads[4].one()
	l.b.sawClock(clock, false)
	r.Entries = answer.Reads[1].Count
	if len(answer.Reads[5].KVs) > 0 {
		leasekit.Ring(l.told)
	}
	for _, kv := range answer.Reads[2].KVs {
		if p, news := l.forcedNews(kv); news {
			r.Revoked = append(r.Revoked, leasekit.Revocation{Ref: p.Ref, Grace: p.Grace})
		}
	}
	return r, nil
}

// tellsFalls notes of how many falls of the store a heartbeat tells.
func (l *lease) tellsFalls(falls uint64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.falls = max(l.falls, falls)
}

// renew writes the beat, and reads all forced releases. The store is a stranger where it has gone back to a backup: its revision is smaller then, or, if
// others have been quick, the version of the beat is not the one that was written last, or what was granted since then is not there. Then
// falls is how often it did, else 0.
func (l *lease) renew(ctx context.Context) (answer Result, falls uint64, err error) {
	l.mu.Lock()
	known := l.beat
	l.mu.Unlock()
	shows, last := l.toShow()
	t := Txn{
		If:   []Cond{{Key: leaseKey(l.id), There: true}, {Key: beatKey(l.id), Version: known}},
		Then: []Write{{Key: beatKey(l.id), Value: encode(leaseInfo{TTL: l.ttl.Milliseconds(), Sidecar: l.sidecar})}},
		Read: []Range{{Key: keeperKey}, {Key: entriesOf(l.id), End: after(entriesOf(l.id)), Count: true}, all(forcedOf(l.id), page), {Key: beatKey(l.id)}, {Key: clockKey}, all(toldOf(l.id), 1)},
	}
	first, others := shows[:min(len(shows), shownAtOnce)], len(t.Read)
	t.Read = append(t.Read, readsOf(first)...)
	answer, err = l.b.do(ctx, "heartbeat", t)
	if err == nil && !answer.Done { // a beat has had no answer, or there is one beside this one; or the lease is over
		if beat, there := answer.Reads[3].one(); there && beat.Version < known {
			l.b.fell() // which is known also if the next request has no answer
		}
		t.If = t.If[:1]
		answer, err = l.b.do(ctx, "heartbeat", t)
	}
	if err != nil {
		return answer, 0, l.b.unavailable("heartbeat", err)
	}
	if !answer.Done {
		return answer, 0, lock.ErrLeaseLost
	}
	if found := &answer.Reads[2]; len(found.KVs) == page { // there may be more
		found.KVs = nil
		err := l.b.pages(ctx, "heartbeat", forcedOf(l.id), func(kvs []KV) error {
			found.KVs = append(found.KVs, kvs...)
			return nil
		})
		if err != nil {
			return answer, 0, l.b.unavailable("heartbeat", err)
		}
	}
	_ = l.forgetForced(answer.Reads[2].KVs)
	l.shown(first, answer.Reads[others:])
	l.showMore(ctx, shows[len(first):])
	falls = l.b.fallen()
	l.mu.Lock()
	defer l.mu.Unlock()
	if falls == l.falls {
		l.beat = max(l.beat, answer.Revision)
		return answer, 0, nil
	}
	l.beat = answer.Revision
	maps.DeleteFunc(l.fresh, func(_ lock.HoldID, f fresh) bool { return f.no <= last }) // it is compared, be it shown or not
	return answer, falls, nil
}

// forcedNews reads a forced release, and tells whether the sidecar has to hear of it.
func (l *lease) forcedNews(kv KV) (leasekit.Push, bool) {
	f := decode[forced](kv)
	name, id := refOf(strings.TrimPrefix(kv.Key, forcedOf(l.id)))
	l.forgetSole(name)
	p := leasekit.Push{Kind: leasekit.Revoked, Ref: leasekit.Ref{Resource: name, ID: lock.HoldID(id)}, Grace: f.grace()}
	return p, f.Known == 0 || f.Grace < f.Known
}

// Held implements leasekit.Driver.
func (l *lease) Held(ctx context.Context, each func(leasekit.Ref)) error {
	err := l.b.pages(ctx, "compare", entriesOf(l.id), func(kvs []KV) error {
		for _, kv := range kvs {
			name, id := refOf(strings.TrimPrefix(kv.Key, entriesOf(l.id)))
			each(leasekit.Ref{Resource: name, ID: lock.HoldID(id)})
		}
		return nil
	})
	if err != nil {
		return l.b.unavailable("compare", err)
	}
	return nil
}

// pages reads all keys that begin with prefix, in bounded steps.
func (b *Backend) pages(ctx context.Context, command, prefix string, each func([]KV) error) error {
	return b.pagesOf(ctx, command, all(prefix, 0), each)
}

// pagesOf is pages of a range.
func (b *Backend) pagesOf(ctx context.Context, command string, r Range, each func([]KV) error) error {
	for r.Limit = page; ; {
		answer, err := b.do(ctx, command, Txn{Read: []Range{r}})
		if err != nil {
			return err
		}
		kvs := answer.Reads[0].KVs
		if err := each(kvs); err != nil || len(kvs) < page {
			return err
		}
		r.Key = kvs[len(kvs)-1].Key + "\x00"
	}
}

// Listen implements leasekit.Driver.
func (l *lease) Listen(ctx context.Context, push func(leasekit.Push)) {
	var tasks sync.WaitGroup
	for _, task := range []func(context.Context){l.observer.Run, l.looks, l.chores} {
		tasks.Go(func() { task(ctx) })
	}
	tasks.Go(func() { l.dues.Run(ctx, atATime, l.endForced) })
	tasks.Go(func() { l.hearAgain(ctx, push) })
	for ctx.Err() == nil {
		missed := func() {
			push(leasekit.Push{Kind: leasekit.Missed})
			leasekit.Ring(l.told)
		}
		_ = l.b.store.Watch(ctx, ownPrefix(l.id), missed, func(kv KV) { l.changed(kv, push) })
		leasekit.Sleep(ctx, listenAgain)
	}
	tasks.Wait()
}

// listenAgain is the pause before changes are listened for again after an error.
const listenAgain = 200 * time.Millisecond

// changed passes on what others have done for the lease. What is taken away needs no push:
// the lease does that itself, or it is told by a forced release.
func (l *lease) changed(kv KV, push func(leasekit.Push)) {
	rest, isEntry := strings.CutPrefix(kv.Key, entriesOf(l.id))
	switch {
	case kv.Version == 0:
	case strings.HasPrefix(kv.Key, toldOf(l.id)):
		l.hear(kv, push)
	case isEntry:
		name, id := refOf(rest)
		e := decode[entry](kv)
		p := leasekit.Push{Kind: leasekit.Granted, Ref: leasekit.Ref{Resource: name, ID: lock.HoldID(id)}, Fence: e.fence()}
		if e.Fence == 0 || !l.grantedByPush(p.Ref, kv.Version, p.Fence) {
			p.Kind = leasekit.Woken
		}
		if e.Fence > 0 || e.Out {
			push(p)
		}
	default:
		p, news := l.forcedNews(kv)
		if l.forget(p.ID); news {
			push(p)
		}
	}
}

// Close implements leasekit.Driver. The lease ends first: from then on nothing that hangs
// on it counts.
func (l *lease) Close(ctx context.Context) error {
	l.b.mu.Lock()
	delete(l.b.leases, l.id)
	l.b.mu.Unlock()
	l.resign(ctx)
	_, err := l.b.do(ctx, "close", Txn{
		If:   []Cond{{Key: leaseKey(l.id), There: true}},
		Then: []Write{{Key: leaseKey(l.id), Delete: true}, {Key: beatKey(l.id), Delete: true}, {Key: deadKey(l.id)}},
	})
	if err == nil {
		err = l.b.sweep(ctx, l.id)
	}
	if err != nil {
		return l.b.unavailable("close lease", err)
	}
	return nil
}
