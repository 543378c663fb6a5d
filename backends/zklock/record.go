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
	// Revoked: the release is forced, and the node is deleted when so much time
	// has passed after this was written.
	Revoked *int64 `json:"revoked_ms,omitempty"`
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

// grace is the time that a holder whose release is forced has from then on.
func (r *record) grace() (time.Duration, bool) {
	if r.Revoked == nil {
		return 0, false
	}
	return max(0, time.Duration(*r.Revoked)*time.Millisecond), true
}

// ownerJSON is an owner as it can be part of a record.
func ownerJSON(owner string) json.RawMessage {
	if owner == "" || !json.Valid([]byte(owner)) {
		return nil // written by another program; no decision is made on it
	}
	return json.RawMessage(owner)
}
