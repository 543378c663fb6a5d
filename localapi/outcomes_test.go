package localapi

import (
	"context"
	"net/http"
	"net/url"
	"strings"
	"sync"
	"testing"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	pb "github.com/locksidecar/locksidecar/api/locksidecar/v1"
	"github.com/locksidecar/locksidecar/lock"
	"github.com/locksidecar/locksidecar/session"
	"github.com/locksidecar/locksidecar/session/outcome"
)

// Something is done once over gRPC and over lines.
func TestOnceOverStreams(t *testing.T) {
	for _, over := range []wireName{"gRPC", "lines"} {
		t.Run(string(over), func(t *testing.T) {
			s := start(t, noNews)
			x := s.stream(t, s.streams(t, over), &pb.OpenSessionRequest{Name: "a"})
			once := &pb.AcquireRequest{Resource: "w", Wait: durationpb.New(0), Once: &pb.Once{MaxAttempts: 2}}
			x.acquire("1", once)
			g := x.answer("1").GetGranted()
			if g.GetAttempt() != 1 || g.Previous != nil {
				t.Fatalf("first: %v", g)
			}
			x.send(&pb.SessionRequest{RequestId: "2", Request: &pb.SessionRequest_Release{Release: &pb.ReleaseRequest{
				LockId: g.GetLockId(), Outcome: pb.OutcomeState_FAILED, Note: "no money",
			}}})
			if a := x.answer("2"); a.GetReleased() == nil {
				t.Fatalf("release: %v", a)
			}
			x.acquire("3", once)
			g = x.answer("3").GetGranted()
			if p := g.GetPrevious(); g.GetAttempt() != 2 || p.GetState() != pb.OutcomeState_FAILED || p.GetNote() != "no money" || p.GetResource() != "w" {
				t.Fatalf("second: %v", g)
			}
			x.send(&pb.SessionRequest{RequestId: "4", Request: &pb.SessionRequest_Release{Release: &pb.ReleaseRequest{
				LockId: g.GetLockId(), Outcome: pb.OutcomeState_FAILED,
			}}})
			x.answer("4")
			x.acquire("5", once)
			if info := infoOf(t, x.answer("5").GetError()); info.GetReason() != string(reasonExhausted) || info.GetMetadata()["attempt"] != "2" {
				t.Errorf("third: %v", info)
			}
		})
	}
}

// Something is done once by calls of HTTP, and admins see and forget what became of it.
func TestOnceOverHTTP(t *testing.T) {
	s := start(t, noNews, func(_ *session.Options, o *Options) { o.Access.AdminUIDs = []uint32{1 << 30} })
	c := s.http(t)
	_, body := call(t, c, "POST", "/v1/sessions", `{"liveness":"TTL","ttl":"60s","name":"h"}`)
	locks := "/v1/sessions/" + field(t, body, "sessionId") + "/locks"
	const ask = `{"resource":"w/1","wait":"0s","once":{"keep":"3600s"}}`
	_, body = call(t, c, "POST", locks, ask)
	lockID := field(t, body, "lockId")
	for query, name := range map[string]string{
		"outcome=UNKNOWN": "outcome", "outcome=DONE": "outcome", "note=x": "note",
		"outcome=FAILED&note=%00": "note", "outcome=FAILED&note=" + strings.Repeat("x", 1025): "note",
	} {
		code, body := call(t, c, "DELETE", locks+"/"+lockID+"?"+query, "")
		if info := infoOf(t, jsonStatus(t, body)); code != http.StatusBadRequest || info.GetMetadata()["field"] != name {
			t.Errorf("%.20s: %d %s", query, code, body)
		}
	}
	if code, body := call(t, c, "DELETE", locks+"/"+lockID+"?outcome=SUCCEEDED&note="+url.QueryEscape("paid: 10 €"), ""); code != 200 || compact(body) != `{"count":0}` {
		t.Errorf("release: %d %s", code, body)
	}
	code, body := call(t, c, "POST", locks, ask)
	if info := infoOf(t, jsonStatus(t, body)); code != http.StatusConflict || info.GetReason() != "ALREADY_DONE" || info.GetMetadata()["note"] != "paid: 10 €" {
		t.Errorf("again: %d %s", code, body)
	}
	for query, n := range map[string]int{"": 1, "?states=SUCCEEDED": 1, "?states=FAILED,UNKNOWN": 0, "?prefix=w/&pageSize=1": 1, "?prefix=x": 0} {
		code, body := call(t, c, "GET", "/v1/outcomes"+query, "")
		if code != 200 || strings.Count(body, `"resource":"w/1"`) != n {
			t.Errorf("%s: %d %s", query, code, body)
		}
	}
	for _, bad := range []string{"?states=DONE", "?states=FAILED,", "?pageSize=1001", "?pageToken=%25"} {
		if code, body := call(t, c, "GET", "/v1/outcomes"+bad, ""); code != http.StatusBadRequest {
			t.Errorf("%s: %d %s", bad, code, body)
		}
	}
	if code, body := call(t, c, "DELETE", "/v1/outcomes/w/1", ""); code != http.StatusForbidden {
		t.Errorf("reset by nobody: %d %s", code, body)
	}
	if code, body := call(t, c, "POST", "/v1/hold", ask); code != http.StatusBadRequest || !strings.Contains(body, "once") {
		t.Errorf("hold: %d %s", code, body)
	}
}

// The states have the same names everywhere.
func TestOutcomeStates(t *testing.T) {
	for n, name := range pb.OutcomeState_name {
		state, ok := outcome.ParseState(name)
		if ok != (n != 0) || ok && outcomeTo(session.Outcome{Outcome: outcome.Outcome{State: state}}, time.Now()).GetState() != pb.OutcomeState(n) {
			t.Errorf("%s is %s", name, state)
		}
	}
}

// What is known of an attempt is told in full.
func TestWhatAnOutcomeTells(t *testing.T) {
	now := time.Unix(1000, 0)
	o := outcome.Outcome{State: outcome.Failed, Attempt: 3, Note: "n", Age: 3 * time.Second, By: outcome.By{
		LockID: "h", Fence: 7, Sidecar: "pod", Owner: lock.Owner{PID: 1, UID: 2, GID: 3, Session: "s", Label: "thread-4", Metadata: map[string]string{"k": "v"}},
	}}
	want := &pb.Outcome{
		Resource: "r", State: pb.OutcomeState_FAILED, Attempt: 3, Note: "n", At: timestamppb.New(time.Unix(997, 0)), Age: durationpb.New(3 * time.Second),
		LockId: "h", Fence: 7, Sidecar: "pod", Pid: 1, Uid: 2, Gid: 3, Session: "s", Owner: "thread-4", Metadata: map[string]string{"k": "v"},
	}
	same(t, outcomeTo(session.Outcome{Resource: "r", Outcome: o}, now), want)
}

// slowRecords does not answer for a record before it may.
type slowRecords struct {
	lock.Backend
	lock.Records
	asked, may chan struct{}
}

func (b *slowRecords) ReadRecord(ctx context.Context, r lock.Resource) (lock.Record, error) {
	b.asked <- struct{}{}
	<-b.may
	return b.Records.ReadRecord(ctx, r)
}

// TestOnceLeavesReceiving: over lines, who waits for the record of what is done once holds up nothing that comes behind.
func TestOnceLeavesReceiving(t *testing.T) {
	b := &slowRecords{asked: make(chan struct{}, 2), may: make(chan struct{})}
	s := start(t, noNews, func(o *session.Options, _ *Options) {
		b.Backend = o.Backend
		b.Records, _ = lock.RecordsOf(o.Backend)
		o.Backend = b
	})
	mayRead := sync.OnceFunc(func() { close(b.may) })
	t.Cleanup(mayRead)
	x := s.says(t, opening)
	x.answer()
	x.say(`{"requestId":"1","acquire":{"resource":"r","once":{}}}` + "\n")
	within(t, b.asked)
	x.say(`{"requestId":"2","keepAlive":{}}` + "\n")
	if a := x.answer(); a.GetKeptAlive() == nil {
		t.Errorf("answered: %v", a)
	}
	mayRead()
	if a := x.answer(); a.GetGranted() == nil {
		t.Errorf("answered: %v", a)
	}
}
