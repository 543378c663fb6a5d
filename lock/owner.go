package lock

import (
	"encoding/json"
	"fmt"
	"time"
)

// Owner tells people who holds or waits for a lock. No decision is made on it.
type Owner struct {
	PID int32  `json:"pid,omitempty"` // as the sidecar sees it; 0 when it is in a PID namespace out of sight
	UID uint32 `json:"uid"`           // of the peer on the socket
	GID uint32 `json:"gid"`           // of the peer on the socket
	// Principal is who the app is where the sidecar does not go by the uid: "unit:NAME".
	Principal string            `json:"principal,omitempty"`
	Ref       string            `json:"ref,omitempty"`     // of the app session: the same for all that it holds and waits for; opens nothing
	Session   string            `json:"session,omitempty"` // the app session's name, chosen by the app
	Label     string            `json:"label,omitempty"`   // the owner label of the request, see reentrancy
	Metadata  map[string]string `json:"meta,omitempty"`    // chosen by the app
	Turn      *Turn             `json:"turn,omitempty"`    // where the store has the hold of a Cohort under somebody else's name
	Nested    *Nested           `json:"nested,omitempty"`  // of a request whose Ref and Label held something already
}

// Nested says what an owner held when it asked for one more. That is how a circle of owners
// that wait for each other is found with few questions to the store.
type Nested struct {
	Asked int64    `json:"asked"` // milliseconds since the Unix epoch, by the clock of the sidecar's machine
	Held  []string `json:"held"`  // names of resources, as the store has them, the latest first; at most MaxNested and MaxNestedBytes of them
}

// MaxNested and MaxNestedBytes bound Nested.Held.
const (
	MaxNested      = 32
	MaxNestedBytes = 2048
)

// Turn says who has the hold of a Cohort, where that is not the one who asked the store.
type Turn struct {
	LockID HoldID        `json:"lock,omitempty"`   // of who has it now; empty: it is parked
	Fences Fence         `json:"fences,omitempty"` // how much larger the fence is than that of the store
	Later  time.Duration `json:"later,omitempty"`  // how long after the store's grant it was handed on
}

// Parked reports whether the store was told that no app has the hold of a Cohort.
func (o Owner) Parked() bool { return o.Turn != nil && o.Turn.LockID == "" }

// Encode gives the form in which an owner is kept in a store. It is made once a
// session and not once a request.
func (o Owner) Encode() string {
	b, err := json.Marshal(o)
	if err != nil { // strings, integers and a map of strings always marshal
		panic(fmt.Sprintf("encode owner: %v", err))
	}
	return string(b)
}

// DecodeOwner reads what Encode wrote. What another program wrote there is not
// an error: people still want to see the lock.
func DecodeOwner(s string) Owner {
	var o Owner
	_ = json.Unmarshal([]byte(s), &o)
	return o
}
