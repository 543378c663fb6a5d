package backendtest

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/locksidecar/locksidecar/lock"
)

// testGet checks everything that people are told about a resource.
func testGet(e *env) {
	a, b := e.sidecar(), e.sidecar()
	r := e.name("r")
	owner := lock.Owner{PID: 7, UID: 1000, GID: 100, Session: "größe \"x\"", Label: "l\n1", Metadata: map[string]string{"k": "v/1", "": "{}"}}
	ask := func(m lock.Mode, owner string) lock.Request {
		return lock.Request{ID: lock.NewHoldID(), Resource: r, Mode: m, Owner: owner}
	}
	began := time.Now()
	g, err := a.Acquire(e.ctx, ask(lock.Exclusive, owner.Encode()))
	if err != nil {
		e.Fatalf("Acquire: %v", err)
	}
	// What another program wrote as the owner is not hidden.
	odd := e.start(b, ask(e.shared(), "no JSON"))
	odd.queued()
	none := e.start(a, ask(lock.Exclusive, ""))
	none.queued()
	want := lock.Status{
		Resource: r,
		Holders:  []lock.Holding{{ID: g.ID, Mode: lock.Exclusive, Fence: g.Fence, Lease: a.idAt(r), Sidecar: a.name, Owner: owner}},
		Waiters: []lock.Holding{
			{ID: odd.q.ID, Mode: e.shared(), Lease: b.idAt(r), Sidecar: b.name},
			{ID: none.q.ID, Mode: lock.Exclusive, Lease: a.idAt(r), Sidecar: a.name},
		},
	}
	same := func(what string, got lock.Status) {
		e.Helper()
		for _, h := range slices.Concat(got.Holders, got.Waiters) {
			if h.Age < 0 || h.Age > time.Since(began)+time.Second/10 {
				e.Errorf("%s gives the age %s to what was asked for %s ago", what, h.Age, time.Since(began))
			}
		}
		if diff := cmp.Diff(want, got, cmp.FilterPath(func(p cmp.Path) bool { return p.Last().String() == ".Age" }, cmp.Ignore())); diff != "" {
			e.Errorf("%s (-want +got):\n%s", what, diff)
		}
	}
	for _, s := range []*sidecar{a, b} {
		same("Get", e.get(s.b, r))
		all := e.list(s.b, string(r), lock.Page{Limit: 10})
		if len(all) != 1 {
			e.Fatalf("List has %d resources, want 1: %+v", len(all), all)
		}
		same("List", all[0])
	}
	before := e.get(b.b, r)
	time.Sleep(30 * time.Millisecond)
	after := e.get(b.b, r)
	if after.Holders[0].Age < before.Holders[0].Age+20*time.Millisecond || after.Waiters[0].Age < before.Waiters[0].Age+20*time.Millisecond {
		e.Errorf("30 ms later the ages went from %s to %s and from %s to %s",
			before.Holders[0].Age, after.Holders[0].Age, before.Waiters[0].Age, after.Waiters[0].Age)
	}
	if !e.ordered() { // it could be the first, and odd waits for it
		none.cancel()
		none.failed(context.Canceled)
	}
	released := time.Now()
	e.release(a, g)
	odd.granted()
	if h := e.get(b.b, r).Holders[0]; h.Age > time.Since(released)+10*time.Millisecond {
		e.Errorf("a waiter that was granted not %s ago has the age %s", time.Since(released), h.Age)
	}
	e.release(b, odd.grant)
	if e.ordered() {
		e.release(a, none.granted())
	}
	if diff := cmp.Diff(lock.Status{Resource: r}, e.get(b.b, r)); diff != "" {
		e.Errorf("Get of a free resource (-want +got):\n%s", diff)
	}
}

// testList checks order, prefix and paging.
func testList(e *env) {
	a, b := e.sidecar(), e.sidecar()
	var want []lock.Resource
	var grants []lock.Grant
	for i := range 13 {
		r := e.name(fmt.Sprintf("x/%d", i*7)) // byte order is not the order of numbers
		want = append(want, r)
		grants = append(grants, e.acquire([]*sidecar{a, b}[i%2], r, e.shared()))
	}
	for _, r := range []string{"w", "x", "x0", "y"} { // around the prefix
		g := e.acquire(a, e.name(r), lock.Exclusive)
		defer e.release(a, g)
	}
	slices.Sort(want)
	prefix := e.prefix + "x/"
	for _, limit := range []int{1, 6, 13, lock.MaxPage} {
		var got []lock.Resource
		var after lock.Resource
		for pages := 0; ; pages++ {
			page := e.list(b.b, prefix, lock.Page{After: after, Limit: limit})
			if len(page) > limit {
				e.Errorf("a page of %d has %d", limit, len(page))
			}
			if len(page) == 0 {
				break
			}
			if pages > len(want) {
				e.Fatalf("paging by %d does not end", limit)
			}
			for _, st := range page {
				got = append(got, st.Resource)
			}
			after = got[len(got)-1]
		}
		if diff := cmp.Diff(want, got); diff != "" {
			e.Errorf("all pages of %d (-want +got):\n%s", limit, diff)
		}
	}
	// A page is full as long as there is enough.
	if page := e.list(a.b, prefix, lock.Page{After: want[3], Limit: 9}); len(page) != 9 || page[0].Resource != want[4] {
		e.Errorf("the page of 9 after %q has %+v", want[3], page)
	}
	// After need not be there, nor begin with the prefix.
	if page := e.list(a.b, prefix, lock.Page{After: e.name("a"), Limit: 1}); len(page) != 1 || page[0].Resource != want[0] {
		e.Errorf("the page after a name before all has %+v", page)
	}
	if page := e.list(a.b, prefix, lock.Page{After: e.name("z"), Limit: 1}); len(page) != 0 {
		e.Errorf("the page after a name behind all has %+v", page)
	}
	if page := e.list(a.b, e.prefix+"nobody", lock.Page{Limit: 1}); len(page) != 0 {
		e.Errorf("a prefix of nobody has %+v", page)
	}
	for i, g := range grants {
		e.release([]*sidecar{a, b}[i%2], g)
	}
	if page := e.list(a.b, prefix, lock.Page{Limit: 10}); len(page) != 0 {
		e.Errorf("after the release List has %+v", page)
	}
}

// oddNames are ends of names that a store could mistake for one another, or for more
// than a name.
func (e *env) oddNames() []string {
	odd := []string{
		"a", "A", "a ", " a", "a  ", "á", "a\u0301", "ａ", "ß", "ss", "日本", "🔒", "\u200b",
		"/", "//", "a/", "a//b", "a/b", "../x", "./x", ".", "..",
		":", "a:b", "a::b", "{", "}", "{}", "{a}", "a{b}c", "}{", "{a}{b}",
		"*", "a*", "?", "[", "]", "[a]", "[^a]", "\\", "\\*", "%", "%41", "_", "a_", "a%",
		"'", "''", "\"", "`", ";", "--", "#", "$", "${a}", "%s", "%!", "(", ")", "|", "&", "<", ">", "=", "+", ",", "@", "~", "^", "!", "-", "0", "00", "-1", "1e3",
	}
	if e.limits.LongNames == "" {
		odd = append(odd, e.longest("long"), e.longest("long")[1:], e.longest("Long"), e.longest("日本"))
	}
	return odd
}

// longest fills a name up to the longest there is.
func (e *env) longest(s string) string {
	return s + strings.Repeat("x", lock.MaxResourceBytes-len(e.prefix)-len(s))
}

// testOddNames: no character of a name means anything to the store.
func testOddNames(e *env) {
	a, b := e.sidecar(), e.sidecar()
	odd := e.oddNames()
	grants := make(map[lock.Resource]lock.Grant)
	for _, s := range odd {
		r, err := lock.ParseResource(e.prefix + s)
		if err != nil {
			e.Fatalf("%q: %v", s, err)
		}
		grants[r] = e.acquire(a, r, lock.Exclusive) // fails when it is the same as another
	}
	for r, g := range grants {
		st := e.holds(b.b, r, []lock.HoldID{g.ID}, nil)
		if st.Resource != r {
			e.Errorf("%q is told as %q", r, st.Resource)
		}
		if held := e.refused(b, r, e.shared()); held.Status.Resource != r {
			e.Errorf("a refusal of %q names %q", r, held.Status.Resource)
		}
	}
	for _, prefix := range []string{"", "a", "á", "a\u0301", "日", "a/", ".", "a:", "{", "{a}", "}", "*", "a*", "?", "[", "[a]", "[^a", "\\", "%", "_", "a_", "'", "\"", "$", "-", e.longest("long")} {
		prefix = e.prefix + prefix
		var want, got []lock.Resource
		for r := range grants {
			if strings.HasPrefix(string(r), prefix) {
				want = append(want, r)
			}
		}
		slices.Sort(want)
		for _, st := range e.list(b.b, prefix, lock.Page{Limit: lock.MaxPage}) {
			got = append(got, st.Resource)
		}
		if diff := cmp.Diff(want, got); diff != "" {
			e.Errorf("List(%q) (-want +got):\n%s", prefix, diff)
		}
	}
	// Hand-off and forced release work on every name as well.
	for r, g := range grants {
		w := e.queue(b, r, lock.Exclusive)
		e.release(a, g)
		w.granted()
		e.force(e.ctx, a.b, r, w.q.ID, 0).ok()
		b.taken(w.q.ID)
		e.holds(a.b, r, nil, nil)
	}
}

// testDeadNotListed: people see no hold and no waiter of a lease that is over.
func testDeadNotListed(e *env) {
	b := e.sidecar()
	dead := e.mortal()
	r := e.name("taken")
	g := e.acquire(b, r, lock.Exclusive)
	e.acquire(dead, e.name("dead"), lock.Exclusive)
	if e.sharing() {
		e.acquire(dead, e.name("both"), lock.Shared)
	}
	both := e.acquire(b, e.name("both"), e.shared())
	w := e.queue(dead, r, lock.Exclusive)
	dead.ended()
	e.holds(b.b, r, []lock.HoldID{g.ID}, nil)
	e.holds(b.b, both.Resource, []lock.HoldID{both.ID}, nil)
	e.holds(b.b, e.name("dead"), nil, nil)
	var got []lock.Resource
	for _, st := range e.list(b.b, e.prefix, lock.Page{Limit: 10}) {
		got = append(got, st.Resource)
		if len(st.Holders) != 1 || len(st.Waiters) != 0 {
			e.Errorf("List has %+v, want one holder", st)
		}
	}
	if diff := cmp.Diff([]lock.Resource{both.Resource, r}, got); diff != "" {
		e.Errorf("List (-want +got):\n%s", diff)
	}
	held := e.refused(b, r, lock.Exclusive)
	if !slices.Equal(ids(held.Status.Holders), []lock.HoldID{g.ID}) {
		e.Errorf("a refusal names the holders %+v", held.Status.Holders)
	}
	w.died()
	e.release(b, g)
	e.release(b, both)
}
