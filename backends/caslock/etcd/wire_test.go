package etcd

import (
	"bytes"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/mvccpb"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/testing/protocmp"

	"github.com/locksidecar/locksidecar/backends/caslock"
)

// What is written here, etcd's own types read, and the other way round.

// big is a transaction with all that there is.
var big = caslock.Txn{
	If: []caslock.Cond{{Key: "a", Version: 1<<62 + 1}, {Key: "b"}, {Key: "c", Version: 7, There: true}},
	Then: []caslock.Write{
		{Key: "a", Value: bytes.Repeat([]byte("long"), 100)}, {Key: "b"}, {Key: "c", Delete: true},
	},
	Read: []caslock.Range{{Key: "d"}, {Key: "e", End: "f", Limit: 300}, {Key: "g", End: "h", Count: true}},
}

// same compares a request with the message that etcd reads.
func same[M proto.Message](t *testing.T, request message, got, want M) {
	t.Helper()
	if err := proto.Unmarshal(request, got); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(want, got, protocmp.Transform()); diff != "" {
		t.Errorf("(-want +got)\n%s", diff)
	}
}

// sent is a message as etcd sends it.
func sent(t testing.TB, m proto.Message) []byte {
	t.Helper()
	b, err := proto.Marshal(m)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

func TestTxnRequest(t *testing.T) {
	mod := func(key string, result pb.Compare_CompareResult, revision int64) *pb.Compare {
		return &pb.Compare{Target: pb.Compare_MOD, Result: result, Key: []byte(key), TargetUnion: &pb.Compare_ModRevision{ModRevision: revision}}
	}
	put := func(key string, value []byte) *pb.RequestOp {
		return &pb.RequestOp{Request: &pb.RequestOp_RequestPut{RequestPut: &pb.PutRequest{Key: []byte(key), Value: value}}}
	}
	get := func(r *pb.RangeRequest) *pb.RequestOp {
		return &pb.RequestOp{Request: &pb.RequestOp_RequestRange{RequestRange: r}}
	}
	reads := []*pb.RequestOp{
		get(&pb.RangeRequest{Key: []byte("/p/d")}),
		get(&pb.RangeRequest{Key: []byte("/p/e"), RangeEnd: []byte("/p/f"), Limit: 300}),
		get(&pb.RangeRequest{Key: []byte("/p/g"), RangeEnd: []byte("/p/h"), CountOnly: true}),
	}
	writes := []*pb.RequestOp{
		put("/p/a", big.Then[0].Value), put("/p/b", nil),
		{Request: &pb.RequestOp_RequestDeleteRange{RequestDeleteRange: &pb.DeleteRangeRequest{Key: []byte("/p/c")}}},
	}
	same(t, txnRequest("/p/", big), &pb.TxnRequest{}, &pb.TxnRequest{
		Compare: []*pb.Compare{mod("/p/a", pb.Compare_EQUAL, 1<<62+1), mod("/p/b", pb.Compare_EQUAL, 0), mod("/p/c", pb.Compare_GREATER, 0)},
		Success: slices.Concat(writes, reads), Failure: reads,
	})
}

// otherwise is a transaction with another one for where its conditions do not hold.
var otherwise = caslock.Txn{
	If: []caslock.Cond{{Key: "a"}}, Then: []caslock.Write{{Key: "a"}}, Read: []caslock.Range{{Key: "b"}},
	Else: &caslock.Txn{If: []caslock.Cond{{Key: "c", There: true}}, Then: []caslock.Write{{Key: "d", Value: []byte("v")}}},
}

func TestTxnInATxn(t *testing.T) {
	put := func(key, value string) *pb.RequestOp {
		return &pb.RequestOp{Request: &pb.RequestOp_RequestPut{RequestPut: &pb.PutRequest{Key: []byte(key), Value: []byte(value)}}}
	}
	read := &pb.RequestOp{Request: &pb.RequestOp_RequestRange{RequestRange: &pb.RangeRequest{Key: []byte("/p/b")}}}
	inner := &pb.TxnRequest{
		Compare: []*pb.Compare{{Target: pb.Compare_MOD, Result: pb.Compare_GREATER, Key: []byte("/p/c"), TargetUnion: &pb.Compare_ModRevision{}}},
		Success: []*pb.RequestOp{put("/p/d", "v")},
	}
	same(t, txnRequest("/p/", otherwise), &pb.TxnRequest{}, &pb.TxnRequest{
		Compare: []*pb.Compare{{Target: pb.Compare_MOD, Key: []byte("/p/a"), TargetUnion: &pb.Compare_ModRevision{}}},
		Success: []*pb.RequestOp{put("/p/a", ""), read},
		Failure: []*pb.RequestOp{{Request: &pb.RequestOp_RequestTxn{RequestTxn: inner}}, read},
	})
	put1 := &pb.ResponseOp{Response: &pb.ResponseOp_ResponsePut{ResponsePut: &pb.PutResponse{Header: header}}}
	found := &pb.ResponseOp{Response: &pb.ResponseOp_ResponseRange{ResponseRange: &pb.RangeResponse{Header: header, Kvs: []*mvccpb.KeyValue{{Key: []byte("/p/b"), ModRevision: 3}}, Count: 1}}}
	for _, c := range []struct{ done, other bool }{{true, false}, {false, true}, {false, false}} {
		first := put1
		if !c.done {
			a := &pb.TxnResponse{Header: header, Succeeded: c.other}
			if c.other {
				a.Responses = []*pb.ResponseOp{put1}
			}
			first = &pb.ResponseOp{Response: &pb.ResponseOp_ResponseTxn{ResponseTxn: a}}
		}
		whole := sent(t, &pb.TxnResponse{Header: header, Succeeded: c.done, Responses: []*pb.ResponseOp{first, found}})
		got, err := txnResponse(whole, "/p/", otherwise)
		want := caslock.Result{
			Done: c.done, Else: c.other, Revision: 1 << 40, Server: "cdf818194e3a8c32",
			Reads: []caslock.Found{{KVs: []caslock.KV{{Key: "b", Version: 3}}, Count: 1}},
		}
		if diff := cmp.Diff(want, got); diff != "" || err != nil {
			t.Errorf("%+v: %v, (-want +got)\n%s", c, err, diff)
		}
		for n := range whole {
			if r, err := txnResponse(whole[:n], "/p/", otherwise); err == nil {
				t.Errorf("the first %d bytes of an answer give %+v", n, r)
			}
		}
	}
}

func TestOtherRequests(t *testing.T) {
	same(t, watchRequest("/p/own/x/"), &pb.WatchRequest{}, &pb.WatchRequest{RequestUnion: &pb.WatchRequest_CreateRequest{
		CreateRequest: &pb.WatchCreateRequest{Key: []byte("/p/own/x/"), RangeEnd: []byte("/p/own/x0")},
	}})
	same(t, authenticateRequest("u", "p@ß"), &pb.AuthenticateRequest{}, &pb.AuthenticateRequest{Name: "u", Password: "p@ß"})
}

// header has more than is read.
var header = &pb.ResponseHeader{ClusterId: 0xcdf818194e3a8c32, MemberId: 1, Revision: 1 << 40, RaftTerm: 3}

// bigAnswer is what etcd answers to big.
func bigAnswer(done bool) *pb.TxnResponse {
	found := func(r *pb.RangeResponse) *pb.ResponseOp {
		r.Header = header
		return &pb.ResponseOp{Response: &pb.ResponseOp_ResponseRange{ResponseRange: r}}
	}
	put := &pb.ResponseOp{Response: &pb.ResponseOp_ResponsePut{ResponsePut: &pb.PutResponse{Header: header}}}
	a := &pb.TxnResponse{Header: header, Succeeded: done}
	if done {
		a.Responses = []*pb.ResponseOp{put, put, {Response: &pb.ResponseOp_ResponseDeleteRange{
			ResponseDeleteRange: &pb.DeleteRangeResponse{Header: header, Deleted: 1},
		}}}
	}
	a.Responses = append(a.Responses, found(&pb.RangeResponse{}), found(&pb.RangeResponse{Count: 5000, More: true, Kvs: []*mvccpb.KeyValue{
		{Key: []byte("/p/e"), CreateRevision: 1, ModRevision: 1 << 40, Version: 9, Value: []byte("v"), Lease: 4},
		{Key: []byte("/p/e/p/"), ModRevision: 3},
	}}), found(&pb.RangeResponse{Count: 7}))
	return a
}

func TestTxnResponse(t *testing.T) {
	for _, done := range []bool{true, false} {
		got, err := txnResponse(sent(t, bigAnswer(done)), "/p/", big)
		if err != nil {
			t.Fatal(err)
		}
		want := caslock.Result{Done: done, Revision: 1 << 40, Server: "cdf818194e3a8c32", Reads: []caslock.Found{
			{}, {Count: 5000, KVs: []caslock.KV{{Key: "e", Value: []byte("v"), Version: 1 << 40}, {Key: "e/p/", Version: 3}}}, {Count: 7},
		}}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("done %t: (-want +got)\n%s", done, diff)
		}
	}
	if _, err := txnResponse(sent(t, bigAnswer(true)), "/p/", caslock.Txn{Read: big.Read}); err == nil || !strings.Contains(err.Error(), "6 parts, not 3") {
		t.Errorf("an answer to something else: %v", err)
	}
}

func TestWatchResponse(t *testing.T) {
	kv := &mvccpb.KeyValue{Key: []byte("/p/k"), ModRevision: 8, Value: []byte("v")}
	for name, c := range map[string]struct {
		sent *pb.WatchResponse
		want news
	}{
		"created":   {&pb.WatchResponse{Header: header, WatchId: 5, Created: true}, news{created: true}},
		"refused":   {&pb.WatchResponse{Header: header, WatchId: -1, Created: true, Canceled: true, CancelReason: "why"}, news{created: true, canceled: true, reason: "why"}},
		"compacted": {&pb.WatchResponse{CompactRevision: 9}, news{canceled: true}},
		"alive":     {&pb.WatchResponse{Header: header}, news{}},
		"changes": {&pb.WatchResponse{Header: header, Events: []*mvccpb.Event{
			{Kv: kv, PrevKv: &mvccpb.KeyValue{Key: []byte("/p/not")}}, {Type: mvccpb.Event_DELETE, Kv: &mvccpb.KeyValue{Key: []byte("/p/gone"), ModRevision: 9}},
		}}, news{changes: []caslock.KV{{Key: "k", Value: []byte("v"), Version: 8}, {Key: "gone"}}}},
	} {
		got, err := watchResponse(sent(t, c.sent), "/p/")
		if err != nil {
			t.Errorf("%s: %v", name, err)
		}
		if diff := cmp.Diff(c.want, got, cmp.AllowUnexported(news{})); diff != "" {
			t.Errorf("%s: (-want +got)\n%s", name, diff)
		}
	}
}

func TestAuthenticateResponse(t *testing.T) {
	token, err := authenticateResponse(sent(t, &pb.AuthenticateResponse{Header: header, Token: "t.1"}))
	if token != "t.1" || err != nil {
		t.Errorf("%q, %v", token, err)
	}
}

// Nothing that a server may send ends the program, and each read of a transaction has its answer.
func FuzzAnswers(f *testing.F) {
	f.Add(sent(f, bigAnswer(true)))
	f.Add(sent(f, bigAnswer(false)))
	f.Add(sent(f, &pb.WatchResponse{Header: header, Canceled: true, Events: []*mvccpb.Event{{Kv: &mvccpb.KeyValue{Key: []byte("/p/k"), ModRevision: 1}}}}))
	f.Add(sent(f, &pb.AuthenticateResponse{Token: "t"}))
	f.Fuzz(func(t *testing.T, m []byte) {
		if r, err := txnResponse(m, "/p/", big); err == nil && len(r.Reads) != len(big.Read) {
			t.Errorf("%+v", r)
		}
		_, _ = watchResponse(m, "/p/")
		_, _ = authenticateResponse(m)
	})
}

// An answer that is cut off is refused, wherever that is.
func TestAnswerCutOff(t *testing.T) {
	whole := sent(t, bigAnswer(true))
	for n := range whole {
		if r, err := txnResponse(whole[:n], "/p/", big); err == nil {
			t.Errorf("the first %d bytes of an answer give %+v", n, r)
		}
	}
}
