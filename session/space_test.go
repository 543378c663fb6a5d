package session

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/locksidecar/locksidecar/lock"
	"github.com/locksidecar/locksidecar/session/outcome"
)

// spaceIn gives a space of a sidecar, and a session in it.
func spaceIn(t *testing.T, sc *sidecar, name string) (*Space, *Session) {
	t.Helper()
	sp, err := sc.In(name)
	if err != nil {
		t.Fatal(err)
	}
	s, err := sp.Open(t.Context(), OpenRequest{Liveness: Stream, Name: "app", Peer: Peer{UID: 1000, Principal: "unit:" + name}})
	if err != nil {
		t.Fatal(err)
	}
	return sp, s
}

func namesOf(list []lock.Status) (names []string) {
	for _, st := range list {
		names = append(names, string(st.Resource))
	}
	return names
}

// TestSpaces: the same name is another lock in another space, also where the sidecar hands locks
// on by itself; each space sees its own, and the space of everybody sees all.
func TestSpaces(t *testing.T) {
	bubble(t, func(t *testing.T, e *env) {
		sc, b := e.arbitrated(func(o *Options) { o.Namespace = "prod" })
		web, w := spaceIn(t, sc, "web")
		job, j := spaceIn(t, sc, "job")
		all := sc.session()
		for range 3 { // it is parked in between
			g := must(t, w, exclusive)
			must(t, j, try(exclusive))
			must(t, all, try(exclusive))
			if n := len(namesOf(listed(t, web))); n != 1 {
				t.Errorf("web sees %d", n)
			}
			if got := namesOf(listed(t, sc.Space)); !slices.Equal(got, []string{"job/r", "r", "web/r"}) {
				t.Errorf("all: %q", got)
			}
			for _, s := range []*Session{w, j, all} {
				for _, st := range listed(t, s.space) {
					if st.Resource != "r" {
						continue
					}
					if _, err := s.Release(t.Context(), st.Holders[0].ID, ""); err != nil {
						t.Error(err)
					}
				}
			}
			isErr(t, func() error { _, err := j.Release(t.Context(), g.LockID, ""); return err }(), lock.ErrNotHolder)
		}
		if b.Stats().Saved == 0 {
			t.Error("nothing was handed on without the store")
		}

		must(t, w, exclusive)
		waits := begin(w, by("x", "r", lock.Exclusive))
		for _, x := range []struct {
			sp                       *Space
			namespace                string
			sessions, holds, waiters int
		}{{web, "prod/web", 1, 1, 1}, {job, "prod/job", 1, 0, 0}, {sc.Space, "prod", 3, 1, 1}} {
			i := x.sp.Info()
			if i.Namespace != x.namespace || i.Sessions != x.sessions || i.Holds != x.holds || i.Waiters != x.waiters || (i.Parked > 0) != x.sp.Whole() {
				t.Errorf("%s: %+v", x.namespace, i)
			}
		}
		var waiting []string
		sc.EachWait(func(resource string, _ time.Duration) { waiting = append(waiting, resource) })
		if !slices.Equal(waiting, []string{"web/r"}) {
			t.Errorf("waiting: %q", waiting)
		}
		if _, err := job.Lookup(w.ID(), Peer{UID: 1000, Principal: "unit:web"}); err == nil {
			t.Error("a session was found from another space")
		}
		w.Close()
		_, err := waits.wait()
		isErr(t, err, ErrSessionClosed)
		if sc.obs.resource != "web/r" {
			t.Errorf("the metrics are told of %q", sc.obs.resource)
		}
		j.Close()
		all.Close()
		if i := job.Info(); i.Sessions != 0 || i.Holds != 0 || i.Waiters != 0 || i.Parked != 0 {
			t.Errorf("a space without sessions: %+v", i)
		}
		if sp, err := sc.In(""); err != nil || !sp.Whole() {
			t.Errorf("the space without a name: %+v, %v", sp, err)
		}
		synctest.Wait() // for the request that waited
		if len(sc.usages) != 0 {
			t.Errorf("left: %v", sc.usages)
		}
	})
}

func listed(t *testing.T, sp *Space) []lock.Status {
	t.Helper()
	list, err := sp.List(t.Context(), "", "", 100)
	if err != nil {
		t.Fatal(err)
	}
	return slices.DeleteFunc(list, func(st lock.Status) bool {
		return !slices.ContainsFunc(st.Holders, func(h lock.Holding) bool { return !h.Parked })
	})
}

// TestNoDeadlockBetweenSpaces: owners of two spaces cannot wait for each other, whatever the names
// of their locks and owners are; a circle within a space is found, and its words have the names
// of that space.
func TestNoDeadlockBetweenSpaces(t *testing.T) {
	bubble(t, func(t *testing.T, e *env) {
		sc := e.sidecar()
		web, w1 := spaceIn(t, sc, "web")
		w2, err := web.Open(t.Context(), OpenRequest{Liveness: Stream, Name: "app", Peer: Peer{UID: 1000, Principal: "unit:web"}})
		isErr(t, err, nil)
		_, j1 := spaceIn(t, sc, "job")
		must(t, w1, by("x", "a", lock.Exclusive))
		must(t, w2, by("y", "b", lock.Exclusive))
		must(t, j1, by("x", "b", lock.Exclusive))
		must(t, j1, by("x", "a", lock.Exclusive)) // free in its space
		first := later(w1, by("x", "b", lock.Exclusive))
		time.Sleep(time.Minute)
		if first.over() {
			t.Fatalf("a wait that is part of no circle has ended: %v", first.err)
		}
		second := later(w2, by("y", "a", lock.Exclusive))
		time.Sleep(time.Minute)
		n, said := victims(t, []*pending{first, second})
		if n != 1 || strings.Contains(said.Error(), "job") || strings.Contains(said.Error(), "web/") {
			t.Errorf("%d have given up: %v", n, said)
		}
		for _, s := range []*Session{w1, w2, j1} {
			s.Close()
		}
	})
}

// TestDeadlockWithWhoSeesAll: owners in a space and in that of everybody can wait for each other. Each
// is told by the names that it knows.
func TestDeadlockWithWhoSeesAll(t *testing.T) {
	for _, last := range []string{"web", "everybody"} {
		t.Run(last, func(t *testing.T) {
			bubble(t, func(t *testing.T, e *env) {
				sc := e.sidecar(func(o *Options) { o.Namespace = "prod" })
				elsewhere := e.sidecar() // without the namespace
				_, w := spaceIn(t, sc, "web")
				all := elsewhere.session()
				must(t, w, by("x", "a", lock.Exclusive))
				must(t, all, by("y", "prod/web/b", lock.Exclusive))
				waits := map[string]func() *pending{
					"web":       func() *pending { return later(w, by("x", "b", lock.Exclusive)) },
					"everybody": func() *pending { return later(all, by("y", "prod/web/a", lock.Exclusive)) },
				}
				end := waits[last]
				delete(waits, last)
				var pendings []*pending
				for _, begin := range waits {
					pendings = append(pendings, begin())
				}
				pendings = append(pendings, end())
				time.Sleep(3 * time.Second)
				n, said := victims(t, pendings)
				if n != 1 || !pendings[1].over() {
					t.Fatalf("%d have given up, the last one: %t", n, pendings[1].over())
				}
				if strings.Contains(said.Error(), `"prod/web/a"`) != (last == "everybody") || !strings.Contains(said.Error(), `a"`) {
					t.Errorf("%s is told %v", last, said)
				}
				w.Close()
				all.Close()
			})
		})
	}
}

// TestDeadlockOverSpaces: of a circle that goes over two spaces, an owner who sees all gives up. An owner
// in one of them does not see it.
func TestDeadlockOverSpaces(t *testing.T) {
	bubble(t, func(t *testing.T, e *env) {
		sc := e.sidecar()
		_, w := spaceIn(t, sc, "web")
		_, j := spaceIn(t, sc, "job")
		all := sc.session()
		must(t, w, by("w", "a", lock.Exclusive))
		must(t, all, by("1", "web/b", lock.Exclusive))
		must(t, j, by("j", "c", lock.Exclusive))
		must(t, all, by("2", "job/d", lock.Exclusive))
		pendings := []*pending{
			later(all, by("1", "job/c", lock.Exclusive)),
			later(all, by("2", "web/a", lock.Exclusive)),
			later(j, by("j", "d", lock.Exclusive)),
			later(w, by("w", "b", lock.Exclusive)),
		}
		time.Sleep(30 * time.Second)
		if n, _ := victims(t, pendings); n != 1 || !pendings[1].over() {
			t.Errorf("%d have given up, the younger one of those who see all: %t", n, pendings[1].over())
		}
		for _, s := range []*Session{w, j, all} {
			s.Close()
		}
	})
}

// TestLooksInTurn: however many waits of one space the sidecar looks into, it looks into those of
// another one at once, and reads no more often.
func TestLooksInTurn(t *testing.T) {
	bubble(t, func(t *testing.T, e *env) {
		sc := e.sidecar()
		_, w := spaceIn(t, sc, "web")
		const chain = 200 // each look goes over all that wait for it
		for i := range chain {
			must(t, w, by(fmt.Sprint(i), fmt.Sprint("r", i), lock.Exclusive))
		}
		for i := range chain - 1 {
			begin(w, by(fmt.Sprint(i+1), fmt.Sprint("r", i), lock.Exclusive))
		}
		time.Sleep(10 * time.Second)
		_, j := spaceIn(t, sc, "job")
		before := sc.way.count("get")
		all := ring(t, []*Session{j}, 2)
		time.Sleep(3 * time.Second)
		if n, _ := victims(t, all); n != 1 {
			t.Errorf("%d have given up 3 s after they began to wait for each other", n)
		}
		if n := sc.way.count("get") - before; n < 250 || n > 301 {
			t.Errorf("the sidecar has read %d times in 3 s", n)
		}
		w.Close()
		j.Close()
	})
}

// TestLastingWatchesOfSpaces: watches of the same prefix share a look in their own space only.
func TestLastingWatchesOfSpaces(t *testing.T) {
	bubble(t, func(t *testing.T, e *env) {
		sc := e.sidecar()
		ctx, cancel := context.WithCancel(t.Context())
		var all sync.WaitGroup
		seen := make([][]string, 2)
		sessions := make([]*Session, 2)
		for i, name := range []string{"web", "job"} {
			sp, s := spaceIn(t, sc, name)
			sessions[i] = s
			all.Go(func() {
				_ = sp.Watch(ctx, "", time.Second, func(w WatchEvent) error {
					if w.Kind != Synced {
						seen[i] = append(seen[i], string(w.Status.Resource))
					}
					return nil
				})
			})
		}
		time.Sleep(3 * time.Second)
		must(t, sessions[0], by("x", "a", lock.Exclusive))
		must(t, sessions[1], by("x", "b", lock.Exclusive))
		time.Sleep(3 * time.Second)
		cancel()
		all.Wait()
		if !slices.Equal(seen[0], []string{"a"}) || !slices.Equal(seen[1], []string{"b"}) {
			t.Errorf("the watches were told of %q", seen)
		}
		for _, s := range sessions {
			s.Close()
		}
	})
}

// TestLooksOfSpaces: however many watches there are in one space, those of another one see what is there
// in time.
func TestLooksOfSpaces(t *testing.T) {
	bubble(t, func(t *testing.T, e *env) {
		sc := e.sidecar()
		web, w := spaceIn(t, sc, "web")
		job, j := spaceIn(t, sc, "job")
		sc.way.on(func(ctx context.Context, do func(context.Context) error) error {
			time.Sleep(time.Second)
			return do(ctx)
		}, opList)
		ctx, cancel := context.WithCancel(t.Context())
		var all sync.WaitGroup
		for i := range 64 {
			all.Go(func() {
				_ = web.Watch(ctx, fmt.Sprint(i), minWatchInterval, func(WatchEvent) error { return nil })
			})
		}
		time.Sleep(20 * time.Second)
		begun := e.now()
		isErr(t, job.Watch(ctx, "", 0, func(WatchEvent) error { return lock.ErrHeld }), lock.ErrHeld)
		if took := e.now() - begun; took > 3*time.Second {
			t.Errorf("a watch of another space has seen what is there after %v", took)
		}
		before := sc.way.count(opList)
		time.Sleep(10 * time.Second)
		if n := sc.way.count(opList) - before; n < 15 || n > 10*maxLooks {
			t.Errorf("%d looks of 1 s in 10 s", n)
		}
		cancel()
		all.Wait()
		if len(sc.looks.of) != 0 || len(sc.looks.places) != 0 {
			t.Error("something is left")
		}
		w.Close()
		j.Close()
	})
}

// TestHandlesOfSpaces: a handle is worth something in its own space, and to who sees all.
func TestHandlesOfSpaces(t *testing.T) {
	bubble(t, func(t *testing.T, e *env) {
		sc := e.sidecar(func(o *Options) { o.Namespace = "prod" })
		elsewhere := e.sidecar(func(o *Options) { o.Namespace = "prod" })
		web, w := spaceIn(t, sc, "web")
		job, j := spaceIn(t, sc, "job")
		must(t, j, detachable) // of the same name
		g := must(t, w, detachable)
		d, err := w.Detach(t.Context(), g.LockID, time.Hour)
		isErr(t, err, nil)
		if d.Resource != "r" {
			t.Errorf("%+v", d)
		}
		_, err = job.ExtendHandle(t.Context(), d.Handle, time.Minute)
		isErr(t, err, lock.ErrInvalid)
		if err := job.ReleaseHandle(t.Context(), d.Handle); fieldOf(err) != "handle" {
			t.Errorf("a handle of another space: %v", err)
		}
		_, err = j.Acquire(t.Context(), attach(d))
		isErr(t, err, lock.ErrInvalid)
		// One that was made up, with the right secret and its own space, is of no hold.
		m, secret, _, err := parseHandle(d.Handle)
		isErr(t, err, nil)
		isErr(t, job.ReleaseHandle(t.Context(), formatHandle(m, secret, "prod/job/r")), lock.ErrNoHandle)
		for _, r := range []lock.Resource{"prod/job/", "prod/job", "prod", "/", "prod/web/\x00", "prod/job/../web/r", "other/web/r"} {
			if err := web.ReleaseHandle(t.Context(), formatHandle(m, secret, r)); err == nil {
				t.Errorf("released as %q", r)
			}
		}

		more, err := web.ExtendHandle(t.Context(), d.Handle, 2*time.Hour)
		if err != nil || more.Resource != "r" {
			t.Errorf("%+v, %v", more, err)
		}
		there, x := spaceIn(t, elsewhere, "web")
		again := must(t, x, attach(d))
		if again.Fence != g.Fence || again.Resource != "r" || there.Name() != "web" {
			t.Errorf("attached elsewhere: %+v", again)
		}
		seen, err := sc.ExtendHandle(t.Context(), d.Handle, time.Hour)
		if err != nil || seen.Resource != "web/r" {
			t.Errorf("who sees all: %+v, %v", seen, err)
		}
		isErr(t, sc.ReleaseHandle(t.Context(), d.Handle), nil)
		for _, s := range []*Session{w, j, x} {
			s.Close()
		}
	})
}

// TestLengthsInSpaces: a name has the room that its space leaves.
func TestLengthsInSpaces(t *testing.T) {
	bubble(t, func(t *testing.T, e *env) {
		sc, _ := e.arbitrated(func(o *Options) { o.Namespace = "prod" })
		web, s := spaceIn(t, sc, "web")
		most := lock.MaxResourceBytes - len("prod/web/")
		fits, long := strings.Repeat("x", most), strings.Repeat("x", most+1)
		g := must(t, s, with(exclusive, func(r *AcquireRequest) { r.Resource, r.Detachable = fits, true }))
		d, err := s.Detach(t.Context(), g.LockID, time.Hour)
		isErr(t, err, nil)
		isErr(t, web.ReleaseHandle(t.Context(), d.Handle), nil)
		_, err = s.Acquire(t.Context(), with(exclusive, func(r *AcquireRequest) { r.Resource = long }))
		_, gets := web.Get(t.Context(), long)
		_, lists := web.List(t.Context(), long, "", 1)
		_, _, outcomes := web.Outcomes(t.Context(), long, "", 1)
		_, forced := web.ForceRelease(t.Context(), long, "", 0)
		_, reset := web.ResetOutcome(t.Context(), long)
		_, several := s.Acquire(t.Context(), AcquireRequest{Resources: []string{"a", long}, Mode: lock.Exclusive})
		_, once := s.Acquire(t.Context(), AcquireRequest{Resource: long, Mode: lock.Exclusive, Once: &outcome.Wish{Keep: time.Hour}})
		for i, err := range []error{err, gets, lists, outcomes, forced, reset, several, once} {
			isErr(t, err, lock.ErrInvalid)
			if err != nil && !strings.HasSuffix(err.Error(), `is 504 bytes long, at most 503 are allowed: in the store "prod/web/" stands before it`) {
				t.Errorf("%d: %v", i, err)
			}
		}
		s.Close()
		for name, want := range map[string]error{"": nil, "a": nil, strings.Repeat("x", 505): nil, strings.Repeat("x", 506): lock.ErrInvalid, "a/b": lock.ErrInvalid, "/": lock.ErrInvalid, "a\n": lock.ErrInvalid, "\xff": lock.ErrInvalid} {
			_, err := sc.In(name)
			isErr(t, err, want)
		}
	})
}
