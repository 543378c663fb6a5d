package lock

import "strconv"

// Mode says how a resource is locked.
type Mode uint16

// The zero Mode is not a mode, so that a forgotten one is refused.
const (
	Exclusive Mode = iota + 1 // a write lock: alone
	Shared                    // a read lock: beside other shared holds
)

// MaxPermits is how many permits a resource can have. The fence of a hold has room for
// the number of one.
const MaxPermits = FenceRange

// Permits is the mode of one of n permits, 1 to MaxPermits: at most n such holds are there
// together, and none of another mode, also not one of another number of permits.
func Permits(n int) Mode { return Shared + Mode(n) } //nolint:gosec // at most MaxPermits

// Limit is how many permits there are; 0: the mode is not one of permits.
func (m Mode) Limit() int { return max(0, int(m)-int(Shared)) }

// Valid reports whether m is one of the modes.
func (m Mode) Valid() bool { return m >= Exclusive && m <= Shared+MaxPermits }

// Excludes reports whether a hold in one of two modes excludes one in the other, however few
// there are.
func (m Mode) Excludes(o Mode) bool { return m != o || m == Exclusive }

// String gives the name used in the API, in metrics and in tables.
func (m Mode) String() string {
	switch {
	case m == Exclusive:
		return "EXCLUSIVE"
	case m == Shared:
		return "SHARED"
	case m.Valid():
		return "PERMIT"
	default:
		return "Mode(" + strconv.Itoa(int(m)) + ")"
	}
}
