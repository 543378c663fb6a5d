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
// decisions depend on is in the node's name, but for the two marks.
type record struct {
	Version int             `json:"locksidecar"`
	Lease   lock.LeaseID    `json:"lease"`
	Sidecar string          `json:"sidecar,omitempty"`
	Owner   json.RawMessage `json:"owner,omitempty"`
	// Waited is how long it was in the queue before it was granted, by the clock of
	// its sidecar.
	Waited int64 `json:"waited_ms,omitempty"`
	// Downgraded: an exclusive hold that lets others read beside it.
	Downgraded bool `json:"downgraded,omitempty"`
	// Revoked: the release is forced, with this grace.
	Revoked *int64 `json:"revoked_ms,omitempty"`
	// Known: the grace of a forced release that the holder's sidecar knows of. The
	// node is deleted when so much time has passed after this was written.
	Known *int64 `json:"known_ms,omitempty"`
}

func (r *record) encode() []byte {
	r.Version = recordVersion
	b, err := json.Marshal(r)
	if err != nil { // only valid JSON is taken as the owner
		panic(fmt.Sprintf("encode record: %v", err))
	}
	return b
}

// decodeRecord reads the data of a node; false when it is not ours.
func decodeRecord(data []byte) (record, bool) {
	var r record
	err := json.Unmarshal(data, &r)
	return r, err == nil && r.Version == recordVersion
}

// grace is that of a forced release.
func (r *record) grace() (time.Duration, bool) { return millis(r.Revoked) }

// known is the grace that the holder's sidecar knows of, and has begun to count.
func (r *record) known() (time.Duration, bool) { return millis(r.Known) }

// acknowledged reports whether the holder's sidecar knows of the grace.
func (r *record) acknowledged() bool {
	return r.Revoked == nil || r.Known != nil && *r.Known <= *r.Revoked
}

func millis(ms *int64) (time.Duration, bool) {
	if ms == nil {
		return 0, false
	}
	return max(0, time.Duration(*ms)*time.Millisecond), true
}

// ownerJSON is an owner as it can be part of a record.
func ownerJSON(owner string) json.RawMessage {
	if owner == "" || !json.Valid([]byte(owner)) {
		return nil // written by another program; no decision is made on it
	}
	return json.RawMessage(owner)
}
