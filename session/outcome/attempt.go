package outcome

import (
	"errors"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/locksidecar/locksidecar/lock"
)

// MaxNote is the largest note, in bytes.
const MaxNote = 1024

// Attempt is one try of something that is done once.
type Attempt struct {
	Resource lock.Resource
	Number   int         // 1 is the first
	Previous *Outcome    // nil: there is none, or it is forgotten
	Guard    *lock.Guard // records Succeeded in a transaction of the app; nil where the store has none

	keep time.Duration
	by   By
}

// Refused tells at once, from a record that may be old, that an attempt would be
// refused: what has ended stays as it is, until an attempt begins, which would be
// refused as well, or until it is forgotten.
func (w Wish) Refused(r lock.Resource, found lock.Record) error {
	o, err := Read(found)
	if err != nil || o == nil || o.State == Unknown {
		return nil // who has the lock will see
	}
	return w.refuses(r, o)
}

func (w Wish) refuses(r lock.Resource, o *Outcome) error {
	switch {
	case o == nil:
		return nil
	case o.State == Succeeded:
		return &RefusedError{Cause: ErrAlreadyDone, Resource: string(r), Found: *o}
	case w.MaxAttempts > 0 && o.Attempt >= w.MaxAttempts:
		return &RefusedError{Cause: ErrAttemptsExhausted, Resource: string(r), Found: *o}
	default:
		return nil
	}
}

// Begin is for who has just been granted the lock, and has found that record. The
// attempt begins when Attempt.Started is written over it.
//
//	*RefusedError: there must be no attempt.
//	ErrOvertaken: the record is of somebody who was granted the lock later.
//	ErrForeign: as for Read.
func (w Wish) Begin(r lock.Resource, found lock.Record, by By) (*Attempt, error) {
	o, err := Read(found)
	if err != nil {
		return nil, err
	}
	if err := w.refuses(r, o); err != nil {
		return nil, err
	}
	a := &Attempt{Resource: r, Number: 1, Previous: o, keep: w.Keep, by: by}
	if o != nil {
		if o.By.Fence > by.Fence {
			return nil, ErrOvertaken
		}
		a.Number = o.Attempt + 1
	}
	return a, nil
}

// Keep is how long each of its records is kept.
func (a *Attempt) Keep() time.Duration { return a.keep }

// ID is the hold under which it is made.
func (a *Attempt) ID() lock.HoldID { return a.by.LockID }

// Fence is that of the hold.
func (a *Attempt) Fence() lock.Fence { return a.by.Fence }

// Started is the record of an attempt at work. A hold makes one attempt, so its id is a
// version that no other write has.
func (a *Attempt) Started() lock.Record { return a.record(string(a.by.LockID), Unknown, "") }

// Ended is the record of its end. The same end has the same version, however often it is
// told, and whoever writes it: the sidecar, or the app by its Guard.
func (a *Attempt) Ended(s State, note string) lock.Record {
	return a.record(string(a.by.LockID)+"."+s.String(), s, note)
}

func (a *Attempt) record(version string, s State, note string) lock.Record {
	return lock.Record{Version: version, Value: Outcome{State: s, Attempt: a.Number, Note: note, By: a.by}.encode()}
}

// After is over which version the end is to be written, where that record was found.
// done: the end stands there already. A record that is gone has outlived its keep: as long as nobody
// else has begun, the attempt may still say how it ended.
//
//	ErrOvertaken: somebody else has begun. ErrOtherwise: it has ended otherwise.
func (a *Attempt) After(found, end lock.Record) (version string, done bool, err error) {
	own := string(a.by.LockID)
	switch {
	case found.Version == end.Version:
		return "", true, nil
	case found.Version == "", found.Version == own:
		return found.Version, false, nil
	case strings.HasPrefix(found.Version, own+"."):
		return "", false, ErrOtherwise
	default:
		return "", false, ErrOvertaken
	}
}

// CheckNote is nil for a note that a record can have.
func CheckNote(note string) error {
	switch {
	case len(note) > MaxNote:
		return errors.New("is too long: at most 1024 bytes are allowed")
	case !utf8.ValidString(note):
		return errors.New("is not valid UTF-8")
	case strings.ContainsFunc(note, func(r rune) bool { return unicode.IsControl(r) && !strings.ContainsRune("\t\r\n", r) }):
		return errors.New("has control characters other than tab and the end of a line")
	default:
		return nil
	}
}
