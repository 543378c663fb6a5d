package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/signal"
	"path/filepath"
	"syscall"
	"time"

	"github.com/locksidecar/locksidecar/client"
	"github.com/locksidecar/locksidecar/internal/supervise"
)

const (
	releaseLimit = 5 * time.Second
	// lostReleaseLimit is short: the sidecar may well be what is broken.
	lostReleaseLimit = time.Second
	// stopLimit is how long it may take until a signal stops this process.
	stopLimit = time.Second
	// tellEvery is how often the watchdog hears at least until when the lock is good.
	tellEvery = time.Second
)

// runner is one run of CMD under one lock.
type runner struct {
	flags    *runFlags
	io       streams
	resource string
	signals  chan os.Signal
	resumed  chan os.Signal // SIGCONT

	socket   string
	margin   time.Duration // the store keeps the lock at least so much longer than it is said to be valid
	lock     *client.Lock
	watchdog *supervise.Watchdog
	cmd      *supervise.Process
	tty      *supervise.Terminal
}

// runCommand is the whole of the subcommand run.
func runCommand(ctx context.Context, f *runFlags, resource string, argv []string, io streams) (err error) {
	path, err := findProgram(argv[0])
	if err != nil {
		return err
	}
	if err := supervise.AdoptOrphans(); err != nil {
		return err
	}
	r := &runner{flags: f, io: io, resource: resource, signals: make(chan os.Signal, 16), resumed: make(chan os.Signal, 1)}
	supervise.Notify(r.signals, syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP, syscall.SIGQUIT,
		syscall.SIGUSR1, syscall.SIGUSR2, syscall.SIGALRM, syscall.SIGWINCH, syscall.SIGTSTP)
	supervise.Notify(r.resumed, syscall.SIGCONT)
	defer signal.Stop(r.signals)
	defer signal.Stop(r.resumed)

	dir := ""
	if f.store.given() {
		own, err := startOwnSidecar(ctx, f, io)
		if err != nil {
			return err
		}
		defer func() {
			if stopErr := own.stop(); stopErr != nil {
				r.say("stop: %v", stopErr)
			}
		}()
		r.socket, dir = own.socket, own.dir
	} else if r.socket, err = f.socket.path(); err != nil {
		return err
	}
	c, err := client.Dial(ctx, r.socket)
	if err != nil {
		return notRun(err)
	}
	defer c.Close()
	if err := r.acquire(ctx, c, filepath.Base(argv[0])); err != nil {
		return err
	}
	if r.watchdog, err = supervise.StartWatchdog(dir); err != nil {
		return errors.Join(err, r.release(ctx, releaseLimit))
	}
	defer r.watchdog.Done()
	env := environment(heldLock{id: r.lock.ID, resource: resource, fence: r.lock.Fence, guard: r.lock.Guard}, r.socket)
	if r.cmd, err = supervise.Start(path, argv, env, r.watchdog.PID()); err != nil {
		if releaseErr := r.release(ctx, releaseLimit); releaseErr != nil {
			r.say("%v", releaseErr)
		}
		code := exitCannotExec
		if errors.Is(err, fs.ErrNotExist) { // the interpreter of a script, for instance
			code = exitNotFound
		}
		return &exitError{code: code, err: fmt.Errorf("cannot execute %q: %w", path, err)}
	}
	r.watchdog.Watch(r.cmd.PID())
	return r.mind(ctx)
}

// notRun is the error of a lock that was not got.
func notRun(err error) error {
	var said *client.Error
	if errors.As(err, &said) {
		err = said
	}
	code := exitOwnFailure
	for _, passing := range []error{
		client.ErrLockHeld, client.ErrWaitTimeout, client.ErrStoreUnavailable, client.ErrLimitExceeded, client.ErrDraining,
		client.ErrNoSidecar, client.ErrStreamEnded, client.ErrSessionNotFound, client.ErrLockLost, client.ErrNotHolder,
	} {
		if errors.Is(err, passing) {
			code = exitNotGot
		}
	}
	return &exitError{code: code, err: fmt.Errorf("not run: %w", err)}
}

// acquire takes the lock, or ends with a signal.
func (r *runner) acquire(ctx context.Context, c *client.Client, name string) error {
	s, err := c.OpenSession(ctx, client.SessionOptions{Name: name})
	if err != nil {
		return notRun(err)
	}
	r.margin = s.Margin()
	o := client.AcquireOptions{Mode: client.Exclusive, MaxHold: r.flags.maxHold, Wait: r.flags.wait}
	switch r.flags.wait {
	case forever:
		o.Wait = 0
	case 0:
		o.Wait = client.NoWait
	}
	if r.flags.shared {
		o.Mode = client.Shared
	}
	began := time.Now()
	asking := start(ctx, func(ctx context.Context) (err error) {
		r.lock, err = s.Acquire(ctx, r.resource, o)
		return err
	})
	for {
		select {
		case <-asking.done:
			if asking.err != nil {
				return notRun(asking.err)
			}
			r.tell("got the lock on %q after %s, fence %d", r.resource, age(time.Since(began)), r.lock.Fence)
			return nil
		case sig := <-r.signals:
			switch sig {
			case syscall.SIGTSTP:
				r.stopSelf()
			case syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP, syscall.SIGQUIT:
				if asking.stop() == nil { // it came first
					_ = r.release(ctx, releaseLimit) // the session ends with the process anyway
				}
				number, _ := sig.(syscall.Signal) // what Notify sends on Unix
				return &exitError{code: exitSignalled + int(number), err: fmt.Errorf("not run: %s while waiting for the lock on %q", sig, r.resource)}
			}
		case <-r.resumed:
		}
	}
}

// release gives the lock back.
func (r *runner) release(ctx context.Context, limit time.Duration) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), limit)
	defer cancel()
	return r.lock.Release(ctx)
}

// mind stays with CMD until it has ended.
func (r *runner) mind(ctx context.Context) error {
	r.tty = supervise.OpenTerminal()
	if supervise.IsTerminal(os.Stdin) && supervise.IsTerminal(os.Stdout) {
		r.tty.Lend(r.cmd.PID()) // else when it asks for it: in a pipeline, others may want to read as well
	}
	defer r.tty.TakeBack()
	tick := time.NewTimer(0)
	defer tick.Stop()
	for {
		select {
		case <-r.lock.Lost():
			return r.lost(ctx)
		case <-r.cmd.Exited():
			return r.ended(ctx)
		case <-tick.C:
			left := r.lock.ValidFor()
			if left > 0 { // else it is lost
				r.watchdog.ValidFor(left + r.patience(r.margin))
			}
			tick.Reset(min(tellEvery, max(left/8, r.margin)))
		case sig := <-r.signals:
			number, _ := sig.(syscall.Signal) // what Notify sends on Unix
			r.tell("signal %s for CMD", sig)
			r.cmd.Signal(number)
		case <-r.resumed:
			r.resume(false)
		case sig := <-r.cmd.Stopped():
			r.stopped(sig)
		}
	}
}

// patience is how long CMD gets between SIGTERM and SIGKILL: the rest is for the
// kernel to end it.
func (r *runner) patience(grace time.Duration) time.Duration { return grace / 4 * 3 }

// ended is the end that is wanted.
func (r *runner) ended(ctx context.Context) error {
	status := r.cmd.ExitStatus()
	err := r.release(ctx, releaseLimit)
	var lost *client.LostError
	switch {
	case errors.As(r.lock.Err(), &lost):
		return &exitError{code: exitLost, err: fmt.Errorf("%w; CMD ended by itself at that time, with status %d", lost, status)}
	case errors.Is(err, client.ErrLockLost):
		return &exitError{code: exitLost, err: fmt.Errorf("%w; CMD ended by itself at that time, with status %d", err, status)}
	case err != nil: // it is released by our end
		r.say("%v", err)
	default:
		r.tell("released the lock on %q; CMD's status is %d", r.resource, status)
	}
	if status == 0 {
		return nil
	}
	return &exitError{code: status}
}

// lost ends CMD before anybody else can be granted the lock.
func (r *runner) lost(ctx context.Context) error {
	var lost *client.LostError
	var grace time.Duration
	if errors.As(r.lock.Err(), &lost) {
		if grace = lost.GraceLeft(); lost.Reason == client.LostSilence {
			grace = r.margin // nobody is there to say it, but the store does not know yet
		}
	}
	patience := r.patience(grace)
	if patience > 0 {
		r.watchdog.ValidFor(grace / 8 * 7)
		r.say("%v: CMD gets SIGTERM, and SIGKILL in %s", r.lock.Err(), age(patience))
	} else {
		r.say("%v: CMD gets SIGKILL", r.lock.Err())
	}
	r.cmd.End(patience)
	// CMD is gone, so others need not be kept out any longer.
	if err := r.release(ctx, lostReleaseLimit); err != nil {
		r.tell("%v", err)
	}
	return &exitError{code: exitLost}
}

// stopped is told that CMD was stopped, by Ctrl-Z for instance.
func (r *runner) stopped(sig syscall.Signal) {
	wantsTerminal := sig == syscall.SIGTTIN || sig == syscall.SIGTTOU
	switch {
	case wantsTerminal && r.tty.Ours():
		r.tty.Lend(r.cmd.PID())
		r.cmd.Signal(syscall.SIGCONT)
	case !r.tty.Exists(): // no shell has us as a job; who has stopped CMD will continue it
	default:
		lent := r.tty.Lent()
		r.tty.TakeBack()
		r.watchdog.ValidFor(0) // CMD does nothing now, and is looked at before it goes on
		r.stopSelf()
		r.resume(lent || wantsTerminal)
	}
}

// stopSelf stops this process and returns when it is continued. Where no shell
// would continue it, it goes on at once.
func (r *runner) stopSelf() {
	if !supervise.JobControlled() {
		return
	}
	// Not SIGTSTP: Go does not give its handler back once it was asked for.
	_ = syscall.Kill(0, syscall.SIGSTOP) // the whole job, as the terminal would
	select {
	case <-r.resumed:
	case <-time.After(stopLimit): // continued before it had begun to wait
	}
}

// resume continues CMD after this process was continued, unless the lock was
// lost meanwhile.
func (r *runner) resume(lend bool) {
	left := r.lock.ValidFor()
	if left == 0 {
		return
	}
	r.watchdog.ValidFor(left + r.patience(r.margin))
	if lend {
		r.tty.Lend(r.cmd.PID())
	}
	r.cmd.Signal(syscall.SIGCONT)
}

// say tells people about a failure, tell what happens if they want to know.
func (r *runner) say(format string, args ...any) {
	_, _ = fmt.Fprintf(r.io.err, "locksidecar run: "+format+"\n", args...)
}

func (r *runner) tell(format string, args ...any) {
	if r.flags.verbose {
		r.say(format, args...)
	}
}
