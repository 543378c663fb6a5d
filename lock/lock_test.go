package lock

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

func TestMode(t *testing.T) {
	for m, want := range map[Mode]string{Exclusive: "EXCLUSIVE", Shared: "SHARED", 0: "Mode(0)", 3: "Mode(3)"} {
		if m.String() != want || m.Valid() != (m == Exclusive || m == Shared) {
			t.Errorf("%d: %s, valid %v", m, m, m.Valid())
		}
	}
}

func TestOwner(t *testing.T) {
	o := Owner{PID: 7, UID: 1, GID: 2, Session: "s", Label: "l", Metadata: map[string]string{"pod": "a\"b"}}
	if diff := cmp.Diff(o, DecodeOwner(o.Encode())); diff != "" {
		t.Error(diff)
	}
	if diff := cmp.Diff(Owner{}, DecodeOwner("written by another program")); diff != "" {
		t.Error(diff)
	}
}

func TestIDs(t *testing.T) {
	a, b := NewHoldID(), NewHoldID()
	if len(a) != 32 || a == b || strings.Trim(string(a), "0123456789abcdef") != "" {
		t.Errorf("%s and %s, want two different ids of 32 hex digits", a, b)
	}
}

func TestHeldError(t *testing.T) {
	err := error(&HeldError{Cause: context.DeadlineExceeded, Status: Status{
		Resource: "r", Holders: []Holding{{Mode: Shared, Age: 1500 * time.Millisecond, Sidecar: "node-1", Owner: Owner{PID: 7}}},
	}})
	if !errors.Is(err, context.DeadlineExceeded) || errors.Is(err, ErrHeld) {
		t.Errorf("%v is not its cause, and nothing else", err)
	}
	if want := `acquire "r": context deadline exceeded (held SHARED by pid 7 on node-1 for 1.5s)`; err.Error() != want {
		t.Errorf("got %q, want %q", err, want)
	}
}

func TestBootTime(t *testing.T) {
	a := BootTime()
	if b := BootTime(); a <= 0 || b < a {
		t.Errorf("%s and then %s", a, b)
	}
}
