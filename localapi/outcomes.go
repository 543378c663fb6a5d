package localapi

import (
	"context"
	"errors"
	"strconv"
	"strings"
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	pb "github.com/locksidecar/locksidecar/api/locksidecar/v1"
	"github.com/locksidecar/locksidecar/lock"
	"github.com/locksidecar/locksidecar/session"
	"github.com/locksidecar/locksidecar/session/outcome"
)

// ListOutcomes tells what became of resources that are done once, page by page.
func (s *service) ListOutcomes(ctx context.Context, q *pb.ListOutcomesRequest) (*pb.ListOutcomesResponse, error) {
	sp, after, limit, err := pageOf(ctx, q)
	if err != nil {
		return nil, err
	}
	states, err := statesOf(q.GetStates())
	if err != nil {
		return nil, err
	}
	land, err := fly(ctx, false)
	if err != nil {
		return nil, err
	}
	defer land()
	ctx, end := s.span(ctx, "list-outcomes", "")
	found, next, err := sp.Outcomes(ctx, q.GetPrefix(), after, limit, states...)
	end(err)
	missing, err := without(err, q.GetPartial())
	if err != nil {
		return nil, err
	}
	now := time.Now()
	a := &pb.ListOutcomesResponse{Outcomes: make([]*pb.Outcome, 0, len(found)), MissingShards: missing}
	size := 0
	for i, o := range found {
		v := outcomeTo(o, now)
		if size += proto.Size(v); size > pageBytes && i > 0 {
			next = found[i-1].Resource
			break
		}
		a.Outcomes = append(a.Outcomes, v)
	}
	if next != "" {
		a.NextPageToken = pageToken(next)
	}
	return a, nil
}

// ResetOutcome forgets what became of a resource.
func (s *service) ResetOutcome(ctx context.Context, q *pb.ResetOutcomeRequest) (*pb.ResetOutcomeResponse, error) {
	c, err := s.admin(ctx)
	if err != nil {
		return nil, err
	}
	land, err := fly(ctx, false)
	if err != nil {
		return nil, err
	}
	defer land()
	ctx, end := s.span(ctx, "reset-outcome", q.GetResource())
	o, err := c.space.ResetOutcome(ctx, q.GetResource())
	end(err)
	if err != nil || o == nil {
		return &pb.ResetOutcomeResponse{}, err
	}
	s.o.Logger.Warn("outcome forgotten", append([]any{keyResource, q.GetResource()}, c.whois()...)...)
	return &pb.ResetOutcomeResponse{Outcome: outcomeTo(*o, time.Now())}, nil
}

// statesOf reads a list such as "FAILED,UNKNOWN".
func statesOf(list string) ([]outcome.State, error) {
	if list == "" {
		return nil, nil
	}
	var states []outcome.State
	for name := range strings.SplitSeq(list, ",") {
		state, ok := outcome.ParseState(name)
		if !ok {
			return nil, invalid("states", "must be UNKNOWN, FAILED or SUCCEEDED, or some of them with a comma between them")
		}
		states = append(states, state)
	}
	return states, nil
}

// conclusionOf reads how an attempt has ended; 0: that is not said.
func conclusionOf(q *pb.ReleaseRequest) (outcome.State, error) {
	switch q.GetOutcome() {
	case pb.OutcomeState_SUCCEEDED:
		return outcome.Succeeded, nil
	case pb.OutcomeState_FAILED:
		return outcome.Failed, nil
	case pb.OutcomeState_OUTCOME_STATE_UNSPECIFIED:
		if q.GetNote() != "" {
			return 0, invalid("note", "needs an outcome")
		}
		return 0, nil
	default:
		return 0, invalid("outcome", "must be FAILED or SUCCEEDED; leave it out where neither is known")
	}
}

func outcomeTo(o session.Outcome, now time.Time) *pb.Outcome {
	return &pb.Outcome{
		Resource:  o.Resource,
		State:     pb.OutcomeState(pb.OutcomeState_value[o.State.String()]), // the same names, see TestOutcomeStates
		Attempt:   countTo(o.Attempt),
		Note:      o.Note,
		At:        timestamppb.New(now.Add(-o.Age)),
		Age:       durationpb.New(o.Age),
		LockId:    string(o.By.LockID),
		Fence:     int64(o.By.Fence),
		Sidecar:   o.By.Sidecar,
		Pid:       o.By.Owner.PID,
		Uid:       o.By.Owner.UID,
		Gid:       o.By.Owner.GID,
		Principal: o.By.Owner.Principal,
		Session:   o.By.Owner.Session,
		Owner:     o.By.Owner.Label,
		Metadata:  o.By.Owner.Metadata,
	}
}

// explainRefused tells what was found in place of a grant.
func explainRefused(e *outcome.RefusedError) *apiError {
	a := &apiError{reason: reasonDone, message: strconv.Quote(e.Resource) + " was done before"}
	if errors.Is(e, outcome.ErrAttemptsExhausted) {
		a.reason, a.message = reasonExhausted, strconv.Quote(e.Resource)+" was tried as often as it may be"
	}
	o := e.Found
	a.message += ": attempt " + strconv.Itoa(o.Attempt) + ", " + o.State.String() + " " + o.Age.Round(time.Second).String() + " ago"
	if o.By.Owner.Session != "" {
		a.message += ", by " + o.By.Owner.Session
	}
	a.metadata = map[string]string{
		"resource": e.Resource,
		"state":    o.State.String(),
		"attempt":  strconv.Itoa(o.Attempt),
		"note":     o.Note,
		"at":       time.Now().Add(-o.Age).UTC().Format(time.RFC3339Nano),
		"lock_id":  string(o.By.LockID),
		"fence":    strconv.FormatInt(int64(o.By.Fence), 10),
		"session":  o.By.Owner.Session,
		"sidecar":  o.By.Sidecar,
		"pid":      strconv.FormatInt(int64(o.By.Owner.PID), 10),
		"owner":    o.By.Owner.Label,
	}
	return a
}

// pageSizeOf reads how many a page may have.
// pageOf is what a request for a page asks for, and of which space.
func pageOf(ctx context.Context, q interface {
	GetPageSize() int32
	GetPageToken() string
},
) (sp *session.Space, after string, limit int, err error) {
	if limit, err = pageSizeOf(q.GetPageSize()); err == nil {
		after, err = afterOf(q.GetPageToken())
	}
	if err == nil {
		sp, err = spaceOf(ctx)
	}
	return sp, after, limit, err
}

func pageSizeOf(n int32) (int, error) {
	switch limit := int(n); {
	case limit == 0:
		return defaultPageSize, nil
	case limit < 0 || limit > lock.MaxPage:
		return 0, invalid("page_size", "must be 1 to %d, and not %d", lock.MaxPage, limit)
	default:
		return limit, nil
	}
}
