package history

import (
	"cmp"
	"fmt"
	"math"
	"slices"
	"time"
)

// Hold is what an app has believed of one hold. From Granted to End the app relied
// on it, and had a right to.
type Hold struct {
	Record // the grant

	End    time.Duration // nobody else may have been let in before
	Turned time.Duration // when it was to be shared, where it was downgraded; else 0
	TurnBy time.Duration // by then it was shared; never: unknown
	Freed  time.Duration // by then it was released; never: unknown
	Ended  string        // how it ended, for people
}

// never is later than everything.
const never = time.Duration(math.MaxInt64)

// exclusive says whether the hold kept out everybody up to some moment after at.
func (h *Hold) exclusiveUntil() time.Duration {
	switch {
	case h.Shared:
		return 0
	case h.Turned != 0:
		return min(h.Turned, h.End)
	default:
		return h.End
	}
}

func (h *Hold) String() string {
	mode := "exclusive"
	if h.Shared {
		mode = "shared"
	}
	return fmt.Sprintf("%s: %s hold %s on %s of %s, fence %d, asked for %s, %s",
		span(h.At, h.End), mode, h.Lock, h.Resource, h.App, h.Fence, moment(h.Call), h.Ended)
}

func moment(at time.Duration) string { return fmt.Sprintf("%.6f", at.Seconds()) }

func span(from, to time.Duration) string { return moment(from) + "–" + moment(to) }

// told are the reasons for a loss that comes with a grace of its own: for how long
// others are kept out does not follow from what the app was told before.
var told = map[string]bool{
	"FORCED": true, "MAX_HOLD": true, "SESSION_EXPIRED": true, "STOPPING": true,
	"NOT_HOLDER": true, "SESSION_CLOSED": true,
}

// Holds reads the holds out of a history, in the order of their grants.
//
// What an app may rely on is what it was told. At each look that found the hold good
// it may rely on it, at that moment, whatever happens: a loss must be told before
// others are let in. Without further news it may rely on it until the moment that it
// was told then, unless the hold was ended by a rule that does not wait for a frozen
// app: its process was killed, an administrator forced it, its session's TTL or its
// max_hold was over, its sidecar was stopped. After a loss with a grace it may rely on
// others being kept out until the grace is over.
func Holds(records []Record) []*Hold {
	records = slices.Clone(records)
	slices.SortStableFunc(records, func(a, b Record) int { return cmp.Compare(a.At, b.At) })
	h := holds{of: map[string]*beliefs{}}
	for _, r := range records {
		h.take(r)
	}
	breaks := slices.DeleteFunc(records, func(r Record) bool {
		return r.Kind != Killed && r.Kind != Stopped && r.Kind != Died && r.Kind != Forced
	})
	var all []*Hold
	for _, b := range h.order {
		all = append(all, b.judge(breaks))
	}
	return all
}

type holds struct {
	of    map[string]*beliefs
	order []*beliefs
}

// beliefs are what is known of a hold so far.
type beliefs struct {
	Hold
	seen  time.Duration // the last look that found it good
	until time.Duration // the latest end that a look was told
	lost  *Record
}

func (h *holds) take(r Record) {
	if r.Kind == Granted {
		b := &beliefs{Hold: Hold{Record: r, TurnBy: never, Freed: never}, until: r.Until}
		if r.Until != 0 {
			b.seen = r.At
		}
		h.of[r.Lock] = b
		h.order = append(h.order, b)
		return
	}
	b := h.of[r.Lock]
	if b == nil {
		return // of nobody's hold, or no hold at all
	}
	switch r.Kind {
	case Checked, Leaving:
		b.seen, b.until = r.At, max(b.until, r.Until)
		if r.Kind == Leaving {
			b.Ended = "released"
		}
	case Downgraded:
		b.Turned = r.Call
		if r.Err == "" {
			b.TurnBy = r.At
		}
	case Left:
		if b.lost != nil { // that ends the grace
			b.lost.Until = min(b.lost.Until, r.Call)
		} else if r.Err == "" {
			b.Freed = r.At
		}
	case Lost:
		b.lost = &r
	}
}

// judge finds the end of a hold, with what was done to whom.
func (b *beliefs) judge(breaks []Record) *Hold {
	h := b.Hold
	seen := b.seen // the end that nothing but the death of the app takes back
	if b.lost != nil {
		seen = max(seen, b.lost.Until)
	}
	// The end where nothing was heard any more.
	silent := b.until
	switch {
	case b.lost == nil && h.Ended != "": // it was left then
		silent = 0
	case b.lost != nil && told[b.lost.Reason], h.Mortal:
		silent = 0
	case b.lost != nil:
		silent = min(silent, b.lost.At)
	}
	if b.lost != nil {
		h.Ended = fmt.Sprintf("lost %s, %s", moment(b.lost.At), b.lost.Reason)
	}
	h.End = max(seen, silent)
	for _, r := range breaks {
		if r.At > h.End {
			break
		}
		mine := r.Kind == Killed && r.App == h.App || r.Kind == Forced && r.Lock == h.Lock ||
			(r.Kind == Stopped || r.Kind == Died) && r.Side == h.Side && h.At <= r.At
		if !mine {
			continue
		}
		h.Ended += fmt.Sprintf("; %s %s", r.Kind, moment(r.At))
		if r.Kind == Stopped || r.Kind == Forced && r.Grace > 0 { // what it was told still holds
			h.End = max(r.At, seen)
		} else {
			h.End = r.At
		}
	}
	h.End = max(h.End, h.At)
	return &h
}
