package localapi

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	pb "github.com/locksidecar/locksidecar/api/locksidecar/v1"
	"github.com/locksidecar/locksidecar/internal/jsonlines"
	"github.com/locksidecar/locksidecar/localapi/peercred"
	"github.com/locksidecar/locksidecar/lock"
	"github.com/locksidecar/locksidecar/session"
)

// said is what somebody writes by hand, and what comes back.
type said struct {
	t  testing.TB
	c  *net.UnixConn
	in *bufio.Reader
}

func (s *sidecar) says(t testing.TB, text string) *said {
	t.Helper()
	c := s.dial(t).(*net.UnixConn)
	x := &said{t: t, c: c, in: bufio.NewReaderSize(c, 1<<20)}
	x.say(text)
	return x
}

func (x *said) say(text string) {
	x.t.Helper()
	if _, err := io.WriteString(x.c, text); err != nil {
		x.t.Fatal(err)
	}
}

// hears reads the next line.
func (x *said) hears() *pb.SessionResponse {
	x.t.Helper()
	_ = x.c.SetDeadline(time.Now().Add(patience))
	line, err := x.in.ReadBytes('\n')
	if err != nil {
		x.t.Fatalf("%q: %v", line, err)
	}
	a, err := jsonlines.ParseResponse(line)
	if err != nil {
		x.t.Fatalf("%q: %v", line, err)
	}
	return a
}

// answer skips events.
func (x *said) answer() *pb.SessionResponse {
	x.t.Helper()
	for {
		if a := x.hears(); a.GetEvent() == nil {
			return a
		}
	}
}

func (x *said) refusedWith(id string, r reason, text string) {
	x.t.Helper()
	a := x.answer()
	if info := infoOf(x.t, a.GetError()); a.GetRequestId() != id || info.GetReason() != string(r) || !strings.Contains(a.GetError().GetMessage(), text) {
		x.t.Errorf("%v, want %s for request %q with %q", a, r, id, text)
	}
}

// ends wants the end of the connection, and nothing before it.
func (x *said) ends() {
	x.t.Helper()
	if rest, err := io.ReadAll(x.in); err != nil || len(rest) > 0 {
		x.t.Errorf("the connection ends with %q %v", rest, err)
	}
}

const opening = `{"requestId":"o","open":{}}` + "\n"

// TestLineRefusals: a line that is JSON and no request is answered, and the session
// goes on. After one that is not JSON, that is too long, or whose answer could not be
// matched, the connection ends: an error without an id is always the last line.
func TestLineRefusals(t *testing.T) {
	s := start(t, func(_ *session.Options, o *Options) { o.Limits.MessageBytes = 4 << 10 })
	for name, l := range map[string]struct {
		line, id, text string
		reason         reason
		ends           bool
	}{
		"unknown field":       {`{"requestId":"1","acquir":{}}`, "1", "acquir is not a field of this request; it has acquire, cancel,", reasonInvalid, false},
		"unknown field below": {`{"requestId":"1","acquire":{"resourc":"r"}}`, "1", "resourc is not a field of this request; it has detachable, direct, guard, handle, limit, maxHold, metadata, minHold,", reasonInvalid, false},
		"wrong type":          {`{"requestId":"1","acquire":{"wait":5}}`, "1", `wait must be a time in seconds, such as "0.5s"`, reasonInvalid, false},
		"no object":           {`{"requestId":"1","acquire":"r"}`, "1", "acquire must be a JSON object", reasonInvalid, false},
		"twice":               {`{"requestId":"1","acquire":{"resource":"a","resource":"b"}}`, "1", "twice", reasonInvalid, false},
		"two requests":        {`{"requestId":"1","acquire":{"resource":"a"},"keepAlive":{}}`, "1", "", reasonInvalid, false},
		"id is a number":      {`{"requestId":1,"keepAlive":{}}`, "", "requestId must be a string", reasonInvalid, true},
		"no id":               {`{"keepAlive":{}}`, "", "request_id must be 1 to 128 bytes long", reasonInvalid, true},
		"long id":             {`{"requestId":"` + strings.Repeat("x", 129) + `","keepAlive":{}}`, "", "request_id must be", reasonInvalid, true},
		"open again":          {`{"requestId":"1","open":{}}`, "1", "open must come only once", reasonInvalid, false},
		"field of HTTP":       {`{"requestId":"1","acquire":{"resource":"r","name":"n"}}`, "1", "must not have session_id", reasonInvalid, false},
		"empty":               {`{}`, "", "request_id must be", reasonInvalid, true},
		"not JSON":            {`acquire r`, "", "line is not JSON: invalid character 'a'", reasonInvalid, true},
		"half an object":      {`{"requestId":"1","keepAlive":{}`, "", "line is not JSON", reasonInvalid, true},
		"two objects":         {`{"requestId":"1"} {}`, "", "line is not JSON", reasonInvalid, true},
		"array":               {`[]`, "", "must be a JSON object", reasonInvalid, true},
		"not UTF-8":           {"{\"requestId\":\"\xff\",\"keepAlive\":{}}", "", "not valid UTF-8", reasonInvalid, true},
		"deep":                {strings.Repeat(`{"a":`, 800), "", "not JSON", reasonInvalid, true},
		"too long":            {`{"requestId":"` + strings.Repeat("x", 5<<10) + `"}`, "", "a line is longer than 4096 bytes", reasonLimit, true},
		"too long, no end":    {strings.Repeat("x", 6<<10), "", "a line is longer than 4096 bytes", reasonLimit, true},
	} {
		t.Run(name, func(t *testing.T) {
			x := s.says(t, opening)
			x.answer()
			x.say(l.line + "\n")
			x.refusedWith(l.id, l.reason, l.text)
			if l.ends {
				x.ends()
				return
			}
			x.say(" \r\n\n" + `{"requestId":"2","acquire":{"resource":"` + name + `"}}` + "\r\n")
			if a := x.answer(); a.GetRequestId() != "2" || a.GetGranted().GetResource() != name {
				t.Errorf("afterwards: %v", a)
			}
		})
	}
	eventually(t, "ended", func() bool { return s.manager.Info().Holds == 0 || s.manager.Info().Sessions > 0 })
}

// TestLineSessionsThatDoNotOpen: the refusal has the id of open, and ends the connection.
func TestLineSessionsThatDoNotOpen(t *testing.T) {
	s := start(t, func(o *session.Options, _ *Options) { o.Limits.Sessions = 1 })
	s.says(t, opening).answer()
	for text, want := range map[string]struct {
		id     string
		reason reason
	}{
		opening: {"o", reasonLimit},
		`{"requestId":"1","keepAlive":{}}` + "\n":                                     {"1", reasonInvalid},
		`{"requestId":"1","open":{"liveness":"TTL","ttl":"1s"}}` + "\n":               {"1", reasonInvalid},
		`{"requestId":"1","open":{"nme":"x"}}` + "\n":                                 {"1", reasonInvalid},
		`{"requestId":"1","open":{"name":"` + strings.Repeat("n", 129) + `"}}` + "\n": {"1", reasonInvalid},
		`{nothing` + "\n": {"", reasonInvalid},
	} {
		x := s.says(t, text)
		x.refusedWith(want.id, want.reason, "")
		x.ends()
	}
	x := s.says(t, `{"requestId":"1","op`)
	if err := x.c.CloseWrite(); err != nil {
		t.Fatal(err)
	}
	x.ends() // it had asked for nothing
}

// TestGarbageInLines: who sends nothing but what is refused is sent away; who sends
// requests between is not.
func TestGarbageInLines(t *testing.T) {
	s := start(t)
	x := s.says(t, opening)
	x.answer()
	garbage := `{"requestId":"g","nothing":{}}` + "\n"
	for range 2 {
		x.say(strings.Repeat(garbage, maxGarbage))
		for range maxGarbage {
			x.refusedWith("g", reasonInvalid, "nothing is not a field")
		}
		x.say(`{"requestId":"k","keepAlive":{}}` + "\n")
		if x.answer().GetKeptAlive() == nil {
			t.Fatal("not kept alive")
		}
	}
	x.say(strings.Repeat(garbage, maxGarbage+1))
	for range maxGarbage {
		x.refusedWith("g", reasonInvalid, "")
	}
	x.refusedWith("", reasonLimit, "more than 100 lines in a row were no requests")
	x.ends()
}

// TestLinesOfOtherUsers: a peer that may not use the API is told so in its protocol.
func TestLinesOfOtherUsers(t *testing.T) {
	s := start(t)
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: filepath.Join(socketDir(t), "s")})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = l.Close() }()
	d, err := net.Dial("unix", l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = d.Close() }()
	uc, err := l.AcceptUnix()
	if err != nil {
		t.Fatal(err)
	}
	p, err := peercred.Identify(uc)
	if err != nil {
		t.Fatal(err)
	}
	served := make(chan struct{})
	go func() {
		defer close(served)
		s.server.serveLines(&conn{UnixConn: uc, peer: p, places: s.server.places, counted: s.server.unread, allowed: false}, nil)
	}()
	x := &said{t: t, c: d.(*net.UnixConn), in: bufio.NewReader(d)}
	x.say(opening)
	x.refusedWith("", reasonPermission, "may not use this sidecar")
	x.ends()
	_ = d.Close()
	within(t, served)
}

// TestTooManyConnectionsOfLines: one too many is told so in its protocol.
func TestTooManyConnectionsOfLines(t *testing.T) {
	s := start(t, func(_ *session.Options, o *Options) { o.Limits.Connections = 2 })
	for range 2 {
		s.says(t, opening).answer()
	}
	x := s.says(t, opening)
	x.refusedWith("", reasonLimit, "at most 2 connections")
	x.ends()
}

// TestPipelinedLines: requests that come together are all answered, also where one
// before them waits, and what is cut anywhere is put together again.
func TestPipelinedLines(t *testing.T) {
	s := start(t)
	other := s.says(t, opening+`{"requestId":"1","acquire":{"resource":"held"}}`+"\n")
	other.answer()
	held := other.answer().GetGranted()
	var all strings.Builder
	all.WriteString(opening + `{"requestId":"w","acquire":{"resource":"held"}}` + "\n")
	for i := range 300 {
		fmt.Fprintf(&all, `{"requestId":"%d","acquire":{"resource":"r/%d"}}`+"\n", i, i)
	}
	x := s.says(t, "")
	sent := make(chan struct{})
	go func() {
		defer close(sent)
		for text, size := all.String(), 1; text != ""; size = size%5000 + 97 {
			n := min(size, len(text))
			if _, err := io.WriteString(x.c, text[:n]); err != nil {
				return // seen by who reads
			}
			text = text[n:]
		}
	}()
	defer func() {
		_ = x.c.Close() // ends the sending, if the test has failed
		<-sent
	}()
	x.answer()
	for i := range 300 {
		if a := x.answer(); a.GetRequestId() != fmt.Sprint(i) || a.GetGranted() == nil {
			t.Fatalf("%v, want request %d", a, i)
		}
	}
	other.say(`{"requestId":"2","release":{"lockId":"` + held.GetLockId() + `"}}` + "\n")
	if a := x.answer(); a.GetRequestId() != "w" || a.GetGranted().GetFence() <= held.GetFence() {
		t.Errorf("%v", a)
	}
}

// TestUnreadLines: a client that asks much and reads late gets every answer, in order.
func TestUnreadLines(t *testing.T) {
	s := start(t)
	x := s.says(t, opening)
	x.answer()
	const n = 2000 // more than the socket takes
	sent := make(chan struct{})
	go func() {
		defer close(sent)
		w := bufio.NewWriter(x.c)
		for i := range n {
			fmt.Fprintf(w, `{"requestId":"%0120d","release":{"lockId":"none"}}`+"\n", i)
		}
		_ = w.Flush() // that it fails is seen by who reads
	}()
	defer func() {
		_ = x.c.Close() // ends the sending, if the test has failed
		<-sent
	}()
	eventually(t, "full", func() bool { return s.server.standing.Load() == 1 })
	for i := range n {
		if a := x.answer(); a.GetRequestId() != fmt.Sprintf("%0120d", i) {
			t.Fatalf("%v, want request %d", a, i)
		}
	}
}

// stuck is a store whose leases do not say when they block, and block.
type stuck struct {
	lock.Backend
	entered, let chan struct{}
}

func (b *stuck) OpenLease(ctx context.Context, o lock.LeaseOptions) (lock.Lease, error) {
	l, err := b.Backend.OpenLease(ctx, o)
	return &stuckLease{Lease: l, b: b}, err
}

type stuckLease struct {
	lock.Lease
	b *stuck
}

func (l *stuckLease) Acquire(ctx context.Context, q lock.Request) (lock.Grant, error) {
	if q.Resource == "stuck" {
		l.b.entered <- struct{}{}
		<-l.b.let
	}
	return l.Lease.Acquire(ctx, q)
}

// TestLinesGoOnWhileTheStoreBlocks: the goroutine that reads carries out requests, and
// leaves the reading to another when one of them blocks.
func TestLinesGoOnWhileTheStoreBlocks(t *testing.T) {
	b := &stuck{entered: make(chan struct{}), let: make(chan struct{})}
	s := start(t, func(o *session.Options, _ *Options) {
		b.Backend = o.Backend
		o.Backend = b
	})
	x := s.says(t, opening)
	x.answer()
	for range 3 {
		x.say(`{"requestId":"s","acquire":{"resource":"stuck"}}` + "\n")
		<-b.entered
		x.say(`{"requestId":"1","acquire":{"resource":"free"}}` + "\n" + `{"requestId":"k","keepAlive":{}}` + "\n")
		ids := map[string]*pb.SessionResponse{}
		for len(ids) < 2 {
			a := x.answer()
			ids[a.GetRequestId()] = a
		}
		if ids["1"].GetGranted() == nil || ids["k"].GetKeptAlive() == nil {
			t.Errorf("%v", ids)
		}
		b.let <- struct{}{}
		a := x.answer()
		if a.GetRequestId() != "s" || a.GetGranted() == nil {
			t.Errorf("%v", a)
		}
		for _, id := range []string{a.GetGranted().GetLockId(), ids["1"].GetGranted().GetLockId()} {
			x.say(`{"requestId":"r","release":{"lockId":"` + id + `"}}` + "\n")
			if a := x.answer(); a.GetReleased() == nil {
				t.Errorf("%v", a)
			}
		}
	}
}

// TestLinesEndWithTheConnection: a client that hangs up is seen while its requests wait
// and its answers are unread.
func TestLinesEndWithTheConnection(t *testing.T) {
	s := start(t)
	holder := s.says(t, opening+`{"requestId":"1","acquire":{"resource":"a"}}`+"\n")
	holder.answer()
	holder.answer()
	x := s.says(t, opening+`{"requestId":"1","acquire":{"resource":"b"}}`+"\n"+`{"requestId":"2","acquire":{"resource":"a"}}`+"\n")
	eventually(t, "waiting", func() bool { return s.manager.Info().Waiters == 1 && s.manager.Info().Holds == 2 })
	_ = x.c.Close()
	eventually(t, "ended", func() bool { return s.manager.Info().Sessions == 1 && s.manager.Info().Holds == 1 })
}

// FuzzLines: whatever a client sends, the sidecar answers in lines and ends the
// session with the connection.
func FuzzLines(f *testing.F) {
	for _, text := range []string{
		opening, opening + `{"requestId":"1","acquire":{"resource":"r","wait":"0s"}}` + "\n" + `{"requestId":"2","release":{"lockId":"x"}}` + "\n",
		"{\n", `{"requestId":"1"}` + "\n", opening + opening + "x\n", opening + `{"requestId":"1","cancel":{"requestId":"1"}}`,
		`"requestId":"1","listLocks":{"pageSize":5}}` + "\n" + `{"requestId":"2","getLock":{"resource":"r"}}` + "\n" + `{"requestId":"3","getInfo":{}}`,
	} {
		f.Add([]byte(text))
	}
	s := start(f)
	f.Fuzz(func(t *testing.T, text []byte) {
		if bytes.Contains(text, []byte("atch")) {
			t.Skip("a watch lasts for as long as its client")
		}
		c, err := net.Dial("unix", s.socket)
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = c.Close() }()
		_ = c.SetDeadline(time.Now().Add(patience))
		_, _ = c.Write(append([]byte("{"), text...)) // it may be sent away before it has said everything
		_ = c.(*net.UnixConn).CloseWrite()
		in := bufio.NewReader(c)
		for {
			line, err := in.ReadBytes('\n')
			switch {
			case errors.Is(err, os.ErrDeadlineExceeded):
				t.Fatal("the connection does not end")
			case err != nil && len(line) == 0:
				return
			case err != nil:
				t.Fatalf("%q: %v", line, err)
			}
			if _, err := jsonlines.ParseResponse(line); err != nil {
				t.Fatalf("%q: %v", line, err)
			}
		}
	})
}
