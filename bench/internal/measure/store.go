package measure

import (
	"context"
	"time"
)

// Store is a server that runs, seen by a client that the run has of its own.
type Store interface {
	// URL is the address as a sidecar takes it.
	URL() string
	// Subjects are other ways to a lock in this store.
	Subjects() []Subject
	// Notify measures for a while, one after the other, the least that a
	// hand-over of a lock in this store takes, see Notices.
	Notify(ctx context.Context, d time.Duration) (Notices, error)
	// CPU is the processor time that the server has used so far, in
	// microseconds; 0 where it cannot be told.
	CPU(ctx context.Context) (float64, error)
	// Memory is what the data of the server takes, in bytes.
	Memory(ctx context.Context) (float64, error)
	// Count is what the server has counted so far. To ask counts nothing.
	Count(ctx context.Context) (Count, error)
	// Close closes the client.
	Close() error
}

// Notices are how long it took until another client knew of a change.
type Notices struct {
	Delivered []time.Duration // from just before the request was sent until the other client was told; empty where the store tells nobody
	Answered  []time.Duration // until that request was answered
}

// Count is a number of requests.
type Count struct {
	Requests float64 // that clients sent; 0 where the server does not count them
	Steps    float64 // that they were made of, see Words.Steps
}

// Words are how the tables speak of a kind of store.
type Words struct {
	Name     string `json:"name"`     // of the store
	Steps    string `json:"steps"`    // what Count.Steps counts, in the plural
	Memory   string `json:"memory"`   // what Store.Memory is
	Renewal  string `json:"renewal"`  // the command by which a sidecar's metrics know a renewal of its lease
	Notified string `json:"notified"` // what Notices.Delivered is; empty where there is none
	Answered string `json:"answered"` // what Notices.Answered is
}

// Take takes a lock, waits for it as long as ctx lasts, and gives what releases it.
type Take func(ctx context.Context) (release func(context.Context) error, err error)

// Polling is a Store for which there is a library that asks again and again until a
// lock is free.
type Polling interface {
	// Poller is the library's name, and what each of its callers does for that key,
	// with the delays that the library has by default.
	Poller(key string) (name string, take Take)
}
