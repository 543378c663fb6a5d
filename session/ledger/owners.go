package ledger

import "github.com/locksidecar/locksidecar/lock"

// owners has, for each owner label, the newest hold that lives. Those before it hang
// behind it, so that a grant and the end of a hold cost the same however many there are.
type owners struct{ newest map[string]*Hold }

// add notes a hold that was granted.
func (o *owners) add(h *Hold) {
	label := h.key.Owner
	if label == "" {
		return
	}
	if o.newest == nil {
		o.newest = make(map[string]*Hold)
	}
	if h.older = o.newest[label]; h.older != nil {
		h.older.newer = h
	}
	o.newest[label] = h
}

// remove forgets one.
func (o *owners) remove(h *Hold) {
	label := h.key.Owner
	if label == "" {
		return
	}
	if h.older != nil {
		h.older.newer = h.newer
	}
	switch {
	case h.newer != nil:
		h.newer.older = h.older
	case h.older != nil:
		o.newest[label] = h.older
	default:
		delete(o.newest, label)
	}
	h.newer, h.older = nil, nil
}

// names are those of an owner's holds in the store, the newest first, as many as lock.Nested takes;
// nil: there are none.
func (o *owners) names(label string) (list []string) {
	if label == "" || len(o.newest) == 0 {
		return nil
	}
	size := 0
	for h := o.newest[label]; h != nil && len(list) < lock.MaxNested; h = h.older {
		if size += len(h.key.Resource); size > lock.MaxNestedBytes {
			break
		}
		list = append(list, string(h.key.Resource))
	}
	return list
}
