package localapi

import (
	"errors"
	"net"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/hashicorp/go-hclog"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/durationpb"

	pb "github.com/locksidecar/locksidecar/api/locksidecar/v1"
	"github.com/locksidecar/locksidecar/localapi/peercred"
	"github.com/locksidecar/locksidecar/session"
)

// withNames is a sidecar where who connects is taken for whom as says at that moment; an empty
// name cannot be told.
func withNames(t *testing.T, change ...func(*session.Options, *Options)) (s *sidecar, as func(name string)) {
	t.Helper()
	var now atomic.Value
	now.Store("")
	return start(t, append(change, func(_ *session.Options, lo *Options) {
		lo.Principals = func(*net.UnixConn) (Who, error) {
			name, _ := now.Load().(string)
			if name == "" {
				return Who{}, errors.New("it is in no unit")
			}
			return Who{Name: name}, nil
		}
	})...), func(name string) { now.Store(name) }
}

// TestSessionsOfPrincipals: a session belongs to its principal, also where another one has the
// same uid and knows the id; each has limits of its own; lists say whose what is.
func TestSessionsOfPrincipals(t *testing.T) {
	s, as := withNames(t, func(so *session.Options, lo *Options) {
		so.Limits.SessionsPerUID = 1
		lo.Limits.WatchesPerUID = 1
	})
	open := func(c pb.LockSidecarClient) (string, error) {
		a, err := c.OpenSession(t.Context(), &pb.OpenSessionRequest{Ttl: durationpb.New(time.Minute)})
		return a.GetSessionId(), err
	}
	limit := func(what string, err error) {
		t.Helper()
		if reasonOf(t, err) != reasonLimit || infoOf(t, status.Convert(err).Proto()).GetMetadata()["limit"] != what {
			t.Errorf("%v, want the limit %s", err, what)
		}
	}
	as("unit:web.service")
	web := s.api(t)
	id, err := open(web)
	if err != nil {
		t.Fatal(err)
	}
	acquire := &pb.AcquireRequest{SessionId: id, Resource: "a"}
	if _, err := web.Acquire(t.Context(), acquire); err != nil {
		t.Fatal(err)
	}
	_, err = open(web)
	limit("sessions per unit", err)
	watch := func(c pb.LockSidecarClient) error {
		w, err := c.WatchLocks(t.Context(), &pb.WatchLocksRequest{})
		if err == nil {
			_, err = w.Recv()
		}
		return err
	}
	if err := watch(web); err != nil {
		t.Error(err)
	}
	limit("watches of one unit", watch(web))

	as("unit:batch.service")
	batch := s.api(t)
	if _, err := batch.Acquire(t.Context(), acquire); reasonOf(t, err) != reasonNoSession {
		t.Errorf("an acquire for the session of another unit: %v", err)
	}
	if _, err := batch.CloseSession(t.Context(), &pb.CloseSessionRequest{SessionId: id}); reasonOf(t, err) != reasonNoSession {
		t.Errorf("the end of the session of another unit: %v", err)
	}
	if err := watch(batch); err != nil {
		t.Errorf("a watch of another unit: %v", err)
	}
	other, err := open(batch)
	if err != nil {
		t.Fatal("another unit of the same user: ", err)
	}
	_, err = batch.Acquire(t.Context(), &pb.AcquireRequest{SessionId: other, Resource: "a", Wait: durationpb.New(0)})
	if reasonOf(t, err) != reasonHeld || infoOf(t, status.Convert(err).Proto()).GetMetadata()["holder_principal"] != "unit:web.service" {
		t.Errorf("who has it: %v", err)
	}
	got, err := batch.GetLock(t.Context(), &pb.GetLockRequest{Resource: "a"})
	if err != nil || len(got.GetHolders()) != 1 || got.GetHolders()[0].GetPrincipal() != "unit:web.service" {
		t.Errorf("%v, %v", got, err)
	}
	counts := make(map[string]int)
	s.manager.EachPrincipal(func(name string, sessions, holds int) { counts[name] = 10*sessions + holds })
	if len(counts) != 2 || counts["unit:web.service"] != 11 || counts["unit:batch.service"] != 10 {
		t.Errorf("counted: %v", counts)
	}
}

// TestPlacesOfPrincipals: what one unit takes, another one of the same user still has.
func TestPlacesOfPrincipals(t *testing.T) {
	p := newPlaces(8, each(1, 0, 0))
	u := newUnread()
	of := func(name string) *conn { return &conn{peer: &peercred.Peer{UID: 1000}, principal: name} }
	refused := func(err error, limit string) {
		t.Helper()
		var l *session.LimitError
		if !errors.As(err, &l) || l.Limit != limit {
			t.Errorf("%v, want %s", err, limit)
		}
	}
	web, batch := of("unit:web.service"), of("unit:batch.service")
	for _, c := range []*conn{web, batch, of("")} {
		if evicted, err := p.admit(c); err != nil || evicted != nil {
			t.Errorf("%s: %v, evicted %v", c.whoSays(), err, evicted != nil)
		}
		if err := u.take(c, maxUnreadUser); err != nil {
			t.Errorf("%s: %v", c.whoSays(), err)
		}
	}
	_, err := p.admit(of("unit:web.service"))
	refused(err, "connections of one unit")
	refused(u.take(of("unit:web.service"), 1), "bytes of unread answers of one unit")
	p.free(web)
	u.forget(web)
	if _, err := p.admit(of("unit:web.service")); err != nil {
		t.Error(err)
	}
	if err := u.take(of("unit:web.service"), 1); err != nil {
		t.Error(err)
	}
	p.free(batch)
	if n := p.count(); n != 2 {
		t.Errorf("%d places are taken", n)
	}
}

// TestWhoCannotBeTold may do nothing, also with the uid of an admin, in each protocol.
func TestWhoCannotBeTold(t *testing.T) {
	s, _ := withNames(t)
	code, body := call(t, s.http(t), http.MethodGet, "/v1/info", "")
	if st := jsonStatus(t, body); code != http.StatusForbidden || !strings.HasSuffix(st.GetMessage(), "may not use this sidecar: it is in no unit") {
		t.Errorf("%d %s", code, body)
	}
	if _, err := s.api(t).GetInfo(t.Context(), &pb.GetInfoRequest{}); reasonOf(t, err) != reasonPermission {
		t.Error(err)
	}
	x := s.says(t, opening)
	x.refusedWith("", reasonPermission, "it is in no unit")
	x.ends()
}

// TestAdminsByName: a principal that is named is an admin, whatever its uid, and root is none then.
func TestAdminsByName(t *testing.T) {
	var out logLines
	s, as := withNames(t, func(_ *session.Options, lo *Options) {
		lo.Access.Admins = []string{"unit:ops.service"}
		lo.Logger = hclog.New(&hclog.LoggerOptions{Output: &out})
	})
	force := &pb.ForceReleaseRequest{Resource: "a"}
	as("unit:web.service")
	holder := s.api(t)
	h, err := holder.Hold(t.Context(), &pb.AcquireRequest{Resource: "a"})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := h.Recv(); err != nil {
		t.Fatal(err)
	}
	_, err = holder.ForceRelease(t.Context(), force)
	if reasonOf(t, err) != reasonPermission || !strings.Contains(err.Error(), "unit:web.service is not one of this sidecar's admins") {
		t.Errorf("no admin: %v", err)
	}
	as("unit:ops.service")
	if _, err := s.api(t).ForceRelease(t.Context(), force); err != nil {
		t.Errorf("an admin: %v", err)
	}
	if line := out.String(); !strings.Contains(line, "lock taken from its holder") || !strings.Contains(line, "principal=unit:ops.service") {
		t.Errorf("the log: %s", line)
	}
}

func TestAccessByName(t *testing.T) {
	of := func(uid uint32, name string) session.Peer { return session.Peer{UID: uid, Principal: name} }
	for name, x := range map[string]struct {
		access       Access
		peer         session.Peer
		allow, admin bool
	}{
		"allowed":               {Access{Allow: []string{"unit:a"}}, of(1000, "unit:a"), true, false},
		"another":               {Access{Allow: []string{"unit:a"}}, of(1000, "unit:b"), false, false},
		"no name":               {Access{Allow: []string{""}, Admins: []string{""}}, of(1000, ""), false, false},
		"root, by default":      {Access{Allow: []string{"unit:a"}}, of(0, "unit:b"), true, true},
		"a named admin":         {Access{Allow: []string{"unit:a"}, Admins: []string{"unit:b"}}, of(1000, "unit:b"), true, true},
		"root is not named":     {Access{Admins: []string{"unit:b"}}, of(0, "unit:a"), true, false},
		"root is named as well": {Access{Admins: []string{"unit:b"}, AdminUIDs: []uint32{0}}, of(0, "unit:a"), true, true},
		"or by uid":             {Access{Allow: []string{"unit:a"}, AllowUIDs: []uint32{1000}}, of(1000, "unit:b"), true, false},
	} {
		a := x.access.withDefaults(77)
		ok, err := a.allows(x.peer, nil)
		if err != nil || ok != x.allow || a.admin(x.peer) != x.admin {
			t.Errorf("%s: allowed %v (%v), admin %v", name, ok, err, a.admin(x.peer))
		}
	}
}

// TestStrangersCountAsOne: those of whom nobody can tell who they are have one share of the connections together,
// whatever users they are. (A container may choose its users.)
func TestStrangersCountAsOne(t *testing.T) {
	p := newPlaces(32, each(2, 0, 0))
	p.firstWord = time.Hour // nobody makes room
	of := func(uid uint32, name string, unknown error) *conn {
		return &conn{peer: &peercred.Peer{UID: uid}, principal: name, unknown: unknown, places: p}
	}
	for uid := range uint32(2) {
		if _, err := p.admit(of(uid, "", errors.New("no pod"))); err != nil {
			t.Fatal(err)
		}
	}
	var limit *session.LimitError
	if _, err := p.admit(of(2, "", errors.New("no pod"))); !errors.As(err, &limit) || limit.Limit != "connections of all who are not known" {
		t.Errorf("one more user: %v", err)
	}
	for uid := range uint32(2) {
		if _, err := p.admit(of(uid, "pod:shop/orders", nil)); err != nil {
			t.Errorf("a pod that is known: %v", err)
		}
	}
}
