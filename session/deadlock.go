package session

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/locksidecar/locksidecar/lock"
	"github.com/locksidecar/locksidecar/session/ledger"
	"github.com/locksidecar/locksidecar/waitfor"
)

// DeadlockMode says what the sidecar does about owners that wait for each other.
type DeadlockMode uint8

// The modes.
const (
	BreakDeadlocks  DeadlockMode = iota // the one who asked last gets a *DeadlockError; all holds stay
	ReportDeadlocks                     // it is logged and counted
	IgnoreDeadlocks                     // nobody looks
)

const (
	// searchAfter is how long a wait lasts before the sidecar looks why.
	searchAfter = time.Second
	// The pauses between the looks of one wait. A circle is closed by the request of it that
	// comes last, and that one finds it at its first look. Later looks are for what the
	// first could not see: the store did not answer, or clocks disagree who came last.
	minSearchPause = 4 * time.Second
	maxSearchPause = 2 * time.Minute
	// searchReads bounds what one look reads.
	searchReads = 512
	// readPause is between two reads. There is one at a time, so deadlocks cost the store at most
	// a hundred reads a second of a sidecar, whatever waits.
	readPause = 10 * time.Millisecond
	// secondLook is how long after the first look a circle is looked at again: who is about to
	// let go has done so then.
	secondLook = 250 * time.Millisecond
	// turnTime is how long the sidecar of a member waits for each member that should give up
	// before: its own sidecar may not look, or not see all.
	turnTime = 5 * time.Second
)

// inquiry looks whether one request waits in vain. Its owner holds something: else nobody
// waits for it, and there is nothing to look for.
type inquiry struct {
	ctx    context.Context //nolint:containedctx // ends when the request does not wait any more
	cancel context.CancelFunc
	s      *Session
	h      *ledger.Hold
	id     lock.HoldID
	held   []string
	looks  int
	found  string        // the circle that was seen last
	since  time.Duration // when it was seen first
	told   bool

	mu    sync.Mutex
	timer *time.Timer // begins the next look
	over  bool
}

// search looks for deadlocks: for each principal into one wait at a time, in the order in which they
// came. All of them read in turn, so that the waits of one do not hold up those of another.
type search struct {
	reads chan struct{} // its one place is for who reads, and rests

	mu    sync.Mutex
	lines map[Share][]*inquiry // who wants to look, beside the one who does
}

func newSearch() search {
	return search{reads: make(chan struct{}, 1), lines: make(map[Share][]*inquiry)}
}

// enter lets q look, or has it looked for by who does for the same principal.
func (l *search) enter(q *inquiry) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	who := q.s.usages[0].of
	line, busy := l.lines[who]
	if busy {
		line = append(line, q)
	}
	l.lines[who] = line
	return !busy
}

// leave gives the next one of a principal to look for; nil: there is none.
func (l *search) leave(who Share) *inquiry {
	l.mu.Lock()
	defer l.mu.Unlock()
	line := l.lines[who]
	if len(line) == 0 {
		delete(l.lines, who)
		return nil
	}
	q := line[0]
	line[0] = nil
	l.lines[who] = line[1:]
	return q
}

// inquire lets the sidecar look into a wait when it has lasted, until end. Between the looks it
// costs a timer.
func inquire(ctx context.Context, s *Session, h *ledger.Hold, id lock.HoldID, held []string) *inquiry {
	q := &inquiry{s: s, h: h, id: id, held: held}
	q.ctx, q.cancel = context.WithCancel(lock.WithBlocking(ctx, func() {})) // this is another goroutine
	q.after(searchAfter)
	return q
}

// after has the next look begin after a pause.
func (q *inquiry) after(pause time.Duration) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if !q.over {
		q.timer = time.AfterFunc(pause, q.begin)
	}
}

// end ends the looks: the request does not wait any more.
func (q *inquiry) end() {
	q.cancel()
	q.mu.Lock()
	defer q.mu.Unlock()
	q.over = true
	q.timer.Stop()
}

// begin looks, and for those that come up meanwhile.
func (q *inquiry) begin() {
	m := q.s.space.m
	m.mu.Lock()
	stopped := m.stopped
	if !stopped {
		m.wg.Add(1) // Run does not wait for it yet
	}
	m.mu.Unlock()
	if stopped {
		return
	}
	defer m.wg.Done()
	if !m.search.enter(q) {
		return
	}
	for next := q; next != nil; next = m.search.leave(q.s.usages[0].of) {
		if next.ctx.Err() == nil {
			next.after(next.look())
		}
	}
}

// look looks once whether the request waits in vain, and gives the pause until the next look.
func (q *inquiry) look() time.Duration {
	m := q.s.space.m
	next := backoff(q.looks, minSearchPause, maxSearchPause)
	q.looks++
	c := q.circle(q.ctx)
	switch q.judge(c) {
	case nothing:
	case others:
		next = turnTime / 2
	case ours:
		broken := false
		if m.o.Deadlock == BreakDeadlocks {
			err := &DeadlockError{Resource: q.h.Name(), Cycle: c}
			q.s.change(func(l *ledger.Ledger) { broken = l.Deadlocked(q.h, q.id, err) })
		}
		if broken || m.o.Deadlock == ReportDeadlocks { // else it got its answer just now
			q.tell(c, broken)
		}
	}
	return next
}

// circle is what the wait is part of, seen twice; nil: nothing, as far as can be seen. It has the
// names that apps know.
func (q *inquiry) circle(ctx context.Context) waitfor.Cycle {
	c, err := waitfor.Search(ctx, q.get, q.id, q.held, searchReads)
	if err == nil && c != nil && pause(ctx, secondLook) {
		var stands bool
		if stands, err = waitfor.Again(ctx, q.get, c); stands {
			for i, e := range c {
				c[i].Resource = lock.Resource(q.s.space.inApp(e.Resource))
			}
			return c
		}
	}
	if err != nil {
		q.s.space.m.log.Debug("look for a deadlock: will try again", keyResource, q.h.Resource(), keyError, err)
	}
	return nil
}

// get reads one resource of the store, when it is its turn, and rests. Of another space than its own it
// sees nothing.
func (q *inquiry) get(ctx context.Context, r lock.Resource) (lock.Status, error) {
	if !q.s.space.has(r) {
		return lock.Status{}, nil
	}
	m := q.s.space.m
	select {
	case m.search.reads <- struct{}{}:
		defer func() { <-m.search.reads }()
	case <-ctx.Done():
		return lock.Status{}, fmt.Errorf("get lock: %w", context.Cause(ctx))
	}
	limit, cancel := context.WithTimeout(ctx, tryLimit)
	defer cancel()
	st, err := m.o.Backend.Get(limit, r)
	if err == nil && !pause(ctx, readPause) {
		err = context.Cause(ctx)
	}
	if err != nil {
		return lock.Status{}, fmt.Errorf("get lock: %w", err)
	}
	return st, nil
}

// verdict is what is to be done about a circle.
type verdict uint8

const (
	nothing verdict = iota // there is none, or it was told
	others                 // it is for other members first
	ours                   // this request has to give up
)

// judge says whose the circle is to break, or to report.
func (q *inquiry) judge(c waitfor.Cycle) verdict {
	if c == nil {
		return nothing
	}
	m := q.s.space.m
	now := m.o.Clock()
	if name := c.Key(); name != q.found {
		q.found, q.since, q.told = name, now, false
	}
	turn := slices.IndexFunc(c.Victims(), func(h lock.Holding) bool { return h.ID == q.id })
	switch {
	case q.told, turn < 0, turn > 0 && m.o.Deadlock == ReportDeadlocks:
		return nothing
	case now-q.since < time.Duration(turn)*turnTime:
		return others
	default:
		q.told = true
		return ours
	}
}

// tell counts a deadlock, and logs it.
func (q *inquiry) tell(c waitfor.Cycle, broken bool) {
	m := q.s.space.m
	m.o.Observer.Deadlock(broken)
	m.log.Warn("deadlock", keyBroken, broken, keyResource, q.h.Resource(), keySession, q.s.owner.Session, keyCycle, c.String())
}
