package client_test

import (
	"errors"
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
