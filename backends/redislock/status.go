package redislock

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/locksidecar/locksidecar/lock"
)

// Get implements lock.Backend.
func (b *Backend) Get(ctx context.Context, r lock.Resource) (lock.Status, error) {
	reply, err := b.run(ctx, b.client, scriptStatus, b.statusKeys(r))
	if err != nil {
		return lock.Status{}, unavailable("get lock", err)
	}
	return parseStatus(r, reply), nil
}

func (b *Backend) statusKeys(r lock.Resource) []string {
	return b.keys.buckets[b.keys.bucketOf(r)].of(r, "")
}

// List implements lock.Backend. Each live lease knows what it holds and waits
// for, in the order of the names; the list is those lists merged.
func (b *Backend) List(ctx context.Context, prefix string, p lock.Page) ([]lock.Status, error) {
	limit := min(max(p.Limit, 1), lock.MaxPage)
	var out []lock.Status
	after := p.After
	for {
		names, err := b.names(ctx, prefix, after, limit)
		if err != nil {
			return nil, err
		}
		calls := make([]call, len(names))
		for i, r := range names {
			calls[i] = call{keys: b.statusKeys(r)}
		}
		if err := b.runAll(ctx, scriptStatus, calls); err != nil {
			return nil, unavailable("list locks", err)
		}
		for i, r := range names {
			st := parseStatus(r, calls[i].reply)
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

// names gives the first names after one, over all live leases: two round trips,
// however many buckets and leases there are.
func (b *Backend) names(ctx context.Context, prefix string, after lock.Resource, limit int) ([]lock.Resource, error) {
	pipe := b.client.Pipeline()
	leases := make([]*redis.StringSliceCmd, len(b.keys.buckets))
	for i := range b.keys.buckets { // dead leases too: the status script leaves their holds out
		leases[i] = pipe.ZRange(ctx, b.keys.buckets[i].leases, 0, -1)
	}
	if _, err := pipe.Exec(ctx); err != nil {
		return nil, unavailable("list locks", err)
	}
	span := lexRange(prefix, after, limit)
	pipe = b.client.Pipeline()
	var lists []nameList
	for i, cmd := range leases {
		for _, id := range cmd.Val() {
			mine := b.keys.buckets[i].mine + id
			lists = append(lists, nameList{mine, pipe.ZRangeByLex(ctx, mine, &span)})
		}
	}
	if len(lists) == 0 {
		return nil, nil
	}
	if _, err := pipe.Exec(ctx); err != nil {
		return nil, unavailable("list locks", err)
	}
	var all []lock.Resource
	for _, l := range lists {
		some, err := b.distinct(ctx, l, span, limit)
		if err != nil {
			return nil, err
		}
		all = append(all, some...)
	}
	slices.Sort(all)
	all = slices.Compact(all)
	return all[:min(len(all), limit)], nil
}

// nameList is the first part of what one lease holds and waits for.
type nameList struct {
	key   string
	first *redis.StringSliceCmd
}

// lexRange is the range of members with that prefix and of names after one.
func lexRange(prefix string, after lock.Resource, limit int) redis.ZRangeBy {
	span := redis.ZRangeBy{Min: "[" + prefix, Max: "(" + prefix + "\xff", Count: int64(limit)} // 0xff is in no name
	if prefix == "" {
		span.Min, span.Max = "-", "+"
	}
	if after != "" && string(after) >= prefix {
		span.Min = "(" + string(after) + "\x00\xff" // behind all members of that name
	}
	return span
}

// distinct gives up to limit names of one lease. Many members may be of one name.
func (b *Backend) distinct(ctx context.Context, l nameList, span redis.ZRangeBy, limit int) ([]lock.Resource, error) {
	var names []lock.Resource
	for members := l.first.Val(); ; {
		for _, m := range members {
			if r, _ := parseMember(m); len(names) == 0 || names[len(names)-1] != r {
				names = append(names, r)
			}
		}
		if len(members) < limit || len(names) >= limit {
			return names, nil
		}
		span.Min = "(" + members[len(members)-1]
		var err error
		if members, err = b.client.ZRangeByLex(ctx, l.key, &span).Result(); err != nil {
			return nil, unavailable("list locks", err)
		}
	}
}

// ForceRelease implements lock.Backend.
func (b *Backend) ForceRelease(ctx context.Context, r lock.Resource, id lock.HoldID, grace time.Duration) error {
	first := true
	for {
		reply, err := b.run(ctx, b.client, scriptForce, b.statusKeys(r), b.keys.channel, string(id), grace.Microseconds(), string(r))
		if err != nil {
			return unavailable("force release", err)
		}
		wait, ok := reply.(int64)
		switch {
		case !ok:
			return fmt.Errorf("force release: Redis answered %v: %w", reply, lock.ErrUnavailable)
		case wait == 0, wait < 0 && !first:
			return nil
		case wait < 0:
			return lock.ErrNotHolder
		}
		first = false
		t := time.NewTimer(min(time.Duration(wait)*time.Millisecond, 25*time.Millisecond)) // the holder may be quick
		select {
		case <-t.C:
		case <-ctx.Done():
			t.Stop()
			return fmt.Errorf("force release %q: %w; it ends by itself within %d ms", string(r), context.Cause(ctx), wait)
		}
	}
}

func parseStatus(r lock.Resource, reply any) lock.Status {
	st := lock.Status{Resource: r}
	fields, _ := reply.([]any)
	if len(fields) != 3 {
		return st
	}
	now := word(fields, 0)
	held, _ := fields[1].([]any)
	waiting, _ := fields[2].([]any)
	st.Holders = parseRecords(now, held)
	slices.SortFunc(st.Holders, func(a, b lock.Holding) int { return int(a.Fence - b.Fence) })
	st.Waiters = parseRecords(now, waiting)
	return st
}

// holdersOf reads what the lib.lua function holders appended: time, id, record, …
func holdersOf(r lock.Resource, fields []any) lock.Status {
	if len(fields) == 0 {
		return lock.Status{Resource: r}
	}
	return lock.Status{Resource: r, Holders: parseRecords(word(fields, 0), fields[1:])}
}

func parseRecords(now string, fields []any) []lock.Holding {
	nowMicros, _ := strconv.ParseInt(now, 10, 64)
	var out []lock.Holding
	for i := 0; i+1 < len(fields); i += 2 {
		if h, ok := parseRecord(nowMicros, word(fields, i), word(fields, i+1)); ok {
			out = append(out, h)
		}
	}
	return out
}

// parseRecord reads a record as lib.lua describes it.
func parseRecord(nowMicros int64, id, record string) (lock.Holding, bool) {
	f := strings.SplitN(record, " ", 6)
	if len(f) != 6 {
		return lock.Holding{}, false
	}
	fence, _ := strconv.ParseInt(f[1], 10, 64)
	since, _ := strconv.ParseInt(f[2], 10, 64)
	sidecar, owner, _ := strings.Cut(f[5], "\x00")
	h := lock.Holding{
		ID: lock.HoldID(id), Mode: lock.Exclusive, Fence: lock.Fence(fence),
		Age:   max(0, time.Duration(nowMicros-since)*time.Microsecond),
		Lease: lock.LeaseID(f[3]), Sidecar: sidecar, Owner: lock.DecodeOwner(owner), Revoked: f[4] != "0",
	}
	if f[0] == "S" {
		h.Mode = lock.Shared
	}
	return h, true
}
