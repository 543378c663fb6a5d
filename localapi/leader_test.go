package localapi

import (
	"bufio"
	"net/http"
	"testing"
	"time"

	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/types/known/durationpb"

	pb "github.com/locksidecar/locksidecar/api/locksidecar/v1"
)

// Who leads, over each protocol: once, and as a stream of the changes.
func TestLeader(t *testing.T) {
	s := start(t, noNews)
	c := s.api(t)
	lines := s.says(t, `{"requestId":"1","getLeader":{"resource":"a/b"}}`+"\n")
	if l := lines.answer().GetLeader(); l.GetLeads() || l.GetHolder() != nil || l.GetResource() != "a/b" {
		t.Errorf("nobody leads: %v", l)
	}
	every := durationpb.New(100 * time.Millisecond)
	grpc, err := c.WatchLeader(t.Context(), &pb.WatchLeaderRequest{Resource: "a/b", Interval: every})
	if err != nil {
		t.Fatal(err)
	}
	lines.say(`{"requestId":"2","watchLeader":{"resource":"a/b","interval":"0.1s"}}` + "\n")
	r, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://x/v1/watch/leader/a/b?interval=0.1s", nil)
	if err != nil {
		t.Fatal(err)
	}
	watch, err := s.http(t).Do(r)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = watch.Body.Close() })
	body := bufio.NewReader(watch.Body)
	next := func(value string) *pb.Leader {
		t.Helper()
		over, err := grpc.Recv()
		if err != nil {
			t.Fatal(err)
		}
		line := lines.answer().GetLeader()
		text, err := body.ReadBytes('\n')
		if err != nil {
			t.Fatal(err)
		}
		overHTTP := &pb.Leader{}
		if err := protojson.Unmarshal(text, overHTTP); err != nil {
			t.Fatalf("%s: %v", text, err)
		}
		for _, l := range []*pb.Leader{over, line, overHTTP} {
			if l.GetLeads() != (value != "") || l.GetValue() != value || l.GetResource() != "a/b" {
				t.Errorf("told %v, want %q", l, value)
			}
		}
		return line
	}
	next("")
	lead := func(value string) *said {
		app := s.says(t, `{"requestId":"1","open":{"metadata":{"leader":"`+value+`"}}}`+"\n")
		app.answer()
		app.say(`{"requestId":"2","acquire":{"resource":"a/b"}}` + "\n")
		return app
	}
	first := lead("one:1")
	first.answer()
	one := next("one:1")
	other := s.says(t, `{"requestId":"1","open":{}}`+"\n")
	other.answer()
	other.say(`{"requestId":"2","acquire":{"resource":"a/b/c"}}` + "\n") // another name, and no news
	other.answer()
	second := lead("two:2")
	eventually(t, "a candidate", func() bool {
		l, err := c.GetLeader(t.Context(), &pb.GetLeaderRequest{Resource: "a/b"})
		return err == nil && l.GetCandidates() == 1 && l.GetValue() == "one:1"
	})
	_ = first.c.Close()
	second.answer()
	two := next("two:2")
	if two.GetHolder().GetFence() <= one.GetHolder().GetFence() {
		t.Errorf("fences %d, %d", one.GetHolder().GetFence(), two.GetHolder().GetFence())
	}
	code, answer := call(t, s.http(t), "GET", "/v1/leader/a/b", "")
	if code != 200 || field(t, answer, "value") != "two:2" {
		t.Errorf("%d %s", code, answer)
	}
	_ = second.c.Close()
	next("")

	readers := s.says(t, `{"requestId":"1","open":{}}`+"\n")
	readers.answer()
	readers.say(`{"requestId":"2","acquire":{"resource":"shared","mode":"SHARED"}}` + "\n")
	readers.answer()
	if l, err := c.GetLeader(t.Context(), &pb.GetLeaderRequest{Resource: "shared"}); err != nil || l.GetLeads() {
		t.Errorf("a reader leads: %v, %v", l, err)
	}
	if _, err := c.GetLeader(t.Context(), &pb.GetLeaderRequest{}); reasonOf(t, err) != reasonInvalid {
		t.Errorf("no name: %v", err)
	}
	w, err := c.WatchLeader(t.Context(), &pb.WatchLeaderRequest{})
	if err == nil {
		_, err = w.Recv()
	}
	if reasonOf(t, err) != reasonInvalid {
		t.Errorf("watch of no name: %v", err)
	}
}
