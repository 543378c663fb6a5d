package waitfor

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/locksidecar/locksidecar/lock"
)

// Stands tells whether every edge of c is there still, with the same ids. Where locks were
// read after all that c was made of, the whole circle was there at one moment between: each
// wait and each hold lasts from its first look to its second, because ids are not used twice.
func (c Cycle) Stands(locks []lock.Status) bool {
	for _, e := range c {
		if !slices.ContainsFunc(locks, func(st lock.Status) bool { return st.Resource == e.Resource && e.in(st) }) {
			return false
		}
	}
	return true
}

// in tells whether an edge is in what a look has shown.
func (e Edge) in(st lock.Status) bool {
	has := func(list []lock.Holding, h lock.Holding) int {
		return slices.IndexFunc(list, func(o lock.Holding) bool {
			return o.ID == h.ID && o.Mode == h.Mode && !o.Revoked && o.Kept == 0 && WhoOf(o) == WhoOf(h)
		})
	}
	w := has(st.Waiters, e.Waiter)
	if e.Queued {
		b := has(st.Waiters, e.Blocker)
		return b >= 0 && b < w
	}
	return w >= 0 && has(st.Holders, e.Blocker) >= 0
}

// Key is the same for the same circle, as one sidecar sees it from one of its members.
func (c Cycle) Key() string {
	var b strings.Builder
	for _, e := range c.circle() {
		fmt.Fprintf(&b, "%s %s ", e.Waiter.ID, e.Blocker.ID)
	}
	return b.String()
}

// Resources are those that the circle goes over, each once.
func (c Cycle) Resources() []lock.Resource {
	var all []lock.Resource
	for _, e := range c {
		if !slices.Contains(all, e.Resource) {
			all = append(all, e.Resource)
		}
	}
	return all
}

// Victims are the members of which one has to give up, in the order in which they should:
// the one who asked last first. Every sidecar that sees the circle names the same, because
// it goes by what the requests themselves say. A member for whom nobody waits but in a
// queue is not among them: there is always a younger one.
func (c Cycle) Victims() []lock.Holding {
	var all []lock.Holding
	c = c.circle()
	for i, e := range c {
		if before := c[(i+len(c)-1)%len(c)]; !before.Queued {
			all = append(all, e.Waiter)
		}
	}
	slices.SortFunc(all, func(a, b lock.Holding) int {
		return cmp.Or(cmp.Compare(asked(b), asked(a)), cmp.Compare(b.Owner.Ref, a.Owner.Ref), cmp.Compare(b.Owner.Label, a.Owner.Label))
	})
	return all
}

func asked(h lock.Holding) int64 {
	if h.Owner.Nested == nil {
		return 0
	}
	return h.Owner.Nested.Asked
}

// maxWords bounds the text of a circle, in bytes.
const maxWords = 1024

// String says the circle in words.
func (c Cycle) String() string {
	var b strings.Builder
	all := c
	c = c.circle()
	for i, e := range c {
		s := e.String()
		if i > 0 && b.Len()+len(s) > maxWords {
			fmt.Fprintf(&b, "; and %d more", len(c)-i)
			break
		}
		if i > 0 {
			b.WriteString("; ")
		}
		b.WriteString(s)
	}
	if len(all) > len(c) {
		b.WriteString("; who has one of the other permits cannot go on either")
	}
	return b.String()
}

// String says who waits for what, and who is in the way.
func (e Edge) String() string {
	verb := "held " + e.Blocker.Mode.String()
	if e.Queued {
		verb = "asked for before " + e.Blocker.Mode.String()
	}
	return fmt.Sprintf("%s waits %s for %q, which is %s by %s", Name(e.Waiter), round(e.Waiter.Age), string(e.Resource), verb, Name(e.Blocker))
}

// Name tells people who has a hold or waits.
func Name(h lock.Holding) string {
	name := h.Owner.Label
	switch {
	case name == "":
		name = h.Owner.Session
	case h.Owner.Session != "":
		name += " of " + h.Owner.Session
	}
	pid := "pid ?"
	if h.Owner.PID != 0 {
		pid = fmt.Sprintf("pid %d", h.Owner.PID)
	}
	where := pid
	if h.Owner.Principal != "" {
		where += " of " + h.Owner.Principal
	}
	if h.Sidecar != "" {
		where += " at " + h.Sidecar
	}
	if name == "" {
		return where
	}
	return name + " (" + where + ")"
}

func round(d time.Duration) time.Duration {
	if d < time.Second {
		return d.Round(time.Millisecond)
	}
	return d.Round(100 * time.Millisecond)
}
