package rows

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/locksidecar/locksidecar/backends/backendtest"
	"github.com/locksidecar/locksidecar/backends/sqllock"
	"github.com/locksidecar/locksidecar/backends/sqllock/mysql"
	"github.com/locksidecar/locksidecar/internal/testengine"
	"github.com/locksidecar/locksidecar/lock"
)

const patience = time.Minute

// again runs a test, and once more where the machine was too busy for it. It is not for tests of what
// happens without an answer.
func again(t *testing.T, test func(t testing.TB)) {
	t.Helper()
	backendtest.Again(t, test, os.ErrDeadlineExceeded, context.DeadlineExceeded)
}

// onEach runs a test on both kinds of server.
func onEach(t *testing.T, f func(t testing.TB, s testengine.Server)) {
	t.Helper()
	inEach(t, func(t *testing.T, kind *testengine.Kind) {
		again(t, func(t testing.TB) { f(t, testengine.Shared(t, kind)) })
	})
}

// alone does the same on servers of the test's own.
func alone(t *testing.T, f func(t testing.TB, s testengine.Server)) {
	t.Helper()
	inEach(t, func(t *testing.T, kind *testengine.Kind) {
		again(t, func(t testing.TB) { f(t, testengine.New(t, kind)) })
	})
}

// strictly is onEach for tests that are not run again.
func strictly(t *testing.T, f func(t testing.TB, s testengine.Server)) {
	t.Helper()
	inEach(t, func(t *testing.T, kind *testengine.Kind) { f(t, testengine.Shared(t, kind)) })
}

func inEach(t *testing.T, f func(t *testing.T, kind *testengine.Kind)) {
	t.Helper()
	for _, kind := range kinds {
		t.Run(kind.String(), func(t *testing.T) {
			t.Parallel()
			f(t, kind)
		})
	}
}

// sidecar is a backend with one lease, which lives as long as the test.
type sidecar struct {
	testing.TB
	lock.Lease
	b *sqllock.Backend
	f *foreign
}

func open1(t testing.TB, url string, ttl time.Duration) *sidecar {
	t.Helper()
	return openObserved(t, url, ttl, nil)
}

func openObserved(t testing.TB, url string, ttl time.Duration, observe lock.Observe) *sidecar {
	t.Helper()
	cfg, err := mysql.Parse(url)
	if err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(url, "timeout=") { // a busy machine may stand still
		cfg.Timeout = 3 * time.Second
	}
	s := &sidecar{TB: t}
	if s.b, err = openTold(cfg, observe, func(f *foreign) { s.f = f }); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.b.Close() })
	eventually(t, "a lease is opened", func() error {
		opened := lock.BootTime()
		l, err := s.b.OpenLease(t.Context(), lock.LeaseOptions{TTL: ttl, Sidecar: t.Name()})
		s.Lease = backendtest.Timed(l, ttl, opened)
		return err
	})
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), 2*time.Second)
		defer cancel()
		_ = s.Close(ctx) // the server may be gone
	})
	return s
}

var eventually = backendtest.Eventually

func name(t testing.TB) lock.Resource { return lock.Resource(t.Name()) }

func request(r lock.Resource, m lock.Mode) lock.Request {
	return lock.Request{ID: lock.NewHoldID(), Resource: r, Mode: m, Owner: lock.Owner{Session: "test"}.Encode()}
}

func (s *sidecar) hold(r lock.Resource, m lock.Mode) lock.Grant {
	s.Helper()
	ctx, cancel := context.WithTimeout(s.Context(), patience)
	defer cancel()
	q := request(r, m)
	var g lock.Grant
	eventually(s.TB, "it is granted", func() (err error) {
		if g, err = s.Acquire(ctx, q); err != nil && !errors.Is(err, lock.ErrUnavailable) {
			s.Fatalf("Acquire: %v", err)
		}
		return err
	})
	return g
}

func (s *sidecar) held(r lock.Resource, m lock.Mode) {
	s.Helper()
	q := request(r, m)
	q.Try = true
	if g, err := s.Acquire(s.Context(), q); !errors.Is(err, lock.ErrHeld) {
		s.Fatalf("try of what is held: got %+v, %v; want ErrHeld", g, err)
	}
}

func (s *sidecar) release(g lock.Grant) {
	s.Helper()
	if err := s.Release(s.Context(), g.Resource, g.ID); err != nil {
		s.Fatalf("Release: %v", err)
	}
}

func (s *sidecar) beat() error {
	_, err := s.Heartbeat(s.Context())
	return err
}

// connection is the number of the link that a hold has, or waits on.
func (s *sidecar) connection(id lock.HoldID) (n int64) {
	s.Helper()
	eventually(s.TB, "the hold has a link", func() error {
		s.f.mu.Lock()
		defer s.f.mu.Unlock()
		r := s.f.rows[id]
		if r == nil {
			return errors.New("it has none")
		}
		n = r.k.conn.ID
		return nil
	})
	return n
}

func (s *sidecar) links() int {
	s.f.mu.Lock()
	defer s.f.mu.Unlock()
	return len(s.f.all)
}

// lost waits for the event that tells that a hold was lost.
func (s *sidecar) lost(g lock.Grant) {
	s.Helper()
	select {
	case ev := <-s.Events():
		if want := (lock.Event{Kind: lock.Vanished, Resource: g.Resource, ID: g.ID}); ev != want {
			s.Errorf("got the event %+v, want %+v", ev, want)
		}
	case <-time.After(patience):
		s.Errorf("no event of %+v", g)
	}
}

// waiting is an Acquire under way.
type waiting struct {
	s     *sidecar
	q     lock.Request
	done  chan struct{}
	grant lock.Grant
	err   error
}

// ask begins to acquire.
func (s *sidecar) ask(q lock.Request) *waiting {
	w := &waiting{s: s, q: q, done: make(chan struct{})}
	ctx, cancel := context.WithCancel(context.Background())
	go func() {
		defer close(w.done)
		w.grant, w.err = s.Acquire(ctx, q)
	}()
	s.Cleanup(func() { cancel(); <-w.done })
	return w
}

// queue does, and returns when the request stands in the engine: it waits there, or for
// a stranger.
func (s *sidecar) queue(q lock.Request) *waiting {
	s.Helper()
	w := s.ask(q)
	eventually(s.TB, "the request stands there", func() error {
		st, err := s.b.Get(s.Context(), q.Resource)
		if err == nil && !slices.ContainsFunc(append(st.Holders, st.Waiters...), func(h lock.Holding) bool { return h.ID == q.ID }) {
			err = errors.New("it does not")
		}
		return err
	})
	return w
}

func (w *waiting) wait() {
	w.s.Helper()
	select {
	case <-w.done:
	case <-time.After(patience):
		w.s.Fatal("Acquire does not return")
	}
}

func (w *waiting) granted() lock.Grant {
	w.s.Helper()
	if w.wait(); w.err != nil {
		w.s.Fatalf("Acquire: %v", w.err)
	}
	return w.grant
}

func (w *waiting) blocked() {
	w.s.Helper()
	select {
	case <-w.done:
		w.s.Fatalf("Acquire returned %+v, %v", w.grant, w.err)
	case <-time.After(50 * time.Millisecond):
	}
}

// stranger is a program that locks rows without a sidecar.
type stranger struct {
	t  testing.TB
	tx func(query string, args ...any) error
}

func newStranger(t testing.TB, url string) *stranger {
	t.Helper()
	p := admin(t, url)
	t.Cleanup(func() { _ = p.Close() })
	conn, err := p.Conn(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	return &stranger{t: t, tx: func(query string, args ...any) error {
		_, err := conn.ExecContext(context.Background(), query, args...)
		return err
	}}
}

const lockIt = "START TRANSACTION; SELECT 1 FROM locksidecar_row WHERE name=? FOR UPDATE NOWAIT"

// locks locks a row, and must succeed.
func (s *stranger) locks(r lock.Resource) {
	s.t.Helper()
	if err := s.tx("INSERT IGNORE INTO locksidecar_row (name) VALUES (?); "+lockIt, []byte(r), []byte(r)); err != nil {
		s.t.Fatal(err)
	}
}

// gets waits until the row can be locked.
func (s *stranger) gets(r lock.Resource) {
	s.t.Helper()
	eventually(s.t, "a stranger locks the row", func() error { return s.tx(lockIt, []byte(r)) })
}

func (s *stranger) refused(r lock.Resource) {
	s.t.Helper()
	if err := s.tx(lockIt, []byte(r)); mysql.Class(err) != sqllock.Blocked {
		s.t.Fatalf("a stranger that wants the row gets %v", err)
	}
}

func (s *stranger) unlocks() {
	s.t.Helper()
	if err := s.tx("COMMIT"); err != nil {
		s.t.Fatal(err)
	}
}

func kill(t testing.TB, s testengine.Server, connection int64) {
	t.Helper()
	exec(t, s.URL(), fmt.Sprintf("KILL %d", connection))
}
