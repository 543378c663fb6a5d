package localapi

import (
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/hashicorp/go-hclog"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"

	pb "github.com/locksidecar/locksidecar/api/locksidecar/v1"
	"github.com/locksidecar/locksidecar/session"
)

// sameAsHTTP compares an answer with that of a GET, but for the times.
func (s *sidecar) sameAsHTTP(t *testing.T, path string, got proto.Message) {
	t.Helper()
	want := got.ProtoReflect().New().Interface()
	code, body := call(t, s.http(t), "GET", path, "")
	if err := protojson.Unmarshal([]byte(body), want); err != nil || code != http.StatusOK {
		t.Fatalf("%s: %d %s %v", path, code, body, err)
	}
	for _, m := range []proto.Message{got, want} {
		switch m := m.(type) {
		case *pb.Lock:
			timeless(m)
		case *pb.ListLocksResponse:
			for _, l := range m.GetLocks() {
				timeless(l)
			}
		case *pb.Info:
			m.Uptime, m.LeaseValidFor = nil, nil
		}
	}
	if !proto.Equal(got, want) {
		t.Errorf("%s gives\n%v, lines give\n%v", path, want, got)
	}
}

func timeless(l *pb.Lock) {
	for _, h := range append(l.GetHolders(), l.GetWaiters()...) {
		h.Since, h.Age = nil, nil
	}
}

// TestLooksOverLines: what needs no session is answered on a connection without one, as
// over HTTP.
func TestLooksOverLines(t *testing.T) {
	s := start(t, noNews)
	app := s.says(t, opening)
	app.answer()
	var ids []string
	for i := range 3 {
		app.say(fmt.Sprintf(`{"requestId":"%d","acquire":{"resource":"r/%d"}}`+"\n", i, i))
		ids = append(ids, app.answer().GetGranted().GetLockId())
	}
	x := s.says(t, `{"requestId":"1","getLock":{"resource":"r/1"}}`+"\n"+`{"requestId":"2","listLocks":{"prefix":"r/","pageSize":2}}`+"\n"+
		`{"requestId":"3","getInfo":{}}`+"\n")
	s.sameAsHTTP(t, "/v1/locks/r/1", x.answer().GetLock())
	page := x.answer().GetLocks()
	token := page.GetNextPageToken()
	s.sameAsHTTP(t, "/v1/locks?prefix=r/&pageSize=2", page)
	s.sameAsHTTP(t, "/v1/info", x.answer().GetInfo())
	x.say(`{"requestId":"4","listLocks":{"prefix":"r/","pageToken":"` + token + `"}}` + "\n")
	if l := x.answer().GetLocks().GetLocks(); len(l) != 1 || l[0].GetResource() != "r/2" {
		t.Errorf("second page: %v", l)
	}
	x.say(`{"requestId":"5","getLock":{}}` + "\n" + `{"requestId":"6","listLocks":{"pageSize":-1}}` + "\n" + `{"requestId":"7","getLocks":{}}` + "\n" +
		`{"requestId":"8","acquire":{"resource":"r"}}` + "\n" + `{"requestId":"9","open":{}}` + "\n")
	x.refusedWith("5", reasonInvalid, "resource")
	x.refusedWith("6", reasonInvalid, "page_size")
	x.refusedWith("7", reasonInvalid, "getLocks is not a field of this request")
	x.refusedWith("8", reasonInvalid, "open must be the first line")
	x.refusedWith("9", reasonInvalid, "open must be the first line")
	x.say(`{"requestId":"10","forceRelease":{"resource":"r/2","grace":"0s"}}` + "\n")
	if a := x.answer(); fmt.Sprint(a.GetForceReleased().GetLockIds()) != fmt.Sprint(ids[2:]) {
		t.Errorf("%v", a)
	}
	if l := app.hears().GetEvent().GetLost(); l.GetLockId() != ids[2] {
		t.Errorf("%v", l)
	}
	if n := s.manager.Info().Sessions; n != 1 {
		t.Errorf("%d sessions", n)
	}
	app.say(`{"requestId":"x","getInfo":{}}` + "\n")
	app.refusedWith("x", reasonInvalid, "needs a connection of its own")
	x.say("nothing\n")
	x.refusedWith("", reasonInvalid, "not JSON")
	x.ends()
}

// TestLooksOfWhoSaysNoMore: who has asked, and closed its half, gets the answers and then
// the end, as a shell does with echo.
func TestLooksOfWhoSaysNoMore(t *testing.T) {
	s := start(t)
	x := s.says(t, `{"requestId":"1","getLock":{"resource":"r"}}`+"\n"+`{"requestId":"2","getInfo":{}}`+"\n")
	if err := x.c.CloseWrite(); err != nil {
		t.Fatal(err)
	}
	if a := x.answer(); a.GetLock().GetResource() != "r" {
		t.Errorf("%v", a)
	}
	if a := x.answer(); a.GetInfo() == nil {
		t.Errorf("%v", a)
	}
	x.ends()
}

// TestWatchOverLines: it tells what changes until the client has gone, or the sidecar
// stops.
func TestWatchOverLines(t *testing.T) {
	s := start(t)
	begin := func() *said {
		x := s.says(t, `{"requestId":"1","watchLocks":{"prefix":"r","interval":"0.1s"}}`+"\n")
		for {
			switch a := x.hears(); {
			case a.GetWatched() == nil:
				t.Fatalf("%v", a)
			case a.GetWatched().GetKind() == pb.WatchEvent_SYNCED:
				return x
			}
		}
	}
	x := begin()
	app := s.says(t, opening+`{"requestId":"1","acquire":{"resource":"r/1"}}`+"\n")
	app.answer()
	app.answer()
	if a := x.hears(); a.GetRequestId() != "1" || a.GetWatched().GetLock().GetResource() != "r/1" {
		t.Errorf("%v", a)
	}
	watches := func() int {
		s.server.watches.mu.Lock()
		defer s.server.watches.mu.Unlock()
		return len(s.server.watches.taken)
	}
	if watches() != 1 {
		t.Error("it is not counted")
	}
	_ = x.c.Close()
	eventually(t, "ended", func() bool { return watches() == 0 })

	x = begin()
	stopped := make(chan struct{})
	go func() { defer close(stopped); s.stop() }()
	for {
		a := x.hears()
		if a.GetWatched() != nil {
			continue
		}
		if r := infoOf(t, a.GetError()).GetReason(); r != string(reasonDraining) {
			t.Errorf("ended with %v", a)
		}
		break
	}
	within(t, stopped)
}

// TestUnreadLooks: who does not read its answer is not waited for, and nothing of it is
// kept.
func TestUnreadLooks(t *testing.T) {
	var out logLines
	s := start(t, noNews, func(_ *session.Options, o *Options) {
		o.Limits.Stall = time.Second // the app beside it reads a thousand answers in time
		o.Logger = hclog.New(&hclog.LoggerOptions{Output: &out})
	})
	app := s.says(t, `{"requestId":"o","open":{"name":"`+strings.Repeat("n", 128)+`"}}`+"\n")
	app.answer()
	for i := range 1000 {
		app.say(fmt.Sprintf(`{"requestId":"%d","acquire":{"resource":"%d/%s"}}`+"\n", i, i, strings.Repeat("r", 400)))
		app.answer()
	}
	before := s.server.places.count()
	x := s.says(t, strings.Repeat(`{"requestId":"1","listLocks":{"pageSize":1000}}`+"\n", 3))
	_, _ = x.in.ReadByte() // the answer is on its way, or is over already
	eventually(t, "logged", func() bool { return strings.Contains(out.String(), "its client reads nothing") })
	eventually(t, "closed", func() bool { return s.server.places.count() == before })
}

// TestIdleLooksMakeRoom: a connection that only looks is idle between its calls.
func TestIdleLooksMakeRoom(t *testing.T) {
	s := start(t, func(_ *session.Options, o *Options) { o.Limits.Connections, o.Limits.ConnectionsPerUID = 2, 2 })
	x := s.says(t, `{"requestId":"1","getInfo":{}}`+"\n")
	x.answer()
	eventually(t, "idle", func() bool {
		s.server.places.mu.Lock()
		defer s.server.places.mu.Unlock()
		for _, u := range s.server.places.users {
			return u.idle.Len() == 1
		}
		return false
	})
	for range 2 {
		if s.says(t, opening).answer().GetOpened() == nil {
			t.Error("not opened")
		}
	}
	x.ends()
}

// TestGarbageFirst: a first line that is no request at all is told so, as JSON.
func TestGarbageFirst(t *testing.T) {
	s := start(t)
	x := s.says(t, "{x\n")
	line, err := x.in.ReadBytes('\n')
	if err != nil || !json.Valid(line) {
		t.Errorf("%q %v", line, err)
	}
	x.ends()
}
