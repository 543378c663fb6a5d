package client

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math"
	"strings"
	"time"
	"unicode/utf8"

	"google.golang.org/protobuf/types/known/durationpb"

	pb "github.com/locksidecar/locksidecar/api/locksidecar/v1"
)

// NoWait is the AcquireOptions.Wait that tries once.
const NoWait time.Duration = -1

// AcquireOptions say how to take a lock. The zero value takes it Exclusive and
// waits as long as the call's context lasts.
type AcquireOptions struct {
	Mode    pb.Mode       // Exclusive (default) or Shared; Permit where there is a Limit
	Wait    time.Duration // at most so long (at most 24h); 0: until ctx ends; NoWait: try once
	MaxHold time.Duration // the hold ends by itself after this time (100ms to 24h); 0: never
	// MinHold is for how long after the grant the store keeps others out at least (100ms to 24h,
	// at most MaxHold; 0: none): also where the Lock is released before, or where this process, the
	// sidecar or the machine dies. Only a forced release ends that. Not with several resources; with
	// Reentrant it is not longer than that of the hold that is entered.
	MinHold time.Duration
	// Owner says who in the app asks, such as a task or a request: it is shown in
	// lists. At most 128 bytes.
	Owner string
	// Reentrant lets this acquire find the hold of another Reentrant one with the
	// same resource and Owner, in the same session, and count it up. Without it
	// every acquire stands alone, and waits for the one before.
	// Where the Lock of that hold was lost to LostSilence and the sidecar still has the
	// hold, it gives another Lock of it, with the same ID and Fence.
	Reentrant bool
	// Direct asks the store, also where the sidecar could answer by itself.
	Direct bool
	// NoGuard says that Lock.Guard is of no use: there is none, and on an SQL store the
	// sidecar may hand the hold on to the next app here without asking the store.
	NoGuard bool
	// Limit makes the hold one of so many permits (1 to 1024; 0: it is none): at most that many
	// are held at the same time, and Lock.Slot tells which of them this one is. All who ask for
	// the resource give the same Limit. Not with Reentrant, Once or several resources.
	Limit int
	// Detachable lets Lock.Detach take the hold off the session. It asks the store. Not with Reentrant,
	// Once, MinHold or several resources.
	Detachable bool
	// Once is for something that is done once: the lock is an attempt at it, which
	// Lock.Conclude ends. Only Exclusive, and not Reentrant.
	Once *Once
}

// Acquire takes a lock. With an error it has taken nothing.
//
//	ErrLockHeld: NoWait, and not free. ErrWaitTimeout: Wait is over. The *Error
//	  names the holder in both.
//	the cause of ctx: it ended; a grant that is on its way is given back.
//	ErrAlreadyDone, ErrAttemptsExhausted: see Once. OutcomeOf tells what was found.
//	ErrUnsupported: Once, and the store keeps no outcomes; or Limit, MinHold or Detachable, and it cannot.
//	ErrInvalidRequest: also a Limit other than that of those who hold permits now.
//	ErrLimitExceeded: the session holds as much as it may; or NoWait, and for 5s the sidecar had
//	  no room for one more acquire of this session. Others queue in the client then.
//	ErrUpgradeRefused, ErrStoreUnavailable,
//	ErrLockLost: an administrator took the request out of the queue.
//	Session.Err: the session has ended.
func (s *Session) Acquire(ctx context.Context, resource string, o AcquireOptions) (*Lock, error) {
	return s.acquire(ctx, &pb.AcquireRequest{Resource: resource}, []string{resource}, o)
}

// AcquireAll takes 2 to 16 resources, all of them or none, within one wait. Two such
// calls never wait for each other, whatever the order of their resources. The Lock is for
// all: Lock.Parts has the fence of each, and when one is lost, all are. Not with Reentrant.
// Errors as for Acquire.
func (s *Session) AcquireAll(ctx context.Context, resources []string, o AcquireOptions) (*Lock, error) {
	return s.acquire(ctx, &pb.AcquireRequest{Resources: resources}, resources, o)
}

func (s *Session) acquire(ctx context.Context, q *pb.AcquireRequest, resources []string, o AcquireOptions) (*Lock, error) {
	err := checkString("owner", o.Owner)
	for _, r := range resources {
		err = cmp.Or(err, checkString("resource", r))
	}
	if err != nil {
		return nil, err
	}
	q.Mode, q.Owner, q.Reentrant, q.Direct, q.Detachable = o.Mode, o.Owner, o.Reentrant, o.Direct, o.Detachable
	if o.Limit != 0 {
		n := int32(min(max(o.Limit, math.MinInt32), math.MaxInt32))
		q.Limit = &n
	}
	if o.NoGuard {
		q.Guard = new(bool)
	}
	if o.Once != nil {
		q.Once = &pb.Once{MaxAttempts: int32(min(o.Once.MaxAttempts, math.MaxInt32))} //nolint:gosec // the sidecar refuses what is negative
		if o.Once.Keep != 0 {
			q.Once.Keep = durationpb.New(o.Once.Keep)
		}
	}
	switch {
	case o.Wait > 0:
		q.Wait = durationpb.New(o.Wait)
	case o.Wait < 0:
		q.Wait = durationpb.New(0)
	}
	if o.MaxHold != 0 {
		q.MaxHold = durationpb.New(o.MaxHold)
	}
	if o.MinHold != 0 {
		q.MinHold = durationpb.New(o.MinHold)
	}
	c := newCall()
	c.acquire, c.resources, c.maxHold, c.patience = true, resources, o.MaxHold, max(o.Wait, NoWait)
	if o.Wait > 0 {
		c.deadline = bootTime() + o.Wait
	}
	if _, err := s.do(ctx, c, &pb.SessionRequest{Request: &pb.SessionRequest_Acquire{Acquire: q}}); err != nil {
		return nil, fmt.Errorf("acquire %q: %w", strings.Join(resources, ", "), err)
	}
	return c.lock, nil
}

// maxString is longer than anything that the sidecar takes; what the limit is, it
// tells itself.
const maxString = 4096

// checkString is for what cannot be sent or taken: for that the whole stream would end.
func checkString(field, v string) error {
	problem := ""
	switch {
	case !utf8.ValidString(v):
		problem = "is not valid UTF-8"
	case len(v) > maxString:
		problem = fmt.Sprintf("is %d bytes long", len(v))
	default:
		return nil
	}
	return &Error{Reason: "INVALID_REQUEST", Message: field + " " + problem, Metadata: map[string]string{"field": field}}
}

// giveBack releases what a call got and nobody has seen, or acknowledges its loss. What was attached
// is for the next one who has the handle: the sidecar detaches it again when the call is cancelled. s.mu
// is held.
func (s *Session) giveBack(c *call) {
	l := c.lock
	if c.attaches && l.over == nil {
		s.overFor(l, ErrReleased)
		l.count = 0
		delete(s.locks, l.ID)
		delete(s.limits, l.ID)
		s.callOff(c)
		return
	}
	if c, q := s.letGo(l); c != nil {
		s.inBackground(c, q)
	}
}

// callOff tells the sidecar that nobody waits for an acquire; once. s.mu is held.
func (s *Session) callOff(c *call) {
	if !c.abandoned {
		c.abandoned = true
		s.inBackground(newCall(), &pb.SessionRequest{Request: &pb.SessionRequest_Cancel{Cancel: &pb.CancelRequest{RequestId: c.id}}})
	}
}

// letGo takes a count off a hold, which is over with the last. It returns the
// request that tells the sidecar, or nil when the hold has no count any more.
// s.mu is held.
func (s *Session) letGo(l *Lock) (*call, *pb.SessionRequest) {
	if l.count == 0 {
		return nil, nil
	}
	if l.count--; l.count == 0 && l.over == nil {
		s.overFor(l, ErrReleased)
		delete(s.locks, l.ID)
	}
	c := newCall()
	c.release = l
	return c, &pb.SessionRequest{Request: &pb.SessionRequest_Release{Release: &pb.ReleaseRequest{LockId: l.ID}}}
}

// notHeld is told why the sidecar has refused a request about a hold. What it does
// not know as held is lost. s.mu is held.
func (s *Session) notHeld(l *Lock, err error) {
	var said *Error
	if !errors.As(err, &said) {
		return
	}
	if errors.Is(said, ErrLockLost) || errors.Is(said, ErrNotHolder) {
		delete(s.limits, l.ID)
	}
	switch {
	case errors.Is(said, ErrLockLost):
		s.lose(l, &LostError{Reason: said.Metadata["lost_reason"], Message: said.Message})
	case errors.Is(said, ErrNotHolder):
		s.lose(l, &LostError{Reason: LostUnknown, Message: said.Message})
	}
}

// granted notes a hold. s.mu is held.
func (s *Session) granted(c *call, g *pb.Grant) {
	l := s.locks[g.GetLockId()]
	if l == nil {
		l = &Lock{
			ID:       g.GetLockId(),
			Resource: g.GetResource(),
			Fence:    g.GetFence(),
			Guard:    guardOf(g.GetGuard()),
			Slot:     int(g.GetSlot()),

			Attempt:      int(g.GetAttempt()),
			Previous:     g.GetPrevious(),
			OutcomeGuard: guardOf(g.GetOutcomeGuard()),

			session: s,
			lost:    make(chan struct{}),
			counted: g.GetCountedAt().AsDuration(),
		}
		for _, p := range g.GetParts() {
			l.Parts = append(l.Parts, Part{Resource: p.GetResource(), ID: p.GetLockId(), Fence: p.GetFence(), Guard: guardOf(p.GetGuard())})
		}
		s.locks[l.ID] = l
	}
	l.count++
	l.mode = g.GetMode()
	l.until = max(l.until, endOf(g.GetCountedAt(), g.GetValidFor()))
	if s.news.counted >= l.counted {
		l.until = max(l.until, s.news.until) // they have overtaken the grant
	}
	if c.maxHold != 0 {
		if limit := g.GetCountedAt().AsDuration() + c.maxHold; s.limits[l.ID] == 0 || limit < s.limits[l.ID] {
			s.limits[l.ID] = limit
		}
	}
	s.endsIn(l.ID, g)
	l.limit = s.limits[l.ID] // also of a Lock before this one
	c.lock = l
	if early := s.early.byID[l.ID]; early != nil {
		s.lose(l, s.lossOf(early))
	}
	if c.abandoned {
		s.giveBack(c)
	}
	if l.over == nil {
		s.watch(l.silentAt())
	}
}

// extended notes another limit of a hold. s.mu is held.
func (s *Session) extended(c *call, g *pb.Grant) {
	if l := s.locks[g.GetLockId()]; l != nil {
		s.limits[l.ID] = g.GetCountedAt().AsDuration() + c.maxHold
		s.endsIn(l.ID, g)
		l.limit = s.limits[l.ID]
		l.until = max(l.until, endOf(g.GetCountedAt(), g.GetValidFor()))
		s.watch(l.silentAt())
	}
}

func guardOf(g *pb.Guard) *Guard {
	if g == nil {
		return nil
	}
	return &Guard{Dialect: g.GetDialect(), SQL: g.GetSql(), Args: g.GetArgs()}
}

// tellHolds notes how long holds may be relied on. News speak for the holds that
// the sidecar knew when it counted them: not for one that was granted later, and
// not for one that was over by then, though its loss is still to be read.
// s.mu is held.
func (s *Session) tellHolds(n *pb.LeaseNews) {
	s.news = leaseNews{counted: n.GetCountedAt().AsDuration(), until: endOf(n.GetCountedAt(), n.GetValidFor())}
	for _, l := range s.locks {
		if l.counted <= s.news.counted && s.news.counted < l.until {
			l.until = max(l.until, s.news.until)
		}
	}
}

// mostEarly losses are kept for grants that come after them.
const mostEarly = 10_000

// remember keeps a loss that may have overtaken a grant, while acquires are on their way. The oldest
// makes room. s.mu is held.
func (s *Session) remember(l *pb.Lost) {
	if s.acquires.size == 0 {
		return
	}
	if s.early.byID == nil {
		s.early.byID = make(map[string]*pb.Lost)
	}
	if s.early.byID[l.GetLockId()] == nil {
		s.early.order = append(s.early.order, l.GetLockId())
	}
	s.early.byID[l.GetLockId()] = l
	if len(s.early.order) > mostEarly {
		delete(s.early.byID, s.early.order[0])
		s.early.order = s.early.order[1:]
	}
}

// lossOf reads what the sidecar says. s.mu is held.
func (s *Session) lossOf(l *pb.Lost) *LostError {
	return &LostError{
		Resource: l.GetResource(),
		Fence:    l.GetFence(),
		Reason:   l.GetReason().String(),
		Message:  l.GetMessage(),
		graceEnd: s.clock.ours(endOf(l.GetCountedAt(), l.GetGrace())),
	}
}

// lose marks a hold as lost, also one whose release has failed by that. s.mu is
// held.
func (s *Session) lose(l *Lock, e *LostError) {
	if errors.Is(l.over, ErrLockLost) {
		return
	}
	e.of(l)
	s.overFor(l, e)
	close(l.lost)
	if s.locks[l.ID] == l {
		delete(s.locks, l.ID)
	}
}

// maxLook bounds the sleep of the timer: Go's timers stand still while the
// machine is suspended, and the clock of a hold does not.
const maxLook = time.Second

// watch sees to it that the end of a hold is noticed. One timer does for all
// holds: when it fires, it looks at each. s.mu is held.
func (s *Session) watch(end time.Duration) {
	if s.looksAt != 0 && s.looksAt <= end {
		return // it will see to it
	}
	now := bootTime()
	s.looksAt = min(end, now+maxLook)
	if s.timer == nil {
		s.timer = time.AfterFunc(s.looksAt-now, s.look)
	} else {
		s.timer.Reset(s.looksAt - now)
	}
}

// look finds the holds that nothing was heard of for too long.
func (s *Session) look() {
	s.mu.Lock()
	defer s.mu.Unlock()
	now := bootTime()
	for _, l := range s.locks {
		if l.silentAt() <= now {
			s.unlockAndCatchUp() // what has come by now
			break
		}
	}
	s.looksAt = 0
	next := now + maxLook
	for _, l := range s.locks {
		if end := l.silentAt(); end <= now {
			s.lose(l, l.silence())
		} else {
			next = min(next, end)
		}
	}
	if len(s.locks) > 0 {
		s.watch(next)
	}
}

// unlockAndCatchUp lets go of s.mu meanwhile.
func (s *Session) unlockAndCatchUp() {
	s.mu.Unlock()
	defer s.mu.Lock()
	s.catchUp()
}
