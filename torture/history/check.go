package history

import (
	"cmp"
	"fmt"
	"slices"
	"time"
)

// Overlaps finds holds that exclude each other and were relied on at one moment.
func Overlaps(holds []*Hold) []string {
	var complaints []string
	for _, all := range byResource(holds) {
		var open []*Hold // those that may still be relied on
		for _, h := range all {
			open = slices.DeleteFunc(open, func(o *Hold) bool { return o.End <= h.At })
			for _, o := range open {
				if from, to, ok := collide(o, h); ok {
					complaints = append(complaints, fmt.Sprintf("two had %s at %s:\n  %s\n  %s", h.Resource, span(from, to), o, h))
				}
			}
			if h.End > h.At {
				open = append(open, h)
			}
		}
	}
	return complaints
}

// collide tells when two holds excluded each other; the second was granted later.
func collide(a, b *Hold) (from, to time.Duration, ok bool) {
	if a.beside(b) {
		return 0, 0, false
	}
	// One of them must be exclusive for as long as both are there.
	to = max(min(a.exclusiveUntil(), b.End), min(a.End, b.exclusiveUntil()))
	return b.At, to, to > b.At
}

// Fences finds fences that do not grow: that of an exclusive hold, or of a permit, is larger than all
// before, that of a shared one not smaller than all of those before. Of two
// acquires, one was before the other when it had returned before the other was called.
func Fences(holds []*Hold) []string {
	var complaints []string
	for _, all := range byResource(holds) {
		called := slices.Clone(all)
		slices.SortFunc(called, func(a, b *Hold) int { return cmp.Compare(a.Call, b.Call) })
		var largest, exclusive *Hold // those with the largest fences so far
		exact := map[int64]*Hold{}
		i := 0
		for _, h := range called {
			for ; all[i].At < h.Call; i++ {
				if largest == nil || all[i].Fence > largest.Fence {
					largest = all[i]
				}
				if !all[i].Shared && (exclusive == nil || all[i].Fence > exclusive.Fence) {
					exclusive = all[i]
				}
			}
			switch {
			case !h.Shared && largest != nil && h.Fence <= largest.Fence:
				complaints = append(complaints, fmt.Sprintf("the fence has not grown on %s:\n  %s\n  %s", h.Resource, largest, h))
			case h.Shared && exclusive != nil && h.Fence < exclusive.Fence:
				complaints = append(complaints, fmt.Sprintf("the fence has fallen on %s:\n  %s\n  %s", h.Resource, exclusive, h))
			}
			if !h.Shared {
				if other := exact[h.Fence]; other != nil {
					complaints = append(complaints, fmt.Sprintf("one fence twice on %s:\n  %s\n  %s", h.Resource, other, h))
				}
				exact[h.Fence] = h
			}
		}
	}
	return complaints
}

// byResource sorts holds into resources, each in the order of their grants.
func byResource(holds []*Hold) map[string][]*Hold {
	m := map[string][]*Hold{}
	for _, h := range holds {
		m[h.Resource] = append(m[h.Resource], h)
	}
	for _, all := range m {
		slices.SortStableFunc(all, func(a, b *Hold) int { return cmp.Compare(a.At, b.At) })
	}
	return m
}

// Wrongs are what apps were told and cannot be.
func Wrongs(records []Record) []string {
	var complaints []string
	for _, r := range records {
		if r.Kind == Wrong {
			complaints = append(complaints, fmt.Sprintf("%s: %s was told what cannot be: %s", moment(r.At), r.App, r.Err))
		}
	}
	return complaints
}

// Grants are how many there were between two moments.
func Grants(records []Record, from, to time.Duration) (n int) {
	for _, r := range records {
		if r.Kind == Granted && from <= r.At && r.At < to {
			n++
		}
	}
	return n
}

// Count tells in a line how much has happened.
func Count(records []Record) string {
	n, losses := map[Kind]int{}, map[string]int{}
	least, attached, permits, several := 0, 0, 0, 0
	for _, r := range records {
		n[r.Kind]++
		if r.Kind == Granted && r.Limit != 0 {
			permits++
		}
		if r.Kind == Granted && r.Parts != nil {
			several++
		}
		switch {
		case r.Kind == Lost:
			losses[r.Reason]++
		case r.Kind == Granted && r.Keep != 0:
			least++
		case r.Kind == Granted && r.Handle != "":
			attached++
		}
	}
	return fmt.Sprintf("%d grants (%d with min_hold, %d by handles, %d permits, %d of several), %d refusals, %d downgrades, %d detached, %d losses %v; %d apps killed, %d forced releases, %d other faults",
		n[Granted], least, attached, permits, several, n[Refused], n[Downgraded], n[Detached], n[Lost], losses, n[Killed], n[Forced], n[Fault])
}
