package testengine

import (
	"context"
	"time"
)

// Server is one running store, however many processes it is made of. It is
// known to answer when it is handed out.
type Server interface {
	// URL is the address of the store as the product takes it.
	URL() string
	// Origin says in a few words what it is and where it came from.
	Origin() string
	// Close ends what was started for it and removes its files. A server from an
	// environment variable is left alone.
	Close() error
}

// What can be done to a server beside using it. Each is a capability of its
// own: a server from an environment variable has none but Proxier, and even
// that only where one address is all there is.
type (
	// Pauser can be frozen: it neither answers nor closes connections.
	Pauser interface {
		// Pause freezes every process that keeps data, as SIGSTOP does.
		Pause(ctx context.Context) error
		// Resume lets them go on. It is no error when they were not frozen.
		Resume(ctx context.Context) error
	}

	// Crasher can be ended without a warning and started again.
	Crasher interface {
		// Crash ends every process that keeps data, as kill -9 does.
		// With KeepData everything that was acknowledged is there after Start, as
		// on a server that writes to disk before it answers; the server must be
		// able to answer for that. With DropData it starts empty.
		Crash(ctx context.Context, d Data) error
		// Start starts what Crash ended, at the same addresses, and returns when
		// it answers. It is no error when it runs.
		Start(ctx context.Context) error
	}

	// Backuper can go back to what it knew.
	Backuper interface {
		// BackUp keeps what the server knows, and returns when it answers.
		BackUp(ctx context.Context) error
		// Restore has it know that again, and nothing that came after it.
		Restore(ctx context.Context) error
	}

	// Failoverer has a replica that takes over.
	Failoverer interface {
		// FailOver ends the master as kill -9 does and returns when the replica
		// has been promoted and everybody who may be asked says so. With KeepData
		// the replica knows everything that was acknowledged, with DropData it
		// knows nothing at all. The old master is started as the new replica.
		FailOver(ctx context.Context, d Data) error
		// Healthy returns when a replica is there that could take over.
		Healthy(ctx context.Context) error
	}

	// Clocker has a clock of its own.
	Clocker interface {
		// ShiftClock sets the clock of every process ahead of the true time by
		// that much, or back where it is negative; 0 puts it right. It jumps at
		// once, under what is running. What measures time (the monotonic clock)
		// goes on as before.
		ShiftClock(ctx context.Context, by time.Duration) error
	}

	// Noder is made of nodes that can be treated one by one.
	Noder interface {
		// Nodes are the processes that keep data.
		Nodes() []Node
	}

	// Node is one process of a server.
	Node interface {
		Addr() string // host:port
		Origin() string
		Pauser
		Crasher
	}

	// Securer talks TLS to clients that want it.
	Securer interface {
		// CA is the certificate, as PEM, of who vouches for the server, by the
		// names localhost and 127.0.0.1.
		CA() []byte
	}

	// Proxier can be reached through a proxy of ours.
	Proxier interface {
		// Proxy opens a new road to the server for one client. All connections
		// of a client that is given the proxy's URL go through it, also those to
		// nodes that the client learns of from the server.
		Proxy(ctx context.Context) (*Proxy, error)
	}
)

// Data says what a crash leaves behind.
type Data int

const (
	// KeepData: everything that was acknowledged survives.
	KeepData Data = iota + 1
	// DropData: nothing survives.
	DropData
)
