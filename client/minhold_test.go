package client_test

import (
	"errors"
	"testing"
	"time"

	"github.com/locksidecar/locksidecar/client"
)

// TestMinHold: others are kept out after the release, and KeptFor says for how long.
func TestMinHold(t *testing.T) {
	s := start(t).open(t, client.SessionOptions{})
	l := acquire(t, s, "r", client.AcquireOptions{MinHold: time.Hour})
	if d := l.KeptFor(); d != 0 {
		t.Errorf("before its release it is kept for %s", d)
	}
	if err := l.Release(t.Context()); err != nil {
		t.Fatal(err)
	}
	if d := l.KeptFor(); d <= 0 || d > time.Hour {
		t.Errorf("after its release it is kept for %s", d)
	}
	if _, err := s.Acquire(t.Context(), "r", client.AcquireOptions{Wait: client.NoWait}); !errors.Is(err, client.ErrLockHeld) {
		t.Errorf("a try of what is kept: %v", err)
	}
	other := acquire(t, s, "other", client.AcquireOptions{})
	if err := other.Release(t.Context()); err != nil || other.KeptFor() != 0 {
		t.Errorf("what has no MinHold is kept for %s, %v", other.KeptFor(), err)
	}
	for _, o := range []client.AcquireOptions{{MinHold: -1}, {MinHold: time.Hour, MaxHold: time.Minute}} {
		if _, err := s.Acquire(t.Context(), "wrong", o); !errors.Is(err, client.ErrInvalidRequest) {
			t.Errorf("%+v: %v", o, err)
		}
	}
}
