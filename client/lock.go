package client

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"

	pb "github.com/locksidecar/locksidecar/api/locksidecar/v1"
)

// Lock is a hold. Its methods may be called at the same time by many goroutines.
type Lock struct {
	ID       string
	Resource string // empty for several, as are Fence and Guard
	Fence    int64  // the fencing token: larger than that of every earlier EXCLUSIVE grant
	Guard    *Guard // nil where the store has none
	Parts    []Part // of AcquireAll, in the byte order of the resources
	Slot     int    // of a Permit: which of them it is, 0 to Limit-1; no other that is held has it

	// Only with AcquireOptions.Once.
	Attempt  int         // 1 is the first
	Previous *pb.Outcome // of the attempt before; nil where none is known
	// OutcomeGuard records Succeeded in the app's own transaction; nil where the store is
	// no SQL database. One row changed: commit. None: somebody else has started, roll back.
	OutcomeGuard *Guard

	session *Session
	lost    chan struct{}

	// Guarded by session.mu.
	mode    pb.Mode
	count   int           // releases that are due, also of a lost hold
	counted time.Duration // when the first grant was counted; this and what follows: on the sidecar's clock
	until   time.Duration // as the grant or lease news said
	limit   time.Duration // the end by MaxHold; 0: none
	kept    time.Duration // on bootTime: others are kept out until then; 0: nothing is known of that
	over    error         // nil while it is held; else ErrReleased or a *LostError

	listened bool // somebody listens for its loss
}

// Part is one of several resources that are held together.
type Part struct {
	Resource string
	ID       string // as lists show it
	Fence    int64
	Guard    *Guard
}

// name is what is locked, for people.
func (l *Lock) name() string {
	names := make([]string, 0, len(l.Parts))
	for _, p := range l.Parts {
		names = append(names, p.Resource)
	}
	return cmp.Or(l.Resource, strings.Join(names, ", "))
}

// Guard is one SQL statement for the app's own transaction on the database that
// is also the store, run just before the commit. One row: the lock is still the
// app's, commit. None: roll back. Until that transaction ends the store lets
// nobody in whom the lock keeps out, even when ValidFor is over.
type Guard struct {
	Dialect string   // "mysql", "mariadb" or "postgresql"
	SQL     string   // with a ? for each argument
	Args    []string // ASCII
}

// Reasons of a LostError beside those of the API (LEASE_EXPIRED, LEASE_LOST,
// FORCED, MAX_HOLD, SESSION_EXPIRED, STORE_LOST, STOPPING, TAKEN_OVER).
const (
	// LostSilence: nothing came from the sidecar for as long as the hold could be
	// relied on. It may be frozen. Its grace is the session's Margin after that.
	LostSilence = "SIDECAR_SILENT"
	// LostStream: the connection to the sidecar ended. It may have died.
	LostStream = "SIDECAR_GONE"
	// LostUnknown: the sidecar did not know the hold when it was released or downgraded.
	LostUnknown = "NOT_HOLDER"
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
	ended    error // why the session did, where the hold is lost by that
}

func (e *LostError) Error() string {
	return fmt.Sprintf("the lock on %q is lost: %s", e.Resource, e.Message)
}

// Unwrap gives ErrLockLost and, where the hold is lost because the session has ended,
// Session.Err.
func (e *LostError) Unwrap() []error {
	if e.ended != nil {
		return []error{ErrLockLost, e.ended}
	}
	return []error{ErrLockLost}
}

// of says what was lost. Of several the sidecar has named the one.
func (e *LostError) of(l *Lock) {
	e.LockID = l.ID
	if len(l.Parts) == 0 || e.Resource == "" {
		e.Resource, e.Fence = l.name(), l.Fence
	}
}

// GraceLeft is how long the sidecar still keeps others out, so that work can be
// stopped. Lock.Release ends that time at once. 0 when nothing is promised.
func (e *LostError) GraceLeft() time.Duration { return max(0, e.graceEnd-bootTime()) }

// Mode is Exclusive, Shared or Permit.
func (l *Lock) Mode() pb.Mode {
	l.session.mu.Lock()
	defer l.session.mu.Unlock()
	return l.mode
}

// Count is how many times the hold must be released, also when it is lost; 0 when
// it was.
func (l *Lock) Count() int {
	l.session.mu.Lock()
	defer l.session.mu.Unlock()
	return l.count
}

// ValidFor is how long the hold may be relied on without further news from the
// sidecar. It is counted on this machine's boot-time clock from before the
// sidecar counted it, so it is never too long. 0 when the hold is over.
func (l *Lock) ValidFor() time.Duration {
	l.session.mu.Lock()
	defer l.session.mu.Unlock()
	now := l.hear()
	if l.over != nil {
		return 0
	}
	left := l.end() - now
	if left > 0 {
		return left
	}
	if l.silentAt() <= now {
		l.session.lose(l, l.silence())
	}
	return 0
}

// Lost is closed when the hold is lost: the sidecar said so, it is not heard of
// any more (for ValidFor, by this process's own clock), or the stream ended. It
// is not closed by Release. From the first call on, a loss is read as soon as it is there;
// before that, up to 10ms later.
func (l *Lock) Lost() <-chan struct{} {
	l.session.mu.Lock()
	defer l.session.mu.Unlock()
	l.session.listen(l)
	return l.lost
}

// Err is nil as long as the app has the hold: then ErrReleased from the moment at
// which its last Release was called, or a *LostError. When MaxHold is over it is one
// at once, a little before Lost is closed: the sidecar has that long to say for how
// much longer it keeps others out.
func (l *Lock) Err() error {
	l.session.mu.Lock()
	defer l.session.mu.Unlock()
	if now := l.hear(); l.over == nil && l.end() <= now {
		if l.silentAt() > now {
			e := maxHoldOver()
			e.of(l)
			return e
		}
		l.session.lose(l, l.silence())
	}
	return l.over
}

// hear gives the moment by which to judge whether the hold is over. Where it seems to be, all that
// had come by that moment is taken: it may be news of a later end. session.mu is held, but not
// meanwhile.
func (l *Lock) hear() (now time.Duration) {
	for {
		now = bootTime()
		if l.over != nil || l.end() > now {
			return now
		}
		l.session.unlockAndCatchUp()
		if l.over != nil || l.end() <= now {
			return now
		}
	}
}

// Release ends the hold, or one of its counts. The hold is over for the app when
// Release is called, whatever it returns; when ctx ends before the sidecar has
// answered, the release goes on in the background. A lost hold should be released
// too: that ends its grace, and others are let in at once.
//
//	ErrLockLost: it was lost, before the call or as the sidecar now says. Where that is so
//	  because the session has ended, it is Session.Err, too.
//	ErrReleased: it was released before, as often as it was acquired.
//	the cause of ctx: it ended.
//	Session.Err: the session has ended before the answer came, and the hold with it.
func (l *Lock) Release(ctx context.Context) error {
	if err := l.session.release(ctx, l); err != nil {
		return fmt.Errorf("release %q: %w", l.name(), err)
	}
	return nil
}

// KeptFor is how much longer the store keeps others out, at most, after the Lock was released
// or concluded, by its MinHold. 0: they are let in, or the sidecar has not answered.
func (l *Lock) KeptFor() time.Duration {
	l.session.mu.Lock()
	defer l.session.mu.Unlock()
	return max(0, l.kept-bootTime())
}

// released notes what the sidecar says to the release of a hold. s.mu is held.
func (l *Lock) released(a *pb.ReleaseResponse) {
	if a.KeptFor != nil {
		l.kept = bootTime() + a.GetKeptFor().AsDuration()
	}
}

func (s *Session) release(ctx context.Context, l *Lock) error {
	s.mu.Lock()
	c, q := s.letGo(l)
	if err := cmp.Or(l.over, s.err); c == nil || s.err != nil {
		s.mu.Unlock()
		return err
	}
	s.unlockAndSend(s.post(c, q))
	_, err := s.wait(ctx, c)
	if lost := l.Err(); errors.Is(lost, ErrLockLost) && (err == nil || errors.Is(err, ErrNotHolder)) {
		return lost
	}
	return err
}

// Downgrade turns an Exclusive hold into a Shared one without letting go.
// ErrLockLost: it was lost, as the sidecar now says, too. ErrNotHolder: it was
// released. Else as for Release.
func (l *Lock) Downgrade(ctx context.Context) error {
	c := newCall()
	c.changes = l
	return l.change(ctx, "downgrade", c, &pb.SessionRequest{Request: &pb.SessionRequest_Downgrade{Downgrade: &pb.DowngradeRequest{LockId: l.ID}}})
}

// Extend makes the hold end maxHold from now (100ms to 24h), whatever its limit was
// before. Errors as for Downgrade.
func (l *Lock) Extend(ctx context.Context, maxHold time.Duration) error {
	c := newCall()
	c.changes, c.maxHold = l, maxHold
	return l.change(ctx, "extend", c, &pb.SessionRequest{Request: &pb.SessionRequest_Extend{Extend: &pb.ExtendRequest{LockId: l.ID, MaxHold: durationpb.New(maxHold)}}})
}

// change asks for a change of the hold, which the receiver notes.
func (l *Lock) change(ctx context.Context, verb string, c *call, q *pb.SessionRequest) error {
	_, err := l.session.do(ctx, c, q)
	if lost := l.Err(); errors.Is(err, ErrNotHolder) && errors.Is(lost, ErrLockLost) {
		err = lost
	}
	if err != nil {
		return fmt.Errorf("%s %q: %w", verb, l.name(), err)
	}
	return nil
}

// end is when the hold is over if nothing is heard any more, on our clock.
// session.mu is held.
func (l *Lock) end() time.Duration {
	end := l.until
	if l.limit != 0 {
		end = min(end, l.limit)
	}
	return l.session.clock.ours(end)
}

func maxHoldOver() *LostError {
	return &LostError{Reason: pb.LostReason_MAX_HOLD.String(), Message: "its max_hold is over"}
}

// maxSlack is how long the sidecar may take to say that MaxHold is over. It
// keeps others out meanwhile and tells for how much longer, which is better news
// than its silence.
const maxSlack = 250 * time.Millisecond

// silentAt is when the sidecar's silence ends the hold: at its end, or soon
// after where that is by MaxHold. session.mu is held.
func (l *Lock) silentAt() time.Duration {
	end := l.end()
	slack := min(maxSlack, l.session.margin/2)                      // the store keeps others out for the margin
	if l.limit != 0 && end+slack >= l.session.clock.ours(l.limit) { // the grant was counted a little later than the limit began
		return end + slack
	}
	return end
}

// silence is the loss by it. The store keeps others out for the margin, which counts
// from the end, however late that is noticed; not where that end is by MaxHold: the lease
// goes on, and the sidecar may have let go. session.mu is held.
func (l *Lock) silence() *LostError {
	if l.limit != 0 && l.silentAt() >= l.session.clock.ours(l.limit) {
		return maxHoldOver()
	}
	return &LostError{
		Reason: LostSilence, Message: "the sidecar was not heard of in time",
		graceEnd: l.end() + l.session.margin,
	}
}
