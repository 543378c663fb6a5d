package session

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"time"

	"github.com/locksidecar/locksidecar/heartbeat"
	"github.com/locksidecar/locksidecar/lock"
	"github.com/locksidecar/locksidecar/session/ledger"
)

// closeTimeout bounds the farewell to the store.
const closeTimeout = 5 * time.Second

// generation is one lease of the sidecar and what hangs on it. When the lease
// is over the next generation begins; nothing goes over from one to the other but what
// its janitors leave.
type generation struct {
	lease    lock.Lease
	prompt   bool          // the lease says by lock.Blocking when it blocks
	near     bool          // its store is in this process, and so answers for certain
	opened   time.Duration // on the clock
	keeper   *heartbeat.Keeper
	janitors *janitors
	cancel   context.CancelFunc // ends the keeper and the janitors
	wg       sync.WaitGroup
	beatErr  atomic.Pointer[error] // of the last heartbeat that failed

	mu    sync.Mutex
	holds map[lock.HoldID]*Session // and waiters: for whom the store's news are
}

// begin starts what keeps a lease that was just opened. ctx does not end it.
func (m *Manager) begin(ctx context.Context, l lock.Lease, opened time.Duration) *generation {
	g := &generation{lease: l, prompt: lock.TellsBlocking(l), near: lock.IsNear(l), opened: opened, holds: make(map[lock.HoldID]*Session)}
	ctx, g.cancel = context.WithCancel(context.WithoutCancel(ctx))
	g.keeper = heartbeat.New(heartbeat.Options{
		TTL:   m.o.TTL,
		Clock: m.clock,
		Beat: func(ctx context.Context) error {
			news, err := l.Heartbeat(ctx)
			for _, e := range news { // before the renewal counts
				g.route(e)
			}
			return err
		},
		Opened: opened,
		Observe: func(b heartbeat.Beat) {
			if b.Err != nil {
				g.beatErr.Store(&b.Err)
			}
			m.o.Observer.Heartbeat(b)
		},
	})
	g.janitors = newJanitors(ctx, l, g.keeper.Lose, m.inherit, &m.log)
	g.wg.Go(func() { _ = g.keeper.Run(ctx) }) // what it says is in keeper.Err, too
	g.wg.Go(func() {
		for e := range l.Events() { // until Close
			g.route(e)
		}
	})
	return g
}

// trip is called before the lease is asked for something.
func (g *generation) trip(ctx context.Context) {
	if !g.prompt {
		lock.Blocking(ctx)
	}
}

// lost tells whether the keeper has said so; it does not look at the clock.
func (g *generation) lost() bool {
	select {
	case <-g.keeper.Done():
		return true
	default:
		return false
	}
}

// reason is for apps whose holds end with the lease.
func (g *generation) reason() LostReason {
	if errors.Is(g.keeper.Err(), heartbeat.ErrExpired) {
		return LeaseExpired
	}
	return LeaseLost
}

// trouble is the error of the last heartbeat that failed, for people.
func (g *generation) trouble() error {
	if err := g.beatErr.Load(); err != nil {
		return *err
	}
	return errors.New("no answer yet")
}

func (g *generation) add(id lock.HoldID, s *Session) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.holds[id] = s
}

func (g *generation) drop(id lock.HoldID) {
	g.mu.Lock()
	defer g.mu.Unlock()
	delete(g.holds, id)
}

// route brings news of the store to the session that they are for.
func (g *generation) route(e lock.Event) {
	g.mu.Lock()
	s := g.holds[e.ID]
	g.mu.Unlock()
	if s != nil {
		s.change(func(l *ledger.Ledger) { l.News(e) })
	}
}

// end takes leave of the store and waits for everything that began with the
// generation. The context may have ended already: then the store is not told,
// and ends the lease by itself.
func (g *generation) end(ctx context.Context) error {
	g.cancel() // Close releases everything
	err := g.lease.Close(ctx)
	g.janitors.stop()
	g.wg.Wait()
	return err
}
