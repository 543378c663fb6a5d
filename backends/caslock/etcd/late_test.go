package etcd

import (
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

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
