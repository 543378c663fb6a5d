package session

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

// together are those who share a quota, and others who do not. Each is NAMESPACE/ACCOUNT/POD; the namespace is
// the space.
var together = map[string]struct {
	limits       func(*Limits) *Quota
	ours, others []string
}{
	"space": {func(l *Limits) *Quota { return &l.PerSpace }, []string{"shop/orders/a", "shop/orders/b", "shop/other/c"}, []string{"bank/orders/a", "bank/orders/b"}},
	"service account": {func(l *Limits) *Quota { return &l.PerAccount }, []string{"shop/orders/a", "shop/orders/b", "shop/orders/c"},
		[]string{"shop/other/a", "shop/other/b", "bank/orders/a"}},
}

// podPeer is a pod.
func podPeer(name string) Peer {
	part := strings.Split(name, "/")
	return Peer{UID: 1000, Principal: "pod:" + part[0] + "/" + part[1] + "-" + part[2], Account: part[0] + "/" + part[1]}
}

// namespaceOf is the space of a pod.
func (s *sidecar) namespaceOf(name string) *Space {
	s.t.Helper()
	space, _, _ := strings.Cut(name, "/")
	sp, err := s.In(space)
	isErr(s.t, err, nil)
	return sp
}

// pod opens a session of a pod.
func (s *sidecar) pod(name string) (*Session, error) {
	return s.namespaceOf(name).Open(s.t.Context(), OpenRequest{Liveness: Stream, Peer: podPeer(name)})
}

// opened is pod, which must be possible.
func (s *sidecar) opened(name string) *Session {
	s.t.Helper()
	x, err := s.pod(name)
	isErr(s.t, err, nil)
	return x
}

// onQuotas runs a test with those who share a quota of each kind. A sidecar has one for each level that is not
// under test as well, which none of them reaches.
func onQuotas(t *testing.T, test func(e *env, sc *sidecar, kind string, ours, others []string), quota Quota) {
	for kind, x := range together {
		t.Run(kind, func(t *testing.T) {
			bubble(t, func(_ *testing.T, e *env) {
				most := Quota{100, 100, 100, 100, 100}
				sc := e.sidecar(func(o *Options) {
					o.Limits.PerSpace, o.Limits.PerAccount = most, most
					o.Limits.HoldsPerUID, o.Limits.DetachedPerUID = 3, 3
					*x.limits(&o.Limits) = quota
				})
				test(e, sc, kind, x.ours, x.others)
			})
		})
	}
}

// limited checks that an error is the one of a limit.
func limited(t *testing.T, err error, limit string, most int) {
	t.Helper()
	var l *LimitError
	if !errors.As(err, &l) || l.Limit != limit || l.Max != most {
		t.Errorf("%v, want %s, %d", err, limit, most)
	}
}

// TestQuotas: those of one space, or of one service account, have sessions and holds together, and take nothing
// from others. Who sees all spaces is in none.
func TestQuotas(t *testing.T) {
	onQuotas(t, func(e *env, sc *sidecar, kind string, ours, others []string) {
		t := e.t
		named := func(name string) AcquireRequest {
			return with(again(exclusive), func(r *AcquireRequest) { r.Resource = name })
		}
		a, b := sc.opened(ours[0]), sc.opened(ours[1])
		for range 2 { // what was refused leaves nothing
			_, err := sc.pod(ours[2])
			limited(t, err, "sessions per "+kind, 2)
		}
		all := []*Session{sc.session()}
		for _, name := range others {
			all = append(all, sc.opened(name))
		}

		must(t, a, named("1"))
		held := must(t, a, named("2"))
		must(t, a, named("2")) // counts once more
		_, err := a.Acquire(t.Context(), named("3"))
		limited(t, err, "holds per pod", 3)
		must(t, b, named("4"))
		for range 2 {
			for _, name := range []string{"5", "4"} {
				_, err = b.Acquire(t.Context(), named(name))
				limited(t, err, "holds per "+kind, 4)
			}
		}
		for i, s := range all {
			for n := range 2 {
				must(t, s, named(fmt.Sprintf("own-%d-%d", i, n)))
			}
		}
		for range 2 {
			if _, err := a.Release(t.Context(), held.LockID, ""); err != nil {
				t.Fatal(err)
			}
		}
		must(t, b, named("5"))

		counts := map[string][2]int{}
		sc.EachAccount(func(name string, sessions, holds int) { counts[name] = [2]int{sessions, holds} })
		if n := counts["shop/orders"]; n != [2]int{2, 3} {
			t.Errorf("counted: %v", counts)
		}
		a.Close()
		sc.opened(ours[2]).Close()
		b.Close()
		for _, s := range all {
			s.Close()
		}
		if len(sc.usages) != 0 {
			t.Errorf("left: %v", sc.usages)
		}
	}, Quota{Sessions: 2, Holds: 4})
}

// TestQuotaOfWaiters: those who share it have so many requests that wait, together. Who need not wait needs no
// place, and others are not held up.
func TestQuotaOfWaiters(t *testing.T) {
	onQuotas(t, func(e *env, sc *sidecar, kind string, ours, others []string) {
		t := e.t
		a, b, c := sc.opened(ours[0]), sc.opened(ours[1]), sc.opened(ours[2])
		held := must(t, a, again(exclusive))
		w1, w2 := begin(b, exclusive), begin(c, exclusive)
		for range 2 {
			for _, s := range []*Session{a, b, c} {
				_, err := s.Acquire(t.Context(), with(exclusive, func(r *AcquireRequest) { r.Resource = "free" }))
				limited(t, err, "waiters per "+kind, 2)
			}
		}
		must(t, a, again(exclusive)) // enters its hold
		if _, err := a.Release(t.Context(), held.LockID, ""); err != nil {
			t.Fatal(err)
		}
		for _, name := range others {
			s := sc.opened(name)
			must(t, s, with(exclusive, func(r *AcquireRequest) { r.Resource = "own" }))
			s.Close()
		}
		w1.cancel()
		if _, err := w1.wait(); !errors.Is(err, context.Canceled) {
			t.Errorf("given up: %v", err)
		}
		must(t, b, with(exclusive, func(r *AcquireRequest) { r.Resource = "free" }))
		a.Close()
		if _, err := w2.wait(); err != nil {
			t.Error(err)
		}
		for of, u := range sc.usages {
			if n := u.waits.Load(); n != 0 {
				t.Errorf("%v: %d wait", of, n)
			}
		}
	}, Quota{Waiters: 2})
}

// TestQuotaOfFlights: those who share it have so many requests in flight, together. A sixteenth is for who has none, a
// quarter more for what only lets go, an eighth more for looks alone, and others are not held up.
func TestQuotaOfFlights(t *testing.T) {
	onQuotas(t, func(e *env, sc *sidecar, kind string, ours, others []string) {
		t, limit := e.t, "requests in flight per "+kind
		var lands []func()
		fly := func(name string, keeps bool, want int) {
			t.Helper()
			for n := 0; ; n++ {
				land, err := sc.namespaceOf(name).Fly(podPeer(name), keeps)
				if err == nil && n < want {
					lands = append(lands, land)
					continue
				}
				limited(t, err, limit, 32)
				if n != want {
					t.Errorf("%s has %d more in flight, want %d", name, n, want)
				}
				return
			}
		}
		c := sc.opened(ours[2])
		sc.way.on(hang, opAcquire)
		waits, err := ask(c, "waits")
		isErr(t, err, nil)
		fly(ours[0], false, 29+4) // a sixteenth is kept; what is for looks alone takes nothing from others
		fly(ours[1], false, 1)
		_, err = ask(c, "one more")
		limited(t, err, limit, 32)
		fly(ours[0], true, 9)
		if n := c.usages[2].flights.Load(); n != 40 {
			t.Errorf("%d are in flight of the space, want 40", n)
		}
		for _, name := range others {
			land, err := sc.namespaceOf(name).Fly(podPeer(name), false)
			isErr(t, err, nil)
			lands = append(lands, land)
		}
		for _, land := range lands {
			land()
		}
		fly(ours[1], false, 29+4)
		for _, land := range lands[len(lands)-29-4:] {
			land()
		}
		waits.cancel()
		_, err = waits.wait()
		isErr(t, err, context.Canceled)
		c.Close()
		sc.way.on(nil, opAcquire)
		time.Sleep(2 * choreTimeout)
		synctest.Wait()
		if n := sc.Info().InFlight; len(sc.usages) != 0 || n != 0 {
			t.Errorf("left: %v, %d", sc.usages, n)
		}
	}, Quota{InFlight: 32})
}

// TestWhatLetsGoLeavesRoom: who has nothing in flight finds the sixteenth that is kept for it, however much there is of
// others that only lets go.
func TestWhatLetsGoLeavesRoom(t *testing.T) {
	const limit, sixteenth = 32, 2
	leavesRoom := func(t *testing.T, sc *sidecar, what, fills, first, second string) {
		t.Helper()
		var lands []func()
		fly := func(name string, keeps bool) error {
			if keeps {
				land, err := sc.namespaceOf(name).Fly(podPeer(name), true)
				if err == nil {
					lands = append(lands, land)
				}
				return err
			}
			// Not a look, which has room of its own.
			sc.mu.Lock()
			defer sc.mu.Unlock()
			all := sc.usagesOf(podPeer(name).Shares(sc.namespaceOf(name)))
			if full := sc.launch(all, all[0].flights.Load() > 0, 0); full != nil {
				sc.sweep(all)
				return full
			}
			lands = append(lands, func() {
				sc.mu.Lock()
				defer sc.mu.Unlock()
				sc.flights.Add(-1)
				for _, u := range all {
					u.flights.Add(-1)
				}
				sc.sweep(all)
			})
			return nil
		}
		for range limit - sixteenth {
			isErr(t, fly(fills, false), nil)
		}
		for range limit/quarter + sixteenth {
			isErr(t, fly(fills, true), nil)
		}
		limited(t, fly(fills, true), what, limit)
		for _, name := range []string{first, second} {
			isErr(t, fly(name, false), nil)
			limited(t, fly(name, false), what, limit) // it has something now
		}
		limited(t, fly(fills, false), what, limit)
		for _, land := range lands {
			land()
		}
		if len(sc.usages) != 0 || sc.flights.Load() != 0 || sc.letting.Load() != 0 {
			t.Errorf("left: %v, %d, %d", sc.usages, sc.flights.Load(), sc.letting.Load())
		}
	}
	onQuotas(t, func(e *env, sc *sidecar, kind string, ours, _ []string) {
		leavesRoom(e.t, sc, "requests in flight per "+kind, ours[0], ours[1], ours[2])
	}, Quota{InFlight: limit})
	t.Run("all", func(t *testing.T) {
		bubble(t, func(t *testing.T, e *env) {
			sc := e.sidecar(func(o *Options) { o.Limits.InFlight, o.Limits.InFlightPerUID = limit, 10*limit })
			leavesRoom(t, sc, "requests in flight of all apps", "shop/a/1", "bank/b/1", "bank/b/2")
		})
	})
	t.Run("a session", func(t *testing.T) {
		bubble(t, func(t *testing.T, e *env) {
			sc := e.sidecar(func(o *Options) { o.Limits.InFlight = 4 })
			s := sc.session()
			g := must(t, s, exclusive)
			sc.way.on(hang, opRelease)
			_, err := s.Release(context.Background(), g.LockID, "") // it goes on in the background
			isErr(t, err, nil)
			sc.way.on(nil, opRelease)
			time.Sleep(2 * choreTimeout)
			s.Close()
			synctest.Wait()
			if len(sc.usages) != 0 || sc.letting.Load() != 0 {
				t.Errorf("left: %v, %d", sc.usages, sc.letting.Load())
			}
		})
	})
}

// TestQuotaOfWhatIsLeft: what ended sessions have left to be released counts for those who share a quota, too, until
// the store has answered.
func TestQuotaOfWhatIsLeft(t *testing.T) {
	onQuotas(t, func(e *env, sc *sidecar, kind string, ours, others []string) {
		t := e.t
		sc.way.on(hang, opRelease)
		take := func(name string) error {
			s := sc.opened(name)
			defer s.Close()
			_, err := s.Acquire(t.Context(), with(exclusive, func(r *AcquireRequest) { r.Resource = name }))
			return err
		}
		for _, name := range ours[:2] {
			isErr(t, take(name), nil)
		}
		for range 2 {
			limited(t, take(ours[2]), "holds per "+kind, 2)
		}
		for _, name := range others {
			isErr(t, take(name), nil)
		}
		sc.way.on(nil, opRelease)
		time.Sleep(2 * choreTimeout)
		synctest.Wait()
		if len(sc.usages) != 0 {
			t.Errorf("left: %v", sc.usages)
		}
		isErr(t, take(ours[2]), nil)
	}, Quota{Holds: 2})
}

// TestQuotaOfDetached: those who share it have so many detached holds together. What is over does not count,
// however it ended, and nothing is kept of it.
func TestQuotaOfDetached(t *testing.T) {
	onQuotas(t, func(e *env, sc *sidecar, kind string, ours, others []string) {
		t := e.t
		two := e.sidecar()
		n := 0
		detach := func(s *Session, ttl time.Duration) (Detached, error) {
			n++
			g := must(t, s, with(detachable, func(r *AcquireRequest) { r.Resource = fmt.Sprint("r", n) }))
			d, err := s.Detach(t.Context(), g.LockID, ttl)
			if err != nil {
				_, err := s.Release(t.Context(), g.LockID, "")
				isErr(t, err, nil)
			}
			return d, err
		}
		a, b := sc.opened(ours[0]), sc.opened(ours[1])
		var all []Detached
		for _, s := range []*Session{a, b} {
			d, err := detach(s, time.Hour)
			isErr(t, err, nil)
			all = append(all, d)
		}
		for range 2 {
			for _, s := range []*Session{a, b} {
				_, err := detach(s, time.Hour)
				limited(t, err, "detached holds per "+kind, 2)
			}
		}
		for _, name := range others {
			s := sc.opened(name)
			d, err := detach(s, time.Hour)
			isErr(t, err, nil)
			isErr(t, s.space.ReleaseHandle(t.Context(), d.Handle), nil)
			s.Close()
		}
		for range 3 { // it is one, whoever attaches it, however often it is detached again
			g := must(t, a, attach(all[1]))
			d, err := a.Detach(t.Context(), g.LockID, time.Hour)
			isErr(t, err, nil)
			all[1] = d
		}
		sp, err := two.In("shop")
		isErr(t, err, nil)
		isErr(t, sp.ReleaseHandle(t.Context(), all[0].Handle), nil) // which this sidecar does not see
		d, err := detach(b, time.Hour)
		isErr(t, err, nil)
		_, err = detach(b, time.Hour)
		limited(t, err, "detached holds per "+kind, 2)
		for _, handle := range []string{all[1].Handle, d.Handle} {
			isErr(t, a.space.ReleaseHandle(t.Context(), handle), nil)
		}
		if len(sc.loose.of)+len(sc.loose.by) != 0 {
			t.Errorf("left: %v, %v", sc.loose.of, sc.loose.by)
		}
	}, Quota{Detached: 2})
}

// TestDetachedOfPodsThatCome: pods that come, detach a hold and go leave nothing behind when its time is over.
func TestDetachedOfPodsThatCome(t *testing.T) {
	bubble(t, func(t *testing.T, e *env) {
		sc := e.sidecar()
		for i := range 10 * firstSweep {
			s := sc.opened(fmt.Sprintf("shop/orders/job-%d", i))
			g := must(t, s, with(detachable, func(r *AcquireRequest) { r.Resource = fmt.Sprint(i) }))
			_, err := s.Detach(t.Context(), g.LockID, time.Minute)
			isErr(t, err, nil)
			s.Close()
			time.Sleep(10 * time.Second)
			if n := len(sc.loose.of); n > firstSweep {
				t.Fatalf("%d are kept", n)
			}
		}
		if n := len(sc.loose.by); n > firstSweep {
			t.Errorf("%d pods are kept", n)
		}
	})
}
