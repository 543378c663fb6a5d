package history

import (
	"cmp"
	"fmt"
	"slices"
	"time"
)

// takeover is somebody's request to attach a detached hold, or to release it by its handle. Who
// has the hold attached is not told before: what it may rely on ends with the request.
type takeover struct {
	Record               // Attaching or Freeing
	end    time.Duration // when it was answered; never: it may be carried out at any time
	done   bool          // it has attached the hold, by then
}

// promise is that the store keeps others out from a moment on, whoever has the hold.
type promise struct{ made, until time.Duration }

// ender is what may have ended a promise, at a moment that is not known.
type ender struct{ from, to time.Duration }

// cut is until when a promise counts.
func (p promise) cut(e ender) promise {
	if p.made <= e.to {
		p.until = min(p.until, e.from)
	}
	return p
}

// chain is what is known of a detached hold, whoever has it.
type chain struct {
	promises []promise
	enders   []ender
}

// kept is what stores keep for nobody.
type kept struct {
	chains    map[string]*chain
	takeovers map[string][]takeover // by the name of the chain
	forced    []Record
	forgot    []ender
}

// surely are nine tenths of a time: the store counts it on a clock of its own.
func surely(d time.Duration) time.Duration { return d * 9 / 10 }

func (k *kept) of(name string) *chain {
	if k.chains[name] == nil {
		k.chains[name] = &chain{}
	}
	return k.chains[name]
}

// chain is the name of the hold's chain, if it was ever detached.
func (h *Hold) chain() string { return cmp.Or(h.Chain, h.Lock) }

// mayRelease are the losses that an app may see before its sidecar does. The release that follows
// ends the hold, and is no mere acknowledgement.
var mayRelease = map[string]bool{"": true, "SIDECAR_SILENT": true, "NOT_HOLDER": true, "MAX_HOLD": true}

// keptIn reads what the store has promised to keep, and what may have ended that:
//
//   - A detach, or an extension of a handle, that was carried out: others are kept out for its time, at
//     least from before the request.
//   - A release by who has it, or by the handle, ends it, from before the request until the answer, or at any
//     time where there is none. The end of who has it does not, nor does a loss that its sidecar knew of: it
//     is detached again.
//   - A forced release ends it for good. What the store has forgotten, by a fault that may make it forget, too.
//
// All detaches and extensions of a run are for the same time, so that none of them, however late
// it arrives, makes it shorter.
//
// The records are in the order of time.
func keptIn(records []Record) *kept {
	k := &kept{chains: map[string]*chain{}, takeovers: map[string][]takeover{}}
	type request struct {
		app string
		at  time.Duration
	}
	answers := map[request]Record{} // of takeovers
	chainOf := map[string]string{}  // of locks
	ends := map[string][]Record{}   // Left and Detached, of locks
	for _, r := range records {
		switch r.Kind {
		case Granted:
			chainOf[r.Lock] = cmp.Or(r.Chain, r.Lock)
			if r.Chain != "" {
				answers[request{r.App, r.Call}] = r
			}
		case Missed, Freed:
			answers[request{r.App, r.Call}] = r
		case Left, Detached:
			ends[r.Lock] = append(ends[r.Lock], r)
		case Forced:
			k.forced = append(k.forced, r)
		case Forgot:
			k.forgot = append(k.forgot, ender{cmp.Or(r.Call, r.At), r.At})
		}
	}
	for _, r := range records {
		switch r.Kind {
		case Leaving, Lost:
			if r.Kind == Lost && !mayRelease[r.Reason] {
				continue
			}
			end := never
			i := slices.IndexFunc(ends[r.Lock], func(e Record) bool { return e.At >= r.At })
			if i >= 0 && ends[r.Lock][i].Err == "" {
				if end = ends[r.Lock][i].At; ends[r.Lock][i].Kind == Detached {
					continue
				}
			}
			k.of(chainOf[r.Lock]).enders = append(k.of(chainOf[r.Lock]).enders, ender{r.At, end})
		case Detached, Extended:
			if r.Err == "" {
				c := k.of(cmp.Or(r.Chain, r.Lock))
				c.promises = append(c.promises, promise{r.Call, r.Call + surely(r.Keep)})
			}
		case Attaching, Freeing:
			o := takeover{Record: r, end: never}
			if a, found := answers[request{r.App, r.At}]; found {
				o.end, o.done = a.At, a.Kind == Granted
			}
			k.takeovers[r.Chain] = append(k.takeovers[r.Chain], o)
			if r.Kind == Freeing {
				k.of(r.Chain).enders = append(k.of(r.Chain).enders, ender{r.At, o.end})
			}
		}
	}
	return k
}

// least makes a hold last as long as its min_hold at least: only a forced release ends that, or
// a store that forgets.
func (k *kept) least(h *Hold) {
	if h.Keep == 0 {
		return
	}
	p := promise{h.Call, h.Call + surely(h.Keep)}
	for _, e := range slices.Concat(k.forgot, k.forces(h)) {
		p = p.cut(e)
	}
	h.Kept = p.until
	h.lasts(fmt.Sprintf("; its min_hold is %s", h.Keep))
}

// forces are the forced releases of a hold, whoever has it then.
func (k *kept) forces(h *Hold) (all []ender) {
	for _, r := range k.forced {
		if r.Lock == h.Lock || inTurn(r.Fence, h.Fence) {
			all = append(all, ender{r.At, never})
		}
	}
	return all
}

// lasts makes a hold last as long as the store keeps it.
func (h *Hold) lasts(why string) {
	if h.Kept > h.End {
		h.End = h.Kept
		h.Ended += why + ", kept until " + moment(h.Kept)
	}
}

// join makes one hold of all who had a detached hold, one after the other: from its grant on
// others are kept out until nobody relies on it and its time is over.
func (k *kept) join(holds []*Hold) []*Hold {
	first := map[string]*Hold{}
	for _, h := range holds {
		if h.Chain == "" {
			first[h.Lock] = h
		}
	}
	var all []*Hold
	for _, h := range holds {
		f := first[h.chain()]
		switch {
		case h == f:
			all = append(all, h)
		case f == nil:
			all = append(all, h) // found by Handles
		default:
			f.Ended += fmt.Sprintf("; attached as %s by %s at %s and relied on until %s, %s", h.Lock, h.App, moment(h.At), moment(h.End), h.Ended)
			f.Freed = never
			if h.End > h.At {
				f.End = max(f.End, h.End)
			}
		}
	}
	for name, c := range k.chains {
		f := first[name]
		if f == nil {
			continue
		}
		for _, p := range c.promises {
			for _, e := range slices.Concat(c.enders, k.forgot, k.forces(f)) {
				p = p.cut(e)
			}
			f.Kept = max(f.Kept, p.until)
		}
		f.lasts("; detached")
	}
	return all
}

// Handles finds handles that were worth something when they could not be: after they had been
// released, or after the hold had been detached under another one.
func Handles(records []Record) []string {
	over := map[string]Record{} // by the handle: what has ended it
	by := map[string]string{}   // the handle by which a lock is attached
	var forgot time.Duration    // a store that comes back as it was before may know it again
	records = slices.Clone(records)
	slices.SortStableFunc(records, func(a, b Record) int { return cmp.Compare(a.At, b.At) })
	var complaints []string
	for _, r := range records {
		switch r.Kind {
		case Granted:
			if r.Handle == "" {
				continue
			}
			by[r.Lock] = r.Handle
			if e, found := over[r.Handle]; found && e.At < r.Call && forgot < e.Call {
				complaints = append(complaints, fmt.Sprintf("%s attached %s of %s by handle %s at %s, which was %s by %s at %s",
					r.App, r.Lock, r.Resource, r.Handle, moment(r.At), e.Kind, e.App, moment(e.At)))
			}
		case Freed:
			over[r.Handle] = r
		case Detached:
			if old := by[r.Lock]; old != "" && r.Err == "" {
				over[old] = r
			}
		case Forgot:
			forgot = r.At
		}
	}
	return complaints
}
