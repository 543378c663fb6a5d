package caslock

import (
	"encoding/json"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/locksidecar/locksidecar/lock"
)

// The keys. Names of resources have no control characters, so a zero byte ends them.
//
//	head/NAME               who has the resource, in numbers; not there: nobody
//	line/NAME 0 SEQ         a holder or a waiter, in the order in which they came
//	own/LEASE/e/NAME 0 ID   the same, for its lease
//	own/LEASE/f/NAME 0 ID   a forced release of it
//	own/LEASE/c/NAME 0 ID   another lease stands behind that
//	lease/LEASE             a lease; its version is that of its requests
//	beat/LEASE              gets another version with each heartbeat
//	dead/LEASE              a lease that is over, of which something may be left
//	keeper                  who observes the leases
//	base                    where fences begin
//	own/kept/e/NAME 0 ID    what keeps others out also without a lease, see kept.go
//	due/TIME 0 NAME 0 ID    when that is over, on the clock of the store; TIME 0: nobody has counted it yet
//	clock                   the clock of the store
//	handle/NAME 0 KEY       which of these is a detached hold of that key
//	record/NAME             a record
//	end/TIME 0 NAME         when its time is over
const (
	headPrefix   = "head/"
	linePrefix   = "line/"
	leasePrefix  = "lease/"
	beatPrefix   = "beat/"
	deadPrefix   = "dead/"
	recordPrefix = "record/"
	duePrefix    = "due/"
	clockKey     = "clock"
	keeperKey    = "keeper"
	baseKey      = "base"
)

func headKey(r lock.Resource) string { return headPrefix + string(r) }
func lineOf(r lock.Resource) string  { return linePrefix + string(r) + "\x00" }
func lineKey(r lock.Resource, seq int64) string {
	return lineOf(r) + fmt.Sprintf("%016x", seq)
}
func ownPrefix(lease string) string    { return "own/" + lease + "/" }
func entriesOf(lease string) string    { return ownPrefix(lease) + "e/" }
func forcedOf(lease string) string     { return ownPrefix(lease) + "f/" }
func leaseKey(lease string) string     { return leasePrefix + lease }
func beatKey(lease string) string      { return beatPrefix + lease }
func deadKey(lease string) string      { return deadPrefix + lease }
func recordKey(r lock.Resource) string { return recordPrefix + string(r) }
func entryKey(lease string, r lock.Resource, id string) string {
	return entriesOf(lease) + string(r) + "\x00" + id
}
func forcedKey(lease string, r lock.Resource, id string) string {
	return forcedOf(lease) + string(r) + "\x00" + id
}

// seqOf reads the end of a lineKey.
func seqOf(key string) int64 {
	n, _ := strconv.ParseInt(key[max(0, len(key)-16):], 16, 64)
	return n
}

// refOf reads what follows entriesOf or forcedOf.
func refOf(rest string) (r lock.Resource, id string) {
	name, id, _ := strings.Cut(rest, "\x00")
	return lock.Resource(name), id
}

// after is the first key behind all that begin with prefix, in which no byte is 0xff.
func after(prefix string) string {
	end := []byte(prefix)
	end[len(end)-1]++
	return string(end)
}

// all are the keys that begin with prefix.
func all(prefix string, limit int) Range { return Range{Key: prefix, End: after(prefix), Limit: limit} }

// head is what a resource is in numbers.
type head struct {
	Mode    lock.Mode `json:"mode"`    // of all holders, or ofTheFirst
	Holders int       `json:"holders"` // how many
	Waiters int       `json:"waiters"`
	Front   int64     `json:"front"` // seq of the first waiter, or smaller; all holders come before it
	Next    int64     `json:"next"`  // seq of the next request
	// Slots of permits that are taken, a bit for each. An older sidecar forgets them when it writes the head: then
	// they stand in the line.
	Slots []byte   `json:"slots,omitempty"`
	Last  []cohort `json:"last,omitempty"` // behind whom nobody stands yet, see cohort.go
	More  bool     `json:"more,omitempty"` // there are others of these
}

// ofTheFirst stands in a head in place of a mode that older sidecars do not know how to share: it is that of the
// first holder in the line. They take it for permits of another number than any, so as long as somebody holds
// they let nobody in.
const ofTheFirst = lock.Shared + lock.MaxPermits

// place is a holder or a waiter in the line.
type place struct {
	ID      string    `json:"id"`
	Lease   string    `json:"lease"`
	Sidecar string    `json:"sidecar,omitempty"`
	Mode    lock.Mode `json:"mode"`
	// Permits is how many there are, and Mode is EXCLUSIVE in the store then: older sidecars grant it as that.
	Permits int    `json:"permits,omitempty"`
	Owner   string `json:"owner,omitempty"`
	granted
	Since   int64 `json:"since"` // microseconds since the Unix epoch, by the clock of a sidecar; for people
	Several bool  `json:"several,omitempty"`
	// Of what is kept, whose lease is keptLease:
	Had   string `json:"had,omitempty"`   // the lease that has the hold, or had it
	Until int64  `json:"until,omitempty"` // when it is over, as Since is
	Loose bool   `json:"loose,omitempty"` // it is there because the hold was detached
}

// written is the form of a place in the store.
func (p place) written() place {
	if p.Permits = p.Mode.Limit(); p.Permits > 0 {
		p.Mode = lock.Exclusive
	}
	return p
}

// settle reads what written wrote.
func (p *place) settle(version int64) {
	p.granted.settle(version)
	if p.Permits > 0 && p.Permits <= lock.MaxPermits {
		p.Mode = lock.Permits(p.Permits)
	}
}

// entry is what a lease knows of its holders and waiters.
type entry struct {
	Seq int64 `json:"seq"`
	granted
	Out   bool `json:"out,omitempty"`   // somebody has taken the waiter out of the line
	Lasts bool `json:"lasts,omitempty"` // it has, or had, something that is kept beside it
	// Several: it has a cohort, and may have been told of who stands behind it.
	Several bool `json:"several,omitempty"`
}

// granted is the fence of a hold; neither: it waits. A fence contains the revision of the write that
// has granted, which nobody knows before it is done. So that write leaves From, and whoever reads the
// key knows the rest.
type granted struct {
	Fence int64 `json:"fence,omitempty"`
	From  int64 `json:"from,omitempty"` // the fence, without fenceStep × the version of this key
	Slot  int   `json:"slot,omitempty"` // of a permit
}

// fence is that of a hold whose number is whole.
func (g granted) fence() lock.Fence { return lock.PermitFence(g.Fence, g.Slot) }

// fenceStep is how many fences belong to one revision: more than one transaction gives.
const fenceStep = 32

func (g granted) held() bool { return g.Fence > 0 || g.From != 0 }

// settle makes the fence whole.
func (g *granted) settle(version int64) {
	if g.From != 0 {
		g.Fence, g.From = g.From+fenceStep*version, 0
	}
}

// forced is a forced release.
type forced struct {
	Grace int64 `json:"grace"`           // microseconds; 0: the hold is gone already
	Known int64 `json:"known,omitempty"` // the grace that its sidecar knows of, and counts; 0: it knows nothing yet
}

func (f forced) grace() time.Duration { return time.Duration(f.Grace) * time.Microsecond }
func (f forced) known() time.Duration { return time.Duration(f.Known) * time.Microsecond }

// leaseInfo is in both keys of a lease.
type leaseInfo struct {
	TTL     int64  `json:"ttl"` // milliseconds
	Sidecar string `json:"sidecar,omitempty"`
}

func (l leaseInfo) ttl() time.Duration { return time.Duration(l.TTL) * time.Millisecond }

// keeperInfo is who observes the leases.
type keeperInfo struct {
	Lease string `json:"lease"`
	TTL   int64  `json:"ttl"` // milliseconds
}

// encode is the form of a value. All of them can be read by people.
func encode(v any) []byte {
	b, err := json.Marshal(v)
	if err != nil { // numbers and strings always marshal
		panic(fmt.Sprintf("encode %T: %v", v, err))
	}
	return b
}

// decode reads a value. What somebody else wrote there reads as zero.
func decode[T any](kv KV) (v T) {
	_ = json.Unmarshal(kv.Value, &v)
	if g, ok := any(&v).(interface{ settle(version int64) }); ok {
		g.settle(kv.Version)
	}
	return v
}
