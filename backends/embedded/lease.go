package embedded

import (
	"context"
	"time"

	"github.com/locksidecar/locksidecar/backends/leasekit"
	"github.com/locksidecar/locksidecar/backends/queue"
	"github.com/locksidecar/locksidecar/lock"
)

// lease is the store's side of a lease. Its fields stand under the store's mutex.
type lease struct {
	store     *Store
	id        lock.LeaseID
	sidecar   string
	ttl       time.Duration
	push      func(leasekit.Push)
	listening chan struct{} // closed when push is set

	dropped chan struct{} // closed when it is over
	over    bool          // expired, closed, or the store was closed
	ofHold  bool          // it has one hold, and no sidecar renews it: see kept.go
	end     ending        // while it is not over
	first   *entry        // its holds and waiters
	count   int

	unacknowledged map[lock.HoldID]*entry    // forced holds that it has not acknowledged
	takenAway      map[leasekit.Ref]struct{} // holds forced with grace 0; the same
	forcedOut      map[lock.HoldID]struct{}  // waiters that it has not asked about since
}

var (
	_ leasekit.Driver = (*lease)(nil)
	_ leasekit.Teller = (*lease)(nil)
)

// Ask implements leasekit.Driver.
func (l *lease) Ask(_ context.Context, q lock.Request) (leasekit.Answer, error) {
	switch {
	case q.ID == "":
		return leasekit.Answer{}, &lock.InvalidError{Field: "id", Problem: "must not be empty"}
	case !q.Mode.Valid():
		return leasekit.Answer{}, &lock.InvalidError{Field: "mode", Problem: "is not a mode"}
	case q.Handle != "":
		return l.attach(q)
	}
	a, refused, err := l.ask(q)
	if refused != nil {
		err = &lock.HeldError{Cause: lock.ErrHeld, Status: refused.status()}
	}
	return a, err
}

// Model: lease.ASK, retry.ASK.
func (l *lease) ask(q lock.Request) (_ leasekit.Answer, refused *view, _ error) {
	s := l.store
	s.mu.Lock()
	defer s.mu.Unlock()
	now, err := l.begin()
	if err != nil {
		return leasekit.Answer{}, nil, err
	}
	if len(s.leaving) > 0 {
		s.rid(q.Resource, now)
	}
	r := s.resources[q.Resource]
	e := r.find(q.ID)
	switch {
	case e != nil && e.Value.lease.ofHold: // it was given up
		return leasekit.Answer{}, nil, lock.ErrNotHolder
	case e != nil && e.Value.lease != l:
		return leasekit.Answer{}, nil, &lock.InvalidError{Field: "id", Problem: "is in use by another lease"}
	case e != nil: // asked again, or a copy; where its release is forced, its grace is kept
	case l.wasForcedOut(q.ID):
		return leasekit.Answer{}, nil, lock.ErrNotHolder
	case r != nil && r.clashes(queue.RoomOf(q.Mode), now):
		return leasekit.Answer{}, nil, leasekit.OtherLimit(q)
	case q.Try && r != nil && !r.Free(queue.RoomOf(q.Mode)):
		v := r.brief(now)
		return leasekit.Answer{}, &v, nil
	default:
		e = s.put(r, l, q, now)
	}
	return leasekit.Answer{Granted: e.Held(), Fence: e.Value.fence}, nil, nil
}

// Withdraw implements leasekit.Driver. No copy of a request arrives late here, so
// nothing is remembered of an id that was given up.
func (l *lease) Withdraw(_ context.Context, w leasekit.Withdrawal) (leasekit.Withdrawn, error) {
	found, v, err := l.withdraw(w.Ref)
	if found.Position > 0 {
		found.Status = v.status()
	}
	return found, err
}

// Model: retry.WITHDRAW, force.RELEASE.
func (l *lease) withdraw(r leasekit.Ref) (found leasekit.Withdrawn, v view, _ error) {
	s := l.store
	s.mu.Lock()
	defer s.mu.Unlock()
	now, err := l.begin()
	if err != nil {
		return found, v, err
	}
	e := l.own(r)
	if e == nil {
		l.wasForcedOut(r.ID)
		delete(l.takenAway, r)
		return found, v, nil
	}
	found.Found = true
	if e.Waiting() {
		found.Position = e.Value.resource.Position(e)
		v = e.Value.resource.brief(now)
	}
	s.end(e, now)
	return found, v, nil
}

// Downgrade implements leasekit.Driver.
func (l *lease) Downgrade(_ context.Context, r leasekit.Ref) error {
	l.store.mu.Lock()
	defer l.store.mu.Unlock()
	now, err := l.begin()
	if err != nil {
		return err
	}
	e := l.own(r)
	if e == nil || !e.Held() {
		return lock.ErrNotHolder
	}
	e.Value.resource.Downgrade(e)
	l.store.promote(e.Value.resource, now)
	return nil
}

// Describe implements leasekit.Teller.
func (l *lease) Describe(_ context.Context, r leasekit.Ref, owner string) error {
	l.store.mu.Lock()
	defer l.store.mu.Unlock()
	if _, err := l.begin(); err != nil {
		return err
	}
	e := l.own(r)
	if e == nil || !e.Held() {
		return lock.ErrNotHolder
	}
	e.Value.owner = owner
	return nil
}

// Renew implements leasekit.Driver.
//
// Model: lease.RENEW, force.RENEW.
func (l *lease) Renew(_ context.Context, acks []leasekit.Revocation) (leasekit.Renewal, error) {
	s := l.store
	s.mu.Lock()
	defer s.mu.Unlock()
	now, err := l.begin()
	if err != nil {
		return leasekit.Renewal{}, err
	}
	s.endsAt(&l.end, now+l.ttl)
	s.setWall(now)
	for _, a := range acks {
		if a.Grace == 0 {
			delete(l.takenAway, a.Ref)
		}
		if e := l.own(a.Ref); e != nil && e.Value.force != nil && a.Grace <= e.Value.force.grace {
			delete(l.unacknowledged, e.ID)
			s.endsBy(&e.Value.force.end, now+a.Grace)
		}
	}
	answer := leasekit.Renewal{Entries: l.count}
	for _, e := range l.unacknowledged {
		answer.Revoked = append(answer.Revoked, leasekit.Revocation{Ref: ref(e), Grace: e.Value.force.grace})
	}
	for r := range l.takenAway {
		answer.Revoked = append(answer.Revoked, leasekit.Revocation{Ref: r})
	}
	return answer, nil
}

// Held implements leasekit.Driver.
func (l *lease) Held(_ context.Context, each func(leasekit.Ref)) error {
	all, err := l.refs()
	for _, r := range all {
		each(r)
	}
	return err
}

func (l *lease) refs() ([]leasekit.Ref, error) {
	l.store.mu.Lock()
	defer l.store.mu.Unlock()
	if _, err := l.begin(); err != nil {
		return nil, err
	}
	all := make([]leasekit.Ref, 0, l.count)
	for e := l.first; e != nil; e = e.Value.next {
		all = append(all, ref(e))
	}
	return all, nil
}

// Listen implements leasekit.Driver. No push is lost: the store calls it itself.
func (l *lease) Listen(ctx context.Context, push func(leasekit.Push)) {
	l.store.mu.Lock()
	l.push = push
	if l.over { // the store was closed meanwhile
		push(leasekit.Push{Kind: leasekit.Over})
	}
	l.store.mu.Unlock()
	close(l.listening)
	select {
	case <-ctx.Done():
	case <-l.dropped:
	}
}

// Close implements leasekit.Driver.
func (l *lease) Close(context.Context) error {
	for l.leave() {
	}
	return nil
}

// leave ends the lease, or some more of what hangs on it, and tells whether anything
// does still.
func (l *lease) leave() (more bool) {
	s := l.store
	s.mu.Lock()
	defer s.mu.Unlock()
	if l.over {
		s.clear(l, s.clock())
	} else {
		s.drop(l, s.clock())
	}
	return l.first != nil
}

// begin opens every operation on the lease, with the mutex held.
func (l *lease) begin() (now time.Duration, err error) {
	now, err = l.store.begin()
	if l.over {
		return 0, lock.ErrLeaseLost
	}
	return now, err
}

// own returns the lease's own hold or waiter, or nil.
func (l *lease) own(r leasekit.Ref) *entry {
	e := l.store.resources[r.Resource].find(r.ID)
	if e == nil || e.Value.lease != l {
		return nil
	}
	return e
}

// wasForcedOut tells, once, whether a waiter was taken out by ForceRelease.
func (l *lease) wasForcedOut(id lock.HoldID) bool {
	_, was := l.forcedOut[id]
	delete(l.forcedOut, id)
	return was
}

// link puts e in front of the lease's other entries.
func (l *lease) link(e *entry) {
	e.Value.next = l.first
	if l.first != nil {
		l.first.Value.prev = e
	}
	l.first = e
	l.count++
}

func (l *lease) unlink(e *entry) {
	v := &e.Value
	if v.prev == nil {
		l.first = v.next
	} else {
		v.prev.Value.next = v.next
	}
	if v.next != nil {
		v.next.Value.prev = v.prev
	}
	v.prev, v.next = nil, nil
	l.count--
}

// drop ends a lease for ever, with everything on it: of thousands of holds the first
// ones now, and the others in steps by expire, or when somebody asks for the resource.
func (s *Store) drop(l *lease, now time.Duration) {
	if l.over {
		return
	}
	l.over = true
	delete(s.leases, l)
	s.endings.cancel(&l.end)
	l.push(leasekit.Push{Kind: leasekit.Over})
	close(l.dropped)
	if s.clear(l, now); l.first != nil {
		s.leaving = append(s.leaving, l)
		s.ring()
	}
}

// rid ends what stands in front of others on a resource and hangs on leases that are
// over; where that is very much, not all of it at once.
func (s *Store) rid(name lock.Resource, now time.Duration) {
	r := s.resources[name]
	for n := 0; n < grantStep && r != nil && !r.Empty(); n++ {
		e := r.dead()
		if e == nil {
			return
		}
		n += s.end(e, now)
	}
}

// clear ends some of what hangs on a lease that is over. What came last goes first, so
// that no waiter of the lease is granted on the way out.
func (s *Store) clear(l *lease, now time.Duration) {
	for n := 0; n < grantStep && l.first != nil; n++ {
		n += s.end(l.first, now)
	}
}
