package main

import (
	"errors"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"

	"github.com/locksidecar/locksidecar/backends"
	"github.com/locksidecar/locksidecar/lock"
)

const runHelp = `Run takes the lock on RESOURCE, runs CMD while it is held, and releases it when
CMD ends. Before -- there may be up to 16 resources: it takes all of them or none, within one
--wait, and two such runs never wait for each other. CMD finds in its environment:

  LOCKSIDECAR_FENCE       the fencing token: give it to what CMD writes to, and
                          let that refuse smaller ones
  LOCKSIDECAR_RESOURCE    RESOURCE
  LOCKSIDECAR_LOCK_ID     the id of this hold
  LOCKSIDECAR_LOCK_IDS    the ids of all holds under which CMD runs
  LOCKSIDECAR_SOCKET      the sidecar's socket
  LOCKSIDECAR_GUARD       only where the store is an SQL database: a statement for
                          CMD's own transaction, just before COMMIT. No row: ROLLBACK
  LOCKSIDECAR_SLOT        only with --limit N: a number from 0 to N-1 that no other CMD
                          has that runs at this time under the same RESOURCE

With --handle, CMD runs under a detached lock, which somebody has taken before. The fence is that
of the time when it was taken. When CMD ends, the lock is released. When run is killed, or its
sidecar dies, the lock is detached again until its time is over. CMD does not get LOCKSIDECAR_HANDLE.

With several resources, FENCE, RESOURCE and GUARD have one line for each.

LOCKSIDECAR_STORE and the like are not passed on: the URL may have a password.

Without --store, run asks the sidecar at --socket. With --store it needs no
sidecar: it is its own sidecar for as long as CMD runs. The store in a
configuration file is for serve, and is not used here.

In a terminal, CMD is in the same job of the shell as run, so Ctrl-C, Ctrl-Z and
fg do what they always do. The lock is kept while CMD is stopped. Without a
terminal, CMD runs in its own process group. Signals that run gets (INT, TERM, HUP, QUIT, USR1,
USR2, ALRM, CONT, and without a terminal WINCH and TSTP) are passed on to CMD's group.

When the lock is lost (the store is gone, somebody forced the release,
--max-hold is over), CMD and everything it has started get --signal at once, and
SIGKILL before anybody else can be granted the lock. When run itself is killed,
a second process kills all of them, and then the lock is free, within milliseconds.

Exit status:
  that of CMD; 128+N when signal N ended it
  69   neither held nor free: the sidecar or the store did not answer, or
       refused. CMD was not run
  75   held by somebody else for all of --wait. CMD was not run
       (--conflict-exit-code chooses another status)
  76   the lock was lost while CMD ran. CMD was ended
  125  run itself failed, or was called wrongly
  126  CMD cannot be executed
  127  CMD is not there
  128+N  signal N ended run while it waited for the lock`

const runExamples = `  # never two at a time; wait as long as it takes
  locksidecar run reports/daily -- ./make-report.sh

  # from cron: skip this turn when the last one is still at work
  locksidecar run --wait 0s backup -- /usr/local/bin/backup.sh

  # from cron of several nodes, whose clocks differ by less than 30 s: not again within that time
  locksidecar run --wait 0s --min-hold 30s report -- ./make-report.sh

  # many readers beside each other
  locksidecar run --shared --wait 30s config -- ./read-config.sh

  # at most 4 at a time, wherever they run
  locksidecar run --limit 4 exports -- ./export.sh

  # no sidecar needed: straight to the store
  locksidecar run --store ` + backends.Example + ` counter -- sh -c 'n=$(cat f); echo $((n+1)) >f'

  # a lock that was taken elsewhere: CMD has it from now on
  LOCKSIDECAR_HANDLE=$handle locksidecar run -- ./export.sh

  # two things at once, all or none
  locksidecar run --wait 1m accounts/7 accounts/12 -- ./transfer.sh

  # a line for the shell, as flock(1) has it
  locksidecar run reports/daily -c 'fetch | ./make-report.sh >report.html'

  # something that must not take longer than an hour
  locksidecar run --max-hold 1h nightly -- ./job.sh`

// runFlags are the flags of run, once and lead.
type runFlags struct {
	verb      string                // run, once or lead
	what      string                // it calls what is locked
	publish   string                // lead: for who asks for the leader
	again     func(time.Time) error // lead: what follows when CMD has ended well; nil: nothing
	socket    *socketFlag
	store     *storeFlags
	log       *logFlags
	shared    bool
	limit     int    // 0: it is no permit
	handle    string // of a detached lock, in place of resources
	wait      waitFlag
	maxHold   time.Duration
	minHold   time.Duration
	signal    signalFlag
	killAfter time.Duration
	conflict  int
	command   string
	verbose   bool
	once      *onceFlags // nil: it is run
}

func newRun(io streams) *cobra.Command {
	cmd := &cobra.Command{
		Use:         "run [flags] RESOURCE... -- CMD [ARG...]",
		Short:       "Run a program while a lock is held",
		Long:        runHelp,
		Example:     runExamples,
		Annotations: map[string]string{annotationRuns: "CMD"},
	}
	r := addRun(cmd, io, "RESOURCE")
	cmd.Flags().BoolVar(&r.shared, "shared", false, "share the lock with other shared holders")
	cmd.Flags().StringVar(&r.handle, "handle", "", "attach the detached lock of this handle, in place of RESOURCE")
	cmd.Args = func(cmd *cobra.Command, args []string) error {
		if r.handle != "" {
			return nil
		}
		return argsBetween(1, 1<<20, "RESOURCE... -- CMD [ARG...]")(cmd, args)
	}
	cmd.Flags().IntVar(&r.limit, "limit", 0, "take one of so many permits, 1 to 1024, in place of the lock, so that this many CMDs can run at a time; all must give the same limit; 0: take the lock")
	cmd.Flags().DurationVar(&r.minHold, "min-hold", 0, "the store keeps others out for so long at least, whatever ends or dies before that, 100ms to 24h; 0s: until CMD has ended")
	return cmd
}

// addRun gives cmd what run, once and lead have in common.
func addRun(cmd *cobra.Command, io streams, what string) *runFlags {
	r := &runFlags{verb: cmd.Name(), what: what, wait: forever, signal: signalFlag(syscall.SIGTERM)}
	f := cmd.Flags()
	// What comes after the name is CMD's, with or without --. lead needs the --.
	f.SetInterspersed(r.verb == "lead")
	f.Var(&r.wait, "wait", "how long to wait for the lock, up to 24h; 0s: try once")
	f.DurationVar(&r.maxHold, "max-hold", 0, "the lock is lost after this time, 100ms to 24h; 0s: never")
	f.Var(&r.signal, "signal", "the signal that CMD gets first when the lock is lost: TERM, INT, HUP, QUIT, USR1 or USR2")
	f.DurationVar(&r.killAfter, "kill-after", lock.MaxTTL, "how long after --signal CMD gets SIGKILL, if others are still kept out for so long")
	f.IntVar(&r.conflict, "conflict-exit-code", exitNotGot, "exit status when somebody else holds the lock, 0 to 255")
	f.StringVarP(&r.command, "command", "c", "", "a line for /bin/sh, in place of CMD; may also stand after "+what)
	f.BoolVarP(&r.verbose, "verbose", "v", false, "say on stderr what happens")
	r.socket = addSocket(cmd)
	r.store = addStore(cmd, "", "be its own sidecar on this store, a URL as for serve")
	r.store.instead(cmd)
	r.log = addLog(cmd, "warn")
	cmd.ValidArgsFunction = completeRun(r.socket)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		if r.verb == "lead" && r.command == "" && cmd.ArgsLenAtDash() != 1 {
			return usage("give one NAME, then -- and CMD")
		}
		if cmd.ArgsLenAtDash() == 0 && r.handle == "" && r.command == "" && !slices.Contains(args, "--") {
			// Else the first word of CMD would be what is locked, for example where the variable with the handle is empty.
			return usage("no %s stands before --%s", r.what, r.orHandle())
		}
		resources, argv, err := r.check(args)
		if err != nil {
			return err
		}
		if io.front == nil {
			if _, _, err := findProgram(argv); err != nil {
				return err
			}
			if r.again != nil {
				keepName()
			}
			began := time.Now()
			f, err := runFront(cmd.Context(), io)
			if err != nil || r.again == nil || f.leave() {
				return err
			}
			return r.again(began)
		}
		u := &runner{flags: r, io: io, front: io.front, resources: resources}
		return u.run(cmd.Context(), argv)
	}
	return r
}

// orHandle completes the complaint that nothing to be locked is given.
func (r *runFlags) orHandle() string {
	if r.verb == "run" {
		return ", and there is no --handle (LOCKSIDECAR_HANDLE)"
	}
	return ""
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

// check refuses what can be refused before anything is asked for, and gives the resources
// and CMD.
func (r *runFlags) check(args []string) (resources, argv []string, err error) {
	if r.handle != "" {
		if r.shared || r.limit != 0 || r.minHold != 0 {
			return nil, nil, usage("--handle is given with --shared, --limit or --min-hold: the lock is as it was taken")
		}
		if argv, err = r.program(args); err != nil {
			return nil, nil, err
		}
		return nil, argv, r.checkRanges()
	}
	resources, argv = args[:1], args[1:]
	isFlag := func(s string) bool { return strings.HasPrefix(s, "-") }
	if i := slices.IndexFunc(argv, isFlag); i > 0 && argv[i] == "--" && r.verb == "run" {
		resources, argv = args[:1+i], argv[i:]
	}
	argv, err = r.program(argv)
	if err != nil {
		return nil, nil, err
	}
	if len(resources) > maxResources {
		return nil, nil, usage("%d resources stand before --: at most %d can be held together", len(resources), maxResources)
	}
	for i, resource := range resources {
		if _, err := lock.ParseResource(resource); err != nil {
			return nil, nil, usage("%w", err)
		}
		if slices.Contains(resources[:i], resource) {
			return nil, nil, usage("resource %q is given twice", resource)
		}
	}
	if err := r.once.check(); err != nil {
		return nil, nil, err
	}
	if r.limit != 0 && (r.shared || len(resources) > 1) {
		return nil, nil, usage("--limit is given with --shared or several resources: it is for one resource alone")
	}
	if r.minHold != 0 && len(resources) > 1 {
		return nil, nil, usage("--min-hold is given with several resources: it is for one resource alone")
	}
	return resources, argv, r.checkRanges()
}

// program is CMD, from what stands behind the resources.
func (r *runFlags) program(argv []string) ([]string, error) {
	switch {
	case r.command != "" && len(argv) > 0:
		return nil, usage("-c and CMD are both given: give one of them")
	case r.command != "":
		argv = []string{"/bin/sh", "-c", r.command}
	case len(argv) > 0 && argv[0] == "--":
		argv = argv[1:]
	case len(argv) > 0 && argv[0] == "-c":
		if len(argv) != 2 {
			return nil, usage("-c takes one argument, a line for the shell: put it in quotes")
		}
		argv = []string{"/bin/sh", "-c", argv[1]}
	case len(argv) > 0 && strings.HasPrefix(argv[0], "-"):
		return nil, usage("%s stands after %s: put flags before %[2]s, and -- before CMD", argv[0], r.what)
	}
	if len(argv) == 0 {
		return nil, usage("something is missing: give %s -- CMD [ARG...]", r.what)
	}
	return argv, nil
}

func (r *runFlags) checkRanges() error {
	switch {
	case r.wait > waitFlag(maxWait):
		return usage("--wait is %s: must be at most %s, or forever", &r.wait, maxWait)
	case r.maxHold != 0 && (r.maxHold < minMaxHold || r.maxHold > maxMaxHold):
		return usage("--max-hold is %s: must be 100ms to 24h, or 0s for no limit", r.maxHold)
	case r.minHold != 0 && (r.minHold < minMinHold || r.minHold > lock.MaxMinHold):
		return usage("--min-hold is %s: must be 100ms to 24h, or 0s for none", r.minHold)
	case r.maxHold != 0 && r.minHold > r.maxHold:
		return usage("--min-hold is %s, longer than --max-hold, %s", r.minHold, r.maxHold)
	case r.limit < 0 || r.limit > lock.MaxPermits:
		return usage("--limit is %d: must be 1 to %d, or 0 for none", r.limit, lock.MaxPermits)
	case r.killAfter < 0:
		return usage("--kill-after is %s: must not be negative", r.killAfter)
	case r.conflict < 0 || r.conflict > 255:
		return usage("--conflict-exit-code is %d: must be 0 to 255", r.conflict)
	}
	return nil
}

// What a sidecar takes.
const (
	maxResources = 16

	minMaxHold = 100 * time.Millisecond
	maxMaxHold = 24 * time.Hour
	minMinHold = 100 * time.Millisecond
)

// waitFlag is how long to wait for a lock.
type waitFlag time.Duration

const (
	forever waitFlag = -1 // the wait that has no end
	maxWait          = 24 * time.Hour
)

func (w *waitFlag) Type() string { return "duration" }

func (w *waitFlag) String() string {
	if *w == forever {
		return "forever"
	}
	return time.Duration(*w).String()
}

func (w *waitFlag) Set(s string) error {
	if s == "forever" {
		*w = forever
		return nil
	}
	d, err := time.ParseDuration(s)
	switch {
	case err != nil:
		return errors.New("must be a time such as 30s, or forever")
	case d < 0:
		return errors.New("must not be negative; to wait without a limit: forever")
	}
	*w = waitFlag(d)
	return nil
}

// signalFlag is a signal that asks a program to end.
type signalFlag syscall.Signal

func (s *signalFlag) Type() string { return "name" }

// String is the signal's name with SIG before it.
func (s signalFlag) String() string { return unix.SignalName(syscall.Signal(s)) }

func (s *signalFlag) Set(name string) error {
	n := unix.SignalNum("SIG" + strings.TrimPrefix(strings.ToUpper(name), "SIG"))
	switch n {
	case syscall.SIGTERM, syscall.SIGINT, syscall.SIGHUP, syscall.SIGQUIT, syscall.SIGUSR1, syscall.SIGUSR2:
		*s = signalFlag(n)
		return nil
	default:
		return errors.New("must be TERM, INT, HUP, QUIT, USR1 or USR2")
	}
}
