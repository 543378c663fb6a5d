package caslock

import "context"

// This file is about a store that goes back to a backup, or is another one than before: its revision falls. Whoever
// notices it compares its holds, and gives fences a new start: they depend on the revision.

// history is what the answers have told of the store.
type history struct {
	server   string // empty: there was no answer yet
	revision int64  // the largest
	falls    uint64 // how often it went back
	based    uint64 // after so many of these the fences begin where they should
}

// told is what is known before a request: it is answered with that revision, or a larger one.
func (b *Backend) told() history {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.history
}

// tells notes an answer.
func (b *Backend) tells(before history, r Result) {
	fell := before.server != "" && (r.Server != before.server || r.Revision < before.revision)
	b.mu.Lock()
	defer b.mu.Unlock()
	h := &b.history
	if fell {
		h.falls++
		b.forgetGuesses()
	}
	if fell || r.Revision > h.revision {
		h.server, h.revision = r.Server, r.Revision
	}
}

// fell notes that the store went back, although its revision does not show it: others have changed more since than was lost.
func (b *Backend) fell() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.history.falls++
	b.forgetGuesses()
}

// fallen is how often the store went back.
func (b *Backend) fallen() uint64 { return b.told().falls }

// rebase gives fences a new start, if the store went back since that was done: above all that there were, as when they began. It
// tells whether that was necessary. Where another sidecar has done so since it was known here, that is enough: where hundreds notice it at the
// same moment, and each had to have its own way, each would keep all the others from it.
func (b *Backend) rebase(ctx context.Context, command string) (rebased bool, err error) {
	var since int64 // when it was known, at the latest
	var falls uint64
	for h := b.told(); h.based < h.falls; h = b.told() {
		if h.falls != falls {
			since, falls = b.wall().UnixMicro(), h.falls
		}
		r, err := b.do(ctx, command, Txn{Read: []Range{{Key: baseKey}}})
		if err != nil {
			return rebased, err
		}
		kv, _ := r.Reads[0].one()
		if begins := fenceStep * r.Revision; decode[int64](kv)+begins < since {
			base := b.wall().UnixMicro() - begins
			r, err = b.do(ctx, command, Txn{If: []Cond{{Key: baseKey, Version: kv.Version}}, Then: []Write{{Key: baseKey, Value: encode(base)}}})
			if err != nil {
				return rebased, err
			}
			if !r.Done { // somebody else does the same
				continue
			}
		}
		b.mu.Lock()
		b.history.based = max(b.history.based, h.falls)
		b.mu.Unlock()
		rebased = true
	}
	return rebased, nil
}
