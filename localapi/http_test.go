package localapi

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os/exec"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/genproto/googleapis/api/annotations"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"

	pb "github.com/locksidecar/locksidecar/api/locksidecar/v1"
	"github.com/locksidecar/locksidecar/session"
)

func TestHTTP(t *testing.T) {
	s := start(t)
	c := s.http(t)
	code, body := call(t, c, "POST", "/v1/sessions", `{"liveness":"TTL","ttl":"60s","name":"h"}`)
	id := field(t, body, "sessionId")
	if code != 200 || id == "" || field(t, body, "leaseTtl") != "10s" {
		t.Fatalf("%d %s", code, body)
	}
	locks := "/v1/sessions/" + id + "/locks"
	code, body = call(t, c, "POST", locks, `{"resource":"orders/42","mode":"EXCLUSIVE","wait":"5s"}`)
	lockID := field(t, body, "lockId")
	if code != 200 || lockID == "" || field(t, body, "fence") == "" || field(t, body, "mode") != "EXCLUSIVE" {
		t.Fatalf("%d %s", code, body)
	}
	if code, body = call(t, c, "POST", "/v1/hold", `{"resource":"orders/42","wait":"0s"}`); code != http.StatusConflict {
		t.Errorf("hold: %d %s", code, body)
	}
	info := infoOf(t, jsonStatus(t, body))
	if info.GetReason() != "LOCK_HELD" || info.GetMetadata()["holder_session"] != "h" {
		t.Errorf("%v", info)
	}
	if code, body = call(t, c, "GET", "/v1/locks/orders/42", ""); code != 200 || !strings.Contains(body, lockID) {
		t.Errorf("get: %d %s", code, body)
	}
	if code, body = call(t, c, "GET", "/v1/locks?prefix=ord&pageSize=5&partial=true", ""); code != 200 || !strings.Contains(body, lockID) {
		t.Errorf("list: %d %s", code, body)
	}
	if code, body = call(t, c, "POST", locks+"/"+lockID+":downgrade", ""); code != 200 || field(t, body, "mode") != "SHARED" {
		t.Errorf("downgrade: %d %s", code, body)
	}
	if code, body = call(t, c, "POST", "/v1/sessions/"+id+":keepAlive", ""); code != 200 || !strings.HasPrefix(field(t, body, "validFor"), "59.") {
		t.Errorf("keep alive: %d %s", code, body)
	}
	if code, body = call(t, c, "DELETE", locks+"/"+lockID, ""); code != 200 || compact(body) != `{"count":0}` {
		t.Errorf("release: %d %s", code, body)
	}
	if code, body = call(t, c, "DELETE", locks+"/"+lockID, ""); code != http.StatusPreconditionFailed {
		t.Errorf("release again: %d %s", code, body)
	}
	if code, body = call(t, c, "GET", "/v1/info", ""); code != 200 || field(t, body, "version") != "v0-test" {
		t.Errorf("info: %d %s", code, body)
	}
	if code, body = call(t, c, "DELETE", "/v1/sessions/"+id, ""); code != 200 {
		t.Errorf("close: %d %s", code, body)
	}
	if code, body = call(t, c, "POST", locks, `{"resource":"r"}`); code != http.StatusNotFound {
		t.Errorf("acquire after close: %d %s", code, body)
	}
	for path, want := range map[string]string{"/healthz": "ok\n", "/readyz": "ready\n"} {
		if code, body = call(t, c, "GET", path, ""); code != 200 || body != want {
			t.Errorf("%s: %d %q", path, code, body)
		}
	}
	if code, body = call(t, c, "GET", "/openapi.json", ""); code != 200 || !json.Valid([]byte(body)) || !strings.Contains(body, "/v1/hold") {
		t.Errorf("openapi.json: %d %.100s", code, body)
	}
}

// Names of resources pass unchanged in both directions.
func TestHTTPResourceNames(t *testing.T) {
	s := start(t)
	c := s.http(t)
	x := s.stream(t, s.api(t), &pb.OpenSessionRequest{})
	for i, name := range []string{"a", "a/b", "a//b", "/a", "a/", "a/../b", "./a", "a b", "a+b", "ä/€", "a%2Fb", "a?b#c", "a:keepAlive", "a&b=c", `"`, strings.Repeat("x", 512)} {
		id := fmt.Sprint(i)
		x.acquire(id, &pb.AcquireRequest{Resource: name})
		g := x.answer(id).GetGranted()
		for _, path := range []string{url.PathEscape(name), strings.ReplaceAll(url.PathEscape(name), "%2F", "/")} {
			code, body := call(t, c, "GET", "/v1/locks/"+path, "")
			if code != 200 || field(t, body, "resource") != name || !strings.Contains(body, g.GetLockId()) {
				t.Errorf("%q as %s: %d %s", name, path, code, body)
			}
		}
		code, body := call(t, c, "DELETE", "/v1/locks/"+url.PathEscape(name)+"?lockId="+g.GetLockId()+"&grace=0s", "")
		if code != 200 || !strings.Contains(body, g.GetLockId()) {
			t.Errorf("force %q: %d %s", name, code, body)
		}
	}
}

func TestHTTPRefusals(t *testing.T) {
	s := start(t)
	c := s.http(t)
	_, body := call(t, c, "POST", "/v1/sessions", `{"ttl":"60s"}`)
	id := field(t, body, "sessionId")
	locks := "/v1/sessions/" + id + "/locks"
	for _, x := range []struct {
		method, path, body string
		code               int
		reason             reason
		text               string
	}{
		{"POST", locks, `{`, 400, reasonInvalid, "is not JSON"},
		{"POST", locks, `resource=r`, 400, reasonInvalid, "is not JSON"},
		{"POST", locks, `{"resource":"r"} x`, 400, reasonInvalid, "is not JSON"},
		{"POST", locks, `null`, 400, reasonInvalid, "must be a JSON object"},
		{"POST", locks, `["r"]`, 400, reasonInvalid, "must be a JSON object"},
		{"POST", locks, "{\"resource\":\"\xff\"}", 400, reasonInvalid, "UTF-8"},
		{"POST", locks, `{"resource":"r","resource":"s"}`, 400, reasonInvalid, "twice"},
		{"POST", locks, `{"resource":"r","tiemout":"5s"}`, 400, reasonInvalid, "tiemout is not a field of this request; it has "},
		{"POST", locks, `{"resource":7}`, 400, reasonInvalid, "resource must be a string"},
		{"POST", locks, `{"resource":"r","wait":"5"}`, 400, reasonInvalid, `wait must be a time in seconds, such as "0.5s"`},
		{"POST", locks, `{"resource":"r","wait":5}`, 400, reasonInvalid, `wait must be a time in seconds`},
		{"POST", locks, `{"resource":"r","wait":"-5s"}`, 400, reasonInvalid, "wait must not be negative"},
		{"POST", locks, `{"resource":"r","wait":"90000s"}`, 400, reasonInvalid, "wait is"},
		{"POST", locks, `{"resource":"r","maxHold":"0.01s"}`, 400, reasonInvalid, "max_hold is"},
		{"POST", locks, `{"resource":"r","mode":"WRITE"}`, 400, reasonInvalid, "mode must be one of EXCLUSIVE, SHARED"},
		{"POST", locks, `{"resource":"r","metadata":{"a":1}}`, 400, reasonInvalid, "metadata must be an object of strings"},
		{"POST", locks, `{"resource":"r","name":"n"}`, 400, reasonInvalid, "name"},
		{"POST", locks, `{"resource":"r","sessionId":"other"}`, 400, reasonInvalid, "session_id"},
		{"POST", locks, `{}`, 400, reasonInvalid, "resource must not be empty"},
		{"POST", locks, ``, 400, reasonInvalid, "resource must not be empty"},
		{"POST", locks, `{"resource":"` + strings.Repeat("x", 513) + `"}`, 400, reasonInvalid, "resource is 513 bytes long"},
		{"POST", locks, `{"resource":"` + strings.Repeat("x", 70000) + `"}`, 429, reasonLimit, "larger than 65536 bytes"},
		{"POST", locks, `{"resource":"a\u0007"}`, 400, reasonInvalid, "control character"},
		{"POST", locks + "?wait=0s", `{"resource":"r"}`, 400, reasonInvalid, "wait must be in the JSON body"},
		{"GET", "/v1/locks", `{"prefix":"x"}`, 400, reasonInvalid, "body must be empty"},
		{"GET", "/v1/locks?prefx=a", "", 400, reasonInvalid, "prefx is not a field"},
		{"GET", "/v1/locks?prefix=a&prefix=b", "", 400, reasonInvalid, "prefix is given 2 times"},
		{"GET", "/v1/locks?prefix=%ff", "", 400, reasonInvalid, "prefix is not valid UTF-8"},
		{"GET", "/v1/locks?pageSize=many", "", 400, reasonInvalid, "pageSize must be"},
		{"GET", "/v1/locks?pageSize=9999", "", 400, reasonInvalid, "page_size must be 1 to 1000"},
		{"GET", "/v1/locks?partial=yes", "", 400, reasonInvalid, "partial must be of type bool"},
		{"GET", "/v1/locks/", "", 400, reasonInvalid, "resource must not be empty"},
		{"GET", "/v1/locks/%ff", "", 400, reasonInvalid, "resource is not valid UTF-8"},
		{"POST", locks, `{"resource":"r","max_hold":"x"}`, 400, reasonInvalid, "max_hold must be a time in seconds"},
		{"POST", locks, `{"resource":"r","reentrant":"x"}`, 400, reasonInvalid, "reentrant must be of type bool"},
		{"POST", "/v1/sessions", `{"x":1}`, 400, reasonInvalid, "x is not a field"},
		{"POST", "/v1/hold", `{"x":1}`, 400, reasonInvalid, "x is not a field"},
		{"GET", "/v1/sessions/none/events?x=1", "", 400, reasonInvalid, "x is not a field"},
		{"GET", "/v1/watch?interval=0.001s", "", 400, reasonInvalid, "interval is"},
		{"POST", "/v1/sessions", `{"liveness":"TTL"}`, 400, reasonInvalid, "ttl is needed"},
		{"POST", "/v1/sessions", `{"ttl":"0s"}`, 400, reasonInvalid, "ttl must not be 0"},
		{"POST", "/v1/hold", `{"resource":"r","sessionId":"s"}`, 400, reasonInvalid, "session_id must be empty here"},
		{"POST", "/v1/sessions/none/locks", `{"resource":"r"}`, 404, reasonNoSession, "no such session"},
		{"GET", "/v1/sessions/none/events", "", 404, reasonNoSession, "no such session"},
		{"DELETE", locks + "/none", "", 412, reasonNotHolder, "not held"},
		{"DELETE", "/v1/locks/r?lockId=none", "", 412, reasonNotHolder, "not held"},
		{"GET", "/v2/locks", "", 404, reasonNoRoute, "/openapi.json"},
		{"GET", "/", "", 404, reasonNoRoute, "/openapi.json"},
		{"PUT", "/v1/locks/r", "", 405, reasonNoRoute, "PUT is not possible"},
		{"GET", "/v1/hold", "", 405, reasonNoRoute, "but POST is"},
	} {
		path := strings.ReplaceAll(x.path, id, "ID") // a test has the same name each time
		t.Run(x.method+" "+path[:min(len(path), 40)]+" "+x.body[:min(len(x.body), 40)], func(t *testing.T) {
			code, body := call(t, c, x.method, x.path, x.body)
			st := jsonStatus(t, body)
			if code != x.code || infoOf(t, st).GetReason() != string(x.reason) || !strings.Contains(st.GetMessage(), x.text) {
				t.Errorf("%d %s, want %d %s %q", code, body, x.code, x.reason, x.text)
			}
		})
	}
	if n := s.manager.Info().Holds; n != 0 {
		t.Errorf("%d holds", n)
	}
}

// lines reads a stream of JSON lines in the background.
func lines(t *testing.T, r io.Reader) <-chan map[string]map[string]any {
	c := make(chan map[string]map[string]any, 100)
	done := make(chan struct{})
	go func() {
		defer close(done)
		defer close(c)
		for sc := bufio.NewScanner(r); sc.Scan(); {
			var m map[string]map[string]any
			if err := json.Unmarshal(sc.Bytes(), &m); err != nil {
				t.Errorf("%q: %v", sc.Bytes(), err)
				return
			}
			c <- m
		}
	}()
	t.Cleanup(func() { <-done })
	return c
}

func post(t *testing.T, c *http.Client, ctx context.Context, path, body string) *http.Response { //nolint:revive // ctx is the odd one out
	t.Helper()
	r, err := http.NewRequestWithContext(ctx, http.MethodPost, "http://x"+path, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	a, err := c.Do(r)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = a.Body.Close() })
	return a
}

func TestHTTPHold(t *testing.T) {
	s := start(t)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	a := post(t, s.http(t), ctx, "/v1/hold", `{"resource":"r","name":"first"}`)
	if a.StatusCode != 200 || a.Header.Get("Content-Type") != contentNDJSON {
		t.Fatalf("%s %s", a.Status, a.Header)
	}
	first := within(t, lines(t, a.Body))
	if first["granted"]["resource"] != "r" {
		t.Fatalf("%v", first)
	}
	granted := make(chan map[string]map[string]any, 1)
	go func() {
		b := post(t, s.http(t), t.Context(), "/v1/hold", `{"resource":"r"}`)
		granted <- <-lines(t, b.Body)
	}()
	eventually(t, "waiting", func() bool { return s.manager.Info().Waiters == 1 })
	cancel()
	if g := within(t, granted); g["granted"]["resource"] != "r" {
		t.Errorf("second holder: %v", g)
	}
}

func TestHTTPHoldLost(t *testing.T) {
	s := start(t, func(o *session.Options, _ *Options) { o.LostGrace = 50 * time.Millisecond })
	a := post(t, s.http(t), t.Context(), "/v1/hold", `{"resource":"r","maxHold":"0.1s"}`)
	l := lines(t, a.Body)
	if g := within(t, l); g["granted"] == nil {
		t.Fatalf("%v", g)
	}
	var last map[string]map[string]any
	for m := range l { // the response ends when the grace is over
		last = m
	}
	if last["lost"]["reason"] != "MAX_HOLD" {
		t.Errorf("last line %v", last)
	}
}

// TestHTTPHoldIsToldOfAShorterGrace: an administrator forces the release twice, the
// second time in more of a hurry.
func TestHTTPHoldIsToldOfAShorterGrace(t *testing.T) {
	s := start(t)
	a := post(t, s.http(t), t.Context(), "/v1/hold", `{"resource":"r"}`)
	l := lines(t, a.Body)
	if g := within(t, l); g["granted"] == nil {
		t.Fatalf("%v", g)
	}
	lost := func() time.Duration {
		t.Helper()
		for {
			if m := within(t, l); m == nil || m["lost"] != nil {
				grace, _ := m["lost"]["grace"].(string)
				d, err := time.ParseDuration(grace)
				if err != nil {
					t.Fatal(err)
				}
				return d
			}
		}
	}
	forced := make(chan error, 2)
	force := func(grace time.Duration) {
		_, err := s.manager.Everybody().ForceRelease(context.WithoutCancel(t.Context()), "r", "", grace)
		forced <- err
	}
	go force(time.Minute)
	if d := lost(); d < 5*time.Second {
		t.Errorf("first grace %v", d)
	}
	go force(time.Second)
	if d := lost(); d > time.Second {
		t.Errorf("second grace %v", d)
	}
	for range l { // the response ends when the grace is over
	}
	for range 2 {
		if err := within(t, forced); err != nil {
			t.Error(err)
		}
	}
}

func TestHTTPSessionStream(t *testing.T) {
	s := start(t)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	a := post(t, s.http(t), ctx, "/v1/sessions", `{"liveness":"STREAM"}`)
	l := lines(t, a.Body)
	id := within(t, l)["opened"]["sessionId"].(string)
	code, body := call(t, s.http(t), "POST", "/v1/sessions/"+id+"/locks", `{"resource":"r"}`)
	if code != 200 {
		t.Fatalf("%d %s", code, body)
	}
	if code, body = call(t, s.http(t), "DELETE", "/v1/locks/r?grace=0s", ""); code != 200 {
		t.Fatalf("%d %s", code, body)
	}
	for m := range l {
		if m["lost"] != nil {
			if m["lost"]["reason"] != "FORCED" || m["lost"]["lockId"] != field(t, body, "lockId") && m["lost"]["resource"] != "r" {
				t.Errorf("%v", m)
			}
			break
		}
	}
	cancel()
	eventually(t, "closed", func() bool { return s.manager.Info().Sessions == 0 })
}

// A client that gives up has nothing afterwards, in whatever order the sidecar
// gets to see its acquire and its cancelling.
func TestHTTPCancel(t *testing.T) {
	s := start(t)
	c := s.http(t)
	_, body := call(t, c, "POST", "/v1/sessions", `{"liveness":"PROCESS"}`)
	session := "/v1/sessions/" + field(t, body, "sessionId")
	acquire := func(id string) (int, string) {
		return call(t, c, "POST", session+"/locks", `{"resource":"r","requestId":"`+id+`"}`)
	}
	cancel := func(id string) {
		t.Helper()
		if code, body := call(t, c, "DELETE", session+"/requests/"+url.PathEscape(id), ""); code != 200 {
			t.Errorf("cancel: %d %s", code, body)
		}
	}
	free := func() {
		t.Helper()
		if n := s.manager.Info().Holds; n != 0 {
			t.Errorf("%d holds after the cancelling", n)
		}
	}
	if code, body := acquire("a/1"); code != 200 {
		t.Fatalf("%d %s", code, body)
	}
	cancel("a/1")
	free()
	cancel("2")
	if code, body := acquire("2"); code != 499 || !strings.Contains(body, "CANCELLED") {
		t.Errorf("after its cancelling: %d %s", code, body)
	}
	for i := range 100 {
		id := fmt.Sprint("race ", i)
		done := make(chan struct{})
		go func() {
			defer close(done)
			acquire(id)
		}()
		time.Sleep(time.Duration(i) * 20 * time.Microsecond)
		cancel(id)
		within(t, done)
		free()
	}
}

func TestHTTPEventsEndWithTheSession(t *testing.T) {
	s := start(t)
	c := s.http(t)
	_, body := call(t, c, "POST", "/v1/sessions", `{"ttl":"60s"}`)
	id := field(t, body, "sessionId")
	ended := make(chan string, 1)
	go func() {
		code, body := call(t, c, "GET", "/v1/sessions/"+id+"/events", "")
		ended <- fmt.Sprint(code, body)
	}()
	if code, body := call(t, c, "POST", "/v1/sessions/"+id+"/locks", `{"resource":"r"}`); code != 200 {
		t.Fatal(body)
	}
	call(t, c, "DELETE", "/v1/sessions/"+id, "")
	if got := within(t, ended); !strings.HasPrefix(got, "200") && !strings.HasPrefix(got, "404") {
		t.Errorf("events ended with %s", got)
	}
}

// curl -N is a lock holder, and dies like one.
func TestCurl(t *testing.T) {
	curl, err := exec.LookPath("curl")
	if err != nil {
		t.Fatal("curl is not installed: make test-deps")
	}
	s := start(t)
	hold := exec.Command(curl, "-sN", "--unix-socket", s.socket, "http://x/v1/hold", "-d", `{"resource":"r"}`)
	out, err := hold.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := hold.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = hold.Process.Kill(); _ = hold.Wait() })
	if g := within(t, lines(t, out)); g["granted"]["lockId"] == "" {
		t.Fatalf("%v", g)
	}
	b, err := exec.Command(curl, "-s", "--unix-socket", s.socket, "http://x/v1/locks/r").Output()
	if err != nil || !strings.Contains(string(b), fmt.Sprintf(`"pid":%d`, hold.Process.Pid)) {
		t.Errorf("%s %v", b, err)
	}
	if err := hold.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	x := s.stream(t, s.api(t), &pb.OpenSessionRequest{})
	x.acquire("1", &pb.AcquireRequest{Resource: "r"})
	if x.answer("1").GetGranted() == nil {
		t.Error("not granted")
	}
}

// What the proto file says about HTTP is what is served.
func TestRoutesAreTheProtos(t *testing.T) {
	var want, got []string
	methods := pb.File_locksidecar_v1_locksidecar_proto.Services().ByName("LockSidecar").Methods()
	for i := range methods.Len() {
		rule, _ := proto.GetExtension(methods.Get(i).Options(), annotations.E_Http).(*annotations.HttpRule)
		switch p := rule.GetPattern().(type) {
		case *annotations.HttpRule_Get:
			want = append(want, "GET "+p.Get)
		case *annotations.HttpRule_Post:
			want = append(want, "POST "+p.Post)
		case *annotations.HttpRule_Delete:
			want = append(want, "DELETE "+p.Delete)
		}
	}
	s := New(Options{})
	for _, r := range s.table(&service{Server: s}) {
		path := "/" + strings.Join(r.path, "/")
		if r.verb != "" {
			path += ":" + r.verb
		}
		got = append(got, r.method+" "+path)
	}
	slices.Sort(want)
	slices.Sort(got)
	if d := cmp.Diff(want, got); d != "" {
		t.Error(d)
	}
}

func TestLostReasons(t *testing.T) {
	values := pb.LostReason(0).Descriptor().Values()
	for r := session.LeaseExpired; r <= session.TakenOver; r++ {
		v := values.ByName(protoreflect.Name(r.String()))
		if v == nil || lostReasonTo(r) != pb.LostReason(v.Number()) || lostReasonTo(r) == 0 {
			t.Errorf("%s is not in the API", r)
		}
	}
	if n := int(session.TakenOver); values.Len() != n+1 {
		t.Errorf("the API has %d reasons, session %d", values.Len()-1, n)
	}
}
