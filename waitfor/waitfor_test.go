package waitfor

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/locksidecar/locksidecar/lock"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const (
	x = lock.Exclusive
	s = lock.Shared
)

var permit = lock.Permits(2)

// party is a hold or a wait of an owner "session.label". The id says whose it is.
func party(owner string, mode lock.Mode, held ...string) lock.Holding {
	ref, label, _ := strings.Cut(owner, ".")
	h := lock.Holding{ID: lock.HoldID(owner + fmt.Sprint(mode, held)), Mode: mode, Age: 1500 * time.Millisecond, Sidecar: "pod-" + ref, Owner: lock.Owner{Ref: ref, Session: "app", Label: label, PID: 7}}
	if len(held) > 0 {
		h.Owner.Nested = &lock.Nested{Asked: int64(len(held[0])), Held: held}
	}
	return h
}

func lockOf(name string, holders []lock.Holding, waiters ...lock.Holding) lock.Status {
	return lock.Status{Resource: lock.Resource(name), Holders: holders, Waiters: waiters}
}

func held(hs ...lock.Holding) []lock.Holding { return hs }

// path is a circle as its owners and resources.
func path(c Cycle) string {
	var b strings.Builder
	for _, e := range c {
		fmt.Fprintf(&b, "%s.%s>%s", e.Waiter.Owner.Ref, e.Waiter.Owner.Label, e.Resource)
		if e.Queued {
			b.WriteString("(queue)")
		}
		if e.Beside {
			b.WriteString("(beside)")
		}
		b.WriteByte(' ')
	}
	return strings.TrimSpace(b.String())
}

func revoked(h lock.Holding) lock.Holding {
	h.Revoked = true
	return h
}

// kept is a hold that nobody has any more.
func kept(h lock.Holding) lock.Holding {
	h.Kept = time.Minute
	return h
}

func TestCycles(t *testing.T) {
	for name, c := range map[string]struct {
		locks []lock.Status
		want  string
	}{
		"none": {nil, ""},
		"two": {[]lock.Status{
			lockOf("a", held(party("1.p", x)), party("2.q", x, "b")),
			lockOf("b", held(party("2.q", x)), party("1.p", x, "a")),
		}, "2.q>a 1.p>b"},
		"one session, two labels": {[]lock.Status{
			lockOf("a", held(party("1.p", x)), party("1.q", x, "b")),
			lockOf("b", held(party("1.q", x)), party("1.p", x, "a")),
		}, "1.q>a 1.p>b"},
		"two sessions, one label": {[]lock.Status{
			lockOf("a", held(party("1.p", x)), party("2.p", x, "b")),
			lockOf("b", held(party("3.p", x)), party("1.p", x, "a")),
		}, ""},
		"no label": {[]lock.Status{
			lockOf("a", held(party("1", x)), party("2.q", x, "b")),
			lockOf("b", held(party("2.q", x)), party("1", x, "a")),
		}, ""},
		"no session": {[]lock.Status{
			lockOf("a", held(party(".p", x)), party("2.q", x, "b")),
			lockOf("b", held(party("2.q", x)), party(".p", x, "a")),
		}, ""},
		"two permits, and both who have one stand still": {[]lock.Status{
			lockOf("p", held(party("1.p", permit), party("2.q", permit)), party("3.r", permit, "a")),
			lockOf("a", held(party("3.r", x)), party("1.p", x, "p"), party("2.q", x, "p")),
		}, "3.r>p 1.p>a 3.r>p(beside) 2.q>a(beside)"},
		"two permits, and one who has one works": {[]lock.Status{
			lockOf("p", held(party("1.p", permit), party("2.q", permit)), party("3.r", permit, "a")),
			lockOf("a", held(party("3.r", x)), party("1.p", x, "p")),
		}, ""},
		"two permits, and one who has one waits for somebody else": {[]lock.Status{
			lockOf("p", held(party("1.p", permit), party("2.q", permit)), party("3.r", permit, "a")),
			lockOf("a", held(party("3.r", x)), party("1.p", x, "p")),
			lockOf("b", held(party("4.s", x)), party("2.q", x, "p")),
		}, ""},
		"two permits, and who has the other stands still by a detour": {[]lock.Status{
			lockOf("p", held(party("1.p", permit), party("2.q", permit)), party("3.r", permit, "a")),
			lockOf("a", held(party("3.r", x)), party("1.p", x, "p"), party("4.s", x, "b")),
			lockOf("b", held(party("4.s", x)), party("2.q", x, "p")),
		}, "3.r>p 1.p>a 3.r>p(beside) 2.q>b(beside) 4.s>a(beside)"},
		"two permits, and one is free": {[]lock.Status{
			lockOf("p", held(party("1.p", permit)), party("3.r", permit, "a")),
			lockOf("a", held(party("3.r", x)), party("1.p", x, "p")),
		}, ""},
		"two permits, and one is forced": {[]lock.Status{
			lockOf("p", held(party("1.p", permit), revoked(party("2.q", permit))), party("3.r", permit, "a")),
			lockOf("a", held(party("3.r", x)), party("1.p", x, "p"), party("2.q", x, "p")),
		}, ""},
		"two permits, and one is kept": {[]lock.Status{
			lockOf("p", held(party("1.p", permit), kept(party("2.q", permit))), party("3.r", permit, "a")),
			lockOf("a", held(party("3.r", x)), party("1.p", x, "p"), party("2.q", x, "p")),
		}, ""},
		"two permits, and one has no label": {[]lock.Status{
			lockOf("p", held(party("1.p", permit), party("2", permit)), party("3.r", permit, "a")),
			lockOf("a", held(party("3.r", x)), party("1.p", x, "p"), party("2", x, "p")),
		}, ""},
		"two permits, one of them its own": {[]lock.Status{
			lockOf("p", held(party("1.p", permit), party("3.r", permit)), party("3.r", permit, "a")),
			lockOf("a", held(party("3.r", x)), party("1.p", x, "p")),
		}, "3.r>p 1.p>a 3.r>p(beside)"},
		"a lock behind permits": {[]lock.Status{
			lockOf("p", held(party("1.p", permit), party("2.q", permit)), party("3.r", x, "a")),
			lockOf("a", held(party("3.r", x)), party("1.p", x, "p")),
		}, "3.r>p 1.p>a"},
		"a permit behind a lock": {[]lock.Status{
			lockOf("p", held(party("1.p", x)), party("3.r", permit, "a")),
			lockOf("a", held(party("3.r", x)), party("1.p", x, "p")),
		}, "3.r>p 1.p>a"},
		"itself": {[]lock.Status{lockOf("a", held(party("1.p", x)), party("1.p", x, "a"))}, ""},
		"readers beside each other": {[]lock.Status{
			lockOf("a", held(party("1.p", s)), party("2.q", s, "b")),
			lockOf("b", held(party("2.q", x)), party("1.p", x, "a")),
		}, ""},
		"a reader among many": {[]lock.Status{
			lockOf("a", held(party("3.r", s), party("1.p", s)), party("2.q", x, "b")),
			lockOf("b", held(party("2.q", x)), party("1.p", s, "a")),
		}, "2.q>a 1.p>b"},
		"behind a writer": {[]lock.Status{
			lockOf("a", held(party("1.p", s)), party("3.w", x), party("2.q", s, "b")),
			lockOf("b", held(party("2.q", x)), party("1.p", x, "a")),
		}, "2.q>a(queue) 3.w>a 1.p>b"},
		"behind a writer without label": {[]lock.Status{
			lockOf("a", held(party("1.p", s)), party("3", x), party("2.q", s, "b")),
			lockOf("b", held(party("2.q", x)), party("1.p", x, "a")),
		}, ""},
		"in front of a writer": {[]lock.Status{
			lockOf("a", held(party("1.p", s)), party("2.q", s, "b"), party("3.w", x)),
			lockOf("b", held(party("2.q", x)), party("1.p", x, "a")),
		}, ""},
		"a forced hold": {[]lock.Status{
			lockOf("a", held(revoked(party("1.p", x))), party("2.q", x, "b")),
			lockOf("b", held(party("2.q", x)), party("1.p", x, "a")),
		}, ""},
		"a hold that is kept": {[]lock.Status{
			lockOf("a", held(kept(party("1.p", x))), party("2.q", x, "b")),
			lockOf("b", held(party("2.q", x)), party("1.p", x, "a")),
		}, ""},
		"its own request is in front": {[]lock.Status{
			lockOf("a", held(party("1.p", x)), party("2.q", x, "b"), party("2.q", x, "b", "c")),
			lockOf("b", held(party("2.q", x)), party("1.p", x, "a")),
		}, "2.q>a 1.p>b"},
		"two circles": {[]lock.Status{
			lockOf("a", held(party("1.p", x)), party("2.q", x, "b")),
			lockOf("b", held(party("2.q", x)), party("1.p", x, "a")),
			lockOf("c", held(party("3.r", x)), party("4.t", x, "d")),
			lockOf("d", held(party("4.t", x)), party("3.r", x, "c")),
		}, "2.q>a 1.p>b; 4.t>c 3.r>d"},
	} {
		t.Run(name, func(t *testing.T) {
			var got []string
			for _, c := range New(c.locks).Cycles() {
				got = append(got, path(c))
				if !c.Stands(locksOf(c)) {
					t.Errorf("%v does not stand", c)
				}
			}
			if s := strings.Join(got, "; "); s != c.want {
				t.Errorf("got %q, want %q", s, c.want)
			}
		})
	}
}

// locksOf are the locks in which a circle stands.
func locksOf(c Cycle) (all []lock.Status) {
	for _, e := range c {
		st := lock.Status{Resource: e.Resource}
		if e.Queued {
			st.Waiters = append(st.Waiters, e.Blocker)
		} else {
			st.Holders = append(st.Holders, e.Blocker)
		}
		st.Waiters = append(st.Waiters, e.Waiter)
		all = append(all, st)
	}
	return all
}

// TestStands: a circle of which any hold or wait is another one, or is gone, does not stand.
func TestStands(t *testing.T) {
	c := New([]lock.Status{
		lockOf("a", held(party("1.p", s)), party("3.w", x), party("2.q", s, "b")),
		lockOf("b", held(party("2.q", x)), party("1.p", x, "a")),
	}).Cycles()[0]
	for name, change := range map[string]func(all []lock.Status){
		"hold gone":       func(all []lock.Status) { all[2].Holders = nil },
		"another hold":    func(all []lock.Status) { all[2].Holders[0].ID += "'" },
		"forced":          func(all []lock.Status) { all[2].Holders[0].Revoked = true },
		"downgraded":      func(all []lock.Status) { all[2].Holders[0].Mode = s },
		"another owner":   func(all []lock.Status) { all[2].Holders[0].Owner.Label = "else" },
		"wait gone":       func(all []lock.Status) { all[2].Waiters = nil },
		"another wait":    func(all []lock.Status) { all[2].Waiters[0].ID += "'" },
		"writer gone":     func(all []lock.Status) { all[0].Waiters = all[0].Waiters[1:] },
		"writer behind":   func(all []lock.Status) { slices.Reverse(all[0].Waiters) },
		"nobody any more": func(all []lock.Status) { all[1] = lock.Status{Resource: "a"} },
	} {
		all := locksOf(c)
		if !c.Stands(all) {
			t.Fatal("it does not stand as it is")
		}
		if change(all); c.Stands(all) {
			t.Errorf("%s: it stands", name)
		}
	}
}

// TestVictims: the one who asked last first, whatever order the circle is in, and never one
// for whom others wait only in a queue.
func TestVictims(t *testing.T) {
	locks := []lock.Status{
		lockOf("a", held(party("1.p", s)), party("3.w", x), party("2.q", s, "bb")),
		lockOf("bb", held(party("2.q", x)), party("1.p", x, "a")),
	}
	c := New(locks).Cycles()[0]
	for range c {
		var got []string
		for _, h := range c.Victims() {
			got = append(got, h.Owner.Label)
		}
		if fmt.Sprint(got) != "[q p]" {
			t.Errorf("of %s: %v", path(c), got)
		}
		c = append(c[1:], c[0])
	}
}

// TestWords: the text names everybody, and is bounded.
func TestWords(t *testing.T) {
	c := New([]lock.Status{
		lockOf("a", held(party("1.p", x)), party("2.q", x, "b")),
		lockOf("b", held(party("2.q", x)), party("1.p", x, "a")),
	}).Cycles()[0]
	want := `q of app (pid 7 at pod-2) waits 1.5s for "a", which is held EXCLUSIVE by p of app (pid 7 at pod-1); ` +
		`p of app (pid 7 at pod-1) waits 1.5s for "b", which is held EXCLUSIVE by q of app (pid 7 at pod-2)`
	if got := c.String(); got != want {
		t.Errorf("got  %s\nwant %s", got, want)
	}
	for len(c) < 1000 {
		c = append(c, c...)
	}
	if got := c.String(); len(got) > maxWords+300 || !strings.HasSuffix(got, "more") {
		t.Errorf("%d bytes: %s", len(got), got)
	}
	for want, h := range map[string]lock.Holding{
		"pid ?":              {},
		"app (pid 7 at n-1)": {Sidecar: "n-1", Owner: lock.Owner{Session: "app", PID: 7}},
		"o (pid ?)":          {Owner: lock.Owner{Label: "o"}},
	} {
		if got := Name(h); got != want {
			t.Errorf("%q is called %q", want, got)
		}
	}
}

// TestRandom compares with a plain search for a way back, over random locks.
func TestRandom(t *testing.T) {
	for seed := range uint64(1500) {
		r := rand.New(rand.NewPCG(seed, 1))
		var locks []lock.Status
		for i := range 1 + r.IntN(4) {
			st := lock.Status{Resource: lock.Resource(fmt.Sprint("r", i))}
			mode := lock.Mode(1 + r.IntN(2))
			one := func(m lock.Mode) lock.Holding {
				h := party(fmt.Sprintf("%d.o", r.IntN(5)), m)
				h.ID = lock.HoldID(fmt.Sprint(i, "-", len(st.Holders)+len(st.Waiters)))
				return h
			}
			for range 1 + r.IntN(2)*int(mode-1) {
				st.Holders = append(st.Holders, one(mode))
			}
			for range r.IntN(4) {
				st.Waiters = append(st.Waiters, one(lock.Mode(1+r.IntN(2))))
			}
			locks = append(locks, st)
		}
		g := New(locks)
		for _, st := range locks {
			for _, w := range st.Waiters {
				c := g.Cycle(w.ID)
				if want := returns(locks, w); (c != nil) != want {
					t.Fatalf("seed %d: from %s: got %s, want one: %t\n%+v", seed, w.ID, path(c), want, locks)
				}
				for i, e := range c {
					if next := c[(i+1)%len(c)]; WhoOf(e.Blocker) != WhoOf(next.Waiter) || c[0].Waiter.ID != w.ID || c[len(c)-1].Queued {
						t.Fatalf("seed %d: no circle: %s", seed, path(c))
					}
				}
			}
		}
	}
}

// returns tells, step by step, whether the owner of a wait is reached from it by a hold of its.
func returns(locks []lock.Status, w lock.Holding) bool {
	waits := []lock.Holding{w}
	seen := map[lock.HoldID]bool{}
	for len(waits) > 0 {
		now := waits[0]
		waits = waits[1:]
		if seen[now.ID] {
			continue
		}
		seen[now.ID] = true
		var blockers []lock.Holding
		for _, st := range locks {
			i := slices.IndexFunc(st.Waiters, func(h lock.Holding) bool { return h.ID == now.ID })
			if i < 0 {
				continue
			}
			for _, h := range st.Holders {
				if excludes(h, now) && WhoOf(h) != WhoOf(now) {
					if WhoOf(h) == WhoOf(w) {
						return true
					}
					blockers = append(blockers, h)
				}
			}
			for _, h := range st.Waiters[:i] {
				if excludes(h, now) && WhoOf(h) != WhoOf(now) && WhoOf(h) != WhoOf(w) {
					blockers = append(blockers, h)
				}
			}
		}
		for _, b := range blockers {
			for _, st := range locks {
				for _, h := range st.Waiters {
					if WhoOf(h) == WhoOf(b) {
						waits = append(waits, h)
					}
				}
			}
		}
	}
	return false
}

// TestTree draws each waiter once.
func TestTree(t *testing.T) {
	var draw func(n *Node) string
	draw = func(n *Node) string {
		var parts []string
		for _, b := range n.Blocks {
			s := string(b.Resource)
			if b.Others > 0 {
				s += fmt.Sprint("+", b.Others)
			}
			parts = append(parts, s+":"+draw(b.Node))
		}
		name := n.Of.Owner.Ref + "." + n.Of.Owner.Label
		if n.Again {
			name += "*"
		}
		if parts == nil {
			return name
		}
		return name + "(" + strings.Join(parts, " ") + ")"
	}
	for name, c := range map[string]struct {
		locks []lock.Status
		want  string
	}{
		"nobody waits": {[]lock.Status{lockOf("a", held(party("1.p", x)))}, ""},
		"a chain": {[]lock.Status{
			lockOf("a", held(party("1.p", x)), party("2.q", x, "b"), party("4", x)),
			lockOf("b", held(party("2.q", x)), party("3.r", x, "c")),
		}, "1.p(a:2.q(b:3.r) a:4.)"},
		"the top comes last": {[]lock.Status{
			lockOf("a", held(party("1.p", x)), party("2.q", x, "b")),
			lockOf("b", held(party("3.r", x)), party("1.p", x, "a")),
		}, "3.r(b:1.p(a:2.q))"},
		"a circle": {[]lock.Status{
			lockOf("a", held(party("1.p", x)), party("2.q", x, "b")),
			lockOf("b", held(party("2.q", x)), party("1.p", x, "a")),
		}, "1.p(a:2.q(b:1.p*))"},
		"readers and a writer": {[]lock.Status{
			lockOf("a", held(party("1", s), party("2", s)), party("3", x), party("4", s)),
		}, "1.(a+1:3.(a:4.))"},
		"no sessions": {[]lock.Status{
			lockOf("a", held(party("", x)), party("", s)),
		}, ".(a:.)"},
		"granted in a moment": {[]lock.Status{lockOf("a", nil, party("1.p", x))}, ""},
	} {
		var got []string
		for _, n := range New(c.locks).Tree() {
			got = append(got, draw(n))
		}
		if s := strings.Join(got, " | "); s != c.want {
			t.Errorf("%s: got %q, want %q", name, s, c.want)
		}
	}
}
