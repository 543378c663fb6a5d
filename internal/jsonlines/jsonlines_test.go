package jsonlines

import (
	"bytes"
	"math"
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"

	pb "github.com/locksidecar/locksidecar/api/locksidecar/v1"
)

// requests are what a program of ours, or a person, would write.
var requests = []string{
	`{"requestId":"1","open":{"name":"billing","ttl":"30s","metadata":{"job":"42","run":"7"},"liveness":"STREAM"}}`,
	`{"requestId":"1","open":{}}`,
	`{"requestId":"2","acquire":{"resource":"orders/42","mode":"SHARED","wait":"5s","maxHold":"3600.5s","minHold":"30s","owner":"t-1","reentrant":true,"direct":true,"guard":true}}`,
	`{"requestId":"2","acquire":{"resource":"exports","mode":"PERMIT","limit":4}}`,
	`{"requestId":"2","acquire":{"resource":"exports","limit":0}}`,
	`{"requestId":"3","acquire":{"resource":"ä/€","wait":"0s","reentrant":false,"guard":false},"traceparent":"00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"}`,
	`{"requestId":"3","acquire":{"resources":["a","ä"],"wait":"0s"}}`,
	`{"requestId":"3","acquire":{"resource":"r","sessionId":"s","requestId":"q","name":"n","metadata":{}}}`,
	"\t{ \"requestId\" : \"4\" ,\r\n \"cancel\" : { \"requestId\" : \"3\" , \"sessionId\":\"s\" } } ",
	`{"requestId":"5","release":{"lockId":"0123456789abcdef","requestId":"r-1","sessionId":"s"}}`,
	`{"requestId":"6","downgrade":{"lockId":"0123456789abcdef","sessionId":"s"}}`,
	`{"requestId":"7","keepAlive":{}}`,
	`{"requestId":"7","keepAlive":{"sessionId":"s"}}`,
	`{"requestId":"8"}`,
	`{}`,
}

// unusual are lines that are right, and not read by hand.
var unusual = []string{
	`{"request_id":"1","keep_alive":{}}`,
	`{"requestId":"\u0031","acquire":{"resource":"a\"b\\c\n","mode":1}}`,
	`{"requestId":null,"acquire":{"resource":"r","wait":null,"mode":"EXCLUSIVE"}}`,
	`{"requestId":"1","acquire":{"resource":"r","wait":"-1s","max_hold":"1.s"}}`,
	`{"requestId":"1","getLock":{"resource":"r"}}`,
	`{"requestId":"1","listLocks":{"prefix":"ä/","pageSize":10,"pageToken":"x"},"traceparent":"t"}`,
	`{"requestId":"1","watchLocks":{"interval":"0.2s"}}`,
	`{"requestId":"1","forceRelease":{"resource":"r","lockId":"l","grace":"0s"}}`,
	`{"requestId":"1","getInfo":{}}`,
	`{"requestId":"1","acquire":{"resource":"r","wait":"0s","once":{"keep":"3600s","maxAttempts":3}},"traceparent":"t"}`,
	`{"requestId":"1","acquire":{"resource":"r","once":{}}}`,
	`{"requestId":"1","release":{"lockId":"l","requestId":"q","outcome":"SUCCEEDED","note":"n"}}`,
	`{"requestId":"1","release":{"lockId":"l","note":"n"}}`,
	`{"requestId":"1","listOutcomes":{"prefix":"w/","states":"FAILED"}}`,
	`{"requestId":"1","resetOutcome":{"resource":"r"}}`,
}

// wrong are lines that are no request.
var wrong = []string{
	``, `{`, `}`, `null`, `[]`, `7`, `"open"`, `{"requestId":"1"} {}`, `{"requestId":"1",}`, `{"requestId" "1"}`,
	`{"requestId":"1","requestId":"1"}`, `{"open":{},"acquire":{}}`, `{"open":{},"open":{}}`, `{"acquire":{"resource":"a","resource":"b"}}`,
	`{"requestId":7}`, `{"acquire":{"wait":"5"}}`, `{"acquire":{"wait":"5.1234567890s"}}`, `{"acquire":{"wait":"999999999999999999s"}}`,
	`{"acquire":{"wait":"5s "}}`, `{"acquire":{"mode":"WRITE"}}`, `{"acquire":{"reentrant":"true"}}`, `{"acquire":{"direct":"true"}}`, `{"acquire":{"guard":"no"}}`, `{"acquire":{"limit":4.5}}`, `{"acquire":{"limit":4,"limit":4}}`, `{"acquire":{"reentrant":truex}}`,
	`{"acquire":{"resourc":"r"}}`, `{"open":{"metadata":{"a":1}}}`, `{"open":{"metadata":{"a":"1","a":"2"}}}`, `{"nothing":{}}`,
	"{\"requestId\":\"\xff\"}", "{\"requestId\":\"\x01\"}", `{"requestId":"1`, `{"requestId":"\ud800"}`,
}

func TestRequestsAreReadByHand(t *testing.T) {
	for _, line := range requests {
		if usualRequest([]byte(line)) == nil {
			t.Errorf("not read by hand: %s", line)
		}
		sameRequest(t, []byte(line))
	}
	for _, line := range unusual {
		if _, err := ParseRequest([]byte(line)); err != nil {
			t.Errorf("%s: %v", line, err)
		}
		sameRequest(t, []byte(line))
	}
	for _, line := range wrong {
		if _, err := ParseRequest([]byte(line)); err == nil {
			t.Errorf("taken: %s", line)
		}
		if err := Parse([]byte(line), new(pb.AcquireRequest)); err == nil {
			t.Errorf("taken as an acquire: %s", line)
		}
	}
	if text := `{"resource":"a","wait":"5s","reentrant":true}`; !usualAcquire([]byte(text), new(pb.AcquireRequest)) {
		t.Errorf("not read by hand: %s", text)
	}
}

// FuzzRequest: a line means what protojson says, and what is written is read again.
func FuzzRequest(f *testing.F) {
	for _, lines := range [][]string{requests, unusual, wrong} {
		for _, line := range lines {
			f.Add([]byte(line))
		}
	}
	f.Fuzz(func(t *testing.T, line []byte) { sameRequest(t, line) })
}

func sameRequest(t *testing.T, line []byte) {
	t.Helper()
	want := new(pb.SessionRequest)
	wantErr := protojson.Unmarshal(line, want)
	got, err := ParseRequest(line)
	if (err == nil) != (wantErr == nil) {
		t.Fatalf("%q: %v, protojson says %v", line, err, wantErr)
	}
	if err != nil {
		return
	}
	if !proto.Equal(got, want) {
		t.Fatalf("%q is read as\n%v, protojson reads\n%v", line, got, want)
	}
	if q := got.GetAcquire(); q != nil {
		sameAcquire(t, q)
	}
	text, err := AppendRequest([]byte("before\n"), got)
	if err != nil {
		t.Fatal(err)
	}
	text, found := bytes.CutPrefix(text, []byte("before\n"))
	if !found || bytes.IndexByte(text, '\n') != len(text)-1 {
		t.Fatalf("%q is no line", text)
	}
	again := new(pb.SessionRequest)
	if err := protojson.Unmarshal(text, again); err != nil || !proto.Equal(again, want) {
		t.Fatalf("%q is written as %s: %v", line, text, err)
	}
}

// sameAcquire reads what HTTP has of an acquire.
func sameAcquire(t *testing.T, q *pb.AcquireRequest) {
	t.Helper()
	text, err := protojson.Marshal(q)
	if err != nil {
		t.Fatal(err)
	}
	got := &pb.AcquireRequest{Resource: "of another request"}
	if err := Parse(text, got); err != nil || !proto.Equal(got, q) {
		t.Fatalf("%s is read as\n%v, %v", text, got, err)
	}
}

func seconds(d time.Duration) *durationpb.Duration { return durationpb.New(d) }

func grant() *pb.Grant {
	return &pb.Grant{
		LockId: "0123456789abcdef", Resource: "orders/42", Mode: pb.Mode_EXCLUSIVE, Fence: math.MaxInt64,
		ValidFor: seconds(8067853748), CountedAt: seconds(4915 * time.Second), Count: 1,
	}
}

// responses are of every kind that the sidecar sends.
func responses() []*pb.SessionResponse {
	guarded, odd := grant(), grant()
	guarded.Guard = &pb.Guard{Dialect: "mysql", Sql: "UPDATE x SET y = ? WHERE z = ?", Args: []string{"1", "b"}}
	odd.Resource, odd.Mode, odd.Fence = "\x00\x1f\"\\\b\f\n\r\t\x7f<&>ä€😀\u2028", pb.Mode(7), math.MinInt64
	first, later := grant(), grant()
	first.Attempt, first.OutcomeGuard = new(int32), guarded.Guard
	later.Previous = &pb.Outcome{Resource: "r", State: pb.OutcomeState_FAILED, Attempt: 2, Note: "n", Metadata: map[string]string{"k": "v"}}
	odd.ValidFor, odd.Guard = &durationpb.Duration{Seconds: -3, Nanos: -500_000_000}, &pb.Guard{}
	permit := grant()
	permit.Mode, permit.Slot = pb.Mode_PERMIT, new(int32)
	attached := grant()
	attached.EndsIn = seconds(time.Hour)
	several := grant()
	several.Resource, several.Fence = "", 0
	several.Parts = []*pb.Part{{Resource: "a", Fence: 7, LockId: "0"}, {Resource: "b", Fence: 8, LockId: "1", Guard: guarded.GetGuard()}}
	return []*pb.SessionResponse{
		{RequestId: "1", Response: &pb.SessionResponse_Granted{Granted: several}},
		{RequestId: "1", Response: &pb.SessionResponse_Granted{Granted: grant()}},
		{RequestId: "1", Response: &pb.SessionResponse_Granted{Granted: guarded}},
		{RequestId: "1", Response: &pb.SessionResponse_Granted{Granted: permit}},
		{RequestId: "1", Response: &pb.SessionResponse_Granted{Granted: attached}},
		{RequestId: "1", Response: &pb.SessionResponse_Granted{Granted: odd}},
		{RequestId: "1", Response: &pb.SessionResponse_Granted{Granted: &pb.Grant{}}},
		{RequestId: "1", Response: &pb.SessionResponse_Granted{Granted: first}},
		{RequestId: "2", Response: &pb.SessionResponse_Downgraded{Downgraded: later}},
		{RequestId: "2", Response: &pb.SessionResponse_Downgraded{Downgraded: grant()}},
		{RequestId: "3", Response: &pb.SessionResponse_Released{Released: &pb.ReleaseResponse{Count: 2}}},
		{RequestId: "3", Response: &pb.SessionResponse_Released{Released: &pb.ReleaseResponse{}}},
		{RequestId: "3", Response: &pb.SessionResponse_Released{Released: &pb.ReleaseResponse{KeptFor: durationpb.New(1500 * time.Millisecond)}}},
		{RequestId: "4", Response: &pb.SessionResponse_Cancelled{Cancelled: &pb.CancelResponse{}}},
		{RequestId: "5", Response: &pb.SessionResponse_KeptAlive{KeptAlive: &pb.KeepAliveResponse{ValidFor: seconds(time.Millisecond)}}},
		{RequestId: "6", Response: &pb.SessionResponse_Opened{Opened: &pb.OpenSessionResponse{SessionId: "s", LeaseTtl: seconds(10 * time.Second)}}},
		{Response: &pb.SessionResponse_Event{Event: &pb.Event{Event: &pb.Event_Lease{Lease: &pb.LeaseNews{ValidFor: seconds(7), CountedAt: seconds(1500), Jeopardy: true}}}}},
		{Response: &pb.SessionResponse_Event{Event: &pb.Event{Event: &pb.Event_Lost{Lost: &pb.Lost{LockId: "a", Fence: 3, Reason: pb.LostReason_FORCED}}}}},
		{Response: &pb.SessionResponse_Event{Event: &pb.Event{}}},
		{},
	}
}

func TestResponsesAreReadAndWrittenAsProtojsonDoes(t *testing.T) {
	for _, a := range responses() {
		got := sameAnswer(t, a)
		back, err := ParseResponse(got)
		if err != nil || !proto.Equal(back, a) {
			t.Errorf("%sis read as\n%v, want\n%v; %v", got, back, a, err)
		}
	}
	for _, a := range responses()[:3] {
		line, _ := Append(nil, a)
		if usualResponse(line) == nil {
			t.Errorf("not read by hand: %s", line)
		}
		if !new(writer).usual(a) || !new(writer).usual(a.GetGranted()) {
			t.Errorf("not written by hand: %v", a)
		}
	}
	for _, bad := range []proto.Message{
		&pb.SessionResponse{Response: &pb.SessionResponse_Granted{Granted: &pb.Grant{Resource: "caf\xe9"}}},
		&pb.Grant{Resource: "caf\xe9"},
		&pb.Holder{Sidecar: "caf\xe9"},
	} {
		if b, err := Append([]byte("x"), bad); err == nil || string(b) != "x" {
			t.Errorf("%q %v", b, err)
		}
	}
	if _, err := AppendRequest(nil, &pb.SessionRequest{RequestId: "caf\xe9"}); err == nil {
		t.Error("a request that is not UTF-8 is written")
	}
	newer := `{"requestId":"1","granted":{"lockId":"a","slot":3},"more":{}}`
	if a, err := ParseResponse([]byte(newer)); err != nil || a.GetGranted().GetLockId() != "a" {
		t.Errorf("an answer of a newer sidecar: %v %v", a, err)
	}
}

// sameAnswer gives a, and each message in it, as protojson writes it.
func sameAnswer(t *testing.T, a *pb.SessionResponse) (line []byte) {
	t.Helper()
	for _, m := range []proto.Message{a.GetEvent(), a.GetReleased(), a.GetDowngraded(), a.GetGranted(), a} {
		if !m.ProtoReflect().IsValid() {
			continue
		}
		want, err := byProtojson([]byte("before\n"), m)
		if err != nil {
			continue // a duration or an Any that is not valid, which no sidecar sends
		}
		got, err := Append([]byte("before\n"), m)
		if err != nil || !bytes.Equal(got, want) {
			t.Fatalf("%v is written as\n%s, protojson writes\n%s%v", m, got, want, err)
		}
		line = bytes.TrimPrefix(got, []byte("before\n"))
	}
	return line
}

// FuzzResponse: a line means what protojson says, and is written as protojson does.
func FuzzResponse(f *testing.F) {
	for _, a := range responses() {
		line, err := Append(nil, a)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(line)
	}
	for _, n := range []string{"9223372036854775807", "9223372036854775808", "92233720368547758070", "0", "00", "-1"} {
		f.Add([]byte(`{"granted":{"count":` + n + `}}`))
		f.Add([]byte(`{"granted":{"fence":"` + n + `","validFor":"` + n + `s"}}`))
	}
	f.Add([]byte(`{"released":{"count":2147483647}}`))
	f.Add([]byte(`{"released":{"count":2147483648}}`))
	f.Add([]byte(`{"granted":{"count":1e0,"fence":"01"},"requestId":"1"}`))
	f.Fuzz(func(t *testing.T, line []byte) {
		want := new(pb.SessionResponse)
		wantErr := protojson.UnmarshalOptions{DiscardUnknown: true}.Unmarshal(line, want)
		got, err := ParseResponse(line)
		if (err == nil) != (wantErr == nil) {
			t.Fatalf("%q: %v, protojson says %v", line, err, wantErr)
		}
		if err != nil {
			return
		}
		if !proto.Equal(got, want) {
			t.Fatalf("%q is read as\n%v, protojson reads\n%v", line, got, want)
		}
		sameAnswer(t, got)
	})
}

func BenchmarkRequest(b *testing.B) {
	line := []byte(`{"requestId":"2","acquire":{"resource":"orders/42","wait":"5s"}}`)
	b.Run("by hand", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			if usualRequest(line) == nil {
				b.Fatal("not usual")
			}
		}
	})
	b.Run("protojson", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			if err := protojson.Unmarshal(line, new(pb.SessionRequest)); err != nil {
				b.Fatal(err)
			}
		}
	})
}

func BenchmarkResponse(b *testing.B) {
	a := &pb.SessionResponse{RequestId: "1", Response: &pb.SessionResponse_Granted{Granted: grant()}}
	for name, write := range map[string]func([]byte, proto.Message) ([]byte, error){"by hand": Append, "protojson": byProtojson} {
		b.Run(name, func(b *testing.B) {
			b.ReportAllocs()
			line := make([]byte, 0, 1024)
			for b.Loop() {
				if _, err := write(line[:0], a); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

// TestDeepLines: what is deep is refused at once.
func TestDeepLines(t *testing.T) {
	for _, deep := range []string{`{"open":`, `[`, `{"open":{"metadata":`, `{"nothing":`} {
		if _, err := ParseRequest([]byte(strings.Repeat(deep, 10_000))); err == nil {
			t.Errorf("%q ten thousand times is taken", deep)
		}
	}
}
