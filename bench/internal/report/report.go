// Package report holds what a run of the benchmark found, as JSON for programs
// and as tables for people.
package report

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"time"

	"github.com/locksidecar/locksidecar/bench/internal/measure"
)

// Report is everything that one run found.
type Report struct {
	Setup  Setup    `json:"setup"`
	Stores []*Store `json:"stores"`
}

// Store is what was found on one store. Parts that were not run are empty.
type Store struct {
	Words  measure.Words `json:"words"`
	Server string        `json:"server"`
	Pairs  []Pairs       `json:"pairs,omitempty"`
	Hot    []*Hot        `json:"hot_lock,omitempty"`
	Kill   *Kill         `json:"kill,omitempty"`
	Lead   *Kill         `json:"lead,omitempty"` // of the leader's process, to the command of the next one
	Idle   *Idle         `json:"idle,omitempty"`

	Contenders *Contenders `json:"contenders,omitempty"`
	Sessions   *Sessions   `json:"sessions,omitempty"`
	Scale      *Scale      `json:"scale,omitempty"`

	Targets []Target `json:"targets"`
}

// Setup says where the numbers come from.
type Setup struct {
	Began      string   `json:"began"` // RFC 3339
	CPU        string   `json:"cpu"`
	Cores      int      `json:"cores"`
	Kernel     string   `json:"kernel"`
	Go         string   `json:"go"`
	Sidecar    string   `json:"sidecar"` // its version
	Parts      []string `json:"parts"`
	Rounds     int      `json:"rounds"`
	Quick      bool     `json:"quick"`
	LoadBefore string   `json:"load_before"` // of one, five and fifteen minutes
	LoadAfter  string   `json:"load_after"`
}

// Pairs are the pairs of one subject with so many callers, each caller on a
// resource of its own.
type Pairs struct {
	Subject string          `json:"subject"`
	Callers int             `json:"callers"`
	Rounds  []measure.Round `json:"rounds"`
}

// Hot is one lock that many callers of two sidecars want.
type Hot struct {
	How               string     `json:"how,omitempty"` // the sidecars work; empty: as they do by default
	Sidecars          int        `json:"sidecars"`
	CallersPerSidecar int        `json:"callers_per_sidecar"`
	Rounds            []HotRound `json:"rounds"`
}

// HotRound is one round of Hot and, beside it, what the store needs for the like.
type HotRound struct {
	PerSecond float64       `json:"pairs_per_second"`
	HandOff   measure.Times `json:"hand_off"`       // just before the release is sent, until the next acquire has returned
	Across    measure.Times `json:"hand_off_cross"` // only those from one sidecar to the other
	Held      measure.Times `json:"hand_off_held"`  // the same where each holds the lock for a millisecond
	Notified  measure.Times `json:"notified"`       // see measure.Notices
	Answered  measure.Times `json:"answered"`
}

// Contenders are many workers that want one lock all the time.
type Contenders struct {
	Workers int         `json:"workers"`
	Hold    float64     `json:"hold_ms"`
	Seconds float64     `json:"seconds"`
	Rows    []Contender `json:"rows"`
}

// Contender is one way to that lock.
type Contender struct {
	Subject string `json:"subject"`
	Waits
}

// Waits are how long the workers waited, in microseconds.
type Waits struct {
	PerSecond float64 `json:"holds_per_second"`
	Mean      float64 `json:"mean_us"`
	P50       float64 `json:"p50_us"`
	P95       float64 `json:"p95_us"`
	Max       float64 `json:"max_us"`
}

// WaitsOf summarises all waits of that time. Of nothing it is the zero Waits.
func WaitsOf(waits []time.Duration, in time.Duration) Waits {
	if len(waits) == 0 {
		return Waits{}
	}
	slices.Sort(waits)
	var sum time.Duration
	for _, w := range waits {
		sum += w
	}
	micros := func(d time.Duration) float64 { return float64(d) / float64(time.Microsecond) }
	return Waits{
		PerSecond: float64(len(waits)) / in.Seconds(),
		Mean:      micros(sum) / float64(len(waits)),
		P50:       micros(measure.Quantile(waits, 0.50)),
		P95:       micros(measure.Quantile(waits, 0.95)),
		Max:       micros(waits[len(waits)-1]),
	}
}

// Sessions are idle app sessions, each with a connection of its own.
type Sessions struct {
	Sessions   int           `json:"sessions"`
	FirstGrant measure.Times `json:"exec_to_first_grant"`
	Used       Memory        `json:"used"` // one session that has taken and released locks
	With       Memory        `json:"with_sessions"`
}

// Scale is what the leases of many sidecars ask of one store.
type Scale struct {
	Leases    int     `json:"leases"`
	Holds     int     `json:"holds_each"`
	Contended int     `json:"contended"`
	LeaseTTL  float64 `json:"lease_ttl_seconds"`
	Loads     []Load  `json:"loads"`
}

// Load is what reached the store in a second.
type Load struct {
	What     string  `json:"what"`
	Requests float64 `json:"requests_per_second"` // by the server's count; 0 where it does not count them
	Steps    float64 `json:"steps_per_second"`    // see measure.Count
	CPU      float64 `json:"cpu_cores"`           // of the server; 0 where it cannot be told
}

// Kill is kill -9 of an app that holds a lock.
type Kill struct {
	Repeats int           `json:"repeats"`
	Grant   measure.Times `json:"kill_to_grant"` // just before the signal is sent, until the waiter at the other sidecar has the lock
}

// Idle is what a sidecar takes that has nothing to do.
type Idle struct {
	Holds      int        `json:"holds"`
	LeaseTTL   float64    `json:"lease_ttl_seconds"`
	Window     float64    `json:"window_seconds"` // over which commands were counted
	Start      Memory     `json:"started"`        // ready, nobody has ever connected
	Before     Memory     `json:"no_holds"`       // one session that has taken and released locks and holds none
	With       Memory     `json:"with_holds"`
	PerHold    Memory     `json:"per_hold"` // (with_holds − no_holds) ÷ holds
	CommandsAt []Commands `json:"store_commands"`
}

// Memory is what one process has, in bytes.
type Memory struct {
	RSS       float64 `json:"rss_bytes"`       // resident, with what it shares with other processes
	Anonymous float64 `json:"anonymous_bytes"` // resident and its own: heap, stacks, runtime
	Heap      float64 `json:"heap_bytes"`      // allocated in Go's heap, live or not collected yet
	Store     float64 `json:"store_bytes"`     // what the server uses, for all its clients
}

// Commands are what reached the store while nobody asked the sidecar for anything.
type Commands struct {
	Holds    int     `json:"holds"`
	Beats    float64 `json:"heartbeats"`             // that the sidecar sent in the window
	Renewing float64 `json:"renewing_per_heartbeat"` // requests that renew the lease, by the sidecar's own count
	Sent     float64 `json:"sent_per_heartbeat"`     // requests of all kinds, by the sidecar's own count
	Requests float64 `json:"requests_per_heartbeat"` // by the server's count; 0 where it does not count them
	Steps    float64 `json:"steps_per_heartbeat"`    // see measure.Count
}

// WriteJSON writes the report to a file and makes its folder if need be.
func (r *Report) WriteJSON(path string) error {
	b, err := json.MarshalIndent(r, "", "  ")
	if err != nil {
		return fmt.Errorf("encode the results: %w", err)
	}
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil { //nolint:gosec // results are for everybody to read
		return fmt.Errorf("make the folder for results: %w", err)
	}
	if err := os.WriteFile(path, append(b, '\n'), 0o644); err != nil { //nolint:gosec // results are for everybody to read
		return fmt.Errorf("write the results: %w", err)
	}
	return nil
}
