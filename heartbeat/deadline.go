package heartbeat

import (
	"sync"
	"time"

	"github.com/locksidecar/locksidecar/lock"
)

// maxDeadlineStep bounds one sleep of a Deadline, for the reason of maxStep.
// There may be thousands, and Remaining looks at the clock anyway, so it is longer.
const maxDeadlineStep = 5 * time.Second

// Deadline is a moment that can be moved until it is reached. It costs one timer
// and no goroutine. Its methods may be called at the same time by many goroutines.
type Deadline struct {
	clock lock.Clock
	then  func()
	timer *time.Timer

	mu    sync.Mutex
	at    time.Duration // on clock
	armed time.Duration // when the timer looks next, on clock
	over  bool          // reached, or stopped
}

// NewDeadline makes a Deadline d from now. When it is reached, then is called,
// once, on a goroutine of its own; it must not block.
func NewDeadline(clock lock.Clock, d time.Duration, then func()) *Deadline {
	t := &Deadline{clock: clock, then: then}
	now := clock()
	t.at = now + d
	t.mu.Lock() // the timer may fire before it is stored
	defer t.mu.Unlock()
	first := min(d, maxDeadlineStep)
	t.armed = now + first
	t.timer = time.AfterFunc(first, t.look)
	return t
}

// Remaining is how long it is until the deadline; 0 when it was reached or
// stopped. Like Keeper.ValidFor it looks at the clock itself, and stays 0.
func (t *Deadline) Remaining() time.Duration {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.remaining(t.clock())
}

func (t *Deadline) remaining(now time.Duration) time.Duration {
	if t.over || now >= t.at {
		return 0
	}
	return t.at - now
}

// Extend moves the deadline to d from now, unless that is nearer than it is. It
// reports false when it was reached or stopped: then nothing has changed.
func (t *Deadline) Extend(d time.Duration) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	now := t.clock()
	if t.remaining(now) == 0 {
		return false
	}
	t.at = max(t.at, now+d) // the timer looks at it when it fires
	return true
}

// Shorten moves the deadline to d from now, unless that is farther than it is.
func (t *Deadline) Shorten(d time.Duration) {
	t.mu.Lock()
	defer t.mu.Unlock()
	now := t.clock()
	if t.remaining(now) <= d {
		return
	}
	t.at = now + d
	if t.at < t.armed {
		t.arm(now)
	}
}

// Stop ends it without calling then; a call that has begun goes on.
func (t *Deadline) Stop() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.over = true
	t.timer.Stop()
}

func (t *Deadline) arm(now time.Duration) {
	step := min(t.at-now, maxDeadlineStep)
	t.armed = now + step
	t.timer.Reset(step)
}

// look is called by the timer.
func (t *Deadline) look() {
	t.mu.Lock()
	now := t.clock()
	switch {
	case t.over:
		t.mu.Unlock()
	case now < t.at:
		t.arm(now)
		t.mu.Unlock()
	default:
		t.over = true
		t.mu.Unlock()
		t.then()
	}
}
