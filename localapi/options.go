package localapi

import (
	"io/fs"
	"net/http"
	"os"
	"time"

	"github.com/hashicorp/go-hclog"
	"golang.org/x/sys/unix"

	"github.com/locksidecar/locksidecar/lock"
	"github.com/locksidecar/locksidecar/session"
)

// Options are what a Server needs to know.
type Options struct {
	Manager *session.Manager
	Socket  string      // path of the Unix socket; its directory is made when missing, for the sidecar's user only
	Mode    fs.FileMode // of the socket files; default 0660
	// SideDoors is a folder of folders, in each of which a socket is served besides, with the name of Socket, as long as
	// the folder is there. Each is for one pod, named by its uid: one that connects as fast as it can fills its
	// own line of waiting connections and nobody else's. Empty: none.
	SideDoors string
	// Replace takes the socket from a sidecar that serves it. That one keeps the connections that it
	// has. A socket that was made so is not removed at the end.
	Replace bool
	Access  Access
	// Principals names who has connected; nil: who it is is the uid. See ByUnit and ByPod.
	Principals Principals
	// Spaces gives the name of the space that a principal is in, see session.Space; empty: the one of
	// everybody. nil: all are in that one.
	Spaces  func(principal string) string
	Limits  Limits
	Version string        // told by GetInfo
	Store   func() string // the store's URL without secrets, told by GetInfo; default: nothing
	Metrics http.Handler  // behind /metrics; default: not found
	Tracer  Tracer        // default: none
	Failed  func(error)   // told why a call failed, before that gets the form of the API; default: nobody
	Logger  hclog.Logger  // default: none
	Clock   lock.Clock    // default lock.BootTime; must be the Manager's
}

// Limits bound what clients may take. Zero fields get their default.
type Limits struct {
	Connections       int           // at a time; default 4096, or what the limit of open files allows
	ConnectionsPerUID int           // of one principal; default three quarters of Connections
	WatchesPerUID     int           // of one principal; default 64
	MessageBytes      int           // of one gRPC message or HTTP body; default 64 KiB
	HeaderBytes       int           // of one HTTP or gRPC header; default 16 KiB
	InFlight          int           // requests of one Session stream that are not answered yet; default 2048
	Handshake         time.Duration // from connect to the end of the first request's header, or to a stream's open; default 1m
	Body              time.Duration // for the body of an HTTP request; default 1m
	Idle              time.Duration // between two requests of an HTTP connection; default 2m
	Stall             time.Duration // for a client to read on while answers are due; default 30s

	PerAccount Quota // of each service account; default: none
	PerSpace   Quota // of each space, but not of everybody's; default half of Connections, and as many watches
}

// Quota bounds what several principals have together. 0: only the other limits do.
type Quota struct {
	Connections int
	Watches     int
}

// each gives the limits of each share, by level.
func each(principal, account, space int) [session.Levels]int {
	return [session.Levels]int{session.OfPrincipal: principal, session.OfAccount: account, session.OfSpace: space}
}

const (
	defaultMode          fs.FileMode = 0o660
	defaultConnections               = 4096
	defaultWatchesPerUID             = 64
	defaultMessageBytes              = 64 << 10
	defaultHeaderBytes               = 16 << 10
	defaultInFlight                  = 2048
	defaultHandshake                 = time.Minute
	defaultBody                      = time.Minute
	defaultIdle                      = 2 * time.Minute
	defaultStall                     = 30 * time.Second

	// filesPerConnection are the socket and the pidfd of its process.
	filesPerConnection = 2
	// otherFiles are left for the store's connections, logs and the rest.
	otherFiles = 128
	// sideFiles are left for side doors: more than there are pods on a node.
	sideFiles = 512
)

func (o Options) withDefaults() Options {
	setDefault(&o.Mode, defaultMode)
	setDefault(&o.Limits.Connections, affordableConnections(o.SideDoors != ""))
	setDefault(&o.Limits.ConnectionsPerUID, o.Limits.Connections-o.Limits.Connections/4)
	setDefault(&o.Limits.PerSpace.Connections, max(1, o.Limits.Connections/2))
	setDefault(&o.Limits.PerSpace.Watches, o.Limits.PerSpace.Connections)
	setDefault(&o.Limits.WatchesPerUID, defaultWatchesPerUID)
	setDefault(&o.Limits.MessageBytes, defaultMessageBytes)
	setDefault(&o.Limits.HeaderBytes, defaultHeaderBytes)
	setDefault(&o.Limits.InFlight, defaultInFlight)
	setDefault(&o.Limits.Handshake, defaultHandshake)
	setDefault(&o.Limits.Body, defaultBody)
	setDefault(&o.Limits.Idle, defaultIdle)
	setDefault(&o.Limits.Stall, defaultStall)
	if o.Metrics == nil {
		o.Metrics = http.NotFoundHandler()
	}
	if o.Logger == nil {
		o.Logger = hclog.NewNullLogger()
	}
	if o.Store == nil {
		o.Store = func() string { return "" }
	}
	if o.Clock == nil {
		o.Clock = lock.BootTime
	}
	o.Access = o.Access.withDefaults(uint32(os.Geteuid())) //nolint:gosec // a uid is not negative on Linux
	return o
}

func setDefault[T comparable](v *T, d T) {
	var zero T
	if *v == zero {
		*v = d
	}
}

// affordableConnections is the default limit, or less where the process may not
// open that many files: a refused connection is better than an accept that fails.
func affordableConnections(sideDoors bool) int {
	others := otherFiles
	if sideDoors {
		others += sideFiles
	}
	var files unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &files); err != nil {
		return defaultConnections
	}
	enough := defaultConnections*filesPerConnection + others
	return max(16, (int(min(files.Cur, uint64(enough)))-others)/filesPerConnection)
}
