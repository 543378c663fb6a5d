package session

import (
	"context"
	"time"

	"github.com/hashicorp/go-hclog"

	"github.com/locksidecar/locksidecar/lock"
)

// Options are what a Manager needs to know.
type Options struct {
	Backend   lock.Backend
	TTL       time.Duration // of the lease in the store: lock.MinTTL to lock.MaxTTL; default 10s
	Namespace string        // optional; resources are NAMESPACE/name in the store
	Sidecar   string        // name of the sidecar for people
	Limits    Limits
	LostGrace time.Duration // how long an app may take to stop its work when the sidecar ends a hold; default 2s
	Logger    hclog.Logger  // default: none
	Observer  Observer      // default: none
	Clock     lock.Clock    // default lock.BootTime
}

// Limits bound what apps may take. Zero fields get their default.
type Limits struct {
	Sessions          int // default 10000
	HoldsPerSession   int // default 10000
	WaitersPerSession int // default 1000
}

// Info tells about the sidecar.
type Info struct {
	Sidecar         string
	Namespace       string
	Ready           bool
	NotReadyBecause string
	LeaseID         lock.LeaseID
	LeaseTTL        time.Duration
	LeaseValidFor   time.Duration
	Jeopardy        bool
	Draining        bool
	Sessions        int
	Holds           int
	Waiters         int
	Uptime          time.Duration
}

// WatchKind says what a WatchEvent tells.
type WatchKind uint8

const (
	Current WatchKind = iota + 1 // was there when the watch began
	Changed                      // is new, or its holders or waiters changed
	Free                         // nobody holds or waits any more
	Synced                       // all Current events were sent
)

// WatchEvent is a change that Watch saw.
type WatchEvent struct {
	Kind   WatchKind
	Status lock.Status // Free: only the name; Synced: empty
}

// Manager keeps the lease and the sessions.
type Manager struct{ o Options }

// New makes a Manager. Nothing happens until Run. Errors: *lock.InvalidError.
func New(o Options) (*Manager, error) { return &Manager{o: o}, nil }

// Run keeps the lease in the store until ctx ends.
func (m *Manager) Run(ctx context.Context) error { return nil }

// Drain refuses new sessions from now on, tells the others, and returns when no
// hold is left (nil) or when ctx ends (its cause).
func (m *Manager) Drain(ctx context.Context) error { return nil }

// Open opens an app session.
func (m *Manager) Open(ctx context.Context, r OpenRequest) (*Session, error) { return nil, nil }

// Lookup finds a session of that uid: else ErrSessionNotFound.
func (m *Manager) Lookup(id ID, uid uint32) (*Session, error) { return nil, nil }

// Get tells who holds and who waits for a resource.
func (m *Manager) Get(ctx context.Context, resource string) (lock.Status, error) {
	return lock.Status{}, nil
}

// List tells it for all resources of the namespace.
func (m *Manager) List(ctx context.Context, prefix, after string, limit int) ([]lock.Status, error) {
	return nil, nil
}

// Watch calls fn for each change.
func (m *Manager) Watch(ctx context.Context, prefix string, interval time.Duration, fn func(WatchEvent) error) error {
	return nil
}

// ForceRelease takes the resource from the holder or waiter with that id, or
// from all holders when id is empty, and tells which were taken.
func (m *Manager) ForceRelease(ctx context.Context, resource string, id lock.HoldID, grace time.Duration) ([]lock.HoldID, error) {
	return nil, nil
}

// Info tells about the sidecar.
func (m *Manager) Info() Info { return Info{} }

// Ready is nil when locks can be granted.
func (m *Manager) Ready() error { return nil }
