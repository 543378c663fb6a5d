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
	Kept   time.Duration // until then the store keeps others out, whoever has it; 0: no promise
	Ended  string        // how it ended, for people
}

// never is later than everything.
const never = time.Duration(math.MaxInt64)

// exclusiveUntil is until when the hold kept everybody out.
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

// beside tells whether two holds may be there at the same time: readers, and permits of one number in slots of their own.
func (h *Hold) beside(o *Hold) bool {
	if h.Limit != 0 || o.Limit != 0 {
		return h.Limit == o.Limit && h.Slot != o.Slot
	}
	return h.Shared && o.Shared
}

func (h *Hold) String() string {
	mode := "exclusive"
	switch {
	case h.Shared:
		mode = "shared"
	case h.Limit != 0:
		mode = fmt.Sprintf("permit %d of %d,", h.Slot, h.Limit)
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
	"NOT_HOLDER": true, "SESSION_CLOSED": true, "TAKEN_OVER": true,
}

// Holds reads the holds out of a history, in the order of their grants. validity is for
// how long a hold is good after the last heartbeat of its sidecar was sent.
//
// What an app may rely on is what it was told, and what it was told arrives when the app
// is scheduled: no check depends on how soon that is.
//
// Without news it may rely on a hold until the moment that it was told last, also when it
// is frozen; but not where a rule ends the hold that does not wait for a frozen app: its
// process was killed, an administrator forced the release and grace is over, its
// session's TTL or its max_hold was over, its sidecar was stopped.
//
// With news it may rely on it all the same, up to the moment that the news are of: the
// stream of a session is in order, so a loss is told before all news, and all answers,
// that come after it; and it must be told before others are let in. After a loss with a
// grace the app may rely on others being kept out until the grace is over.
//
// Several that were granted at once are as many Holds, one of each resource. When one is lost, the sidecar
// ends all of them: it tells the app, and keeps others out of the rest for a grace.
//
// What the store keeps for nobody, by min_hold or a detached hold, counts as relied on: see
// keeps. All who have a detached hold, one after the other, are one Hold: see chains.
func Holds(records []Record, validity time.Duration) []*Hold {
	records = slices.Clone(records)
	slices.SortStableFunc(records, func(a, b Record) int { return cmp.Compare(a.At, b.At) })
	h := holds{of: map[string]*beliefs{}, validity: validity}
	for _, r := range records {
		h.take(r)
	}
	breaks := slices.DeleteFunc(slices.Clone(records), func(r Record) bool {
		return r.Kind != Killed && r.Kind != Stopped && r.Kind != Died && r.Kind != Forced
	})
	k := keptIn(records)
	var all []*Hold
	for _, b := range h.order {
		for _, p := range b.parts() {
			one := p.judge(breaks, k.takeovers[b.chain()])
			k.least(one)
			all = append(all, one)
		}
	}
	return k.join(all)
}

type holds struct {
	of       map[string]*beliefs
	order    []*beliefs
	validity time.Duration
}

// beliefs are what is known of a hold so far.
type beliefs struct {
	Hold
	until time.Duration // the latest end that a look was told
	heard time.Duration // the moment of the last news, or of an answer
	news  time.Duration // the moment of the last news
	lost  *Record
	left  time.Duration // the last look, where it was released; else 0
	gave  time.Duration // when its app asked to detach it, in vain, and has not had it since; else 0
}

// parts are b itself, or one for each of several that were granted at once.
func (b *beliefs) parts() []*beliefs {
	if b.Parts == nil {
		return []*beliefs{b}
	}
	var all []*beliefs
	for _, p := range b.Parts {
		one := *b
		one.Resource, one.Lock, one.Fence = p.Resource, p.Lock, p.Fence
		all = append(all, &one)
	}
	return all
}

// rest tells whether what is forced is another one of the parts with which h was granted.
func (h *Hold) rest(r Record) bool {
	return slices.ContainsFunc(h.Parts, func(p Part) bool { return p.Lock != h.Lock && p.forced(r) })
}

func (p Part) forced(r Record) bool { return r.Lock == p.Lock || inTurn(r.Fence, p.Fence) }

func (h *holds) take(r Record) {
	if b := h.of[r.Lock]; b != nil && r.Kind == Granted {
		// The app had found the sidecar silent, and has entered the hold once more: nobody
		// may have been let in between.
		b.until, b.lost, b.left, b.Freed = max(b.until, r.Until), nil, 0, never
		return
	}
	if r.Kind == Granted {
		b := &beliefs{Hold: Hold{Record: r, TurnBy: never, Freed: never}, until: r.Until}
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
		b.until = max(b.until, r.Until)
		b.news = max(b.news, r.Until-h.validity)
		b.heard = max(b.heard, b.news)
		b.gave = 0
		if r.Kind == Leaving {
			b.left = r.At
		}
	case Downgrading:
		b.Turned = r.At
	case Downgraded:
		b.Turned = r.Call
		if r.Err == "" {
			b.TurnBy = r.At
		}
	case Left:
		if b.lost != nil { // that ends the grace
			b.lost.Until = min(b.lost.Until, r.Call)
		} else if r.Err == "" { // the sidecar had not told a loss by then
			b.heard = max(b.heard, r.Call)
			b.Freed = r.At
		}
	case Detached:
		if r.Err == "" {
			b.heard = max(b.heard, r.Call)
		} else {
			b.gave = r.Call
		}
	case Lost:
		if b.lost == nil { // else another name for the same hold
			b.lost = &r
		}
	}
}

// judge finds the end of a hold, with what was done to whom, and who has taken it over.
func (b *beliefs) judge(breaks []Record, takeovers []takeover) *Hold {
	h := b.Hold
	// Until when it is relied on with news, without any, and by the grace of its loss.
	heard, silent, grace := b.heard, b.until, time.Duration(0)
	reason := ""
	switch {
	case b.lost != nil:
		reason, grace = b.lost.Reason, b.lost.Until
		h.Ended = fmt.Sprintf("lost %s, %s, others kept out until %s", moment(b.lost.At), reason, moment(grace))
		silent = min(silent, b.lost.At)
		if b.gave != 0 { // a store does not keep what is to be released, and releases it at once
			silent = min(silent, b.gave)
		}
		if told[reason] {
			silent = 0
		}
	case b.left != 0:
		h.Ended = "released"
		silent = min(silent, b.left)
	}
	if h.Parts != nil && reason == "STORE_LOST" && b.lost.Resource != h.Resource {
		silent = 0 // the store has lost another part, and the sidecar has ended this one
	}
	if h.Mortal { // its sidecar may have ended it at any time, and shortened its grace
		silent = 0
		if reason != "SESSION_EXPIRED" {
			grace = 0
		}
	}
	// A sidecar that ended after the call ended the hold, however late the app, which
	// may have been frozen, read of its grant: a later life of the sidecar knows no call
	// of an earlier one.
	forced := 0
	for _, r := range breaks {
		switch {
		case r.At > max(heard, silent, grace):
			continue
		case r.Kind == Killed && r.App == h.App, r.Kind == Died && r.Side == h.Side && h.Call <= r.At:
			heard, silent, grace = min(heard, r.At), min(silent, r.At), min(grace, r.At)
		case r.Kind == Stopped && r.Side == h.Side && h.Call <= r.At:
			silent = min(silent, r.At)
			if reason != "STOPPING" { // what runs is shortened
				grace = min(grace, r.At)
			}
		case r.Kind == Forced && (r.Lock == h.Lock || inTurn(r.Fence, h.Fence)):
			silent = min(silent, r.At+r.Grace)
			if r.Grace == 0 { // nobody is told before
				heard = min(heard, r.At)
			}
			if forced++; reason != "FORCED" || forced > 1 || r.Grace == 0 { // what runs is shortened
				grace = min(grace, r.At+r.Grace)
			}
		case r.Kind == Forced && h.rest(r):
			silent = min(silent, r.At+r.Grace)
		default:
			continue
		}
		h.Ended += fmt.Sprintf("; %s %s", r.Kind, moment(r.At))
		if r.Grace > 0 {
			h.Ended += fmt.Sprintf(" with a grace of %s", r.Grace)
		}
	}
	for _, o := range takeovers {
		if o.App == h.App && o.At == h.Call || o.end < h.Call {
			continue // its own, or one before
		}
		silent, grace = min(silent, o.At), min(grace, o.At)
		if !o.done || b.news <= o.end { // else what it has heard since should have told it
			heard = min(heard, o.At)
		}
		h.Ended += fmt.Sprintf("; %s by %s %s", o.Kind, o.App, moment(o.At))
	}
	h.End = max(heard, silent, grace, h.At)
	return &h
}

// inTurn tells whether two fences are of one hold in the store, which apps of a sidecar have in
// turn. Who forces it through another sidecar may know it by an id that no app has, and means
// whoever has it by then.
func inTurn(a, b int64) bool { return a != 0 && a>>10 == b>>10 }
