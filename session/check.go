package session

import (
	"fmt"
	"math"
	"time"
	"unicode/utf8"

	"github.com/locksidecar/locksidecar/lock"
	"github.com/locksidecar/locksidecar/session/ledger"
)

// What apps may ask for, as the API says it.
const (
	minSessionTTL = 100 * time.Millisecond
	maxSessionTTL = time.Hour
	minMaxHold    = 100 * time.Millisecond
	maxMaxHold    = 24 * time.Hour
	minMinHold    = 100 * time.Millisecond
	maxWait       = 24 * time.Hour
	maxLabel      = 128  // bytes of a request id, an owner label or a session name
	maxMetadata   = 1024 // bytes of all keys and values
	maxGrace      = time.Minute
)

func invalid(field, problem string, args ...any) error {
	return &lock.InvalidError{Field: field, Problem: fmt.Sprintf(problem, args...)}
}

func checkOptions(o Options) error {
	switch {
	case o.Backend == nil:
		return invalid("backend", "is missing")
	case o.TTL < lock.MinTTL || o.TTL > lock.MaxTTL:
		return invalid("ttl", "is %v, must be %v to %v", o.TTL, lock.MinTTL, lock.MaxTTL)
	case o.Deadlock > IgnoreDeadlocks:
		return invalid("deadlock", "is not one of break, report, off")
	case o.LostGrace < 0:
		return invalid("lost_grace", "is negative")
	case min(o.Limits.Sessions, o.Limits.HoldsPerSession, o.Limits.WaitersPerSession, o.Limits.InFlight, o.Limits.of(OfPrincipal).least(), o.Limits.PerAccount.least(), o.Limits.PerSpace.least()) < 0:
		return invalid("limits", "must not be negative")
	}
	if o.Namespace == "" {
		return nil
	}
	return checkBefore("namespace", o.Namespace)
}

func checkOpen(r OpenRequest) error {
	switch r.Liveness {
	case Stream:
	case Process:
		if r.Peer.Gone == nil {
			return invalid("liveness", "PROCESS is not possible: the end of the calling process cannot be seen from here")
		}
	case TTL:
		if r.TTL == 0 {
			return invalid("ttl", "is needed for liveness TTL")
		}
	default:
		return invalid("liveness", "is not one of STREAM, PROCESS, TTL")
	}
	if r.TTL != 0 && (r.TTL < minSessionTTL || r.TTL > maxSessionTTL) {
		return invalid("ttl", "is %v, must be %v to %v", r.TTL, minSessionTTL, maxSessionTTL)
	}
	if err := checkLabel("name", r.Name); err != nil {
		return err
	}
	n := 0
	for k, v := range r.Metadata {
		if !utf8.ValidString(k) || !utf8.ValidString(v) {
			return invalid("metadata", "is not valid UTF-8")
		}
		n += len(k) + len(v)
	}
	if n > maxMetadata {
		return invalid("metadata", "is %d bytes long, at most %d are allowed", n, maxMetadata)
	}
	return nil
}

func checkLabel(field, s string) error {
	switch {
	case len(s) > maxLabel:
		return invalid(field, "is %d bytes long, at most %d are allowed", len(s), maxLabel)
	case !utf8.ValidString(s):
		return invalid(field, "is not valid UTF-8")
	}
	return nil
}

// checkAcquire returns the resource as it is named in the store, or several.
func (sp *Space) checkAcquire(r *AcquireRequest) (lock.Resource, []ledger.Part, error) {
	if err := checkFields(r); err != nil {
		return "", nil, err
	}
	if err := sp.checkOnce(r); err != nil {
		return "", nil, err
	}
	parts, err := sp.checkParts(r)
	if err != nil || parts != nil {
		return "", parts, err
	}
	res, err := sp.inStore(r.Resource)
	return res, nil, err
}

func checkFields(r *AcquireRequest) error {
	switch {
	case !r.Mode.Valid():
		return invalid("mode", "is not one of EXCLUSIVE, SHARED, PERMIT")
	case r.Mode.Limit() > 0 && (r.Reentrant || len(r.Resources) > 0 || r.Once != nil):
		return invalid("limit", "needs one resource, not reentrant and without once")
	case r.Wait != Forever && (r.Wait < 0 || r.Wait > maxWait):
		return invalid("wait", "is %v, must be 0 to %v", r.Wait, maxWait)
	}
	if r.MaxHold != 0 {
		if err := checkMaxHold(r.MaxHold); err != nil {
			return err
		}
	}
	if r.Detachable && (r.Reentrant || len(r.Resources) > 0 || r.Once != nil || r.MinHold != 0) {
		return invalid("detachable", "needs one resource, not reentrant, and without once and min_hold")
	}
	if r.MinHold != 0 {
		if err := checkMinHold(r); err != nil {
			return err
		}
	}
	if err := checkLabel("request_id", r.RequestID); err != nil {
		return err
	}
	return checkLabel("owner", r.Owner)
}

func checkMinHold(r *AcquireRequest) error {
	switch {
	case r.MinHold < minMinHold || r.MinHold > lock.MaxMinHold:
		return invalid("min_hold", "is %v, must be %v to %v", r.MinHold, minMinHold, lock.MaxMinHold)
	case r.MaxHold != 0 && r.MinHold > r.MaxHold:
		return invalid("min_hold", "is %v, longer than max_hold, %v", r.MinHold, r.MaxHold)
	case len(r.Resources) > 0: // those that were taken before the last would be kept though nobody had them
		return invalid("min_hold", "needs one resource")
	default:
		return nil
	}
}

func checkMaxHold(d time.Duration) error {
	if d < minMaxHold || d > maxMaxHold {
		return invalid("max_hold", "is %v, must be %v to %v", d, minMaxHold, maxMaxHold)
	}
	return nil
}

func (sp *Space) checkOnce(r *AcquireRequest) error {
	switch w := r.Once; {
	case w == nil:
		return nil
	case sp.m.records == nil:
		return fmt.Errorf("once: %w", lock.ErrUnsupported)
	case r.Mode != lock.Exclusive || r.Reentrant || len(r.Resources) > 0:
		return invalid("once", "needs mode EXCLUSIVE and one resource, and not reentrant")
	case w.Keep < lock.MinKeep || w.Keep > lock.MaxKeep:
		return invalid("once.keep", "is %v, must be %v to %v", w.Keep, lock.MinKeep, lock.MaxKeep)
	case w.MaxAttempts < 0 || w.MaxAttempts > math.MaxInt32:
		return invalid("once.max_attempts", "is %d, must be 0 to %d", w.MaxAttempts, math.MaxInt32)
	default:
		return nil
	}
}

// nameIn is the name from an app at the end of that in the store, and shares its bytes.
func nameIn(res lock.Resource, name string) string { return string(res[len(res)-len(name):]) }
