package localapi

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	statuspb "google.golang.org/genproto/googleapis/rpc/status"
	"google.golang.org/grpc/codes"

	"github.com/locksidecar/locksidecar/lock"
	"github.com/locksidecar/locksidecar/session"
	"github.com/locksidecar/locksidecar/waitfor"
)

// Who is refused because of a hold that no app has is told so, and not of a pid 0.
func TestErrorOfWhatIsParked(t *testing.T) {
	st := toStatus(&lock.HeldError{Cause: lock.ErrHeld, Status: lock.Status{Resource: "r", Holders: []lock.Holding{{Mode: lock.Shared, Sidecar: "pod", Parked: true}}}})
	if want := `the lock on "r" is not free: parked at pod, free on request`; st.GetMessage() != want {
		t.Errorf("got %q, want %q", st.GetMessage(), want)
	}
}

func TestErrors(t *testing.T) {
	const secret = "dial tcp 10.0.0.1:6379"
	busy := lock.Status{Resource: "r", Holders: []lock.Holding{{
		Mode: lock.Shared, Fence: 70, Age: 1500 * time.Millisecond, Sidecar: "pod",
		Owner: lock.Owner{PID: 12, UID: 34, Session: "job"},
	}}}
	holder := map[string]string{
		"resource": "r", "holder_mode": "SHARED", "holder_fence": "70", "holder_age": "1.5s",
		"holder_sidecar": "pod", "holder_pid": "12", "holder_uid": "34", "holder_session": "job",
	}
	with := func(k, v string) map[string]string {
		m := map[string]string{k: v}
		for k, v := range holder {
			m[k] = v
		}
		return m
	}
	for name, x := range map[string]struct {
		err      error
		reason   reason
		code     codes.Code
		http     int
		metadata map[string]string
	}{
		"held":                {&lock.HeldError{Cause: lock.ErrHeld, Status: busy}, reasonHeld, codes.Aborted, 409, holder},
		"held, nothing known": {&lock.HeldError{Cause: lock.ErrHeld, Status: lock.Status{Resource: "r"}}, reasonHeld, codes.Aborted, 409, map[string]string{"resource": "r"}},
		"waited":              {&lock.HeldError{Cause: context.DeadlineExceeded, Status: busy, Position: 3}, reasonTimeout, codes.DeadlineExceeded, 504, with("position", "3")},
		"gave up":             {&lock.HeldError{Cause: context.Canceled, Status: busy, Position: 1}, reasonCancelled, codes.Canceled, 499, with("position", "1")},
		"lost":                {&session.LostError{Lost: session.Lost{LockID: "id", Resource: "r", Fence: 90, Reason: session.Forced}}, reasonLost, codes.FailedPrecondition, 410, map[string]string{"resource": "r", "lock_id": "id", "fence": "90", "lost_reason": "FORCED"}},
		"no session":          {session.ErrSessionNotFound, reasonNoSession, codes.NotFound, 404, nil},
		"session ended":       {session.ErrSessionClosed, reasonNoSession, codes.NotFound, 404, nil},
		"not holder":          {fmt.Errorf("release: %w", lock.ErrNotHolder), reasonNotHolder, codes.FailedPrecondition, 412, nil},
		"upgrade":             {session.ErrUpgradeRefused, reasonUpgrade, codes.FailedPrecondition, 412, nil},
		"deadlock":            {&session.DeadlockError{Resource: "r", Cycle: make(waitfor.Cycle, 2)}, reasonDeadlock, codes.Aborted, 409, map[string]string{"resource": "r", "cycle_length": "2"}},
		"store":               {fmt.Errorf("acquire: %w: %s", lock.ErrUnavailable, secret), reasonUnavailable, codes.Unavailable, 503, nil},
		"store, too late":     {fmt.Errorf("%w: %w", lock.ErrUnavailable, &lock.HeldError{Cause: context.DeadlineExceeded}), reasonUnavailable, codes.Unavailable, 503, nil},
		"lease":               {lock.ErrLeaseLost, reasonUnavailable, codes.Unavailable, 503, nil},
		"no permits":          {&lock.UnsupportedError{Problem: "this store has no permits: why"}, reasonUnsupported, codes.Unimplemented, 501, nil},
		"unsupported":         {fmt.Errorf("once: %w", lock.ErrUnsupported), reasonUnsupported, codes.Unimplemented, 501, nil},
		"limit":               {&session.LimitError{Limit: "holds", Max: 5}, reasonLimit, codes.ResourceExhausted, 429, map[string]string{"limit": "holds", "max": "5"}},
		"invalid":             {&lock.InvalidError{Field: "wait", Problem: "is odd"}, reasonInvalid, codes.InvalidArgument, 400, map[string]string{"field": "wait"}},
		"permission":          {refuse(reasonPermission, "no"), reasonPermission, codes.PermissionDenied, 403, nil},
		"draining":            {session.ErrDraining, reasonDraining, codes.Unavailable, 503, nil},
		"cancelled":           {context.Canceled, reasonCancelled, codes.Canceled, 499, nil},
		"deadline":            {context.DeadlineExceeded, reasonTimeout, codes.DeadlineExceeded, 504, nil},
		"unknown":             {errors.New(secret), reasonInternal, codes.Internal, 500, nil},
	} {
		t.Run(name, func(t *testing.T) {
			st := toStatus(x.err)
			info := infoOf(t, st)
			if reason(info.GetReason()) != x.reason || codes.Code(st.GetCode()) != x.code || httpCode(st) != x.http {
				t.Errorf("%v, HTTP %d", st, httpCode(st))
			}
			if d := cmp.Diff(x.metadata, info.GetMetadata()); d != "" {
				t.Error(d)
			}
			if st.GetMessage() == "" || strings.Contains(st.GetMessage(), secret) {
				t.Errorf("message %q", st.GetMessage())
			}
		})
	}
}

// TestWordsOfErrors: what people read.
func TestWordsOfErrors(t *testing.T) {
	holder := lock.Holding{Mode: lock.Shared, Age: 1234567 * time.Microsecond, Sidecar: "pod", Owner: lock.Owner{PID: 12, Session: "job"}}
	nameless := holder
	nameless.Owner.Session = ""
	busy := lock.Status{Resource: "r", Holders: []lock.Holding{holder, nameless}}
	kept := holder
	kept.Kept = 2500 * time.Millisecond
	if got := infoOf(t, toStatus(&lock.HeldError{Cause: lock.ErrHeld, Status: lock.Status{Holders: []lock.Holding{kept}}})).GetMetadata()["holder_kept_for"]; got != "2.5s" {
		t.Errorf("what is kept for 2.5s is told of as %q", got)
	}
	for want, err := range map[string]error{
		`the lock on "r" is not free`: &lock.HeldError{Cause: lock.ErrHeld, Status: lock.Status{Resource: "r"}},
		`the lock on "r" is not free: held SHARED by pid 12 (job) on pod for 1.235s`:                                 &lock.HeldError{Cause: lock.ErrHeld, Status: busy},
		`the lock on "r" is not free: held SHARED by pid 12 on pod for 1.235s`:                                       &lock.HeldError{Cause: lock.ErrHeld, Status: lock.Status{Resource: "r", Holders: []lock.Holding{nameless}}},
		`the wait for the lock on "r" is over: held SHARED by pid 12 (job) on pod for 1.235s; place 1 in the queue`:  &lock.HeldError{Cause: context.DeadlineExceeded, Status: busy, Position: 1},
		`the wait for the lock on "r" was cancelled; place 2 in the queue`:                                           &lock.HeldError{Cause: context.Canceled, Status: lock.Status{Resource: "r"}, Position: 2},
		`the lock on "r" is lost: ` + session.Forced.Explain():                                                       &session.LostError{Lost: session.Lost{Resource: "r", Reason: session.Forced}},
		`the lock on "r" is not free: kept for another 2.5s by min_hold of pid 12 (job) on pod, which had it SHARED`: &lock.HeldError{Cause: lock.ErrHeld, Status: lock.Status{Resource: "r", Holders: []lock.Holding{kept}}},
		"the stream was ended because the client did not read its answers":                                           errStalled,
		"the call was cancelled": errGone,
	} {
		if got := toStatus(err).GetMessage(); got != want {
			t.Errorf("%q, want %q", got, want)
		}
	}
	for age, want := range map[time.Duration]string{0: "0s", time.Millisecond: "0.001s", 1500 * time.Millisecond: "1.5s", time.Hour: "3600s"} {
		st := lock.Status{Resource: "r", Holders: []lock.Holding{{Age: age}}}
		if got := infoOf(t, toStatus(&lock.HeldError{Cause: lock.ErrHeld, Status: st})).GetMetadata()["holder_age"]; got != want {
			t.Errorf("an age of %s is %q", age, got)
		}
	}
	if code := httpCode(&statuspb.Status{}); code != 500 {
		t.Errorf("an error without a reason is HTTP's %d", code)
	}
	if _, has := infoOf(t, toStatus(&lock.HeldError{Cause: lock.ErrHeld, Status: busy})).GetMetadata()["position"]; has {
		t.Error("who does not wait has a position")
	}
}
