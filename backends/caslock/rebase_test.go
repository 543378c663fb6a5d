package caslock

import (
	"errors"
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

// The store goes back to a backup between the two trips of a request with a min_hold. Its grant has no fence that there was before, and
// what is kept of it is kept once.
func TestMinHoldWhileTheStoreGoesBack(t *testing.T) {
	for what, lost := range map[string]bool{"answered": false, "asked again, because it had no answer": true} {
		t.Run(what, func(t *testing.T) {
			m := newMemory()
			b, kit, r, _ := sidecar(t, m, time.Minute)
			l := b.leases[string(kit.ID())]
			before, restore := backTo(t, m, b, kit)
			q := request("r")
			q.MinHold = time.Hour
			writes := 0
			r.mu.Lock()
			r.copy = func(x Txn) bool {
				if !writesHead(x, "r") {
					return false
				}
				if writes++; writes > 1 {
					return false
				}
				restore()
				return lost && m.do(x).Done
			}
			r.mu.Unlock()
			a, err := l.Ask(t.Context(), q)
			if lost {
				if !errors.Is(err, lock.ErrUnavailable) {
					t.Fatal(err)
				}
				a, err = l.Ask(t.Context(), q)
			}
			if err != nil || !a.Granted || a.Fence <= before.Fence {
				t.Errorf("broken law: fence %d after %d, %v", a.Fence, before.Fence, err)
			}
			if err := kit.Release(t.Context(), "r", q.ID); err != nil {
				t.Fatal(err)
			}
			if st, err := b.Get(t.Context(), "r"); err != nil || len(st.Holders) != 1 || st.Holders[0].Kept == 0 || st.Holders[0].Fence != a.Fence {
				t.Errorf("who keeps others out: %+v, %v", st, err)
			}
		})
	}
}
