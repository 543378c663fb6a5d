package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strconv"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/spf13/cobra"

	"github.com/locksidecar/locksidecar/backends"
	"github.com/locksidecar/locksidecar/client"
	"github.com/locksidecar/locksidecar/lock"
)

const onceHelp = `Once runs CMD unless it has succeeded before under the same KEY, on whatever
machine. It takes the lock on KEY as run does, so no two run at the same time, and
records in the store how CMD has ended:

  SUCCEEDED  CMD's status was 0. Nobody runs it again: once says so, and its
             own status is 0
  FAILED     CMD has ended with another status, which is in the note
  UNKNOWN    CMD, once, the sidecar or the machine was killed, or the lock was
             lost; also where CMD's status is 129 to 192, with which a shell says
             that a signal has ended what it ran. CMD may have done its work, or a
             part of it

What is FAILED or UNKNOWN is run again by the next once, up to --attempts times
in all. CMD finds in its environment what run gives it, and:

  LOCKSIDECAR_ATTEMPT        1 for the first attempt
  LOCKSIDECAR_PREVIOUS       FAILED or UNKNOWN: what became of the attempt before.
                             Not there where none is known
  LOCKSIDECAR_PREVIOUS_NOTE  its note
  LOCKSIDECAR_OUTCOME_GUARD  only where the store is an SQL database: a statement
                             for CMD's own transaction, just before COMMIT, that
                             records SUCCEEDED. No row changed: ROLLBACK

An outcome is remembered for --keep after it was recorded. "locksidecar outcomes"
lists them, and "locksidecar outcomes reset" forgets one.

Exit status:
  that of CMD; 128+N when signal N ended it
  0    also when CMD was run before, with success. It was not run
  69   neither held nor free: the sidecar or the store did not answer, or
       refused. CMD was not run
  75   somebody else is running it for all of --wait. CMD was not run
       (--conflict-exit-code chooses another status)
  76   the lock was lost while CMD ran, or its end could not be recorded
  77   it was tried as often as --attempts says. CMD was not run
  125  once itself failed, or was called wrongly
  126  CMD cannot be executed
  127  CMD is not there
  128+N  signal N ended once while it waited for the lock`

const onceExamples = `  # pay once, however often the job is started
  locksidecar once withdrawals/4711 -- ./pay.sh 4711

  # not at all while another machine is at it; give up after five attempts
  locksidecar once --wait 0s --attempts 5 withdrawals/4711 -- ./pay.sh 4711

  # what pay.sh writes there is kept with the outcome
  locksidecar once --note-file note withdrawals/4711 -- ./pay.sh 4711

  # no sidecar needed: straight to the store
  locksidecar once --store ` + backends.Example + ` migrations/12 -- ./migrate.sh 12`

// onceFlags are the flags of once beside those of run.
type onceFlags struct {
	keep     keepFlag
	attempts int
	noteFile string
}

func newOnce(io streams) *cobra.Command {
	o := &onceFlags{}
	cmd := &cobra.Command{
		Use:         "once [flags] KEY -- CMD [ARG...]",
		Short:       "Run a program that must succeed only once",
		Long:        onceHelp,
		Example:     onceExamples,
		Args:        argsBetween(1, 1<<20, "KEY -- CMD [ARG...]"),
		Annotations: map[string]string{annotationRuns: "CMD"},
	}
	f := cmd.Flags()
	f.Var(&o.keep, "keep", "how long the outcome is remembered, 1s to 400d (default 30d)")
	f.IntVar(&o.attempts, "attempts", 0, "after so many attempts there is no other; 0: no limit")
	f.StringVar(&o.noteFile, "note-file", "", "a file whose first 1000 bytes are kept with the outcome when CMD has ended")
	r := addRun(cmd, io, "KEY")
	r.once = o
	return cmd
}

// check refuses what can be refused at once.
func (o *onceFlags) check() error {
	switch {
	case o == nil:
		return nil
	case o.keep != 0 && (time.Duration(o.keep) < lock.MinKeep || time.Duration(o.keep) > lock.MaxKeep):
		return usage("--keep is %s: must be 1s to 400d", &o.keep)
	case o.attempts < 0:
		return usage("--attempts is %d: must not be negative", o.attempts)
	}
	return nil
}

// wish is what the sidecar is asked for; nil: an ordinary lock.
func (o *onceFlags) wish() *client.Once {
	if o == nil {
		return nil
	}
	return &client.Once{Keep: time.Duration(o.keep), MaxAttempts: o.attempts}
}

// note is what is kept with the outcome of CMD.
func (o *onceFlags) note(status int) string {
	var parts []string
	if status != 0 {
		parts = append(parts, "exit status "+strconv.Itoa(status))
	}
	if o.noteFile != "" {
		if text := firstOf(o.noteFile); text != "" {
			parts = append(parts, text)
		}
	}
	return strings.Join(parts, ": ")
}

// firstOf is the beginning of a file, as far as a note can have it.
func firstOf(name string) string {
	const most = 1000       // of the 1024 of a note: the status stands before it
	f, err := os.Open(name) //nolint:gosec // the user names it
	if err != nil {
		return ""
	}
	defer f.Close()
	b, _ := io.ReadAll(io.LimitReader(f, most))                                                  // what there is
	for len(b) > 0 && !utf8.Valid(b[max(0, len(b)-utf8.UTFMax):]) && len(b) > most-utf8.UTFMax { // a rune that was cut
		b = b[:len(b)-1]
	}
	return strings.TrimSpace(strings.Map(func(r rune) rune {
		if unicode.IsControl(r) && !strings.ContainsRune("\t\r\n", r) {
			return -1
		}
		return r
	}, strings.ToValidUTF8(string(b), "")))
}

// concluded records how CMD has ended, as long as that takes, and gives back the lock.
// What was ended by a signal, or has run something that was, may have done anything: that stays unknown.
func (r *runner) concluded(ctx context.Context, status int) error {
	lost := r.lock.Err()
	switch {
	case r.cmd.EndedBy() == 0 && !tellsOfSignal(status):
		if err := r.conclude(ctx, status); err != nil {
			r.say("CMD has ended with status %d, and that is not recorded: %v", status, err)
			return &exitError{code: exitLost}
		}
		if lost != nil {
			r.say("%v; CMD ended by itself at that time, with status %d, which is recorded", lost, status)
		}
	case lost != nil:
		return &exitError{code: exitLost, err: fmt.Errorf("%w; CMD was ended at that time, with status %d", lost, status)}
	default:
		if err := r.release(ctx, releaseLimit); err != nil { // it is released by our end
			r.say("CMD has ended, with status %d; %v", status, err)
		}
	}
	r.tell("released the lock on %q; CMD's status is %d", r.name(), status)
	r.front.EndedBy(r.cmd.EndedBy())
	if status == 0 {
		return nil
	}
	return &exitError{code: status}
}

// tellsOfSignal: with such a status a shell says that what it has run was ended by a signal.
func tellsOfSignal(status int) bool { return status > exitSignalled && status <= exitSignalled+64 }

// conclude asks again as long as the store does not answer and the lock can be relied on.
func (r *runner) conclude(ctx context.Context, status int) error {
	state := client.Failed
	if status == 0 {
		state = client.Succeeded
	}
	note := r.flags.once.note(status)
	limit := max(releaseLimit, r.lock.ValidFor())
	ctx, cancel := context.WithTimeoutCause(context.WithoutCancel(ctx), limit, fmt.Errorf("no answer within %s", age(limit)))
	defer cancel()
	for {
		err := r.lock.Conclude(ctx, state, note)
		if !errors.Is(err, client.ErrStoreUnavailable) || ctx.Err() != nil {
			return err
		}
	}
}

// keepFlag is a time that may be given in days.
type keepFlag time.Duration

const day = 24 * time.Hour

func (k *keepFlag) Type() string { return "duration" }

func (k *keepFlag) String() string {
	switch d := time.Duration(*k); {
	case d == 0:
		return ""
	case d%day == 0:
		return strconv.Itoa(int(d/day)) + "d"
	default:
		return d.String()
	}
}

func (k *keepFlag) Set(s string) error {
	d, err := time.ParseDuration(s)
	if days, isDays := strings.CutSuffix(s, "d"); isDays {
		var n int
		if n, err = strconv.Atoi(days); err == nil {
			d = time.Duration(min(max(n, -1), 1000)) * day // what is too much is refused later
		}
	}
	if err != nil || d <= 0 {
		return errors.New("must be a time such as 12h or 30d")
	}
	*k = keepFlag(d)
	return nil
}
