package shards

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/locksidecar/locksidecar/lock"
	"github.com/locksidecar/locksidecar/session"
	"github.com/locksidecar/locksidecar/session/outcome"
)

// passes lets fake time pass, and checks all the while that the sidecar's lease can be relied on.
func (s *sidecar) passes(d time.Duration) {
	s.e.t.Helper()
	for end := s.e.clock() + d; s.e.clock() < end; time.Sleep(20 * time.Millisecond) {
		if s.Info().LeaseValidFor <= 0 {
			s.e.t.Fatalf("at %s the lease cannot be relied on: %+v", s.e.clock(), s.Info())
		}
	}
}

// TestSilentShard: a shard that does not answer loses only its holds, before it could give them to others; and
// it serves locks again when it is back.
func TestSilentShard(t *testing.T) {
	for name, fault := range map[string]int32{"hangs": hangs, "refuses": refuses} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(e *env) {
				s, other := e.sidecar(0, 1, 2), e.sidecar(0, 1, 2)
				a, b := s.app(), other.app()
				losses := lost(e, a)
				id := e.clock()
				gone := s.take(a, s.named(1))
				s.take(a, s.named(0))
				s.take(a, s.named(2))
				s.passes(ttl)
				s.roads[1].fault.Store(fault)
				next := make(chan time.Duration, 1)
				go func() {
					other.take(b, s.named(1))
					next <- e.clock()
				}()
				waiter := make(chan session.Grant, 1)
				go func() { waiter <- s.take(a, s.named(1)+"") }()
				s.passes(4 * ttl)
				if len(losses) != 1 {
					t.Fatalf("%d losses were told, want 1", len(losses))
				}
				l := <-losses
				if l.LockID != gone.LockID || l.Reason.String() != "LEASE_EXPIRED" {
					t.Errorf("lost %+v, want %s, LEASE_EXPIRED", l, gone.LockID)
				}
				at := <-next
				if l.GraceEnd <= id || at < l.GraceEnd {
					t.Errorf("the next one had it at %s, before the grace that was told was over, %s", at, l.GraceEnd)
				}
				for _, name := range []string{s.named(0), s.named(2)} {
					if st, err := other.Get(e.t.Context(), name); err != nil || len(st.Holders) != 1 {
						t.Errorf("%s: %+v, %v, want one holder", name, st, err)
					}
				}
				s.roads[1].fault.Store(fine)
				s.passes(ttl)
				b.Close()
				select {
				case <-waiter:
				case <-time.After(time.Minute):
					t.Error("the shard is back, and nobody has its lock")
				}
			})
		})
	}
}

// TestShardForgets: what the store says is over is lost at once, and a new lease is opened there.
func TestShardForgets(t *testing.T) {
	bubble(t, func(e *env) {
		s := e.sidecar(0, 1, 2)
		a := s.app()
		losses := lost(e, a)
		gone := s.take(a, s.named(1))
		s.take(a, s.named(2))
		s.roads[1].fault.Store(forgets)
		s.passes(ttl / 2)
		s.roads[1].fault.Store(fine)
		s.passes(3 * ttl)
		if len(losses) != 1 {
			t.Fatalf("%d losses were told, want 1", len(losses))
		}
		if l := <-losses; l.LockID != gone.LockID || l.Reason != session.StoreLost || l.GraceEnd != 0 {
			t.Errorf("lost %+v, want %s, STORE_LOST, at once", l, gone.LockID)
		}
		s.take(a, s.named(1))
	})
}

// TestSeveralAreLostTogether: of several that were taken at once, those at other shards are kept for a grace
// and then released.
func TestSeveralAreLostTogether(t *testing.T) {
	bubble(t, func(e *env) {
		s, other := e.sidecar(0, 1, 2), e.sidecar(0, 1, 2)
		a := s.app()
		losses := lost(e, a)
		names := []string{s.named(0), s.named(1)}
		if _, err := a.Acquire(e.t.Context(), session.AcquireRequest{Resources: names, Mode: lock.Exclusive, Wait: time.Minute}); err != nil {
			t.Fatal(err)
		}
		s.roads[1].fault.Store(hangs)
		s.passes(3 * ttl)
		if len(losses) != 1 {
			t.Errorf("%d losses were told, want 1 for both", len(losses))
		}
		for _, name := range names {
			other.take(other.app(), name)
		}
	})
}

// TestAllShardsSilent: then nobody is to blame, and the lease ends as that of one store does.
func TestAllShardsSilent(t *testing.T) {
	bubble(t, func(e *env) {
		s := e.sidecar(0, 1, 2)
		a := s.app()
		losses := lost(e, a)
		for i := range s.roads {
			s.take(a, s.named(i))
		}
		for _, r := range s.roads {
			r.fault.Store(refuses)
		}
		time.Sleep(ttl)
		if len(losses) != 3 {
			t.Errorf("%d losses were told, want 3", len(losses))
		}
		for _, r := range s.roads {
			r.fault.Store(fine)
		}
		time.Sleep(ttl)
		for i := range s.roads {
			s.take(s.app(), s.named(i))
		}
	})
}

// TestFrozenSidecar: a sidecar that stood still for less than a lease lives loses nothing, and one that
// stood still for longer loses all.
func TestFrozenSidecar(t *testing.T) {
	for freeze, want := range map[time.Duration]int{ttl * 6 / 10: 0, 2 * ttl: 3} {
		t.Run(freeze.String(), func(t *testing.T) {
			bubble(t, func(e *env) {
				s := e.sidecar(0, 1, 2)
				a := s.app()
				losses := lost(e, a)
				for i := range s.roads {
					s.take(a, s.named(i))
				}
				s.passes(ttl)
				e.jump.Add(int64(freeze))
				time.Sleep(2 * ttl)
				if len(losses) != want {
					t.Errorf("%d losses were told, want %d", len(losses), want)
				}
			})
		})
	}
}

// TestShardIsAwayAtFirst: a shard that does not answer at first holds up no other, and joins later.
func TestShardIsAwayAtFirst(t *testing.T) {
	bubble(t, func(e *env) {
		e.sidecar(0, 1, 2) // founds the set
		e.away = 1
		s := e.sidecar(0, 1, 2)
		before := e.clock()
		a := s.app()
		s.take(a, s.named(0))
		if took := e.clock() - before; took > 2*time.Second {
			t.Errorf("the first lock took %s", took)
		}
		try := session.AcquireRequest{Resource: s.named(1), Mode: lock.Exclusive, Wait: time.Second}
		if _, err := a.Acquire(e.t.Context(), try); !errors.Is(err, lock.ErrUnavailable) {
			t.Errorf("Acquire at a shard that is away = %v", err)
		}
		s.roads[1].fault.Store(fine)
		s.take(a, s.named(1))
		s.passes(3 * ttl)
		if want := []News{{Shard: "b"}}; len(s.news) != 4 || s.news[2].Shard != "b" || s.news[2].Why == nil || s.news[3] != want[0] {
			t.Errorf("told %+v, want that a and c have a lease, that b is away, and then that it has one", s.news)
		}
	})
}

// TestListWithoutAShard: what is missing is told, in about a second, and watches see all others.
func TestListWithoutAShard(t *testing.T) {
	bubble(t, func(e *env) {
		s := e.sidecar(0, 1, 2)
		a := s.app()
		for i := range s.roads {
			s.take(a, s.named(i))
		}
		s.roads[1].fault.Store(hangs)
		before := e.clock()
		list, err := s.backend.List(e.t.Context(), "", lock.Page{Limit: 10})
		var partial *lock.PartialError
		if !errors.As(err, &partial) || !errors.Is(err, lock.ErrUnavailable) || len(partial.Missing) != 1 || partial.Missing[0] != "b" {
			t.Fatalf("List = %v, want a PartialError for b", err)
		}
		if len(list) != 2 || partial.Lacks(list[0].Resource) || !partial.Lacks(lock.Resource(s.named(1))) {
			t.Errorf("List has %+v", list)
		}
		if took := e.clock() - before; took > 2*time.Second {
			t.Errorf("List took %s", took)
		}
		records, err := s.backend.ListRecords(e.t.Context(), "", lock.Page{Limit: 10})
		if !errors.As(err, &partial) || len(partial.Missing) != 1 || partial.Missing[0] != "b" {
			t.Errorf("ListRecords = %v, want a PartialError for b", err)
		}
		s.roads[1].fault.Store(fine)
		again, err := s.backend.ListRecords(e.t.Context(), "", lock.Page{Limit: 10})
		if err != nil || len(records)+len(again) != 0 {
			t.Errorf("ListRecords = %+v, %+v, %v: the records of the set are nobody's", records, again, err)
		}
	})
}

// TestPagesWithoutAShard: only one of the pages of a list waits for a shard that does not answer.
func TestPagesWithoutAShard(t *testing.T) {
	bubble(t, func(e *env) {
		s := e.sidecar(0, 1, 2)
		a := s.app()
		for _, name := range s.several(0, 20) {
			s.take(a, name)
		}
		s.roads[1].fault.Store(hangs)
		began := e.clock()
		page, found := lock.Page{Limit: 2}, 0
		for {
			list, err := s.backend.List(e.t.Context(), "", page)
			var partial *lock.PartialError
			if !errors.As(err, &partial) || len(partial.Missing) != 1 || partial.Missing[0] != "b" {
				t.Fatalf("List = %v, want a PartialError for b", err)
			}
			if len(list) == 0 {
				break
			}
			found += len(list)
			page.After = list[len(list)-1].Resource
		}
		if took := e.clock() - began; found != 20 || took > 2*time.Second {
			t.Errorf("%d of 20 locks were listed, in %s", found, took)
		}
		s.roads[1].fault.Store(fine)
		if _, err := s.backend.List(e.t.Context(), "", lock.Page{Limit: 2}); err != nil {
			t.Errorf("the shard is back, and a list = %v", err)
		}
		if _, err := s.backend.List(e.t.Context(), "", page); err != nil {
			t.Errorf("the shard has answered to the first page, and the next = %v", err)
		}
	})
}

// TestWatchWithoutAShard: what the shard has that does not answer stays as it was seen last, and changes at
// the others are seen.
func TestWatchWithoutAShard(t *testing.T) {
	bubble(t, func(e *env) {
		s, other := e.sidecar(0, 1, 2), e.sidecar(0, 1, 2)
		a := other.app()
		there := other.take(a, other.named(0))
		other.take(a, other.named(1))
		ctx, cancel := context.WithCancel(e.t.Context())
		defer cancel()
		changes, done := make(chan session.WatchEvent, 100), make(chan struct{})
		go func() {
			defer close(done)
			_ = s.Watch(ctx, "", 0, func(w session.WatchEvent) error { changes <- w; return nil })
		}()
		time.Sleep(3 * time.Second)
		if len(changes) != 3 { // two locks, and that these are all
			t.Fatalf("%d events at first, want 3", len(changes))
		}
		for range 3 {
			<-changes
		}
		s.roads[1].fault.Store(hangs)
		time.Sleep(10 * time.Second)
		if _, err := a.Release(e.t.Context(), there.LockID, ""); err != nil {
			t.Fatal(err)
		}
		time.Sleep(10 * time.Second)
		var told []string
		for len(changes) > 0 {
			if w := <-changes; w.Kind == session.Missing {
				told = append(told, w.Lacks.Names()...)
			} else if string(w.Status.Resource) != other.named(0) {
				t.Errorf("the watch says %+v of what it cannot see", w)
			} else if w.Kind == session.Free {
				cancel()
			}
		}
		if ctx.Err() == nil {
			t.Error("the watch has not seen the release at a shard that answers")
		}
		if len(told) != 1 || told[0] != "b" {
			t.Errorf("the watch misses %v, want b, told once", told)
		}
		<-done
	})
}

// TestWatchBeginsWithoutAShard: it says first what it cannot see, and tells that when it can.
func TestWatchBeginsWithoutAShard(t *testing.T) {
	bubble(t, func(e *env) {
		s, other := e.sidecar(0, 1, 2), e.sidecar(0, 1, 2)
		a := other.app()
		here, there := other.named(0), other.named(1)
		other.take(a, here)
		other.take(a, there)
		s.roads[1].fault.Store(hangs)
		ctx, cancel := context.WithCancel(e.t.Context())
		defer cancel()
		changes, done := make(chan session.WatchEvent, 100), make(chan struct{})
		go func() {
			defer close(done)
			_ = s.Watch(ctx, "", 0, func(w session.WatchEvent) error { changes <- w; return nil })
		}()
		time.Sleep(10 * time.Second)
		s.roads[1].fault.Store(fine)
		time.Sleep(10 * time.Second)
		cancel()
		<-done
		close(changes)
		var told []string
		for w := range changes {
			told = append(told, fmt.Sprint(w.Kind, w.Status.Resource, w.Lacks.Names()))
		}
		want := fmt.Sprint([]string{
			fmt.Sprint(session.Missing, "", []string{"b"}), fmt.Sprint(session.Current, here, []string{}), fmt.Sprint(session.Synced, "", []string{}),
			fmt.Sprint(session.Missing, "", []string{}), fmt.Sprint(session.Changed, there, []string{}),
		})
		if fmt.Sprint(told) != want {
			t.Errorf("told %v, want %s", told, want)
		}
	})
}

// TestOutcomesWithoutAShard: those of the others come, with the name of the one that is missing.
func TestOutcomesWithoutAShard(t *testing.T) {
	bubble(t, func(e *env) {
		s := e.sidecar(0, 1, 2)
		a := s.app()
		for i := range s.roads {
			q := session.AcquireRequest{Resource: s.named(i), Mode: lock.Exclusive, Wait: time.Minute, Once: &outcome.Wish{Keep: time.Hour}}
			g, err := a.Acquire(e.t.Context(), q)
			if err != nil {
				t.Fatal(err)
			}
			if _, err := a.Conclude(e.t.Context(), g.LockID, "", outcome.Failed, ""); err != nil {
				t.Fatal(err)
			}
		}
		s.roads[1].fault.Store(refuses)
		list, next, err := s.Outcomes(e.t.Context(), "", "", 10)
		var partial *lock.PartialError
		if !errors.As(err, &partial) || len(partial.Missing) != 1 || partial.Missing[0] != "b" || !partial.Lacks(lock.Resource(s.named(1))) {
			t.Fatalf("Outcomes = %v, want a PartialError for b", err)
		}
		if len(list) != 2 || next != "" {
			t.Errorf("%d outcomes, and more after %q", len(list), next)
		}
	})
}

// TestShardCarriesOutLate: a request reaches a shard when its lease there was given up already. What it is granted then
// ends with that lease. So it is not what the app gets, which waits on.
func TestShardCarriesOutLate(t *testing.T) {
	bubble(t, func(e *env) {
		s, other := e.sidecar(0, 1), e.sidecar(0, 1)
		a, b := s.app(), other.app()
		losses := lost(e, a)
		s.passes(ttl)
		s.roads[1].fault.Store(freezes)
		name := s.named(1)
		got := make(chan error, 1)
		go func() {
			_, err := a.Acquire(e.t.Context(), session.AcquireRequest{Resource: name, Mode: lock.Exclusive, Wait: time.Minute})
			got <- err
		}()
		for !s.away("b") {
			s.passes(20 * time.Millisecond)
		}
		s.roads[1].goOn()
		if err := <-got; err != nil {
			t.Errorf("the shard is back, and nobody has its lock: %v", err)
		}
		ctx, cancel := context.WithTimeout(e.t.Context(), 3*ttl)
		defer cancel()
		if _, err := b.Acquire(ctx, session.AcquireRequest{Resource: name, Mode: lock.Exclusive, Wait: time.Hour}); err == nil {
			t.Errorf("broken law: two have %s, and the first one was told of %d losses", name, len(losses))
		}
		if len(losses) > 0 {
			t.Errorf("lost %+v, of a shard that answers", <-losses)
		}
	})
}

// away reports whether the latest news of a shard is that it is away.
func (s *sidecar) away(shard string) (away bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, n := range s.news {
		if n.Shard == shard {
			away = n.Why != nil
		}
	}
	return away
}

// TestDeadlockBesideASilentShard: many who hold something at a shard that does not answer wait for another lock. A
// deadlock at another shard is found all the same.
func TestDeadlockBesideASilentShard(t *testing.T) {
	bubble(t, func(e *env) {
		s := e.sidecar(0, 1)
		a := s.app()
		take := func(owner int, name string) error {
			_, err := a.Acquire(e.t.Context(), session.AcquireRequest{
				Resource: name, Mode: lock.Exclusive, Owner: fmt.Sprint(owner), Wait: 10 * time.Minute,
			})
			return err
		}
		const many = 100
		names := s.several(0, 3)
		for i, name := range append(s.several(1, many), names...) {
			if err := take(i, name); err != nil {
				t.Fatal(err)
			}
		}
		s.roads[1].fault.Store(hangs)
		ended := make(chan error, many+2)
		for i := range many {
			go func() { ended <- take(i, names[2]) }()
		}
		s.passes(2 * time.Second) // they are looked into
		began := e.clock()
		go func() { ended <- take(many, names[1]) }()
		go func() { ended <- take(many+1, names[0]) }()
		err := <-ended
		if took := e.clock() - began; !errors.Is(err, session.ErrDeadlock) || took > ttl {
			t.Errorf("after %s: %v, want a deadlock within %s", took, err, ttl)
		}
		a.Close()
		for range many + 1 {
			if err := <-ended; err == nil {
				t.Error("granted, though the session was closed")
			}
		}
		s.roads[1].fault.Store(fine)
	})
}

// TestReleasesBesideASilentShard: apps end that hold many locks at a shard which does not answer, and one at another
// shard. That one is released at once.
func TestReleasesBesideASilentShard(t *testing.T) {
	for name, apps := range map[string]int{"OneApp": 1, "ManyApps": 1000} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(e *env) {
				s, other := e.sidecar(0, 1), e.sidecar(0, 1)
				var all []*session.Session
				for i, name := range s.several(1, 1000) {
					if i < apps {
						all = append(all, s.app())
					}
					s.take(all[i%apps], name)
				}
				s.take(all[apps-1], s.named(0))
				s.roads[1].fault.Store(hangs)
				for _, a := range all {
					a.Close()
				}
				began := e.clock()
				other.take(other.app(), other.named(0))
				if took := e.clock() - began; took > time.Second {
					t.Errorf("the lock at a shard that answers was free after %s", took)
				}
				s.roads[1].fault.Store(fine)
			})
		})
	}
}
