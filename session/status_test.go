package session

import (
	"context"
	"errors"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/locksidecar/locksidecar/lock"
)

func named(name string) AcquireRequest {
	return with(exclusive, func(r *AcquireRequest) { r.Resource = name })
}

func names(list []lock.Status) []string {
	var n []string
	for _, st := range list {
		n = append(n, string(st.Resource))
	}
	return n
}

func TestGetAndListSeeOnlyTheNamespace(t *testing.T) {
	bubble(t, func(t *testing.T, e *env) {
		inside := e.sidecar(func(o *Options) { o.Namespace = "ns" })
		beside := e.sidecar(func(o *Options) { o.Namespace = "ns2" })
		s := inside.session(func(r *OpenRequest) { r.Metadata = map[string]string{"k": "v"} })
		for _, n := range []string{"c", "a/1", "b", "a/2"} {
			must(t, s, with(named(n), func(r *AcquireRequest) { r.Owner = "main" }))
		}
		must(t, beside.session(), named("a/1"))

		st, err := inside.Get(t.Context(), "a/1")
		if err != nil || st.Resource != "a/1" || len(st.Holders) != 1 {
			t.Fatalf("Get = %+v, %v", st, err)
		}
		want := lock.Owner{
			PID: 7, UID: 1000, Ref: s.owner.Ref, Session: "app", Label: "main", Metadata: map[string]string{"k": "v"},
			Nested: &lock.Nested{Asked: time.Now().UnixMilli(), Held: []string{"ns/c"}},
		}
		if d := cmp.Diff(want, st.Holders[0].Owner); d != "" {
			t.Errorf("owner: %s", d)
		}
		if st, err := inside.Get(t.Context(), "free"); err != nil || st.Resource != "free" || len(st.Holders) != 0 {
			t.Errorf("Get of a free lock = %+v, %v", st, err)
		}

		cases := []struct {
			prefix, after string
			limit         int
			want          []string
		}{
			{"", "", 10, []string{"a/1", "a/2", "b", "c"}},
			{"a", "", 10, []string{"a/1", "a/2"}},
			{"", "a/2", 10, []string{"b", "c"}},
			{"", "", 2, []string{"a/1", "a/2"}},
			{"zzz", "", 10, nil},
		}
		for _, c := range cases {
			list, err := inside.List(t.Context(), c.prefix, c.after, c.limit)
			if err != nil || !slices.Equal(names(list), c.want) {
				t.Errorf("List(%q, %q, %d) = %v, %v, want %v", c.prefix, c.after, c.limit, names(list), err, c.want)
			}
		}
		for _, limit := range []int{0, lock.MaxPage + 1} {
			_, err := inside.List(t.Context(), "", "", limit)
			isErr(t, err, lock.ErrInvalid)
		}
		_, err = inside.Get(t.Context(), "")
		isErr(t, err, lock.ErrInvalid)

		inside.way.on(down, opGet, opList)
		_, err = inside.Get(t.Context(), "a/1")
		isErr(t, err, lock.ErrUnavailable)
		_, err = inside.List(t.Context(), "", "", 1)
		isErr(t, err, lock.ErrUnavailable)
	})
}

func TestForceReleaseOfMany(t *testing.T) {
	bubble(t, func(t *testing.T, e *env) {
		sc := e.sidecar()
		var want []lock.HoldID
		for range 100 {
			want = append(want, must(t, sc.session(), shared).LockID)
		}
		taken, err := sc.ForceRelease(t.Context(), "r", "", time.Second)
		slices.Sort(want)
		slices.Sort(taken)
		if err != nil || !slices.Equal(taken, want) {
			t.Errorf("taken %d of %d, %v", len(taken), len(want), err)
		}
		if e.now() > 2*time.Second {
			t.Errorf("took %v: the graces run at the same time, as far as that many may", e.now())
		}
		e.free()
		if taken, err := sc.ForceRelease(t.Context(), "r", "", 0); len(taken) != 0 || err != nil {
			t.Errorf("of a free lock: %v, %v", taken, err)
		}
		_, err = sc.ForceRelease(t.Context(), "r", want[0], 0)
		isErr(t, err, lock.ErrNotHolder)
		_, err = sc.ForceRelease(t.Context(), "r", "", time.Hour)
		isErr(t, err, lock.ErrInvalid)
	})
}

func TestWatch(t *testing.T) {
	bubble(t, func(t *testing.T, e *env) {
		sc := e.sidecar(func(o *Options) { o.Namespace = "ns" })
		s := sc.session()
		a := must(t, s, named("a"))
		must(t, s, named("b"))
		must(t, s, named("other"))
		type seen struct {
			Kind WatchKind
			Name string
		}
		ch := make(chan seen)
		ctx, cancel := context.WithCancel(t.Context())
		end := make(chan error, 1)
		go func() {
			end <- sc.Watch(ctx, "", time.Second, func(ev WatchEvent) error {
				ch <- seen{ev.Kind, string(ev.Status.Resource)}
				return nil
			})
		}()
		expect := func(want ...seen) {
			t.Helper()
			for _, w := range want {
				if got := <-ch; got != w {
					t.Errorf("event %+v, want %+v", got, w)
				}
			}
		}
		expect(seen{Current, "a"}, seen{Current, "b"}, seen{Current, "other"}, seen{Synced, ""})
		if _, err := s.Release(t.Context(), a.LockID, ""); err != nil {
			t.Error(err)
		}
		p := begin(sc.session(), named("b"))
		must(t, s, named("c"))
		expect(seen{Free, "a"}, seen{Changed, "b"}, seen{Changed, "c"})
		p.cancel()
		sc.way.on(down, opList) // a store that is away for a while
		time.Sleep(5 * time.Second)
		sc.way.on(nil, opList)
		expect(seen{Changed, "b"})
		time.Sleep(5 * time.Second) // nothing changed but the age
		cancel()
		if err := <-end; !errors.Is(err, context.Canceled) {
			t.Errorf("Watch = %v", err)
		}

		stop := errors.New("stop")
		isErr(t, sc.Watch(t.Context(), "", 0, func(WatchEvent) error { return stop }), stop)
		isErr(t, sc.Watch(t.Context(), "", time.Hour, nil), lock.ErrInvalid)
		sc.way.on(down, opList)
		isErr(t, sc.Watch(t.Context(), "", 0, nil), lock.ErrUnavailable)
	})
}

// TestLookReadsAllPages: more resources than one page of the store.
func TestLookReadsAllPages(t *testing.T) {
	bubble(t, func(t *testing.T, e *env) {
		sc := e.sidecar()
		s := sc.session()
		const n = lock.MaxPage + 5
		for i := range n {
			must(t, s, named(time.Duration(i).String()))
		}
		all, _, err := sc.look(t.Context(), "", nil)
		if err != nil || len(all) != n {
			t.Errorf("%d resources, %v, want %d", len(all), err, n)
		}
	})
}

// slowObserver takes a second for each loss.
type slowObserver struct{ noObserver }

func (slowObserver) HoldLost(LostReason) { time.Sleep(time.Second) }

// TestInfoHasCountedWhoWasAnswered: a wait ends in the same moment in which another
// hold of the session is lost, and what is told of that takes its time.
func TestInfoHasCountedWhoWasAnswered(t *testing.T) {
	bubble(t, func(t *testing.T, e *env) {
		a := e.sidecar(func(o *Options) { o.Observer = slowObserver{} })
		b := e.sidecar().session()
		g := must(t, b, exclusive)
		s := a.session()
		must(t, s, with(exclusive, func(r *AcquireRequest) { r.Resource, r.MaxHold = "x", time.Second }))
		p := begin(s, exclusive)
		e.jump.Add(int64(time.Second)) // and the timer of the session does not know it yet
		if _, err := b.Release(t.Context(), g.LockID, ""); err != nil {
			t.Fatal(err)
		}
		if _, err := p.wait(); err != nil {
			t.Fatal(err)
		}
		if i := a.Info(); i.Waiters != 0 || i.Holds != 2 { // one of them in its grace
			t.Errorf("%d holds, %d waiters", i.Holds, i.Waiters)
		}
		time.Sleep(time.Minute) // a mutex that is held does not let the time of the test go on
	})
}
