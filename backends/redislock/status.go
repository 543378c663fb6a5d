package redislock

import (
	"cmp"
	"context"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/locksidecar/locksidecar/lock"
)

// Get implements lock.Backend: in one step where few hold and wait, else a part at
// a time.
func (b *Backend) Get(ctx context.Context, r lock.Resource) (lock.Status, error) {
	p := newStatus(r)
	for !p.done() {
		reply := b.run(ctx, b.client, scriptStatus, b.statusKeys(r), p.args()...)
		if reply.err != nil {
			return lock.Status{}, unavailable("get lock", reply.err)
		}
		p.add(reply.val)
	}
	return p.status(), nil
}

func (b *Backend) statusKeys(r lock.Resource) []string {
	return b.keys.buckets[b.keys.bucketOf(r)].of(r, "")
}

// statusParts puts a Status together from the answers of status.lua.
type statusParts struct {
	resource       lock.Resource
	cursor, ticket string // where to go on; empty: no more
	holders        []lock.Holding
	waiters        []lock.Holding
	seen           map[lock.HoldID]bool // holders
}

func newStatus(r lock.Resource) *statusParts {
	return &statusParts{resource: r, cursor: "0", ticket: "-inf", seen: make(map[lock.HoldID]bool)}
}

func (p *statusParts) done() bool  { return p.cursor == "" && p.ticket == "" }
func (p *statusParts) args() []any { return []any{p.cursor, p.ticket} }

func (p *statusParts) add(val any) {
	fields, _ := val.([]any)
	p.cursor, p.ticket = word(fields, 1), word(fields, 3)
	if len(fields) != 5 {
		return
	}
	held, _ := fields[2].([]any)
	for _, h := range parseRecords(word(fields, 0), held) {
		if !p.seen[h.ID] { // a scan may meet one twice
			p.seen[h.ID] = true
			p.holders = append(p.holders, h)
		}
	}
	waiting, _ := fields[4].([]any)
	p.waiters = append(p.waiters, parseRecords(word(fields, 0), waiting)...)
}

func (p *statusParts) status() lock.Status {
	st := lock.Status{Resource: p.resource, Holders: p.holders}
	slices.SortFunc(st.Holders, func(a, b lock.Holding) int { return cmp.Compare(a.Fence, b.Fence) })
	for _, w := range p.waiters {
		if !p.seen[w.ID] { // granted while the parts were read
			st.Waiters = append(st.Waiters, w)
		}
	}
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
	f := strings.SplitN(record, " ", 7)
	if len(f) != 7 {
		return lock.Holding{}, false
	}
	fence, _ := parseFence(f[1])
	since, _ := strconv.ParseInt(f[2], 10, 64)
	who, several := strings.CutSuffix(f[6], forSeveral)
	who, kept := cutLeast(who)
	who, detached := cutKey(who)
	sidecar, owner, _ := strings.Cut(who, "\x00")
	h := lock.Holding{
		ID: lock.HoldID(id), Mode: parseMode(f[0]), Fence: fence,
		Age:   max(0, time.Duration(nowMicros-since)*time.Microsecond),
		Lease: lock.LeaseID(f[3]), Sidecar: sidecar, Owner: lock.DecodeOwner(owner), Revoked: f[5] != "-",
		Cohort: several,
	}
	if f[3] == noLease {
		h.Lease, h.Kept = "", time.Duration(max(1, kept-nowMicros))*time.Microsecond
		h.Detached = detached
	}
	return h, true
}

// cutKey takes off who what a record says of the key of a hold.
func cutKey(who string) (rest string, has bool) {
	i := len(who) - keyLength - len(keyed)
	if i < 0 || !strings.HasPrefix(who[i:], keyed) {
		return who, false
	}
	return who[:i], true
}

// cutLeast takes off who what a record says of the own time of a hold, or of a request.
func cutLeast(who string) (rest string, micros int64) {
	i := strings.LastIndex(who, least)
	if i < 0 {
		return who, 0
	}
	micros, err := strconv.ParseInt(who[i+len(least):], 10, 64)
	if err != nil {
		return who, 0
	}
	return who[:i], micros
}
