package ledger

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/locksidecar/locksidecar/lock"
)

// TestOwners: who asks for one more says what it has, as the store names it, the latest first, and no more than fits.
func TestOwners(t *testing.T) {
	l := open(func(o *Options) { o.Holds, o.Waits = 1000, 1000 })
	ask := func(owner, name string) (*Hold, []string) {
		_, c, err := l.Acquire(&Ask{Resource: lock.Resource("ns/" + name), Name: name, Owner: owner, Mode: lock.Exclusive})
		if err != nil {
			t.Fatal(err)
		}
		h := c.Hold()
		q, held, wanted := l.Asked(h, h.ID(), lease, stopper(func() {}))
		if !wanted || q.Nested != (held != nil) {
			t.Fatalf("wanted %t, nested %t, held %v", wanted, q.Nested, held)
		}
		return h, held
	}
	grant := func(h *Hold) { l.Answered(h, h.ID(), lease, lock.Grant{ID: h.ID()}, nil) }
	expect := func(owner string, want ...string) {
		t.Helper()
		h, held := ask(owner, "one more")
		if !slices.Equal(held, want) {
			t.Errorf("%q holds %v, want %v", owner, held, want)
		}
		l.Answered(h, h.ID(), lease, lock.Grant{}, lock.ErrNotHolder)
	}
	var all []*Hold
	for _, n := range []string{"a", "b", "c"} {
		h, _ := ask("x", n)
		expect("x", namesOf(all)...) // it has what was granted
		grant(h)
		all = append(all, h)
	}
	other, _ := ask("", "d")
	grant(other)
	expect("y")
	expect("")
	expect("x", "ns/c", "ns/b", "ns/a")
	l.Release(all[1].ID(), "")
	expect("x", "ns/c", "ns/a")
	l.Release(all[2].ID(), "")
	expect("x", "ns/a")
	l.Release(all[0].ID(), "")
	expect("x")
	if len(l.owners.newest) != 0 {
		t.Errorf("left: %v", l.owners.newest)
	}
	for i := range 2 * lock.MaxNested {
		h, _ := ask("x", fmt.Sprint(i))
		grant(h)
		h, _ = ask("long", strings.Repeat("n", 500)+fmt.Sprint(i))
		grant(h)
	}
	for owner, want := range map[string]int{"x": lock.MaxNested, "long": lock.MaxNestedBytes / 500} {
		if _, held := ask(owner, "one more"); len(held) != want {
			t.Errorf("%q names %d, want %d", owner, len(held), want)
		}
	}
}

func namesOf(holds []*Hold) (names []string) {
	for _, h := range slices.Backward(holds) {
		names = append(names, string(h.Resource()))
	}
	return names
}

// TestDeadlocked ends the wait of all who share it, once.
func TestDeadlocked(t *testing.T) {
	l := open()
	_, c, err := l.Acquire(&Ask{Resource: "r", Name: "r", Mode: lock.Exclusive})
	if err != nil {
		t.Fatal(err)
	}
	h := c.Hold()
	stopped := false
	l.Asked(h, h.ID(), lease, stopper(func() { stopped = true }))
	dead := &LostError{}
	if l.Deadlocked(h, "another", dead) || !l.Deadlocked(h, h.ID(), dead) || l.Deadlocked(h, h.ID(), dead) {
		t.Error("it ends by its id, and once")
	}
	for _, e := range l.Effects() {
		if e.Kind == Stop {
			e.Stop.Stop()
		}
	}
	if a := l.Answers(); !stopped || len(a) != 1 || !errors.Is(a[0].Err, dead) || l.Size() != 0 {
		t.Errorf("stopped %t, answers %v, size %d", stopped, a, l.Size())
	}
}
