package localapi

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"time"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	statuspb "google.golang.org/genproto/googleapis/rpc/status"
	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/types/known/anypb"

	"github.com/locksidecar/locksidecar/lock"
	"github.com/locksidecar/locksidecar/session"
	"github.com/locksidecar/locksidecar/session/outcome"
)

// errorDomain is the domain of every google.rpc.ErrorInfo.
const errorDomain = "locksidecar"

// reason is the stable name of a kind of error.
type reason string

const (
	reasonHeld        reason = "LOCK_HELD"
	reasonTimeout     reason = "WAIT_TIMEOUT"
	reasonLost        reason = "LOCK_LOST"
	reasonNoSession   reason = "SESSION_NOT_FOUND"
	reasonNotHolder   reason = "NOT_HOLDER"
	reasonUpgrade     reason = "UPGRADE_REFUSED"
	reasonDone        reason = "ALREADY_DONE"
	reasonExhausted   reason = "ATTEMPTS_EXHAUSTED"
	reasonDeadlock    reason = "DEADLOCK"
	reasonUnavailable reason = "STORE_UNAVAILABLE"
	reasonUnsupported reason = "UNSUPPORTED"
	reasonLimit       reason = "LIMIT_EXCEEDED"
	reasonInvalid     reason = "INVALID_REQUEST"
	reasonPermission  reason = "PERMISSION_DENIED"
	reasonDraining    reason = "DRAINING"
	reasonCancelled   reason = "CANCELLED"
	reasonNoRoute     reason = "NO_SUCH_CALL"
	reasonInternal    reason = "INTERNAL"
)

// codeOf gives the gRPC code of each reason.
var codeOf = map[reason]codes.Code{
	reasonHeld:        codes.Aborted,
	reasonTimeout:     codes.DeadlineExceeded,
	reasonLost:        codes.FailedPrecondition,
	reasonNoSession:   codes.NotFound,
	reasonNotHolder:   codes.FailedPrecondition,
	reasonUpgrade:     codes.FailedPrecondition,
	reasonDone:        codes.AlreadyExists,
	reasonExhausted:   codes.FailedPrecondition,
	reasonDeadlock:    codes.Aborted,
	reasonUnavailable: codes.Unavailable,
	reasonUnsupported: codes.Unimplemented,
	reasonLimit:       codes.ResourceExhausted,
	reasonInvalid:     codes.InvalidArgument,
	reasonPermission:  codes.PermissionDenied,
	reasonDraining:    codes.Unavailable,
	reasonCancelled:   codes.Canceled,
	reasonNoRoute:     codes.Unimplemented,
	reasonInternal:    codes.Internal,
}

// statusClientClosedRequest is nginx's code for a client that gave up; net/http
// has no name for it.
const statusClientClosedRequest = 499

// httpOf gives the HTTP status of each reason.
var httpOf = map[reason]int{
	reasonHeld:        http.StatusConflict,
	reasonTimeout:     http.StatusGatewayTimeout,
	reasonLost:        http.StatusGone,
	reasonNoSession:   http.StatusNotFound,
	reasonNotHolder:   http.StatusPreconditionFailed,
	reasonUpgrade:     http.StatusPreconditionFailed,
	reasonDone:        http.StatusConflict,
	reasonExhausted:   http.StatusPreconditionFailed,
	reasonDeadlock:    http.StatusConflict,
	reasonUnavailable: http.StatusServiceUnavailable,
	reasonUnsupported: http.StatusNotImplemented,
	reasonLimit:       http.StatusTooManyRequests,
	reasonInvalid:     http.StatusBadRequest,
	reasonPermission:  http.StatusForbidden,
	reasonDraining:    http.StatusServiceUnavailable,
	reasonCancelled:   statusClientClosedRequest,
	reasonNoRoute:     http.StatusNotFound,
	reasonInternal:    http.StatusInternalServerError,
}

// apiError is an error as clients see it.
type apiError struct {
	reason   reason
	message  string
	metadata map[string]string
}

func (e *apiError) Error() string { return e.message }

// errGone: the client reads no more. Nobody gets the answer.
var errGone = errors.New("the client has gone")

// refuse makes the error of this package's own checks.
func refuse(r reason, format string, args ...any) error {
	return &apiError{reason: r, message: fmt.Sprintf(format, args...)}
}

// invalid refuses a field by its name in the API.
func invalid(field, format string, args ...any) error {
	return &lock.InvalidError{Field: field, Problem: fmt.Sprintf(format, args...)}
}

// toStatus is the one place where errors become API errors. What is not known
// here came from a driver or is a mistake of ours; its text stays inside.
func toStatus(err error) *statuspb.Status {
	e := explain(err)
	info, marshalErr := anypb.New(&errdetails.ErrorInfo{Reason: string(e.reason), Domain: errorDomain, Metadata: e.metadata})
	st := &statuspb.Status{Code: int32(codeOf[e.reason]), Message: e.message} //nolint:gosec // there are 17 codes
	if marshalErr == nil {                                                    // else a name of an app's choice is not UTF-8
		st.Details = []*anypb.Any{info}
	}
	return st
}

// httpCode gives the HTTP status of what toStatus gave.
func httpCode(st *statuspb.Status) int {
	for _, d := range st.GetDetails() {
		var info errdetails.ErrorInfo
		if d.UnmarshalTo(&info) == nil {
			return httpOf[reason(info.GetReason())]
		}
	}
	return http.StatusInternalServerError
}

func explain(err error) *apiError {
	var (
		api    *apiError
		held   *lock.HeldError
		lost   *session.LostError
		limit  *session.LimitError
		dead   *session.DeadlockError
		bad    *lock.InvalidError
		cannot *lock.UnsupportedError
		done   *outcome.RefusedError

		partial *lock.PartialError
	)
	switch {
	case errors.As(err, &api):
		return api
	case errors.Is(err, session.ErrDraining):
		return &apiError{reason: reasonDraining, message: "the sidecar is stopping and takes no new work"}
	case errors.As(err, &lost):
		return explainLost(lost.Lost)
	case errors.As(err, &done):
		return explainRefused(done)
	case errors.Is(err, session.ErrSessionClosed):
		return &apiError{reason: reasonNoSession, message: "the session has ended"}
	case errors.As(err, &partial):
		return &apiError{reason: reasonUnavailable, message: "these shards of the store do not answer, so the list would lack what they have (see partial): " + strings.Join(partial.Missing, ", ")}
	case errors.Is(err, lock.ErrUnavailable), errors.Is(err, lock.ErrLeaseLost):
		return &apiError{reason: reasonUnavailable, message: "the store is unavailable; see the sidecar's log and its /readyz"}
	case errors.As(err, &cannot):
		return &apiError{reason: reasonUnsupported, message: cannot.Error()}
	case errors.Is(err, lock.ErrUnsupported):
		return &apiError{reason: reasonUnsupported, message: "this store keeps no outcomes, so nothing can be done once on it"}
	case errors.As(err, &held):
		return explainHeld(held)
	case errors.Is(err, session.ErrSessionNotFound):
		return &apiError{reason: reasonNoSession, message: "there is no such session for this user: it was closed, " +
			"its keep-alives did not arrive in time, the process that opened it has ended, or it never existed"}
	case errors.Is(err, lock.ErrNotHolder):
		return &apiError{reason: reasonNotHolder, message: "the lock_id is not held: it was released or taken away before, " +
			"or it belongs to another session or resource"}
	case errors.Is(err, lock.ErrNoHandle):
		return &apiError{reason: reasonNotHolder, message: "the handle is of no detached hold: it was released, its time is over, " +
			"it was detached again under another handle, or it never was"}
	case errors.Is(err, session.ErrUpgradeRefused):
		return &apiError{reason: reasonUpgrade, message: "the owner holds the resource SHARED, which cannot be turned into EXCLUSIVE: release it first"}
	case errors.As(err, &dead):
		return &apiError{
			reason: reasonDeadlock, message: dead.Error(),
			metadata: map[string]string{"resource": dead.Resource, "cycle_length": strconv.Itoa(len(dead.Cycle))},
		}
	case errors.As(err, &limit):
		return &apiError{
			reason: reasonLimit, message: limit.Error(),
			metadata: map[string]string{"limit": limit.Limit, "max": strconv.Itoa(limit.Max)},
		}
	case errors.As(err, &bad):
		return &apiError{reason: reasonInvalid, message: bad.Error(), metadata: map[string]string{"field": bad.Field}}
	case errors.Is(err, errStalled):
		return &apiError{reason: reasonLimit, message: "the stream was ended because the client did not read its answers"}
	case errors.Is(err, context.Canceled), errors.Is(err, errGone):
		return &apiError{reason: reasonCancelled, message: "the call was cancelled"}
	case errors.Is(err, context.DeadlineExceeded):
		return &apiError{reason: reasonTimeout, message: "the deadline of the call has passed"}
	default:
		return &apiError{reason: reasonInternal, message: "internal error; see the sidecar's log"}
	}
}

// without gives the shards that a list lacks, where who asks takes it so; else the error stays.
func without(err error, partial bool) ([]string, error) {
	var lacks *lock.PartialError
	if partial && errors.As(err, &lacks) {
		return lacks.Missing, nil
	}
	return nil, err
}

func explainLost(l session.Lost) *apiError {
	return &apiError{
		reason:  reasonLost,
		message: fmt.Sprintf("the lock on %q is lost: %s", l.Resource, l.Reason.Explain()),
		metadata: map[string]string{
			"resource":    l.Resource,
			"lock_id":     string(l.LockID),
			"fence":       strconv.FormatInt(int64(l.Fence), 10),
			"lost_reason": l.Reason.String(),
		},
	}
}

func explainHeld(e *lock.HeldError) *apiError {
	resource := string(e.Status.Resource)
	a := &apiError{metadata: map[string]string{"resource": resource}}
	switch {
	case errors.Is(e.Cause, lock.ErrHeld):
		a.reason, a.message = reasonHeld, fmt.Sprintf("the lock on %q is not free", resource)
	case errors.Is(e.Cause, context.DeadlineExceeded):
		a.reason, a.message = reasonTimeout, fmt.Sprintf("the wait for the lock on %q is over", resource)
	default:
		a.reason, a.message = reasonCancelled, fmt.Sprintf("the wait for the lock on %q was cancelled", resource)
	}
	if len(e.Status.Holders) > 0 {
		h := e.Status.Holders[0]
		by := fmt.Sprintf("pid %d", h.Owner.PID)
		if h.Owner.Session != "" {
			by += fmt.Sprintf(" (%s)", h.Owner.Session)
		}
		switch {
		case h.Parked:
			a.message += fmt.Sprintf(": parked at %s, free on request", h.Sidecar)
		case h.Detached:
			a.message += fmt.Sprintf(": detached %s for another %s, last held by %s on %s", h.Mode, h.Kept.Round(time.Millisecond), by, h.Sidecar)
			a.metadata["holder_kept_for"] = secondsOf(h.Kept)
		case h.Kept > 0:
			a.message += fmt.Sprintf(": kept for another %s by min_hold of %s on %s, which had it %s", h.Kept.Round(time.Millisecond), by, h.Sidecar, h.Mode)
			a.metadata["holder_kept_for"] = secondsOf(h.Kept)
		default:
			a.message += fmt.Sprintf(": held %s by %s on %s for %s", h.Mode, by, h.Sidecar, h.Age.Round(time.Millisecond))
		}
		a.metadata["holder_mode"] = h.Mode.String()
		a.metadata["holder_pid"] = strconv.FormatInt(int64(h.Owner.PID), 10)
		a.metadata["holder_uid"] = strconv.FormatUint(uint64(h.Owner.UID), 10)
		if h.Owner.Principal != "" {
			a.metadata["holder_principal"] = h.Owner.Principal
		}
		a.metadata["holder_session"] = h.Owner.Session
		a.metadata["holder_sidecar"] = h.Sidecar
		a.metadata["holder_age"] = secondsOf(h.Age)
		a.metadata["holder_fence"] = strconv.FormatInt(int64(h.Fence), 10)
	}
	if e.Position > 0 {
		a.message += fmt.Sprintf("; place %d in the queue", e.Position)
		a.metadata["position"] = strconv.Itoa(e.Position)
	}
	return a
}

func secondsOf(d time.Duration) string {
	return strconv.FormatFloat(float64(d.Milliseconds())/1000, 'f', -1, 64) + "s"
}
