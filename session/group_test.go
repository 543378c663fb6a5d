package session

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/locksidecar/locksidecar/lock"
)

// several asks for resources together.
func several(names ...string) AcquireRequest {
	return AcquireRequest{Resources: names, Mode: lock.Exclusive, Wait: Forever}
}

// heldBy counts who holds resources of one letter.
func (e *env) heldBy(names string) (holders string) {
	e.t.Helper()
	for _, r := range strings.Split(names, "") {
		n, _ := e.holders(lock.Resource(r))
		holders += fmt.Sprint(n)
	}
	return holders
}

func TestSeveralAreOneHold(t *testing.T) {
	bubble(t, func(t *testing.T, e *env) {
		sc := e.sidecar()
		s, other := sc.session(), sc.session()
		q := with(several("c", "a", "b"), func(r *AcquireRequest) { r.RequestID = "1" })
		g := must(t, s, q)
		if len(g.Parts) != 3 || g.Resource != "" || g.Fence != 0 || g.Count != 1 || e.heldBy("abc") != "111" {
			t.Errorf("%+v, held by %s", g, e.heldBy("abc"))
		}
		for i, p := range g.Parts {
			st, err := sc.Get(t.Context(), p.Resource)
			if p.Resource != "abc"[i:i+1] || p.Fence == 0 || err != nil || st.Holders[0].ID != p.LockID || st.Holders[0].Fence != p.Fence {
				t.Errorf("part %d: %+v; in the store %+v, %v", i, p, st, err)
			}
		}
		retry := must(t, s, with(q, func(r *AcquireRequest) { r.Resources = []string{"a", "b", "c"} }))
		if retry.LockID != g.LockID || retry.Count != 1 || !slices.Equal(retry.Parts, g.Parts) {
			t.Errorf("retry: %+v", retry)
		}
		for _, not := range []AcquireRequest{
			with(q, func(r *AcquireRequest) { r.Resources = []string{"a", "b"} }),
			with(q, func(r *AcquireRequest) { r.Resource, r.Resources = "a", nil }),
		} {
			if _, err := s.Acquire(t.Context(), not); fieldOf(err) != "request_id" {
				t.Errorf("another request with its id: %v", err)
			}
		}
		one := begin(other, with(exclusive, func(r *AcquireRequest) { r.Resource = "b" }))
		for _, p := range g.Parts[:2] { // only the whole can be released
			_, err := s.Release(t.Context(), p.LockID, "")
			isErr(t, err, lock.ErrNotHolder)
			_, err = s.Downgrade(t.Context(), p.LockID)
			isErr(t, err, lock.ErrNotHolder)
			_, err = s.Extend(p.LockID, time.Second)
			isErr(t, err, lock.ErrNotHolder)
		}
		if one.over() {
			t.Error("a part is free")
		}
		n, err := s.Release(t.Context(), g.LockID, "")
		if n != 0 || err != nil || e.heldBy("ac") != "00" {
			t.Errorf("released: %d, %v, held by %s", n, err, e.heldBy("ac"))
		}
		if _, err := one.wait(); err != nil {
			t.Error(err)
		}
		other.Close()
		e.free()
	})
}

func TestSeveralAreChecked(t *testing.T) {
	bubble(t, func(t *testing.T, e *env) {
		s := e.sidecar().session()
		var many []string
		for i := range 17 {
			many = append(many, fmt.Sprint("r", i))
		}
		must(t, s, several(many[:16]...))
		for name, c := range map[string]struct {
			r       AcquireRequest
			refused string
		}{
			"one":        {several("a"), "resources"},
			"too many":   {several(many...), "resources"},
			"twice":      {several("b", "a", "b"), "resources"},
			"and one":    {with(several("a", "b"), func(r *AcquireRequest) { r.Resource = "c" }), "resources"},
			"an odd one": {several("a", "b\n"), "resource"},
			"reentrant":  {again(several("a", "b")), "reentrant"},
		} {
			if _, err := s.Acquire(t.Context(), c.r); fieldOf(err) != c.refused {
				t.Errorf("%s: %v", name, err)
			}
		}
	})
}

// Whoever cannot have all in time has none, however the wait ends.
func TestSeveralOrNone(t *testing.T) {
	bubble(t, func(t *testing.T, e *env) {
		sc := e.sidecar()
		must(t, sc.session(), named("b"))
		for name, c := range map[string]struct {
			wait time.Duration
			end  func(*Session, *pending)
			want error
		}{
			"try":       {0, nil, lock.ErrHeld},
			"wait":      {time.Second, nil, context.DeadlineExceeded},
			"gone":      {Forever, func(_ *Session, p *pending) { p.cancel() }, context.Canceled},
			"cancelled": {Forever, func(s *Session, _ *pending) { _ = s.Cancel(t.Context(), "1") }, context.Canceled},
			"ended":     {Forever, func(s *Session, _ *pending) { s.Close() }, ErrSessionClosed},
		} {
			s := sc.session()
			p := begin(s, with(several("c", "b", "a"), func(r *AcquireRequest) { r.Wait, r.RequestID = c.wait, "1" }))
			if c.end != nil {
				if e.heldBy("abc") != "110" {
					t.Errorf("%s: while it waits, held by %s", name, e.heldBy("abc"))
				}
				c.end(s, p)
			}
			_, err := p.wait()
			isErr(t, err, c.want)
			var held *lock.HeldError
			if errors.As(err, &held) && held.Status.Resource != "b" {
				t.Errorf("%s: %q is in the way", name, held.Status.Resource)
			}
			if sc.obs.resource != "b" {
				t.Errorf("%s: counted on %q", name, sc.obs.resource)
			}
			synctest.Wait()
			if e.heldBy("abc") != "010" {
				t.Errorf("%s: afterwards held by %s", name, e.heldBy("abc"))
			}
			if n := s.ledger.Size(); n != 0 {
				t.Errorf("%s: size %d", name, n)
			}
		}
	})
}

// Several and single holds in every order, at two sidecars, with connections that are
// cut: none waits for ever, and nothing is left. The arbiters hand single holds on.
func TestSeveralNeverDeadlock(t *testing.T) {
	for name, start := range map[string]func(*env) *sidecar{
		"store":   func(e *env) *sidecar { return e.sidecar() },
		"arbiter": func(e *env) *sidecar { sc, _ := e.arbitrated(); return sc },
	} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T, e *env) {
				one, two := start(e), start(e)
				one.way.on(flaky(7, mute), opAcquire, opRelease)
				two.way.on(flaky(5, down), opAcquire, opRelease)
				work := func(sc *sidecar, names ...string) *pending {
					p := &pending{done: make(chan struct{})}
					s := sc.session()
					go func() {
						defer close(p.done)
						defer s.Close()
						for range 30 {
							q := several(names...)
							if len(names) == 1 {
								q = named(names[0])
							}
							q.Wait = time.Hour
							g, err := s.Acquire(context.Background(), q)
							if err != nil {
								p.err = err
								return
							}
							time.Sleep(time.Millisecond)
							if _, err = s.Release(context.Background(), g.LockID, ""); err != nil {
								p.err = err
								return
							}
						}
					}()
					return p
				}
				for i, p := range []*pending{
					work(one, "a", "b"), work(two, "b", "a"), work(one, "c", "a"), work(two, "b", "c"), work(one, "c", "b", "a"),
					work(two, "a"), work(one, "b"), work(two, "c"),
				} {
					if _, err := p.wait(); err != nil {
						t.Errorf("worker %d: %v", i, err)
					}
				}
				time.Sleep(5 * time.Second)
				e.free()
			})
		})
	}
}

// flaky is f every nth time.
func flaky(n int, f fault) fault {
	turn := make(chan int, 1)
	turn <- 0
	return func(ctx context.Context, do func(context.Context) error) error {
		i := <-turn + 1
		turn <- i
		if i%n == 0 {
			return f(ctx, do)
		}
		return do(ctx)
	}
}

// When one of several is lost, all are. The app is told once, and the others are kept
// until it has let go, or its grace is over.
func TestSeveralAreLostTogether(t *testing.T) {
	for name, c := range map[string]struct {
		lose   func(*env, *sidecar, Grant)
		reason LostReason
		part   string
		grace  time.Duration
		kept   string // just after
	}{
		"forced": {func(_ *env, sc *sidecar, g Grant) {
			go func() { _, _ = sc.ForceRelease(context.Background(), "b", g.Parts[1].LockID, 5*time.Second) }()
		}, Forced, "b", 5 * time.Second, "111"},
		"forced at once": {func(_ *env, sc *sidecar, _ Grant) {
			_, _ = sc.ForceRelease(context.Background(), "a", "", 0)
		}, Forced, "a", 0, "011"},
		"vanished": {func(_ *env, sc *sidecar, g Grant) {
			_ = sc.way.last.Lease.Release(context.Background(), "c", g.Parts[2].LockID) // the store forgets it
			sc.way.say(lock.Event{Kind: lock.Vanished, Resource: "c", ID: g.Parts[2].LockID})
		}, StoreLost, "c", 0, "110"},
		"max_hold": {func(*env, *sidecar, Grant) {}, MaxHold, "c", DefaultLostGrace, "111"},
	} {
		for _, released := range []bool{true, false} {
			t.Run(fmt.Sprint(name, " released ", released), func(t *testing.T) {
				bubble(t, func(t *testing.T, e *env) {
					sc, other := e.sidecar(), e.sidecar()
					s := sc.session()
					q := several("a", "b", "c")
					if c.reason == MaxHold {
						q.MaxHold = time.Second
					}
					g := must(t, s, q)
					c.lose(e, sc, g)
					l := lostEvent(t, s)
					if l.LockID != g.LockID || l.Reason != c.reason || l.Resource != c.part || left(e, l.GraceEnd) != c.grace {
						t.Errorf("lost %+v", l)
					}
					synctest.Wait()
					if e.heldBy("abc") != c.kept {
						t.Errorf("just after the loss held by %s, want %s", e.heldBy("abc"), c.kept)
					}
					next := begin(other.session(), several("c", "b", "a"))
					began := e.now()
					if released {
						_, err := s.Release(t.Context(), g.LockID, "")
						isLost(t, err, c.reason)
					}
					if _, err := next.wait(); err != nil {
						t.Error(err)
					}
					want := max(c.grace, DefaultLostGrace)
					if released {
						want = 0
					}
					if took := e.now() - began; took != want {
						t.Errorf("the next one was granted after %s, want %s", took, want)
					}
					if lost, _, more := s.ledger.Loss(1); more {
						t.Errorf("told again: %+v", lost)
					}
				})
			})
		}
	}
}

// One that is lost before the last is granted: by force the wait is over, else it begins
// again with the first.
func TestPartIsLostWhileOthersAreWaitedFor(t *testing.T) {
	bubble(t, func(t *testing.T, e *env) {
		sc, other := e.sidecar(), e.sidecar()
		holds := other.session()
		b := must(t, holds, named("b"))
		s := sc.session()
		p := begin(s, several("a", "b"))
		if _, err := other.ForceRelease(t.Context(), "a", "", 0); err != nil {
			t.Error(err)
		}
		_, err := p.wait()
		isLost(t, err, Forced)

		p = begin(s, several("a", "b"))
		st, err := e.store.Get(t.Context(), "a")
		if err != nil || len(st.Holders) != 1 {
			t.Fatalf("%+v, %v", st, err)
		}
		first := st.Holders[0].ID
		sc.way.say(lock.Event{Kind: lock.Vanished, Resource: "a", ID: first})
		synctest.Wait()
		if _, err = holds.Release(t.Context(), b.LockID, ""); err != nil {
			t.Error(err)
		}
		g, err := p.wait()
		if err != nil || g.Parts[0].LockID == first || e.heldBy("ab") != "11" {
			t.Errorf("%+v, %v, held by %s", g, err, e.heldBy("ab"))
		}

		// The lease is over while it waits: all is asked for on the next one.
		b = must(t, other.session(), named("d"))
		p = begin(s, several("c", "d"))
		sc.way.on(once(leaseLost), opHeartbeat)
		time.Sleep(5 * time.Second)
		if p.over() {
			t.Errorf("%v", p.err)
		}
		for _, s := range other.all() {
			s.Close()
		}
		if g, err = p.wait(); err != nil || e.heldBy("cd") != "11" {
			t.Errorf("%+v, %v, held by %s", g, err, e.heldBy("cd"))
		}
		s.Close()
		synctest.Wait()
		e.free()
	})
}

// A downgrade and an extension are for all.
func TestSeveralAreChangedTogether(t *testing.T) {
	bubble(t, func(t *testing.T, e *env) {
		sc := e.sidecar()
		s, reads := sc.session(), sc.session()
		g := must(t, s, several("a", "b"))
		reader := begin(reads, with(several("b", "a"), func(r *AcquireRequest) { r.Mode = lock.Shared }))
		sc.way.on(once(mute), opDowngrade)
		down, err := s.Downgrade(t.Context(), g.LockID)
		if err != nil || down.Mode != lock.Shared || len(down.Parts) != 2 || down.Parts[0].Fence != g.Parts[0].Fence {
			t.Errorf("Downgrade = %+v, %v", down, err)
		}
		if _, err := reader.wait(); err != nil || e.heldBy("ab") != "22" {
			t.Errorf("%v, held by %s", err, e.heldBy("ab"))
		}
		if _, err := s.Extend(g.LockID, time.Second); err != nil {
			t.Error(err)
		}
		if l := lostEvent(t, s); l.Reason != MaxHold || l.LockID != g.LockID {
			t.Errorf("lost %+v", l)
		}
		time.Sleep(DefaultLostGrace)
		synctest.Wait()
		if e.heldBy("ab") != "11" {
			t.Errorf("held by %s", e.heldBy("ab"))
		}
	})
}

// Each resource counts toward the limits.
func TestSeveralHaveABudget(t *testing.T) {
	bubble(t, func(t *testing.T, e *env) {
		sc := e.sidecar(func(o *Options) { o.Limits = Limits{HoldsPerUID: 5, HoldsPerSession: 4} })
		a, b := sc.session(), sc.session()
		g := must(t, a, several("a", "b", "c"))
		_, err := a.Acquire(t.Context(), several("d", "e"))
		isErr(t, err, ErrLimit)
		p := begin(b, several("c", "d")) // what is not asked for yet counts, too
		_, err = b.Acquire(t.Context(), named("e"))
		isErr(t, err, ErrLimit)
		if _, err = a.Release(t.Context(), g.LockID, ""); err != nil {
			t.Error(err)
		}
		if _, err := p.wait(); err != nil {
			t.Error(err)
		}
		must(t, a, several("x", "y", "z"))
		b.Close()
		a.Close()
		if u := sc.session().usages[0]; u.holds.Load() != 0 {
			t.Errorf("%d holds are counted", u.holds.Load())
		}
	})
}
