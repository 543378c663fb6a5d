package client_test

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/locksidecar/locksidecar/client"
	"github.com/locksidecar/locksidecar/session"
)

// What succeeded is not done again, and who tries is told what became of it.
func TestOnce(t *testing.T) {
	s := start(t)
	c := s.dial(t)
	x := s.open(t, client.SessionOptions{Name: "billing", Metadata: map[string]string{"job": "7"}})
	o := client.AcquireOptions{Wait: client.NoWait, Owner: "t-1", Once: &client.Once{Keep: time.Hour, MaxAttempts: 3}}
	first := acquire(t, x, "w/1", o)
	if first.Attempt != 1 || first.Previous != nil || first.OutcomeGuard != nil {
		t.Errorf("first: %+v", first)
	}
	if err := first.Conclude(t.Context(), client.Unknown, ""); !errors.Is(err, client.ErrInvalidRequest) || first.Err() != nil {
		t.Errorf("unknown: %v, %v", err, first.Err())
	}
	if err := first.Conclude(t.Context(), client.Failed, "the gateway is away"); err != nil {
		t.Fatal(err)
	}
	if first.Count() != 0 || !errors.Is(first.Err(), client.ErrReleased) {
		t.Errorf("after Conclude: %d, %v", first.Count(), first.Err())
	}
	if err := first.Conclude(t.Context(), client.Failed, ""); err != nil {
		t.Errorf("again: %v", err)
	}
	second := acquire(t, x, "w/1", o)
	if p := second.Previous; second.Attempt != 2 || p.GetState() != client.Failed || p.GetNote() != "the gateway is away" ||
		p.GetSession() != "billing" || p.GetOwner() != "t-1" || p.GetMetadata()["job"] != "7" || p.GetLockId() != first.ID || p.GetFence() != first.Fence {
		t.Errorf("second: attempt %d after %v", second.Attempt, p)
	}
	if _, err := c.ResetOutcome(t.Context(), "w/1"); !errors.Is(err, client.ErrLockHeld) {
		t.Errorf("reset while it is held: %v", err)
	}
	if err := second.Conclude(t.Context(), client.Succeeded, "paid"); err != nil {
		t.Fatal(err)
	}
	_, err := x.Acquire(t.Context(), "w/1", o)
	found := client.OutcomeOf(err)
	if !errors.Is(err, client.ErrAlreadyDone) || found.GetState() != client.Succeeded || found.GetAttempt() != 2 || found.GetNote() != "paid" ||
		found.GetResource() != "w/1" || found.GetLockId() != second.ID || found.GetFence() != second.Fence || found.GetSession() != "billing" ||
		found.GetOwner() != "t-1" || found.GetPid() == 0 || time.Since(found.GetAt().AsTime()).Abs() > time.Minute {
		t.Errorf("%v: %v", err, found)
	}
	if client.OutcomeOf(context.Canceled) != nil {
		t.Error("an outcome of any error")
	}
	acquire(t, x, "w/2", o)
	for states, want := range map[string]string{"": "w/1 w/2", "UNKNOWN": "w/2", "UNKNOWN FAILED": "w/2", "FAILED": ""} {
		var names []string
		list := c.Outcomes(t.Context(), "w/")
		switch states {
		case "UNKNOWN":
			list = c.Outcomes(t.Context(), "w/", client.Unknown)
		case "UNKNOWN FAILED":
			list = c.Outcomes(t.Context(), "w/", client.Unknown, client.Failed)
		case "FAILED":
			list = c.Outcomes(t.Context(), "w/", client.Failed)
		}
		for o, err := range list {
			if err != nil {
				t.Fatal(err)
			}
			names = append(names, o.GetResource())
		}
		if got := strings.Join(names, " "); got != want {
			t.Errorf("%q: %s, want %s", states, got, want)
		}
	}
	if was, err := c.ResetOutcome(t.Context(), "w/1"); err != nil || was.GetState() != client.Succeeded {
		t.Errorf("reset: %v, %v", was, err)
	}
	if was, err := c.ResetOutcome(t.Context(), "w/1"); err != nil || was != nil {
		t.Errorf("reset again: %v, %v", was, err)
	}
	if l := acquire(t, x, "w/1", o); l.Attempt != 1 {
		t.Errorf("after reset: attempt %d", l.Attempt)
	}
}

// The last attempt is the last, and a lock that was lost can still be concluded.
func TestOnceLost(t *testing.T) {
	s := start(t, func(o *session.Options) { o.LostGrace = 10 * time.Millisecond })
	x := s.open(t, client.SessionOptions{})
	o := client.AcquireOptions{MaxHold: 100 * time.Millisecond, Once: &client.Once{MaxAttempts: 1}}
	l := acquire(t, x, "r", o)
	within(t, "lost", l.Lost())
	if err := l.Conclude(t.Context(), client.Failed, "late"); err != nil {
		t.Fatal(err)
	}
	if l.Count() != 0 || !errors.Is(l.Err(), client.ErrLockLost) {
		t.Errorf("after Conclude: %d, %v", l.Count(), l.Err())
	}
	_, err := x.Acquire(t.Context(), "r", o)
	if found := client.OutcomeOf(err); !errors.Is(err, client.ErrAttemptsExhausted) || found.GetNote() != "late" {
		t.Errorf("%v: %v", err, found)
	}
	lost := acquire(t, x, "two", client.AcquireOptions{MaxHold: 100 * time.Millisecond, Once: &client.Once{}})
	within(t, "lost", lost.Lost())
	y := s.open(t, client.SessionOptions{})
	next := acquire(t, y, "two", client.AcquireOptions{Once: &client.Once{}})
	if err := lost.Conclude(t.Context(), client.Succeeded, ""); !errors.Is(err, client.ErrLockLost) || lost.Count() != 0 {
		t.Errorf("too late: %v, count %d", err, lost.Count())
	}
	if err := next.Conclude(t.Context(), client.Succeeded, ""); err != nil {
		t.Error(err)
	}
	plain := acquire(t, x, "plain", client.AcquireOptions{})
	if err := plain.Conclude(t.Context(), client.Succeeded, ""); !errors.Is(err, client.ErrInvalidRequest) || plain.Err() != nil {
		t.Errorf("an ordinary lock: %v, %v", err, plain.Err())
	}
}
