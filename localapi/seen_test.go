package localapi

import (
	"errors"
	"io"
	"net/http"
	"reflect"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	"google.golang.org/protobuf/types/known/durationpb"

	pb "github.com/locksidecar/locksidecar/api/locksidecar/v1"
	"github.com/locksidecar/locksidecar/lock"
	"github.com/locksidecar/locksidecar/session"
)

// TestDefaultLimits are those of the documents; of connections there are as many as the
// process may have files for.
func TestDefaultLimits(t *testing.T) {
	o := Options{Limits: Limits{Connections: 4096}}.withDefaults()
	want := Limits{
		Connections: 4096, ConnectionsPerUID: 3072, PerSpace: Quota{Connections: 2048, Watches: 2048}, WatchesPerUID: 64, MessageBytes: 64 << 10, HeaderBytes: 16 << 10,
		InFlight: 2048, Handshake: time.Minute, Body: time.Minute, Idle: 2 * time.Minute, Stall: 30 * time.Second,
	}
	if o.Limits != want || o.Mode != 0o660 {
		t.Errorf("%+v, %v, want %+v", o.Limits, o.Mode, want)
	}

	var before unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &before); err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := unix.Setrlimit(unix.RLIMIT_NOFILE, &before); err != nil {
			t.Error(err)
		}
	}()
	for files, want := range map[uint64]int{160: 16, 162: 17, 1128: 500, 8319: 4095, 8320: 4096, 8321: 4096, 9000: 4096} {
		for _, sideDoors := range []bool{false, true} {
			n := files
			if sideDoors {
				n += sideFiles
			}
			if n > before.Max {
				continue
			}
			if err := unix.Setrlimit(unix.RLIMIT_NOFILE, &unix.Rlimit{Cur: n, Max: before.Max}); err != nil {
				t.Fatal(err)
			}
			if got := affordableConnections(sideDoors); got != want {
				t.Errorf("%d connections with %d files, side doors %v, want %d", got, n, sideDoors, want)
			}
		}
	}
}

func TestDurations(t *testing.T) {
	for _, c := range []struct {
		in   *durationpb.Duration
		want time.Duration
		bad  string
	}{
		{nil, 7, ""},
		{&durationpb.Duration{}, 0, ""},
		{&durationpb.Duration{Seconds: 1, Nanos: 5}, time.Second + 5, ""},
		{&durationpb.Duration{Seconds: -1}, 0, "must not be negative"},
		{&durationpb.Duration{Nanos: -1}, 0, "must not be negative"},
		{&durationpb.Duration{Nanos: 1_000_000_000}, 0, "is not a valid duration"},
		{&durationpb.Duration{Seconds: 1 << 60}, 0, "is not a valid duration"},
	} {
		got, err := durationOf("f", c.in, 7)
		var i *lock.InvalidError
		if c.bad == "" && (err != nil || got != c.want) || c.bad != "" && (!errors.As(err, &i) || i.Field != "f" || i.Problem != c.bad) {
			t.Errorf("%v: %v, %v", c.in, got, err)
		}
	}
}

func TestAcquireRequests(t *testing.T) {
	second := durationpb.New(time.Second)
	for _, c := range []struct {
		q    *pb.AcquireRequest
		want session.AcquireRequest
		bad  string
	}{
		{&pb.AcquireRequest{}, session.AcquireRequest{Mode: lock.Exclusive, Wait: session.Forever}, ""},
		{&pb.AcquireRequest{Mode: pb.Mode_EXCLUSIVE}, session.AcquireRequest{Mode: lock.Exclusive, Wait: session.Forever}, ""},
		{&pb.AcquireRequest{Mode: pb.Mode_SHARED, Wait: &durationpb.Duration{}}, session.AcquireRequest{Mode: lock.Shared}, ""},
		{
			&pb.AcquireRequest{Resource: "r", Owner: "o", Reentrant: true, Wait: second, MaxHold: second},
			session.AcquireRequest{Resource: "r", Owner: "o", Reentrant: true, Mode: lock.Exclusive, Wait: time.Second, MaxHold: time.Second},
			"",
		},
		{
			&pb.AcquireRequest{Resources: []string{"b", "a"}},
			session.AcquireRequest{Resources: []string{"b", "a"}, Mode: lock.Exclusive, Wait: session.Forever},
			"",
		},
		{
			&pb.AcquireRequest{Resource: "r", MinHold: second, MaxHold: second},
			session.AcquireRequest{Resource: "r", Mode: lock.Exclusive, Wait: session.Forever, MaxHold: time.Second, MinHold: time.Second},
			"",
		},
		{&pb.AcquireRequest{MinHold: &durationpb.Duration{}}, session.AcquireRequest{}, "min_hold"},
		{&pb.AcquireRequest{MinHold: &durationpb.Duration{Seconds: -1}}, session.AcquireRequest{}, "min_hold"},
		{&pb.AcquireRequest{Mode: 9}, session.AcquireRequest{}, "mode"},
		{&pb.AcquireRequest{Wait: &durationpb.Duration{Seconds: -1}}, session.AcquireRequest{}, "wait"},
		{&pb.AcquireRequest{MaxHold: &durationpb.Duration{}}, session.AcquireRequest{}, "max_hold"},
		{&pb.AcquireRequest{MaxHold: &durationpb.Duration{Seconds: -1}}, session.AcquireRequest{}, "max_hold"},
	} {
		got, err := acquireRequestOf("1", c.q)
		c.want.RequestID = "1"
		var i *lock.InvalidError
		if c.bad == "" && (err != nil || !reflect.DeepEqual(got, c.want)) || c.bad != "" && (!errors.As(err, &i) || i.Field != c.bad) {
			t.Errorf("%v: %+v, %v", c.q, got, err)
		}
	}
}

// TestWordsOfRefusals: what an HTTP client is told that has made a mistake, as JSON.
func TestWordsOfRefusals(t *testing.T) {
	s := start(t)
	c := s.http(t)
	_, opened := call(t, c, http.MethodPost, "/v1/sessions", `{"ttl":"60s"}`)
	locks := "/v1/sessions/" + field(t, opened, "sessionId") + "/locks"
	id := field(t, opened, "sessionId")
	for _, x := range []struct {
		method, path, body string
		code               int
		want               string
	}{
		{http.MethodPost, locks, `{"resource":"r","mode":"X"}`, 400, "one of EXCLUSIVE, SHARED"},
		{http.MethodPost, locks, `{"resource":"r","wait":true}`, 400, `a time in seconds, such as \"0.5s\"`},
		{http.MethodPost, locks, `{"resource":7}`, 400, "a string"},
		{http.MethodPost, locks, `{"resource":"r","sessionId":"another"}`, 400, "in the path and"},
		{http.MethodPost, locks, `{"resource":"r","sessionId":"` + id + `"}`, 200, `"lockId"`},
		{http.MethodPost, locks + "?resource=r", `{}`, 400, "must be in the JSON body"},
		{http.MethodGet, "/v1/locks?a=%zz", "", 400, "is not well escaped"},
		{http.MethodGet, "/v1/locks", `{"x":1}`, 400, "must be empty"},
	} {
		code, got := call(t, c, x.method, x.path, x.body)
		if code != x.code || !strings.Contains(got, x.want) {
			t.Errorf("%s %s %s: %d %s, want %d %q", x.method, x.path, x.body, code, got, x.code, x.want)
		}
	}
	for _, path := range []string{"/openapi.json", "/v1/info", "/v1/nothing"} {
		r, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://x"+path, nil)
		if err != nil {
			t.Fatal(err)
		}
		a, err := c.Do(r)
		if err != nil {
			t.Fatal(err)
		}
		_ = a.Body.Close()
		if got := a.Header.Get("Content-Type"); got != "application/json" {
			t.Errorf("%s has the type %q", path, got)
		}
	}
}

// TestWhoMakesRoomIsClosed: the client whose place another has got sees that.
func TestWhoMakesRoomIsClosed(t *testing.T) {
	s := start(t, few)
	s.server.places.mu.Lock()
	s.server.places.firstWord = 0 // who has said nothing makes room at once
	s.server.places.mu.Unlock()
	first := s.dial(t)
	ended := make(chan error, 1)
	go func() {
		_, err := first.Read(make([]byte, 1))
		ended <- err
	}()
	for range s.server.o.Limits.Connections { // one more than there are places
		s.dial(t)
	}
	if err := within(t, ended); !errors.Is(err, io.EOF) && !errors.Is(err, unix.ECONNRESET) {
		t.Errorf("the first ends with %v", err)
	}
}
