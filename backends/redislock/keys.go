package redislock

import (
	"hash/fnv"
	"strconv"
	"strings"
	"time"

	"github.com/locksidecar/locksidecar/lock"
)

const (
	bucketsAlone     = 1
	bucketsInCluster = 64 // a multiple of any sensible number of masters; part of the data, so never changed lightly
)

// noLease is the lease of a hold that is kept without one, and keptMark what stands among the leases
// where there are such holds.
const (
	noLease  = "0"
	keptMark = "kept"
)

// keyspace names the keys of all buckets.
type keyspace struct {
	prefix  string
	channel string // prefix of the channels of leases
	config  string // key that says how the data is laid out
	buckets []bucket
}

// bucket has the names that do not depend on a resource or lease.
type bucket struct {
	leases, last, reaper       string
	records, recordEnds        string
	kept, keptEnds             string // what is of no lease, see lib.lua
	mine, revoked              string // prefixes, for a lease
	lock, queue, waiters, gone string // prefixes, for a resource
	record                     string // prefix, for the name of a record
}

func newKeyspace(prefix string, buckets int) keyspace {
	k := keyspace{prefix: prefix, channel: prefix + ":lease:", config: "{" + prefix + "}:config"}
	for i := range buckets {
		p := "{" + prefix + ":" + strconv.Itoa(i) + "}:"
		k.buckets = append(k.buckets, bucket{
			leases: p + "leases", last: p + "last", reaper: p + "reaper",
			mine: p + "lease:", revoked: p + "revoked:",
			lock: p + "lock:", queue: p + "queue:", waiters: p + "waiters:", gone: p + "gone:",
			record: p + "record:", records: p + "records", recordEnds: p + "record-ends",
			kept: p + "lease:" + noLease, keptEnds: p + "kept-ends",
		})
	}
	return k
}

func (k *keyspace) bucketOf(r lock.Resource) int {
	if len(k.buckets) == 1 {
		return 0
	}
	h := fnv.New32a()
	_, _ = h.Write([]byte(r))
	return int(h.Sum32() % uint32(len(k.buckets))) //nolint:gosec // at most 64
}

// of gives KEYS of lib.lua for one resource and one lease.
func (b *bucket) of(r lock.Resource, l lock.LeaseID) []string {
	keys := [...]struct{ prefix, name string }{
		{b.mine, string(l)}, {b.lock, string(r)}, {b.queue, string(r)}, {b.waiters, string(r)}, {b.gone, string(r)}, {b.revoked, string(l)},
	}
	size := 0
	for _, k := range keys {
		size += len(k.prefix) + len(k.name)
	}
	var text strings.Builder // one piece of memory for all
	text.Grow(size)
	all := append(make([]string, 0, 4+len(keys)), b.leases, b.last)
	for _, k := range keys {
		begin := text.Len()
		text.WriteString(k.prefix)
		text.WriteString(k.name)
		all = append(all, text.String()[begin:])
	}
	return all
}

// leaving gives KEYS of lib.lua where a hold may leave its lease.
func (b *bucket) leaving(r lock.Resource, l lock.LeaseID) []string {
	return append(b.of(r, l), b.kept, b.keptEnds)
}

// attaching gives KEYS of attach.lua, for a hold that another lease may have.
func (b *bucket) attaching(r lock.Resource, l, from lock.LeaseID) []string {
	return append(b.leaving(r, l), b.mine+string(from), b.revoked+string(from))
}

// member is how a hold or waiter stands in a lease's "mine" set: sets of score 0
// are in byte order, and NUL is below every byte of a name, so the order is by
// resource.
func member(r lock.Resource, id lock.HoldID) string { return string(r) + "\x00" + string(id) }

func parseMember(m string) (lock.Resource, lock.HoldID) {
	r, id, _ := strings.Cut(m, "\x00")
	return lock.Resource(r), lock.HoldID(id)
}

// modeWord is a mode as lib.lua has it.
func modeWord(m lock.Mode) string {
	switch {
	case m == lock.Shared:
		return "S"
	case m.Limit() > 0:
		return "P" + strconv.Itoa(m.Limit())
	default:
		return "X"
	}
}

// leastWord is what stands behind the mode of a request with a MinHold.
func leastWord(minHold time.Duration) string {
	if minHold == 0 {
		return ""
	}
	return "m" + strconv.FormatInt(minHold.Microseconds(), 10)
}

func parseMode(word string) lock.Mode {
	if word == "S" {
		return lock.Shared
	}
	if text, ok := strings.CutPrefix(word, "P"); ok {
		n, _ := strconv.Atoi(text)
		return lock.Permits(n)
	}
	return lock.Exclusive
}
