package session

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/locksidecar/locksidecar/lock"
)

// detachable is a request for a hold that can be detached.
var detachable = with(exclusive, func(r *AcquireRequest) { r.Detachable = true })

// attach is a request for the hold of a handle.
func attach(d Detached) AcquireRequest {
	return AcquireRequest{Handle: d.Handle, Mode: lock.Exclusive, Wait: Forever}
}

// take acquires and detaches.
func take(t *testing.T, s *Session, ttl time.Duration) (Grant, Detached) {
	t.Helper()
	g := must(t, s, detachable)
	d, err := s.Detach(t.Context(), g.LockID, ttl)
	isErr(t, err, nil)
	return g, d
}

// TestDetach: what one app has taken another one at another sidecar finishes; a waiter has it
// when that one releases it, and not before.
func TestDetach(t *testing.T) {
	bubble(t, func(t *testing.T, e *env) {
		one, two := e.sidecar(), e.sidecar()
		s, worker, other := one.session(), two.session(), two.session()
		g, d := take(t, s, time.Minute)
		if d.Fence != g.Fence || d.Resource != "r" || d.Mode != lock.Exclusive || d.Until != e.now()+time.Minute || strings.Contains(d.Handle, "r ") {
			t.Errorf("detached as %+v", d)
		}
		if _, err := s.Release(t.Context(), g.LockID, ""); !errors.Is(err, lock.ErrNotHolder) {
			t.Errorf("Release of what is detached: %v", err)
		}
		w := begin(other, exclusive)
		s.Close()
		_ = one.stop()
		time.Sleep(20 * time.Second)
		if st, err := two.Get(t.Context(), "r"); err != nil || len(st.Holders) != 1 || !st.Holders[0].Detached || st.Holders[0].Kept != 40*time.Second {
			t.Errorf("shown as %+v, %v", st.Holders, err)
		}
		a := must(t, worker, attach(d))
		if a.Fence != g.Fence || a.LockID == g.LockID || a.Resource != "r" || a.End != e.now()+40*time.Second || a.Until > a.End {
			t.Errorf("attached as %+v", a)
		}
		if w.over() {
			t.Error("a waiter was granted what is attached")
		}
		if n, err := worker.Release(t.Context(), a.LockID, ""); n != 0 || err != nil {
			t.Errorf("Release: %d, %v", n, err)
		}
		next, err := w.wait()
		isErr(t, err, nil)
		if next.Fence <= g.Fence {
			t.Errorf("broken law: fence %d after %d", next.Fence, g.Fence)
		}
		if _, err := worker.Acquire(t.Context(), attach(d)); !errors.Is(err, lock.ErrNoHandle) {
			t.Errorf("a handle that was used up: %v", err)
		}
	})
}

// TestDetachEnds: what becomes of a hold that is attached, when its app, its sidecar or its session ends
// otherwise than by a release: it is detached again.
func TestDetachEnds(t *testing.T) {
	for name, end := range map[string]func(sc *sidecar, s *Session){
		"session": func(_ *sidecar, s *Session) { s.Close() },
		"sidecar": func(sc *sidecar, _ *Session) { _ = sc.stop() },
		"keep-alive": func(_ *sidecar, s *Session) {
			time.Sleep(5 * time.Second)
			<-s.Done()
		},
	} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T, e *env) {
				one, two := e.sidecar(), e.sidecar()
				s := one.session(func(r *OpenRequest) {
					if name == "keep-alive" {
						r.TTL = 2 * time.Second
					}
				})
				_, d := take(t, s, time.Minute)
				a := must(t, s, attach(d))
				end(one, s)
				synctest.Wait()
				if st, err := two.Get(t.Context(), "r"); err != nil || len(st.Holders) != 1 || !st.Holders[0].Detached {
					t.Errorf("shown as %+v, %v", st.Holders, err)
				}
				b := must(t, two.session(), attach(d))
				if b.Fence != a.Fence || b.End != a.End {
					t.Errorf("attached as %+v after %+v", b, a)
				}
			})
		})
	}
}

// TestDetachCancelled: an attach that is given up leaves it detached.
func TestDetachCancelled(t *testing.T) {
	bubble(t, func(t *testing.T, e *env) {
		sc := e.sidecar()
		s := sc.session()
		_, d := take(t, s, time.Minute)
		must(t, s, with(attach(d), func(r *AcquireRequest) { r.RequestID = "1" }))
		isErr(t, s.Cancel(t.Context(), "1"), nil)
		must(t, sc.session(), attach(d))
	})
}

// TestDetachOver: the app to which it is attached is told when its time is over, and then others have it.
func TestDetachOver(t *testing.T) {
	bubble(t, func(t *testing.T, e *env) {
		one, two := e.sidecar(), e.sidecar()
		s := one.session()
		_, d := take(t, s, 10*time.Second)
		a := must(t, s, attach(d))
		began := e.now()
		w := begin(two.session(), exclusive)
		// An end of its own is nearer, and no later than the handle's.
		if g, err := s.Extend(a.LockID, time.Hour); err != nil || g.Until > d.Until {
			t.Errorf("Extend: %+v, %v", g, err)
		}
		// Extended here, it is told so.
		if got, err := one.ExtendHandle(t.Context(), d.Handle, 20*time.Second); err != nil || got.Until != began+20*time.Second || got.Fence != a.Fence || got.Resource != "r" {
			t.Errorf("ExtendHandle: %+v, %v", got, err)
		}
		l := lostEvent(t, s)
		if l.Reason != MaxHold || e.now() != began+20*time.Second || l.GraceEnd != e.now()+DefaultLostGrace {
			t.Errorf("lost after %s: %+v", e.now()-began, l)
		}
		if w.over() {
			t.Error("granted in its grace")
		}
		_, err := s.Release(t.Context(), a.LockID, "")
		isLost(t, err, MaxHold)
		_, err = w.wait()
		isErr(t, err, nil)
		if e.now() != began+20*time.Second {
			t.Errorf("granted after %s", e.now()-began)
		}
	})
}

// TestAttachWithMaxHold: what is attached with an end of its own, or is extended to one, says that end, where it comes before the time of
// its handle is over.
func TestAttachWithMaxHold(t *testing.T) {
	bubble(t, func(t *testing.T, e *env) {
		sc := e.sidecar()
		s := sc.session()
		_, d := take(t, s, time.Minute)
		a := must(t, s, with(attach(d), func(r *AcquireRequest) { r.MaxHold = 3 * time.Second }))
		if want := e.now() + 3*time.Second; a.End != want || a.Until > want {
			t.Errorf("attached until %v, and to end at %v, want %v", a.Until, a.End, want)
		}
		for _, extend := range []time.Duration{2 * time.Second, 4 * time.Second, time.Hour} {
			want := min(e.now()+extend, d.Until)
			if g, err := s.Extend(a.LockID, extend); err != nil || g.End != want || g.Until > want {
				t.Errorf("extended by %v: until %v, and to end at %v, want %v; %v", extend, g.Until, g.End, want, err)
			}
		}
		if l := lostEvent(t, s); l.Reason != MaxHold || e.now() != d.Until {
			t.Errorf("lost at %v: %+v, want at %v", e.now(), l, d.Until)
		}
	})
}

// TestAttachWithMaxHoldAndMoreTime: more time for its handle is no more time for the app, which has an end of its own.
func TestAttachWithMaxHoldAndMoreTime(t *testing.T) {
	for name, limited := range map[string]func(*testing.T, *Session, Detached, time.Duration) Grant{
		"acquired": func(t *testing.T, s *Session, d Detached, own time.Duration) Grant {
			return must(t, s, with(attach(d), func(r *AcquireRequest) { r.MaxHold = own }))
		},
		"extended": func(t *testing.T, s *Session, d Detached, own time.Duration) Grant {
			g, err := s.Extend(must(t, s, attach(d)).LockID, own)
			isErr(t, err, nil)
			return g
		},
	} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T, e *env) {
				const own = 20 * time.Second
				sc := e.sidecar()
				s := sc.session()
				_, d := take(t, s, 10*time.Second)
				end := e.now() + own
				if g := limited(t, s, d, own); g.End != d.Until {
					t.Errorf("to end at %v, want %v", g.End, d.Until)
				}
				if _, err := sc.ExtendHandle(t.Context(), d.Handle, time.Hour); err != nil {
					t.Fatal(err)
				}
				if l := lostEvent(t, s); l.Reason != MaxHold || e.now() != end {
					t.Errorf("lost at %v: %+v, want at %v", e.now(), l, end)
				}
				must(t, sc.session(), attach(d)) // it is detached again
			})
		})
	}
}

// TestDetachAgain: what is attached can be detached again, under another handle.
func TestDetachAgain(t *testing.T) {
	bubble(t, func(t *testing.T, e *env) {
		sc := e.sidecar()
		s := sc.session()
		_, d := take(t, s, time.Minute)
		a := must(t, s, attach(d))
		if _, err := s.Downgrade(t.Context(), a.LockID); fieldOf(err) != "lock_id" {
			t.Errorf("Downgrade of what is attached: %v", err)
		}
		next, err := s.Detach(t.Context(), a.LockID, time.Minute)
		isErr(t, err, nil)
		if _, err := s.Acquire(t.Context(), attach(d)); !errors.Is(err, lock.ErrNoHandle) {
			t.Errorf("the handle before: %v", err)
		}
		must(t, s, attach(next))
	})
}

// TestDetachUnknown: where the store does not answer, the hold is over, and nothing stays detached; where it answers
// later, the hold is detached.
func TestDetachUnknown(t *testing.T) {
	for name, f := range map[string]fault{"not done": down, "done": mute} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T, e *env) {
				sc := e.sidecar()
				s := sc.session()
				sc.way.on(once(f), opDetach)
				_, d := take(t, s, time.Minute)
				a := must(t, s, attach(d))
				sc.way.on(f, opDetach)
				if _, err := s.Detach(t.Context(), a.LockID, time.Hour); !errors.Is(err, lock.ErrUnavailable) {
					t.Errorf("Detach: %v", err)
				}
				sc.way.on(nil, opDetach)
				must(t, s, waiting(exclusive, 10*time.Second))
			})
		})
	}
}

// TestDetachLeaseOver: the lease is over before the store has answered to a release, or to detach. What is left is ended
// on the next lease, and does not keep others out until its time is over; what somebody has attached meanwhile stays.
func TestDetachLeaseOver(t *testing.T) {
	release := func(t *testing.T, s *Session, g Grant) {
		if n, err := s.Release(t.Context(), g.LockID, ""); n != 0 || err != nil {
			t.Errorf("Release: %d, %v", n, err)
		}
	}
	detach := func(t *testing.T, s *Session, g Grant) {
		if _, err := s.Detach(t.Context(), g.LockID, 24*time.Hour); err == nil {
			t.Error("Detach: no error")
		}
	}
	others := []string{opOpen, opAcquire, opRelease, opHandle, opHeartbeat, opGet, opList, opClose}
	for name, c := range map[string]struct {
		f, others fault
		end       func(*testing.T, *Session, Grant)
		taken     bool // another app attaches it before the store answers again
	}{
		"release":                        {down, down, release, false},
		"release, and the lease is over": {inTurn(down, leaseLost), nil, release, false},
		"release, and it is attached":    {down, down, release, true},
		"detach":                         {inTurn(mute, down), down, detach, false},
		"detach, and the lease is over":  {inTurn(mute, leaseLost), nil, detach, false},
		"detach, not done":               {down, down, detach, false},
	} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T, e *env) {
				sc, other := e.sidecar(), e.sidecar().session()
				s := sc.session()
				_, d := take(t, s, 24*time.Hour)
				a := must(t, s, attach(d))
				sc.way.on(c.f, opDetach)
				sc.way.on(c.others, others...)
				c.end(t, s, a)
				time.Sleep(30 * time.Second)
				if c.taken {
					must(t, other, attach(d))
				}
				sc.way.on(nil, append(others, opDetach)...)
				time.Sleep(10 * time.Second)
				if !c.taken {
					e.free()
				} else if holders, _ := e.holders("r"); holders != 1 {
					t.Error("what another app has attached is gone")
				}
				must(t, s, with(exclusive, func(r *AcquireRequest) { r.Resource = "another" })) // it has a lease again
			})
		})
	}
}

// TestDetachLost: the lease is over before what was attached is detached under another handle. That is told, and it
// is what it was.
func TestDetachLost(t *testing.T) {
	bubble(t, func(t *testing.T, e *env) {
		sc, other := e.sidecar(), e.sidecar().session()
		s := sc.session()
		_, d := take(t, s, time.Hour)
		a := must(t, s, attach(d))
		sc.way.on(inTurn(leaseLost, once(leaseLost)), opDetach) // also when it is cleaned up
		_, err := s.Detach(t.Context(), a.LockID, time.Hour)
		isLost(t, err, LeaseLost)
		time.Sleep(30 * time.Second)
		must(t, other, attach(d))
	})
}

// TestDetachDowngraded: what was downgraded is attached as it is in the store. Where that is not known, it is not
// detached.
func TestDetachDowngraded(t *testing.T) {
	for name, f := range map[string]fault{"not done": down, "done": mute} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T, e *env) {
				sc := e.sidecar()
				s := sc.session()
				g := must(t, s, detachable)
				sc.way.on(f, opDowngrade)
				if _, err := s.Downgrade(t.Context(), g.LockID); !errors.Is(err, lock.ErrUnavailable) {
					t.Errorf("Downgrade: %v", err)
				}
				sc.way.on(nil, opDowngrade)
				if _, err := s.Detach(t.Context(), g.LockID, time.Minute); fieldOf(err) != "lock_id" {
					t.Errorf("Detach: %v", err)
				}
				_, err := s.Downgrade(t.Context(), g.LockID)
				isErr(t, err, nil)
				d, err := s.Detach(t.Context(), g.LockID, time.Minute)
				isErr(t, err, nil)
				if a := must(t, s, attach(d)); a.Mode != lock.Shared || a.Fence != g.Fence {
					t.Errorf("attached as %+v", a)
				}
			})
		})
	}
}

// TestDetachLimit: a user has so many detached holds at a sidecar; what is over, however it ended, does not count.
func TestDetachLimit(t *testing.T) {
	bubble(t, func(t *testing.T, e *env) {
		one, two := e.sidecar(func(o *Options) { o.Limits.DetachedPerUID = 2 }), e.sidecar()
		s := one.session()
		named := func(name string) AcquireRequest {
			return with(detachable, func(r *AcquireRequest) { r.Resource = name })
		}
		detach := func(name string, ttl time.Duration) (Detached, error) {
			g := must(t, s, named(name))
			d, err := s.Detach(t.Context(), g.LockID, ttl)
			if err != nil {
				_, err := s.Release(t.Context(), g.LockID, "")
				isErr(t, err, nil)
			}
			return d, err
		}
		_, err := detach("a", time.Minute)
		isErr(t, err, nil)
		b, err := detach("b", time.Hour)
		isErr(t, err, nil)
		var limit *LimitError
		if _, err := detach("c", time.Hour); !errors.As(err, &limit) || limit.Max != 2 {
			t.Errorf("the third: %v", err)
		}
		isErr(t, two.ReleaseHandle(t.Context(), b.Handle), nil) // which the first sidecar does not see
		c, err := detach("c", time.Hour)
		isErr(t, err, nil)
		time.Sleep(time.Minute) // that of a is over
		_, err = detach("d", time.Hour)
		isErr(t, err, nil)
		isErr(t, one.ReleaseHandle(t.Context(), c.Handle), nil)
		last, err := detach("e", time.Hour)
		isErr(t, err, nil)
		for range 3 { // it is one, however often it is detached again
			g := must(t, s, attach(last))
			last, err = s.Detach(t.Context(), g.LockID, time.Hour)
			isErr(t, err, nil)
		}
		if _, err := detach("f", time.Hour); !errors.As(err, &limit) {
			t.Errorf("the third: %v", err)
		}
	})
}

// TestDetachedAndReleasedHere: what was attached and released here does not count any more, however many older ones are
// held still.
func TestDetachedAndReleasedHere(t *testing.T) {
	bubble(t, func(t *testing.T, e *env) {
		const held = maxChecks + 1
		sc := e.sidecar(func(o *Options) { o.Limits.DetachedPerUID = held + 2 })
		s := sc.session()
		detach := func(name string) Detached {
			t.Helper()
			g := must(t, s, with(detachable, func(r *AcquireRequest) { r.Resource = name }))
			d, err := s.Detach(t.Context(), g.LockID, time.Hour)
			isErr(t, err, nil)
			return d
		}
		for i := range held {
			detach(fmt.Sprint("held ", i))
		}
		for i := range 3 {
			for _, d := range []Detached{detach(fmt.Sprint("a", i)), detach(fmt.Sprint("b", i))} {
				g := must(t, s, attach(d))
				_, err := s.Release(t.Context(), g.LockID, "")
				isErr(t, err, nil)
			}
			if n := len(sc.loose.of); n != held {
				t.Errorf("%d count, want %d", n, held)
			}
		}
		// What is detached again when its session ends is not over.
		g := must(t, s, attach(detach("again")))
		s.Close()
		if n := len(sc.loose.of); n != held+1 {
			t.Errorf("after the end of a session with %s: %d count, want %d", g.LockID, n, held+1)
		}
	})
}

// TestDetachRefused: what cannot be.
func TestDetachRefused(t *testing.T) {
	bubble(t, func(t *testing.T, e *env) {
		sc := e.sidecar()
		s := sc.session()
		for _, wrong := range []func(*AcquireRequest){
			func(r *AcquireRequest) { r.Reentrant = true },
			func(r *AcquireRequest) { r.MinHold = time.Second },
			func(r *AcquireRequest) { r.Resource, r.Resources = "", []string{"a", "b"} },
		} {
			if _, err := s.Acquire(t.Context(), with(detachable, wrong)); fieldOf(err) != "detachable" {
				t.Errorf("%+v: %v", with(detachable, wrong), err)
			}
		}
		g := must(t, s, detachable)
		for _, ttl := range []time.Duration{0, lock.MinDetach - 1, lock.MaxDetach + 1} {
			if _, err := s.Detach(t.Context(), g.LockID, ttl); fieldOf(err) != "ttl" {
				t.Errorf("for %s: %v", ttl, err)
			}
		}
		d, err := s.Detach(t.Context(), g.LockID, time.Minute)
		isErr(t, err, nil)
		if _, err := s.Detach(t.Context(), g.LockID, time.Minute); !errors.Is(err, lock.ErrNotHolder) {
			t.Errorf("Detach again: %v", err)
		}
		plain := must(t, s, with(exclusive, func(r *AcquireRequest) { r.Resource = "plain" }))
		if _, err := s.Detach(t.Context(), plain.LockID, time.Minute); fieldOf(err) != "lock_id" {
			t.Errorf("Detach of what is not detachable: %v", err)
		}
		for _, wrong := range []func(*AcquireRequest){
			func(r *AcquireRequest) { r.Handle = "x" },
			func(r *AcquireRequest) { r.Handle = handlePrefix },
			func(r *AcquireRequest) { r.Handle += strings.Repeat("A", 800) },
			func(r *AcquireRequest) { r.Resource = "r" },
			func(r *AcquireRequest) { r.Mode = lock.Shared },
			func(r *AcquireRequest) { r.Reentrant = true },
			func(r *AcquireRequest) { r.MinHold = time.Second },
			func(r *AcquireRequest) { r.Detachable = true },
		} {
			if _, err := s.Acquire(t.Context(), with(attach(d), wrong)); fieldOf(err) != "handle" {
				t.Errorf("%+v: %v", with(attach(d), wrong), err)
			}
		}
		forged := Detached{Handle: formatHandle(lock.Exclusive, lock.NewSecret(), "r")}
		if _, err := s.Acquire(t.Context(), attach(forged)); !errors.Is(err, lock.ErrNoHandle) {
			t.Errorf("a forged handle: %v", err)
		}
		if err := sc.ReleaseHandle(t.Context(), forged.Handle); !errors.Is(err, lock.ErrNoHandle) {
			t.Errorf("ReleaseHandle of a forged one: %v", err)
		}
		if err := sc.ReleaseHandle(t.Context(), "x"); fieldOf(err) != "handle" {
			t.Errorf("ReleaseHandle of nonsense: %v", err)
		}
		if _, err := sc.ExtendHandle(t.Context(), d.Handle, time.Millisecond); fieldOf(err) != "ttl" {
			t.Errorf("ExtendHandle by too little: %v", err)
		}
		isErr(t, sc.ReleaseHandle(t.Context(), d.Handle), nil)
	})
}
