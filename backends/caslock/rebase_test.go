package caslock

import (
	"errors"
	"slices"
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

// The store goes back to a backup while a lock is asked for, and others change more than was lost, so that only a heartbeat beside it notices. The grant
// is taken back, and that has no answer. Who asks again does not get that grant: its fence is smaller than one that there was, and
// it may be given up already, so that others end it.
func TestTakingBackWithoutAnswer(t *testing.T) {
	for what, waits := range map[string]bool{"nobody waits": false, "another waits": true} {
		t.Run(what, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				m := newMemory()
				c := &counting{road: &road{m: m}}
				b, l := opened(t, c, Options{Timeout: patience})
				_, rival := opened(t, &road{m: m}, Options{Timeout: patience})
				mustAsk(t, l, "first") // with which fences begin
				synctest.Wait()
				restore := m.backup()
				if r, err := l.Renew(t.Context(), nil); err != nil || r.Stranger {
					t.Fatalf("%+v, %v", r, err)
				}
				forward := func(by int64) {
					m.mu.Lock()
					defer m.mu.Unlock()
					m.revision += by
				}
				forward(1000)
				q, theirs := request("r"), request("r")
				before, err := rival.Ask(t.Context(), theirs)
				if err != nil || !before.Granted {
					t.Fatalf("%+v, %v", before, err)
				}
				restore()
				forward(100)
				b.wall = func() time.Time { return time.Now().Add(time.Minute) } // which these changes would take at least

				theirs = request("r")
				noticed := false
				after := func(x Txn) {
					if noticed || !writesHead(x, "r") {
						return
					}
					noticed = true
					if r, err := l.Renew(t.Context(), nil); err != nil || !r.Stranger {
						t.Errorf("a heartbeat beside it: %+v, %v", r, err)
					}
					mustAsk(t, l, "beside it")
					if waits {
						if a, err := rival.Ask(t.Context(), theirs); err != nil || a.Granted {
							t.Errorf("behind it: %+v, %v", a, err)
						}
					}
				}
				c.after.Store(&after)
				ended := func(x Txn) bool {
					return slices.ContainsFunc(x.Then, func(w Write) bool { return w.Delete && w.Key == entryKey(l.id, "r", string(q.ID)) })
				}
				lost := false
				c.mu.Lock()
				c.copy = func(x Txn) bool {
					take := ended(x) && (!waits || x.Else == nil) // where another waits, the first trip only says that it is given up
					lost = lost || take
					return take
				}
				c.mu.Unlock()
				if a, err := l.Ask(t.Context(), q); !errors.Is(err, lock.ErrUnavailable) || !noticed || !lost {
					t.Fatalf("%+v, %v; noticed %t, lost %t", a, err, noticed, lost)
				}
				c.mu.Lock()
				c.copy = nil
				c.mu.Unlock()
				a, err := l.Ask(t.Context(), q)
				if err != nil || a.Granted == waits || a.Granted && a.Fence <= before.Fence {
					t.Errorf("broken law: fence %d after %d: %+v, %v", a.Fence, before.Fence, a, err)
				}
				if !waits {
					return
				}
				time.Sleep(10 * time.Second) // others end what is given up
				other, err := rival.Ask(t.Context(), theirs)
				if err != nil || !other.Granted || other.Fence <= before.Fence {
					t.Errorf("who has waited: %+v, %v, after fence %d", other, err, before.Fence)
				}
				if a.Granted && other.Granted {
					t.Errorf("broken law: two have it, with fences %d and %d", a.Fence, other.Fence)
				}
			})
		})
	}
}
