package caslock

import (
	"errors"
	"fmt"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/locksidecar/locksidecar/backends/leasekit"
	"github.com/locksidecar/locksidecar/lock"
)

// withoutAnswer asks for a lock; the request that would take it is lost, and has no answer.
func withoutAnswer(t *testing.T, l *lease, r *road, q lock.Request) {
	t.Helper()
	lost := false
	r.mu.Lock()
	r.copy = func(x Txn) bool {
		mine := writesHead(x, q.Resource)
		lost = lost || mine
		return mine
	}
	r.mu.Unlock()
	_, err := l.Ask(t.Context(), q)
	r.mu.Lock()
	r.copy = nil
	r.mu.Unlock()
	if !errors.Is(err, lock.ErrUnavailable) || !lost {
		t.Fatalf("%v; a request was lost: %t", err, lost)
	}
}

// The store was silent, and what hundreds have asked for then is given up together. They do not keep each other from that, nor wear the store out, nor
// keep anybody else from a lock.
func TestManyAreGivenUpTogether(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newBusy(newMemory())
		_, l := opened(t, r, Options{Timeout: 2 * time.Second})
		if _, err := l.Ask(t.Context(), request("warm")); err != nil {
			t.Fatal(err)
		}
		const n = 200
		qs := make([]lock.Request, n)
		var apps sync.WaitGroup
		r.mu.Lock()
		r.deaf = make(chan struct{})
		r.mu.Unlock()
		for i := range qs {
			qs[i] = request(lock.Resource(fmt.Sprint(i)))
			apps.Go(func() {
				if _, err := l.Ask(t.Context(), qs[i]); !errors.Is(err, lock.ErrUnavailable) {
					t.Error(err)
				}
			})
		}
		apps.Wait()
		r.mu.Lock()
		r.deaf = nil
		r.mu.Unlock()
		r.requests.Store(0)
		began := time.Now()
		for _, q := range qs {
			apps.Go(func() {
				if _, err := l.Withdraw(t.Context(), leasekit.Withdrawal{Ref: leasekit.Ref{Resource: q.Resource, ID: q.ID}, Unsure: true}); err != nil {
					t.Error(err)
				}
			})
		}
		apps.Go(func() {
			if a, err := l.Ask(t.Context(), request("neighbour")); err != nil || !a.Granted || time.Since(began) > time.Second {
				t.Errorf("a neighbour had its lock after %s: %+v, %v", time.Since(began), a, err)
			}
		})
		apps.Wait()
		got := r.requests.Load()
		t.Logf("%d requests for %d, in %s", got, n, time.Since(began))
		if got > 5*n {
			t.Errorf("%d requests for %d", got, n)
		}
		for _, f := range r.m.do(Txn{Read: []Range{all(linePrefix, 0), all(headPrefix, 0), all(ownPrefix(l.id), 0)}}).Reads {
			if len(f.KVs) != 2 { // of the first lock, and the neighbour's
				t.Errorf("there is %+v", f.KVs)
			}
		}
	})
}

// One write of the lease's key is enough for all requests that had no answer before: copies of all of them arrive, and change nothing. A request that
// has no answer after that needs another one.
func TestOneWriteVoidsAllBefore(t *testing.T) {
	m := newMemory()
	b, kit, r, _ := sidecar(t, m, time.Minute)
	l := b.leases[string(kit.ID())]
	mustHave(t, kit, request("warm"))
	version := func() int64 {
		kv, _ := m.do(Txn{Read: []Range{{Key: leaseKey(l.id)}}}).Reads[0].one()
		return kv.Version
	}
	var copies []Txn
	asks := func(name lock.Resource) lock.Request {
		q := request(name)
		r.mu.Lock()
		r.copy = func(x Txn) bool {
			mine := writesHead(x, name)
			if mine {
				copies = append(copies, x)
			}
			return mine
		}
		r.mu.Unlock()
		if _, err := l.Ask(t.Context(), q); !errors.Is(err, lock.ErrUnavailable) {
			t.Fatal(err)
		}
		r.mu.Lock()
		r.copy = nil
		r.mu.Unlock()
		return q
	}
	withdraw := func(q lock.Request, writes bool) {
		t.Helper()
		before := version()
		if _, err := l.Withdraw(t.Context(), leasekit.Withdrawal{Ref: leasekit.Ref{Resource: q.Resource, ID: q.ID}, Unsure: true}); err != nil {
			t.Fatal(err)
		}
		if wrote := version() > before; wrote != writes {
			t.Errorf("%s: the lease's key was written: %t", q.Resource, wrote)
		}
		for _, x := range copies {
			if name := x.Read[0].Key; name == headKey(q.Resource) && m.do(x).Done {
				t.Errorf("a late copy of the request for %s was carried out", q.Resource)
			}
		}
	}
	first, second := asks("first"), asks("second")
	withdraw(first, true)
	withdraw(second, false)
	third := asks("third")
	withdraw(third, true)
	if len(copies) != 3 {
		t.Errorf("%d copies arrived", len(copies))
	}
}
