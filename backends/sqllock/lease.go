package sqllock

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"time"

	"github.com/locksidecar/locksidecar/backends/leasekit"
	"github.com/locksidecar/locksidecar/lock"
)

const (
	// maxID and maxSidecar are what the tables have room for.
	maxID, maxSidecar = 64, 255
	// counted is how many entries of each kind a heartbeat counts.
	counted = 5000
	// rareRecheck is when a waiter asks again at the latest. The lease looks more often.
	rareRecheck = 30 * time.Second
	// bellTime is how long a new lease is kept back for its bell, which is a hint.
	bellTime = 250 * time.Millisecond
)

// lease is one sidecar's session in the tables.
type lease struct {
	b       *Backend
	id      lock.LeaseID
	sidecar string
	ttl     time.Duration
	recheck time.Duration

	beats    Pool // one connection, for heartbeats
	observer *leasekit.Observer
	dues     *leasekit.Due[leasekit.Ref] // forced releases whose grace is counted

	mu      sync.Mutex
	number  int64                           // of the connection of the last heartbeat,
	server  string                          // and who answered it
	deafen  context.CancelFunc              // ends the listening for the bell there; nil: nobody listens yet
	push    func(leasekit.Push)             // nil before Listen
	waiting map[lock.HoldID]waiter          // that are in the queue
	lapses  map[lock.Resource]time.Duration // when a hold that nobody has may let them in, on the clock
	several bool                            // some request has had a cohort
	entries int                             // that the store had at the last heartbeat
	turn    uint64                          // of the last waiter
	ended   map[string]*overLease
	rounds  string   // the server that has answered the last round, as the keeper
	dirty   []string // of those, to be swept: of which something may be left,
	again   []string // and of which nothing was
	many    bool     // of these some were swept last

	bell   chan struct{} // closed when it is known whether there is a bell,
	deaf   atomic.Bool   // and whether there is none
	rang   chan struct{} // has a value when there may be news
	waits  chan struct{} // has a value when a wait starts
	sweeps chan struct{} // has a value when there is something to be swept
}

// waiter is one that is in the queue.
type waiter struct {
	name    lock.Resource
	mode    lock.Mode
	guarded bool // its grant has a guard
	turn    uint64
}

var (
	_ leasekit.Driver  = (*lease)(nil)
	_ leasekit.Sorter  = (*lease)(nil)
	_ leasekit.Teller  = (*lease)(nil)
	_ leasekit.Deaf    = (*lease)(nil)
	_ leasekit.Guarder = (*lease)(nil)
)

// OpenLease implements lock.Backend.
func (b *Backend) OpenLease(ctx context.Context, o lock.LeaseOptions) (lock.Lease, error) {
	l, opened, err := b.open(ctx, o)
	if err != nil {
		return nil, err
	}
	var d leasekit.Driver = l
	if b.o.Beside != nil {
		if d, err = l.besides(o, opened); err != nil {
			return nil, errors.Join(err, l.Close(ctx))
		}
	}
	kit := leasekit.Start(ctx, d, leasekit.Options{ID: l.id, TTL: o.TTL, Clock: b.clock, Opened: opened, Recheck: rareRecheck, Unproven: true})
	select { // until the bell is there, grants are found late
	case <-l.bell:
	case <-time.After(min(bellTime, o.TTL/4)):
	case <-ctx.Done():
	}
	return kit, nil
}

func (b *Backend) open(ctx context.Context, o lock.LeaseOptions) (_ *lease, opened time.Duration, err error) {
	if o.TTL < lock.MinTTL || o.TTL > lock.MaxTTL {
		return nil, 0, &lock.InvalidError{Field: "ttl", Problem: fmt.Sprintf("must be from %s to %s", lock.MinTTL, lock.MaxTTL)}
	}
	b.pool.Regain() // without a lease nobody else needs them
	b.mu.Lock()
	if len(b.leases) == 0 {
		b.pool.Trust("") // nobody's heartbeat says any more which server it is
		b.rings.Trust("")
	}
	b.checked = false // they may have gone since, or be others
	b.mu.Unlock()
	if err := b.once(&b.checked, func() error { return b.checkTables(ctx) }); err != nil {
		return nil, 0, err
	}
	id, again := b.nextID()
	l := &lease{
		b: b, id: id, sidecar: o.Sidecar[:min(len(o.Sidecar), maxSidecar)], ttl: o.TTL, recheck: min(time.Second, o.TTL/3),
		waiting: make(map[lock.HoldID]waiter), lapses: make(map[lock.Resource]time.Duration), dues: leasekit.NewDue[leasekit.Ref](b.clock),
		ended: make(map[string]*overLease),
		bell:  make(chan struct{}), rang: make(chan struct{}, 1), waits: make(chan struct{}, 1),
		sweeps: make(chan struct{}, 1),
	}
	l.observer = leasekit.NewObserver(l, leasekit.ObserverOptions{ID: string(l.id), TTL: o.TTL, Clock: b.clock, MostRound: mostRound})
	if l.beats, err = b.d.Open(PoolOptions{Size: 1, Lasting: int(2*o.TTL/time.Second) + 20}); err != nil {
		return nil, 0, err
	}
	opened, err = l.insert(ctx)
	b.openedAs(id, err)
	if err != nil {
		err = errors.Join(err, l.beats.Close())
		if again && b.d.Class(err) == Refused { // it was opened, and others end it
			return b.open(ctx, o)
		}
		return nil, 0, err
	}
	if err = b.once(&b.tested, func() error { return b.selfTest(ctx, []byte(l.id)) }); err != nil {
		return nil, 0, errors.Join(b.unavailable("open lease", err), l.beats.Close())
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	b.leases[string(l.id)], b.trusting = l, l
	b.moveTo(l.server) // a lease before, which may be closed by now, may have been on another one
	return l, opened, nil
}

// nextID is the id of a new lease. again: it is that of one whose opening had no answer, and may be under way yet. The server has
// the next request wait for that one. So they do not gather there where no commit is answered.
func (b *Backend) nextID() (id lock.LeaseID, again bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	id, b.opening = b.opening, ""
	if id == "" {
		return lock.NewLeaseID(), false
	}
	return id, true
}

// openedAs notes what became of the opening of a lease.
func (b *Backend) openedAs(id lock.LeaseID, err error) {
	if err == nil {
		b.answered()
		return
	}
	switch b.d.Class(err) {
	case Unclear, Blocked, NotSent:
		b.mu.Lock()
		b.opening = id
		b.mu.Unlock()
	default:
	}
}

// answered notes that the server answers commits.
func (b *Backend) answered() {
	b.commits.Add(1)
	b.pool.Regain()
}

// insert makes the lease known, where the server may grant. Where that has no answer, a row
// may be left behind that nobody renews; others end it. See nextID.
func (l *lease) insert(ctx context.Context) (opened time.Duration, err error) {
	var c Conn
	for range 3 { // a new connection takes the server longer than a request
		if c, err = l.beats.Conn(ctx); err == nil || ctx.Err() != nil {
			break
		}
	}
	if err != nil {
		return 0, l.b.unavailable("open lease", err)
	}
	defer c.Close()
	if err = l.b.checkMark(ctx, c, l.ttl); err != nil { // of this server, and no other
		return 0, err
	}
	opened = l.b.clock()
	q := l.b.sql
	res, err := c.Do(ctx, "open",
		Statement{SQL: q.open, Args: []any{[]byte(l.id), newBeat(), l.ttl.Milliseconds(), []byte(l.sidecar)}},
		Statement{SQL: q.keeper})
	if err != nil {
		return 0, l.b.unavailable("open lease", err)
	}
	l.number, l.server = c.Number(), c.Server()
	l.sawKeeper(res[1].Rows)
	l.b.log.add(event{what: "open", lease: string(l.id), note: l.sidecar})
	return opened, nil
}

// newBeat is a number that no heartbeat of a lease has had before: after a
// failover to a replica that lags, a counter could come to the same again.
func newBeat() int64 { return rand.Int64() } //nolint:gosec // not a secret

// Ask implements leasekit.Driver.
func (l *lease) Ask(ctx context.Context, q lock.Request) (leasekit.Answer, error) {
	switch {
	case q.ID == "" || len(q.ID) > maxID:
		return leasekit.Answer{}, &lock.InvalidError{Field: "id", Problem: fmt.Sprintf("must have 1 to %d bytes", maxID)}
	case !q.Mode.Valid():
		return leasekit.Answer{}, &lock.InvalidError{Field: "mode", Problem: "is not a mode"}
	}
	if q.Handle != "" {
		return l.attach(ctx, q)
	}
	turn := l.stopWaiting(q.ID)
	o := &op{
		kind: opAsk, id: string(q.ID), lease: string(l.id), mode: q.Mode, owner: q.Owner, try: q.Try, tell: q.Try,
		fresh: turn == 0, ctx: ctx, least: q.MinHold.Microseconds(),
	}
	if q.Cohort != nil {
		l.standsForSeveral(o)
	}
	l.b.submit(ctx, q.Resource, o)
	switch {
	case errors.Is(o.err, lock.ErrHeld):
		o.status.Resource = q.Resource
		return leasekit.Answer{}, &lock.HeldError{Cause: lock.ErrHeld, Status: o.status}
	case errors.Is(o.err, errOtherLimit):
		return leasekit.Answer{}, leasekit.OtherLimit(q)
	case errors.Is(o.err, errKept):
		return leasekit.Answer{}, l.b.unavailable("acquire", errKept)
	case o.err != nil:
		return leasekit.Answer{}, o.err
	case o.queued:
		l.waitsFor(q, turn)
		return leasekit.Answer{}, nil
	}
	return leasekit.Answer{Granted: true, Fence: fenceOf(o.fence), Guard: l.b.guard(q.Resource, q.ID, q.Mode, l.Guards(q), o.at)}, nil
}

// waitsFor notes that a request is in the queue; turn: since when it was before; 0: it was not.
func (l *lease) waitsFor(q lock.Request, turn uint64) {
	l.mu.Lock()
	if turn == 0 {
		l.turn++
		turn = l.turn
	}
	l.waiting[q.ID] = waiter{name: q.Resource, mode: q.Mode, guarded: l.Guards(q), turn: turn}
	l.mu.Unlock()
	leasekit.Ring(l.waits)
}

// stopWaiting notes that a request is not in the queue, as far as is known. It gives the turn
// that it had there; 0: it was not.
func (l *lease) stopWaiting(id lock.HoldID) (turn uint64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	turn = l.waiting[id].turn
	delete(l.waiting, id)
	return turn
}

// Withdraw implements leasekit.Driver.
func (l *lease) Withdraw(ctx context.Context, w leasekit.Withdrawal) (leasekit.Withdrawn, error) {
	waited := l.stopWaiting(w.ID) != 0
	o := &op{
		kind: opRemove, id: string(w.ID), lease: string(l.id), unsure: w.Unsure, tell: waited,
		plain: w.Mode == lock.Exclusive && !w.Unsure && !waited,
	}
	l.b.submit(ctx, w.Resource, o)
	if o.err != nil {
		return leasekit.Withdrawn{}, l.unknown(o)
	}
	l.dues.Forget(w.Ref)
	found := leasekit.Withdrawn{Found: o.found, Position: o.position}
	if o.position > 0 {
		found.Status = o.status
	}
	return found, nil
}

// unknown is the error of a request that ends or changes a hold.
func (l *lease) unknown(o *op) error {
	if errors.Is(o.err, lock.ErrLeaseLost) || errors.Is(o.err, lock.ErrUnavailable) || errors.Is(o.err, lock.ErrNotHolder) {
		return o.err
	}
	return l.b.unavailable(o.kind.String(), o.err)
}

// Downgrade implements leasekit.Driver.
func (l *lease) Downgrade(ctx context.Context, r leasekit.Ref) error {
	o := &op{kind: opDowngrade, id: string(r.ID), lease: string(l.id)}
	l.b.submit(ctx, r.Resource, o)
	if o.err != nil {
		return l.unknown(o)
	}
	return nil
}

// Renew implements leasekit.Driver.
func (l *lease) Renew(ctx context.Context, acks []leasekit.Revocation) (r leasekit.Renewal, err error) {
	c, err := l.beats.Conn(ctx)
	if err != nil {
		return r, l.b.unavailable("heartbeat", err)
	}
	defer c.Close()
	q, id := l.b.sql, []byte(l.id)
	batch := make([]Statement, 0, len(acks)+4)
	for _, a := range acks {
		grace := a.Grace.Microseconds()
		batch = append(batch, Statement{SQL: q.ack, Args: []any{grace, []byte(a.Resource), []byte(a.ID), id, grace}})
	}
	batch = append(batch, Statement{SQL: q.beat, Args: []any{newBeat(), id}, Count: true},
		Statement{SQL: q.beaten, Args: []any{id, id, id}}, Statement{SQL: q.revoked, Args: []any{id}})
	batch = append(batch, l.askBehind()...)
	res, err := c.Do(ctx, "heartbeat", batch...)
	if err != nil {
		return r, l.b.unavailable("heartbeat", err)
	}
	for _, a := range acks {
		l.dues.In(a.Ref, a.Grace)
	}
	res = res[len(acks):]
	if len(res[1].Rows) == 0 {
		return r, l.b.unavailable("heartbeat", errors.New("the table of the keeper is empty"))
	}
	row := res[1].Rows[0]
	if row.Bool(1) {
		c.GiveUp() // of several servers, another may take writes
		return r, l.b.unavailable("heartbeat", errReadOnly)
	}
	may := row.Bool(6)
	if from := l.b.movedFrom(row.Text(0)); may && from != "" {
		if _, err = c.Do(ctx, "heartbeat", l.b.doubt(from), Statement{SQL: q.beat, Args: []any{newBeat(), id}}); err != nil {
			return r, l.b.unavailable("heartbeat", err)
		}
		may = false
	}
	r.Stranger = l.answered(c.Number(), row.Text(0)) // also where the lease is over: the next one is opened there
	if res[0].Affected == 0 {
		return r, lock.ErrLeaseLost
	}
	l.b.answered()
	l.sawKeeper([]Row{row[2:6]})
	if may {
		l.b.mayGrant()
	}
	r.Entries = int(row.Int(7))
	l.has(r.Entries)
	if r.Entries > counted {
		r.Entries = -1
	}
	for _, late := range res[3:] {
		l.behind(late.Rows)
	}
	for _, v := range res[2].Rows {
		r.Revoked = append(r.Revoked, leasekit.Revocation{
			Ref:   leasekit.Ref{Resource: lock.Resource(v.Text(0)), ID: lock.HoldID(v.Text(1))},
			Grace: time.Duration(v.Int(2)) * time.Microsecond,
		})
	}
	return r, nil
}

// errReadOnly: an account with many rights could write all the same.
var errReadOnly = errors.New("the server takes no writes (read only)")

// answered notes who has answered a heartbeat, and tells whether it is another server
// than last time, or may be.
func (l *lease) answered(number int64, server string) (stranger bool) {
	l.mu.Lock()
	stranger = number != l.number || server != l.server
	if server != l.server && l.deafen != nil {
		l.deafen()
	}
	l.number, l.server = number, server
	l.mu.Unlock()
	l.b.trust(l, server, stranger)
	return stranger
}

// Held implements leasekit.Driver. It asks the server that answers the heartbeats.
func (l *lease) Held(ctx context.Context, each func(leasekit.Ref)) error {
	q, id := l.b.sql, string(l.id)
	return l.compare(ctx, each, q.waitersOf(id), q.rowsOf(id), q.holdsOf(id))
}

// Waiting implements leasekit.Sorter. A slot does not change: another server grants nothing
// before every lease has compared.
func (l *lease) Waiting(ctx context.Context, holds []leasekit.Hold) (waiting []leasekit.Ref, _ error) {
	had := make(map[leasekit.Ref]bool, len(holds))
	for _, h := range holds {
		had[h.Ref] = true
	}
	err := l.compare(ctx, func(r leasekit.Ref) {
		if had[r] {
			waiting = append(waiting, r)
		}
	}, l.b.sql.waitersOf(string(l.id)))
	return waiting, err
}

// compare reads what the server that answers the heartbeats has for the lease.
func (l *lease) compare(ctx context.Context, each func(leasekit.Ref), what ...pages) (err error) {
	c, err := l.beats.Conn(ctx)
	if err != nil {
		return l.b.unavailable("compare", err)
	}
	defer c.Close()
	for _, p := range what {
		if err = p.read(ctx, c, "compare", func(rows []Row) error {
			for _, r := range rows {
				each(leasekit.Ref{Resource: lock.Resource(r.Text(0)), ID: lock.HoldID(r.Text(1))})
			}
			return nil
		}); err != nil {
			return l.b.unavailable("compare", err)
		}
	}
	return nil
}

// Close implements leasekit.Driver. The lease ends first: from then on nothing that
// hangs on it counts.
func (l *lease) Close(ctx context.Context) error {
	err := l.end(ctx, l.b.pool)
	if errors.Is(err, errLives) || errors.As(err, new(*otherServerError)) { // there it lives, and a pooler or the next heartbeat leads there
		err = l.end(ctx, l.beats)
	}
	l.b.mu.Lock()
	delete(l.b.leases, string(l.id))
	if l.b.trusting == l {
		l.b.trusting = nil
	}
	l.b.mu.Unlock()
	if err != nil {
		err = l.b.unavailable("close lease", err)
	}
	return errors.Join(err, l.beats.Close())
}

// end ends the lease, and then what hangs on it.
func (l *lease) end(ctx context.Context, by Pool) error {
	err := l.over(ctx, by, closed)
	if err == nil {
		_, err = l.b.sweep(ctx, string(l.id))
	}
	return err
}

// over ends the lease for good.
func (l *lease) over(ctx context.Context, by Pool, end ending) error {
	err := l.b.retry(ctx, func() error {
		_, err := by.Do(ctx, "close", Statement{SQL: l.b.sql.close, Args: []any{int64(end), []byte(l.id)}})
		return err
	})
	if err == nil {
		l.b.log.add(event{what: end.what(), lease: string(l.id), note: l.sidecar})
	}
	return err
}

// heard passes a push on. asked is what strangers was before the request whose answer
// brings it. A grant counts only if the heartbeats still go to the server that has
// answered: another may have it as a waiter, and says so when it is asked. at is for its guard.
func (l *lease) heard(p leasekit.Push, asked uint64, at int64) {
	l.mu.Lock()
	push := l.push
	switch p.Kind {
	case leasekit.Granted:
		if w, waits := l.waiting[p.ID]; waits && asked == l.b.strangers.Load() {
			p.Guard = l.b.guard(w.name, p.ID, w.mode, w.guarded, at)
			delete(l.waiting, p.ID)
		} else { // the answer that it waits may be on its way yet
			p.Kind = leasekit.Woken
		}
	default:
	}
	l.mu.Unlock()
	if push != nil {
		push(p)
	}
}
