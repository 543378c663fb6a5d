package session

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/hashicorp/go-hclog"

	"github.com/locksidecar/locksidecar/heartbeat"
	"github.com/locksidecar/locksidecar/internal/workers"
	"github.com/locksidecar/locksidecar/lock"
	"github.com/locksidecar/locksidecar/session/ledger"
)

// Options are what a Manager needs to know. Zero fields get their default.
type Options struct {
	Backend   lock.Backend
	TTL       time.Duration // of the lease in the store: lock.MinTTL to lock.MaxTTL; default 10s
	Namespace string        // optional; a resource is NAMESPACE/name in the store
	Sidecar   string        // name of the sidecar for people
	Limits    Limits
	LostGrace time.Duration // how long an app may take to stop its work when the sidecar ends its hold; default 2s
	Logger    hclog.Logger  // default: none; may block: what it does not take in time is dropped
	Observer  Observer      // default: none
	Clock     lock.Clock    // default lock.BootTime
	Parked    func() int    // optional: how many holds the Backend has that no app has
	Deadlock  DeadlockMode
}

// Limits bound what apps may take. Zero fields get their default.
type Limits struct {
	Sessions          int   // default 10000
	SessionsPerUID    int   // of one principal, as all that is per uid; default 5000
	HoldsPerSession   int   // each count of a hold, requests for holds, losses that are not acknowledged, and what is released in the background; default 10000
	HoldsPerUID       int   // the same, of all sessions of one principal; default 20000
	DetachedPerUID    int   // holds that a principal has detached here and that are not known to be over; default 1000
	WaitersPerSession int   // Acquire calls at the same time; default 1000
	InFlight          int   // Acquire calls of all sessions together, also those that were given up and that the store has not answered; default 3072
	InFlightPerUID    int   // the same, of all sessions of one principal; default three quarters of InFlight
	PerAccount        Quota // of each service account
	PerSpace          Quota // of each space, but not of Everybody
}

// The defaults of Options.
const (
	DefaultTTL               = 10 * time.Second
	DefaultLostGrace         = 2 * time.Second
	DefaultSessions          = 10_000
	DefaultSessionsPerUID    = 5_000
	DefaultHoldsPerSession   = 10_000
	DefaultHoldsPerUID       = 20_000
	DefaultDetachedPerUID    = 1_000
	DefaultWaitersPerSession = 1_000
	DefaultInFlight          = 3_072
)

// Info tells about the sidecar.
type Info struct {
	Sidecar         string
	Namespace       string
	Ready           bool   // locks can be granted
	NotReadyBecause string // empty when ready
	LeaseID         lock.LeaseID
	LeaseTTL        time.Duration
	LeaseMargin     time.Duration // how much longer than valid the store keeps a lease
	LeaseValidFor   time.Duration
	Jeopardy        bool
	Draining        bool
	Sessions        int
	Holds           int // held in the store for apps, also those in their grace
	Waiters         int // Acquire calls that have not returned
	InFlight        int // what counts for Limits.InFlight, and looks beyond that
	Parked          int // held in the store for nobody
	Uptime          time.Duration
}

// Manager keeps the sidecar's lease in the store, and the app sessions. Its
// methods may be called at the same time by many goroutines.
type Manager struct {
	o         Options
	everybody *Space
	handles   lock.Handles // where detached holds are; nil: there are none
	records   lock.Records // where outcomes are kept; nil: nothing can be done once
	log       logger
	clock     lock.Clock // as it was given; nil: BootTime
	started   time.Duration
	lease     atomic.Pointer[generation] // nil: none at the moment
	holds     atomic.Int64
	waiters   atomic.Int64
	flights   bounded        // what counts for Limits.InFlight
	onlyLooks bounded        // what is in flight in the room that only looks have
	letting   atomic.Int64   // what of it only lets go
	idle      chan struct{}  // gets a value when holds falls to 0
	workers   *workers.Pool  // ask the store
	wg        sync.WaitGroup // what Run waits for
	looks     looks          // of watches
	search    search         // for deadlocks
	loose     loose          // holds that were detached here

	mu       sync.Mutex
	changed  chan struct{} // closed when lease changes, and replaced
	openErr  error         // why there is no lease, as far as is known
	opened   bool          // there was a lease
	orphans  []chore       // wait for the next lease; each is of a hold that was attached, or was to be detached
	sessions map[ID]*Session
	usages   map[Share]*usage // of those that have sessions, or have left something to be released
	draining bool
	drainEnd time.Time // zero: unknown
	stopped  bool
}

// New makes a Manager. Nothing happens until Run. The error is a
// *lock.InvalidError.
func New(o Options) (*Manager, error) {
	setDefault(&o.TTL, DefaultTTL)
	setDefault(&o.LostGrace, DefaultLostGrace)
	setDefault(&o.Limits.Sessions, DefaultSessions)
	setDefault(&o.Limits.SessionsPerUID, DefaultSessionsPerUID)
	setDefault(&o.Limits.HoldsPerSession, DefaultHoldsPerSession)
	setDefault(&o.Limits.HoldsPerUID, DefaultHoldsPerUID)
	setDefault(&o.Limits.DetachedPerUID, DefaultDetachedPerUID)
	setDefault(&o.Limits.WaitersPerSession, DefaultWaitersPerSession)
	setDefault(&o.Limits.InFlight, DefaultInFlight)
	setDefault(&o.Limits.InFlightPerUID, max(1, o.Limits.InFlight-o.Limits.InFlight/4))
	if o.Logger == nil {
		o.Logger = hclog.NewNullLogger()
	}
	if o.Observer == nil {
		o.Observer = noObserver{}
	}
	clock := o.Clock
	if clock == nil {
		o.Clock = lock.BootTime
	}
	if err := checkOptions(o); err != nil {
		return nil, err
	}
	records, _ := lock.RecordsOf(o.Backend)
	handles, _ := lock.HandlesOf(o.Backend)
	m := &Manager{
		o:        o,
		clock:    clock,
		records:  records,
		handles:  handles,
		log:      logger{out: o.Logger},
		started:  o.Clock(),
		idle:     make(chan struct{}, 1),
		workers:  workers.New(),
		search:   newSearch(),
		changed:  make(chan struct{}),
		openErr:  errors.New("the lease is not open yet"),
		sessions: make(map[ID]*Session),
		usages:   make(map[Share]*usage),
	}
	m.flights.most = int64(o.Limits.InFlight)
	m.onlyLooks.most = looksOf(m.flights.most)
	m.everybody = &Space{m: m}
	if o.Namespace != "" {
		m.everybody.prefix = o.Namespace + "/"
	}
	return m, nil
}

func setDefault[T int | time.Duration](v *T, d T) {
	if *v == 0 {
		*v = d
	}
}

// Open opens an app session in the space. It does not need the store.
//
//	ErrDraining: the sidecar stops.
//	*LimitError: there are too many sessions, or too many of that principal.
//	*lock.InvalidError: a field is refused.
func (sp *Space) Open(ctx context.Context, r OpenRequest) (*Session, error) {
	if err := checkOpen(r); err != nil {
		return nil, err
	}
	if err := ctx.Err(); err != nil {
		return nil, fmt.Errorf("open session: %w", err) // nobody would learn its id
	}
	s := newSession(sp, r)
	if err := sp.enter(s, r); err != nil {
		return nil, err
	}
	s.change(func(*ledger.Ledger) {}) // sets the timer; where the sidecar stood still, the session may end here
	return s, nil
}

// enter takes a session among the others, if there is room.
func (sp *Space) enter(s *Session, r OpenRequest) error {
	sp.m.mu.Lock()
	defer sp.m.mu.Unlock()
	shares := r.Peer.Shares(sp)
	switch {
	case sp.m.draining || sp.m.stopped:
		return ErrDraining
	case len(sp.m.sessions) >= roomFor(s.who, sp.m.usages[shares[0]], sp.m.o.Limits.Sessions):
		return &LimitError{Limit: "sessions", Max: sp.m.o.Limits.Sessions}
	}
	usages, full := sp.m.usagesFor(shares)
	if full != nil {
		return full
	}
	s.usages = usages
	sp.m.sessions[s.id] = s
	watch(s, r)
	return nil
}

// roomFor is how many sessions there may be before one more of a principal, of whom there is u already. A
// sixteenth of the places is for those that have none. Where it is the uid that counts, all apps are
// often one.
func roomFor(who Principal, u *usage, limit int) int {
	if u == nil || u.sessions == 0 || who.name == "" { // it may have left something that is not released yet
		return limit
	}
	return limit - limit/16
}

// Lookup finds a session of this space that a peer of the same uid, and the same principal, has opened: else
// ErrSessionNotFound.
func (sp *Space) Lookup(id ID, p Peer) (*Session, error) {
	sp.m.mu.Lock()
	defer sp.m.mu.Unlock()
	s := sp.m.sessions[id]
	if s == nil || s.space.prefix != sp.prefix || s.owner.UID != p.UID || s.who != p.Who() {
		return nil, ErrSessionNotFound
	}
	s.looked.Store(true)
	return s, nil
}

func (m *Manager) remove(s *Session) {
	m.mu.Lock()
	defer m.mu.Unlock()
	delete(m.sessions, s.id)
	for _, u := range s.usages {
		u.sessions--
	}
	m.sweep(s.usages)
}

// EachWait tells the name, after that of its space, and the age of each request that waits for a lock.
func (m *Manager) EachWait(f func(resource string, age time.Duration)) {
	for _, s := range m.all() {
		s.change(func(l *ledger.Ledger) {
			l.EachWait(func(resource string, age time.Duration) { f(s.space.told(resource), age) })
		})
	}
}

// all returns the sessions of this moment.
func (m *Manager) all() []*Session {
	m.mu.Lock()
	defer m.mu.Unlock()
	list := make([]*Session, 0, len(m.sessions))
	for _, s := range m.sessions {
		list = append(list, s)
	}
	return list
}

func (m *Manager) signalIdle() {
	select {
	case m.idle <- struct{}{}:
	default:
	}
}

// awaitIdle returns nil when the store has no hold for us, or the cause of ctx.
func (m *Manager) awaitIdle(ctx context.Context) error {
	for m.holds.Load() > 0 {
		select {
		case <-m.idle:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
	m.signalIdle() // for another who waits
	return nil
}

// Drain refuses new sessions from now on (ErrDraining) and tells the others
// that the sidecar stops when ctx ends; they may go on until then. It returns
// nil when no session holds anything any more, else the cause of ctx. What is
// left is ended by the end of Run.
func (m *Manager) Drain(ctx context.Context) error {
	end, _ := ctx.Deadline()
	m.mu.Lock()
	m.draining, m.drainEnd = true, end
	m.mu.Unlock()
	for _, s := range m.all() {
		tellDraining(s)
	}
	if err := m.awaitIdle(ctx); err != nil {
		return fmt.Errorf("drain sessions: %w", err)
	}
	return nil
}

// drainingUntil is what apps are told.
func (m *Manager) drainingUntil() time.Time {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.drainEnd
}

// Ready is nil when locks can be granted: there is a lease, the store answers,
// and the sidecar does not stop.
func (m *Manager) Ready() error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.draining || m.stopped {
		return ErrDraining
	}
	g := m.lease.Load()
	if g == nil {
		return noLeaseYet(m.openErr)
	}
	switch g.keeper.State() {
	case heartbeat.Alive:
		return nil
	case heartbeat.Jeopardy:
		return fmt.Errorf("%w: it does not answer to the heartbeat", lock.ErrUnavailable)
	default:
		return noLeaseYet(g.keeper.Err())
	}
}

// OnceReady is nil as soon as the sidecar has had a lease, also while the store is away
// after that. Its errors are those of Ready.
func (m *Manager) OnceReady() error {
	m.mu.Lock()
	could := m.opened && !m.draining && !m.stopped
	m.mu.Unlock()
	if could {
		return nil
	}
	return m.Ready()
}

// noLease is ErrUnavailable, for the time between two leases.
func (m *Manager) noLease() error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.openErr != nil {
		return noLeaseYet(m.openErr)
	}
	return noLeaseYet(errors.New("it was opened just now"))
}

func noLeaseYet(why error) error {
	return fmt.Errorf("no lease: %w: %w", lock.ErrUnavailable, why)
}

// Info tells about the sidecar.
func (m *Manager) Info() Info {
	i := Info{
		Sidecar:     m.o.Sidecar,
		Namespace:   m.o.Namespace,
		LeaseTTL:    m.o.TTL,
		LeaseMargin: heartbeat.Margin(m.o.TTL),
		Holds:       int(m.holds.Load()),
		Waiters:     int(m.waiters.Load()),
		InFlight:    int(m.flights.Load() + m.onlyLooks.Load()),
		Uptime:      m.o.Clock() - m.started,
	}
	if m.o.Parked != nil {
		i.Parked = m.o.Parked()
	}
	if err := m.Ready(); err != nil {
		i.NotReadyBecause = err.Error()
	} else {
		i.Ready = true
	}
	if g := m.lease.Load(); g != nil {
		i.LeaseID = g.lease.ID()
		i.LeaseValidFor = g.keeper.ValidFor()
		i.Jeopardy = g.keeper.State() == heartbeat.Jeopardy
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	i.Sessions = len(m.sessions)
	i.Draining = m.draining || m.stopped
	return i
}
