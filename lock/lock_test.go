package lock

import (
	"context"
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
)

func TestMode(t *testing.T) {
	for m, want := range map[Mode]string{
		Exclusive: "EXCLUSIVE", Shared: "SHARED", Permits(1): "PERMIT", Permits(MaxPermits): "PERMIT",
		0: "Mode(0)", Permits(MaxPermits) + 1: "Mode(1027)",
	} {
		if m.String() != want || m.Valid() == strings.HasPrefix(want, "Mode") {
			t.Errorf("%d: %s, valid %v", uint16(m), m, m.Valid())
		}
	}
	for m, want := range map[Mode]int{0: 0, Exclusive: 0, Shared: 0, Permits(1): 1, Permits(MaxPermits): MaxPermits} {
		if m.Limit() != want {
			t.Errorf("%s: limit %d, want %d", m, m.Limit(), want)
		}
	}
	for _, c := range []struct {
		a, b Mode
		want bool
	}{
		{Exclusive, Exclusive, true}, {Exclusive, Shared, true}, {Shared, Shared, false},
		{Permits(4), Permits(4), false}, {Permits(4), Permits(5), true}, {Permits(1), Exclusive, true}, {Shared, Permits(1), true},
	} {
		if c.a.Excludes(c.b) != c.want || c.b.Excludes(c.a) != c.want {
			t.Errorf("%s and %s: %v", c.a, c.b, c.a.Excludes(c.b))
		}
	}
}

func TestPermitFence(t *testing.T) {
	for _, slot := range []int{0, 1, MaxPermits - 1} {
		f := PermitFence(7, slot)
		if f.Slot() != slot || f < FenceOf(7) || f >= FenceOf(8) {
			t.Errorf("slot %d: fence %d, slot %d", slot, f, f.Slot())
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
	ids := map[string]bool{}
	for range 10 {
		ids[string(NewHoldID())], ids[string(NewLeaseID())] = true, true
	}
	if len(ids) != 20 {
		t.Errorf("%d ids are different of 20", len(ids))
	}
	for id := range ids {
		if len(id) != 32 || strings.Trim(id, "0123456789abcdef") != "" {
			t.Errorf("%q, want 32 hex digits", id)
		}
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
	err = &HeldError{Cause: ErrHeld, Status: Status{Resource: "r", Holders: []Holding{{Mode: Shared, Sidecar: "node-1", Parked: true}}}}
	if want := `acquire "r": the lock is held (parked at node-1, free on request)`; err.Error() != want {
		t.Errorf("got %q, want %q", err, want)
	}
	err = &HeldError{Cause: ErrHeld, Status: Status{Resource: "r", Holders: []Holding{{Mode: Exclusive, Sidecar: "node-1", Owner: Owner{PID: 7}, Kept: 1500 * time.Millisecond}}}}
	if want := `acquire "r": the lock is held (kept for another 1.5s after EXCLUSIVE of pid 7 on node-1)`; err.Error() != want {
		t.Errorf("got %q, want %q", err, want)
	}
	err = &HeldError{Cause: ErrHeld, Status: Status{Resource: "r"}} // by whom is unknown
	if want := `acquire "r": the lock is held`; err.Error() != want {
		t.Errorf("got %q, want %q", err, want)
	}
}

func TestErrorsWithDetails(t *testing.T) {
	for _, c := range []struct {
		err     error
		is, not error
		text    string
	}{
		{&LimitError{Limit: "holds", Max: 3}, ErrLimit, ErrInvalid, "limit reached: at most 3 holds"},
		{&InvalidError{Field: "ttl", Problem: "is negative"}, ErrInvalid, ErrLimit, "ttl is negative"},
		{&UnsupportedError{Problem: "no permits"}, ErrUnsupported, ErrInvalid, "no permits"},
	} {
		if !errors.Is(c.err, c.is) || errors.Is(c.err, c.not) || c.err.Error() != c.text {
			t.Errorf("%v: is %v: %v, is %v: %v", c.err, c.is, errors.Is(c.err, c.is), c.not, errors.Is(c.err, c.not))
		}
	}
}

// What documents and stores rest on.
func TestNumbers(t *testing.T) {
	if MinTTL != 500*time.Millisecond || MaxTTL != 10*time.Minute || MaxPage != 1000 || MaxResourceBytes != 512 {
		t.Errorf("TTL %v to %v, pages of %d, names of %d", MinTTL, MaxTTL, MaxPage, MaxResourceBytes)
	}
	if FenceOf(3) != 3072 || FenceRange != 1024 {
		t.Errorf("fence of 3: %d, range %d", FenceOf(3), FenceRange)
	}
}

func TestGoTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		clock := GoTime()
		time.Sleep(time.Minute)
		if now := clock(); now != time.Minute {
			t.Errorf("%v after a minute", now)
		}
	})
}

func TestBootTime(t *testing.T) {
	a := BootTime()
	if b := BootTime(); a <= 0 || b < a {
		t.Errorf("%s and then %s", a, b)
	}
}

func TestMost(t *testing.T) {
	for limit, want := range map[int]int{-1: MaxPage, 0: MaxPage, 1: 1, MaxPage: MaxPage, MaxPage + 1: MaxPage} {
		if n := (Page{Limit: limit}).Most(); n != want {
			t.Errorf("a page with the limit %d has %d resources, want %d", limit, n, want)
		}
	}
}
