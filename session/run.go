package session

import (
	"context"
	"math/rand/v2"
	"time"

	"github.com/locksidecar/locksidecar/heartbeat"
	"github.com/locksidecar/locksidecar/lock"
	"github.com/locksidecar/locksidecar/session/ledger"
)

// The pauses between attempts: of a request to the store, and to open a lease.
const (
	minPause     = 20 * time.Millisecond
	maxPause     = time.Second
	minOpenPause = 50 * time.Millisecond
	maxOpenPause = 2 * time.Second
)

// backoff doubles from lowest to highest, with jitter down to a half.
func backoff(tries int, lowest, highest time.Duration) time.Duration {
	d := min(lowest<<min(tries, 20), highest)
	return d/2 + rand.N(d/2) //nolint:gosec // spreads retries, no secret
}

// pause sleeps; it reports false when ctx has ended.
func pause(ctx context.Context, d time.Duration) bool {
	lock.Blocking(ctx)
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return ctx.Err() == nil
	case <-ctx.Done():
		return false
	}
}

// Run keeps a lease in the store: it opens one as soon as the store lets it,
// and the next one when it is lost. When ctx ends it tells the apps that what
// they still hold is lost (Stopping), gives them LostGrace to stop their work,
// ends all sessions and closes the lease, and returns nil. The sessions should
// still be reachable for the apps until then. It must be called once.
func (m *Manager) Run(ctx context.Context) error {
	var g *generation
	for short := 0; ; short++ {
		if g = m.openLease(ctx); g == nil || !m.serve(ctx, g) {
			break
		}
		lost := g
		m.leaseOver(lost)
		m.log.Error("the lease is lost", keyLease, lost.lease.ID(), keyReason, lost.keeper.Err())
		m.wg.Go(func() { m.retire(ctx, lost) })
		if m.o.Clock()-lost.opened > m.o.TTL/3 {
			short = -1
			continue
		}
		// A store that ends each lease as soon as it has given it must not be asked
		// for the next one in a tight loop.
		pause(ctx, backoff(short, minOpenPause, maxOpenPause))
	}
	m.stop(context.WithoutCancel(ctx), g)
	m.workers.Close()
	m.wg.Wait()
	m.log.flush()
	return nil
}

// openLease opens a lease, however long it takes; nil when ctx has ended.
func (m *Manager) openLease(ctx context.Context) *generation {
	for tries := 0; ctx.Err() == nil; tries++ {
		opened := m.o.Clock()
		// A lease that takes longer than its TTL to open is over when it comes.
		call, cancel := context.WithTimeout(ctx, m.o.TTL)
		l, err := m.o.Backend.OpenLease(call, lock.LeaseOptions{TTL: m.o.TTL, Sidecar: m.o.Sidecar})
		cancel()
		if err == nil {
			m.o.Observer.LeaseOpened(nil)
			m.log.Info("lease opened", keyLease, l.ID(), keyTTL, m.o.TTL)
			g := m.begin(ctx, l, opened)
			m.setLease(g, nil)
			return g
		}
		if ctx.Err() != nil {
			break
		}
		m.o.Observer.LeaseOpened(err)
		m.setLease(nil, err)
		if tries == 0 {
			m.log.Warn("open lease: will keep trying", keyError, err)
		} else {
			m.log.Debug("open lease: will keep trying", keyError, err)
		}
		pause(ctx, backoff(tries, minOpenPause, maxOpenPause))
	}
	return nil
}

// setLease publishes the lease, or why there is none.
func (m *Manager) setLease(g *generation, why error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.openErr, m.opened = why, m.opened || g != nil
	if m.lease.Swap(g) != g {
		close(m.changed)
		m.changed = make(chan struct{})
	}
	if g != nil {
		for _, c := range m.orphans {
			g.janitors.add(c)
		}
		m.orphans = nil
	}
}

// inherit takes what the janitors of a lease that is over have left, for those of the next lease.
func (m *Manager) inherit(c chore) {
	c = chore{session: c.session, resource: c.resource, id: c.id, key: c.key, former: c.former}
	m.mu.Lock()
	g := m.lease.Load()
	if g == nil {
		m.orphans = append(m.orphans, c)
	}
	m.mu.Unlock()
	if g != nil {
		g.janitors.add(c)
	}
}

// awaitLease returns a lease that can be relied on. ErrUnavailable: ctx has
// ended before there was one.
func (m *Manager) awaitLease(ctx context.Context) (*generation, error) {
	for {
		if g := m.lease.Load(); g != nil && g.keeper.ValidFor() > 0 {
			return g, nil
		}
		m.mu.Lock()
		changed, why, g := m.changed, m.openErr, m.lease.Load()
		m.mu.Unlock()
		if g != nil {
			if g.keeper.ValidFor() > 0 {
				return g, nil
			}
			why = g.keeper.Err()
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return nil, noLeaseYet(why)
		}
	}
}

// serve waits for the end of the lease, and tells sessions how it does. It
// reports false when ctx has ended: then the lease is still kept.
func (m *Manager) serve(ctx context.Context, g *generation) bool {
	jeopardy := false
	for {
		select {
		case <-ctx.Done():
			return false
		case <-g.keeper.Done():
			return true
		case <-g.keeper.News():
		}
		if j := g.keeper.State() == heartbeat.Jeopardy; j != jeopardy {
			jeopardy = j
			if j {
				m.log.Warn("the store does not answer to the heartbeat", keyLease, g.lease.ID(), keyValidFor, g.keeper.ValidFor(), keyError, g.trouble())
			} else {
				m.log.Info("the store answers again", keyLease, g.lease.ID())
			}
		}
		for _, s := range m.all() {
			tellLease(s)
		}
	}
}

// retire ends what hangs on a lease that is lost. The store is told only when
// the time is over for which it keeps others out by itself, so that apps have
// that time to stop their work.
func (m *Manager) retire(ctx context.Context, g *generation) {
	for {
		kept := g.keeper.Kept()
		if kept == 0 || !pause(ctx, min(kept, time.Second)) {
			break
		}
	}
	// When the sidecar stops meanwhile, ctx has ended, and the store is left to
	// end the lease by itself: that is sooner than anybody could wait for.
	ctx, cancel := context.WithTimeout(ctx, closeTimeout)
	defer cancel()
	if err := g.end(ctx); err != nil {
		m.log.Debug("close lost lease", keyLease, g.lease.ID(), keyError, err)
	}
}

// leaseOver tells all sessions that a lease is over: they find it when they look.
func (m *Manager) leaseOver(g *generation) {
	m.setLease(nil, g.keeper.Err())
	for _, s := range m.all() {
		s.change(func(*ledger.Ledger) {})
	}
}

// stop tells the apps that the sidecar stops, waits until they have stopped
// their work or the grace is over, and ends everything. g is nil when there is
// no lease.
func (m *Manager) stop(ctx context.Context, g *generation) {
	m.mu.Lock()
	m.stopped = true // no new sessions from here on
	m.mu.Unlock()
	// First all waits end, and then the holds: the next holder of a lock must not
	// be a session that is to end as well.
	for _, s := range m.all() {
		s.change((*ledger.Ledger).Refuse)
	}
	for _, s := range m.all() {
		s.change(func(l *ledger.Ledger) { l.Wind(Stopping) })
	}
	work, cancel := context.WithTimeout(ctx, m.o.LostGrace)
	defer cancel()
	if err := m.awaitIdle(work); err != nil {
		m.log.Warn("stopping although apps still hold locks", keyHolds, m.holds.Load())
	}
	for _, s := range m.all() {
		s.change((*ledger.Ledger).Close)
	}
	m.setLease(nil, ErrDraining)
	if g == nil {
		return
	}
	farewell, cancel := context.WithTimeout(ctx, closeTimeout)
	defer cancel()
	if err := g.end(farewell); err != nil {
		m.log.Warn("close lease: it ends by its TTL", keyLease, g.lease.ID(), keyError, err)
	}
}
