package ledger

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/locksidecar/locksidecar/lock"
)

const lease = "lease 1"

// at is a moment of a lease that lives.
func at(now time.Duration) Moment {
	return Moment{Now: now, Until: now + 9*time.Second, Kept: now + 10*time.Second}
}

func open(change ...func(*Options)) *Ledger {
	n := 0
	o := Options{Holds: 10, Waits: 5, LostGrace: 2 * time.Second, NewID: func() lock.HoldID {
		n++
		return lock.HoldID(fmt.Sprint("id", n))
	}}
	for _, c := range change {
		c(&o)
	}
	l := New(o, 0)
	l.Look(at(0))
	return l
}

var (
	plain     = Ask{Resource: "ns/r", Name: "r", Mode: lock.Exclusive}
	reentrant = Ask{Resource: "ns/r", Name: "r", Mode: lock.Exclusive, Reentrant: true}
)

func with(a Ask, f func(*Ask)) *Ask {
	f(&a)
	return &a
}

// stopper is a call of the driver.
type stopper func()

func (f stopper) Stop() { f() }

// wait is an Acquire that waits, with the hold that is asked for.
func wait(t *testing.T, l *Ledger, a *Ask) (*Call, *Hold) {
	t.Helper()
	_, c, err := l.Acquire(a)
	if c == nil {
		t.Fatalf("Acquire(%+v) = %v, want to wait", a, err)
	}
	for _, e := range l.Effects() {
		if e.Kind == Request {
			l.Asked(e.Hold, e.Hold.ID(), lease, stopper(func() {}))
		}
	}
	return c, c.Hold()
}

// get is an Acquire that the store grants.
func get(t *testing.T, l *Ledger, a *Ask) Grant {
	t.Helper()
	c, h := wait(t, l, a)
	l.Answered(h, h.ID(), lease, lock.Grant{Fence: 7}, nil)
	if !ready(c) || c.Err != nil {
		t.Fatalf("Acquire(%+v) = %v", a, c.Err)
	}
	return c.Grant
}

func ready(c *Call) bool {
	return c.answered
}

func wantEffects(t *testing.T, l *Ledger, want ...EffectKind) {
	t.Helper()
	var got []EffectKind
	for _, e := range l.Effects() {
		if e.Kind != Unregister {
			got = append(got, e.Kind)
		}
	}
	if !slices.Equal(got, want) {
		t.Errorf("effects %v, want %v", got, want)
	}
}

// TestWhoShares: what a second request of the same session gets while the first
// one holds, and while it waits.
func TestWhoShares(t *testing.T) {
	id := func(a *Ask) { a.RequestID = "1" }
	for name, c := range map[string]struct {
		first, second *Ask
		shares        bool
		count         int
		err           error
	}{
		"two plain":                       {&plain, &plain, false, 0, nil},
		"plain after reentrant":           {&reentrant, &plain, false, 0, nil},
		"reentrant after plain":           {&plain, &reentrant, false, 0, nil},
		"two reentrant":                   {&reentrant, &reentrant, true, 2, nil},
		"shared into exclusive":           {&reentrant, with(reentrant, func(a *Ask) { a.Mode = lock.Shared }), true, 2, nil},
		"an upgrade":                      {with(reentrant, func(a *Ask) { a.Mode = lock.Shared }), &reentrant, false, 0, ErrUpgradeRefused},
		"plain exclusive beside shared":   {with(plain, func(a *Ask) { a.Mode = lock.Shared }), &plain, false, 0, nil},
		"another owner":                   {&reentrant, with(reentrant, func(a *Ask) { a.Owner = "2" }), false, 0, nil},
		"another resource":                {&reentrant, with(reentrant, func(a *Ask) { a.Resource = "x" }), false, 0, nil},
		"the same request":                {with(plain, id), with(plain, id), true, 1, nil},
		"the same reentrant request":      {with(reentrant, id), with(reentrant, id), true, 1, nil},
		"the id of another mode":          {with(plain, id), with(plain, func(a *Ask) { id(a); a.Mode = lock.Shared }), false, 0, lock.ErrInvalid},
		"the id of another kind":          {with(plain, id), with(reentrant, id), false, 0, lock.ErrInvalid},
		"the id of another owner":         {with(plain, id), with(plain, func(a *Ask) { id(a); a.Owner = "2" }), false, 0, lock.ErrInvalid},
		"another request of the same one": {with(reentrant, id), with(reentrant, func(a *Ask) { a.RequestID = "2" }), true, 2, nil},
	} {
		t.Run(name, func(t *testing.T) {
			l := open()
			first := get(t, l, c.first)
			g, call, err := l.Acquire(c.second)
			switch {
			case c.err != nil:
				if !errors.Is(err, c.err) {
					t.Errorf("while held: %v, want %v", err, c.err)
				}
			case c.shares != (call == nil) || call == nil && (g.LockID != first.LockID || g.Count != c.count):
				t.Errorf("while held: %+v, waits %v, %v", g, call != nil, err)
			}

			l = open()
			leader, h := wait(t, l, c.first)
			_, call, err = l.Acquire(c.second)
			switch {
			case c.err != nil:
				if !errors.Is(err, c.err) {
					t.Errorf("while waiting: %v, want %v", err, c.err)
				}
				return
			case call == nil || c.shares != (call.Hold() == h):
				t.Fatalf("while waiting: shares %v, %v", call != nil && call.Hold() == h, err)
			}
			l.Answered(h, h.ID(), lease, lock.Grant{}, nil)
			if !ready(leader) || leader.Err != nil || ready(call) != c.shares || c.shares && call.Grant.Count != c.count {
				t.Errorf("after the grant: %+v; %v %+v", leader.Grant, ready(call), call.Grant)
			}
		})
	}
}

// TestGivingBackLeavesTheRetryItsGrant: two callers of one request were answered,
// and one of them is gone. Only when the last of them is, the hold goes back.
func TestGivingBackLeavesTheRetryItsGrant(t *testing.T) {
	ask := with(plain, func(a *Ask) { a.RequestID = "1" })
	for name, retryBefore := range map[string]bool{"a retry that waits": true, "a retry that finds the hold": false} {
		t.Run(name, func(t *testing.T) {
			l := open()
			first, h := wait(t, l, ask)
			var retry *Call
			if retryBefore {
				retry, _ = wait(t, l, ask)
			}
			l.Answered(h, h.ID(), lease, lock.Grant{}, nil)
			if !retryBefore {
				if g, _, err := l.Acquire(ask); err != nil || g.LockID != h.ID() {
					t.Fatalf("retry: %+v, %v", g, err)
				}
			}
			l.Effects()
			l.Gone(first, context.Canceled)
			if !l.Lives(h.ID()) || l.Kept() != 1 {
				t.Error("the hold of the retry was given back")
			}
			wantEffects(t, l)
			if retry != nil {
				l.Gone(retry, context.Canceled)
				if l.Lives(h.ID()) {
					t.Error("the hold was kept though nobody has it")
				}
				wantEffects(t, l, Clean)
			}
		})
	}
}

// TestMaxHoldOfWhoGaveUp: the limit of a caller that is gone is gone with it.
func TestMaxHoldOfWhoGaveUp(t *testing.T) {
	l := open()
	leader, h := wait(t, l, with(reentrant, func(a *Ask) { a.MaxHold = time.Second }))
	follower, _ := wait(t, l, with(reentrant, func(a *Ask) { a.MaxHold = 5 * time.Second }))
	l.Gone(leader, context.Canceled)
	l.Answered(h, h.ID(), lease, lock.Grant{}, nil)
	if g := follower.Grant; !ready(follower) || g.Until != 5*time.Second || g.End != 5*time.Second || g.Count != 1 {
		t.Errorf("grant %+v, want for 5s", g)
	}
	if l.Next() != 5*time.Second {
		t.Errorf("next look at %v", l.Next())
	}
}

// TestTryThatSharesAWait: what a try learns when it sees who holds the resource.
func TestTryThatSharesAWait(t *testing.T) {
	for name, c := range map[string]struct {
		holder  func(*Hold) []lock.Holding
		refused bool
	}{
		"somebody else holds it":      {func(*Hold) []lock.Holding { return []lock.Holding{{ID: "other"}} }, true},
		"its own grant is on its way": {func(h *Hold) []lock.Holding { return []lock.Holding{{ID: h.ID()}} }, false},
		"nobody holds it":             {func(*Hold) []lock.Holding { return nil }, false},
	} {
		t.Run(name, func(t *testing.T) {
			l := open()
			leader, h := wait(t, l, &reentrant)
			_, try, err := l.Acquire(with(reentrant, func(a *Ask) { a.Try = true }))
			if err != nil {
				t.Fatal(err)
			}
			wantEffects(t, l, Peek)
			l.Peeked(try, lock.Status{Holders: c.holder(h)}, nil)
			if ready(try) != c.refused || c.refused && !errors.Is(try.Err, lock.ErrHeld) {
				t.Errorf("answered %v with %v", ready(try), try.Err)
			}
			l.Answered(h, h.ID(), lease, lock.Grant{}, nil)
			if !ready(leader) || leader.Err != nil || !c.refused && (!ready(try) || try.Err != nil || try.Grant.Count != 2) {
				t.Errorf("leader %+v, try %+v %v", leader.Grant, try.Grant, try.Err)
			}
		})
	}
	t.Run("granted meanwhile", func(t *testing.T) {
		l := open()
		_, h := wait(t, l, &reentrant)
		_, try, _ := l.Acquire(with(reentrant, func(a *Ask) { a.Try = true }))
		l.Answered(h, h.ID(), lease, lock.Grant{}, nil)
		l.Peeked(try, lock.Status{Holders: []lock.Holding{{ID: "other"}}}, nil)
		if try.Err != nil {
			t.Errorf("answered with %v", try.Err)
		}
	})
}

// TestOneRequestAtATime: what comes while the store is asked about an id follows.
func TestOneRequestAtATime(t *testing.T) {
	t.Run("give up while acquiring", func(t *testing.T) {
		l := open()
		c, h := wait(t, l, &plain)
		l.Gone(c, context.Canceled)
		f := c.Farewell()
		if f == nil || !ready(c) {
			t.Error("nobody tells the caller who holds the lock")
		}
		wantEffects(t, l, Stop) // and no release
		l.Answered(h, h.ID(), lease, lock.Grant{}, nil)
		wantEffects(t, l, Clean)
		<-f.Done
	})
	t.Run("release during a downgrade", func(t *testing.T) {
		l := open()
		g := get(t, l, &plain)
		d := l.Downgrade(g.LockID)
		r := l.Release(g.LockID, "")
		if d.Hold == nil || r.Hold != nil || r.Wait == nil {
			t.Fatalf("downgrade %+v, release %+v", d, r)
		}
		l.Effects()
		if _, err := l.Downgraded(d.Hold, true, nil); !errors.Is(err, lock.ErrNotHolder) {
			t.Errorf("Downgraded = %v", err)
		}
		for _, e := range l.Effects() {
			if e.Kind == Clean {
				e.Done()
			}
		}
		<-r.Wait
		if left, err := r.Reply(); left != 0 || err != nil {
			t.Errorf("release = %d, %v", left, err)
		}
	})
	t.Run("two downgrades", func(t *testing.T) {
		l := open()
		g := get(t, l, &plain)
		d := l.Downgrade(g.LockID)
		second := l.Downgrade(g.LockID)
		if second.Hold != nil || second.Wait == nil {
			t.Fatalf("second downgrade %+v", second)
		}
		if _, err := l.Downgraded(d.Hold, true, nil); err != nil {
			t.Error(err)
		}
		<-second.Wait
		if d := l.Downgrade(g.LockID); d.Hold != nil || d.Err != nil || d.Grant.Mode != lock.Shared {
			t.Errorf("third downgrade %+v", d)
		}
	})
	t.Run("the end of the session during a downgrade", func(t *testing.T) {
		l := open()
		g := get(t, l, &plain)
		d := l.Downgrade(g.LockID)
		l.Close()
		wantEffects(t, l, End)
		_, _ = l.Downgraded(d.Hold, true, nil)
		wantEffects(t, l, Clean)
	})
	t.Run("loss during a downgrade, then release", func(t *testing.T) {
		l := open()
		g := get(t, l, &plain)
		d := l.Downgrade(g.LockID)
		l.News(lock.Event{Kind: lock.Revoked, ID: g.LockID, Until: time.Second})
		wantEffects(t, l, Tell)
		if r := l.Release(g.LockID, ""); !errors.Is(r.Err, ErrLost) {
			t.Errorf("release %+v", r)
		}
		wantEffects(t, l)
		_, _ = l.Downgraded(d.Hold, true, nil)
		wantEffects(t, l, Clean)
	})
}

// TestAskedAgain: a lease ends while its driver still has the request. The next
// lease is asked under another id at once, and the old answer is worth nothing.
func TestAskedAgain(t *testing.T) {
	l := open()
	c, h := wait(t, l, &plain)
	old := h.ID()
	l.LeaseOver(lease, LeaseExpired, Moment{Now: time.Second})
	wantEffects(t, l, Stop, Request)
	if h.ID() == old {
		t.Error("asked under the same id")
	}
	if _, _, ok := l.Asked(h, old, "lease 2", nil); ok {
		t.Error("the old id may be asked for")
	}
	l.Answered(h, old, lease, lock.Grant{}, nil)
	wantEffects(t, l, Clean)
	if ready(c) {
		t.Error("answered with the grant of a lease that is over")
	}
	l.Asked(h, h.ID(), "lease 2", stopper(func() {}))
	l.Look(at(2 * time.Second))
	l.Answered(h, h.ID(), "lease 2", lock.Grant{}, nil)
	if !ready(c) || c.Err != nil || c.Grant.Until != 11*time.Second {
		t.Errorf("grant %+v, %v", c.Grant, c.Err)
	}
}

// TestRefuse: no wait of a session that is to end is granted, and its holds stay.
func TestRefuse(t *testing.T) {
	l := open()
	g := get(t, l, &plain)
	c, _ := wait(t, l, with(plain, func(a *Ask) { a.Resource = "x" }))
	l.Refuse()
	if !ready(c) || !errors.Is(c.Err, ErrClosed) || !l.Lives(g.LockID) {
		t.Errorf("wait: %v; the hold lives: %v", c.Err, l.Lives(g.LockID))
	}
	if _, _, err := l.Acquire(&plain); !errors.Is(err, ErrClosed) {
		t.Errorf("Acquire = %v", err)
	}
}

func TestDues(t *testing.T) {
	var d dues
	var all []*due
	for _, at := range []time.Duration{5, 3, 8, 1, 9, 2, 7} {
		x := &due{}
		all = append(all, x)
		d.set(x, at)
	}
	d.set(all[0], 0)
	d.remove(all[3])
	d.remove(all[3])
	var got []time.Duration
	for x := d.first(); x != nil; x = d.first() {
		got = append(got, x.at)
		d.remove(x)
	}
	if fmt.Sprint(got) != "[0s 2ns 3ns 7ns 8ns 9ns]" {
		t.Errorf("order %v", got)
	}
}

// TestATimeIsOver: a call is answered at its time, and the hold is given up when
// nobody waits for it any more.
func TestATimeIsOver(t *testing.T) {
	l := open()
	brief, h := wait(t, l, with(reentrant, func(a *Ask) { a.Wait = time.Second }))
	long, _ := wait(t, l, with(reentrant, func(a *Ask) { a.Wait = 2 * time.Second }))
	if l.Next() != time.Second {
		t.Errorf("next look at %v", l.Next())
	}
	l.Look(at(time.Second))
	if !ready(brief) || !errors.Is(brief.Err, ErrOver) || brief.Farewell() != nil || ready(long) {
		t.Errorf("after a second: %v %v, %v", ready(brief), brief.Err, ready(long))
	}
	wantEffects(t, l)
	l.Look(at(2 * time.Second))
	if !ready(long) || !errors.Is(long.Err, ErrOver) || long.Farewell() == nil || l.Next() != 0 {
		t.Errorf("after two seconds: %v %v, next %v", ready(long), long.Err, l.Next())
	}
	wantEffects(t, l, Stop)
	held := &lock.HeldError{Cause: context.Canceled}
	l.Answered(h, h.ID(), lease, lock.Grant{}, held)
	<-long.Farewell().Done
	if !errors.Is(long.Farewell().Err, held) {
		t.Errorf("farewell %v", long.Farewell().Err)
	}
	wantEffects(t, l)
}

// TestCancelBeforeItsRequest: the request is refused when it comes.
func TestCancelBeforeItsRequest(t *testing.T) {
	l := open()
	l.Cancel("1")
	if _, _, err := l.Acquire(with(plain, func(a *Ask) { a.RequestID = "1" })); !errors.Is(err, context.Canceled) {
		t.Errorf("Acquire = %v", err)
	}
	for i := range MaxCancelled {
		l.Cancel(fmt.Sprint("more", i))
	}
	if len(l.cancelled.known) != MaxCancelled {
		t.Errorf("%d ids are remembered", len(l.cancelled.known))
	}
	get(t, l, with(plain, func(a *Ask) { a.RequestID = "1" }))
}
