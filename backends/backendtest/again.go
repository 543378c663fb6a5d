package backendtest

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/locksidecar/locksidecar/lock"
)

// This file is about a machine that is too busy for a test: an answer of the store comes too
// late, a lease ends because its heartbeats came too late, something takes longer than it should.
// That says nothing about the store, unless it is so each time. So the test is run again
// from its beginning, and only its last attempt fails for such a reason. All else fails it at
// once: a grant beside another, a fence that does not grow, news that are wrong.

// maxAttempts is how often a test is run at most.
const maxAttempts = 5

// busyError says that the machine was too busy for a test.
type busyError string

func (b busyError) Error() string { return string(b) }

// attempt is one run of a test. A failure that has a busyError or a lock.ErrUnavailable among its
// arguments ends it, and the test is run again.
type attempt struct {
	testing.TB
	ctx    context.Context
	cancel context.CancelFunc
	also   []error // what else tells no more than that the machine was too busy

	mu       sync.Mutex
	counts   bool   // every failure is one of the test: no other attempt follows
	busy     string // the failure for which another attempt follows
	dropped  bool   // it is over: nothing that it still says counts
	cleanups []func()
}

// run runs a test, and tells why another attempt must follow; empty: none.
func (a *attempt) run(test func()) (busy string) {
	var over sync.WaitGroup
	over.Go(test) // a failure ends its goroutine
	over.Wait()
	a.mu.Lock()
	defer a.mu.Unlock()
	if busy = a.busy; a.TB.Failed() {
		busy = ""
	}
	a.dropped, a.counts = busy != "", true
	return busy
}

// excused notes a failure for which another attempt follows, if it is one.
func (a *attempt) excused(failure string, args ...any) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.dropped || a.counts {
		return a.dropped
	}
	for _, arg := range args {
		err, ok := arg.(error)
		// What fails after an excuse, with an error, may be a consequence.
		if ok && (a.busy != "" || errors.Is(err, lock.ErrUnavailable) || errors.As(err, new(busyError)) || isAny(err, a.also)) {
			if a.busy == "" {
				a.busy = failure
			}
			return true
		}
	}
	return false
}

func isAny(err error, targets []error) bool {
	return slices.ContainsFunc(targets, func(target error) bool { return errors.Is(err, target) })
}

func (a *attempt) Errorf(format string, args ...any) {
	a.Helper()
	if !a.excused(fmt.Sprintf(format, args...), args...) {
		a.TB.Errorf(format, args...)
	}
}

func (a *attempt) Error(args ...any) {
	a.Helper()
	if !a.excused(fmt.Sprintln(args...), args...) {
		a.TB.Error(args...)
	}
}

func (a *attempt) Fatalf(format string, args ...any) {
	a.Helper()
	a.Errorf(format, args...)
	a.FailNow()
}

func (a *attempt) Fatal(args ...any) {
	a.Helper()
	a.Error(args...)
	a.FailNow()
}

// Failed tells also that there is no use in going on.
func (a *attempt) Failed() bool { return a.TB.Failed() || a.isBusy() }

func (a *attempt) isBusy() bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.busy != ""
}

func (a *attempt) FailNow() {
	a.mu.Lock()
	excused := a.dropped || a.busy != "" && !a.TB.Failed()
	a.mu.Unlock()
	if excused {
		runtime.Goexit()
	}
	a.TB.FailNow()
}

// Context ends with the attempt, just before what Cleanup has registered.
func (a *attempt) Context() context.Context { return a.ctx }

// Cleanup registers what is done when the attempt is over.
func (a *attempt) Cleanup(f func()) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.cleanups = append(a.cleanups, f)
}

// end cleans up.
func (a *attempt) end() {
	a.cancel()
	a.mu.Lock()
	n := len(a.cleanups)
	if n == 0 {
		a.mu.Unlock()
		return
	}
	f := a.cleanups[n-1]
	a.cleanups = a.cleanups[:n-1]
	a.mu.Unlock()
	defer a.end() // also where f ends the goroutine
	f()
}

// runOne runs a test until the machine was not too busy for it.
func runOne(t testing.TB, h Harness, limits Limits, c conformance) {
	t.Helper()
	runAgain(t, func(a *attempt) { runOnce(a, h, limits, c) })
}

func runAgain(t testing.TB, test func(*attempt)) {
	t.Helper()
	for n := 1; ; n++ {
		a := &attempt{TB: t, counts: n == maxAttempts}
		a.ctx, a.cancel = context.WithCancel(t.Context())
		t.Cleanup(a.end)
		busy := a.run(func() { test(a) })
		if busy == "" {
			return
		}
		var over sync.WaitGroup
		over.Go(a.end)
		over.Wait()
		t.Logf("once more: %s", busy)
	}
}

func runOnce(a *attempt, h Harness, limits Limits, c conformance) {
	a.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	e := &env{
		TB: a, attempt: a, h: h, limits: limits, ctx: ctx, clock: lock.BootTime, deaf: c.deaf,
		prefix: "backendtest/" + string(lock.NewHoldID())[:8] + "/" + c.name + "/",
	}
	if k, ok := h.(timekeeper); ok {
		e.clock = k.Clock()
	}
	a.Cleanup(func() {
		cancel()
		e.tasks.Wait()
	})
	c.run(e)
	if !a.Failed() {
		e.nothingLeft()
	}
}

// slow fails the test because something came too late or took too long. Whoever is always
// slow fails.
func (e *env) slow(format string, args ...any) {
	e.Helper()
	e.Error(busyError(fmt.Sprintf(format, args...)))
}

// goOn ends an attempt that has no use any more. It is for the goroutine of the test.
func (e *env) goOn() {
	e.Helper()
	if e.attempt.isBusy() {
		e.FailNow()
	}
}

// lasting ends an attempt in which the machine has let a lease end: what the test has just
// found may be the consequence.
func (e *env) lasting() {
	e.Helper()
	for _, s := range e.leases {
		if why := s.starved(); why != nil && !s.closed.Load() {
			e.Fatal(why)
		}
	}
}

// starved is a busyError where the machine was too busy for the heartbeats of a lease, before the test
// silenced it.
func (s *sidecar) starved() error {
	silent := s.isSilent()
	s.mu.Lock()
	pause, most := s.pause, s.ttl
	if !silent {
		pause = max(pause, time.Since(s.renewed))
	}
	s.mu.Unlock()
	if h, ok := s.e.h.(Impatient); ok {
		most = h.Patience(s.ttl)
	}
	if pause >= most {
		return busyError(fmt.Sprintf("a lease of %s had no heartbeat for %s", s.ttl, pause.Round(time.Millisecond)))
	}
	return nil
}

// blame gives the error of a request, and says so where it tells no more than that the
// machine was too busy for heartbeats: the lease is over, or where holds end one by one, the hold.
func (s *sidecar) blame(err error) error {
	gone := errors.Is(err, lock.ErrLeaseLost) || errors.Is(err, lock.ErrNotHolder)
	if why := s.starved(); gone && why != nil {
		return fmt.Errorf("%w: %w", why, err)
	}
	return err
}
