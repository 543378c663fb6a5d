package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/locksidecar/locksidecar/backends"
	"github.com/locksidecar/locksidecar/client"
	"github.com/locksidecar/locksidecar/lock"
)

const runHelp = `Run takes the lock on RESOURCE, runs CMD while it is held, and releases it when
CMD ends. CMD finds in its environment:

  LOCKSIDECAR_FENCE       the fencing token: give it to what CMD writes to, and
                          let that refuse smaller ones
  LOCKSIDECAR_RESOURCE    RESOURCE
  LOCKSIDECAR_LOCK_ID     the id of this hold
  LOCKSIDECAR_SOCKET      the sidecar's socket
  LOCKSIDECAR_GUARD       only where the store is an SQL database: a statement for
                          CMD's own transaction, just before COMMIT. No row: ROLLBACK

Without --store it asks the sidecar at --socket. With --store it needs none: it
is its own sidecar for as long as CMD runs.

CMD and what it starts run in a process group of their own. Signals that run gets
(INT, TERM, HUP, QUIT, USR1, USR2, ALRM, WINCH, CONT, TSTP) are passed on to it.

When the lock is lost (the store is gone, somebody forced the release,
--max-hold is over), CMD and everything it has started get SIGTERM at once, and
SIGKILL before anybody else can be granted the lock. When run itself is killed,
the lock is free within milliseconds and CMD's process group is killed.

Exit status:
  that of CMD; 128+N when signal N ended it
  75   the lock was not got: held by somebody else, or neither the sidecar nor
       the store answered. CMD was not run
  76   the lock was lost while CMD ran. CMD was ended
  125  run itself failed, or was called wrongly
  126  CMD cannot be executed
  127  CMD is not there
  128+N  signal N ended run while it waited for the lock`

const runExamples = `  # never two at a time; wait as long as it takes
  locksidecar run reports/daily -- ./make-report.sh

  # from cron: skip this turn when the last one is still at work
  locksidecar run --wait 0s backup -- /usr/local/bin/backup.sh

  # many readers beside each other
  locksidecar run --shared --wait 30s config -- ./read-config.sh

  # no sidecar needed: straight to the store
  locksidecar run --store ` + backends.Example + ` counter -- sh -c 'n=$(cat f); echo $((n+1)) >f'

  # something that must not take longer than an hour
  locksidecar run --max-hold 1h nightly -- ./job.sh`

// forever is the --wait that has no end.
const forever time.Duration = -1

// runFlags are the flags of run.
type runFlags struct {
	socket  *socketFlag
	store   *storeFlags
	log     *logFlags
	shared  bool
	wait    time.Duration
	maxHold time.Duration
	verbose bool
}

func newRun(io streams) *cobra.Command {
	r := &runFlags{}
	cmd := &cobra.Command{
		Use:         "run [flags] RESOURCE -- CMD [ARG...]",
		Short:       "Run a program while a lock is held",
		Long:        runHelp,
		Example:     runExamples,
		Args:        argsBetween(2, 1<<20, "RESOURCE -- CMD [ARG...]"),
		Annotations: map[string]string{annotationRuns: "CMD"},
	}
	f := cmd.Flags()
	f.SetInterspersed(false) // what comes after RESOURCE is CMD's, with or without --
	f.BoolVar(&r.shared, "shared", false, "take it beside other shared holders, and not alone")
	f.DurationVar(&r.wait, "wait", forever, "wait at most so long for the lock; 0s: try once")
	f.Lookup("wait").DefValue = "forever"
	f.DurationVar(&r.maxHold, "max-hold", 0, "the lock is lost after this time, 100ms to 24h; 0s: never")
	f.BoolVarP(&r.verbose, "verbose", "v", false, "say on stderr what happens")
	r.socket = addSocket(cmd)
	r.store = addStore(cmd, "", "be its own sidecar on this store, a URL as for serve")
	for _, name := range []string{"store-password-file", "migrate", "ttl", "namespace", "name"} {
		f.Lookup(name).Usage = "with --store: " + f.Lookup(name).Usage
	}
	r.log = addLog(cmd, "warn")
	cmd.ValidArgsFunction = completeRun(r.socket)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		waitGiven := cmd.Flags().Changed("wait")
		resource, argv := args[0], args[1:]
		if argv[0] == "--" {
			argv = argv[1:]
		}
		if err := r.check(resource, argv, waitGiven); err != nil {
			return err
		}
		return runCommand(cmd.Context(), r, resource, argv, io)
	}
	return cmd
}

// completeRun offers resources, and then programs and files.
func completeRun(socket *socketFlag) cobra.CompletionFunc {
	resources := completeResources(socket)
	return func(cmd *cobra.Command, args []string, prefix string) ([]string, cobra.ShellCompDirective) {
		if len(args) > 0 {
			return nil, cobra.ShellCompDirectiveDefault
		}
		return resources(cmd, args, prefix)
	}
}

// check refuses what can be refused before anything is asked for.
func (r *runFlags) check(resource string, argv []string, waitGiven bool) error {
	if len(argv) == 0 {
		return usage("something is missing: give RESOURCE -- CMD [ARG...]")
	}
	if _, err := lock.ParseResource(resource); err != nil {
		return usage("%w", err)
	}
	switch {
	case waitGiven && r.wait < 0:
		return usage("--wait is %s: must not be negative; leave it out to wait for ever", r.wait)
	case r.maxHold < 0:
		return usage("--max-hold is %s: must not be negative", r.maxHold)
	}
	return nil
}

// findProgram gives the path of CMD, before the lock is asked for.
func findProgram(name string) (string, error) {
	path, err := exec.LookPath(name)
	switch {
	case err == nil:
		return path, nil
	case errors.Is(err, exec.ErrNotFound), errors.Is(err, fs.ErrNotExist):
		return "", &exitError{code: exitNotFound, err: fmt.Errorf("there is no program %q", name)}
	default:
		return "", &exitError{code: exitCannotExec, err: fmt.Errorf("cannot execute %q: %w", name, err)}
	}
}

// environment is ours and what CMD must know.
func environment(l heldLock, socket string) []string {
	own := []string{
		"LOCKSIDECAR_FENCE=" + fmt.Sprint(l.fence),
		"LOCKSIDECAR_RESOURCE=" + l.resource,
		"LOCKSIDECAR_LOCK_ID=" + l.id,
		"LOCKSIDECAR_SOCKET=" + socket,
		guardVariable + "=" + guardStatement(l.guard),
	}
	var env []string
	for _, e := range os.Environ() {
		name, _, _ := strings.Cut(e, "=")
		if !hasName(own, name) {
			env = append(env, e)
		}
	}
	if l.guard == nil {
		own = own[:len(own)-1]
	}
	return append(env, own...)
}

// guardVariable is there only when the store has guards.
const guardVariable = "LOCKSIDECAR_GUARD"

// guardStatement is a guard with its arguments in place, for programs that have
// nothing but a database's command line.
func guardStatement(g *client.Guard) string {
	if g == nil {
		return ""
	}
	var s strings.Builder
	args := g.Args
	for part := range strings.SplitAfterSeq(g.SQL, "?") {
		if before, ok := strings.CutSuffix(part, "?"); ok && len(args) > 0 {
			part = before + "'" + strings.ReplaceAll(args[0], "'", "''") + "'"
			args = args[1:]
		}
		s.WriteString(part)
	}
	return s.String()
}

func hasName(env []string, name string) bool {
	for _, e := range env {
		if strings.HasPrefix(e, name+"=") {
			return true
		}
	}
	return false
}

// heldLock is what CMD is told of its lock.
type heldLock struct {
	id, resource string
	fence        int64
	guard        *client.Guard
}

// ownSidecar is a sidecar inside this process.
type ownSidecar struct {
	task   *task
	dir    string
	socket string
}

// startOwnSidecar begins a sidecar on a private socket. It stops by stop.
func startOwnSidecar(ctx context.Context, r *runFlags, io streams) (*ownSidecar, error) {
	store, err := r.store.resolve()
	if err != nil {
		return nil, err
	}
	if backends.Private(store) {
		return nil, usage("--store %s would be this process's own memory and exclude nobody: name a store that others reach, or leave it out and use a sidecar", store)
	}
	logger, err := r.log.logger(io.err)
	if err != nil {
		return nil, err
	}
	dir, err := os.MkdirTemp("", "locksidecar-run-")
	if err != nil {
		return nil, fmt.Errorf("make a directory for the socket: %w", err)
	}
	own := &ownSidecar{dir: dir, socket: filepath.Join(dir, "socket")}
	side, err := newSidecar(ctx, sidecarOptions{
		store:      store,
		ttl:        r.store.ttl,
		namespace:  r.store.namespace,
		name:       r.store.name,
		socket:     own.socket,
		socketMode: 0o600,
		logger:     logger,
		stderr:     io.err,
	})
	if err != nil {
		return nil, errors.Join(err, os.RemoveAll(dir))
	}
	listening := make(chan struct{})
	own.task = start(ctx, func(ctx context.Context) error { return side.Run(ctx, func() { close(listening) }) })
	select {
	case <-listening:
		return own, nil
	case <-own.task.done:
		return nil, errors.Join(own.task.err, os.RemoveAll(dir))
	}
}

// stop gives everything back to the store.
func (o *ownSidecar) stop() error {
	if o == nil {
		return nil
	}
	return errors.Join(o.task.stop(), os.RemoveAll(o.dir))
}
