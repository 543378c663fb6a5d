package ledger

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/locksidecar/locksidecar/lock"
)

// TestReasons: the names in the API and in metrics, and the words for people.
func TestReasons(t *testing.T) {
	for reason, want := range map[LostReason]struct{ name, words string }{
		LeaseExpired:   {"LEASE_EXPIRED", "the store did not answer in time"},
		LeaseLost:      {"LEASE_LOST", "the store ended the sidecar's lease"},
		Forced:         {"FORCED", "an administrator forced its release"},
		MaxHold:        {"MAX_HOLD", "it was held longer than its max_hold"},
		SessionExpired: {"SESSION_EXPIRED", "the app sent no keep-alive in time"},
		StoreLost:      {"STORE_LOST", "the store no longer knows it"},
		Stopping:       {"STOPPING", "the sidecar stops"},
		99:             {"LostReason(99)", "LostReason(99)"},
	} {
		err := &LostError{Lost{Resource: "r", Reason: reason}}
		if got := reason.String(); got != want.name {
			t.Errorf("%d is called %q, want %q", reason, got, want.name)
		}
		if want := `the lock on "r" is lost: ` + want.words; err.Error() != want {
			t.Errorf("%d: %q, want %q", reason, err, want)
		}
	}
}

// TestRemembered: how many of what is over a session knows, and that the oldest goes.
func TestRemembered(t *testing.T) {
	t.Run("cancelled requests", func(t *testing.T) {
		l := open(func(o *Options) { o.Holds, o.Waits = 9, 9 })
		refused := func(id string) bool {
			_, c, err := l.Acquire(with(plain, func(a *Ask) { a.RequestID = id }))
			if c != nil {
				l.GiveUp(c, context.Canceled)
			}
			return errors.Is(err, context.Canceled)
		}
		for i := range 1024 {
			l.Cancel(fmt.Sprint(i))
		}
		if !refused("0") {
			t.Error("the first of 1024 is forgotten")
		}
		l.Cancel("another")
		if refused("0") || !refused("1") {
			t.Error("of 1025 the first is not forgotten, or another is")
		}
	})
	t.Run("releases", func(t *testing.T) {
		l := open()
		known := func(id string) bool { return errors.Is(l.Release("another", id).Err, lock.ErrInvalid) }
		for i := range 256 {
			l.Release("gone", fmt.Sprint(i))
		}
		if !known("0") {
			t.Error("the first of 256 is forgotten")
		}
		l.Release("gone", "256")
		if !known("1") || known("0") {
			t.Error("of 257 the first is not forgotten, or another is")
		}
	})
	t.Run("acknowledged losses", func(t *testing.T) {
		l := open(func(o *Options) { o.Holds = 300 })
		var ids []lock.HoldID
		for i := range 257 {
			g := get(t, l, with(plain, func(a *Ask) { a.Resource = lock.Resource(fmt.Sprint(i)) }))
			l.News(lock.Event{Kind: lock.Vanished, ID: g.LockID})
			ids = append(ids, g.LockID)
		}
		for _, id := range ids[:256] {
			l.Release(id, "")
		}
		if err := l.Release(ids[0], "").Err; !errors.Is(err, ErrLost) {
			t.Errorf("the first of 256: %v", err)
		}
		l.Release(ids[256], "")
		if err := l.Release(ids[0], "").Err; !errors.Is(err, lock.ErrNotHolder) {
			t.Errorf("the first of 257: %v", err)
		}
		if err := l.Release(ids[1], "").Err; !errors.Is(err, ErrLost) {
			t.Errorf("the second of 257: %v", err)
		}
	})
	t.Run("requests of one hold whose counts were released", func(t *testing.T) {
		const counts = 70
		l := open(func(o *Options) { o.Holds, o.Waits = 100, 100 })
		ask := func(i int) *Ask { return with(reentrant, func(a *Ask) { a.RequestID = fmt.Sprint(i) }) }
		g := get(t, l, ask(0))
		for i := 1; i < counts; i++ {
			if _, _, err := l.Acquire(ask(i)); err != nil {
				t.Fatal(err)
			}
		}
		for range 64 {
			l.Release(g.LockID, "")
		}
		if g, _, err := l.Acquire(ask(0)); err != nil || g.Count != counts-64 {
			t.Errorf("the retry of a request: %+v, %v, want no other count", g, err)
		}
		l.Release(g.LockID, "")
		if g, _, err := l.Acquire(ask(1)); err != nil || g.Count != counts-65 {
			t.Errorf("the retry of a later request: %+v, %v, want no other count", g, err)
		}
		if g, _, err := l.Acquire(ask(0)); err != nil || g.Count != counts-64 {
			t.Errorf("a request that is forgotten: %+v, %v, want one more count", g, err)
		}
	})
}

// TestLimits are named in the error, also for who shares the wait of others.
func TestLimits(t *testing.T) {
	want := func(err error, limit string, most int) {
		t.Helper()
		if got := (*LimitError)(nil); !errors.As(err, &got) || got.Limit != limit || got.Max != most {
			t.Errorf("%v, want the limit of %d %s", err, most, limit)
		}
	}
	l := open(func(o *Options) { o.Waits = 3 })
	for range 3 {
		if _, c, err := l.Acquire(&reentrant); c == nil {
			t.Fatal(err)
		}
	}
	_, _, err := l.Acquire(&reentrant) // shares
	want(err, "waiters", 3)
	_, _, err = l.Acquire(&plain) // does not
	want(err, "waiters", 3)

	full := func(a *Ask) { a.Full = &LimitError{Limit: "holds per uid", Max: 77} }
	busy := func(a *Ask) { a.Busy = &LimitError{Limit: "waiters per space", Max: 7} }
	l = open()
	_, _, err = l.Acquire(with(plain, full))
	want(err, "holds per uid", 77)
	_, _, err = l.Acquire(with(plain, busy))
	want(err, "waiters per space", 7)
	wait(t, l, &reentrant)
	_, _, err = l.Acquire(with(reentrant, busy)) // who shares waits as well
	want(err, "waiters per space", 7)
	l = open()
	named := with(reentrant, func(a *Ask) { a.RequestID = "x" })
	get(t, l, named)
	_, _, err = l.Acquire(with(reentrant, full))
	want(err, "holds per uid", 77)
	for _, a := range []*Ask{&reentrant, named} { // who does not wait needs no place in the queue
		if _, _, err = l.Acquire(with(*a, busy)); err != nil {
			t.Error(err)
		}
	}
}

// TestTheShortestWait has an end, and no wait has none.
func TestTheShortestWait(t *testing.T) {
	for wait, end := range map[time.Duration]time.Duration{0: 0, 1: time.Second + 1, time.Second: 2 * time.Second} {
		l := open()
		l.Look(at(time.Second))
		if _, c, err := l.Acquire(with(plain, func(a *Ask) { a.Wait = wait })); c == nil {
			t.Fatal(err)
		}
		if got := l.Next(); got != end {
			t.Errorf("a wait of %v ends at %v, want %v", wait, got, end)
		}
	}
}

// TestAnswersOfTheStore: which of its errors are told to who waits, and which make the
// sidecar ask again.
func TestAnswersOfTheStore(t *testing.T) {
	for name, c := range map[string]struct {
		err   error
		again bool
		told  error
		clean bool // the store may have granted it
	}{
		"it is not possible":           {lock.ErrInvalid, false, lock.ErrInvalid, false},
		"a limit":                      {lock.ErrLimit, false, lock.ErrLimit, false},
		"it is forced out":             {lock.ErrNotHolder, false, ErrLost, false},
		"no answer":                    {lock.ErrUnavailable, false, lock.ErrUnavailable, true},
		"the lease is over":            {lock.ErrLeaseLost, true, nil, false},
		"the driver's wait is over":    {&lock.HeldError{Cause: context.DeadlineExceeded}, true, nil, false},
		"held, to one who can wait":    {&lock.HeldError{Cause: lock.ErrHeld}, true, nil, false},
		"another error, of any driver": {errors.New("?"), false, nil, true},
	} {
		t.Run(name, func(t *testing.T) {
			l := open()
			call, h := wait(t, l, &plain)
			first := h.ID()
			l.Answered(h, first, lease, lock.Grant{}, c.err)
			var again, clean bool
			for _, e := range l.Effects() {
				again = again || e.Kind == Request && e.ID != first
				clean = clean || e.Kind == Clean && e.ID == first
			}
			if again != c.again || clean != c.clean || ready(call) == c.again {
				t.Errorf("asked again %v, cleaned %v, answered %v", again, clean, ready(call))
			}
			if c.told != nil && !errors.Is(call.Err, c.told) || !c.again && call.Err == nil {
				t.Errorf("told %v, want %v", call.Err, c.told)
			}
		})
	}
}

// TestTheStoreDoesNotAnswerARelease: its call is ended after that time, and not before.
func TestTheStoreDoesNotAnswerARelease(t *testing.T) {
	l := open(func(o *Options) { o.Answer = 2 * time.Second })
	g := get(t, l, &plain)
	l.Look(at(5 * time.Second))
	r := l.Release(g.LockID, "")
	if r.Hold == nil {
		t.Fatalf("%+v", r)
	}
	stopped := false
	l.Releasing(r.Hold, stopper(func() { stopped = true }))
	carry := func() {
		for _, e := range l.Effects() {
			if e.Kind == Stop {
				e.Stop.Stop()
			}
		}
	}
	if got := l.Next(); got != 7*time.Second {
		t.Errorf("looks at %v, want 7s", got)
	}
	l.Look(at(7*time.Second - 1))
	if carry(); stopped {
		t.Error("stopped too early")
	}
	l.Look(at(7 * time.Second))
	if carry(); !stopped {
		t.Error("not stopped")
	}
}

// TestReplyWithoutAnother: a release that nobody else does has nothing to wait for.
func TestReplyWithoutAnother(t *testing.T) {
	if left, err := new(Release).Reply(); left != 0 || err != nil {
		t.Errorf("%d, %v", left, err)
	}
}
