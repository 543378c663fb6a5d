package localapi

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/durationpb"

	pb "github.com/locksidecar/locksidecar/api/locksidecar/v1"
	"github.com/locksidecar/locksidecar/lock"
	"github.com/locksidecar/locksidecar/session"
)

// asked is a store that says what it is told to, and notes what it is asked for.
type asked struct {
	lock.Backend
	found []lock.Status
	lacks *lock.PartialError
	page  lock.Page
	force []string
}

func (b *asked) List(_ context.Context, prefix string, p lock.Page) ([]lock.Status, error) {
	b.page = p
	if prefix == "broken" {
		return nil, lock.ErrUnavailable
	}
	list := b.found[:min(len(b.found), p.Limit)]
	if b.lacks != nil {
		return slices.Clone(list), b.lacks
	}
	return list, nil
}

func (b *asked) Get(_ context.Context, r lock.Resource) (lock.Status, error) {
	if r == "broken" {
		return lock.Status{}, lock.ErrUnavailable
	}
	return lock.Status{}, nil
}

func (b *asked) ForceRelease(_ context.Context, r lock.Resource, id lock.HoldID, grace time.Duration) error {
	if r == "broken" {
		return lock.ErrUnavailable
	}
	b.force = append(b.force, fmt.Sprint(r, " ", id, " ", grace))
	return nil
}

func asks(b *asked) func(*session.Options, *Options) {
	return func(o *session.Options, _ *Options) { b.Backend, o.Backend = o.Backend, b }
}

// TestPages: how many locks a page has, and where the next one begins. No page is much
// larger than a megabyte, and none is empty for that.
func TestPages(t *testing.T) {
	const megabyte = 1 << 20
	b := &asked{}
	s := start(t, asks(b))
	c := s.api(t)
	// sized gives n locks of some more than that many bytes each.
	sized := func(n, size int) []lock.Status {
		var all []lock.Status
		for i := range n {
			all = append(all, lock.Status{
				Resource: lock.Resource(fmt.Sprintf("r%03d", i)), Waiters: []lock.Holding{{Sidecar: strings.Repeat("x", size)}},
			})
		}
		return all
	}
	for name, x := range map[string]struct {
		found []lock.Status
		size  int32
		limit int // that the store is asked for
		locks int // on the page
		last  string
	}{
		"no size":             {sized(120, 0), 0, 100, 100, "r099"},
		"one":                 {sized(120, 0), 1, 1, 1, "r000"},
		"the largest":         {sized(120, 0), 1000, 1000, 120, ""},
		"a full page":         {sized(5, 0), 5, 5, 5, "r004"},
		"not full":            {sized(4, 0), 5, 5, 4, ""},
		"nothing":             {nil, 5, 5, 0, ""},
		"a megabyte":          {sized(2, megabyte/2-200), 5, 5, 2, ""},
		"more":                {sized(3, megabyte/2-200), 5, 5, 2, "r001"},
		"more in two":         {sized(2, megabyte/2), 5, 5, 1, "r000"},
		"one that is too big": {sized(2, megabyte+1), 5, 5, 1, "r000"},
	} {
		t.Run(name, func(t *testing.T) {
			b.found = x.found
			p, err := c.ListLocks(t.Context(), &pb.ListLocksRequest{PageSize: x.size, PageToken: pageToken("before")})
			if err != nil {
				t.Fatal(err)
			}
			if b.page != (lock.Page{Limit: x.limit, After: "before"}) || len(p.GetLocks()) != x.locks {
				t.Errorf("the store is asked for %+v, and the page has %d locks", b.page, len(p.GetLocks()))
			}
			if after, err := afterOf(p.GetNextPageToken()); err != nil || after != x.last {
				t.Errorf("the next page begins after %q (%v), want %q", after, err, x.last)
			}
		})
	}
}

// TestMissingShards: a list or a watch without some shards is only for who asks for it, and names them.
func TestMissingShards(t *testing.T) {
	b := &asked{
		found: []lock.Status{{Resource: "ns/a", Holders: []lock.Holding{{ID: "1", Mode: lock.Exclusive}}}},
		lacks: &lock.PartialError{Missing: []string{"eu-2"}, Lacks: func(r lock.Resource) bool { return r == "ns/b" }, Err: lock.ErrUnavailable},
	}
	s := start(t, asks(b), func(o *session.Options, _ *Options) { o.Namespace = "ns" })
	c := s.api(t)
	list, err := c.ListLocks(t.Context(), &pb.ListLocksRequest{Partial: true})
	if err != nil || len(list.GetLocks()) != 1 || fmt.Sprint(list.GetMissingShards()) != "[eu-2]" {
		t.Errorf("partial: %v, %v", list, err)
	}
	if _, err := c.ListLocks(t.Context(), &pb.ListLocksRequest{}); reasonOf(t, err) != reasonUnavailable || !strings.Contains(err.Error(), "eu-2") {
		t.Errorf("not partial: %v", err)
	}
	watch := func(partial bool) (kinds []string, err error) {
		w, err := c.WatchLocks(t.Context(), &pb.WatchLocksRequest{Partial: partial})
		for err == nil && len(kinds) < 3 {
			var e *pb.WatchEvent
			if e, err = w.Recv(); err == nil {
				kinds = append(kinds, fmt.Sprint(e.GetKind(), e.GetMissingShards()))
			}
		}
		return kinds, err
	}
	if kinds, err := watch(true); fmt.Sprint(kinds) != "[MISSING [eu-2] CURRENT [] SYNCED []]" {
		t.Errorf("partial: %v, %v", kinds, err)
	}
	if kinds, err := watch(false); len(kinds) != 0 || reasonOf(t, err) != reasonUnavailable {
		t.Errorf("not partial: %v, %v", kinds, err)
	}
	for resource, known := range map[string]bool{"a": true, "b": false} {
		w, err := c.WatchLeader(t.Context(), &pb.WatchLeaderRequest{Resource: resource})
		if err != nil {
			t.Fatal(err)
		}
		l, err := w.Recv()
		if known && (err != nil || !l.GetLeads()) || !known && reasonOf(t, err) != reasonUnavailable {
			t.Errorf("leader of %s: %v, %v", resource, l, err)
		}
	}
}

// TestForcedReleases: who may force one, with what grace, and what is said of it.
func TestForcedReleases(t *testing.T) {
	var out logLines
	b := &asked{}
	s := start(t, asks(b), logTo(&out))
	c := s.api(t)
	force := func(q *pb.ForceReleaseRequest) error {
		a, err := c.ForceRelease(t.Context(), q)
		if err == nil && q.GetLockId() != "" && fmt.Sprint(a.GetLockIds()) != "["+q.GetLockId()+"]" {
			t.Errorf("%v: %v", q, a)
		}
		return err
	}
	for _, q := range []*pb.ForceReleaseRequest{
		{Resource: "a", LockId: "1"},
		{Resource: "a", LockId: "2", Grace: durationpb.New(0)},
		{Resource: "a", LockId: "3", Grace: durationpb.New(5 * time.Second)},
	} {
		if err := force(q); err != nil {
			t.Error(err)
		}
	}
	if got := strings.Join(b.force, ", "); got != "a 1 2s, a 2 0s, a 3 5s" {
		t.Errorf("the store is asked for %s", got)
	}
	const said = "lock taken from its holder: resource=a lock_ids="
	if n := strings.Count(out.String(), "[WARN]  "+said); n != 3 {
		t.Errorf("%d lines: %s", n, out.String())
	}
	if err := force(&pb.ForceReleaseRequest{Resource: "a", Grace: durationpb.New(-1)}); reasonOf(t, err) != reasonInvalid {
		t.Errorf("negative grace: %v", err)
	}
	if err := force(&pb.ForceReleaseRequest{Resource: "free"}); err != nil || strings.Contains(out.String(), "taken from its holder: resource=free") {
		t.Errorf("free: %v, %s", err, out.String())
	}
	b = &asked{}
	s = start(t, asks(b), func(_ *session.Options, o *Options) { o.Access.AdminUIDs = []uint32{1 << 30} })
	c = s.api(t)
	if err := force(&pb.ForceReleaseRequest{Resource: "a", LockId: "4"}); reasonOf(t, err) != reasonPermission || !strings.HasSuffix(err.Error(), "is not one of this sidecar's admins") {
		t.Errorf("no admin: %v", err)
	}
	if len(b.force) != 0 {
		t.Errorf("the store is asked for %v", b.force)
	}
}

// TestStoreErrorsOfLooks: an answer that the store has not given is none.
func TestStoreErrorsOfLooks(t *testing.T) {
	s := start(t, asks(&asked{}))
	c := s.api(t)
	_, get := c.GetLock(t.Context(), &pb.GetLockRequest{Resource: "broken"})
	_, list := c.ListLocks(t.Context(), &pb.ListLocksRequest{Prefix: "broken"})
	_, force := c.ForceRelease(t.Context(), &pb.ForceReleaseRequest{Resource: "broken", LockId: "1"})
	for name, err := range map[string]error{"get": get, "list": list, "force": force} {
		if reasonOf(t, err) != reasonUnavailable {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// TestInfo tells what the sidecar knows of itself.
func TestInfo(t *testing.T) {
	s := start(t, func(o *session.Options, _ *Options) { o.Namespace, o.TTL = "ns", 20*time.Second })
	c := s.api(t)
	x := s.stream(t, c, &pb.OpenSessionRequest{})
	for _, r := range []string{"a", "b"} {
		x.acquire(r, &pb.AcquireRequest{Resource: r})
		x.answer(r)
	}
	y := s.stream(t, c, &pb.OpenSessionRequest{})
	for _, id := range []string{"1", "2", "3"} {
		y.acquire(id, &pb.AcquireRequest{Resource: "a"})
	}
	eventually(t, "waiting", func() bool { return s.manager.Info().Waiters == 3 })
	got, err := c.GetInfo(t.Context(), &pb.GetInfoRequest{})
	if err != nil {
		t.Fatal(err)
	}
	i := s.manager.Info()
	if d := got.GetLeaseValidFor().AsDuration(); d <= 0 || d > 20*time.Second {
		t.Errorf("the lease is valid for %s", d)
	}
	if d := got.GetUptime().AsDuration(); d <= 0 || d > i.Uptime {
		t.Errorf("up for %s", d)
	}
	got.LeaseValidFor, got.Uptime = nil, nil
	same(t, got, &pb.Info{
		Version: "v0-test", Sidecar: "test-sidecar", Store: "embedded:", Namespace: "ns", Ready: true, LeaseId: string(i.LeaseID),
		LeaseTtl: durationpb.New(20 * time.Second), Sessions: 2, Holds: 2, Waiters: 3,
	})
	opened, err := c.OpenSession(t.Context(), &pb.OpenSessionRequest{Ttl: durationpb.New(time.Minute)})
	if err != nil || opened.GetCountedAt().AsDuration() <= 0 || opened.GetSessionId() == "" {
		t.Fatalf("%v %v", opened, err)
	}
	opened.CountedAt, opened.SessionId = nil, ""
	same(t, opened, &pb.OpenSessionResponse{LeaseTtl: durationpb.New(20 * time.Second), LeaseMargin: durationpb.New(i.LeaseMargin), Sidecar: "test-sidecar"})

	if err := x.CloseSend(); err != nil {
		t.Fatal(err)
	}
	drained, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- s.manager.Drain(drained) }()
	eventually(t, "draining", func() bool { return s.manager.Info().Draining })
	if got, err = c.GetInfo(t.Context(), &pb.GetInfoRequest{}); err != nil || !got.GetDraining() || got.GetReady() || got.GetNotReadyBecause() == "" {
		t.Errorf("%v %v", got, err)
	}
	cancel()
	_ = within(t, done)
}

// TestCallsOfNoSession: each call that needs a session says so where there is none.
func TestCallsOfNoSession(t *testing.T) {
	s := start(t)
	c := s.api(t)
	ctx := t.Context()
	for name, call := range map[string]func(id string) error{
		"keep alive": func(id string) error {
			_, err := c.KeepAlive(ctx, &pb.KeepAliveRequest{SessionId: id})
			return err
		},
		"close": func(id string) error {
			_, err := c.CloseSession(ctx, &pb.CloseSessionRequest{SessionId: id})
			return err
		},
		"acquire": func(id string) error {
			_, err := c.Acquire(ctx, &pb.AcquireRequest{SessionId: id, Resource: "r"})
			return err
		},
		"cancel": func(id string) error {
			_, err := c.Cancel(ctx, &pb.CancelRequest{SessionId: id, RequestId: "1"})
			return err
		},
		"release": func(id string) error {
			_, err := c.Release(ctx, &pb.ReleaseRequest{SessionId: id, LockId: "1"})
			return err
		},
		"downgrade": func(id string) error {
			_, err := c.Downgrade(ctx, &pb.DowngradeRequest{SessionId: id, LockId: "1"})
			return err
		},
		"extend": func(id string) error {
			_, err := c.Extend(ctx, &pb.ExtendRequest{SessionId: id, LockId: "1", MaxHold: durationpb.New(time.Second)})
			return err
		},
		"events": func(id string) error {
			st, err := c.Events(ctx, &pb.EventsRequest{SessionId: id})
			if err == nil {
				_, err = st.Recv()
			}
			return err
		},
	} {
		if err := call(""); reasonOf(t, err) != reasonInvalid || !strings.Contains(err.Error(), "session_id must not be empty") {
			t.Errorf("%s without a session: %v", name, err)
		}
		if err := call("none"); reasonOf(t, err) != reasonNoSession {
			t.Errorf("%s with another: %v", name, err)
		}
	}
}

// TestRefusalsOfCalls: what a call over gRPC must not be asked for.
func TestRefusalsOfCalls(t *testing.T) {
	s := start(t)
	c := s.api(t)
	ctx := t.Context()
	o, err := c.OpenSession(ctx, &pb.OpenSessionRequest{})
	if err != nil {
		t.Fatal(err)
	}
	id := o.GetSessionId()
	for text, call := range map[string]func() error{
		"lock_id must not be empty": func() error {
			_, err := c.Release(ctx, &pb.ReleaseRequest{SessionId: id})
			return err
		},
		"lock_id must not be empty ": func() error {
			_, err := c.Downgrade(ctx, &pb.DowngradeRequest{SessionId: id})
			return err
		},
		"lock_id must not be empty  ": func() error {
			_, err := c.Extend(ctx, &pb.ExtendRequest{SessionId: id})
			return err
		},
		"max_hold must not be negative": func() error {
			_, err := c.Extend(ctx, &pb.ExtendRequest{SessionId: id, LockId: "1", MaxHold: durationpb.New(-1)})
			return err
		},
		"name and metadata belong to the session here": func() error {
			_, err := c.Acquire(ctx, &pb.AcquireRequest{SessionId: id, Resource: "r", Name: "n"})
			return err
		},
		"name and metadata belong to the session here ": func() error {
			_, err := c.Acquire(ctx, &pb.AcquireRequest{SessionId: id, Resource: "r", Metadata: map[string]string{"k": "v"}})
			return err
		},
		"mode must be EXCLUSIVE, SHARED or PERMIT, and not 7": func() error {
			_, err := c.Acquire(ctx, &pb.AcquireRequest{SessionId: id, Resource: "r", Mode: 7})
			return err
		},
		"liveness must be PROCESS, TTL or STREAM, and not 7": func() error {
			_, err := c.OpenSession(ctx, &pb.OpenSessionRequest{Liveness: 7})
			return err
		},
		"liveness must not be STREAM here: use the Session stream": func() error {
			_, err := c.OpenSession(ctx, &pb.OpenSessionRequest{Liveness: pb.Liveness_STREAM})
			return err
		},
		"ttl must not be negative": func() error {
			_, err := c.OpenSession(ctx, &pb.OpenSessionRequest{Ttl: durationpb.New(-1)})
			return err
		},
		"interval must not be 0: leave it out for 1s": func() error { return watchError(ctx, c, durationpb.New(0)) },
		"interval must not be negative":               func() error { return watchError(ctx, c, durationpb.New(-1)) },
		"session_id must be empty here": func() error {
			st, err := c.Hold(ctx, &pb.AcquireRequest{SessionId: id, Resource: "r"})
			if err == nil {
				_, err = st.Recv()
			}
			return err
		},
		"wait must not be negative": func() error {
			st, err := c.Hold(ctx, &pb.AcquireRequest{Resource: "r", Wait: durationpb.New(-1)})
			if err == nil {
				_, err = st.Recv()
			}
			return err
		},
	} {
		if err := call(); reasonOf(t, err) != reasonInvalid || !strings.Contains(err.Error(), strings.TrimSpace(text)) {
			t.Errorf("%v, want %q", err, text)
		}
	}
	_, err = c.Downgrade(ctx, &pb.DowngradeRequest{SessionId: id, LockId: "none"})
	if reasonOf(t, err) != reasonNotHolder {
		t.Errorf("downgrade of nothing: %v", err)
	}
	if k, err := c.KeepAlive(ctx, &pb.KeepAliveRequest{SessionId: id}); err != nil || k.GetValidFor().AsDuration() != 0 {
		t.Errorf("keep alive of a session without a TTL: %v, %v", k, err)
	}
	_, err = c.Cancel(ctx, &pb.CancelRequest{SessionId: id})
	if reasonOf(t, err) != reasonInvalid {
		t.Errorf("cancel of no request: %v", err)
	}
	if i := s.manager.Info(); i.Holds != 0 || i.Sessions != 1 {
		t.Errorf("%+v", i)
	}
}

func watchError(ctx context.Context, c pb.LockSidecarClient, interval *durationpb.Duration) error {
	w, err := c.WatchLocks(ctx, &pb.WatchLocksRequest{Interval: interval})
	if err == nil {
		_, err = w.Recv()
	}
	return err
}

// TestCallsWithoutAConnection: nobody is served whose uid is not known.
func TestCallsWithoutAConnection(t *testing.T) {
	s := start(t)
	api := &service{Server: s.server}
	ctx := t.Context()
	for name, call := range map[string]func() error{
		"open":  func() error { _, err := api.OpenSession(ctx, &pb.OpenSessionRequest{}); return err },
		"find":  func() error { _, err := api.KeepAlive(ctx, &pb.KeepAliveRequest{SessionId: "x"}); return err },
		"hold":  func() error { return api.hold(ctx, &pb.AcquireRequest{Resource: "r"}, nil) },
		"watch": func() error { return api.watch(ctx, &pb.WatchLocksRequest{}, nil) },
		"force": func() error { _, err := api.ForceRelease(ctx, &pb.ForceReleaseRequest{Resource: "r"}); return err },
		"unary": func() error { _, err := s.server.unaryEdge(ctx, nil, &grpc.UnaryServerInfo{}, nil); return err },
	} {
		if call() == nil {
			t.Errorf("%s is served", name)
		}
	}
}

// TestHealthOfOthers: the health of a service that is not here is unknown, and its watch
// says so and goes on, as grpc.health.v1 wants it.
func TestHealthOfOthers(t *testing.T) {
	s := start(t)
	c := healthpb.NewHealthClient(s.dialGRPC(t))
	if a, err := c.Check(t.Context(), &healthpb.HealthCheckRequest{Service: "x"}); status.Code(err) != codes.NotFound || status.Convert(err).Message() != `unknown service "x"` {
		t.Errorf("%v %v", a, err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	w, err := c.Watch(ctx, &healthpb.HealthCheckRequest{Service: "x"})
	if err != nil {
		t.Fatal(err)
	}
	if a, err := w.Recv(); err != nil || a.GetStatus() != healthpb.HealthCheckResponse_SERVICE_UNKNOWN {
		t.Errorf("%v %v", a, err)
	}
	s.stop()
	if a, err := w.Recv(); reasonOf(t, err) != reasonDraining {
		t.Errorf("at the end: %v %v", a, err)
	}
}
