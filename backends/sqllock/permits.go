package sqllock

import (
	"errors"

	"github.com/locksidecar/locksidecar/backends/queue"
	"github.com/locksidecar/locksidecar/lock"
)

// This file is about permits. While some are held, the row of the resource has their mode where
// else it says that the exclusive hold was downgraded, and the rows of the table hold are theirs.
// A transaction then reads all of them, at most lock.MaxPermits, to know which slots are free.
// A slot stands in the fence, which is in the table as a whole.

// wholeFence is from where on a number in the table hold is a fence, and not the number of one,
// which is smaller until the year 2255.
const wholeFence = 1 << 53

// errOtherLimit: the holders have another number of permits than is asked for.
var errOtherLimit = errors.New("there are permits of another number")

// fenceOf is the fence that a number in the tables stands for.
func fenceOf(n int64) lock.Fence {
	if n >= wholeFence {
		return lock.Fence(n)
	}
	return lock.FenceOf(n)
}

func isPermit(e *entry) bool { return e.Room().Mode().Limit() > 0 }

// has gives the mode of the permits that are held, as the row says that was read; 0: none are.
func has(res []Result) lock.Mode {
	if len(res[1].Rows) == 0 {
		return 0
	}
	row := res[1].Rows[0]
	if mode := lock.Mode(row.Int(4)); row.Null(2) && mode.Limit() > 0 { //nolint:gosec // a mode
		return mode
	}
	return 0
}

// addPermits puts in those that are held.
func (s *state) addPermits(held []Row) {
	for _, r := range held {
		e := &entry{ID: lock.HoldID(r.Text(0)), Value: member{lease: r.Text(1), fence: r.Int(2), at: r.Int(3), place: inHolds}}
		s.q.PutPermit(e, queue.RoomOf(s.permit), fenceOf(r.Int(2)).Slot())
		s.entries[string(e.ID)] = e
	}
}

// writingPermits writes on the row what permits there are, if that has changed.
func (b *Backend) writingPermits(n []byte, s *state) []Statement {
	var mode lock.Mode
	for e := range s.q.Holders() {
		if isPermit(e) {
			mode = e.Room().Mode()
		}
		break
	}
	if s.x != nil || mode == s.permit && !s.permitted {
		return nil
	}
	crowd := int64(0)
	if s.crowded() {
		crowd = 1
	}
	return []Statement{{SQL: b.sql.setPermits, Args: []any{s.fence, int64(mode), crowd, n}}}
}
