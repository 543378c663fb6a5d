package mysql

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/locksidecar/locksidecar/backends/leasekit"
	"github.com/locksidecar/locksidecar/backends/sqllock"
	"github.com/locksidecar/locksidecar/internal/testengine"
	"github.com/locksidecar/locksidecar/lock"
)

// strangers are foreign locks of which take says whether a stranger has them.
type strangers struct {
	take func(ctx context.Context, q lock.Request) (bool, error)
	// keep is optional. It tells whether the locks are there.
	keep  func(holds []leasekit.Ref) bool
	ahead atomic.Int64 // of the clock

	given, lapses atomic.Int64
}

var _ sqllock.Foreign = (*strangers)(nil)

func (f *strangers) Check(lock.Request) error { return nil }

func (f *strangers) Take(ctx context.Context, q lock.Request) (bool, error) { return f.take(ctx, q) }

func (f *strangers) Give(context.Context, leasekit.Ref) error {
	f.given.Add(1)
	return nil
}

func (f *strangers) Keep(_ context.Context, _ string, holds []leasekit.Ref) (kept map[lock.HoldID]time.Duration, lost []lock.HoldID) {
	there := f.keep == nil || f.keep(holds)
	kept = make(map[lock.HoldID]time.Duration)
	for _, h := range holds {
		if there {
			kept[h.ID] = f.now()
		} else {
			lost = append(lost, h.ID)
		}
	}
	return kept, lost
}

func (f *strangers) now() time.Duration { return lock.BootTime() + time.Duration(f.ahead.Load()) }

func (f *strangers) Lapse() { f.lapses.Add(1) }

func (f *strangers) Strangers(_ context.Context, r lock.Resource) lock.Status {
	return lock.Status{Resource: r}
}

func (f *strangers) Close(context.Context, []leasekit.Ref) error { return nil }

// beside opens a lease whose holds have foreign locks, too.
func beside(t testing.TB, url string, f *strangers) (*store, lock.Lease) {
	t.Helper()
	cfg := mustParse(t, url)
	o := sqllock.OptionsOf(cfg.SQL)
	o.Clock = f.now
	o.Beside = &sqllock.Beside{
		Look: "SELECT 1", Recheck: 50 * time.Millisecond,
		Open: func(lock.LeaseOptions, string, sqllock.Events) (sqllock.Foreign, error) { return f, nil },
	}
	d := New(cfg, nil)
	b, err := sqllock.Open(d, o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = b.Close() })
	s := &store{Backend: b, d: d}
	return s, leaseOf(t, s)
}

// A stranger has the foreign lock, and the time of a try is over while the engine's hold is
// taken back: its row is locked, and another request waits for that already. The answer
// comes when the hold is gone.
func TestRefusedTryIsTakenBack(t *testing.T) {
	eachKind(t, func(t testing.TB, s testengine.Server) {
		r := unique("r")
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		asked := make(chan struct{})
		b, l := beside(t, with(s.URL(), "timeout=3s"), &strangers{take: func(ctx context.Context, q lock.Request) (bool, error) {
			if q.Try {
				close(asked)
				<-ctx.Done()
			}
			return !q.Try, nil
		}})
		q := exclusive(r)
		q.Try = true
		over := make(chan error, 1)
		go func() { _, err := l.Acquire(ctx, q); over <- err }()
		<-asked
		locker := stranger(t, b)
		locker.do("SELECT 1 FROM {lock} WHERE name=? FOR UPDATE", []byte(r))
		next := acquire(t, l, exclusive(r))
		eventually(t, "the next request waits for the row", func() error {
			if number(t, b, "SELECT COUNT(*) FROM information_schema.processlist WHERE info LIKE '%FOR UPDATE%' AND info LIKE ?", "%"+string(r)+"%") == 0 {
				return errors.New("it does not")
			}
			return nil
		})
		cancel()
		time.Sleep(50 * time.Millisecond) // it has given the request up, where it does so at once
		locker.do("ROLLBACK")
		if err := <-over; errors.Is(err, lock.ErrUnavailable) || !errors.Is(err, context.Canceled) {
			t.Errorf("a try whose time is over: %v", err)
		}
		if err := l.Release(t.Context(), r, q.ID); !errors.Is(err, lock.ErrNotHolder) {
			t.Errorf("Release of what was not granted: %v", err)
		}
		next.granted()
	})
}

// There can be no more foreign locks. Who asks for one is told, also who has waited in the
// engine, and others go on.
func TestLimitOfForeignLocks(t *testing.T) {
	eachKind(t, func(t testing.TB, s testengine.Server) {
		r := unique("r")
		var full lock.HoldID
		b, l := beside(t, s.URL(), &strangers{take: func(_ context.Context, q lock.Request) (bool, error) {
			if q.ID == full {
				return false, &lock.LimitError{Limit: "foreign locks", Max: 1}
			}
			return true, nil
		}})
		g := hold(t, l, r)
		q := exclusive(r)
		full = q.ID
		refused := acquire(t, l, q)
		eventually(t, "it waits", func() error { return waits(t, b, r) })
		next := acquire(t, l, exclusive(r))
		if err := l.Release(t.Context(), r, g.ID); err != nil {
			t.Fatal(err)
		}
		<-refused.done
		if limit := (*lock.LimitError)(nil); !errors.As(refused.err, &limit) {
			t.Errorf("Acquire where there can be no more: %v", refused.err)
		}
		if err := l.Release(t.Context(), r, q.ID); !errors.Is(err, lock.ErrNotHolder) {
			t.Errorf("Release of what was refused: %v", err)
		}
		next.granted()
	})
}

// A heartbeat takes so long over the foreign locks that the next one is sent beside it. They
// take turns, and what the first has made to last since the second was sent the second need
// not do once more.
func TestHeartbeatsTakeTurns(t *testing.T) {
	eachKind(t, func(t testing.TB, s testengine.Server) {
		var kept [][]leasekit.Ref
		at, goOn := make(chan struct{}), make(chan struct{})
		b, l := beside(t, s.URL(), &strangers{
			take: func(context.Context, lock.Request) (bool, error) { return true, nil },
			keep: func(holds []leasekit.Ref) bool { // the second one at the same time would be a data race
				if kept = append(kept, holds); len(kept) == 1 {
					close(at)
					<-goOn
				}
				return true
			},
		})
		hold(t, l, unique("r"))
		last := func() int64 { return number(t, b, "SELECT beat FROM {lease} WHERE id=?", []byte(l.ID())) }
		beats := make(chan error, 2)
		go func() { beats <- beat(context.Background(), l) }()
		<-at
		first := last()
		go func() { beats <- beat(context.Background(), l) }()
		eventually(t, "the second heartbeat has come to the server", func() error {
			if last() == first {
				return errors.New("it has not")
			}
			return nil
		})
		short, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
		defer cancel()
		if err := beat(short, l); !errors.Is(err, lock.ErrUnavailable) {
			t.Errorf("a heartbeat that had no turn: %v", err)
		}
		close(goOn)
		for range 2 {
			if err := <-beats; err != nil {
				t.Errorf("Heartbeat: %v", err)
			}
		}
		if len(kept) != 2 || len(kept[0]) != 1 || len(kept[1]) != 0 {
			t.Errorf("the heartbeats were to keep %v", kept)
		}
	})
}

// No heartbeat came for a whole TTL, strangers have taken foreign locks, and so the first one
// ends the lease. The next one, which was answered before that, is no proof.
func TestHeartbeatBesideTheEnd(t *testing.T) {
	eachKind(t, func(t testing.TB, s testengine.Server) {
		calls := 0
		at, goOn := make(chan struct{}), make(chan struct{})
		f := &strangers{
			take: func(context.Context, lock.Request) (bool, error) { return true, nil },
			keep: func([]leasekit.Ref) bool {
				if calls++; calls > 1 {
					return true
				}
				close(at)
				<-goOn
				return false
			},
		}
		b, l := beside(t, s.URL(), f)
		hold(t, l, unique("r"))
		hold(t, l, unique("r"))
		f.ahead.Store(int64(31 * time.Second))
		last := func() int64 { return number(t, b, "SELECT beat FROM {lease} WHERE id=?", []byte(l.ID())) }
		beats := make(chan error, 2)
		go func() { beats <- beat(context.Background(), l) }()
		<-at
		first := last()
		go func() { beats <- beat(context.Background(), l) }()
		eventually(t, "the second heartbeat is answered", func() error {
			if last() == first {
				return errors.New("it is not")
			}
			return nil
		})
		close(goOn)
		for range 2 {
			if err := <-beats; !errors.Is(err, lock.ErrLeaseLost) {
				t.Errorf("a heartbeat of a lease that strangers have taken for over: %v", err)
			}
		}
	})
}

// The first heartbeat for more than a TTL finds that all foreign locks are there. They are
// not ended while it is at it, as locks that nobody relies on.
func TestNoLapseBesideAHeartbeat(t *testing.T) {
	eachKind(t, func(t testing.TB, s testengine.Server) {
		at, goOn := make(chan struct{}), make(chan struct{})
		there := sync.OnceFunc(func() { close(at) })
		f := &strangers{
			take: func(context.Context, lock.Request) (bool, error) { return true, nil },
			keep: func([]leasekit.Ref) bool {
				there()
				<-goOn
				return true
			},
		}
		b, l := beside(t, s.URL(), f)
		hold(t, l, unique("r"))
		g := hold(t, l, unique("r"))
		f.ahead.Store(int64(31 * time.Second))
		beaten := make(chan error, 1)
		go func() { beaten <- beat(context.Background(), l) }()
		<-at
		before := f.lapses.Load()
		if err := b.ForceRelease(t.Context(), g.Resource, g.ID, 0); err != nil {
			t.Error(err)
		}
		eventually(t, "the lock of the hold that was forced is given back", func() error {
			if f.given.Load() == 0 {
				return errors.New("it is not")
			}
			return nil
		})
		if n := f.lapses.Load() - before; n > 0 {
			t.Errorf("foreign locks were ended %d times while a heartbeat was at them", n)
		}
		close(goOn)
		if err := <-beaten; err != nil {
			t.Errorf("Heartbeat: %v", err)
		}
	})
}
