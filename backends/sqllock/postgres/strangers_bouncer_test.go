package postgres

import (
	"context"
	"errors"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/locksidecar/locksidecar/backends/backendtest/served"
	"github.com/locksidecar/locksidecar/backends/sqllock"
	"github.com/locksidecar/locksidecar/internal/testengine"
	"github.com/locksidecar/locksidecar/lock"
)

// PgBouncer leads to another server and back, and its clients' connections stay. Who asks the
// first server before a heartbeat has met it again is granted nothing there, and is not told that there is no lock of its
// handle.
func TestOldServerBehindPgBouncer(t *testing.T) {
	t.Parallel()
	again(t, testOldServerBehindPgBouncer)
}

func testOldServerBehindPgBouncer(t testing.TB) {
	s := testengine.New(t, testengine.PostgresBouncer)
	url := with(s.URL(), "failover-grace=100ms")
	b, l := sidecar(t, url, 6*time.Second)
	_, holder := sidecar(t, url, 6*time.Second)
	fork := forkBeside(t, s, l, holder)
	testengine.LeadBouncer(t, s, fork)
	asked := try("detached")
	asked.Detachable = true
	eventually(t, "the other server grants", func() error {
		beat(t, l)
		beat(t, holder)
		_, err := holder.Acquire(t.Context(), asked)
		return err
	})
	key := lock.NewSecret().Key()
	eventually(t, "it is detached there", func() error {
		return holder.(lock.Detacher).Detach(t.Context(), asked.Resource, asked.ID, key, time.Hour)
	})
	if _, err := holder.Acquire(t.Context(), try("r")); err != nil {
		t.Errorf("a try at the other server: %v", err)
	}
	testengine.LeadBouncer(t, s, s)
	if d, err := b.SetHandle(t.Context(), asked.Resource, key, time.Hour); !errors.Is(err, lock.ErrUnavailable) {
		t.Errorf("a handle at the first server: got %+v, %v; want ErrUnavailable", d, err)
	}
	if g, err := l.Acquire(t.Context(), try("r")); !errors.Is(err, lock.ErrUnavailable) {
		t.Errorf("a try at the first server: got %+v, %v; want ErrUnavailable", g, err)
	}
	eventually(t, "the first server grants", func() error {
		beat(t, l)
		_, err := l.Acquire(t.Context(), try("r"))
		return err
	})
}

// PgBouncer leads to another server and back, where nobody has ever asked for the lock. Who forces its release
// there, before a heartbeat has met that server again, is not told that nobody has it; nor that it is gone, when that was
// forced at the other server.
func TestForceBehindPgBouncer(t *testing.T) {
	t.Parallel()
	again(t, testForceBehindPgBouncer)
}

func testForceBehindPgBouncer(t testing.TB) {
	s := testengine.New(t, testengine.PostgresBouncer)
	url := with(s.URL(), "failover-grace=100ms")
	b, l := sidecar(t, url, lock.MaxTTL) // no heartbeat may follow the forced release, however long that takes
	fork := forkBeside(t, s, l)
	testengine.LeadBouncer(t, s, fork)
	q := try("r")
	eventually(t, "the other server grants", func() error {
		beat(t, l)
		_, err := l.Acquire(t.Context(), q)
		return err
	})
	forced := force(t, b, "r", q.ID)
	h := &harness{&served.Store{Server: fork}}
	eventually(t, "it is acknowledged", func() error { // that is a heartbeat, too
		if h.execute(t, "SELECT COUNT(*) FROM {note} WHERE known>0")[0].Int(0) == 0 {
			return errors.New("it is not")
		}
		return nil
	})
	testengine.LeadBouncer(t, s, s)
	if err := <-forced; !errors.Is(err, lock.ErrUnavailable) {
		t.Errorf("what was forced at the other server: %v; want ErrUnavailable", err)
	}
	if err := b.ForceRelease(t.Context(), "r", q.ID, 0); !errors.Is(err, lock.ErrUnavailable) {
		t.Errorf("a forced release at the first server: %v; want ErrUnavailable", err)
	}
}

// isForced tells whether it is called by who waits until a hold is gone whose release it has forced.
func isForced() bool {
	at := make([]uintptr, 4)
	frames := runtime.CallersFrames(at[:runtime.Callers(3, at)])
	f, _ := frames.Next()
	return strings.HasSuffix(f.Function, ".awaitForced")
}

// force forces the release of a hold, with a grace of an hour, and returns when that is known.
func force(t testing.TB, b *sqllock.Backend, r lock.Resource, id lock.HoldID) (done <-chan error) {
	t.Helper()
	forced := make(chan error, 1)
	go func() { forced <- b.ForceRelease(t.Context(), r, id, time.Hour) }()
	eventually(t, "its release is forced", func() error {
		st, err := b.Get(t.Context(), r)
		if err == nil && (len(st.Holders) != 1 || !st.Holders[0].Revoked) {
			err = errors.New("it is not")
		}
		return err
	})
	return forced
}

// A server takes over that lacks the last grants, and the heartbeats of who forces a release meet it before those of the
// holder do, whose app still relies on its hold. Nobody is told that it is gone, nor that it was never there.
func TestForceAtAServerThatLacksTheHold(t *testing.T) {
	t.Parallel()
	again(t, testForceAtAServerThatLacksTheHold)
}

func testForceAtAServerThatLacksTheHold(t testing.TB) {
	s := testengine.New(t, testengine.PostgresBouncer)
	var stops atomic.Bool
	stopped, goOn := make(chan struct{}), make(chan struct{})
	release := sync.OnceFunc(func() { close(goOn) })
	b, err := sqllock.Open(dialect(t, with(s.URL(), "timeout=3s")), sqllock.Options{Migrate: true, FailoverGrace: -1, Clock: func() time.Duration {
		if isForced() && stops.CompareAndSwap(true, false) { // it has looked, and pauses before it looks again
			close(stopped)
			<-goOn
		}
		return lock.BootTime()
	}})
	if err != nil {
		t.Fatal(err)
	}
	l := leaseOf(t, b, lock.MaxTTL)
	t.Cleanup(release)
	_, holder := sidecar(t, s.URL(), lock.MaxTTL)
	known := hold(t, holder, "known", lock.Exclusive)
	if err := holder.Release(t.Context(), "known", known.ID); err != nil {
		t.Fatal(err)
	}
	fork := forkBeside(t, s, l, holder)
	grants := []lock.Grant{hold(t, holder, "unknown", lock.Exclusive), hold(t, holder, "known", lock.Exclusive)}
	forced := force(t, b, "unknown", grants[0].ID)
	stops.Store(true)
	select {
	case <-stopped:
	case err := <-forced:
		t.Fatalf("a forced release whose grace is not over: %v", err)
	}
	testengine.LeadBouncer(t, s, fork)
	beat(t, l)
	for _, g := range grants {
		if err := b.ForceRelease(t.Context(), g.Resource, g.ID, 0); !errors.Is(err, lock.ErrUnavailable) {
			t.Errorf("a forced release of what the server lacks, %q: %v; want ErrUnavailable", g.Resource, err)
		}
	}
	release()
	if err := <-forced; !errors.Is(err, lock.ErrUnavailable) {
		t.Errorf("what was forced at the server before: %v; want ErrUnavailable", err)
	}
}

// PgBouncer leads to another server and back, before a heartbeat has met the first one again. That one does not know what was
// recorded meanwhile. So nobody is told that there is no record, nor that something was recorded there.
func TestRecordsBehindPgBouncer(t *testing.T) {
	t.Parallel()
	again(t, testRecordsBehindPgBouncer)
}

func testRecordsBehindPgBouncer(t testing.TB) {
	s := testengine.New(t, testengine.PostgresBouncer)
	b, l := sidecar(t, with(s.URL(), "failover-grace=100ms"), 20*time.Second)
	fork := forkBeside(t, s, l)
	testengine.LeadBouncer(t, s, fork)
	done := lock.Record{Version: string(lock.NewHoldID()), Value: []byte("SUCCEEDED")}
	eventually(t, "it is recorded at the other server", func() error {
		beat(t, l)
		return b.WriteRecord(t.Context(), "r", "", done, time.Hour)
	})
	testengine.LeadBouncer(t, s, s)
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	found, read := b.ReadRecord(ctx, "r")
	_, listed := b.ListRecords(ctx, "", lock.Page{})
	again := lock.Record{Version: string(lock.NewHoldID())}
	for what, err := range map[string]error{
		"read": read, "list": listed, "write": b.WriteRecord(ctx, "r", "", again, time.Hour), "delete": b.DeleteRecord(ctx, "r", done.Version),
	} {
		if !errors.Is(err, lock.ErrUnavailable) {
			t.Errorf("%s at the first server: %v; want ErrUnavailable (found: %+v)", what, err, found)
		}
	}
	testengine.LeadBouncer(t, s, fork)
	eventually(t, "what was recorded is still there", func() error {
		found, err := b.ReadRecord(t.Context(), "r")
		if err == nil && found.Version != done.Version {
			t.Fatalf("found %+v", found)
		}
		return err
	})
}

// The grace of a server that has taken over is over, and the keeper is about to let it grant. PgBouncer leads that request to a third
// server, which lacks a hold that both servers before it knew. That one does not grant before its own grace is over.
func TestMarkBehindPgBouncer(t *testing.T) {
	t.Parallel()
	again(t, testMarkBehindPgBouncer)
}

func testMarkBehindPgBouncer(t testing.TB) {
	const ttl = 8 * time.Second
	const marks = "name='server' AND text=?"
	s := testengine.New(t, testengine.PostgresBouncer)
	first := openAt(t, s.URL()) // it makes the tables, which bear a mark then
	if err := leaseOf(t, first, ttl).Close(t.Context()); err != nil {
		t.Fatal(err)
	}
	g := newGate(t, dialect(t, with(s.URL(), "timeout=3s")), marks, marks)
	keeper := g.sidecar(ttl)
	stopKeeper := keepBeating(t, keeper)
	h := &harness{&served.Store{Server: s}}
	eventually(t, "it is the keeper", func() error {
		if is := h.execute(t, "SELECT text FROM {meta} WHERE name='keeper'")[0].Text(0); is != string(keeper.ID()) {
			return errors.New("it is not")
		}
		return nil
	})
	road := testengine.Through(t, s)
	road.Retarget(testengine.Nodes(t, s)[0].Addr()) // past PgBouncer
	_, l := sidecar(t, road.URL(), ttl)
	lags := forkBeside(t, forkBeside(t, s, l), l) // twice, so that it has another timeline than the second one
	held := hold(t, l, "r", lock.Exclusive)
	second := forkBeside(t, s, l)
	testengine.LeadBouncer(t, s, second)
	lead(t, road, second, l)
	stop := keepBeating(t, l)
	g.comes(g.stopped, "the grace is over")
	stopKeeper()
	testengine.LeadBouncer(t, s, lags)
	stop()
	relies := time.Now().Add(ttl) // its last heartbeat may be as late as this
	beat(t, l)
	g.opens()
	g.comes(g.over, "the mark is set")
	_, other := sidecar(t, lags.URL(), ttl)
	eventually(t, "the third server grants", func() error {
		beat(t, other)
		_, err := other.Acquire(t.Context(), try("r"))
		return err
	})
	isOver(t, relies, held)
}
