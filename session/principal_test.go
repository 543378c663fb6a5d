package session

import (
	"errors"
	"testing"
	"time"
)

// TestPrincipals: limits are those of the principal, which one user may have many of, and a
// session is only found by its own.
func TestPrincipals(t *testing.T) {
	bubble(t, func(t *testing.T, e *env) {
		sc := e.sidecar(func(o *Options) {
			o.Limits = Limits{SessionsPerUID: 1, HoldsPerUID: 2, DetachedPerUID: 1}
		})
		limited := func(err error, limit string, most int) {
			t.Helper()
			var l *LimitError
			if !errors.As(err, &l) || l.Limit != limit || l.Max != most {
				t.Errorf("%v, want %s, %d", err, limit, most)
			}
		}
		web, batch := Peer{UID: 1000, Principal: "unit:web.service"}, Peer{UID: 1000, Principal: "unit:batch.service"}
		open := func(p Peer) (*Session, error) {
			return sc.Open(t.Context(), OpenRequest{Liveness: Stream, Peer: p})
		}
		s, err := open(web)
		isErr(t, err, nil)
		_, err = open(web)
		limited(err, "sessions per unit", 1)
		_, err = open(Peer{UID: 1001, Principal: web.Principal})
		limited(err, "sessions per unit", 1) // of whatever user
		other, err := open(batch)
		isErr(t, err, nil)
		plain, err := open(Peer{UID: 1000})
		isErr(t, err, nil)
		_, err = open(Peer{UID: 1000})
		limited(err, "sessions per uid", 1)

		for p, want := range map[Peer]error{
			web:                                   nil,
			batch:                                 ErrSessionNotFound,
			{UID: 1000}:                           ErrSessionNotFound,
			{UID: 1001, Principal: web.Principal}: ErrSessionNotFound,
		} {
			_, err := sc.Lookup(s.ID(), p)
			isErr(t, err, want)
		}

		named := func(name string) AcquireRequest {
			return with(detachable, func(r *AcquireRequest) { r.Resource = name })
		}
		a, b := must(t, s, named("a")), must(t, s, named("b"))
		_, err = s.Acquire(t.Context(), named("c"))
		limited(err, "holds per unit", 2)
		must(t, other, named("c"))
		must(t, plain, named("d"))
		st, err := sc.Get(t.Context(), "a")
		if err != nil || len(st.Holders) != 1 || st.Holders[0].Owner.Principal != web.Principal {
			t.Errorf("who has it: %+v, %v", st, err)
		}

		counts := make(map[string][2]int)
		sc.EachPrincipal(func(name string, sessions, holds int) { counts[name] = [2]int{sessions, holds} })
		if len(counts) != 2 || counts[web.Principal] != [2]int{1, 2} || counts[batch.Principal] != [2]int{1, 1} {
			t.Errorf("counted: %v", counts)
		}

		_, err = s.Detach(t.Context(), a.LockID, time.Hour)
		isErr(t, err, nil)
		_, err = s.Detach(t.Context(), b.LockID, time.Hour)
		limited(err, "detached holds per unit", 1)

		s.Close()
		s, err = open(web)
		isErr(t, err, nil)
		s.Close()
		other.Close()
		plain.Close()
		if len(sc.usages) != 0 {
			t.Errorf("left: %v", sc.usages)
		}
	})
}

// TestRoomForWhoHasLeft: who has no session any more, and has left something that the store has not released yet, finds the
// room that is kept for those who have none.
func TestRoomForWhoHasLeft(t *testing.T) {
	bubble(t, func(t *testing.T, e *env) {
		sc := e.sidecar(func(o *Options) { o.Limits = Limits{Sessions: 16, SessionsPerUID: 16} })
		a, b := Peer{Principal: "unit:a"}, Peer{Principal: "unit:b"}
		s, err := sc.Open(t.Context(), OpenRequest{Liveness: Stream, Peer: b})
		isErr(t, err, nil)
		must(t, s, exclusive)
		sc.way.on(hang, opRelease)
		s.Close()
		for err == nil {
			_, err = sc.Open(t.Context(), OpenRequest{Liveness: Stream, Peer: a})
		}
		limited(t, err, "sessions", 16)
		_, err = sc.Open(t.Context(), OpenRequest{Liveness: Stream, Peer: b})
		isErr(t, err, nil)
		_, err = sc.Open(t.Context(), OpenRequest{Liveness: Stream, Peer: b})
		limited(t, err, "sessions", 16)
		sc.way.on(nil, opRelease)
	})
}

// TestRoomForWhoHasNone: principals that have sessions leave room to those that have none. Where it is the
// uid that counts, all are usually one.
func TestRoomForWhoHasNone(t *testing.T) {
	bubble(t, func(t *testing.T, e *env) {
		sc := e.sidecar(func(o *Options) { o.Limits = Limits{Sessions: 32, SessionsPerUID: 20} })
		var all []*Session
		open := func(p Peer) error {
			s, err := sc.Open(t.Context(), OpenRequest{Liveness: Stream, Peer: p})
			if err == nil {
				all = append(all, s)
			}
			return err
		}
		fill := func(p Peer) error {
			for {
				if err := open(p); err != nil {
					return err
				}
			}
		}
		for _, name := range []string{"unit:a", "unit:b"} {
			if err := fill(Peer{Principal: name}); !errors.Is(err, ErrLimit) {
				t.Errorf("%s: %v", name, err)
			}
		}
		if len(all) != 30 {
			t.Errorf("two units have %d of 32 sessions", len(all))
		}
		for _, name := range []string{"unit:c", "unit:d"} {
			isErr(t, open(Peer{Principal: name}), nil)
		}
		isErr(t, open(Peer{Principal: "unit:e"}), ErrLimit)
		for _, s := range all {
			s.Close()
		}
		all = nil
		for _, uid := range []uint32{1, 2} {
			isErr(t, fill(Peer{UID: uid}), ErrLimit)
		}
		if len(all) != 32 {
			t.Errorf("two users have %d of 32 sessions", len(all))
		}
		for _, s := range all {
			s.Close()
		}
	})
}
