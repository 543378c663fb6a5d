package main

import (
	"context"
	"fmt"
	"io/fs"
	"os"
	"os/signal"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	"github.com/locksidecar/locksidecar/arbiter"
	"github.com/locksidecar/locksidecar/backends"
	"github.com/locksidecar/locksidecar/internal/memory"
	"github.com/locksidecar/locksidecar/internal/supervise"
	"github.com/locksidecar/locksidecar/localapi"
	"github.com/locksidecar/locksidecar/lock"
	"github.com/locksidecar/locksidecar/session"
)

// defaultDrain is below the 30 s that Kubernetes gives a pod to stop.
const defaultDrain = 25 * time.Second

var serveHelp = `Serve runs the sidecar until SIGTERM, SIGINT or SIGHUP; then it takes no
new sessions, tells the apps that it stops, waits up to --drain for them to finish,
releases what is left and exits with status 0. A second signal ends it at once.
It reads its settings at the start only. It reads the files with the store's password and
certificates again for each connection.

When the store is down at the start, the sidecar waits for it. Until then it is not
ready (/readyz), and each request for a lock waits until its own wait is over.

--store is the URL of the store. For shards give several URLs: --store several times, or once
with spaces between them.

` + backends.Help("  ") + `

Exit status: 0 stopped as asked, 1 failed, 2 wrong settings.`

const serveExamples = `  # for the apps of this host
  locksidecar serve

  # for all hosts that use the same store; probes and metrics on port 9090
  locksidecar serve --store ` + backends.Example + ` --http-addr :9090

  # the password in a file, as Kubernetes mounts secrets
  locksidecar serve --store ` + backends.Example + ` --store-password-file /secrets/store/password

  # three stores, each with a part of the locks
  locksidecar serve --store ` + backends.Example1 + ` --store ` + backends.Example2 + ` --store ` + backends.Example3 + `

  # from a file
  printf 'store: "` + backends.Default + `"\nttl: 5s\nallow-uid: [1000, 1001]\n' >sidecar.yaml
  locksidecar serve --config sidecar.yaml`

const (
	// leastTurns are those with which anything can be parked: what is parked is for the next turn.
	leastTurns = 2
	// maxPark bounds --park: a sidecar that dies blocks what it has parked for a TTL.
	maxPark = 10 * time.Second
	// defaultPark is longer than most pauses of an app that takes the same lock again and again.
	defaultPark = 200 * time.Millisecond
)

// serveFlags are the flags of serve.
type serveFlags struct {
	store      *storeFlags
	log        *logFlags
	socket     *socketFlag
	socketMode fileMode
	httpAddr   string
	drain      time.Duration
	lostGrace  time.Duration
	turns      int
	park       time.Duration
	deadlock   deadlockFlag
	sessions   session.Limits
	api        localapi.Limits
	principal  principalFlag
	space      spaceFlag
	spacesOf   []string
	allowUIDs  []uint
	allowGIDs  []uint
	adminUIDs  []uint
	allowUnits []string
	adminUnits []string

	allowAccounts []string
	podsFolder    string
	socketsFolder string
}

func newServe(io streams) *cobra.Command {
	cmd := &cobra.Command{
		Use:     "serve",
		Short:   "Run the sidecar",
		Long:    serveHelp,
		Example: serveExamples,
		Args:    noArgs,
	}
	f := addServe(cmd)
	cmd.RunE = func(cmd *cobra.Command, _ []string) error { return serve(cmd.Context(), f, io) }
	return cmd
}

func addServe(cmd *cobra.Command) *serveFlags {
	s := &serveFlags{
		store:      addStore(cmd, backends.Default, "where the locks are: a URL, see above"),
		socket:     addSocket(cmd),
		socketMode: 0o660,
	}
	f := cmd.Flags()
	f.Var(&s.socketMode, "socket-mode", "mode of the socket file: a user who may write to it may connect")
	f.StringVar(&s.httpAddr, "http-addr", "", "TCP address (HOST:PORT) for /healthz, /readyz and /metrics; empty: none")
	f.DurationVar(&s.drain, "drain", defaultDrain, "how long to wait for apps to finish when asked to stop")
	f.DurationVar(&s.lostGrace, "lost-grace", session.DefaultLostGrace, "when the sidecar ends a hold, how long it keeps others out, so that the app can stop its work")
	f.IntVar(&s.turns, "local-turns", arbiter.MaxTurns, "how many requests of this sidecar's apps may have a lock in turn without asking the store, as long as no other sidecar is known to wait; 0: each request asks the store, and nothing is parked. What it changes: docs/guarantees.md")
	f.DurationVar(&s.park, "park", defaultPark, "how long a lock that is asked for again and again stays in the store after its release, for the next app of this sidecar; 0: not at all")
	f.Var(&s.deadlock, "deadlock", "what to do when owners wait for each other, at whatever sidecars: break (the one who asked last gets the error DEADLOCK, all holds stay), report (log and count it) or off; the same at all sidecars of a store")
	complete(cmd, "deadlock", deadlockModes...)
	f.Var(&s.principal, "principal", "for whom the limits of one user count: uid; unit (the systemd unit that the app is in; user-UID.slice for what a user has started); or pod (of a node of Kubernetes, with --space namespace; the sidecar then takes the socket from one that serves it). unit and pod need Linux 6.5 and cgroup v2, and an app that is in no unit, or no pod, may not use the sidecar")
	complete(cmd, "principal", principals...)
	f.Var(&s.space, "space", "who sees whose locks: one (all apps of this sidecar have one space of names), unit (each systemd unit has its own, with --principal unit: UNIT/name in the store; nobody sees, holds or releases what is in another one), or namespace (the same for namespaces of Kubernetes, with --principal pod)")
	complete(cmd, "space", spaces...)
	f.StringSliceVar(&s.spacesOf, "space-of", nil, "UNIT=SPACE, with --space unit: that unit has the space of that name, alone or together with others; UNIT=/: it sees all spaces, with names such as web.service/orders. NAMESPACE=SPACE, with --space namespace")
	f.UintSliceVar(&s.allowUIDs, "allow-uid", nil, "users who may connect (default: whom the socket's mode lets)")
	f.UintSliceVar(&s.allowGIDs, "allow-gid", nil, "groups whose members may connect")
	f.StringSliceVar(&s.allowUnits, "allow-unit", nil, "systemd units whose processes may connect, with --principal unit")
	f.StringSliceVar(&s.allowAccounts, "allow-service-account", nil, "NAMESPACE/NAME: pods of these service accounts may connect, with --principal pod; each part may end in *")
	f.StringVar(&s.podsFolder, "pods-folder", "/run/locksidecar-node/pods", "where the node's driver (locksidecar csi) writes down which pods there are, with --principal pod")
	f.StringVar(&s.socketsFolder, "sockets-folder", "/run/locksidecar-node/sockets", "where that driver makes a folder for each pod, with --principal pod; this sidecar makes a socket for the pod in it, with the name of --socket")
	f.UintSliceVar(&s.adminUIDs, "admin-uid", nil, "users who may take locks from others (default: root and the sidecar's own user, if there is no --admin-unit either)")
	f.StringSliceVar(&s.adminUnits, "admin-unit", nil, "systemd units whose processes may take locks from others, with --principal unit")
	f.IntVar(&s.sessions.Sessions, "max-sessions", session.DefaultSessions, "app sessions at a time")
	f.IntVar(&s.sessions.SessionsPerUID, "max-sessions-per-uid", session.DefaultSessionsPerUID, "app sessions of one user at a time")
	f.IntVar(&s.sessions.HoldsPerSession, "max-holds", session.DefaultHoldsPerSession, "what one session may have together: locks, requests for locks (also those that it has given up, until the store has answered), and losses that it has not acknowledged")
	f.IntVar(&s.sessions.DetachedPerUID, "max-detached-per-uid", session.DefaultDetachedPerUID, "holds that one user has detached and that are not known to be over")
	f.IntVar(&s.sessions.HoldsPerUID, "max-holds-per-uid", session.DefaultHoldsPerUID, "the same of all sessions of one user")
	f.IntVar(&s.sessions.WaitersPerSession, "max-waiters", session.DefaultWaitersPerSession, "waiting requests of one session at a time")
	f.IntVar(&s.sessions.InFlight, "max-in-flight", session.DefaultInFlight, "what all apps may have together: requests for locks that are not answered yet, or that were given up before the store has answered, and other requests to the store")
	f.IntVar(&s.sessions.InFlightPerUID, "max-in-flight-per-uid", 0, "the same of one user (default three quarters of --max-in-flight)")
	f.IntVar(&s.api.Connections, "max-connections", 0, "connections at a time (default 4096, or what the limit of open files allows)")
	f.IntVar(&s.api.ConnectionsPerUID, "max-connections-per-uid", 0, "connections of one user at a time (default three quarters of --max-connections)")
	f.IntVar(&s.api.WatchesPerUID, "max-watches-per-uid", 0, "watches of one user at a time (default 64)")
	f.IntVar(&s.api.MessageBytes, "max-message-bytes", 64<<10, "size of one message or HTTP body")
	for _, q := range s.quotas() {
		f.IntVar(q.value, q.flag, 0, q.help)
	}
	s.log = addLog(cmd, "info")
	return s
}

func (s *serveFlags) options(io streams) (o sidecarOptions, err error) {
	o = sidecarOptions{
		ttl:        s.store.ttl,
		namespace:  s.store.namespace,
		name:       s.store.name,
		lostGrace:  s.lostGrace,
		turns:      s.turns,
		park:       s.park,
		deadlock:   session.DeadlockMode(s.deadlock),
		limits:     s.sessions,
		socketMode: fs.FileMode(s.socketMode),
		apiLimits:  s.api,
		httpAddr:   s.httpAddr,
		drain:      s.drain,
		stderr:     io.err,
	}
	if o.logger, err = s.log.logger(io.err); err != nil {
		return o, err
	}
	if o.store, err = s.store.resolve(); err != nil {
		return o, err
	}
	if o.socket, err = s.socket.path(); err != nil {
		return o, err
	}
	limits := []struct {
		flag  string
		value int
		least int
	}{
		{"max-sessions", s.sessions.Sessions, 1},
		{"max-sessions-per-uid", s.sessions.SessionsPerUID, 1},
		{"max-holds", s.sessions.HoldsPerSession, 1},
		{"max-detached-per-uid", s.sessions.DetachedPerUID, 1},
		{"max-holds-per-uid", s.sessions.HoldsPerUID, 1},
		{"max-waiters", s.sessions.WaitersPerSession, 1},
		{"max-in-flight", s.sessions.InFlight, 1},
		{"max-in-flight-per-uid", s.sessions.InFlightPerUID, 0},
		{"max-connections", s.api.Connections, 0},
		{"max-connections-per-uid", s.api.ConnectionsPerUID, 0},
		{"max-watches-per-uid", s.api.WatchesPerUID, 0},
		{"max-message-bytes", s.api.MessageBytes, 4 << 10}, // a request with all its fields at their limits fits
	}
	for _, limit := range limits {
		if limit.value < limit.least {
			return o, usage("--%s is %d: must be at least %d", limit.flag, limit.value, limit.least)
		}
	}
	switch {
	case s.drain < 0:
		return o, usage("--drain is %s: must not be negative", s.drain)
	case s.lostGrace <= 0:
		return o, usage("--lost-grace is %s: must be more than 0", s.lostGrace)
	case s.turns < 0 || s.turns > arbiter.MaxTurns:
		return o, usage("--local-turns is %d: must be 0 to %d", s.turns, arbiter.MaxTurns)
	case s.park < 0 || s.park > maxPark:
		return o, usage("--park is %s: must be 0 to %s", s.park, maxPark)
	case s.store.ttl < lock.MinTTL || s.store.ttl > lock.MaxTTL:
		return o, usage("--ttl is %s: must be %s to %s", s.store.ttl, lock.MinTTL, lock.MaxTTL)
	}
	if s.turns < leastTurns {
		o.park = 0
	}
	for _, list := range []struct {
		flag string
		from []uint
		to   *[]uint32
	}{
		{"allow-uid", s.allowUIDs, &o.access.AllowUIDs},
		{"allow-gid", s.allowGIDs, &o.access.AllowGIDs},
		{"admin-uid", s.adminUIDs, &o.access.AdminUIDs},
	} {
		for _, id := range list.from {
			if id > 1<<32-1 {
				return o, usage("--%s: %d is too large", list.flag, id)
			}
			*list.to = append(*list.to, uint32(id))
		}
	}
	return o, s.units(&o)
}

func serve(ctx context.Context, f *serveFlags, io streams) error {
	o, err := f.options(io)
	if err != nil {
		return err
	}
	supervise.WriteAlways() // who reads the log may end before we do, as in a pipeline at Ctrl-C
	tell := func(state string) {
		if err := notify(os.Getenv(notifyEnv), state); err != nil {
			o.logger.Warn("tell systemd", keyError, err)
		}
	}
	ctx, stop := untilSignal(ctx, func(s os.Signal) {
		o.logger.Info("signal received; another one ends this at once", keySignal, s)
		tell(notifyStopping)
	})
	defer stop()
	side, err := newSidecar(ctx, o)
	if err != nil {
		return err
	}
	o.logger.Info("starting", keyVersion, buildVersion(), keyStore, backends.Redact(o.store), keyName, side.o.name)
	room := start(ctx, func(ctx context.Context) error {
		memory.Run(ctx)
		return nil
	})
	defer func() { _ = room.stop() }()
	err = side.Run(ctx, func() {
		tell(notifyReady)
		try := curlLine(o.socket)
		if f.log.format == "json" { // whoever reads lines of JSON wants nothing else
			o.logger.Info("apps can connect", keyTry, try)
			return
		}
		_, _ = fmt.Fprintf(io.out, "Take a lock from another terminal; it is held until curl ends:\n\n  %s\n\n", try)
	})
	if err == nil {
		o.logger.Info("stopped")
	}
	return err
}

// curlLine is a command that takes a lock.
func curlLine(socket string) string {
	return fmt.Sprintf(`curl -N --unix-socket %s http://locksidecar/v1/hold -d '{"resource":"orders/42"}'`, shellQuote(socket))
}

// shellQuote makes s one word of a shell.
func shellQuote(s string) string {
	plain := func(r rune) bool {
		return r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9' || strings.ContainsRune("/._-+=:@%", r)
	}
	if s != "" && strings.TrimFunc(s, plain) == "" {
		return s
	}
	return "'" + strings.ReplaceAll(s, "'", `'\''`) + "'"
}

// untilSignal is a context that the first SIGTERM, SIGINT or SIGHUP ends. The second
// one ends the process.
func untilSignal(ctx context.Context, first func(os.Signal)) (context.Context, func()) {
	ctx, cancel := context.WithCancel(ctx)
	signals := make(chan os.Signal, 2)
	supervise.Notify(signals, syscall.SIGINT, syscall.SIGHUP)
	signal.Notify(signals, syscall.SIGTERM) // also where it was ignored: services are stopped by it
	waiting := start(ctx, func(stopped context.Context) error {
		select {
		case s := <-signals:
			first(s)
			cancel()
		case <-stopped.Done():
			return nil
		}
		select {
		case s := <-signals:
			number, _ := s.(syscall.Signal) // what Notify sends on Unix
			os.Exit(exitSignalled + int(number))
		case <-stopped.Done():
		}
		return nil
	})
	return ctx, func() {
		signal.Stop(signals)
		cancel()
		_ = waiting.stop() // it has no error
	}
}

// fileMode is a flag in octal digits.
type fileMode fs.FileMode

func (m *fileMode) String() string { return fmt.Sprintf("%#o", uint32(*m)) }
func (m *fileMode) Type() string   { return "mode" }

func (m *fileMode) Set(s string) error {
	v, err := strconv.ParseUint(s, 8, 32)
	if err != nil || v > 0o777 || v == 0 {
		return fmt.Errorf("must be octal digits from 0001 to 0777, such as 0660")
	}
	*m = fileMode(v)
	return nil
}
