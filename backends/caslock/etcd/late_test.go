package etcd

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/locksidecar/locksidecar/backends/caslock"
	"github.com/locksidecar/locksidecar/internal/testengine"
	"github.com/locksidecar/locksidecar/lock"
)

// The server stands still, and what was asked for has no answer. When it goes on, that is given up together. It takes a few requests for each,
// and a few moments.
func TestGivenUpAfterASilence(t *testing.T) {
	t.Parallel()
	s := testengine.New(t, testengine.Etcd)
	_, l := sidecar(t, s.URL()+"?timeout=2s", 10*time.Minute)
	release(t, l, hold(t, l, "warm"))
	thaw := testengine.Pause(t, s)
	const n = 128
	qs := make([]lock.Request, n)
	var apps sync.WaitGroup
	for i := range qs {
		qs[i] = request(lock.Resource(fmt.Sprint(i)))
		apps.Go(func() {
			if _, err := l.Acquire(t.Context(), qs[i]); !errors.Is(err, lock.ErrUnavailable) {
				t.Error(err)
			}
		})
	}
	apps.Wait()
	thaw()
	eventually(t, "a heartbeat is answered", func() error { return beat(t.Context(), l) })
	before, began := metrics(t, s)["grpc_server_started_total"], time.Now()
	for _, q := range qs {
		apps.Go(func() {
			err := lock.ErrUnavailable
			for end := time.Now().Add(patience); errors.Is(err, lock.ErrUnavailable) && time.Now().Before(end); {
				err = l.Release(t.Context(), q.Resource, q.ID)
			}
			if err != nil && !errors.Is(err, lock.ErrNotHolder) { // it may not have come to the server
				t.Error(err)
			}
		})
	}
	apps.Wait()
	got := metrics(t, s)["grpc_server_started_total"] - before
	t.Logf("%.0f requests for %d, in %s", got, n, time.Since(began))
	if got > 6*n {
		t.Errorf("%.0f requests for %d", got, n)
	}
	for _, k := range keys(t, s) {
		for _, of := range []string{"head/", "line/", "own/"} {
			if strings.HasPrefix(k, "/locksidecar/"+of) {
				t.Errorf("left: %q", k)
			}
		}
	}
}

// noBell is for a request that is asked for again when the test says so.
type noBell struct{}

func (noBell) Ring() {}

// Who waits is granted the lock, and somebody forces the release of that at once. The sidecar hears of neither, and asks again. It is told that the
// lock was taken away, and does not have it once more.
func TestForcedBeforeItsGrantIsKnown(t *testing.T) {
	t.Parallel()
	s := testengine.Shared(t, testengine.Etcd)
	cfg, err := parseURL(s.URL() + "?timeout=20s")
	if err != nil {
		t.Fatal(err)
	}
	m := &muted{store: newStore(cfg)}
	m.silent.Store(true)
	b := caslock.Open(m, caslock.Options{Timeout: cfg.timeout})
	t.Cleanup(func() { _ = b.Close() })
	l, err := b.OpenLease(t.Context(), lock.LeaseOptions{TTL: 10 * time.Minute, Sidecar: t.Name()})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.Close(context.WithoutCancel(t.Context())) })
	admin, rival := sidecar(t, s.URL()+"?timeout=20s", 10*time.Minute)
	q := request(lock.Resource(t.Name() + string(lock.NewHoldID())))
	q.Bell = noBell{}
	theirs := hold(t, rival, q.Resource)
	if _, err := l.Acquire(t.Context(), q); !errors.Is(err, lock.ErrWaiting) {
		t.Fatalf("behind another: %v", err)
	}
	release(t, rival, theirs)
	if err := admin.ForceRelease(t.Context(), q.Resource, q.ID, 0); err != nil {
		t.Fatal(err)
	}
	var g lock.Grant
	eventually(t, "it is asked for again", func() error {
		if g, err = l.Acquire(t.Context(), q); errors.Is(err, lock.ErrWaiting) {
			return err
		}
		return nil
	})
	if !errors.Is(err, lock.ErrNotHolder) {
		news, told := l.Heartbeat(t.Context())
		t.Errorf("its release was forced: %+v, %v; and the heartbeat tells %+v, %v", g, err, news, told)
	}
	if st, err := admin.Get(t.Context(), q.Resource); err != nil || len(st.Holders)+len(st.Waiters) > 0 {
		t.Errorf("%+v, %v", st, err)
	}
}
