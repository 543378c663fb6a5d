package client_test

import (
	"context"
	"errors"
	"syscall"
	"testing"
	"time"

	"github.com/locksidecar/locksidecar/client"
)

// TestDetach: a lock that one session has detached another one attaches, whatever the first one does, and the one
// that had it attached before is told.
func TestDetach(t *testing.T) {
	side := start(t)
	s, other := side.open(t, client.SessionOptions{}), side.open(t, client.SessionOptions{})
	l := acquire(t, s, "r", client.AcquireOptions{Detachable: true})
	if _, err := l.Detach(t.Context(), time.Millisecond); !errors.Is(err, client.ErrInvalidRequest) || l.Err() != nil {
		t.Errorf("for too short a time: %v, and then %v", err, l.Err())
	}
	c, err := client.Dial(t.Context(), side.socket)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	d, err := l.Detach(t.Context(), time.Minute)
	if err != nil || d.GetFence() != l.Fence || d.GetResource() != "r" {
		t.Fatalf("Detach: %v, %v", d, err)
	}
	if err := l.Err(); !errors.Is(err, client.ErrReleased) {
		t.Errorf("after Detach: %v", err)
	}
	if err := l.Release(t.Context()); !errors.Is(err, client.ErrReleased) {
		t.Errorf("Release of what is detached: %v", err)
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	a, err := other.Attach(t.Context(), d.GetHandle())
	if err != nil || a.Fence != l.Fence || a.ID == l.ID || a.Resource != "r" {
		t.Fatalf("Attach: %+v, %v", a, err)
	}
	if left := a.ValidFor(); left <= 0 || left > time.Minute {
		t.Errorf("valid for %s", left)
	}
	third := side.open(t, client.SessionOptions{})
	b, err := third.Attach(t.Context(), d.GetHandle())
	if err != nil {
		t.Fatal(err)
	}
	<-a.Lost()
	var lost *client.LostError
	if !errors.As(a.Err(), &lost) || lost.Reason != "TAKEN_OVER" {
		t.Errorf("who had it is told %v", a.Err())
	}
	longer, err := c.ExtendHandle(t.Context(), d.GetHandle(), time.Hour)
	if err != nil || longer.GetValidFor().AsDuration() <= time.Minute {
		t.Errorf("ExtendHandle: %v, %v", longer, err)
	}
	if err := b.Release(t.Context()); err != nil {
		t.Fatal(err)
	}
	if _, err := third.Attach(t.Context(), d.GetHandle()); !errors.Is(err, client.ErrNotHolder) {
		t.Errorf("Attach of what is released: %v", err)
	}
	if _, err := third.Attach(t.Context(), ""); !errors.Is(err, client.ErrInvalidRequest) {
		t.Errorf("Attach without a handle: %v", err)
	}
	if err := c.ReleaseHandle(t.Context(), d.GetHandle()); !errors.Is(err, client.ErrNotHolder) {
		t.Errorf("ReleaseHandle of what is released: %v", err)
	}
}

// TestAttachedEnds: lease news do not move the end of a lock that is attached.
func TestAttachedEnds(t *testing.T) {
	side := start(t)
	s := side.open(t, client.SessionOptions{})
	d, err := acquire(t, s, "r", client.AcquireOptions{Detachable: true}).Detach(t.Context(), time.Second)
	if err != nil {
		t.Fatal(err)
	}
	a, err := s.Attach(t.Context(), d.GetHandle())
	if err != nil {
		t.Fatal(err)
	}
	<-a.Lost()
	var lost *client.LostError
	if !errors.As(a.Err(), &lost) || lost.Reason != "MAX_HOLD" {
		t.Errorf("at its end it is %v", a.Err())
	}
}

// TestAttachGivenUp: nobody waits for an attach any more. What it gets all the same is detached again, and is for the
// next one who has the handle, whether the grant crosses the cancel or was there before.
func TestAttachGivenUp(t *testing.T) {
	s, p := inProcess(t, client.SessionOptions{})
	for what, giveUp := range map[string]func(handle string){
		"at a frozen sidecar": func(handle string) {
			freeze(t, p)
			ctx, cancel := context.WithTimeout(t.Context(), 10*time.Millisecond)
			defer cancel()
			if _, err := s.Attach(ctx, handle); !errors.Is(err, context.DeadlineExceeded) {
				t.Errorf("at a frozen sidecar: %v", err)
			}
			if err := p.Signal(syscall.SIGCONT); err != nil {
				t.Fatal(err)
			}
		},
		"just granted": func(handle string) {
			if err := client.AttachUnseen(t.Context(), s, handle); err != nil {
				t.Fatal(err)
			}
		},
	} {
		l := acquire(t, s, what, client.AcquireOptions{Detachable: true})
		d, err := l.Detach(t.Context(), time.Hour)
		if err != nil {
			t.Fatal(err)
		}
		giveUp(d.GetHandle())
		if err := acquire(t, s, "other", client.AcquireOptions{}).Release(t.Context()); err != nil { // what was sent before is carried out
			t.Fatal(err)
		}
		if n := client.Locks(s); n != 0 {
			t.Errorf("%s: the session has %d locks", what, n)
		}
		if _, err := s.Acquire(t.Context(), what, client.AcquireOptions{Wait: client.NoWait}); !errors.Is(err, client.ErrLockHeld) {
			t.Errorf("%s: somebody else: %v", what, err)
		}
		again, err := s.Attach(t.Context(), d.GetHandle())
		if err != nil || again.Fence != l.Fence {
			t.Fatalf("%s: attach again: %+v, %v", what, again, err)
		}
		if err := again.Release(t.Context()); err != nil {
			t.Errorf("%s: release: %v", what, err)
		}
	}
}
