package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/locksidecar/locksidecar/client"
	"github.com/locksidecar/locksidecar/internal/supervise"
	"github.com/locksidecar/locksidecar/lock"
)

const (
	releaseLimit = 5 * time.Second
	// lostReleaseLimit is short: the sidecar may well be what is broken.
	lostReleaseLimit = time.Second
	// reachLimit is how much longer than --wait it may take to reach the sidecar and the
	// store.
	reachLimit = 3 * time.Second
	// shortWait is a wait that may be over before the store has answered once.
	shortWait = time.Second
	// explainAfter is when somebody who waits is told why, if the store is the reason.
	explainAfter = time.Second
)

// runner is one run of CMD under one lock, which may be on several resources, in the
// supervisor.
type runner struct {
	flags     *runFlags
	io        streams
	front     *supervise.Front
	resources []string

	own    *ownSidecar // nil: there is another
	socket string
	margin time.Duration // the store keeps the lock at least so much longer than it is said to be valid
	client *client.Client
	lock   *client.Lock
	cmd    *supervise.Process
}

// run is the whole of the subcommand, but for signals and the terminal.
func (r *runner) run(ctx context.Context, argv []string) (err error) {
	path, argv, err := findProgram(argv)
	if err != nil {
		return err
	}
	if err := supervise.AdoptOrphans(); err != nil {
		return err
	}
	supervise.ReserveThreads()
	defer func() {
		if r.client != nil {
			_ = r.client.Close()
		}
		if stopErr := r.own.stop(); stopErr != nil {
			r.say("stop: %v", stopErr)
		}
	}()
	if err := r.await(ctx, filepath.Base(argv[0])); err != nil || r.lock == nil {
		return err
	}
	// Without a terminal, what is sent to our process group does not reach CMD twice.
	// With one, CMD belongs to our job, as if we were not there.
	group := 0
	if tty := supervise.OpenTerminal(); tty != nil {
		group = r.front.Join()
	}
	r.cmd, err = supervise.Start(supervise.Program{
		Path: path, Argv: argv, Env: environment(r.lock, r.socket), Group: group,
		MarkName: idsVariable, Mark: r.lock.ID,
	})
	if err != nil {
		if releaseErr := r.release(ctx, releaseLimit); releaseErr != nil {
			r.say("%v", releaseErr)
		}
		code := exitCannotExec
		if errors.Is(err, fs.ErrNotExist) { // the interpreter of a script, for instance
			code = exitNotFound
		}
		return &exitError{code: code, err: fmt.Errorf("cannot execute %q: %w", path, err)}
	}
	r.rely()
	r.front.Started(r.cmd.PID())
	return r.mind(ctx)
}

// notRun is the error of a lock that could not be obtained.
func (r *runner) notRun(ctx context.Context, err error) error {
	var said *client.Error
	if errors.As(err, &said) {
		err = said
	}
	is := func(all ...error) bool {
		return slices.ContainsFunc(all, func(e error) bool { return errors.Is(err, e) })
	}
	if done := client.OutcomeOf(err); is(client.ErrAlreadyDone) {
		r.say("not run: done before: %s", outcomeInWords(done))
		return nil
	}
	err = because(ctx, r.client, err)
	code := exitOwnFailure
	switch {
	case is(client.ErrAttemptsExhausted):
		code = exitExhausted
	case is(client.ErrLockHeld, client.ErrWaitTimeout, client.ErrLockLost, client.ErrNotHolder):
		code = r.flags.conflict
	case is(client.ErrStoreUnavailable, client.ErrLimitExceeded, client.ErrDraining, client.ErrNoSidecar,
		client.ErrStreamEnded, client.ErrSessionNotFound, client.ErrUnsupported, errNoAnswer):
		code = exitUnavailable
	}
	return &exitError{code: code, err: fmt.Errorf("not run: %w", err)}
}

// errNoAnswer: the time for --wait is over, and nobody has said anything.
var errNoAnswer = errors.New("no answer in time; the sidecar or the store may be frozen or overloaded")

// await obtains the lock, or ends with a signal.
func (r *runner) await(ctx context.Context, name string) error {
	began := time.Now()
	if r.flags.wait != forever {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeoutCause(ctx, time.Duration(r.flags.wait)+reachLimit, errNoAnswer)
		defer cancel()
	}
	asking := start(ctx, func(stopped context.Context) error {
		stopped, cancel := context.WithCancelCause(stopped)
		defer cancel(nil)
		defer context.AfterFunc(ctx, func() { cancel(context.Cause(ctx)) })()
		if err := r.connect(stopped); err != nil {
			return err
		}
		return r.acquire(stopped, name)
	})
	for {
		select {
		case <-asking.done:
			if asking.err != nil {
				return asking.err
			}
			if r.lock != nil { // else it was done before
				r.tell("got the lock on %q after %s, fence %s", r.name(), age(time.Since(began)), fenceCell(r.lock.Fence))
			}
			return nil
		case <-r.front.Gone():
			_ = asking.stop() // what it has taken ends with the process
			return &exitError{code: exitOwnFailure}
		case sig := <-r.front.Signals():
			if endsWait(sig) {
				_ = asking.stop()
				r.front.EndedBy(sig)
				return &exitError{code: exitSignalled + int(sig), err: fmt.Errorf("not run: %s while waiting for the lock on %q", sig, r.name())}
			}
		}
	}
}

// connect finds the sidecar, or starts one.
func (r *runner) connect(ctx context.Context) (err error) {
	if r.flags.store.given() {
		if r.own, err = startOwnSidecar(ctx, r.flags.store, r.flags.log, r.io, true); err != nil {
			return err
		}
		r.socket = r.own.socket
	} else if r.socket, err = r.flags.socket.path(); err != nil {
		return err
	}
	if r.client, err = client.Dial(ctx, r.socket); err != nil {
		return r.notRun(ctx, err)
	}
	return nil
}

// acquire takes the lock.
func (r *runner) acquire(ctx context.Context, name string) error {
	s, err := r.client.OpenSession(ctx, client.SessionOptions{Name: name, Metadata: r.flags.metadata()})
	if err != nil {
		return r.notRun(ctx, err)
	}
	r.margin = s.Margin()
	o := client.AcquireOptions{Limit: r.flags.limit, MaxHold: r.flags.maxHold, MinHold: r.flags.minHold, Wait: time.Duration(r.flags.wait), Once: r.flags.once.wish()}
	if r.flags.shared {
		o.Mode = client.Shared
	}
	if r.flags.wait == forever {
		o.Wait = 0
	}
	if r.flags.handle != "" {
		if r.lock, err = s.Attach(ctx, r.flags.handle); err != nil {
			return r.notRun(ctx, err)
		}
		r.resources = []string{r.lock.Resource}
		return nil
	}
	tries := []time.Duration{o.Wait}
	switch nested := heldByAncestors(); {
	case r.flags.wait == 0:
		tries = []time.Duration{client.NoWait}
	case nested != nil, r.flags.wait != forever && o.Wait < shortWait:
		tries = []time.Duration{client.NoWait, o.Wait} // a lock that is free is granted however short the wait is
	}
	if r.flags.wait == forever || o.Wait > 2*explainAfter {
		explaining := start(ctx, r.explain)
		defer explaining.stop() //nolint:errcheck // it has none
	}
	for _, o.Wait = range tries {
		if len(r.resources) > 1 {
			r.lock, err = s.AcquireAll(ctx, r.resources, o)
		} else {
			r.lock, err = s.Acquire(ctx, r.resources[0], o)
		}
		if err == nil {
			return nil
		}
		if !errors.Is(err, client.ErrLockHeld) {
			break
		}
		if resource, own := r.heldByAncestor(ctx); own != "" && r.flags.wait != 0 {
			return usage("not run: CMD's ancestor holds the lock on %q already (lock id %s): it would wait for itself", resource, own)
		}
	}
	return r.notRun(ctx, err)
}

// name is what is locked, for people.
func (r *runner) name() string {
	if len(r.resources) == 0 {
		return "a detached lock"
	}
	return strings.Join(r.resources, ", ")
}

// heldByAncestor is a hold under which this process itself runs.
func (r *runner) heldByAncestor(ctx context.Context) (resource, id string) {
	ancestors := heldByAncestors()
	if ancestors == nil {
		return "", ""
	}
	for _, resource := range r.resources {
		l, err := r.client.Get(ctx, resource)
		if err != nil {
			return "", "" // then it waits
		}
		for _, h := range l.GetHolders() {
			if slices.Contains(ancestors, h.GetLockId()) && h.GetLimit() <= 1 && h.GetKeptFor() == nil { // of several permits, another may become free
				return resource, h.GetLockId()
			}
		}
	}
	return "", ""
}

// explain says why nothing is granted, where that is not another holder.
func (r *runner) explain(ctx context.Context) error {
	select {
	case <-time.After(explainAfter):
	case <-ctx.Done():
		return nil
	}
	if i := infoOf(ctx, r.client); ctx.Err() == nil && !i.GetReady() && i.GetNotReadyBecause() != "" {
		r.say("waiting: %s", i.GetNotReadyBecause())
	}
	return nil
}

// release gives the lock back.
func (r *runner) release(ctx context.Context, limit time.Duration) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), limit)
	defer cancel()
	err := r.lock.Release(ctx)
	if err != nil && ctx.Err() != nil {
		return fmt.Errorf("release %q: no answer within %s", r.name(), limit)
	}
	return err
}

// mind stays with CMD until it has ended.
func (r *runner) mind(ctx context.Context) error {
	tick := time.NewTimer(0)
	defer tick.Stop()
	for {
		select {
		case <-r.lock.Lost():
			return r.lost(ctx)
		case <-r.cmd.Exited():
			return r.ended(ctx)
		case <-r.front.Gone():
			r.end(lock.BootTime(), lock.BootTime()+reachLimit)
			if r.flags.handle == "" { // else our end detaches it again
				_ = r.release(ctx, releaseLimit) // nobody is there to hear of it
			}
			return &exitError{code: exitOwnFailure}
		case <-tick.C:
			tick.Reset(min(askEvery, max(r.rely()/8, r.margin/4)))
		case sig := <-r.front.Signals():
			r.tell("signal %s for CMD", sig)
			r.cmd.Signal(sig)
		case s := <-r.cmd.Changed():
			r.front.Changed(s)
		}
	}
}

// rely tells the front until when the lock can be relied on without news, and returns
// how long that is.
func (r *runner) rely() time.Duration {
	left := r.lock.ValidFor()
	if left > 0 { // else it is lost
		r.front.Until(lock.BootTime() + left + r.margin/2) // the rest is for the front to kill
	}
	return left
}

// ended is the end that is wanted. From here on nothing is ended any more: what CMD
// has left behind goes on without the lock.
func (r *runner) ended(ctx context.Context) error {
	r.front.Until(0)
	status := r.cmd.ExitStatus()
	r.lock.ValidFor() // looks at the clock: we may have been frozen
	if r.flags.once != nil {
		return r.concluded(ctx, status)
	}
	if lost := r.lock.Err(); lost != nil {
		return &exitError{code: exitLost, err: fmt.Errorf("%w; CMD ended by itself at that time, with status %d", lost, status)}
	}
	if err := r.release(ctx, releaseLimit); err != nil { // it is released by our end
		r.say("CMD has ended, with status %d; %v", status, err)
	} else {
		r.tell("released the lock on %q%s; CMD's status is %d", r.name(), r.kept(), status)
	}
	r.front.EndedBy(r.cmd.EndedBy())
	if status == 0 {
		return nil
	}
	return &exitError{code: status}
}

// kept says how long others are kept out after the release.
func (r *runner) kept() string {
	if left := r.lock.KeptFor(); left > 0 {
		return ", which is kept for another " + age(left)
	}
	return ""
}

// lost ends CMD before anybody else can be granted the lock.
func (r *runner) lost(ctx context.Context) error {
	var lost *client.LostError
	var grace time.Duration
	if errors.As(r.lock.Err(), &lost) {
		grace = lost.GraceLeft()
	}
	now := lock.BootTime()
	patience := min(grace/4*3, r.flags.killAfter) // the rest is for the kernel to end it
	giveUp := max(now+grace, now+patience+killLimit)
	r.front.Until(giveUp + answerLimit)
	if patience > 0 {
		r.say("%v: CMD gets %s, and SIGKILL in %s", r.lock.Err(), r.flags.signal, age(patience))
	} else {
		r.say("%v: CMD gets SIGKILL", r.lock.Err())
	}
	left := r.end(now+patience, giveUp)
	if len(left) > 0 { // others are kept out as long as can be
		return &exitError{code: exitLost, err: errors.New("CMD is not ended" + survivors(left))}
	}
	// CMD is gone, so others need not be kept out any longer.
	if err := r.release(ctx, lostReleaseLimit); err != nil {
		r.tell("%v", err)
	}
	return &exitError{code: exitLost}
}

// end ends CMD and all that it has started.
func (r *runner) end(kill, giveUp time.Duration) []supervise.Survivor {
	return r.cmd.End(supervise.Ending{
		Signal: syscall.Signal(r.flags.signal), Kill: kill, GiveUp: giveUp, Hurry: r.front.Gone(),
	})
}

// say tells people about a failure, tell what happens if they want to know.
func (r *runner) say(format string, args ...any) {
	_, _ = fmt.Fprintln(r.io.err, fit("locksidecar "+r.flags.verb+": "+fmt.Sprintf(format, args...)))
}

func (r *runner) tell(format string, args ...any) {
	if r.flags.verbose {
		r.say(format, args...)
	}
}
