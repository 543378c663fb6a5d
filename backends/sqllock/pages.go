package sqllock

import "context"

// pages reads what hangs on a lease in steps: what stands behind the last row of the step
// before. So what somebody has locked, and is left, is not in the way of the rest.
type pages struct {
	sql  string
	next func(last Row) []any // nil: the first step
}

// pageStep is how many rows one step reads.
const pageStep = 1000

// read calls each for the rows of every step.
func (p pages) read(ctx context.Context, from interface {
	Do(ctx context.Context, command string, batch ...Statement) ([]Result, error)
}, command string, each func(rows []Row) error,
) error {
	var last Row
	for {
		res, err := from.Do(ctx, command, Statement{SQL: p.sql, Args: append(p.next(last), pageStep)})
		if err != nil {
			return err
		}
		rows := res[0].Rows
		if len(rows) > 0 {
			if err := each(rows); err != nil {
				return err
			}
			last = rows[len(rows)-1]
		}
		if len(rows) < pageStep {
			return nil
		}
	}
}

// waitersOf are those of a lease.
func (q *statements) waitersOf(lease string) pages {
	return pages{q.heldWaits, func(r Row) []any {
		if r == nil {
			return []any{[]byte(lease), []byte{}, []byte{}, int64(0)}
		}
		return []any{[]byte(lease), []byte(r.Text(0)), []byte(r.Text(0)), r.Int(2)}
	}}
}

// rowsOf are its exclusive holds.
func (q *statements) rowsOf(lease string) pages {
	return pages{q.heldRows, func(r Row) []any {
		if r == nil {
			return []any{[]byte(lease), []byte{}}
		}
		return []any{[]byte(lease), []byte(r.Text(0))}
	}}
}

// holdsOf are its shared holds.
func (q *statements) holdsOf(lease string) pages { return q.byNameAndID(q.heldHolds, lease) }

// notesAbout are notes about it.
func (q *statements) notesAbout(lease string) pages { return q.byNameAndID(q.heldNotes, lease) }

func (*statements) byNameAndID(sql, lease string) pages {
	return pages{sql, func(r Row) []any {
		if r == nil {
			return []any{[]byte(lease), []byte{}, []byte{}, []byte{}}
		}
		return []any{[]byte(lease), []byte(r.Text(0)), []byte(r.Text(0)), []byte(r.Text(1))}
	}}
}
