package tables

import (
	"context"
	"database/sql"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/locksidecar/locksidecar/backends/mysqllock/mydb"
	"github.com/locksidecar/locksidecar/lock"
)

// This file is about how a lease hears what others did for it.
//
// Whoever grants the lock to a waiter of another lease, or forces a release,
// writes a row of news to that lease in the same transaction, so it cannot get
// lost. To be quick it also rings the other's bell: each lease has a connection
// that sleeps in the server and holds a named lock, and KILL QUERY wakes it. The
// named lock tells which connection it is, so a stranger's is never killed. A
// bell is only a hint. Where there is none (named locks are refused on some
// clusters, KILL QUERY needs the same account), the lease looks for news often.

const (
	// bellSleep is how long the connection of the bell sleeps at a time, and how
	// long the server may keep it after the sidecar is gone.
	bellSleep = 10 * time.Second
	// How long after a wait began, or a bell rang, news are first looked for.
	firstLook, firstLookWithoutBell = 20 * time.Millisecond, 2 * time.Millisecond
	maxLookWithoutBell              = 100 * time.Millisecond
	// tidyNews is how many rows that were read may lie about.
	tidyNews = 32
)

// bellName is the named lock of a lease: at most 64 characters, and not of one
// database, as named locks are the server's.
func bellName(lease string) string { return "locksidecar:" + lease }

// post is the letter box of a lease.
type post struct {
	l        *lease
	listener *mydb.Pool    // the connection of the bell
	bell     atomic.Bool   // there is one
	ready    chan struct{} // closed when the bell is there, or known not to be
	rang     chan struct{} // one place: look for news
	waits    chan struct{} // one place: a wait has begun

	read map[newsKey]bool // news that were delivered and not deleted yet
}

type newsKey struct {
	id    string
	kind  newsKind
	grace int64 // another forced release of the same hold is other news
}

func newPost(l *lease) (*post, error) {
	listener, err := l.b.newPool(1, mydb.ConnectOptions{Wait: bellSleep})
	if err != nil {
		return nil, err
	}
	return &post{
		l: l, listener: listener, ready: make(chan struct{}), rang: make(chan struct{}, 1), waits: make(chan struct{}, 1),
		read: make(map[newsKey]bool),
	}, nil
}

// poke fills the place of a channel that has one.
func poke(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}

// listen keeps a bell until ctx ends.
func (p *post) listen(ctx context.Context) {
	ready := sync.OnceFunc(func() { close(p.ready) })
	for ctx.Err() == nil {
		refused := p.listenOnce(ctx, ready)
		p.bell.Store(false)
		ready()
		pause := 100 * time.Millisecond
		if refused {
			pause = time.Minute
		}
		t := time.NewTimer(pause)
		select {
		case <-t.C:
		case <-ctx.Done():
			t.Stop()
		}
	}
}

// listenOnce sleeps on one connection until it fails. refused: the server does
// not give named locks.
func (p *post) listenOnce(ctx context.Context, ready func()) (refused bool) {
	conn, err := p.listener.DB.Conn(ctx)
	if err != nil {
		return false
	}
	defer func() { _ = conn.Close() }()
	defer drop(ctx, conn, nil) // so that the named lock is free
	var got sql.NullInt64
	err = p.listener.QueryOn(ctx, conn, "listen", func(_ int, rows *sql.Rows) error { return rows.Scan(&got) }, "SELECT GET_LOCK(?, 0)", bellName(string(p.l.id)))
	if err != nil {
		return mydb.FromServer(err) && !mydb.Interrupted(err)
	}
	if got.Int64 != 1 { // the server still has our last connection
		return false
	}
	p.bell.Store(true)
	ready()
	for {
		poke(p.rang) // it may have rung before
		err := p.listener.QueryOn(ctx, conn, "listen", func(int, *sql.Rows) error { return nil }, fmt.Sprintf("SELECT SLEEP(%d)", bellSleep/time.Second))
		if err != nil && !mydb.Interrupted(err) || ctx.Err() != nil {
			return false
		}
	}
}

// poll looks for news until ctx ends: when the bell rings; some time after a
// wait began, then less and less often; and now and then in any case.
func (p *post) poll(ctx context.Context) {
	pause := p.l.recheck
	t := time.NewTimer(pause)
	defer t.Stop()
	for {
		first, most := firstLook, p.l.recheck
		if !p.bell.Load() {
			first, most = firstLookWithoutBell, min(maxLookWithoutBell, p.l.recheck)
		}
		look := false
		select {
		case <-ctx.Done():
			return
		case <-p.rang:
			look, pause = true, first
		case <-p.waits:
			pause = min(pause, first)
		case <-t.C:
			look, pause = true, min(2*pause, most)
		}
		if look && !p.l.isLost() {
			_ = p.look(ctx) // the next look is not far
		}
		if !p.l.anyWaits() {
			pause = p.l.recheck
		}
		t.Reset(pause)
	}
}

// look reads the news and delivers them.
func (p *post) look(ctx context.Context) error {
	l := p.l
	var fresh []news
	err := l.b.query(ctx, "news", func(_ int, rows *sql.Rows) error {
		n := news{}
		var kind string
		if err := rows.Scan(&n.id, &kind, &n.name, &n.fence, &n.grace); err != nil {
			return err
		}
		n.kind = newsKind(kind[0])
		if !p.read[newsKey{n.id, n.kind, n.grace}] {
			fresh = append(fresh, n)
		}
		return nil
	}, l.b.sql.news, []byte(l.id))
	if err != nil {
		return err
	}
	for _, n := range fresh {
		p.read[newsKey{n.id, n.kind, n.grace}] = true
		l.hear(n)
	}
	if len(p.read) >= tidyNews || len(p.read) > 0 && !l.anyWaits() {
		return p.tidy(ctx)
	}
	return nil
}

// tidy deletes what was read.
func (p *post) tidy(ctx context.Context) error {
	args := []any{[]byte(p.l.id)}
	for k := range p.read {
		args = append(args, []byte(k.id), []byte{byte(k.kind)}, k.grace)
	}
	query := replaceNames("DELETE FROM {news} WHERE lease=? AND (id, kind, grace) IN ("+marks(len(p.read), "(?, ?, ?)")+")", p.l.b.cfg.Table)
	if _, err := p.l.b.exec(ctx, "tidy", query, args...); err != nil {
		return err
	}
	clear(p.read)
	return nil
}

// hear takes one piece of news.
func (l *lease) hear(n news) {
	id := lock.HoldID(n.id)
	switch n.kind {
	case newsGranted:
		l.granted(id, n.fence)
	case newsOut:
		l.putOut(id)
	case newsRevoked:
		grace := time.Duration(n.grace) * time.Microsecond
		if ev, ok := l.revoke(n.name, id, grace); ok {
			l.tell(ev)
			l.keeper.acknowledgeSoon(n.name, id, grace)
		}
	}
}

// anyWaits reports whether an Acquire of the lease waits in the queue.
func (l *lease) anyWaits() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.waiters > 0
}

// spread tells leases what a transaction did for them.
func (b *Backend) spread(all []news) {
	for _, n := range all {
		l := b.local(n.lease)
		switch {
		case l == nil:
			b.ringing.add(n.lease)
		case n.kind == newsRevoked: // from the table, so that it is told once
			poke(l.post.rang)
		default:
			l.hear(n)
		}
	}
}

// ringing are the bells that are to be rung.
type ringing struct {
	mu     sync.Mutex
	leases map[string]bool
	some   chan struct{} // one place
}

func (r *ringing) add(lease string) {
	r.mu.Lock()
	r.leases[lease] = true
	r.mu.Unlock()
	poke(r.some)
}

func (r *ringing) take() (lease string, ok bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for lease = range r.leases {
		delete(r.leases, lease)
		return lease, true
	}
	return "", false
}

// ring rings bells until ctx ends.
func (b *Backend) ring(ctx context.Context) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-b.ringing.some:
		}
		for lease, ok := b.ringing.take(); ok && ctx.Err() == nil; lease, ok = b.ringing.take() {
			// It fails where there is no bell, which does no harm.
			_, _ = b.bells.Exec(ctx, "ring", "SET @locksidecar=IS_USED_LOCK(?); KILL QUERY @locksidecar", bellName(lease))
		}
	}
}
