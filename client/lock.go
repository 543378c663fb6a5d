package client

import (
	"context"
	"fmt"
	"time"

	pb "github.com/locksidecar/locksidecar/api/locksidecar/v1"
)

// Lock is a hold. Its methods may be called at the same time by many goroutines.
type Lock struct {
	ID       string
	Resource string
	Fence    int64  // the fencing token: larger than that of every earlier EXCLUSIVE grant
	Guard    *Guard // nil where the store has none

	session *Session
	lost    chan struct{}

	// Guarded by session.mu.
	mode    pb.Mode
	count   int
	until   time.Duration // as the grant said
	limit   time.Duration // the end by MaxHold; 0: none
	problem *LostError
}

// Guard is one SQL statement for the app's own transaction on the database that
// is also the store, run just before the commit. One row: the lock is still the
// app's, commit. None: roll back. Until that transaction ends the store lets
// nobody in whom the lock keeps out, even when ValidFor is over.
type Guard struct {
	Dialect string   // "mysql" or "mariadb"
	SQL     string   // with a ? for each argument
	Args    []string // ASCII
}

// Reasons of a LostError beside those of the API (LEASE_EXPIRED, LEASE_LOST,
// FORCED, MAX_HOLD, SESSION_EXPIRED, STORE_LOST, STOPPING).
const (
	// LostSilence: nothing came from the sidecar for as long as the hold could be
	// relied on. It may be frozen.
	LostSilence = "SIDECAR_SILENT"
	// LostStream: the connection to the sidecar ended. It may have died.
	LostStream = "SIDECAR_GONE"
)

// LostError says that a hold is over though it was not released. It is never
// undone.
type LostError struct {
	Resource string
	LockID   string
	Fence    int64
	Reason   string
	Message  string

	graceEnd time.Duration
}

func (e *LostError) Error() string {
	return fmt.Sprintf("the lock on %q is lost: %s", e.Resource, e.Message)
}

// Unwrap gives ErrLockLost.
func (e *LostError) Unwrap() error { return ErrLockLost }

// GraceLeft is how long the sidecar still keeps others out, so that work can be
// stopped. Lock.Release ends that time at once. 0 when nothing is promised.
func (e *LostError) GraceLeft() time.Duration { return max(0, e.graceEnd-bootTime()) }

// Mode is Exclusive or Shared.
func (l *Lock) Mode() pb.Mode {
	l.session.mu.Lock()
	defer l.session.mu.Unlock()
	return l.mode
}

// Count is how many times the hold must be released; 0 when it was.
func (l *Lock) Count() int {
	l.session.mu.Lock()
	defer l.session.mu.Unlock()
	return l.count
}

// ValidFor is how long the hold may be relied on without further news from the
// sidecar. It is counted on this machine's boot-time clock from before the
// sidecar counted it, so it is never too long. 0 when the hold is lost.
func (l *Lock) ValidFor() time.Duration {
	l.session.mu.Lock()
	defer l.session.mu.Unlock()
	if l.problem != nil || l.count == 0 {
		return 0
	}
	left := l.end() - bootTime()
	if left > 0 {
		return left
	}
	if l.silentAt() <= bootTime() {
		l.session.lose(l, l.silence())
	}
	return 0
}

// Lost is closed when the hold is lost: the sidecar said so, it is not heard of
// any more (for ValidFor, by this process's own clock), or the stream ended. It
// is not closed by Release.
func (l *Lock) Lost() <-chan struct{} { return l.lost }

// Err is nil as long as the hold is not lost, and then a *LostError.
func (l *Lock) Err() error {
	l.session.mu.Lock()
	defer l.session.mu.Unlock()
	if l.problem == nil {
		return nil
	}
	return l.problem
}

// Release ends the hold, or one of its counts. Of a lost hold it ends the grace.
// ErrLockLost: it was lost. ErrNotHolder: it was released before.
func (l *Lock) Release(ctx context.Context) error {
	_, err := l.session.do(ctx, &call{release: l}, &pb.SessionRequest{Request: &pb.SessionRequest_Release{Release: &pb.ReleaseRequest{LockId: l.ID}}})
	if err != nil {
		return fmt.Errorf("release %q: %w", l.Resource, err)
	}
	return nil // the receiver has noted it
}

// Downgrade turns an Exclusive hold into a Shared one without letting go. Errors
// as for Release.
func (l *Lock) Downgrade(ctx context.Context) error {
	_, err := l.session.do(ctx, &call{}, &pb.SessionRequest{Request: &pb.SessionRequest_Downgrade{Downgrade: &pb.DowngradeRequest{LockId: l.ID}}})
	if err != nil {
		return fmt.Errorf("downgrade %q: %w", l.Resource, err)
	}
	return nil // the receiver has noted it
}

// end is when the hold is over if nothing is heard any more. session.mu is held.
func (l *Lock) end() time.Duration {
	end := max(l.until, l.session.until)
	if l.limit != 0 {
		end = min(end, l.limit)
	}
	return end
}

// maxSlack is how long the sidecar may take to say that MaxHold is over. It
// keeps others out meanwhile and tells for how much longer, which is better news
// than its silence.
const maxSlack = 250 * time.Millisecond

// silentAt is when the sidecar's silence ends the hold: at its end, or soon
// after where that is by MaxHold. session.mu is held.
func (l *Lock) silentAt() time.Duration {
	end := l.end()
	if l.limit != 0 && end+l.session.slack >= l.limit { // the grant was counted a little later than the limit began
		return end + l.session.slack
	}
	return end
}

func (l *Lock) silence() *LostError {
	return &LostError{Reason: LostSilence, Message: "the sidecar was not heard of in time"}
}
