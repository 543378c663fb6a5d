package caslock

import (
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/locksidecar/locksidecar/lock"
)

// The store goes back to a backup, and very many sidecars notice it at the same moment. Each of them may have to raise the base, under
// the condition that nobody else has meanwhile. They do not wear the store out with that, and their heartbeats have answers in time.
func TestManyFindABackup(t *testing.T) {
	for what, find := range map[string]func(t *testing.T, l *lease){
		"with a heartbeat": func(t *testing.T, l *lease) {
			if r, err := l.Renew(t.Context(), nil); err != nil || !r.Stranger {
				t.Errorf("%+v, %v", r, err)
			}
		},
		"with requests": func(t *testing.T, l *lease) {
			if a, err := l.Ask(t.Context(), request(lock.Resource(l.id))); err != nil || !a.Granted {
				t.Errorf("%+v, %v", a, err)
			}
		},
	} {
		t.Run(what, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				first := newBusy(newMemory())
				const n = 200
				backends, leases := make([]*Backend, n), make([]*lease, n)
				for i := range leases {
					r := newBusy(first.m)
					r.server, r.requests = first.server, first.requests
					backends[i], leases[i] = opened(t, r, Options{Timeout: 5 * time.Minute})
				}
				mustAsk(t, leases[0], "first") // with which fences begin
				time.Sleep(10 * time.Second)
				restore := first.m.backup()
				for i, l := range leases {
					mustAsk(t, l, lock.Resource("before "+l.id))
					if known := backends[i].told().revision; known <= 0 {
						t.Fatal("it has heard of no revision")
					}
				}
				restore()
				first.requests.Store(0)
				began := time.Now()
				var all sync.WaitGroup
				for _, l := range leases {
					all.Go(func() { find(t, l) })
				}
				all.Wait()
				got, took := first.requests.Load(), time.Since(began)
				t.Logf("%d requests for %d sidecars, in %s", got, n, took)
				if got > 15*n {
					t.Errorf("%d requests for %d sidecars, in %s", got, n, took)
				}
				kv, _ := first.m.do(Txn{Read: []Range{{Key: baseKey}}}).Reads[0].one()
				if sum := decode[int64](kv) + fenceStep*first.m.do(Txn{}).Revision; sum < began.UnixMicro() {
					t.Errorf("fences begin %s too early", time.Duration(began.UnixMicro()-sum)*time.Microsecond)
				}
			})
		})
	}
}
