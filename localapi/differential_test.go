package localapi

import (
	"bytes"
	"context"
	"fmt"
	"net/http"
	"regexp"
	"strings"
	"testing"
	"time"

	statuspb "google.golang.org/genproto/googleapis/rpc/status"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"

	pb "github.com/locksidecar/locksidecar/api/locksidecar/v1"
	"github.com/locksidecar/locksidecar/session"
)

// app is one session of the history, whatever it speaks.
type app interface {
	// ask sends a request and gives its answer: a message, or an error.
	ask(q *pb.SessionRequest) *pb.SessionResponse
	// begin sends one whose answer comes later, by wait.
	begin(q *pb.SessionRequest)
	wait(id string) *pb.SessionResponse
	lost() *pb.Lost
}

// over gRPC and lines

func (x *stream) ask(q *pb.SessionRequest) *pb.SessionResponse {
	x.send(q)
	return x.answer(q.GetRequestId())
}

func (x *stream) begin(q *pb.SessionRequest)         { x.send(q) }
func (x *stream) wait(id string) *pb.SessionResponse { return x.answer(id) }

// httpApp is a session over HTTP.
type httpApp struct {
	t       *testing.T
	c       *http.Client
	path    string
	news    <-chan map[string]map[string]any
	waiting map[string]chan *pb.SessionResponse
}

func (s *sidecar) httpApp(t *testing.T, name string) *httpApp {
	t.Helper()
	c := s.http(t)
	ctx, cancel := context.WithCancel(t.Context())
	t.Cleanup(cancel)
	a := post(t, c, ctx, "/v1/sessions", `{"liveness":"STREAM","name":"`+name+`"}`)
	l := lines(t, a.Body)
	t.Cleanup(cancel) // before lines is waited for
	opened := within(t, l)
	return &httpApp{
		t: t, c: c, path: "/v1/sessions/" + opened["opened"]["sessionId"].(string), news: l,
		waiting: make(map[string]chan *pb.SessionResponse),
	}
}

func (x *httpApp) ask(q *pb.SessionRequest) *pb.SessionResponse {
	method, path, body := "POST", x.path, ""
	a := &pb.SessionResponse{RequestId: q.GetRequestId()}
	var m proto.Message
	switch r := q.GetRequest().(type) {
	case *pb.SessionRequest_Acquire:
		withID := proto.CloneOf(r.Acquire)
		withID.RequestId = q.GetRequestId()
		b, err := protojson.Marshal(withID)
		if err != nil {
			x.t.Error(err)
		}
		g := &pb.Grant{}
		path, body, m, a.Response = path+"/locks", string(b), g, &pb.SessionResponse_Granted{Granted: g}
	case *pb.SessionRequest_Release:
		g := &pb.ReleaseResponse{}
		method, path = "DELETE", path+"/locks/"+r.Release.GetLockId()+"?requestId="+r.Release.GetRequestId()
		m, a.Response = g, &pb.SessionResponse_Released{Released: g}
	case *pb.SessionRequest_Downgrade:
		g := &pb.Grant{}
		path = path + "/locks/" + r.Downgrade.GetLockId() + ":downgrade"
		m, a.Response = g, &pb.SessionResponse_Downgraded{Downgraded: g}
	case *pb.SessionRequest_Extend:
		b, err := protojson.Marshal(&pb.ExtendRequest{MaxHold: r.Extend.GetMaxHold()})
		if err != nil {
			x.t.Error(err)
		}
		g := &pb.Grant{}
		path, body = path+"/locks/"+r.Extend.GetLockId()+":extend", string(b)
		m, a.Response = g, &pb.SessionResponse_Extended{Extended: g}
	case *pb.SessionRequest_Detach:
		b, err := protojson.Marshal(&pb.DetachRequest{Ttl: r.Detach.GetTtl()})
		if err != nil {
			x.t.Error(err)
		}
		g := &pb.DetachedHold{}
		path, body = path+"/locks/"+r.Detach.GetLockId()+":detach", string(b)
		m, a.Response = g, &pb.SessionResponse_Detached{Detached: g}
	case *pb.SessionRequest_ExtendHandle:
		b, err := protojson.Marshal(r.ExtendHandle)
		if err != nil {
			x.t.Error(err)
		}
		g := &pb.DetachedHold{}
		path, body, m, a.Response = "/v1/handles:extend", string(b), g, &pb.SessionResponse_Detached{Detached: g}
	case *pb.SessionRequest_ReleaseHandle:
		b, err := protojson.Marshal(r.ReleaseHandle)
		if err != nil {
			x.t.Error(err)
		}
		g := &pb.ReleaseHandleResponse{}
		path, body, m, a.Response = "/v1/handles:release", string(b), g, &pb.SessionResponse_HandleReleased{HandleReleased: g}
	case *pb.SessionRequest_Cancel:
		g := &pb.CancelResponse{}
		method, path = "DELETE", path+"/requests/"+r.Cancel.GetRequestId()
		m, a.Response = g, &pb.SessionResponse_Cancelled{Cancelled: g}
	case *pb.SessionRequest_KeepAlive:
		g := &pb.KeepAliveResponse{}
		path += ":keepAlive"
		m, a.Response = g, &pb.SessionResponse_KeptAlive{KeptAlive: g}
	}
	code, text := call(x.t, x.c, method, path, body)
	if code != http.StatusOK {
		m = &statuspb.Status{}
		a.Response = &pb.SessionResponse_Error{Error: m.(*statuspb.Status)}
	}
	if err := protojson.Unmarshal([]byte(text), m); err != nil {
		x.t.Errorf("%s: %v", text, err)
	}
	return a
}

func (x *httpApp) begin(q *pb.SessionRequest) {
	c := make(chan *pb.SessionResponse, 1)
	x.waiting[q.GetRequestId()] = c
	go func() { c <- x.ask(q) }()
}

func (x *httpApp) wait(id string) *pb.SessionResponse { return within(x.t, x.waiting[id]) }

func (x *httpApp) lost() *pb.Lost {
	for {
		m := within(x.t, x.news)
		if m == nil {
			x.t.Fatal("the session has ended")
		}
		l, ok := m["lost"]
		if !ok {
			continue
		}
		text := strings.ReplaceAll(fmt.Sprintf("%#v", l), `map[string]interface {}`, "")
		var lost pb.Lost
		if err := protojson.Unmarshal([]byte(text), &lost); err != nil {
			x.t.Fatal(err)
		}
		return &lost
	}
}

// diary notes what an app was told, without what is different each time.
type diary struct {
	t   *testing.T
	out bytes.Buffer
	ids map[string]string // names of lock_ids
}

// odd is what depends on the time: how long a lock was held.
var odd = regexp.MustCompile(`for \S+?s\b|"holder_age":"[^"]*"`)

func (d *diary) note(m proto.Message) {
	d.t.Helper()
	for _, when := range timesIn(m) {
		if *when != nil {
			*when = durationpb.New((*when).AsDuration().Round(time.Minute))
		}
	}
	line, err := protojson.MarshalOptions{EmitDefaultValues: true}.Marshal(m)
	if err != nil {
		d.t.Fatal(err)
	}
	text := odd.ReplaceAllString(compact(string(line)), "…")
	for id, name := range d.ids {
		text = strings.ReplaceAll(text, id, name)
	}
	d.out.WriteString(text + "\n")
}

// timesIn are the durations of a message that are never twice the same.
func timesIn(m proto.Message) []**durationpb.Duration {
	switch m := m.(type) {
	case *pb.SessionResponse:
		switch r := m.GetResponse().(type) {
		case *pb.SessionResponse_Granted:
			r.Granted.CountedAt = nil
			return []**durationpb.Duration{&r.Granted.ValidFor, &r.Granted.EndsIn}
		case *pb.SessionResponse_Downgraded:
			r.Downgraded.CountedAt = nil
			return []**durationpb.Duration{&r.Downgraded.ValidFor, &r.Downgraded.EndsIn}
		case *pb.SessionResponse_Extended:
			r.Extended.CountedAt = nil
			return []**durationpb.Duration{&r.Extended.ValidFor, &r.Extended.EndsIn}
		case *pb.SessionResponse_KeptAlive:
			return []**durationpb.Duration{&r.KeptAlive.ValidFor}
		}
	case *pb.Lost:
		m.CountedAt = nil
		return []**durationpb.Duration{&m.Grace}
	}
	return nil
}

// grant notes a grant, and its lock_id under a name.
func (d *diary) grant(a *pb.SessionResponse) string {
	d.t.Helper()
	g := a.GetGranted()
	id := g.GetLockId()
	if id == "" {
		d.t.Fatalf("not granted: %v", a)
	}
	if d.ids[id] == "" {
		d.ids[id] = fmt.Sprintf("lock-%d", len(d.ids)+1)
		if g.GetFence() != 0 {
			d.ids[fmt.Sprint(g.GetFence())] = fmt.Sprintf("fence-%d", len(d.ids))
		}
		for _, p := range g.GetParts() {
			d.ids[p.GetLockId()], d.ids[fmt.Sprint(p.GetFence())] = "part-"+p.GetResource(), "fence-"+p.GetResource()
		}
	}
	d.note(a)
	return id
}

func acquireOf(id string, q *pb.AcquireRequest) *pb.SessionRequest {
	return &pb.SessionRequest{RequestId: id, Request: &pb.SessionRequest_Acquire{Acquire: q}}
}

func releaseOf(id, lockID, retry string) *pb.SessionRequest {
	return &pb.SessionRequest{RequestId: id, Request: &pb.SessionRequest_Release{Release: &pb.ReleaseRequest{LockId: lockID, RequestId: retry}}}
}

func extendOf(id, lockID string, maxHold time.Duration) *pb.SessionRequest {
	return &pb.SessionRequest{RequestId: id, Request: &pb.SessionRequest_Extend{Extend: &pb.ExtendRequest{LockId: lockID, MaxHold: durationpb.New(maxHold)}}}
}

// history is what two apps of a space do and are told.
func history(t *testing.T, sp *session.Space, a, b app) string {
	t.Helper()
	d := &diary{t: t, ids: make(map[string]string)}
	wait := func() {
		t.Helper()
		eventually(t, "waiting", func() bool { return sp.Info().Waiters == 1 })
	}
	long := durationpb.New(time.Minute)

	first := d.grant(a.ask(acquireOf("a1", &pb.AcquireRequest{Resource: "ä/1", Wait: long, Owner: "t1", Reentrant: true})))
	d.grant(a.ask(acquireOf("a2", &pb.AcquireRequest{Resource: "ä/1", Owner: "t1", Reentrant: true})))
	d.grant(a.ask(acquireOf("a1", &pb.AcquireRequest{Resource: "ä/1", Owner: "t1", Reentrant: true}))) // a retry
	d.note(b.ask(acquireOf("b1", tryOnce("ä/1"))))
	timeout := b.ask(acquireOf("b2", &pb.AcquireRequest{Resource: "ä/1", Wait: durationpb.New(time.Millisecond), Mode: pb.Mode_SHARED}))
	d.out.WriteString(infoOf(t, timeout.GetError()).GetReason() + "\n") // who holds it is told where it is known in time
	d.note(a.ask(releaseOf("a3", first, "retry-1")))
	d.note(a.ask(releaseOf("a4", first, "retry-1")))
	b.begin(acquireOf("b3", &pb.AcquireRequest{Resource: "ä/1", Mode: pb.Mode_SHARED}))
	wait()
	d.note(a.ask(&pb.SessionRequest{RequestId: "a5", Request: &pb.SessionRequest_Downgrade{Downgrade: &pb.DowngradeRequest{LockId: first}}}))
	shared := d.grant(b.wait("b3"))
	d.note(a.ask(acquireOf("a6", &pb.AcquireRequest{Resource: "ä/1", Owner: "t1", Reentrant: true})))
	d.note(a.ask(releaseOf("a7", first, "")))
	d.note(a.ask(releaseOf("a8", first, "")))
	a.begin(acquireOf("a9", &pb.AcquireRequest{Resource: "ä/1"}))
	wait()
	d.note(a.ask(&pb.SessionRequest{RequestId: "a10", Request: &pb.SessionRequest_Cancel{Cancel: &pb.CancelRequest{RequestId: "none"}}}))
	d.note(b.ask(releaseOf("b4", shared, "")))
	second := d.grant(a.wait("a9"))
	d.note(b.ask(releaseOf("b5", second, "")))
	d.note(a.ask(&pb.SessionRequest{RequestId: "a11", Request: &pb.SessionRequest_KeepAlive{KeepAlive: &pb.KeepAliveRequest{}}}))

	several := d.grant(a.ask(acquireOf("a13", &pb.AcquireRequest{Resources: []string{"z", "y"}})))
	d.note(b.ask(acquireOf("b13", &pb.AcquireRequest{Resources: []string{"x", "y"}, Wait: durationpb.New(0)})))
	d.grant(a.ask(acquireOf("a13", &pb.AcquireRequest{Resources: []string{"y", "z"}}))) // a retry
	d.note(a.ask(&pb.SessionRequest{RequestId: "a14", Request: &pb.SessionRequest_Downgrade{Downgrade: &pb.DowngradeRequest{LockId: several}}}))
	d.note(a.ask(releaseOf("a15", several, "")))
	limited := d.grant(b.ask(acquireOf("b6", &pb.AcquireRequest{Resource: "short", MaxHold: durationpb.New(time.Hour)})))
	d.note(b.ask(extendOf("b8", limited, time.Minute)))
	d.note(b.ask(extendOf("b9", limited, time.Millisecond)))
	d.note(b.ask(extendOf("b10", limited, 100*time.Millisecond)))
	d.note(b.lost())
	d.note(b.ask(extendOf("b11", limited, time.Second)))
	d.note(b.ask(releaseOf("b7", limited, "")))
	d.note(b.ask(extendOf("b12", "none", time.Second)))
	if _, err := sp.ForceRelease(t.Context(), "ä/1", "", 0); err != nil {
		t.Fatal(err)
	}
	d.note(a.lost())
	d.note(a.ask(releaseOf("a12", second, "")))

	for i, q := range []*pb.AcquireRequest{
		{}, {Resource: "a\x00"}, {Resource: strings.Repeat("x", 513)}, {Resource: "r", Mode: 9},
		{Resource: "r", Wait: durationpb.New(-1)}, {Resource: "r", Wait: durationpb.New(25 * time.Hour)}, {Resource: "r", MaxHold: durationpb.New(0)},
		{Resources: []string{"a"}}, {Resources: []string{"a", "b", "a"}}, {Resource: "a", Resources: []string{"a", "b"}},
		{Resource: "r", Owner: strings.Repeat("o", 129)},
	} {
		d.note(a.ask(acquireOf(fmt.Sprintf("bad%d", i), q)))
	}
	return d.out.String()
}

// TestEachWireGivesTheSameAnswers: one history, over gRPC, HTTP and lines.
func TestEachWireGivesTheSameAnswers(t *testing.T) {
	var want string
	for _, over := range []string{"gRPC", "lines", "HTTP"} {
		t.Run(over, func(t *testing.T) {
			s := start(t, noNews, func(o *session.Options, _ *Options) { o.LostGrace = time.Minute })
			a, b := s.apps(t, over)
			got := history(t, s.manager.Everybody(), a, b)
			if want == "" {
				want = got
				return
			}
			sameHistory(t, "over gRPC", want, got)
		})
	}
}

// apps opens the two sessions of a history.
func (s *sidecar) apps(t *testing.T, over string) (a, b app) {
	t.Helper()
	if over == "HTTP" {
		return s.httpApp(t, "a"), s.httpApp(t, "b")
	}
	c := s.streams(t, wireName(over))
	return s.stream(t, c, &pb.OpenSessionRequest{Name: "a"}), s.stream(t, c, &pb.OpenSessionRequest{Name: "b"})
}

func sameHistory(t *testing.T, other, want, got string) {
	t.Helper()
	was, is := strings.Split(want, "\n"), strings.Split(got, "\n")
	for i := range min(len(was), len(is)) {
		if was[i] != is[i] {
			t.Errorf("answer %d is\n%s, %s\n%s", i, is[i], other, was[i])
		}
	}
	if len(was) != len(is) {
		t.Errorf("%d answers, %s %d", len(is), other, len(was))
	}
}
