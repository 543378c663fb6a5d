package backendtest

import (
	"context"
	"errors"
	"slices"
	"strings"
	"time"

	"github.com/locksidecar/locksidecar/arbiter"
	"github.com/locksidecar/locksidecar/lock"
	"github.com/locksidecar/locksidecar/session"
	"github.com/locksidecar/locksidecar/session/outcome"
)

// tenants are two spaces of names at one sidecar, and the first one at another sidecar as well. The
// name of the second is the beginning of that of the first.
type tenants struct {
	*env
	web, web2, job *session.Space
}

// spaces starts the sidecars. What the first space has in the store begins with the test's prefix.
func (e *env) spaces() (t tenants, end func()) {
	e.Helper()
	namespace, rest, _ := strings.Cut(e.prefix, "/")
	name, _, _ := strings.Cut(rest, "/")
	ctx, stop := context.WithCancel(context.Background())
	var ended []<-chan struct{}
	open := func(b lock.Backend, names ...string) (all []*session.Space) {
		m, err := session.New(session.Options{Backend: b, TTL: longTTL, Namespace: namespace, LostGrace: time.Second, Sidecar: "pod", Clock: e.clock})
		if err != nil {
			e.Fatal(err)
		}
		done := make(chan struct{})
		ended = append(ended, done)
		go func() {
			defer close(done)
			_ = m.Run(ctx) // it has no error
		}()
		for _, name := range names {
			sp, err := m.In(name)
			if err != nil {
				e.Fatal(err)
			}
			all = append(all, sp)
		}
		return all
	}
	here := open(arbiter.New(e.open(), arbiter.Options{Turns: arbiter.MaxTurns, Park: time.Second, Clock: e.clock}), name, name[:len(name)-1])
	there := open(e.open(), name)
	return tenants{e, here[0], there[0], here[1]}, func() {
		stop()
		for _, done := range ended {
			<-done
		}
	}
}

func (t tenants) session(sp *session.Space) *session.Session {
	t.Helper()
	s, err := sp.Open(t.ctx, session.OpenRequest{Liveness: session.Stream, Name: "hidden", Peer: session.Peer{Principal: "unit:" + sp.Name()}})
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// elsewhere are names, beginnings of names, and names to go on after, by which an app could try to
// get at another space.
func (t tenants) elsewhere() []string {
	there, last := t.web.Name(), t.web.Name()[len(t.web.Name())-1:]
	names := []string{"", "/", ".", "..", "*", "?*", "%", "_", "[", "'", "\"", "\\", "{", "\x00", "\x00\xff", "\xff", "\xff\xff", "\x7f", "a\x00b"}
	for _, name := range []string{"secret", "Spaces/secret"} {
		names = append(names, name, name+"/", name+"\x00", name+" ", strings.ToUpper(name))
		for _, before := range []string{"/", "//", "../", "./../", "%2e%2e/", "..%2F", "/\x00", last + "/", "/" + last + "/", there + "/", "/" + there + "/", "../" + there + "/", t.prefix, "{" + there + "}/", there + "／"} {
			names = append(names, before+name)
		}
	}
	return append(names, last, there, there+"/", "../"+there, strings.Repeat("../", 9)+t.prefix+"secret", strings.Repeat("x", 512), strings.Repeat("ä", 300))
}

// testSpaces checks that nothing of one space can be reached from another one, whatever an app of that
// sends as a name.
func testSpaces(e *env) {
	t, end := e.spaces()
	defer end()
	w, w2, j := t.session(t.web), t.session(t.web2), t.session(t.job)
	defer w.Close()
	defer w2.Close()
	defer j.Close()
	ask := func(name string) session.AcquireRequest {
		return session.AcquireRequest{Resource: name, Mode: lock.Exclusive, Wait: patience, Guard: lock.WithoutGuard}
	}
	const secret = "Spaces/secret"
	held, err := w.Acquire(t.ctx, ask(secret))
	if err != nil {
		t.Fatal(err)
	}
	var next session.Grant
	var nextErr error
	waited := make(chan struct{})
	t.tasks.Go(func() {
		defer close(waited)
		r := ask(secret)
		r.Wait *= 10 // it waits until the end of the test
		next, nextErr = w2.Acquire(t.ctx, r)
	})
	kept, detached := t.belongings(w)
	stands := func(after string) {
		t.Helper()
		t.eventually("the space has what it had after "+after, func() bool {
			st, err := t.web2.Get(t.ctx, secret)
			ok := err == nil && len(st.Holders) == 1 && st.Holders[0].ID == held.LockID && !st.Holders[0].Revoked && len(st.Waiters) == 1
			if err == nil && kept {
				_, was := t.outcome(t.web2, "Spaces/done")
				ok = ok && was
			}
			return ok
		})
	}
	stands("nothing")
	own := ask("Spaces/own")
	g, err := j.Acquire(t.ctx, own)
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range t.elsewhere() {
		t.blind(name, held.LockID)
		r := ask(name)
		r.Wait = 0
		switch got, err := j.Acquire(t.ctx, r); {
		case err == nil:
			if _, err := j.Release(t.ctx, got.LockID, ""); err != nil {
				t.Errorf("release of %q: %v", name, err)
			}
		case !errors.Is(err, lock.ErrInvalid) && !errors.Is(err, lock.ErrUnavailable):
			t.Errorf("%q: %v", name, err)
		}
	}
	stands("all that")
	if _, err := j.Release(t.ctx, held.LockID, ""); !errors.Is(err, lock.ErrNotHolder) {
		t.Errorf("a release of another space: %v", err)
	}
	if detached.Handle != "" {
		if err := t.job.ReleaseHandle(t.ctx, detached.Handle); !errors.Is(err, lock.ErrInvalid) {
			t.Errorf("a handle of another space: %v", err)
		}
		if err := t.answered(func() error { return t.web2.ReleaseHandle(t.ctx, detached.Handle) }); err != nil {
			t.Error(err)
		}
	}
	if kept {
		if err := t.answered(func() error { _, err := t.web2.ResetOutcome(t.ctx, "Spaces/done"); return err }); err != nil {
			t.Error(err)
		}
	}
	for s, id := range map[*session.Session]lock.HoldID{j: g.LockID, w: held.LockID} {
		if _, err := s.Release(t.ctx, id, ""); err != nil {
			t.Error(err)
		}
	}
	if <-waited; nextErr != nil {
		t.Fatalf("the one who waited: %v", nextErr)
	}
	if _, err := w2.Release(t.ctx, next.LockID, ""); err != nil {
		t.Error(err)
	}
}

// belongings gives a session of the first space an outcome and a detached lock, where the store has such.
func (t tenants) belongings(s *session.Session) (kept bool, d session.Detached) {
	t.Helper()
	r := session.AcquireRequest{Mode: lock.Exclusive, Wait: patience, Guard: lock.WithoutGuard}
	r.Resource, r.Once = "Spaces/done", &outcome.Wish{Keep: time.Hour}
	switch g, err := s.Acquire(t.ctx, r); {
	case err == nil:
		if err := t.answered(func() error {
			_, err := s.Conclude(t.ctx, g.LockID, "", outcome.Succeeded, "hidden")
			return err
		}); err != nil {
			t.Fatal(err)
		}
		kept = true
	case !errors.Is(err, lock.ErrUnsupported):
		t.Fatal(err)
	}
	if t.limits.Detached != "" {
		return kept, d
	}
	r.Resource, r.Once, r.Detachable = "Spaces/loose", nil, true
	g, err := s.Acquire(t.ctx, r)
	if err == nil {
		d, err = s.Detach(t.ctx, g.LockID, time.Hour)
	}
	if err != nil {
		t.Fatal(err)
	}
	return kept, d
}

func (t tenants) outcome(sp *session.Space, name string) (o session.Outcome, was bool) {
	all, _, err := sp.Outcomes(t.ctx, name, "", 10)
	if err != nil || len(all) != 1 {
		return o, false
	}
	return all[0], true
}

// blind checks that an app of the second space sees and changes nothing of the first by a name.
func (t tenants) blind(name string, id lock.HoldID) {
	t.Helper()
	refused := func(what string, err error) {
		t.Helper()
		if err != nil && !errors.Is(err, lock.ErrInvalid) && !errors.Is(err, lock.ErrNotHolder) && !errors.Is(err, lock.ErrUnsupported) {
			t.Errorf("%s %q: %v", what, name, err)
		}
	}
	mine := func(what string, list []lock.Status) {
		t.Helper()
		for _, st := range list {
			if slices.ContainsFunc(slices.Concat(st.Holders, st.Waiters), func(h lock.Holding) bool {
				return !h.Parked && h.Owner.Principal != "unit:"+t.job.Name()
			}) {
				t.Errorf("%s %q shows %+v", what, name, st)
			}
		}
	}
	var st lock.Status
	var list []lock.Status
	var outcomes []session.Outcome
	var reset *session.Outcome
	var taken []lock.HoldID
	refused("get", t.answered(func() (err error) { st, err = t.job.Get(t.ctx, name); return err }))
	mine("get", []lock.Status{st})
	refused("list", t.answered(func() (err error) { list, err = t.job.List(t.ctx, name, "", 100); return err }))
	mine("list", list)
	refused("list after", t.answered(func() (err error) { list, err = t.job.List(t.ctx, "", name, 100); return err }))
	mine("list after", list)
	refused("outcomes", t.answered(func() (err error) { outcomes, _, err = t.job.Outcomes(t.ctx, name, "", 100); return err }))
	if len(outcomes) > 0 {
		t.Errorf("outcomes %q: %+v", name, outcomes)
	}
	refused("outcomes after", t.answered(func() (err error) { outcomes, _, err = t.job.Outcomes(t.ctx, "", name, 100); return err }))
	if len(outcomes) > 0 {
		t.Errorf("outcomes after %q: %+v", name, outcomes)
	}
	refused("reset", t.answered(func() (err error) { reset, err = t.job.ResetOutcome(t.ctx, name); return err }))
	if reset != nil {
		t.Errorf("reset %q: %+v", name, reset)
	}
	refused("force", t.answered(func() (err error) { taken, err = t.job.ForceRelease(t.ctx, name, id, 0); return err }))
	if len(taken) > 0 {
		t.Errorf("forced %q: %v", name, taken)
	}
}
