package ledger

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"
)

// The latest names are known, whatever is put in again and when.
func TestMemory(t *testing.T) {
	m := memory[int]{size: 5}
	var model []string // the latest last
	for n := range 2000 {
		name := fmt.Sprint(rand.N(12))
		m.put(name, n)
		model = append(slices.DeleteFunc(model, func(s string) bool { return s == name }), name)
		if len(model) > m.size {
			model = model[1:]
		}
		for i := range 12 {
			name := fmt.Sprint(i)
			if _, known := m.get(name); known != slices.Contains(model, name) {
				t.Fatalf("step %d: %s is known: %t; the latest are %v", n, name, known, model)
			}
		}
		if v, _ := m.get(name); v != n {
			t.Fatalf("step %d: %s is %d", n, name, v)
		}
	}
}

// A client sends a request again and again, and gives each of these calls up: nothing is
// kept of them beside the one that waits, and nothing at all when that one gives up, too.
func TestRetriesLeaveNothing(t *testing.T) {
	for name, ask := range map[string]func(int) *Ask{
		"of one id":                    func(int) *Ask { return with(plain, func(a *Ask) { a.RequestID = "1" }) },
		"of one id, reentrant":         func(int) *Ask { return with(reentrant, func(a *Ask) { a.RequestID = "1" }) },
		"each of another, to re-enter": func(i int) *Ask { return with(reentrant, func(a *Ask) { a.RequestID = fmt.Sprint(i) }) },
	} {
		t.Run(name, func(t *testing.T) {
			l := open()
			limited := func(i int) *Ask { return with(*ask(i), func(a *Ask) { a.Wait = time.Hour }) }
			first, h := wait(t, l, limited(0))
			kept := func(when string, calls, claims int) {
				t.Helper()
				n := 0
				for c := h.calls; c != nil; c = c.next {
					n++
				}
				if n != calls || l.waits != calls || len(l.claims) != claims || len(h.claims) != claims || len(l.dues) != calls {
					t.Errorf("%s: %d calls, %d that wait, %d and %d ids, %d ends of waits; want %d calls and %d ids",
						when, n, l.waits, len(l.claims), len(h.claims), len(l.dues), calls, claims)
				}
			}
			for i := range 10_000 {
				_, c, err := l.Acquire(limited(i))
				if c == nil {
					t.Fatal(err)
				}
				l.GiveUp(c, context.Canceled)
				l.Effects()
			}
			kept("after the retries", 1, 1)
			l.GiveUp(first, context.Canceled)
			kept("after the first call", 0, 0)
		})
	}
}
