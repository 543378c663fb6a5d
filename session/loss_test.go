package session

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/locksidecar/locksidecar/lock"
	"github.com/locksidecar/locksidecar/session/ledger"
)

// TestLeaseExpires: the store is silent. The app is told before others get in.
func TestLeaseExpires(t *testing.T) {
	for name, f := range map[string]fault{"down": down, "hanging": hang} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T, e *env) {
				a, b := e.sidecar(), e.sidecar()
				s := a.session()
				g := must(t, s, exclusive)
				next := begin(b.session(), exclusive)
				a.way.on(f, opHeartbeat, opOpen, opAcquire, opRelease, opClose)
				a.way.on(f, opGet)

				var last LeaseNews
				for {
					ev, err := news(s).Next(t.Context())
					if err != nil {
						t.Fatal(err)
					}
					if ev.Lease != nil {
						last = *ev.Lease
						continue
					}
					l := ev.Lost
					if l.LockID != g.LockID || l.Reason != LeaseExpired || l.Resource != "r" || l.Fence != g.Fence || left(e, l.GraceEnd) != time.Second {
						t.Errorf("lost = %+v", l)
					}
					break
				}
				if !last.Jeopardy || last.Until == 0 {
					t.Errorf("last news = %+v, want jeopardy", last)
				}
				if e.now() != 9*time.Second || next.over() {
					t.Errorf("told at %v, the next one is in: %v", e.now(), next.over())
				}
				_, err := s.Release(t.Context(), g.LockID, "")
				isLost(t, err, LeaseExpired)
				if a.Ready() == nil || a.Info().LeaseValidFor != 0 {
					t.Errorf("Ready = %v, Info = %+v", a.Ready(), a.Info())
				}
				if _, err := next.wait(); err != nil || e.now() != 10*time.Second {
					t.Errorf("the next one: %v at %v", err, e.now())
				}

				// The sidecar goes on with a new lease as soon as the store is back.
				p := begin(s, with(exclusive, func(r *AcquireRequest) { r.Resource = "x" }))
				a.way.on(nil, opHeartbeat, opOpen, opAcquire, opRelease, opClose, opGet)
				if _, err := p.wait(); err != nil || a.Ready() != nil {
					t.Errorf("after the store came back: %v, %v", err, a.Ready())
				}
				if e.now() > 25*time.Second {
					t.Errorf("granted at %v", e.now())
				}
			})
		})
	}
}

// TestExpiredLeaseIsClosedAfterTheGrace: only heartbeats fail, so the sidecar
// could end the lease in the store at once, and must not.
func TestExpiredLeaseIsClosedAfterTheGrace(t *testing.T) {
	bubble(t, func(t *testing.T, e *env) {
		a, b := e.sidecar(), e.sidecar()
		s := a.session()
		must(t, s, exclusive)
		next := begin(b.session(), exclusive)
		a.way.on(func(ctx context.Context, do func(context.Context) error) error {
			return mute(ctx, do) // renews in the store, so the TTL does not end it
		}, opHeartbeat)
		if l := lostEvent(t, s); l.Reason != LeaseExpired {
			t.Fatalf("lost = %+v", l)
		}
		a.way.on(nil, opHeartbeat)
		if _, err := next.wait(); err != nil || e.now() != 10*time.Second {
			t.Errorf("the next one: %v at %v, want after the grace", err, e.now())
		}
	})
}

// TestReleaseEndsTheGraceOfAnExpiredLease: the app says that it has stopped.
func TestReleaseEndsTheGraceOfAnExpiredLease(t *testing.T) {
	bubble(t, func(t *testing.T, e *env) {
		a, b := e.sidecar(), e.sidecar()
		s := a.session()
		g := must(t, s, exclusive)
		next := begin(b.session(), exclusive)
		a.way.on(mute, opHeartbeat)
		lostEvent(t, s)
		_, err := s.Release(t.Context(), g.LockID, "")
		isLost(t, err, LeaseExpired)
		if _, err := next.wait(); err != nil || e.now() != 9*time.Second {
			t.Errorf("the next one: %v at %v, want at once", err, e.now())
		}
	})
}

// TestStoreEndsTheLease: it says so to a heartbeat, to a release or to a request.
func TestStoreEndsTheLease(t *testing.T) {
	cases := map[string]func(t *testing.T, sc *sidecar, s *Session){
		"a release in the background": func(t *testing.T, sc *sidecar, s *Session) {
			dying := sc.session()
			must(t, dying, with(exclusive, func(r *AcquireRequest) { r.Resource = "x" }))
			sc.way.on(once(leaseLost), opRelease)
			dying.Close()
		},
		opHeartbeat: func(*testing.T, *sidecar, *Session) {},
		opRelease: func(t *testing.T, sc *sidecar, s *Session) {
			g := must(t, s, with(exclusive, func(r *AcquireRequest) { r.Resource = "x" }))
			_, err := s.Release(t.Context(), g.LockID, "")
			isLost(t, err, LeaseLost)
		},
		opAcquire: func(t *testing.T, sc *sidecar, s *Session) {
			p := begin(s, with(exclusive, func(r *AcquireRequest) { r.Resource = "x" }))
			if _, err := p.wait(); err != nil { // on the next lease
				t.Error(err)
			}
		},
		opDowngrade: func(t *testing.T, sc *sidecar, s *Session) {
			g := must(t, s, with(exclusive, func(r *AcquireRequest) { r.Resource = "x" }))
			_, err := s.Downgrade(t.Context(), g.LockID)
			isLost(t, err, LeaseLost)
		},
	}
	for op, use := range cases {
		t.Run(op, func(t *testing.T) {
			bubble(t, func(t *testing.T, e *env) {
				sc := e.sidecar()
				s := sc.session()
				g := must(t, s, exclusive)
				first := sc.Info().LeaseID
				sc.way.on(once(leaseLost), op)
				use(t, sc, s)
				for {
					if l := lostEvent(t, s); l.LockID == g.LockID {
						if l.Reason != LeaseLost || left(e, l.GraceEnd) != 0 {
							t.Errorf("lost = %+v", l)
						}
						break
					}
				}
				_, err := s.Release(t.Context(), g.LockID, "")
				isLost(t, err, LeaseLost)
				g2 := must(t, s, exclusive)
				if g2.LockID == g.LockID || sc.Info().LeaseID == first {
					t.Errorf("after the loss: %+v on %v", g2, sc.Info().LeaseID)
				}
			})
		})
	}
}

// TestStoreEndsEachLeaseAtOnce: the sidecar keeps trying, but not in a tight loop.
func TestStoreEndsEachLeaseAtOnce(t *testing.T) {
	bubble(t, func(t *testing.T, e *env) {
		sc := e.sidecar()
		sc.way.on(leaseLost, opAcquire)
		p := begin(sc.session(), exclusive)
		time.Sleep(time.Minute)
		if n := sc.way.count(opOpen); n < 20 || n > 100 {
			t.Errorf("%d leases in a minute", n)
		}
		sc.way.on(nil, opAcquire)
		if _, err := p.wait(); err != nil {
			t.Error(err)
		}
	})
}

// TestWaitersGoOverToTheNextLease: a wait outlives the lease.
func TestWaitersGoOverToTheNextLease(t *testing.T) {
	bubble(t, func(t *testing.T, e *env) {
		a, b := e.sidecar(), e.sidecar()
		sb := b.session()
		g := must(t, sb, exclusive)
		p := begin(a.session(), exclusive)
		a.way.on(hang, opHeartbeat)
		time.Sleep(9500 * time.Millisecond)
		a.way.on(nil, opHeartbeat)
		time.Sleep(5 * time.Second)
		if holders, waiters := e.holders("r"); p.over() || holders != 1 || waiters != 1 {
			t.Fatalf("over %v, %d holders, %d waiters", p.over(), holders, waiters)
		}
		if _, err := sb.Release(t.Context(), g.LockID, ""); err != nil {
			t.Fatal(err)
		}
		if g, err := p.wait(); err != nil || left(e, g.Until) <= 0 {
			t.Errorf("grant %+v, %v", g, err)
		}
	})
}

// TestHangingRequestGoesOverToTheNextLease: the store never answers to a request
// of the old lease.
func TestHangingRequestGoesOverToTheNextLease(t *testing.T) {
	bubble(t, func(t *testing.T, e *env) {
		sc := e.sidecar()
		sc.way.on(once(hang), opAcquire)
		sc.way.on(hang, opHeartbeat)
		p := begin(sc.session(), exclusive)
		if g, err := p.wait(); err != nil || e.now() != 9*time.Second {
			t.Errorf("grant %+v, %v at %v, want by the next lease at once", g, err, e.now())
		}
		sc.way.on(nil, opHeartbeat)
	})
}

// TestLateGrantIsNotHandedOut: the answer comes when the lease is over.
func TestLateGrantIsNotHandedOut(t *testing.T) {
	bubble(t, func(t *testing.T, e *env) {
		sc := e.sidecar()
		s := sc.session()
		var jumped bool
		sc.way.on(func(ctx context.Context, do func(context.Context) error) error {
			err := do(ctx)
			if !jumped { // the sidecar stands still for a minute
				jumped = true
				e.jump.Store(int64(time.Minute))
			}
			return err
		}, opAcquire)
		old := sc.Info().LeaseID
		g := must(t, s, exclusive)
		if sc.Info().LeaseID == old || sc.way.count(opAcquire) != 2 {
			t.Errorf("granted %+v on the lease that is over", g)
		}
	})
}

// TestAfterAStop: the sidecar stood still for longer than the TTL. Whatever is
// asked first, and before any timer has fired, it confirms nothing from before.
func TestAfterAStop(t *testing.T) {
	cases := map[string]func(t *testing.T, s *Session, g Grant){
		"release": func(t *testing.T, s *Session, g Grant) {
			_, err := s.Release(t.Context(), g.LockID, "")
			isLost(t, err, LeaseExpired)
		},
		"downgrade": func(t *testing.T, s *Session, g Grant) {
			_, err := s.Downgrade(t.Context(), g.LockID)
			isLost(t, err, LeaseExpired)
		},
		"acquire again": func(t *testing.T, s *Session, g Grant) {
			if next := must(t, s, again(exclusive)); next.LockID == g.LockID || next.Count != 1 {
				t.Errorf("confirmed %+v", next)
			}
		},
		"the same request": func(t *testing.T, s *Session, g Grant) {
			if next := must(t, s, again(request("1"))); next.LockID == g.LockID {
				t.Errorf("confirmed %+v", next)
			}
		},
		"events": func(t *testing.T, s *Session, g Grant) {
			ev, err := news(s).Next(t.Context())
			if err != nil || ev.Lost == nil || ev.Lost.LockID != g.LockID || ev.Lost.GraceEnd != 0 {
				t.Errorf("event %+v, %v, want lost without grace", ev, err)
			}
		},
	}
	for name, use := range cases {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T, e *env) {
				sc := e.sidecar()
				s := sc.session()
				g := must(t, s, again(request("1")))
				e.jump.Store(int64(time.Minute))
				use(t, s, g)
			})
		})
	}
}

func TestTheStoreLosesAHold(t *testing.T) {
	bubble(t, func(t *testing.T, e *env) {
		sc := e.sidecar()
		s := sc.session()
		g := must(t, s, exclusive)
		sc.way.say(lock.Event{Kind: lock.Vanished, Resource: "r", ID: g.LockID})
		if l := lostEvent(t, s); l.Reason != StoreLost || left(e, l.GraceEnd) != 0 {
			t.Errorf("lost = %+v", l)
		}
		sc.way.say(lock.Event{Kind: lock.Vanished, Resource: "r", ID: "of nobody"})
	})
}

// TestEventOvertakesTheGrant: the event comes before the grant that it is about.
func TestEventOvertakesTheGrant(t *testing.T) {
	for kind, want := range map[lock.EventKind]LostReason{lock.Revoked: Forced, lock.Vanished: 0} {
		bubble(t, func(t *testing.T, e *env) {
			sc := e.sidecar()
			s := sc.session()
			goOn := make(chan struct{})
			sc.way.on(func(ctx context.Context, do func(context.Context) error) error {
				err := do(ctx)
				<-goOn
				return err
			}, opAcquire)
			p := begin(s, exclusive)
			st, err := sc.Get(t.Context(), "r")
			if err != nil {
				t.Fatal(err)
			}
			id := st.Holders[0].ID
			sc.way.say(lock.Event{Kind: kind, Resource: "r", ID: id, Until: e.now() + time.Second})
			synctest.Wait()
			close(goOn)
			g, err := p.wait()
			switch {
			case want != 0:
				isLost(t, err, want)
			case err != nil || g.LockID == id: // asked again
				t.Errorf("grant %+v, %v", g, err)
			}
		})
	}
}

func TestMaxHold(t *testing.T) {
	bubble(t, func(t *testing.T, e *env) {
		sc := e.sidecar()
		s, other := sc.session(), sc.session()
		limited := with(again(exclusive), func(r *AcquireRequest) { r.MaxHold = 4 * time.Second })
		g := must(t, s, limited)
		if left(e, g.Until) != 4*time.Second {
			t.Errorf("grant %+v", g)
		}
		next := begin(other, exclusive)
		if l := lostEvent(t, s); l.Reason != MaxHold || left(e, l.GraceEnd) != 2*time.Second || e.now() != 4*time.Second {
			t.Errorf("lost %+v at %v", l, e.now())
		}
		if _, err := next.wait(); err != nil || e.now() != 6*time.Second {
			t.Errorf("the next one: %v at %v, want after the grace", err, e.now())
		}
		_, err := s.Release(t.Context(), g.LockID, "")
		isLost(t, err, MaxHold)
		if holders, _ := e.holders("r"); holders != 1 {
			t.Error("a late release freed another's lock")
		}
		if _, err := other.Release(t.Context(), next.grant.LockID, ""); err != nil {
			t.Error(err)
		}

		// The nearest of several ends counts, and a release makes it void.
		g = must(t, s, limited)
		must(t, s, with(limited, func(r *AcquireRequest) { r.MaxHold = time.Hour }))
		if g2 := must(t, s, with(limited, func(r *AcquireRequest) { r.MaxHold = time.Second })); left(e, g2.Until) != time.Second {
			t.Errorf("grant %+v", g2)
		}
		began := e.now()
		if l := lostEvent(t, s); l.LockID != g.LockID || e.now() != began+time.Second {
			t.Errorf("lost %+v at %v", l, e.now())
		}
		for range 3 {
			if holders, _ := e.holders("r"); holders != 1 {
				t.Error("others were let in while a count was left")
			}
			_, err = s.Release(t.Context(), g.LockID, "")
			isLost(t, err, MaxHold)
			synctest.Wait()
		}
		e.free() // the last release has ended the grace
		g = must(t, s, limited)
		if _, err := s.Release(t.Context(), g.LockID, ""); err != nil {
			t.Error(err)
		}
		time.Sleep(time.Minute)
		if n := len(sc.obs.lost); n != 2 {
			t.Errorf("%d losses, want 2", n)
		}
	})
}

func TestGraceIsNotLongerThanTheLease(t *testing.T) {
	bubble(t, func(t *testing.T, e *env) {
		sc := e.sidecar()
		s := sc.session()
		must(t, s, with(exclusive, func(r *AcquireRequest) { r.MaxHold = 8500 * time.Millisecond }))
		sc.way.on(hang, opHeartbeat)
		if l := lostEvent(t, s); l.Reason != MaxHold || left(e, l.GraceEnd) != 1500*time.Millisecond {
			t.Errorf("lost %+v: the store keeps others out until 10s", l)
		}
	})
}

func TestLostIsRememberedForAWhile(t *testing.T) {
	bubble(t, func(t *testing.T, e *env) {
		sc := e.sidecar()
		s := sc.session()
		var ids []lock.HoldID
		for range ledger.MaxAcknowledged + 1 {
			g := must(t, s, exclusive)
			ids = append(ids, g.LockID)
			if _, err := sc.ForceRelease(t.Context(), "r", g.LockID, 0); err != nil {
				t.Fatal(err)
			}
			synctest.Wait()
		}
		for range 2 { // the first acknowledges
			for _, id := range ids[1:] {
				_, err := s.Release(t.Context(), id, "")
				isLost(t, err, Forced)
			}
		}
		_, err := s.Release(t.Context(), ids[0], "") // kept until it is acknowledged
		isLost(t, err, Forced)
		_, err = s.Release(t.Context(), ids[1], "") // and then only with the latest
		isErr(t, err, lock.ErrNotHolder)
	})
}
