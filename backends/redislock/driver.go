package redislock

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/locksidecar/locksidecar/backends/leasekit"
	"github.com/locksidecar/locksidecar/lock"
)

const (
	// tombstone is the least time for which a store remembers an id that was given
	// up: a copy of its request may be on its way for so long, and for a TTL.
	tombstone = time.Minute
	// notTrusted is when to ask again about a grant of a server that the next
	// heartbeat must look at first.
	notTrusted = 200 * time.Millisecond
)

// forSeveral ends the record of a request that has a cohort.
const forSeveral = "\x00c"

// least comes before the own time of a hold, or of a request, at the end of its record.
const least = "\x00m"

// keyed comes before the key of a hold that is detached, or was and is attached; keyLength is that of a key.
const (
	keyed     = "\x00d"
	keyLength = 64
)

var errAnotherServer = errors.New("another server has come up meanwhile")

// errStranger: the process that is trusted was a replica meanwhile.
var errStranger = errors.New("the server was a replica meanwhile")

// driver is what a lease of leasekit asks of Redis.
type driver struct {
	b       *Backend
	id      lock.LeaseID
	sidecar string
	ttl     time.Duration
	grace   time.Duration // see past
	recheck time.Duration
	slots   []*slot

	beatTurn chan struct{} // heartbeats are one at a time; has room for one

	closed atomic.Bool

	mu      sync.Mutex
	beats   uint64        // heartbeats so far
	forgot  time.Duration // on the clock, when a heartbeat last was to forget records that are over
	renewed time.Duration // on the clock, before the last heartbeat was sent that the store carried out

	asked early

	more   chan lock.Resource
	crowd  chan lock.Resource
	looks  chan struct{}
	probes chan struct{}
	found  chan finding // by heartbeats; has room for one

	unlooked *time.Timer         // fires when it is time to look for dead leases though no heartbeat has; nil: those look often
	ear      atomic.Pointer[ear] // nil: nothing is listened to at the moment

	subscribed chan struct{} // closed when pushes arrive
	pushOnce   sync.Once
}

var (
	_ leasekit.Driver = (*driver)(nil)
	_ leasekit.Sorter = (*driver)(nil)
	_ leasekit.Teller = (*driver)(nil)

	_ leasekit.Forgetter = (*driver)(nil)
)

// OpenLease implements lock.Backend.
func (b *Backend) OpenLease(ctx context.Context, o lock.LeaseOptions) (lock.Lease, error) {
	if o.TTL < lock.MinTTL || o.TTL > lock.MaxTTL {
		return nil, &lock.InvalidError{Field: "ttl", Problem: fmt.Sprintf("must be from %s to %s", lock.MinTTL, lock.MaxTTL)}
	}
	b.checked.Store(false) // the data may have been lost since, and another kind of sidecar may have come first
	if err := b.checkAtFirst(ctx); err != nil {
		return nil, err
	}
	d := &driver{
		b: b, id: lock.NewLeaseID(), sidecar: o.Sidecar, ttl: o.TTL, grace: b.cfg.grace, recheck: leasekit.RecheckOf(o.TTL),
		beatTurn: make(chan struct{}, 1), more: make(chan lock.Resource, 256), crowd: make(chan lock.Resource, 64), looks: make(chan struct{}, 1),
		probes: make(chan struct{}, 1), found: make(chan finding, 1), subscribed: make(chan struct{}),
	}
	if d.grace < 0 {
		d.grace = o.TTL
	}
	b.mu.Lock()
	b.grace = max(b.grace, d.grace)
	b.mu.Unlock()
	for i := range b.keys.buckets {
		d.slots = append(d.slots, &slot{index: i, turn: make(chan struct{}, 1)})
	}
	if d.looksSeldom() {
		d.unlooked = time.NewTimer(d.lookAgain())
	}
	if err := d.start(ctx); err != nil {
		return nil, fmt.Errorf("open lease: %w", err)
	}
	l := leasekit.Start(ctx, d, leasekit.Options{
		ID: d.id, TTL: o.TTL, Clock: b.clock, Opened: d.renewed, Recheck: d.recheck, Unproven: true, Tells: true,
	})
	// A grant that is published before we listen would be found late. But the lease
	// lives already, and most of its TTL is for who gets it.
	select {
	case <-d.subscribed:
	case <-time.After(min(b.cfg.timeout, o.TTL/4)):
	case <-ctx.Done():
	}
	return l, nil
}

// checkAtFirst is check; but in a Cluster one node knows the layout, and without it the
// sidecar goes on with the others, and checks later.
func (b *Backend) checkAtFirst(ctx context.Context) error {
	if b.cfg.scheme != "redis+cluster" {
		return b.check(ctx)
	}
	ctx, cancel := context.WithTimeout(ctx, patientTrips*b.cfg.timeout) // the driver asks a silent node again
	defer cancel()
	if err := b.check(ctx); errors.Is(err, errLayout) {
		return err
	}
	return nil
}

// patientTrips is for how many requests a node is waited for that others can do without:
// to connect, and to ask.
const patientTrips = 3

// start makes the lease known, where some server grants locks already.
func (d *driver) start(ctx context.Context) error {
	found, err := d.lookAround(ctx)
	if err != nil {
		return err
	}
	if err := d.b.checkEviction(); err != nil { // by now all servers have been spoken to that answer
		return err
	}
	best, left := found[0], d.kept(found[0])
	for _, s := range found[1:] {
		if l := d.kept(s); l < left {
			best, left = s, l
		}
	}
	if left > 0 {
		return fmt.Errorf("Redis was restarted, or another server has taken over, and it may have forgotten locks; they are granted again in %s (restart-grace=0s in the URL turns this off, for tests): %w", //nolint:staticcheck // a name
			left.Round(100*time.Millisecond), lock.ErrUnavailable)
	}
	d.renewed = d.b.clock()
	return d.openSlot(ctx, best)
}

// lookAround asks for every bucket who has it, and tells for how long. What it learns stands in the pasts.
// The result is those buckets whose server has answered, at least one.
func (d *driver) lookAround(ctx context.Context) (found []*slot, err error) {
	ctx, cancel := context.WithTimeout(ctx, patientTrips*d.b.cfg.timeout)
	defer cancel()
	due := d.slots
	for round := range 2 { // the first answer of a server may come before it is known who it is
		sent := d.b.clock()
		calls := make([]call, len(due))
		for n, s := range due {
			k := &d.b.keys.buckets[s.index]
			calls[n] = call{keys: []string{k.leases, k.leases}, args: d.b.open(s.index, "", 0)}
		}
		err = d.b.runTogether(ctx, scriptOpen, calls)
		var again []*slot
		for n, s := range due {
			switch _, err := d.b.opened(s.index, calls[n].reply, sent); {
			case calls[n].err != nil:
			case errors.Is(err, errAnotherServer), err == nil && round == 0 && d.b.doubts(s.index):
				again = append(again, s)
			case err == nil:
				found = append(found, s)
			default:
				return nil, unavailable("look at store", err)
			}
		}
		if due = again; len(due) == 0 {
			break
		}
	}
	if len(found) > 0 {
		return found, nil
	}
	return nil, unavailable("look at store", cmp.Or(err, errAnotherServer))
}

// checkLater checks how the data is laid out, where that could not be done before the
// lease was opened.
func (d *driver) checkLater(ctx context.Context) {
	for {
		if err := d.b.check(ctx); err == nil || errors.Is(err, errLayout) {
			return
		}
		select {
		case <-time.After(d.recheck):
		case <-ctx.Done():
			return
		}
	}
}

// Ask implements leasekit.Driver.
func (d *driver) Ask(ctx context.Context, q lock.Request) (leasekit.Answer, error) {
	if d.b.foreign.Load() {
		return leasekit.Answer{}, d.notAsked(q.Resource, errLayout)
	}
	s := d.slots[d.b.keys.bucketOf(q.Resource)]
	if err := d.enter(ctx, s); err != nil {
		return leasekit.Answer{}, d.notAsked(q.Resource, err)
	}
	defer s.leave()
	if q.Try {
		if left := d.kept(s); left > 0 {
			return leasekit.Answer{}, d.keptBack(q.Resource, left)
		}
	}
	s.asks.Add(1)
	over := d.over(s)
	again, first := d.asked.is(q.ID, over), false
	if over == 0 { // a grant may come by push before the answer
		first = d.asked.note(q.ID, over)
	}
	a, err := d.ask(ctx, s, &q, over, again)
	switch {
	case errors.Is(err, leasekit.ErrNotSent): // it is as it was
		if first {
			d.asked.forget(q.ID)
		}
	case a.Granted, err != nil && !errors.Is(err, lock.ErrUnavailable):
		d.asked.forget(q.ID)
	case err != nil && again: // another fence is still to be asked for: this request may not have reached the server
	default:
		d.asked.note(q.ID, over)
	}
	return a, err
}

// ask is Ask in a bucket in which the lease is known. over is the version of the past that is over (see early), and again tells
// that a grant that is there gets another fence.
func (d *driver) ask(ctx context.Context, s *slot, q *lock.Request, over uint64, again bool) (leasekit.Answer, error) {
	script, keys := scriptAcquire, d.b.keys.buckets[s.index].of(q.Resource, d.id)
	args := words(string(q.Resource), string(d.id), string(q.ID), modeWord(q.Mode)+leastWord(q.MinHold), d.who(q.Owner, q.Cohort != nil))
	trusted := s.trusted.Load()
	failsOver := trusted != nil && d.b.cfg.failsOver()
	switch {
	case q.Handle != "":
		script, keys = scriptAttach, d.b.keys.buckets[s.index].attaching(q.Resource, d.id, "")
		args = append(args, string(q.Handle)+":")
	case again && q.Try:
		args = append(args, "3")
	case again:
		args = append(args, "2")
	case q.Try:
		args = append(args, "1")
	case failsOver:
		args = append(args, "0")
	}
	if failsOver {
		args = append(args, trusted.term)
	}
	on := d.b.batchers[s.index]
	if script != scriptAcquire { // it may be sent once more, behind others
		ctx = context.WithValue(ctx, lock.QueuedKey{}, nil)
	}
	for first := true; ; first = false {
		r := d.b.run(ctx, forAcquires{on}, script, keys, args...)
		if errors.Is(r.err, errNotSent) && !first && !q.Try {
			return leasekit.Answer{}, nil // it stands in the queue
		}
		if r.err != nil {
			return leasekit.Answer{}, d.notAsked(q.Resource, r.err)
		}
		if holder, has := holderOf(r); has {
			tail := string(q.Handle) + ":" + holder
			keys, args[5] = d.b.keys.buckets[s.index].attaching(q.Resource, d.id, lock.LeaseID(holder)), &tail
			continue
		}
		a, done, err := d.answer(s, q, over, r)
		if errors.Is(err, errStranger) {
			s.trusted.CompareAndSwap(trusted, nil) // until a heartbeat has met it
			if q.Try {
				return a, d.keptBack(q.Resource, notTrusted)
			}
			return leasekit.Answer{Recheck: notTrusted}, nil
		}
		if done {
			return a, err
		}
	}
}

// who is what a record says of who asks.
func (d *driver) who(owner string, several bool) string {
	if several {
		return d.sidecar + "\x00" + owner + forSeveral
	}
	return d.sidecar + "\x00" + owner
}

func (d *driver) notAsked(r lock.Resource, err error) error {
	switch {
	case errors.Is(err, errNotSent):
		return leasekit.ErrNotSent
	case errors.Is(err, lock.ErrUnavailable), errors.Is(err, lock.ErrLeaseLost):
		return fmt.Errorf("acquire %q: %w", string(r), err)
	}
	return unavailable(fmt.Sprintf("acquire %q", string(r)), err)
}

func (d *driver) keptBack(r lock.Resource, left time.Duration) error {
	return fmt.Errorf("acquire %q: Redis was restarted, or another server has taken over, and it may have forgotten locks; ask again in %s: %w",
		string(r), left.Round(100*time.Millisecond), lock.ErrUnavailable)
}

// answer reads the reply to an acquire. done is false where there is more to do in
// the store before it can decide.
//
// Model: failover.ANSWERED.
func (d *driver) answer(s *slot, q *lock.Request, over uint64, r reply) (a leasekit.Answer, done bool, err error) {
	var attached time.Duration
	fence, granted := r.val.(string)
	fields, _ := r.val.([]any)
	switch kind := word(fields, 0); {
	case granted:
	case kind == "NOHANDLE":
		return a, true, lock.ErrNoHandle
	case kind == "ATTACHED":
		fence = word(fields, 1)
		micros, _ := strconv.ParseInt(word(fields, 2), 10, 64)
		attached = time.Duration(micros) * time.Microsecond
	case kind == "GRANTED":
		fence = word(fields, 1)
		d.goOn(q.Resource)
	case kind == "STRANGER":
		return a, true, errStranger
	case kind == "LOST":
		return a, true, lock.ErrLeaseLost
	case kind == "GONE":
		return a, true, lock.ErrNotHolder
	case kind == "HELD":
		return a, true, &lock.HeldError{Cause: lock.ErrHeld, Status: holdersOf(q.Resource, fields[1:])}
	case kind == "LIMIT":
		return a, true, leasekit.OtherLimit(*q)
	case kind == "MORE":
		return a, false, nil
	case kind == "WAIT":
		if ms, ok := fields[1].(int64); ok && ms > 0 {
			a.Recheck = time.Duration(ms+5) * time.Millisecond
		}
		if len(fields) > 2 {
			d.tellAll(q.Resource)
		}
		return a, true, nil
	default:
		return a, true, fmt.Errorf("acquire %q: Redis answered %v: %w", string(q.Resource), r.val, lock.ErrUnavailable)
	}
	// A grant of a server that the last heartbeat has not trusted is worth nothing
	// yet; so is one of a server that may have forgotten who else was granted, and one
	// that too few replicas have.
	left := d.kept(s)
	if !s.trusts(r.by) || r.copies < d.b.cfg.replicas {
		left = max(left, notTrusted)
	}
	if q.Handle == "" && d.over(s) != over { // the grace was over while it was asked: the fence is of before that (see early)
		left = max(left, notTrusted)
	}
	switch {
	case left > 0 && q.Try:
		return a, true, d.keptBack(q.Resource, left)
	case left > 0:
		return leasekit.Answer{Recheck: left}, true, nil
	}
	f, err := parseFence(fence)
	if err != nil {
		return a, true, unavailable(fmt.Sprintf("acquire %q", string(q.Resource)), err)
	}
	return leasekit.Answer{Granted: true, Fence: f, Left: attached}, true, nil
}

// parseFence reads a fence as lib.lua describes it.
func parseFence(s string) (lock.Fence, error) {
	number, slot, permit := strings.Cut(s, "+")
	n, err := strconv.ParseInt(number, 10, 64)
	at := 0
	if permit && err == nil {
		at, err = strconv.Atoi(slot)
	}
	if err != nil {
		return 0, fmt.Errorf("fence %q: %w", s, err)
	}
	return lock.PermitFence(n, at), nil
}

// Withdraw implements leasekit.Driver.
func (d *driver) Withdraw(ctx context.Context, w leasekit.Withdrawal) (leasekit.Withdrawn, error) {
	s := d.slots[d.b.keys.bucketOf(w.Resource)]
	s.users.Add(1)
	defer s.leave()
	d.asked.forget(w.ID)
	open := s.open.Load()
	if !open && !w.Unsure {
		return leasekit.Withdrawn{}, nil // nothing of the lease is there
	}
	args := words(string(w.Resource), string(d.id), string(w.ID))
	if w.Unsure {
		args = append(args, strconv.FormatInt(max(tombstone, d.ttl).Microseconds(), 10))
	}
	keys := (*bucket).leaving
	if w.Plain {
		keys = (*bucket).of // each key costs Redis time
	}
	r := d.b.run(ctx, d.b.batchers[s.index], scriptRelease, keys(&d.b.keys.buckets[s.index], w.Resource, d.id), args...)
	if r.err != nil {
		return leasekit.Withdrawn{}, unavailable("release", r.err)
	}
	switch n := r.val.(type) {
	case int64:
		return d.taken(w.Resource, n, open)
	case []any: // CANCELLED, position, more, time, holders
		if len(n) < 4 {
			break
		}
		if n[2] == int64(1) {
			d.goOn(w.Resource)
		}
		rank, _ := n[1].(int64)
		return leasekit.Withdrawn{Found: true, Position: int(rank), Status: holdersOf(w.Resource, n[3:])}, nil
	}
	return leasekit.Withdrawn{}, fmt.Errorf("release: Redis answered %v: %w", r.val, lock.ErrUnavailable)
}

// Forget implements leasekit.Forgetter.
func (d *driver) Forget(id lock.HoldID) { d.asked.forget(id) }

// KeepsMinHold implements leasekit.Keeper.
func (d *driver) KeepsMinHold() error { return nil }

// Describe implements leasekit.Teller.
func (d *driver) Describe(ctx context.Context, ref leasekit.Ref, owner string) error {
	s := d.slots[d.b.keys.bucketOf(ref.Resource)]
	s.users.Add(1)
	defer s.leave()
	if !s.open.Load() {
		return lock.ErrNotHolder
	}
	r := d.b.run(ctx, d.b.batchers[s.index], scriptDescribe, d.b.keys.buckets[s.index].of(ref.Resource, d.id),
		string(ref.Resource), string(d.id), string(ref.ID), d.who(owner, true))
	switch {
	case r.err != nil:
		return unavailable("describe", r.err)
	case r.val == int64(0):
		return lock.ErrNotHolder
	case r.val == int64(-1):
		return lock.ErrLeaseLost
	}
	return nil
}

// Downgrade implements leasekit.Driver.
func (d *driver) Downgrade(ctx context.Context, ref leasekit.Ref) error {
	s := d.slots[d.b.keys.bucketOf(ref.Resource)]
	s.users.Add(1)
	defer s.leave()
	if !s.open.Load() {
		return lock.ErrNotHolder
	}
	r := d.b.run(ctx, d.b.batchers[s.index], scriptDowngrade, d.b.keys.buckets[s.index].of(ref.Resource, d.id),
		string(ref.Resource), string(d.id), string(ref.ID))
	switch {
	case r.err != nil:
		return unavailable("downgrade", r.err)
	case r.val == int64(0):
		return lock.ErrNotHolder
	case r.val == int64(-1):
		return lock.ErrLeaseLost
	case r.val == int64(2):
		d.goOn(ref.Resource)
	}
	return nil
}
