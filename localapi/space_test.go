package localapi

import (
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/hashicorp/go-hclog"
	"google.golang.org/protobuf/types/known/durationpb"

	pb "github.com/locksidecar/locksidecar/api/locksidecar/v1"
	"github.com/locksidecar/locksidecar/lock"
	"github.com/locksidecar/locksidecar/session"
	"github.com/locksidecar/locksidecar/session/outcome"
)

// withSpaces is withNames where each principal has a space of its own, but for ops, which sees all.
func withSpaces(t *testing.T, change ...func(*session.Options, *Options)) (s *sidecar, as func(name string)) {
	t.Helper()
	return withNames(t, append([]func(*session.Options, *Options){func(so *session.Options, lo *Options) {
		lo.Access.Admins = []string{"unit:web.service", "unit:job.service", "unit:ops.service"}
		lo.Spaces = func(principal string) string {
			if principal == "unit:ops.service" {
				return ""
			}
			return UnitOf(principal)
		}
	}}, change...)...)
}

// in gives the space of a unit.
func (s *sidecar) in(t *testing.T, unit string) *session.Space {
	t.Helper()
	sp, err := s.manager.In(unit)
	if err != nil {
		t.Fatal(err)
	}
	return sp
}

// occupy has an app of a space hold resources, and another one wait for the first.
func occupy(t *testing.T, sp *session.Space, resources ...string) {
	t.Helper()
	peer := session.Peer{UID: 4000, Principal: "unit:" + sp.Name()}
	open := func() *session.Session {
		x, err := sp.Open(t.Context(), session.OpenRequest{Liveness: session.Stream, Name: "neighbour", Peer: peer})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(x.Close)
		return x
	}
	x := open()
	for _, r := range resources {
		if _, err := x.Acquire(t.Context(), session.AcquireRequest{Resource: r, Mode: lock.Exclusive, Owner: "t1", Reentrant: true, Wait: time.Minute}); err != nil {
			t.Fatal(err)
		}
	}
	waiter := open()
	q := waiter.Begin(t.Context(), session.AcquireRequest{Resource: resources[0], Mode: lock.Exclusive, Wait: session.Forever}, func(session.Grant, error) {})
	q.Run()
}

// TestEachSpaceGivesTheSameAnswers: what apps are told in a space is the same, over each
// protocol, whether they are alone, or an app of another space holds and waits for locks of
// the same names, or apps of another space do the same at the same time.
func TestEachSpaceGivesTheSameAnswers(t *testing.T) {
	grace := func(o *session.Options, _ *Options) { o.LostGrace = time.Minute }
	me := func(unit, history string) string { return strings.ReplaceAll(history, unit, "mine.service") }
	alone := make(map[string]string)
	for _, over := range []string{"gRPC", "lines", "HTTP"} {
		for _, neighbour := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s/%t", over, neighbour), func(t *testing.T) {
				s, as := withSpaces(t, noNews, grace)
				if neighbour {
					occupy(t, s.in(t, "web.service"), "ä/1", "x", "y", "z", "short", "r", "none")
					occupy(t, s.in(t, "job.service.d"), "ä/1", "x", "y", "z", "short", "r", "none") // the name begins as the other
				}
				as("unit:job.service")
				a, b := s.apps(t, over)
				got := me("job.service", history(t, s.in(t, "job.service"), a, b))
				if alone[over] == "" {
					alone[over] = got
				}
				sameHistory(t, "alone", alone[over], got)
				sameHistory(t, "over gRPC", alone["gRPC"], got)
			})
		}
		if over == "HTTP" {
			continue // it makes connections as it needs them
		}
		t.Run(over+"/both", func(t *testing.T) {
			s, as := withSpaces(t, noNews, grace)
			var at [2][2]app
			units := []string{"web.service", "job.service"}
			for i, unit := range units {
				as("unit:" + unit)
				at[i][0], at[i][1] = s.apps(t, over)
			}
			t.Run("group", func(t *testing.T) {
				for i, unit := range units {
					t.Run(unit, func(t *testing.T) {
						t.Parallel()
						sameHistory(t, "alone", alone[over], me(unit, history(t, s.in(t, unit), at[i][0], at[i][1])))
					})
				}
			})
		})
	}
}

// strange are names that an app could try in order to get at web.service/secret.
var strange = []string{
	"web.service/secret", "/web.service/secret", "../web.service/secret", "..//secret", "./../web.service/secret", "%2e%2e/web.service/secret",
	"web.service%2Fsecret", "//web.service/secret", "web.service\\secret", "secret", "/secret", "web.service", "web.service/", "/", "..", ".", "*", "?*", "[w]*", "%", "_", "'", "{web.service}/secret",
	"web.service／secret", strings.Repeat("../", 100) + "web.service/secret",
}

// TestNoNameLeavesItsSpace: whatever an app sends as a name, the beginning of one, a page or a
// handle, it sees nothing of another space, and changes nothing there. It is an admin of its own.
func TestNoNameLeavesItsSpace(t *testing.T) {
	s, as := withSpaces(t)
	web := s.in(t, "web.service")
	owner, err := web.Open(t.Context(), session.OpenRequest{Liveness: session.Stream, Name: "hidden", Peer: session.Peer{Principal: "unit:web.service"}})
	if err != nil {
		t.Fatal(err)
	}
	defer owner.Close()
	g, err := owner.Acquire(t.Context(), session.AcquireRequest{Resource: "secret", Mode: lock.Exclusive, Wait: time.Minute})
	if err != nil {
		t.Fatal(err)
	}
	done, err := owner.Acquire(t.Context(), session.AcquireRequest{Resource: "secret/once", Mode: lock.Exclusive, Once: &outcome.Wish{Keep: time.Hour}, Wait: time.Minute})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := owner.Conclude(t.Context(), done.LockID, "", outcome.Succeeded, "hidden"); err != nil {
		t.Fatal(err)
	}
	loose, err := owner.Acquire(t.Context(), session.AcquireRequest{Resource: "secret/loose", Mode: lock.Exclusive, Detachable: true, Wait: time.Minute})
	if err != nil {
		t.Fatal(err)
	}
	detached, err := owner.Detach(t.Context(), loose.LockID, time.Hour)
	if err != nil {
		t.Fatal(err)
	}
	stands := func(after string) {
		t.Helper()
		list, err := web.List(t.Context(), "", "", 100)
		if err != nil || len(list) != 2 || list[0].Resource != "secret" || list[0].Holders[0].ID != g.LockID || list[0].Holders[0].Revoked || len(list[0].Waiters) != 0 || list[1].Resource != "secret/loose" {
			t.Fatalf("after %s, its owner sees %+v, %v", after, list, err)
		}
		if o, _, err := web.Outcomes(t.Context(), "", "", 10); err != nil || len(o) != 1 || o[0].Resource != "secret/once" {
			t.Fatalf("after %s, its owner has the outcomes %+v, %v", after, o, err)
		}
	}
	stands("nothing")

	as("unit:job.service")
	c := s.api(t)
	x := s.stream(t, s.streams(t, overLines), &pb.OpenSessionRequest{})
	h := s.http(t)
	blind := func(what string, found any) {
		t.Helper()
		if text := fmt.Sprint(found); strings.Contains(text, "hidden") || strings.Contains(text, string(g.LockID)) {
			t.Errorf("%s shows %s", what, text)
		}
	}
	for i, name := range append(slices.Clone(strange), "a\x00b", "web.service/secret\x00", strings.Repeat("x", 513), strings.Repeat("x", 501)) {
		l, _ := c.GetLock(t.Context(), &pb.GetLockRequest{Resource: name})
		blind("get "+name, l)
		_, body := call(t, h, http.MethodGet, "/v1/locks/"+url.PathEscape(name), "")
		blind("GET "+name, body)
		if path := "/v1/locks/" + strings.NewReplacer("\x00", "%00", " ", "%20").Replace(name); strings.Trim(name, "%?") == name { // as it is
			_, body = call(t, h, http.MethodGet, path, "")
			blind("GET unescaped "+name, body)
		}
		all, _ := c.ListLocks(t.Context(), &pb.ListLocksRequest{Prefix: name})
		blind("list "+name, all)
		for _, token := range []string{pageToken(name), name, pageToken("\x00"), pageToken("../"), pageToken("\xff")} {
			all, _ = c.ListLocks(t.Context(), &pb.ListLocksRequest{PageToken: token})
			blind("list after "+name, all)
			o, _ := c.ListOutcomes(t.Context(), &pb.ListOutcomesRequest{PageToken: token})
			blind("outcomes after "+name, o)
		}
		o, _ := c.ListOutcomes(t.Context(), &pb.ListOutcomesRequest{Prefix: name})
		blind("outcomes "+name, o)
		reset, _ := c.ResetOutcome(t.Context(), &pb.ResetOutcomeRequest{Resource: name})
		if reset.GetOutcome() != nil {
			t.Errorf("reset %s: %v", name, reset)
		}
		for _, id := range []string{"", string(g.LockID)} {
			if f, _ := c.ForceRelease(t.Context(), &pb.ForceReleaseRequest{Resource: name, LockId: id, Grace: durationpb.New(0)}); len(f.GetLockIds()) > 0 {
				t.Errorf("forced %q: %v", name, f)
			}
		}
		leader, _ := c.GetLeader(t.Context(), &pb.GetLeaderRequest{Resource: name})
		blind("leader "+name, leader)
		id := fmt.Sprint(i)
		got := x.ask(acquireOf(id, tryOnce(name)))
		if e := got.GetError(); e != nil && infoOf(t, e).GetReason() != string(reasonInvalid) {
			t.Errorf("an acquire of %q: %v", name, e)
		} else if e == nil {
			x.ask(releaseOf(id+"r", got.GetGranted().GetLockId(), ""))
		}
		stands(fmt.Sprintf("%q", name))
	}
	if e := x.ask(releaseOf("other", string(g.LockID), "")).GetError(); e == nil || infoOf(t, e).GetReason() != string(reasonNotHolder) {
		t.Errorf("the release of a lock of another space: %v", e)
	}
	for what, err := range map[string]error{
		"extend": func() error {
			_, err := c.ExtendHandle(t.Context(), &pb.ExtendHandleRequest{Handle: detached.Handle, Ttl: durationpb.New(time.Minute)})
			return err
		}(),
		"release": func() error {
			_, err := c.ReleaseHandle(t.Context(), &pb.ReleaseHandleRequest{Handle: detached.Handle})
			return err
		}(),
	} {
		if reasonOf(t, err) != reasonInvalid || !strings.Contains(err.Error(), "is of another space of names than yours") {
			t.Errorf("%s by a handle of another space: %v", what, err)
		}
	}
	if e := x.ask(acquireOf("attach", &pb.AcquireRequest{Handle: detached.Handle})).GetError(); e == nil || infoOf(t, e).GetReason() != string(reasonInvalid) {
		t.Errorf("attached by a handle of another space: %v", e)
	}
	_, err = c.Acquire(t.Context(), &pb.AcquireRequest{SessionId: string(owner.ID()), Resource: "a"})
	if reasonOf(t, err) != reasonNoSession {
		t.Errorf("an acquire for the session of another space: %v", err)
	}
	if e := x.ask(acquireOf("long", tryOnce(strings.Repeat("x", 501)))).GetError(); !strings.Contains(e.GetMessage(), `is 501 bytes long, at most 500 are allowed: in the store "job.service/" stands before it`) {
		t.Errorf("a name that is too long: %v", e)
	}
	if code, body := call(t, h, http.MethodGet, "/metrics", ""); code != http.StatusForbidden {
		t.Errorf("the metrics: %d %s", code, body)
	}
	i, err := c.GetInfo(t.Context(), &pb.GetInfoRequest{})
	if err != nil || i.GetNamespace() != "job.service" || i.GetSessions() != 1 || i.GetHolds() != 0 || i.GetWaiters() != 0 || i.GetParked() != 0 {
		t.Errorf("info: %v, %v", i, err)
	}
	stands("all that")

	as("unit:ops.service") // sees all
	if l, err := s.api(t).GetLock(t.Context(), &pb.GetLockRequest{Resource: "web.service/secret"}); err != nil || len(l.GetHolders()) != 1 {
		t.Errorf("who sees all: %v, %v", l, err)
	}
	if code, _ := call(t, s.http(t), http.MethodGet, "/metrics", ""); code == http.StatusForbidden {
		t.Errorf("the metrics for who sees all: %d", code)
	}
	if _, err := s.api(t).ReleaseHandle(t.Context(), &pb.ReleaseHandleRequest{Handle: detached.Handle}); err != nil {
		t.Errorf("a handle for who sees all: %v", err)
	}
}

// TestWatchesOfSpaces: a watch shows its own space, also where others watch the same names, and
// the log says in which space somebody has taken a lock.
func TestWatchesOfSpaces(t *testing.T) {
	var out logLines
	s, as := withSpaces(t, logTo(&out))
	occupy(t, s.in(t, "web.service"), "a", "b")
	occupy(t, s.in(t, "job.service"), "b")
	seen := make(map[string][]string)
	var mu sync.Mutex
	var all sync.WaitGroup
	for _, unit := range []string{"web.service", "job.service", "ops.service", "none.service"} {
		as("unit:" + unit)
		c := s.api(t)
		if _, err := c.GetInfo(t.Context(), &pb.GetInfoRequest{}); err != nil { // now it is connected
			t.Fatal(err)
		}
		all.Go(func() {
			w, err := c.WatchLocks(t.Context(), &pb.WatchLocksRequest{})
			for err == nil {
				var e *pb.WatchEvent
				if e, err = w.Recv(); e.GetKind() == pb.WatchEvent_SYNCED {
					return
				}
				mu.Lock()
				seen[unit] = append(seen[unit], e.GetLock().GetResource())
				mu.Unlock()
			}
			t.Error(unit, err)
		})
	}
	all.Wait()
	for unit, want := range map[string][]string{
		"web.service": {"a", "b"}, "job.service": {"b"}, "none.service": nil,
		"ops.service": {"job.service/b", "web.service/a", "web.service/b"},
	} {
		if !slices.Equal(seen[unit], want) {
			t.Errorf("%s sees %q, want %q", unit, seen[unit], want)
		}
	}
	as("unit:job.service")
	f, err := s.api(t).ForceRelease(t.Context(), &pb.ForceReleaseRequest{Resource: "b", Grace: durationpb.New(0)})
	if err != nil || len(f.GetLockIds()) != 1 {
		t.Errorf("an admin in its space: %v, %v", f, err)
	}
	if line := out.String(); !strings.Contains(line, "space=job.service") {
		t.Errorf("the log: %s", line)
	}
	if st, err := s.in(t, "web.service").Get(t.Context(), "b"); err != nil || len(st.Holders) != 1 {
		t.Errorf("the lock of the other space: %+v, %v", st, err)
	}
}

// TestSpacesThatCannotBe: a principal whose space has no possible name may do nothing.
func TestSpacesThatCannotBe(t *testing.T) {
	for space, says := range map[string]string{
		"a/b":                    "must not contain a slash",
		strings.Repeat("x", 400): "leaves no room for names",
		"a\x00":                  "without control characters",
	} {
		s, as := withSpaces(t, func(so *session.Options, lo *Options) {
			so.Namespace = strings.Repeat("n", 110)
			lo.Spaces = func(string) string { return space }
			lo.Logger = hclog.NewNullLogger()
		})
		as("unit:web.service")
		if _, err := s.api(t).GetLock(t.Context(), &pb.GetLockRequest{Resource: "a"}); reasonOf(t, err) != reasonPermission || !strings.Contains(err.Error(), says) {
			t.Errorf("%q: %v", space, err)
		}
	}
	if lock.MaxResourceBytes != 512 {
		t.Error("the lengths above are for names of 512 bytes")
	}
}
