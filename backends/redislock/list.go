package redislock

import (
	"context"
	"slices"

	"github.com/redis/go-redis/v9"

	"github.com/locksidecar/locksidecar/lock"
)

// A page of names is read from each lease and bucket at a time: of few, more.
const (
	maxNames = 256
	minNames = 16
)

// List implements lock.Backend. There is no list of all names, which each
// acquire would have to keep; those of all living leases are merged.
func (b *Backend) List(ctx context.Context, prefix string, p lock.Page) ([]lock.Status, error) {
	limit := p.Most()
	var out []lock.Status
	after := p.After
	for {
		names, err := b.names(ctx, prefix, after, limit)
		if err != nil {
			return nil, err
		}
		calls := make([]call, len(names))
		for i, r := range names {
			calls[i] = call{keys: b.statusKeys(r), args: newStatus(r).args()}
		}
		if err := b.runAll(ctx, scriptStatus, calls); err != nil {
			return nil, unavailable("list locks", err)
		}
		for i, r := range names {
			part := newStatus(r)
			part.add(calls[i].val)
			st := part.status()
			if !part.done() {
				if st, err = b.Get(ctx, r); err != nil {
					return nil, err
				}
			}
			if len(st.Holders)+len(st.Waiters) > 0 {
				if out = append(out, st); len(out) == limit {
					return out, nil
				}
			}
		}
		if len(names) < limit {
			return out, nil
		}
		after = names[len(names)-1]
	}
}

// nameList is what one lease holds and waits for in a bucket, or the records there, by name.
type nameList struct {
	key  string
	page []string // not merged yet
	next string   // where the next page begins; empty: there is none
}

// names gives the first names after one, over all living leases.
func (b *Backend) names(ctx context.Context, prefix string, after lock.Resource, limit int) ([]lock.Resource, error) {
	span := nameRange(prefix, after)
	all, err := b.nameLists(ctx, span.Min)
	if err != nil {
		return nil, err
	}
	return b.firstNames(ctx, all, span, limit)
}

// firstNames gives the first names of some lists.
func (b *Backend) firstNames(ctx context.Context, all []*nameList, span redis.ZRangeBy, limit int) ([]lock.Resource, error) {
	span.Count = int64(min(max(2*limit/max(len(all), 1), minNames), maxNames))
	var names []lock.Resource
	for due := all; len(due) > 0; {
		if err := b.readOn(ctx, due, span); err != nil {
			return nil, err
		}
		names, due = merge(names, all)
		if len(names) >= limit {
			return names[:limit], nil
		}
	}
	return names, nil
}

// nameLists finds the living leases of all buckets.
func (b *Backend) nameLists(ctx context.Context, from string) ([]*nameList, error) {
	calls := make([]call, len(b.keys.buckets))
	for i := range calls {
		calls[i] = call{keys: []string{b.keys.buckets[i].leases}}
	}
	if err := b.runAll(ctx, scriptLiving, calls); err != nil {
		return nil, unavailable("list locks", err)
	}
	var all []*nameList
	for i, c := range calls {
		ids, _ := c.val.([]any)
		for n := range ids {
			all = append(all, &nameList{key: b.keys.buckets[i].mine + word(ids, n), next: from})
		}
	}
	return all, nil
}

// readOn reads the next page of each of some lists, a few lists a trip.
func (b *Backend) readOn(ctx context.Context, lists []*nameList, span redis.ZRangeBy) error {
	for some := range slices.Chunk(lists, maxPipeline) {
		pipe := b.client.Pipeline()
		pages := make([]*redis.StringSliceCmd, len(some))
		for i, l := range some {
			span.Min = l.next
			pages[i] = pipe.ZRangeByLex(ctx, l.key, &span)
		}
		if _, err := pipe.Exec(ctx); err != nil {
			return unavailable("list locks", err)
		}
		for i, l := range some {
			l.took(pages[i].Val(), int(span.Count))
		}
	}
	return nil
}

// took adds a page. Many members may be of one name: the next page begins behind them.
func (l *nameList) took(members []string, full int) {
	for _, m := range members {
		r, _ := parseMember(m)
		l.page = append(l.page, string(r))
	}
	l.next = ""
	if len(members) == full {
		l.next = behind(lock.Resource(l.page[len(l.page)-1]))
	}
}

// merge moves those names from the lists to names that nothing can come before any
// more, and tells which lists must be read on before others can follow.
func merge(names []lock.Resource, all []*nameList) (_ []lock.Resource, due []*nameList) {
	end, bounded := "", false
	for _, l := range all {
		if l.next == "" {
			continue
		}
		if last := l.page[len(l.page)-1]; !bounded || last < end {
			end, bounded = last, true
		}
	}
	for _, l := range all {
		n := len(l.page)
		if bounded {
			n, _ = slices.BinarySearch(l.page, end+"\x00")
		}
		for _, name := range l.page[:n] {
			names = append(names, lock.Resource(name))
		}
		l.page = l.page[n:]
		if l.next != "" && len(l.page) == 0 {
			due = append(due, l)
		}
	}
	slices.Sort(names)
	return slices.Compact(names), due
}

// nameRange is the range of the members of names with that prefix and after one.
func nameRange(prefix string, after lock.Resource) redis.ZRangeBy {
	span := redis.ZRangeBy{Min: "[" + prefix, Max: "(" + prefix + "\xff"} // 0xff is in no name
	if prefix == "" {
		span.Min, span.Max = "-", "+"
	}
	if after != "" && string(after) >= prefix {
		span.Min = behind(after)
	}
	return span
}

// behind is where the members of the names after one begin.
func behind(r lock.Resource) string { return "(" + string(r) + "\x00\xff" }
