package lock

import (
	"context"
	"errors"
	"time"
)

// MaxRecord is the largest value of a record, in bytes.
const MaxRecord = 4096

// MinKeep and MaxKeep bound how long a store keeps a record.
const (
	MinKeep = time.Second
	MaxKeep = 400 * 24 * time.Hour
)

// ErrRecordChanged means that a record has another version than the caller thought.
var ErrRecordChanged = errors.New("the record has changed")

// Records is a Backend that also keeps small records, each under the name of a resource.
// A record and the lock of that name know nothing of each other: what a record means is
// the business of who has the lock when it writes. Errors that are not named at the
// method wrap ErrUnavailable.
type Records interface {
	// ReadRecord gives the record of r as the newest write left it. A resource that has none
	// gives a Record with Version "".
	ReadRecord(ctx context.Context, r Resource) (Record, error)

	// WriteRecord puts next in the place of the record of r, if the version of that is
	// still after; "" means that there must be none. The store keeps it for keep.
	//   ErrRecordChanged: there is another; nothing has changed.
	//   ErrUnavailable: the outcome is unknown. It was carried out if ReadRecord gives
	//     next.Version. If not, a late copy of it may still come through, until another
	//     write of that record has.
	WriteRecord(ctx context.Context, r Resource, after string, next Record, keep time.Duration) error

	// DeleteRecord takes the record away, if its version is still after. Errors as for
	// WriteRecord.
	DeleteRecord(ctx context.Context, r Resource, after string) error

	// ListRecords gives the records whose names start with prefix, in byte order of the names.
	ListRecords(ctx context.Context, prefix string, p Page) ([]NamedRecord, error)
}

// Record is what a store keeps under a name.
type Record struct {
	// Version is what the writer chose, 1 to 64 bytes of printable ASCII. No two writes
	// of a name have the same, ever, so a version that is read again is the same write.
	Version string
	Value   []byte        // at most MaxRecord bytes
	Age     time.Duration // since it was written, by the store's clock; only read
}

// NamedRecord is a Record and its name.
type NamedRecord struct {
	Resource Resource
	Record
}

// RecordGuarder is a Records in an SQL database: an app can write a record in its own
// transaction.
type RecordGuarder interface {
	Records

	// RecordGuard gives the statement that does what WriteRecord does. One row changed:
	// commit; none: the record has another version, roll back. Until the transaction
	// ends no other write of that record comes through.
	RecordGuard(r Resource, after string, next Record, keep time.Duration) *Guard
}
