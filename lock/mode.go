package lock

import "strconv"

// Mode says how a resource is locked.
type Mode uint8

// The zero Mode is not a mode, so that a forgotten one is refused.
const (
	Exclusive Mode = iota + 1 // a write lock: alone
	Shared                    // a read lock: beside other shared holds
)

// Valid reports whether m is one of the modes.
func (m Mode) Valid() bool { return m == Exclusive || m == Shared }

// String gives the name used in the API, in metrics and in tables.
func (m Mode) String() string {
	switch m {
	case Exclusive:
		return "EXCLUSIVE"
	case Shared:
		return "SHARED"
	default:
		return "Mode(" + strconv.Itoa(int(m)) + ")"
	}
}
