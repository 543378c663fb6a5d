package lock

import (
	"context"
	"errors"
	"fmt"
	"time"
)

// The bounds of a record.
const (
	MaxRecord        = 4096 // bytes of its value
	MaxRecordVersion = 64   // bytes

	MinKeep = time.Second // for how long a store keeps it
	MaxKeep = 400 * 24 * time.Hour
)

// ErrRecordChanged means that a record has another version than the caller thought.
var ErrRecordChanged = errors.New("the record has changed")

// Records is a Backend that also keeps small records, each under the name of a resource.
// A record and the lock of that name know nothing of each other: what a record means is
// the business of who has the lock when it writes. Errors that are not named at the
// method wrap ErrUnavailable.
type Records interface {
	// ReadRecord gives the record of r as the newest write left it. A resource that has none,
	// or whose record was kept for its time, gives a Record with Version "".
	ReadRecord(ctx context.Context, r Resource) (Record, error)

	// WriteRecord puts next in the place of the record of r, if the version of that is
	// still after; "" means that there must be none. The store keeps it for keep, by the
	// store's clock. Where next is there already, a second call of the same write gives nil
	// and changes nothing.
	//   ErrRecordChanged: there is another, or none; nothing has changed.
	//   ErrInvalid: next or keep is out of bounds, see Check.
	//   *LimitError: the store takes no more records; nothing has changed.
	//   ErrUnavailable: the outcome is unknown. It was carried out if ReadRecord gives
	//     next.Version. If not, a late copy of it may still come through, until another
	//     write of that record has. A late copy of a write that expects none may also
	//     come through when the record is gone again.
	WriteRecord(ctx context.Context, r Resource, after string, next Record, keep time.Duration) error

	// DeleteRecord takes the record away, if its version is still after. Where there is
	// none, it is gone: nil.
	//   ErrRecordChanged: there is another; nothing has changed.
	//   ErrUnavailable: as for WriteRecord.
	DeleteRecord(ctx context.Context, r Resource, after string) error

	// ListRecords gives the records whose names start with prefix, in byte order of the
	// names: as many as the page has room for, or all that are left. A Limit out of bounds
	// is taken as MaxPage. What is written meanwhile may be seen or not.
	// *PartialError: a part of the store did not answer; the list has what the others have.
	ListRecords(ctx context.Context, prefix string, p Page) ([]NamedRecord, error)
}

// Record is what a store keeps under a name.
type Record struct {
	// Version is what the writer chose, 1 to MaxRecordVersion bytes of printable ASCII
	// without spaces. No two writes of a name have the same, ever, so a version that is
	// read again is the same write.
	Version string
	Value   []byte        // at most MaxRecord bytes
	Age     time.Duration // since it was written, by the store's clock; only read
}

// NamedRecord is a Record and its name.
type NamedRecord struct {
	Resource Resource
	Record
}

// Check finds what a store does not keep. The error is an *InvalidError.
func (r Record) Check(keep time.Duration) error {
	switch {
	case r.Version == "" || len(r.Version) > MaxRecordVersion:
		return &InvalidError{Field: "version", Problem: fmt.Sprintf("is %d bytes long, must be 1 to %d", len(r.Version), MaxRecordVersion)}
	case len(r.Value) > MaxRecord:
		return &InvalidError{Field: "value", Problem: fmt.Sprintf("is %d bytes long, at most %d are allowed", len(r.Value), MaxRecord)}
	case keep < MinKeep || keep > MaxKeep:
		return &InvalidError{Field: "keep", Problem: fmt.Sprintf("is %s, must be %s to %s", keep, MinKeep, MaxKeep)}
	}
	for _, c := range []byte(r.Version) {
		if c <= ' ' || c > '~' {
			return &InvalidError{Field: "version", Problem: "has a byte that is no printable ASCII"}
		}
	}
	return nil
}

// RecordGuarder is a Records in an SQL database: an app can write a record in its own
// transaction.
type RecordGuarder interface {
	Records

	// RecordGuard gives the statement that does what WriteRecord does; after is not "", and
	// next and keep are within bounds. One row changed: commit; none: the record has another
	// version, or is gone: roll back. Until the transaction ends no other write of that
	// record comes through: it is ErrUnavailable when its ctx ends.
	RecordGuard(r Resource, after string, next Record, keep time.Duration) *Guard
}

// RecordsOf finds the Records of a Backend, also behind those that stand in front of it
// and have a method Unwrap() Backend.
func RecordsOf(b Backend) (Records, bool) { return behind[Records](b) }
