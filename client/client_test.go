package client_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"

	pb "github.com/locksidecar/locksidecar/api/locksidecar/v1"
	"github.com/locksidecar/locksidecar/backends/embedded"
	"github.com/locksidecar/locksidecar/client"
	"github.com/locksidecar/locksidecar/localapi"
	"github.com/locksidecar/locksidecar/session"
)

func TestMain(m *testing.M) {
	if socket := os.Getenv(sidecarEnv); socket != "" {
		serve(socket)
		return
	}
	goleak.VerifyTestMain(m)
}

// sidecar is a real one on a real socket, over the embedded store.
type sidecar struct {
	socket  string
	manager *session.Manager
	stop    func()
}

func start(t testing.TB, change ...func(*session.Options)) *sidecar {
	t.Helper()
	dir, err := os.MkdirTemp("", "lsc") // short enough for a socket's path
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	store := embedded.New()
	o := session.Options{Backend: store, Sidecar: "test"}
	for _, f := range change {
		f(&o)
	}
	m, err := session.New(o)
	if err != nil {
		t.Fatal(err)
	}
	socket := filepath.Join(dir, "s")
	api := localapi.New(localapi.Options{Manager: m, Socket: socket, Version: "v0"})
	mctx, mstop := context.WithCancel(context.WithoutCancel(t.Context()))
	ctx, cancel := context.WithCancel(mctx)
	var wg sync.WaitGroup
	wg.Go(func() {
		if err := errors.Join(m.Run(mctx), store.Close()); err != nil {
			t.Errorf("manager: %v", err)
		}
	})
	wg.Go(func() {
		defer mstop()
		if err := api.Run(ctx); err != nil {
			t.Errorf("server: %v", err)
		}
	})
	stop := sync.OnceFunc(func() { cancel(); wg.Wait() })
	t.Cleanup(stop)
	<-api.Listening()
	eventually(t, "ready", func() bool { return m.Ready() == nil })
	return &sidecar{socket: socket, manager: m, stop: stop}
}

const patience = time.Minute

func eventually(t testing.TB, what string, ok func() bool) {
	t.Helper()
	pause := 2 * time.Millisecond
	for end := time.Now().Add(patience); !ok(); pause = min(pause+pause/4, 25*time.Millisecond) { // looks take the processors from it
		if time.Now().After(end) {
			t.Fatalf("not %s in time", what)
		}
		time.Sleep(pause)
	}
}

func within(t testing.TB, what string, c <-chan struct{}) {
	t.Helper()
	select {
	case <-c:
	case <-time.After(patience):
		t.Fatalf("not %s in time", what)
	}
}

func (s *sidecar) dial(t testing.TB) *client.Client {
	t.Helper()
	c, err := client.Dial(t.Context(), s.socket)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close() })
	return c
}

func (s *sidecar) open(t testing.TB, o client.SessionOptions) *client.Session {
	t.Helper()
	x, err := s.dial(t).OpenSession(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}
	return x
}

func acquire(t testing.TB, s *client.Session, resource string, o client.AcquireOptions) *client.Lock {
	t.Helper()
	l, err := s.Acquire(t.Context(), resource, o)
	if err != nil {
		t.Fatal(err)
	}
	return l
}

func TestLock(t *testing.T) {
	s := start(t)
	a, b := s.open(t, client.SessionOptions{Name: "a"}), s.open(t, client.SessionOptions{Name: "b"})
	reentrant := client.AcquireOptions{Reentrant: true}
	l := acquire(t, a, "r", reentrant)
	if l.Mode() != client.Exclusive || l.Count() != 1 || l.Fence == 0 || l.Resource != "r" || l.Err() != nil {
		t.Errorf("got %+v", l)
	}
	if m := a.Margin(); m != time.Second { // a tenth of the lease's TTL
		t.Errorf("margin %s", m)
	}
	if v := l.ValidFor(); v <= 0 || v > 10*time.Second {
		t.Errorf("valid for %s", v)
	}
	_, err := b.Acquire(t.Context(), "r", client.AcquireOptions{Wait: client.NoWait})
	var e *client.Error
	if !errors.Is(err, client.ErrLockHeld) || !errors.As(err, &e) || e.Metadata["holder_session"] != "a" {
		t.Errorf("try: %v", err)
	}
	_, err = b.Acquire(t.Context(), "r", client.AcquireOptions{Wait: time.Millisecond})
	if !errors.Is(err, client.ErrWaitTimeout) {
		t.Errorf("wait: %v", err)
	}
	again := acquire(t, a, "r", reentrant)
	if again != l || l.Count() != 2 {
		t.Errorf("reentrant: %p %p count %d", again, l, l.Count())
	}
	if err := l.Downgrade(t.Context()); err != nil || l.Mode() != client.Shared {
		t.Errorf("downgrade: %v %s", err, l.Mode())
	}
	if err := l.Extend(t.Context(), 5*time.Second); err != nil || l.ValidFor() > 5*time.Second {
		t.Errorf("extend: %v, valid for %s", err, l.ValidFor())
	}
	if err := l.Extend(t.Context(), time.Hour); err != nil {
		t.Errorf("extend by an hour: %v", err)
	}
	eventually(t, "valid for longer again", func() bool { return l.ValidFor() > 5*time.Second })
	if err := l.Extend(t.Context(), 0); !errors.Is(err, client.ErrInvalidRequest) || l.Err() != nil {
		t.Errorf("extend by nothing: %v", err)
	}
	shared := acquire(t, b, "r", client.AcquireOptions{Mode: client.Shared})
	if _, err = a.Acquire(t.Context(), "r", reentrant); !errors.Is(err, client.ErrUpgradeRefused) {
		t.Errorf("upgrade: %v", err)
	}
	for range 2 {
		if err := l.Release(t.Context()); err != nil {
			t.Error(err)
		}
	}
	if err := l.Release(t.Context()); !errors.Is(err, client.ErrNotHolder) {
		t.Errorf("third release: %v", err)
	}
	if l.Count() != 0 || l.ValidFor() != 0 || !errors.Is(l.Err(), client.ErrReleased) {
		t.Errorf("after release: %d %s %v", l.Count(), l.ValidFor(), l.Err())
	}
	all, err := a.AcquireAll(t.Context(), []string{"y", "x"}, client.AcquireOptions{Wait: client.NoWait})
	if err != nil || len(all.Parts) != 2 || all.Parts[0].Resource != "x" || all.Parts[0].Fence == 0 || all.Resource != "" {
		t.Fatalf("several: %+v, %v", all, err)
	}
	_, err = b.AcquireAll(t.Context(), []string{"x", "w"}, client.AcquireOptions{Wait: client.NoWait})
	if !errors.Is(err, client.ErrLockHeld) || !errors.As(err, &e) || e.Metadata["resource"] != "x" {
		t.Errorf("several of which one is held: %v", err)
	}
	if err := acquire(t, b, "w", client.AcquireOptions{Wait: client.NoWait}).Release(t.Context()); err != nil {
		t.Error(err)
	}
	if err := all.Release(t.Context()); err != nil {
		t.Error(err)
	}
	for _, one := range all.Parts {
		acquire(t, b, one.Resource, client.AcquireOptions{Wait: client.NoWait})
	}
	for _, bad := range []string{"", "\xff", strings.Repeat("x", 513), strings.Repeat("x", 1<<20)} {
		if _, err := a.Acquire(t.Context(), bad, client.AcquireOptions{}); !errors.Is(err, client.ErrInvalidRequest) {
			t.Errorf("%.20q: %v", bad, err)
		}
	}
	if err := a.Close(); err != nil {
		t.Error(err)
	}
	if a.Err() != client.ErrSessionClosed { //nolint:errorlint // that very error
		t.Errorf("session: %v", a.Err())
	}
	if _, err := a.Acquire(t.Context(), "r", client.AcquireOptions{}); !errors.Is(err, client.ErrSessionClosed) {
		t.Errorf("acquire on a closed session: %v", err)
	}
	if err := b.Close(); err != nil {
		t.Error(err)
	}
	within(t, "lost", shared.Lost())
	if n := s.manager.Info().Holds; n != 0 {
		t.Errorf("%d holds after Close", n)
	}
}

// A session does not enter its own lock again unless both acquires are Reentrant.
func TestNotReentrant(t *testing.T) {
	s := start(t)
	x := s.open(t, client.SessionOptions{})
	for _, o := range []struct{ first, second bool }{{}, {first: true}, {second: true}} {
		l := acquire(t, x, "r", client.AcquireOptions{Owner: "o", Reentrant: o.first})
		_, err := x.Acquire(t.Context(), "r", client.AcquireOptions{Owner: "o", Reentrant: o.second, Wait: client.NoWait})
		if !errors.Is(err, client.ErrLockHeld) || l.Count() != 1 {
			t.Errorf("reentrant %v: %v, count %d", o, err, l.Count())
		}
		if err := l.Release(t.Context()); err != nil {
			t.Error(err)
		}
	}
}

func TestAcquireCancelled(t *testing.T) {
	s := start(t)
	a, b := s.open(t, client.SessionOptions{}), s.open(t, client.SessionOptions{})
	for range 50 {
		l := acquire(t, a, "r", client.AcquireOptions{})
		ctx, cancel := context.WithCancelCause(t.Context())
		var got *client.Lock
		done := make(chan error, 1)
		go func() {
			var err error
			got, err = b.Acquire(ctx, "r", client.AcquireOptions{})
			done <- err
		}()
		eventually(t, "waiting", func() bool { return s.manager.Info().Waiters == 1 })
		cause := errors.New("changed my mind")
		go cancel(cause)
		if err := l.Release(t.Context()); err != nil {
			t.Fatal(err)
		}
		switch err := <-done; {
		case err == nil: // the grant was faster
			if err := got.Release(t.Context()); err != nil {
				t.Fatal(err)
			}
		case !errors.Is(err, cause):
			t.Fatal(err)
		}
		eventually(t, "free", func() bool { i := s.manager.Info(); return i.Holds == 0 && i.Waiters == 0 })
	}
}

func TestLost(t *testing.T) {
	s := start(t)
	c := s.dial(t)
	x, err := c.OpenSession(t.Context(), client.SessionOptions{})
	if err != nil {
		t.Fatal(err)
	}
	l := acquire(t, x, "r", client.AcquireOptions{MaxHold: 100 * time.Millisecond})
	if v := l.ValidFor(); v > 100*time.Millisecond {
		t.Errorf("valid for %s", v)
	}
	within(t, "lost", l.Lost())
	var lost *client.LostError
	if !errors.As(l.Err(), &lost) || !errors.Is(l.Err(), client.ErrLockLost) || (lost.Reason != "MAX_HOLD" && lost.Reason != client.LostSilence) {
		t.Errorf("err %v", l.Err())
	}
	l = acquire(t, x, "f", client.AcquireOptions{})
	ids, err := c.ForceRelease(t.Context(), "f", "", 0)
	if err != nil || len(ids) != 1 || ids[0] != l.ID {
		t.Errorf("force: %v %v", ids, err)
	}
	within(t, "lost", l.Lost())
	if !errors.As(l.Err(), &lost) || lost.Reason != "FORCED" || lost.Fence != l.Fence || lost.Resource != "f" {
		t.Errorf("err %v", l.Err())
	}
	if err := l.Release(t.Context()); !errors.Is(err, client.ErrLockLost) {
		t.Errorf("release: %v", err)
	}
}

func TestSidecarStops(t *testing.T) {
	s := start(t)
	c := s.dial(t)
	x, err := c.OpenSession(t.Context(), client.SessionOptions{})
	if err != nil {
		t.Fatal(err)
	}
	l := acquire(t, x, "r", client.AcquireOptions{})
	go func() { _ = s.manager.Drain(t.Context()) }()
	within(t, "draining", x.Draining())
	s.stop()
	within(t, "lost", l.Lost())
	within(t, "done", x.Done())
	if l.ValidFor() != 0 || x.Err() == nil {
		t.Errorf("%s %v", l.ValidFor(), x.Err())
	}
	if _, err := c.OpenSession(t.Context(), client.SessionOptions{}); !errors.Is(err, client.ErrNoSidecar) {
		t.Errorf("open: %v", err)
	}
	_, err = client.Dial(t.Context(), s.socket)
	if !errors.Is(err, client.ErrNoSidecar) || !strings.Contains(err.Error(), s.socket) || !strings.Contains(err.Error(), "locksidecar serve") {
		t.Errorf("dial: %v", err)
	}
}

func TestKeepAlive(t *testing.T) {
	s := start(t)
	const ttl = 5 * time.Second // long for a machine that is busy
	x := s.open(t, client.SessionOptions{TTL: ttl})
	l := acquire(t, x, "r", client.AcquireOptions{})
	time.Sleep(ttl + ttl/10) // real keep-alives
	if l.Err() != nil || x.Err() != nil {
		t.Errorf("%v %v", l.Err(), x.Err())
	}
	if err := x.Close(); err != nil {
		t.Error(err)
	}
}

func TestListWatchInfo(t *testing.T) {
	s := start(t)
	c := s.dial(t)
	x := s.open(t, client.SessionOptions{Name: "n"})
	for i := range 3 {
		acquire(t, x, fmt.Sprintf("a/%d", i), client.AcquireOptions{})
	}
	var names []string
	for l, err := range c.List(t.Context(), "a/") {
		if err != nil {
			t.Fatal(err)
		}
		names = append(names, l.GetResource())
	}
	if got := strings.Join(names, " "); got != "a/0 a/1 a/2" {
		t.Errorf("listed %s", got)
	}
	g, err := c.Get(t.Context(), "a/1")
	if err != nil || g.GetHolders()[0].GetSession() != "n" {
		t.Errorf("get: %v %v", g, err)
	}
	n := 0
	for e, err := range c.Watch(t.Context(), "a/", 0) {
		if err != nil {
			t.Fatal(err)
		}
		if n++; e.GetKind() == pb.WatchEvent_SYNCED {
			break
		}
	}
	if n != 4 {
		t.Errorf("%d events", n)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	for _, err := range c.Watch(ctx, "", 0) {
		if !errors.Is(err, context.Canceled) {
			t.Errorf("watch: %v", err)
		}
	}
	eventually(t, "three holds in Info", func() bool {
		i, err := c.Info(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		return i.GetHolds() == 3
	})
	if _, err := c.ForceRelease(t.Context(), "none", "x", 0); !errors.Is(err, client.ErrNotHolder) {
		t.Errorf("force: %v", err)
	}
}

// Many goroutines share one session.
func TestConcurrent(t *testing.T) {
	s := start(t)
	x := s.open(t, client.SessionOptions{})
	counts := make([]int, 4)
	var wg sync.WaitGroup
	for i := range 16 {
		wg.Go(func() {
			for n := range 50 {
				r := (i + n) % len(counts)
				l, err := x.Acquire(t.Context(), fmt.Sprint(r), client.AcquireOptions{Owner: fmt.Sprint(i)})
				if err != nil {
					t.Error(err)
					return
				}
				counts[r]++
				if err := l.Release(t.Context()); err != nil {
					t.Error(err)
				}
			}
		})
	}
	wg.Wait()
	for r, n := range counts {
		if n != 200 {
			t.Errorf("%d: %d", r, n)
		}
	}
}

// A session too many is refused, and other calls go on.
func TestManySessions(t *testing.T) {
	const most = 100
	s := start(t, func(o *session.Options) { o.Limits.SessionsPerUID = most })
	c := s.dial(t)
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	for n := range most {
		if _, err := c.OpenSession(ctx, client.SessionOptions{}); err != nil {
			t.Fatalf("session %d: %v", n, err)
		}
	}
	for range 20 {
		var said *client.Error
		if _, err := c.OpenSession(ctx, client.SessionOptions{}); !errors.Is(err, client.ErrLimitExceeded) || !errors.As(err, &said) || said.Metadata["max"] != strconv.Itoa(most) {
			t.Fatal(err)
		}
	}
	if _, err := c.Info(ctx); err != nil {
		t.Error(err)
	}
}
