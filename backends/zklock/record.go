package zklock

import (
	"encoding/json"
	"fmt"
	"time"

	"github.com/locksidecar/locksidecar/lock"
)

// recordVersion tells our data from that of others.
const recordVersion = 1

// record is the data of a request's node, as JSON for people who look. What
// decisions depend on is in the node's name, but for the marks.
type record struct {
	Version int             `json:"locksidecar"`
	Lease   lock.LeaseID    `json:"lease"`
	Sidecar string          `json:"sidecar,omitempty"`
	Owner   json.RawMessage `json:"owner,omitempty"`
	// Cohort: it stands for several apps of the sidecar, and the owner is who has it now, if
	// that is known.
	Cohort bool `json:"cohort,omitempty"`
	// Waited is how long it was in the queue before it was granted, by the clock of
	// its sidecar.
	Waited int64 `json:"waited_ms,omitempty"`
	// Downgraded: an exclusive hold that lets others read beside it.
	Downgraded bool `json:"downgraded,omitempty"`
	// Slot is which one a permit has. It is written in the transaction that makes the node of the slot.
	Slot *int `json:"slot,omitempty"`
	// Hold is whose slot it is, in the node of a slot.
	Hold lock.HoldID `json:"hold,omitempty"`
	// Fence is that of a hold with a MinHold, or of one that was detached. It is written in the transaction that
	// makes the node that is left of it.
	Fence lock.Fence `json:"fence,omitempty"`
	// Detached is, in the node that is there for a detached hold, for how long others are kept out from when it
	// was written; and Ends when that is over, in milliseconds of the leader's clock, where that is known.
	Detached int64 `json:"detached_ms,omitempty"`
	Ends     int64 `json:"ends_ms,omitempty"`
	// Revoked: the release is forced, with this grace.
	Revoked *int64 `json:"revoked_ms,omitempty"`
	// Known: the grace of a forced release that the holder's sidecar knows of. The
	// node is deleted when so much time has passed after this was written.
	Known *int64 `json:"known_ms,omitempty"`
}

func (r *record) encode() []byte {
	r.Version = recordVersion
	return encode(r)
}

// decodeRecord reads the data of a node; false when it is not ours.
func decodeRecord(data []byte) (record, bool) {
	var r record
	err := json.Unmarshal(data, &r)
	if r.Slot != nil && (*r.Slot < 0 || *r.Slot >= lock.MaxPermits) {
		r.Slot = nil
	}
	return r, err == nil && r.Version == recordVersion
}

// known is the grace that the holder's sidecar knows of, and counts.
func (r *record) known() (time.Duration, bool) {
	if r.Known == nil {
		return 0, false
	}
	return fromMillis(*r.Known), true
}

// unknown is the grace that the holder's sidecar has not acknowledged yet.
func (r *record) unknown() (time.Duration, bool) {
	if r.Revoked == nil || r.Known != nil && *r.Known <= *r.Revoked {
		return 0, false
	}
	return fromMillis(*r.Revoked), true
}

// toMillis rounds up: a grace must not become shorter.
func toMillis(d time.Duration) int64 { return int64((d + time.Millisecond - 1) / time.Millisecond) }

func fromMillis(ms int64) time.Duration { return max(0, time.Duration(ms)*time.Millisecond) }

// ownerJSON is an owner as it can be part of a record.
func ownerJSON(owner string) json.RawMessage {
	if owner == "" || !json.Valid([]byte(owner)) {
		return nil // written by another program; no decision is made on it
	}
	return json.RawMessage(owner)
}

// leaseRecord is the data of a lease's node: for people, but for what somebody else
// has written there, so that the lease's next heartbeat hears of it.
type leaseRecord struct {
	Version int    `json:"locksidecar"`
	Sidecar string `json:"sidecar,omitempty"`
	TTL     string `json:"ttl,omitempty"`
	// Base is that by which the lease counts its fences; 0: it does not yet.
	Base int64 `json:"fence_base,omitempty"`
	// Forced are nodes of the lease that somebody has written to or deleted.
	Forced []forcedNode `json:"forced,omitempty"`
	// More: there are more of them.
	More bool `json:"more,omitempty"`
}

// forcedNode is the forced release of one request.
type forcedNode struct {
	Node  string `json:"node"`
	Grace int64  `json:"grace_ms"`
}

// maxForced bounds what is noted in the node of a lease.
const maxForced = 64

// force notes a forced release.
func (r *leaseRecord) force(node string, grace time.Duration) {
	if len(r.Forced) == maxForced {
		r.Forced, r.More = nil, true
	}
	r.Forced = append(r.Forced, forcedNode{node, toMillis(grace)})
}

func (r leaseRecord) encode() []byte { // several may at a time: it changes a copy
	r.Version = recordVersion
	return encode(r)
}

// decodeLease reads the data of a lease's node. What is not ours may mean anything.
func decodeLease(data []byte) leaseRecord {
	var r leaseRecord
	if err := json.Unmarshal(data, &r); err != nil || r.Version != recordVersion {
		return leaseRecord{More: true}
	}
	return r
}

func encode(v any) []byte {
	b, err := json.Marshal(v)
	if err != nil { // only valid JSON is taken as the owner
		panic(fmt.Sprintf("encode record: %v", err))
	}
	return b
}
